//! The supervisor: a small process that holds a node's memory, listening socket and lock, and runs
//! the daemon as its child.
//!
//! If the daemon is killed or crashes, the supervisor restarts it with these descriptors, so no
//! data is lost and no client is refused. If the supervisor is killed, the daemon ends: killing the
//! process that was started stops the node. So memory without a name lives exactly as long as these
//! two processes and the clients that map it.

mod again;
mod channel;
mod custody;
mod notify;

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use farrow_wire::paths;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use again::Again;
pub(crate) use channel::Handles;
use channel::{MessageKind, SupervisorChannel, SupervisorMessage};
pub(crate) use custody::Custody;
use notify::Notifier;

use crate::lock::Holder;
use crate::node::{NodeError, NodeOptions, failed};
use crate::{signals, upgrade};

/// A daemon that dies within this time of starting to serve fails because of its state, not because
/// of a request.
const QUICK: Duration = Duration::from_secs(1);

/// Exit code of a daemon that ended in order with an error: a restart cannot help.
pub(crate) const ENDED_CODE: i32 = 4;

/// As [`ENDED_CODE`], of a daemon that leaves the objects that it had adopted.
pub(crate) const RETAINED_CODE: i32 = 6;

/// Exit code of a daemon that cannot start as a member of its cluster, such as without valid
/// certificates. A later start can succeed.
pub(crate) const CLUSTER_CODE: i32 = 5;

/// After this many quick deaths in a row another start would fail the same way.
const QUICK_MAX: u32 = 5;

/// Pause before another try to start a daemon, if the system had no process for it, or its cluster
/// cannot be started.
const START_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the start after the second quick death. Each further one doubles it.
const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// Runs a node with these options in a child process until it ends, and returns its exit code.
/// `None`: the command line does not end with `arguments`, so this program cannot restart itself.
/// `expanded` are these arguments with the options of the files that they name.
///
/// # Errors
///
/// A system call fails.
pub(crate) fn supervise(
    arguments: &[OsString],
    expanded: &[OsString],
    options: &NodeOptions,
    say: fn(&str),
) -> Result<Option<i32>, NodeError> {
    let Some(again) = Again::find(arguments, expanded) else {
        return Ok(None);
    };
    // Before descriptors are closed or opened: these have the numbers that the service manager gave them.
    let memory = notify::stored_memory();
    if options.is_private
        && let Err(error) = farrow_memory::close_inherited()
    {
        // Without them, only what waits at the other end of a pipe waits for this node too.
        tracing::warn!(%error, "descriptors of the program that started the node stay open");
    }
    let (signals, raised) = UnixStream::pair().map_err(failed("a pair of sockets"))?;
    signals::write_to(&raised).map_err(failed("a signal handler"))?;
    let handles = Handles { memory, ..Handles::default() };
    let supervisor = Supervisor {
        again,
        handles,
        signals,
        options,
        notifier: Notifier::from_environment(),
        say,
        was_ready: false,
        is_stopping: false,
        quick_deaths: 0,
    };
    supervisor.run().map(Some)
}

struct Supervisor<'a> {
    again: Again,
    handles: Handles,
    signals: UnixStream,
    options: &'a NodeOptions,
    notifier: Notifier,
    say: fn(&str),
    /// Whether a daemon of this supervisor has ever served.
    was_ready: bool,
    is_stopping: bool,
    quick_deaths: u32,
}

