//! The mounted file systems that this process sees.

use std::fs;
use std::path::PathBuf;

/// Source name of our mounts, by which they are recognised.
pub(crate) const MOUNT_SOURCE: &str = "farrow";

/// One line of `/proc/self/mountinfo`.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) device: (u32, u32),
    /// The directory of its file system that is mounted.
    pub(crate) root: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) kind: String,
    source: String,
    options: String,
}

impl Mount {
    /// Parses `36 35 98:0 /root /dir rw,... shared:1 - tmpfs source rw,size=1k,huge=always`.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (first, second) = line.split_once(" - ")?;
        let mut first = first.split(' ').skip(2);
        let (major, minor) = first.next()?.split_once(':')?;
        let (root, dir) = (unescape(first.next()?), unescape(first.next()?));
        let mut second = second.split(' ');
        let kind = second.next()?.to_owned();
        let source = second.next().unwrap_or("").to_owned();
        let options = second.next().unwrap_or("").to_owned();
        Some(Self {
            device: (major.parse().ok()?, minor.parse().ok()?),
            root: PathBuf::from(root),
            dir: PathBuf::from(dir),
            kind,
            source,
            options,
        })
    }

    pub(crate) fn is_of_node(&self) -> bool {
        self.kind == "tmpfs" && self.source == MOUNT_SOURCE
    }

    /// Whether the file system has this option, an option without a value.
    pub(crate) fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }

    pub(crate) fn option(&self, name: &str) -> Option<String> {
        self.options
            .split(',')
            .filter_map(|option| option.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    }
}

pub(crate) fn mounts() -> Vec<Mount> {
    // Of the thread, since a thread can have its own mount namespace.
    let text = fs::read("/proc/thread-self/mountinfo")
        .or_else(|_| fs::read("/proc/self/mountinfo"))
        .unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(Mount::parse).collect()
}

/// Whether a device number (from `stat`) is that of a tmpfs created by [`crate::mount`].
pub(crate) fn is_mount_of_ours(device: u64) -> bool {
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    mounts().iter().any(|mount| mount.device == device && mount.is_of_node())
}

/// Decodes a path: the kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = after.get(3..).unwrap_or("");
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_mount_line_is_read() {
        let line = "36 35 0:98 / /mnt/a\\040b rw,noatime shared:1 master:2 - tmpfs none rw,size=1k,huge=always";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.device, (0, 98));
        assert_eq!(mount.dir, Path::new("/mnt/a b"));
        assert_eq!((&*mount.kind, &*mount.source), ("tmpfs", "none"));
        assert!(!mount.is_of_node());
        assert!(Mount::parse(&line.replace(" none ", " farrow ")).unwrap().is_of_node());
        assert_eq!(mount.option("huge").as_deref(), Some("always"));
        assert_eq!(mount.option("size").as_deref(), Some("1k"));
        assert_eq!(mount.option("siz"), None);
        for broken in ["", " - ", "36 35", "36 35 0 / /a rw - tmpfs", "36 35 x:y / /a rw - t n o"] {
            assert!(Mount::parse(broken).is_none(), "{broken:?}");
        }
        assert_eq!(unescape("a\\b\\"), "a\\b\\");
    }
}
