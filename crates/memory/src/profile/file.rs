//! The user's file with the measurements of a machine: a few lines of TOML, written and read by
//! this module.
//!
//! The file is a cache. If it is not exactly what this version writes for this machine (another
//! machine, kernel or version, truncated, edited), it is ignored and replaced by new measurements.
//! A bad file is never an error. A forged file can make Farrow slower, but not incorrect: only
//! methods of this CPU are accepted.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::costs::Findings;
use crate::cache;
use crate::system::kernel;

/// Increased with every change to the format, the sizes or the measurement.
const VERSION: u32 = 4;

/// Four times the usual size of the file.
const FILE_BYTES_MAX: u64 = 8 << 10;

const HEADER: &str = "# How Farrow best uses the caches of this machine. Nanoseconds of each way \
                      for 64 B, 256 B and so on to 4 MiB, 0 where not measured. If you delete this \
                      file it is measured again.\n";

/// Path of the profile of this machine: `$FARROW_PROFILE`, else a file in the user's cache
/// directory. `None` if there is no such directory, or if `FARROW_PROFILE` is `off` or empty.
#[must_use]
pub fn path() -> Option<PathBuf> {
    // Tests of this crate write nothing to the user's cache directory.
    if cfg!(test) {
        return None;
    }
    if let Some(said) = std::env::var_os("FARROW_PROFILE") {
        return (!said.is_empty() && said != "off").then(|| said.into());
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    // Different machines may share a home directory.
    Some(folder.join("farrow").join(format!("profile-{:016x}.toml", hash(machine().as_bytes()))))
}

/// Identifies the machine for which a profile is valid: CPU, cache line, kernel and number of
/// cores. Debug builds have their own profile, since they measure unoptimised code.
#[must_use]
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let line = cache::line_bytes();
    let kernel = kernel::kernel_release().unwrap_or_default();
    let arch = std::env::consts::ARCH;
    let text =
        format!("{arch} {} line {line} cores {cores} linux {kernel} {build}", kernel::cpu_model());
    text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').filter(|c| *c != '"').collect()
}

/// Loads the measurements of this machine from a file, if it is valid.
#[must_use]
pub fn load(path: &Path) -> Option<Findings> {
    let file = fs::File::open(path).ok()?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let found = decode(&text, &machine(), Findings::none());
    if found.is_none() {
        tracing::debug!(path = %path.display(), "not a profile of this machine");
    }
    found
}

/// Stores measurements for later processes. Returns whether that succeeded.
pub fn store(path: &Path, found: &Findings) -> bool {
    let stored = replace(path, &encode(found, &machine()));
    if let Err(error) = &stored {
        tracing::debug!(path = %path.display(), %error, "profile not retained");
    }
    stored.is_ok()
}

/// Replaces the file atomically: a concurrent reader sees either the old or the new contents.
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

fn encode(found: &Findings, machine: &str) -> String {
    let mut text = String::from(HEADER);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "version = {VERSION}\nmachine = \"{machine}\"\nruns = {}", found.runs);
    for (key, row) in keys(found).iter().zip(found.rows()) {
        let row: Vec<String> = row.iter().map(|ns| format!("{:.1}", ns.unwrap_or(0.0))).collect();
        let _ = writeln!(text, "{key} = [{}]", row.join(", "));
    }
    let _ = writeln!(text, "checksum = \"{:016x}\"", hash(text.as_bytes()));
    text
}

/// Parses a text that `encode` wrote for this machine. `found` defines the methods.
fn decode(text: &str, machine: &str, mut found: Findings) -> Option<Findings> {
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
    found.runs = lines.next()?.strip_prefix("runs = ")?.parse().ok()?;
    for (key, row) in keys(&found).iter().zip(found.rows_mut()) {
        let cells = lines.next()?.strip_prefix(&format!("{key} = ["))?.strip_suffix(']')?;
        let mut cells = cells.split(", ");
        for cell in row.iter_mut() {
            let ns: f64 = cells.next()?.parse().ok()?;
            if !ns.is_finite() || ns < 0.0 {
                return None;
            }
            *cell = (ns > 0.0).then_some(ns);
        }
        cells.next().is_none().then_some(())?;
    }
    lines.next().is_none().then_some(found)
}

/// The key of each row, in order.
fn keys(found: &Findings) -> Vec<String> {
    let key = |work: &str, way: &str| format!("{work}.\"{way}\"");
    let publish = found.publish.ways.iter().map(|way| key("publish", way.as_str()));
    let refresh = found.refresh.ways.iter().map(|way| key("refresh", way.as_str()));
    let write = found.write.ways.iter().map(|way| key("write", way.key()));
    let copies = found.copies.ways.iter().map(|way| key("copy", way.key()));
    publish.chain(refresh).chain(write).chain(copies).collect()
}