impl Supervisor<'_> {
    fn run(mut self) -> Result<i32, NodeError> {
        loop {
            let (mut child, channel) = match self.again.start() {
                Ok(started) => started,
                // For a moment there may be no memory, process or descriptor to have: what is held
                // here stays until there is.
                Err(error) if self.was_ready && !self.is_stopping => {
                    (self.say)(&format!("farrow node: the daemon is not started: {error}"));
                    self.wait_for_signal(START_PAUSE);
                    continue;
                }
                Err(error) => return Err(failed("start the daemon")(error)),
            };
            let kind = if self.was_ready { MessageKind::Restart } else { MessageKind::Start };
            // If the child has already ended, `attend` notices it.
            let _ = channel.send_with(kind, &self.handles, None);
            if self.is_stopping {
                let _ = channel.send(MessageKind::Stop);
            }
            let served = self.attend(&channel)?.map(|since| since.elapsed());
            let status = child.wait().map_err(failed("wait for the daemon"))?;
            if let Some(code) = self.verdict(status, served) {
                return Ok(code);
            }
            self.pause();
        }
    }

    /// Handles messages of the daemon until it ends. Returns the time at which it began to serve.
    fn attend(&mut self, channel: &SupervisorChannel) -> Result<Option<Instant>, NodeError> {
        let mut since = None;
        loop {
            let mut both = [
                PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN),
                PollFd::new(&self.signals, PollFlags::IN),
            ];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed("poll")(error.into())),
            }
            let [of_daemon, of_signals] = both.map(|one| !one.revents().is_empty());
            if of_signals {
                self.note_signal();
                let _ = channel.send(MessageKind::Stop);
            }
            if !of_daemon {
                continue;
            }
            match channel.receive(None) {
                Ok(Some(message)) if message.kind == MessageKind::Ready => {
                    self.take(message);
                    since = Some(Instant::now());
                    // The descriptors are held here now, so processes that wait for them may
                    // continue.
                    let _ = channel.send(MessageKind::Held);
                }
                Ok(Some(message)) => {
                    tracing::warn!(?message, "an unexpected message of the daemon is ignored")
                }
                Ok(None) | Err(_) => return Ok(since),
            }
        }
    }

    /// Stores the descriptors. From here on the daemon may die: the supervisor has all that a
    /// restart needs.
    fn take(&mut self, message: SupervisorMessage) {
        let SupervisorMessage { handles, predecessor, .. } = message;
        let is_new = !self.was_ready;
        self.handles = handles;
        self.was_ready = true;
        if let Some(lock) = &self.handles.lock {
            Holder::own(self.handles.memory.as_ref()).publish(lock);
        }
        if let Some(predecessor) = &predecessor {
            self.notifier.main_process();
            upgrade::confirm(predecessor);
        }
        if is_new {
            self.notifier.ready(self.handles.memory.as_ref());
        }
    }

    fn note_signal(&mut self) {
        let _ = self.signals.read(&mut [0; 16]);
        if !self.is_stopping {
            self.notifier.stopping();
        }
        self.is_stopping = true;
    }

    /// The exit code of the node, or `None` to restart the daemon.
    fn verdict(&mut self, status: ExitStatus, served: Option<Duration>) -> Option<i32> {
        if status.success() {
            if !self.is_succeeded() {
                self.notifier.forget();
            }
            return Some(0);
        }
        let by_signal = status.signal();
        let is_without_cluster = status.code() == Some(CLUSTER_CODE);
        let code = status.code().or(by_signal.map(|signal| 128 + signal));
        let code = code.filter(|_| !is_without_cluster).unwrap_or(1);
        let how = match by_signal {
            Some(signal) => format!("was killed by signal {signal}"),
            None => format!("ended with exit code {code}"),
        };
        if self.is_stopping && by_signal.is_some() {
            self.clear();
        }
        if status.code() == Some(ENDED_CODE) {
            // It has removed everything.
            self.notifier.forget();
            return Some(1);
        }
        if status.code() == Some(RETAINED_CODE) {
            // Memory without a name stays with the service manager, if there is one.
            return Some(1);
        }
        if self.is_stopping || (!self.was_ready && by_signal.is_none()) {
            return Some(code);
        }
        if !self.was_ready && self.options.is_upgrade {
            // The previous daemon takes everything back.
            (self.say)(&format!("farrow node: the daemon {how} before it followed the other one"));
            return Some(1);
        }
        if is_without_cluster {
            // What is held here stays until its files, or its port, are in order.
            (self.say)("farrow node: the cluster cannot start yet: the daemon tries it again");
            self.wait_for_signal(START_PAUSE);
            return None;
        }
        let is_quick = served.is_none_or(|served| served < QUICK);
        self.quick_deaths = if is_quick { self.quick_deaths + 1 } else { 0 };
        if self.quick_deaths >= QUICK_MAX {
            (self.say)(&format!(
                "farrow node: the daemon {how}; it ended {QUICK_MAX} times within {} s of its start: \
                 giving up",
                QUICK.as_secs()
            ));
            // A daemon that ended with an error may have found that another pair has the socket
            // now.
            if by_signal.is_some() {
                self.clear();
            }
            return Some(1);
        }
        (self.say)(&format!("farrow node: the daemon {how}: starting it again"));
        None
    }

    /// Whether another supervisor has taken over. The memory that systemd stores is then its own.
    fn is_succeeded(&self) -> bool {
        let holder = Holder::read(&paths::lock_of(&self.options.socket));
        holder.is_ok_and(|holder| holder.pid != std::process::id())
    }

    /// Removes the files that a daemon removes itself when it shuts down in order.
    fn clear(&self) {
        let socket = &self.options.socket;
        let holder = Holder::read(&paths::lock_of(socket));
        if !holder.is_ok_and(|holder| holder.pid == std::process::id()) {
            // Another supervisor has taken over.
            return;
        }
        let metrics = self.options.metrics.as_ref().and_then(|it| it.path(socket));
        // Spill files belong to the node whose lock is this file: the next one removes them.
        let lock = self.options.spill.is_none().then(|| paths::lock_of(socket));
        for path in [Some(socket.clone()), metrics, lock].into_iter().flatten() {
            let _ = fs::remove_file(path);
        }
    }

    /// Waits before the next start, unless the node is stopping.
    fn pause(&mut self) {
        let Some(doublings) = self.quick_deaths.checked_sub(2) else {
            return;
        };
        self.wait_for_signal(PAUSE_FIRST * 2_u32.pow(doublings.min(QUICK_MAX)));
    }

    fn wait_for_signal(&mut self, longest: Duration) {
        let wait = Timespec::try_from(longest).ok();
        let mut signals = [PollFd::new(&self.signals, PollFlags::IN)];
        if matches!(poll(&mut signals, wait.as_ref()), Ok(1..)) {
            self.note_signal();
        }
    }
}
