//! Memory limits of the control groups (cgroups) of this process. Versions 1 and 2 are supported,
//! alone or together. In nested groups the ancestor with the least free memory decides.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::mounts::Mount;
use crate::units::Length;

/// A control group with a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRoom {
    /// Directory of the group in the cgroup file system.
    pub(crate) folder: PathBuf,
    /// Memory limit of all its processes together.
    pub(crate) limit: Length,
    /// The part of the limit that is still free. The page cache counts as free.
    pub(crate) free: Length,
}

impl fmt::Display for GroupRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of control group {}, limited to {}", self.folder.display(), self.limit)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The group with the least free memory among all groups of this process. `root` is the directory
/// that contains `proc` and the mounts: `/`, except in tests.
pub(crate) fn tightest(root: &Path) -> Option<GroupRoom> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read(root.join("proc/self/mountinfo")).ok()?;
    let mounts: Vec<Mount> =
        String::from_utf8_lossy(&mounts).lines().filter_map(Mount::parse).collect();
    let own = groups.lines().filter_map(parse);
    own.flat_map(|(version, group)| rooms(root, &mounts, version, group))
        .min_by_key(|room| room.free)
}

/// Parses `4:memory:/path` (version 1) or `0::/path` (version 2).
fn parse(line: &str) -> Option<(Version, &str)> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    if number == "0" && controllers.is_empty() {
        return Some((Version::Two, path));
    }
    controllers.split(',').any(|one| one == "memory").then_some((Version::One, path))
}

/// The limits of a group and of all its visible ancestors.
fn rooms(root: &Path, mounts: &[Mount], version: Version, group: &str) -> Vec<GroupRoom> {
    let mount = mounts.iter().find(|mount| match version {
        Version::One => mount.kind == "cgroup" && mount.has_option("memory"),
        Version::Two => mount.kind == "cgroup2",
    });
    let Some(mount) = mount else {
        return Vec::new();
    };
    let top = root.join(mount.dir.strip_prefix("/").unwrap_or(&mount.dir));
    // A container sees a part of the tree: its own group is the root of the mount, or is outside
    // the mounted part.
    let below = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let is_plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let own = if is_plain { top.join(below) } else { top.clone() };
    let mut found = Vec::new();
    for folder in own.ancestors().take_while(|folder| folder.starts_with(&top)) {
        found.extend(room_of(folder, version));
        // Version 1 without a hierarchy: the parent does not account for the usage of this group.
        let is_part_of_parent = read(folder.parent().unwrap_or(folder), "memory.use_hierarchy");
        if version == Version::One && is_part_of_parent == Some(0) {
            break;
        }
    }
    found
}

fn room_of(folder: &Path, version: Version) -> Option<GroupRoom> {
    let (limit, used, cache, shmem) = match version {
        Version::One => {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
        }
        Version::Two => ("memory.max", "memory.current", "file", "shmem"),
    };
    // "max" is not a number: this group has no limit.
    let limit = read(folder, limit)?;
    let used = read(folder, used)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of = |key: &str| -> u64 {
        let line = stat.lines().filter_map(|line| line.split_once(' '));
        let value = line.filter(|(name, _)| *name == key).map(|(_, value)| value.trim().parse());
        value.flatten().next().unwrap_or(0)
    };
    let cache = of(cache).saturating_sub(of(shmem));
    let free = limit.saturating_sub(used.saturating_sub(cache));
    Some(GroupRoom { folder: folder.to_owned(), limit: Length(limit), free: Length(free) })
}

