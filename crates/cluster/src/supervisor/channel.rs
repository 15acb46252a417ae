//! Messages between a supervisor and its daemon: short, with file descriptors, over a private
//! socket pair. End of file signals that the other process has ended.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use farrow_memory::HeldMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// One byte for the kind and one tag byte for each descriptor.
const MESSAGE_BYTES_MAX: usize = 16;

/// Descriptors that a node must not lose when its daemon dies.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    /// The lock file, which shows that a node serves the socket.
    pub(crate) lock: Option<File>,
    /// The listening socket. Clients that connect while no daemon runs wait in its queue.
    pub(crate) listener: Option<UnixListener>,
    /// The region. `None` if it is on a device, which outlives the processes.
    pub(crate) memory: Option<HeldMemory>,
}

impl Handles {
    fn messages(&self) -> Vec<(u8, BorrowedFd<'_>)> {
        let mut all = Vec::new();
        all.extend(self.lock.as_ref().map(|lock| (b'l', lock.as_fd())));
        all.extend(self.listener.as_ref().map(|listener| (b'n', listener.as_fd())));
        if let Some(memory) = &self.memory {
            let [control, data] = memory.fds();
            all.extend([(b'c', control), (b'd', data)]);
        }
        all
    }
}

/// The purpose of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// To the daemon: start with the memory that a service manager may have retained.
    Start,
    /// To the daemon: continue where the killed daemon stopped.
    Restart,
    /// To the daemon: shut down in order.
    Stop,
    /// To the daemon: its descriptors are held, so it may publish them.
    Held,
    /// To the supervisor: the daemon is about to serve, with these descriptors.
    Ready,
}

const KINDS: [(u8, MessageKind); 5] = [
    (b'S', MessageKind::Start),
    (b'A', MessageKind::Restart),
    (b'E', MessageKind::Stop),
    (b'H', MessageKind::Held),
    (b'R', MessageKind::Ready),
];

/// One message.
#[derive(Debug)]
pub(crate) struct SupervisorMessage {
    pub(crate) kind: MessageKind,
    pub(crate) handles: Handles,
    /// The connection of the daemon that this one replaces, which waits for a confirmation.
    pub(crate) predecessor: Option<UnixStream>,
}

/// One end of the socket pair.
#[derive(Debug)]
pub(crate) struct SupervisorChannel(OwnedFd);

impl SupervisorChannel {
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), other))
    }

    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn send(&self, kind: MessageKind) -> io::Result<()> {
        self.send_with(kind, &Handles::default(), None)
    }

    pub(crate) fn send_with(
        &self,
        kind: MessageKind,
        handles: &Handles,
        predecessor: Option<&UnixStream>,
    ) -> io::Result<()> {
        let mut parts = handles.messages();
        parts.extend(predecessor.map(|stream| (b'p', stream.as_fd())));
        let tag = KINDS.iter().find(|(_, one)| *one == kind).map_or(b'?', |(tag, _)| *tag);
        let mut bytes = vec![tag];
        bytes.extend(parts.iter().map(|(message, _)| *message));
        let fds: Vec<BorrowedFd<'_>> = parts.iter().map(|(_, fd)| *fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            let sent = sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
            match sent {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives the next message. `None`: the other process has ended.
    ///
    /// # Errors
    ///
    /// `TimedOut` after the time limit, if there is one; `InvalidData` for a malformed message; or
    /// the error of the system call.
    pub(crate) fn receive(&self, limit: Option<Duration>) -> io::Result<Option<SupervisorMessage>> {
        if let Some(limit) = limit {
            let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
            if poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit))? == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let count = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => break 0,
                Err(error) => return Err(error.into()),
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let Some((tag, messages)) = bytes.get(..count).and_then(<[u8]>::split_first) else {
            return Ok(None);
        };
        let kind = KINDS.iter().find(|(one, _)| one == tag).map(|(_, kind)| *kind);
        let message = kind.and_then(|kind| read(kind, messages, fds));
        message.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn read(kind: MessageKind, kinds: &[u8], fds: Vec<OwnedFd>) -> Option<SupervisorMessage> {
    if kinds.len() != fds.len() {
        return None;
    }
    let mut message = SupervisorMessage { kind, handles: Handles::default(), predecessor: None };
    let (mut control, mut data) = (None, None);
    for (kind_of_fd, fd) in kinds.iter().zip(fds) {
        match kind_of_fd {
            b'l' => message.handles.lock = Some(fd.into()),
            b'n' => message.handles.listener = Some(fd.into()),
            b'c' => control = Some(fd),
            b'd' => data = Some(fd),
            b'p' => message.predecessor = Some(fd.into()),
            _ => return None,
        }
    }
    if let (Some(control), Some(data)) = (control, data) {
        message.handles.memory = Some(HeldMemory::new(control, data).ok()?);
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_with_what_belongs_to_them_and_the_end_is_reported() {
        let (one, other) = SupervisorChannel::pair().unwrap();
        let other = SupervisorChannel::new(other);
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        let lock = Some(tempfile::tempfile().unwrap());
        let handles = Handles { lock, listener: Some(listener), memory: None };
        let (stream, _other) = UnixStream::pair().unwrap();
        one.send_with(MessageKind::Ready, &handles, Some(&stream)).unwrap();
        one.send(MessageKind::Stop).unwrap();
        let ready = other.receive(None).unwrap().unwrap();
        assert_eq!(ready.kind, MessageKind::Ready);
        assert!(ready.handles.lock.is_some() && ready.handles.listener.is_some());
        assert!(ready.handles.memory.is_none() && ready.predecessor.is_some());
        assert_eq!(other.receive(None).unwrap().unwrap().kind, MessageKind::Stop);
        let late = other.receive(Some(Duration::from_millis(5))).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(one);
        assert!(other.receive(None).unwrap().is_none());
        assert!(other.send(MessageKind::Held).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        let (one, other) = SupervisorChannel::pair().unwrap();
        let other = SupervisorChannel::new(other);
        for bytes in [b"?".as_slice(), b"Rl", b"Sx"] {
            rustix::net::send(one.as_fd(), bytes, SendFlags::empty()).unwrap();
            let error = other.receive(None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
