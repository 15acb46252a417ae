//! The machine of this process, as nodes tell each other.

/// Identifies the kernel and the process namespace of this process. Nodes with equal values share
/// tmpfs and see each other's processes.
pub(crate) fn own_host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}
