//! The shared memory of a node, as accounted by the kernel.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::wait_for;

/// A control group that a node runs in, where the kernel counts the shared memory that the node
/// made, to the page, whoever maps it now. Without one it is the whole machine's.
pub struct Ledger {
    group: Option<PathBuf>,
    before: u64,
}

/// Others use the machine meanwhile: a region of a test is larger than this.
const TOLERANCE_BYTES: u64 = 16 << 20;

impl Ledger {
    pub fn new(name: &str) -> Self {
        let mut ledger = Self { group: make_group(name), before: 0 };
        if ledger.group.is_none() {
            eprintln!("no control group of memory: the machine's shared memory is counted");
        }
        ledger.before = ledger.count();
        ledger
    }

    /// For a command: runs it in the group.
    pub fn prefix(&self) -> Vec<String> {
        let Some(group) = &self.group else { return Vec::new() };
        let script = format!("echo $$ > {}/cgroup.procs; exec \"$0\" \"$@\"", group.display());
        vec!["/bin/sh".to_owned(), "-c".to_owned(), script]
    }

    /// Sets the most memory of the group; false where there is none.
    pub fn limit(&self, bytes: u64) -> bool {
        let Some(group) = &self.group else { return false };
        let files = ["memory.limit_in_bytes", "memory.max"].map(|name| group.join(name));
        let there = files.iter().find(|file| file.exists());
        there.is_some_and(|file| fs::write(file, bytes.to_string()).is_ok())
    }

    fn count(&self) -> u64 {
        let of_file = |path: &Path, key: &str, unit: u64| {
            let text = fs::read_to_string(path).unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * unit
        };
        match &self.group {
            Some(group) => of_file(&group.join("memory.stat"), "shmem ", 1),
            None => of_file(Path::new("/proc/meminfo"), "Shmem:", 1024),
        }
    }

    /// Shared memory made since the beginning.
    pub fn used(&self) -> u64 {
        self.count().saturating_sub(self.before)
    }

    /// Waits until all of it is back but what the files in a folder take: to the byte in a group of
    /// its own. The kernel does not take a socket's lock away, which is a page in a tmpfs.
    pub fn wait_empty(&self, but: &Path, what: &str) {
        let tolerance = if self.group.is_some() { 0 } else { TOLERANCE_BYTES };
        let files = || {
            let all = fs::read_dir(but).into_iter().flatten().flatten();
            let blocks = all.map(|one| one.metadata().map_or(0, |found| found.blocks()));
            blocks.sum::<u64>() * 512
        };
        let is_back = wait_for(what, || (self.used() <= files() + tolerance).then_some(()));
        assert!(is_back.is_some(), "{what}: {} B are left", self.used());
    }

    /// Waits until so much is used.
    pub fn wait_used(&self, bytes: u64) {
        let is_used = wait_for("shared memory", || (self.used() >= bytes).then_some(()));
        assert!(is_used.is_some(), "{} B of {bytes} B are used", self.used());
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // Not while a process is in it.
            wait_for("an empty control group", || fs::remove_dir(group).ok());
        }
    }
}

/// Version 1, or version 2 where it counts memory.
fn make_group(name: &str) -> Option<PathBuf> {
    let name = format!("farrow-test-{name}-{}", std::process::id());
    ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].iter().find_map(|root| {
        let group = Path::new(root).join(&name);
        fs::create_dir(&group).ok()?;
        let is_counted = fs::read_to_string(group.join("memory.stat"))
            .is_ok_and(|text| text.lines().any(|line| line.starts_with("shmem ")));
        if !is_counted {
            let _ = fs::remove_dir(&group);
        }
        is_counted.then_some(group)
    })
}
