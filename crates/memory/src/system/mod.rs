//! What the kernel says about this machine and this process. Knows no region.

pub(crate) mod cgroup;
pub(crate) mod free_memory;
pub(crate) mod heap;
pub(crate) mod huge_pages;
pub(crate) mod kernel;
pub(crate) mod mounts;
