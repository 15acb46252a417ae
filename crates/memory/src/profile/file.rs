//! A profile as a file of the user: a few lines of TOML that this module writes and reads itself.
//!
//! It is a cache: what is not exactly what this version writes for this machine (another machine,
//! another kernel, another version, cut short, edited) is as good as no file, and is replaced by
//! what is then measured. Nothing about it is ever an error. A file that somebody forged can make
//! Farrow slower; it cannot name a way that would be wrong, since [`Profile::new`] has the say.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::{Origin, Profile, STEPS, Step, WriteWay, step_bytes};
use crate::cache::{self, Method};
use crate::copy::StreamMethod;
use crate::survey;
use crate::units::Length;

/// Raised with every change to the format, to the sizes, or to how is measured.
const VERSION: u32 = 2;

/// Four times what is written.
const FILE_BYTES_MAX: u64 = 8 << 10;

const HEADER: &str = "# How Farrow best uses the caches of this machine. Measured; if you delete \
                      this file it is measured again.\n";

/// Where the profile of this machine lies: `$FARROW_PROFILE`, else in the user's folder for caches.
/// `None` if there is no such folder, or for `FARROW_PROFILE=off`.
#[must_use]
pub fn path() -> Option<PathBuf> {
    // Tests of this crate leave nothing in the user's folder.
    if cfg!(test) {
        return None;
    }
    if let Some(said) = std::env::var_os("FARROW_PROFILE") {
        return (!said.is_empty() && said != "off").then(|| said.into());
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    // A home may be shared by machines of several kinds.
    Some(folder.join("farrow").join(format!("profile-{:016x}.toml", hash(machine().as_bytes()))))
}

/// What a profile is good for: the same CPU, caches, kernel and number of cores. Code that was not
/// optimised measures itself.
#[must_use]
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let line = cache::line_bytes();
    let kernel = survey::kernel_release().unwrap_or_default();
    let arch = std::env::consts::ARCH;
    let text =
        format!("{arch} {} line {line} cores {cores} linux {kernel} {build}", survey::cpu_model());
    text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').filter(|c| *c != '"').collect()
}

/// The profile of this machine in a file, if it is one.
#[must_use]
pub fn load(path: &Path) -> Option<Profile> {
    let file = fs::File::open(path).ok()?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let profile = decode(&text, &machine());
    if profile.is_none() {
        tracing::debug!(path = %path.display(), "not a profile of this machine");
    }
    profile
}

/// Keeps a profile for the processes to come; says whether it could.
pub fn store(path: &Path, profile: &Profile) -> bool {
    let stored = replace(path, &encode(profile, &machine()));
    if let Err(error) = &stored {
        tracing::debug!(path = %path.display(), %error, "profile not kept");
    }
    stored.is_ok()
}

/// Whoever reads meanwhile sees the old file or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(name);
    let written = fs::File::create(&fresh)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

fn encode(profile: &Profile, machine: &str) -> String {
    let mut text = String::from(HEADER);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "version = {VERSION}\nmachine = \"{machine}\"");
    let _ = writeln!(text, "stream = \"{}\"", profile.stream.key());
    let _ = writeln!(text, "stream_bytes_min = {}", profile.stream_bytes_min.0);
    for (bytes, step) in profile.steps() {
        let _ = write!(text, "step.{} = {{ ", bytes.0);
        let parts = [
            ("publish", step.publish.0.as_str(), step.publish.1),
            ("refresh", step.refresh.0.as_str(), step.refresh.1),
            ("write", step.write.0.key(), step.write.1),
        ];
        let parts = parts
            .map(|(what, way, ns)| format!("{what} = \"{way}\", {what}_ns = {}", ns.unwrap_or(0)));
        let _ = writeln!(text, "{} }}", parts.join(", "));
    }
    let _ = writeln!(text, "checksum = \"{:016x}\"", hash(text.as_bytes()));
    text
}

/// The profile in a text that `encode` made for this machine.
fn decode(text: &str, machine: &str) -> Option<Profile> {
    let (body, checksum) = text.rsplit_once("checksum = \"")?;
    if checksum != format!("{:016x}\"\n", hash(body.as_bytes())) {
        return None;
    }
    let mut lines = body.strip_prefix(HEADER)?.lines();
    let is_ours = lines.next()? == format!("version = {VERSION}")
        && lines.next()? == format!("machine = \"{machine}\"");
    if !is_ours {
        return None;
    }
    let stream = lines.next()?.strip_prefix("stream = \"")?.strip_suffix('"')?;
    let stream = StreamMethod::of_key(stream)?;
    let bytes_min = lines.next()?.strip_prefix("stream_bytes_min = ")?.parse().ok()?;
    let mut steps = Vec::with_capacity(STEPS);
    for index in 0..STEPS {
        let prefix = format!("step.{} = {{ ", step_bytes(index).0);
        let parts = lines.next()?.strip_prefix(&prefix)?.strip_suffix(" }")?;
        let mut parts = parts.split(", ");
        let mut next = |what: &str| -> Option<(String, Option<u32>)> {
            let way = parts.next()?.strip_prefix(&format!("{what} = \""))?.strip_suffix('"')?;
            let ns: u32 = parts.next()?.strip_prefix(&format!("{what}_ns = "))?.parse().ok()?;
            Some((way.to_owned(), (ns > 0).then_some(ns)))
        };
        let method = |(way, ns): (String, _)| Some((Method::of_name(&way)?, ns));
        let publish = method(next("publish")?)?;
        let refresh = method(next("refresh")?)?;
        let (way, ns) = next("write")?;
        steps.push(Step { publish, refresh, write: (WriteWay::of_key(&way)?, ns) });
    }
    let profile = Profile::new(steps.try_into().ok()?, stream, Length(bytes_min))?;
    lines.next().is_none().then_some(Profile { origin: Origin::File, ..profile })
}