/// FNV-1a, 64 bits: detects accidental damage, not forgery.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[cfg(target_arch = "x86_64")]
    use super::super::costs::Costs;
    use super::super::{Origin, Profile};
    use super::*;
    use crate::cache::Method;
    #[cfg(target_arch = "x86_64")]
    use crate::copy::StreamMethod;
    #[cfg(target_arch = "x86_64")]
    use crate::write_way::WriteWay;

    fn read(text: &str, machine: &str) -> Option<Findings> {
        decode(text, machine, Findings::none())
    }

    /// All methods of this CPU, each with different times.
    fn some() -> Findings {
        let mut found = Findings::none();
        found.runs = 3;
        for (number, row) in (1..).zip(found.rows_mut()) {
            for (step, cell) in (1..).zip(row) {
                *cell = (step < 8).then_some(f64::from(number * 10 * step) + 0.5);
            }
        }
        found
    }

    /// Uses only methods that every x86-64 CPU supports.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_golden_file_is_read_and_written() {
        let mut found = Findings::none();
        found.runs = 3;
        found.publish = Costs::new(vec![Method::Clflush]);
        found.refresh = Costs::new(vec![Method::Clflush]);
        found.write = Costs::new(vec![WriteWay::Stream(StreamMethod::Sse2)]);
        found.publish.least[0][8] = Some(9_000_000.0);
        found.copies.least[0][0] = Some(12.5);
        let text = encode(&found, "x86_64 golden line 64");
        let mut golden = String::from(HEADER);
        golden += "version = 4\nmachine = \"x86_64 golden line 64\"\nruns = 3\n";
        golden += "publish.\"clflush\" = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9000000.0]\n";
        golden += "refresh.\"clflush\" = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]\n";
        golden += "write.\"sse2\" = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]\n";
        golden += "copy.\"memcpy\" = [12.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]\n";
        golden += "checksum = \"faf2f52c67668a74\"\n";
        assert_eq!(text, golden);
        let ways = Findings {
            publish: Costs::new(vec![Method::Clflush]),
            refresh: Costs::new(vec![Method::Clflush]),
            write: Costs::new(vec![WriteWay::Stream(StreamMethod::Sse2)]),
            ..Findings::none()
        };
        assert_eq!(decode(&golden, "x86_64 golden line 64", ways), Some(found));
    }

    #[test]
    fn what_was_measured_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.toml");
        let (profile, is_retained) = Profile::measure(Duration::ZERO, Some(&path));
        assert!(is_retained);
        let found = load(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().len() < FILE_BYTES_MAX / 2);
        let loaded = found.profile(Origin::File);
        let ways = |profile: &Profile| {
            let ways = profile.steps().map(|(_, one)| (one.publish.0, one.refresh.0, one.write.0));
            ways.collect::<Vec<_>>()
        };
        assert_eq!(ways(&loaded), ways(&profile));
        assert_eq!(loaded.copy_plan(), profile.copy_plan());
        assert_eq!((found.runs, loaded.origin()), (1, Origin::File));
        let found = some();
        assert_eq!(read(&encode(&found, "here"), "here"), Some(found));
    }

    #[test]
    fn a_damaged_file_is_no_profile() {
        let text = encode(&some(), "here");
        assert!(read(&text, "here").is_some());
        for end in 0..text.len() {
            assert!(read(&text[..end], "here").is_none(), "cut at {end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok(damaged) = String::from_utf8(bytes) {
                assert!(read(&damaged, "here").is_none(), "flipped at {at}");
            }
        }
        assert!(read(&format!("{text}more"), "here").is_none());
    }

    /// The checksum is correct, but the contents are for another machine or another version.
    #[test]
    fn a_foreign_file_is_no_profile() {
        let text = encode(&some(), "here");
        let sealed = |from: &str, to: &str| {
            let (body, _) = text.rsplit_once("checksum").unwrap();
            assert!(body.contains(from), "{from}");
            let body = body.replacen(from, to, 1);
            format!("{body}checksum = \"{:016x}\"\n", hash(body.as_bytes()))
        };
        let publish = cache::publish_method().as_str();
        let foreign = ["clwb", "dc cvac", "dcbst"]
            .into_iter()
            .find(|name| !Method::of_name(name).is_some_and(Method::is_available))
            .unwrap();
        assert!(read(&sealed("version = 4", "version = 4"), "here").is_some());
        let known = format!("publish.\"{publish}\"");
        for (from, to) in [
            ("version = 4", "version = 3"),
            ("\"here\"", "\"there\""),
            ("runs = 3", "runs = -1"),
            (&known[..], "publish.\"wbinvd\""),
            (&known, &format!("publish.\"{foreign}\"")),
            (&known, &format!("refresh.\"{publish}\"")),
            ("= [10.5, ", "= [-10.5, "),
            ("= [10.5, ", "= [NaN, "),
            ("= [10.5, ", "= [inf, "),
            ("= [10.5, ", "= ["),
            ("= [10.5, ", "= [10.5, 10.5, "),
        ] {
            assert!(read(&sealed(from, to), "here").is_none(), "{from} -> {to}");
        }
    }

    #[test]
    fn a_bad_file_is_replaced_and_a_good_one_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join("profile.toml");
        assert!(load(&path).is_none());
        let found = some();
        assert!(store(&path, &found));
        assert_eq!(load(&path), Some(found.clone()));
        for bad in [&b""[..], b"\xff\xfe", &[b'x'; 20_000]] {
            fs::write(&path, bad).unwrap();
            assert!(load(&path).is_none());
            assert!(store(&path, &found) && load(&path).is_some());
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        // A file in place of the directory: the profile is not stored, without an error.
        assert!(!store(&path.join("b").join("profile.toml"), &found));
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
