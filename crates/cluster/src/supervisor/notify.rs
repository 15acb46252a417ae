//! The systemd notification protocol: systemd learns when the node serves, and stores the
//! descriptors of memory without a name, so that a restart of both supervisor and daemon adopts it
//! (`sd_notify(3)`, `sd_pid_notify_with_fds(3)`, `sd_listen_fds(3)`).

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use farrow_memory::{HeldMemory, take_inherited};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

/// The names under which systemd stores the sections.
const NAMES: [&str; 2] = ["farrow-control", "farrow-data"];

/// Notifies the service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// The path of its socket, or an abstract name after an `@`.
    address: Option<OsString>,
}

impl Notifier {
    pub(crate) fn from_environment() -> Self {
        Self { address: std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) }
    }

    /// Reports that the node serves, and stores memory without a name for the next start.
    pub(crate) fn ready(&self, memory: Option<&HeldMemory>) {
        // That of an earlier run may be other memory, and the store has room for one.
        self.forget();
        if let Some(memory) = memory.filter(|memory| memory.is_nameless()) {
            for (name, fd) in NAMES.iter().zip(memory.fds()) {
                self.send(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), Some(fd));
            }
        }
        self.send("READY=1", None);
    }

    /// Reports that this process is now the main process of the service. Sent before the predecessor
    /// ends, since systemd takes the end of the main process for the end of the service.
    pub(crate) fn main_process(&self) {
        self.send(&format!("MAINPID={}", std::process::id()), None);
    }

    /// Reports that the node stops on request.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1", None);
    }

    /// Removes the stored memory: a later start begins with new memory.
    pub(crate) fn forget(&self) {
        for name in NAMES {
            self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None);
        }
    }

    fn send(&self, words: &str, fd: Option<BorrowedFd<'_>>) {
        let Some(address) = &self.address else {
            return;
        };
        if let Err(error) = send(address.as_bytes(), words, fd) {
            tracing::warn!(%error, words, "the service manager cannot be notified");
        }
    }
}

fn send(address: &[u8], words: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let address = match address.split_first() {
        Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
        _ => SocketAddrUnix::new(address)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &address)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    // The daemon does not wait for a manager that reads nothing.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(&socket, &[IoSlice::new(words.as_bytes())], &mut control, flags)?;
    Ok(())
}

/// Memory that the service manager retained from an earlier run of this service, if any.
pub(crate) fn stored_memory() -> Option<HeldMemory> {
    let text = |name: &str| std::env::var(name).ok();
    if text("LISTEN_PID")?.parse() != Ok(std::process::id()) {
        return None;
    }
    let count: u32 = text("LISTEN_FDS")?.parse().ok()?;
    let names = text("LISTEN_FDNAMES").unwrap_or_default();
    let fds = take_inherited(count)
        .inspect_err(|error| tracing::warn!(%error, count, "inherited descriptors cannot be used"))
        .ok()?;
    let (mut control, mut data): (Option<OwnedFd>, Option<OwnedFd>) = (None, None);
    for (name, fd) in names.split(':').zip(fds) {
        match NAMES.iter().position(|one| *one == name) {
            Some(0) => control = Some(fd),
            Some(_) => data = Some(fd),
            None => tracing::warn!(name, "an inherited descriptor is not used"),
        }
    }
    HeldMemory::new(control?, data?)
        .inspect_err(|error| tracing::warn!(%error, "inherited memory cannot be used"))
        .ok()
}