fn read(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const UNLIMITED: &str = "9223372036854771712";

    /// A directory tree like the kernel's `/proc` and cgroup files.
    struct FileTree(tempfile::TempDir);

    impl FileTree {
        fn new(groups: &str, mounts: &str) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.write("proc/self/cgroup", groups);
            tree.write("proc/self/mountinfo", mounts);
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn v1(&self, group: &str, limit: &str, used_mib: u64, cache_mib: u64) {
            let at = format!("sys/fs/cgroup/memory/{group}");
            self.write(&format!("{at}/memory.limit_in_bytes"), limit);
            self.write(&format!("{at}/memory.usage_in_bytes"), &(used_mib * MIB).to_string());
            self.write(&format!("{at}/memory.use_hierarchy"), "1");
            let stat = format!("cache 0\ntotal_cache {}\ntotal_shmem 0\n", cache_mib * MIB);
            self.write(&format!("{at}/memory.stat"), &stat);
        }

        fn v2(&self, group: &str, limit: &str, used_mib: u64) {
            let at = format!("sys/fs/cgroup/{group}");
            self.write(&format!("{at}/memory.max"), limit);
            self.write(&format!("{at}/memory.current"), &(used_mib * MIB).to_string());
            self.write(&format!("{at}/memory.stat"), &format!("file {MIB}\nshmem {MIB}\n"));
        }

        fn free_mib(&self) -> Option<u64> {
            tightest(self.0.path()).map(|room| room.free.0 / MIB)
        }
    }

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
    const V2: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn limits_of_version_1_count_with_those_above() {
        let tree = FileTree::new("9:cpu:/other\n4:memory:/a/b\n0::/\n", V1);
        tree.v1("", UNLIMITED, 5000, 0);
        tree.v1("a", &(128 * MIB).to_string(), 100, 0);
        tree.v1("a/b", &(64 * MIB).to_string(), 20, 10);
        assert_eq!(tree.free_mib(), Some(28), "the group above leaves less");
        tree.v1("a", &(128 * MIB).to_string(), 30, 0);
        assert_eq!(tree.free_mib(), Some(54), "the cache of files is free");
        let said = tightest(tree.0.path()).unwrap().to_string();
        assert!(said.contains("memory/a/b") && said.contains(&Length(64 * MIB).to_string()));
        tree.v1("a", &MIB.to_string(), 30, 0);
        tree.write("sys/fs/cgroup/memory/a/memory.use_hierarchy", "0");
        assert_eq!(tree.free_mib(), Some(54), "a parent without a hierarchy does not limit");
    }

    #[test]
    fn limits_of_version_2_count_with_those_above_and_shared_memory_is_used() {
        let tree = FileTree::new("0::/a/b\n", V2);
        tree.v2("a/b", "max", 20);
        assert_eq!(tree.free_mib(), None, "no limit anywhere");
        tree.v2("a", &(100 * MIB).to_string(), 40);
        assert_eq!(tree.free_mib(), Some(60));
        tree.v2("a/b", &(50 * MIB).to_string(), 20);
        assert_eq!(tree.free_mib(), Some(30));
        tree.v2("a/b", &(10 * MIB).to_string(), 20);
        assert_eq!(tree.free_mib(), Some(0), "over its limit");
    }

    #[test]
    fn both_versions_side_by_side_and_the_tighter_one_decides() {
        let unified = V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ");
        let tree = FileTree::new("4:cpu,memory:/a\n0::/u\n", &format!("{V1}{unified}"));
        tree.v1("a", &(64 * MIB).to_string(), 4, 0);
        assert_eq!(tree.free_mib(), Some(60), "version 2 without the controller");
        tree.v2("unified/u", &(32 * MIB).to_string(), 2);
        assert_eq!(tree.free_mib(), Some(30));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let mounts = V1.replace(" / /sys/fs/cgroup/memory", " /docker/x /sys/fs/cgroup/memory");
        for groups in ["4:memory:/docker/x\n", "4:memory:/\n", "4:memory:/../elsewhere\n"] {
            let tree = FileTree::new(groups, &mounts);
            tree.v1("", &(64 * MIB).to_string(), 4, 0);
            assert_eq!(tree.free_mib(), Some(60), "{groups}");
        }
        let tree = FileTree::new("4:memory:/docker/x/y\n", &mounts);
        tree.v1("", &(64 * MIB).to_string(), 4, 0);
        tree.v1("y", &(32 * MIB).to_string(), 4, 0);
        assert_eq!(tree.free_mib(), Some(28));
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        assert_eq!(tightest(Path::new("/nowhere")), None);
        let tree = FileTree::new("nonsense\n4:memory\n::\n", "nonsense\n");
        assert_eq!(tree.free_mib(), None);
        let tree = FileTree::new("4:memory:/a\n", V1);
        tree.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "a lot");
        assert_eq!(tree.free_mib(), None);
    }
}
