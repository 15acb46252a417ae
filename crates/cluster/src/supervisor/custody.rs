//! The daemon's side: the process that holds the memory, the listening socket and the lock while
//! the daemon runs.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel as queue};
use std::time::Duration;

use farrow_memory::{HeldMemory, sync};

use super::channel::{Handles, MessageKind, SupervisorChannel};
use super::notify::{self, Notifier};
use crate::lock::Holder;
use crate::node::{NodeError, Stopper, failed};
use crate::upgrade;

/// Time limit for an answer. A supervisor answers at once unless it was stopped.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The thread only reads short messages.
const STACK_BYTES: usize = 128 << 10;

/// The descriptors that a daemon starts with, and the supervisor that holds those that must outlive
/// it.
#[derive(Debug, Default)]
pub(crate) struct Custody {
    start: Handles,
    is_restart: bool,
    /// `None`: the daemon has no supervisor.
    supervisor: Option<SupervisorLink>,
}

#[derive(Debug)]
struct SupervisorLink {
    channel: Arc<SupervisorChannel>,
    held: Receiver<()>,
    has_ended: Arc<sync::AtomicBool>,
}

impl Custody {
    /// For a daemon without a supervisor: it starts with the memory that a service manager
    /// retained.
    pub(crate) fn alone() -> Self {
        let start = Handles { memory: notify::stored_memory(), ..Handles::default() };
        Self { start, ..Self::default() }
    }

    /// For a daemon whose supervisor is at the other end of standard input. From here on the node
    /// stops when the supervisor ends or requests it.
    ///
    /// # Errors
    ///
    /// Standard input is not the channel of a supervisor.
    pub(crate) fn supervised(stopper: Stopper) -> io::Result<Self> {
        let channel = SupervisorChannel::new(io::stdin().as_fd().try_clone_to_owned()?);
        let first = channel.receive(Some(ANSWER_MAX))?;
        let first = first.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !matches!(first.kind, MessageKind::Start | MessageKind::Restart) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let channel = Arc::new(channel);
        let has_ended = Arc::new(sync::AtomicBool::new(false));
        let (say_held, held) = queue();
        let (reading, ended) = (Arc::clone(&channel), Arc::clone(&has_ended));
        let read = move || {
            loop {
                match reading.receive(None) {
                    Ok(Some(message)) if message.kind == MessageKind::Held => {
                        let _ = say_held.send(());
                    }
                    Ok(Some(message)) if message.kind == MessageKind::Stop => stopper.stop(),
                    Ok(Some(message)) => tracing::warn!(
                        ?message,
                        "an unexpected message of the supervisor is ignored"
                    ),
                    Ok(None) | Err(_) => break,
                }
            }
            ended.store(true, sync::Ordering::Release);
            stopper.stop();
        };
        let thread = std::thread::Builder::new().name("farrow-channel".into());
        thread.stack_size(STACK_BYTES).spawn(read)?;
        Ok(Self {
            start: first.handles,
            is_restart: first.kind == MessageKind::Restart,
            supervisor: Some(SupervisorLink { channel, held, has_ended }),
        })
    }

    /// Whether this daemon continues after the same supervisor's previous daemon was killed.
    pub(crate) fn is_restart(&self) -> bool {
        self.is_restart
    }

    /// Whether the supervisor has ended. This daemon then ends too, as if it had been killed.
    pub(crate) fn is_orphaned(&self) -> bool {
        let supervisor = self.supervisor.as_ref();
        supervisor.is_some_and(|one| one.has_ended.load(sync::Ordering::Acquire))
    }

    /// The descriptors that the daemon starts with.
    pub(crate) fn take_start(&mut self) -> Handles {
        std::mem::take(&mut self.start)
    }

    /// Passes the descriptors that must outlive this daemon to their holder and publishes where the
    /// memory is found. The previous daemon, if any, then ends.
    ///
    /// # Errors
    ///
    /// The supervisor has ended or does not answer.
    pub(crate) fn ready(
        &self,
        handles: &Handles,
        predecessor: Option<&UnixStream>,
    ) -> Result<(), NodeError> {
        let Some(SupervisorLink { channel, held, .. }) = &self.supervisor else {
            if let Some(lock) = &handles.lock {
                Holder::own(handles.memory.as_ref()).publish(lock);
            }
            let notifier = Notifier::from_environment();
            if let Some(predecessor) = predecessor {
                notifier.main_process();
                upgrade::confirm(predecessor);
            }
            notifier.ready(handles.memory.as_ref());
            return Ok(());
        };
        let sent = channel.send_with(MessageKind::Ready, handles, predecessor);
        sent.map_err(failed("tell the supervisor"))?;
        held.recv_timeout(ANSWER_MAX)
            .map_err(|error| failed("the supervisor's answer")(io::Error::other(error)))
    }

    /// Reports that the node has stopped on request, so nothing is retained. A supervisor reports
    /// this itself.
    pub(crate) fn ended(&self) {
        if self.supervisor.is_none() {
            Notifier::from_environment().forget();
        }
    }
}

impl Holder {
    /// The current process as the holder.
    pub(super) fn own(memory: Option<&HeldMemory>) -> Self {
        let memory = memory.filter(|memory| memory.is_nameless());
        let memory = memory.and_then(|memory| {
            let [control, data] = memory.fds().map(|fd| u32::try_from(fd.as_raw_fd()));
            Some((control.ok()?, data.ok()?))
        });
        Self { pid: std::process::id(), memory }
    }
}