/// FNV-1a, 64 bits: against accidents, not against people.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn same_choices(one: &Profile, other: &Profile) -> bool {
        one.steps == other.steps && one.copy_plan() == other.copy_plan()
    }

    /// Every x86-64 CPU has these.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_golden_file_is_read_and_written() {
        let way = WriteWay::Stream(StreamMethod::Sse2);
        let mut profile =
            Profile::uniform(Method::Clflush, Method::Clflush, way).expect("of every CPU");
        profile.stream = StreamMethod::Sse2;
        profile.steps[8].publish.1 = Some(9_000_000);
        let text = encode(&profile, "x86_64 golden line 64");
        let mut golden = String::from(HEADER);
        golden += "version = 2\nmachine = \"x86_64 golden line 64\"\nstream = \"sse2\"\n";
        golden += "stream_bytes_min = 1048576\n";
        for (bytes, ns) in [
            (64, 0),
            (256, 0),
            (1024, 0),
            (4096, 0),
            (16_384, 0),
            (65_536, 0),
            (262_144, 0),
            (1_048_576, 0),
            (4_194_304, 9_000_000),
        ] {
            golden += &format!(
                "step.{bytes} = {{ publish = \"clflush\", publish_ns = {ns}, refresh = \
                 \"clflush\", refresh_ns = 0, write = \"sse2\", write_ns = 0 }}\n"
            );
        }
        golden += "checksum = \"cf3850b8d639198a\"\n";
        assert_eq!(text, golden);
        let read = decode(&golden, "x86_64 golden line 64").expect("the golden file");
        assert!(same_choices(&read, &profile));
        assert_eq!(read.origin(), Origin::File);
    }

    #[test]
    fn what_was_measured_comes_back() {
        let profile = Profile::measure(Duration::ZERO);
        let text = encode(&profile, "here");
        assert!((text.len() as u64) < FILE_BYTES_MAX / 2);
        assert!(same_choices(&decode(&text, "here").unwrap(), &profile));
    }

    #[test]
    fn a_damaged_file_is_no_profile() {
        let text = encode(&Profile::unmeasured(), "here");
        assert!(decode(&text, "here").is_some());
        for end in 0..text.len() {
            assert!(decode(&text[..end], "here").is_none(), "cut at {end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(damaged) = String::from_utf8(bytes) {
                assert!(decode(&damaged, "here").is_none(), "flipped at {at}");
            }
        }
        assert!(decode(&format!("{text}more"), "here").is_none());
    }

    /// The checksum is right, the rest is not what this machine, or this version, says.
    #[test]
    fn a_foreign_file_is_no_profile() {
        let text = encode(&Profile::unmeasured(), "here");
        let sealed = |from: &str, to: &str| {
            let (body, _) = text.rsplit_once("checksum").unwrap();
            assert!(body.contains(from), "{from}");
            let body = body.replacen(from, to, 1);
            format!("{body}checksum = \"{:016x}\"\n", hash(body.as_bytes()))
        };
        let publish = cache::publish_method().as_str();
        assert!(decode(&sealed("version = 2", "version = 2"), "here").is_some());
        for (from, to) in [
            ("version = 2", "version = 1"),
            ("\"here\"", "\"there\""),
            ("step.256 ", "step.512 "),
            ("stream_bytes_min = 1048576", "stream_bytes_min = -1"),
            ("publish_ns = 0", "publish_ns = x"),
            (&format!("publish = \"{publish}\""), "publish = \"wbinvd\""),
            ("refresh = \"", "refresh = \"no "),
        ] {
            assert!(decode(&sealed(from, to), "here").is_none(), "{from} -> {to}");
        }
        let foreign = ["clwb", "dc cvac", "dcbst"]
            .into_iter()
            .find(|name| !Method::of_name(name).is_some_and(Method::is_available))
            .unwrap();
        let of_another =
            sealed(&format!("publish = \"{publish}\""), &format!("publish = \"{foreign}\""));
        assert!(decode(&of_another, "here").is_none());
    }

    #[test]
    fn a_bad_file_is_replaced_and_a_good_one_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join("profile.toml");
        assert!(load(&path).is_none());
        let profile = Profile::unmeasured();
        assert!(store(&path, &profile));
        assert!(same_choices(&load(&path).unwrap(), &profile));
        for bad in [&b""[..], b"\xff\xfe", &[b'x'; 20_000]] {
            fs::write(&path, bad).unwrap();
            assert!(load(&path).is_none());
            assert!(store(&path, &profile) && load(&path).is_some());
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        // A file where the folder should be: not kept, no harm.
        assert!(!store(&path.join("b").join("profile.toml"), &profile));
        assert!(load(folder.path()).is_none());
    }

    #[test]
    fn the_machine_has_a_name() {
        let machine = machine();
        assert!(machine.starts_with(std::env::consts::ARCH), "{machine}");
        assert!(!machine.contains(['"', '\n']), "{machine}");
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
    }
}
