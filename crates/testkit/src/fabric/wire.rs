//! The processes of a contract: how the first starts the others, and their messages.
//!
//! A packet is the result of one act. All packets pass through the first process, which starts the
//! test executable again at the same test. Standard input of the new process is one end of a
//! socket: output of the test harness cannot interfere, and descriptors are sent as by a daemon.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Environment variable of a process that was started for a contract: the number of its party.
pub(super) const PARTY: &str = "FARROW_TEST_CONTRACT_PARTY";

/// An act takes milliseconds; one that takes longer than this on a busy machine has hung.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(60);

/// Longer than any packet: a page of bytes and the name of a place in the source.
const PACKET_BYTES_MAX: usize = 128 << 10;

/// The result of an act: the value it returned, or the message of its panic.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) step: u32,
    pub(super) place: String,
    pub(super) result: Result<Vec<u8>, String>,
}

impl Packet {
    fn encode(&self) -> Vec<u8> {
        let (word, body) = match &self.result {
            Ok(bytes) => ("done", bytes.as_slice()),
            Err(words) => ("failed", words.as_bytes()),
        };
        let mut bytes = format!("{} {word} {}\n", self.step, self.place).into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head = str::from_utf8(bytes.get(..end)?).ok()?;
        let body = bytes.get(end + 1..)?.to_vec();
        let mut words = head.splitn(3, ' ');
        let step = words.next()?.parse().ok()?;
        let result = match words.next()? {
            "done" => Ok(body),
            _ => Err(String::from_utf8_lossy(&body).into_owned()),
        };
        Some(Self { step, place: words.next()?.to_owned(), result })
    }
}

/// One end of the socket between the first process and another.
#[derive(Debug)]
pub(super) struct ProcessSocket(OwnedFd);

impl ProcessSocket {
    /// The end of a started process.
    pub(super) fn of_child() -> Self {
        let socket = io::stdin().as_fd().try_clone_to_owned().expect("dup of standard input");
        let wire = Self::new(socket);
        let watched = wire.0.try_clone().expect("dup of the socket");
        // The first process may end while an act is running, when this thread does not read the
        // socket.
        std::thread::spawn(move || {
            loop {
                let mut one = [PollFd::new(&watched, PollFlags::empty())];
                if poll(&mut one, None).is_ok() {
                    std::process::exit(1);
                }
            }
        });
        wire
    }

    fn new(socket: OwnedFd) -> Self {
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(WAIT_MAX)).expect("a timeout");
        }
        Self(socket)
    }

    pub(super) fn say(&self, packet: &Packet) -> io::Result<()> {
        self.send(&packet.encode(), &[])
    }

    /// The next packet.
    pub(super) fn hear(&self) -> io::Result<Packet> {
        let (bytes, _) = self.receive()?;
        Packet::decode(&bytes).ok_or_else(|| io::Error::other(format!("no packet: {bytes:?}")))
    }

    pub(super) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "3 descriptors");
        }
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(super) fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        bytes.truncate(received);
        match received {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok((bytes, descriptors)),
        }
    }
}

/// Another process of the contract, as seen by the first. Killed when dropped.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) wire: ProcessSocket,
    child: Child,
}

impl Started {
    /// Starts this executable at the same test, as the party of this number.
    pub(super) fn new(test: &str, party: usize) -> Self {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair of sockets");
        let child = Command::new(std::env::current_exe().expect("this executable"))
            .args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(PARTY, party.to_string())
            .stdin(theirs)
            .stdout(Stdio::null())
            .spawn()
            .expect("start this executable again");
        Self { wire: ProcessSocket::new(ours), child }
    }

    /// Waits until it has ended by itself.
    pub(super) fn wait(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + WAIT_MAX;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().expect("wait for a child") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
