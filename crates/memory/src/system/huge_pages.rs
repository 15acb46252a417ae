//! Which memory can have huge pages, and of which size.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;

use super::kernel::{bracketed, read_word};
use super::mounts::mounts;
use crate::units::{Length, page_bytes};

/// The huge page size of the tmpfs of a path, if it is a tmpfs with huge pages.
pub(crate) fn tmpfs_huge_page_bytes(path: &Path) -> Option<Length> {
    huge_page_of_device(rustix::fs::stat(path).ok()?.st_dev)
}

/// The same for an open file, which may also be a memory file (memfd).
pub(crate) fn huge_page_bytes_of(fd: BorrowedFd<'_>) -> Option<Length> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    if mounts().iter().any(|mount| mount.device == device) {
        return huge_page_of_device(stat.st_dev);
    }
    // Not mounted: the detached tmpfs of a node, or the kernel's internal tmpfs of memory files.
    // Both report the page size that they try to use as their block size.
    let block = u64::try_from(stat.st_blksize).unwrap_or(0);
    if block > page_bytes() { Some(Length(block)) } else { memfd_huge_page_bytes() }
}

/// Whether a tmpfs can be mounted with huge pages.
pub(crate) fn tmpfs_can_have_huge_pages() -> bool {
    let word = bracketed("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    huge_page_of_kernel().is_some() && word.is_some_and(|word| word != "deny")
}

/// The huge page size of memory files.
pub(crate) fn memfd_huge_page_bytes() -> Option<Length> {
    let word = bracketed("/sys/kernel/mm/transparent_hugepage/shmem_enabled")?;
    is_huge_granted(&word).then(huge_page_of_kernel).flatten()
}

/// Alignment of a devdax device, from sysfs.
pub(crate) fn device_huge_page_bytes(rdev: u64) -> Option<Length> {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let said = read_word(&format!("/sys/dev/char/{major}:{minor}/align"))?.parse().ok()?;
    (said > page_bytes()).then_some(Length(said))
}

/// Bytes in huge pages of the map that contains an address; `None` if the kernel does not report
/// it.
pub(crate) fn huge_bytes_at(address: usize) -> Option<Length> {
    let text = fs::read_to_string("/proc/self/smaps").ok()?;
    let mut is_inside = false;
    let mut kib = 0u64;
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, end)) = first.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16).ok();
            is_inside = hex(start)? <= address && address < hex(end)?;
        } else if is_inside
            && matches!(first, "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:")
        {
            kib += rest.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    kib.checked_mul(1024).map(Length)
}

fn huge_page_of_device(device: u64) -> Option<Length> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Some(mount) = mounts().into_iter().find(|mount| mount.device == (major, minor)) else {
        // Not mounted: the kernel's internal tmpfs, which contains the memory files.
        return memfd_huge_page_bytes();
    };
    if mount.kind != "tmpfs" {
        return None;
    }
    let word = mount.option("huge")?;
    is_huge_granted(&word).then(huge_page_of_kernel).flatten()
}

fn is_huge_granted(word: &str) -> bool {
    matches!(word, "always" | "within_size" | "advise" | "force")
}

pub(crate) fn huge_page_of_kernel() -> Option<Length> {
    let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    Some(Length(read_word(path)?.parse().ok()?))
}
