//! The message by which a client passes its page faults of an object on to its daemon.
//!
//! It is the only one on a connection of its own. After it, the end of the connection is the end of
//! the service: the client serves its faults itself from then on.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::{decode, encode};

/// Limit of the buffers of an object whose page faults are passed on.
pub const FAULT_BUFFERS_MAX: usize = 65_536;

/// Bytes that are received at once.
const READ_BYTES: usize = 64 << 10;

/// Where a client has an object mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeFaults {
    /// Address of the map.
    pub address: u64,
    /// The first mapped byte of the file.
    pub start: u64,
    /// Length of the map in bytes.
    pub length: u64,
    /// Where the buffers end in the file, at most [`FAULT_BUFFERS_MAX`]: nothing is read ahead
    /// beyond.
    pub ends: Vec<u64>,
}

/// The descriptors of a [`ServeFaults`].
#[derive(Debug)]
pub struct FaultDescriptors<D> {
    /// The queue of the faults.
    pub faults: D,
    /// The file that notes what was shown.
    pub shown: D,
}

fn invalid(reason: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

impl ServeFaults {
    /// Sends it, within `time`.
    ///
    /// # Errors
    /// The error of the system; too many buffers.
    pub fn send(
        &self,
        socket: &UnixStream,
        descriptors: &FaultDescriptors<BorrowedFd<'_>>,
        time: Duration,
    ) -> io::Result<()> {
        if self.ends.len() > FAULT_BUFFERS_MAX {
            return Err(invalid(format!("{} buffers", self.ends.len())));
        }
        let mut frame = Vec::new();
        encode(self, &mut frame).map_err(invalid)?;
        socket.set_write_timeout(Some(time))?;
        let descriptors = [descriptors.faults, descriptors.shown];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL;
        let mut sent = sendmsg(socket, &[IoSlice::new(&frame)], &mut control, flags)?;
        while let Some(rest) = frame.get(sent..).filter(|rest| !rest.is_empty()) {
            sent += rustix::net::send(socket, rest, flags)?;
        }
        Ok(())
    }

    /// Receives it, within `time`.
    ///
    /// # Errors
    /// The error of the system; the other end has closed the connection; another message.
    pub fn receive(
        socket: &UnixStream,
        time: Duration,
    ) -> io::Result<(Self, FaultDescriptors<OwnedFd>)> {
        let deadline = Instant::now() + time;
        socket.set_read_timeout(Some(time))?;
        let (mut input, mut descriptors) = (Vec::new(), Vec::new());
        loop {
            if let Some((message, _)) = decode::<Self>(&input).map_err(invalid)? {
                let mut descriptors = descriptors.into_iter();
                let (Some(faults), Some(shown)) = (descriptors.next(), descriptors.next()) else {
                    return Err(invalid("page faults without their descriptors"));
                };
                if message.ends.len() > FAULT_BUFFERS_MAX {
                    return Err(invalid(format!("{} buffers", message.ends.len())));
                }
                return Ok((message, FaultDescriptors { faults, shown }));
            }
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut bytes = vec![0; READ_BYTES];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(socket.as_fd(), slices, &mut control, flags)?.bytes;
            if received == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            if descriptors.len() > 2 {
                return Err(invalid(format!("{} descriptors, not 2", descriptors.len())));
            }
            input.extend_from_slice(bytes.get(..received).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(20);

    fn message(buffers: u64) -> ServeFaults {
        let ends = (1..=buffers).map(|number| number << 20).collect();
        ServeFaults { address: 1 << 40, start: 4096, length: 8192, ends }
    }

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        for buffers in [0, 1, FAULT_BUFFERS_MAX as u64] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let file = rustix::fs::memfd_create("faults", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let sent = message(buffers);
            let thread = std::thread::spawn(move || ServeFaults::receive(&theirs, TIME).unwrap());
            let (faults, shown) = (file.as_fd(), ours.as_fd());
            sent.send(&ours, &FaultDescriptors { faults, shown }, TIME).unwrap();
            let (found, descriptors) = thread.join().unwrap();
            assert_eq!(found, sent);
            let of = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
            assert_eq!(of(descriptors.faults.as_fd()), of(file.as_fd()));
            assert_eq!(of(descriptors.shown.as_fd()), of(ours.as_fd()));
        }
    }

    /// A message of many pieces once brought two with each of them.
    #[test]
    fn no_more_descriptors_are_taken_than_the_message_has() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut frame = Vec::new();
        encode(&message(3), &mut frame).unwrap();
        let file = rustix::fs::memfd_create("faults", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let both = [file.as_fd(), ours.as_fd()];
        let thread = std::thread::spawn(move || ServeFaults::receive(&theirs, TIME));
        for byte in frame.iter().take(2) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&both)));
            let slices = [io::IoSlice::new(std::slice::from_ref(byte))];
            let flags = rustix::net::SendFlags::empty();
            rustix::net::sendmsg(ours.as_fd(), &slices, &mut control, flags).unwrap();
        }
        let refused = thread.join().unwrap().unwrap_err();
        assert!(refused.to_string().contains("4 descriptors"), "{refused}");
    }

    #[test]
    fn other_messages_are_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut frame = Vec::new();
        encode(&message(3), &mut frame).unwrap();
        io::Write::write_all(&mut &ours, &frame).unwrap();
        let refused = ServeFaults::receive(&theirs, TIME).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "no descriptors");
        io::Write::write_all(&mut &ours, &[255; 64]).unwrap();
        let refused = ServeFaults::receive(&theirs, TIME).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "longer than any message");
        let many = message(FAULT_BUFFERS_MAX as u64 + 1);
        let none = FaultDescriptors { faults: ours.as_fd(), shown: ours.as_fd() };
        assert!(many.send(&ours, &none, TIME).is_err());
        drop(ours);
        let refused = ServeFaults::receive(&theirs, TIME).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::UnexpectedEof);
    }
}
