//! The way of the threads' events to the event loop.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::protocol::net::NetEvent;

/// Queue through which threads send events to the event loop.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    sender: Sender<NetEvent>,
    wake: Arc<UnixStream>,
}

impl EventSender {
    /// Sends events by `sender`, and wakes who reads the other end of `wake`.
    pub(super) fn new(sender: Sender<NetEvent>, wake: UnixStream) -> Self {
        Self { sender, wake: Arc::new(wake) }
    }

    pub(super) fn send(&self, event: NetEvent) {
        if self.sender.send(event).is_ok() {
            // If the pipe is full, the event loop wakes anyway.
            let _ = (&*self.wake).write(&[1]);
        }
    }
}
