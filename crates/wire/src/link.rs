//! The client's end of the socket: many threads send requests, and each receives its own reply.
//!
//! One of the waiting threads reads, and distributes the replies to the others. A call therefore
//! costs one write and one read, and needs no thread of its own.
//!
//! | Task | Module |
//! | --- | --- |
//! | connect, and receive file descriptors | `introduction` |
//! | queue and write requests | `outbox`, `notifications` |
//! | read replies | `inbox` |
//! | keep a reply for after the deadline | `pending` |
//! | give back what a late reply brings | `undo` |
//! | finish in the background | `attendance` |

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{process_number, sync};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::interrupt::{self, Interrupt, Pace};
use crate::{ReplyBody, Request, RequestBody};

mod attendance;
mod error;
mod inbox;
mod introduction;
mod notifications;
mod outbox;
mod pending;
mod undo;

pub use attendance::Attendance;
pub use error::{LinkError, confused};
use inbox::Inbox;
pub use notifications::{Notification, Notified};
use outbox::Outbox;
pub use pending::{NoReply, PendingReply};
use undo::Undo;

/// A read, or a wait to write, ends after this time at the latest, to check the deadline.
const SLICE: Duration = Duration::from_millis(50);

/// Time that a cancelled call waits for the reply to its request. It is a hundred round trips; with
/// the slice before it, less than the tenth of a second that a person notices.
const CANCEL_PATIENCE: Duration = Duration::from_millis(40);

/// Interval at which a thread that waits for the reading thread checks for signals, if signals end
/// its wait.
const SIGNAL_PIECE: Duration = Duration::from_millis(10);

/// An open connection.
#[derive(Debug)]
pub struct Link {
    socket: PathBuf,
    stream: UnixStream,
    sending: Mutex<Outbox>,
    receiving: Mutex<Inbox>,
    arrived: Condvar,
    next_seq: sync::AtomicU64,
    /// Whether an [`Attendance`] exists.
    is_attended: sync::AtomicBool,
    /// The process whose handle ends the connection; 0: no process.
    process: sync::AtomicU64,
}

impl Drop for Link {
    /// Shuts the socket down. Forked children share it, so closing it alone would not end the
    /// connection for the daemon.
    fn drop(&mut self) {
        if self.is_own_process() {
            // A closed connection needs no shutdown.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
    }
}

/// One call.
struct PendingCall<'a> {
    seq: u64,
    undo: Undo,
    started: Instant,
    deadline: Instant,
    interrupt: Option<&'a Interrupt>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`LinkError`]. After `Closed` every further call fails the same way.
    pub fn call(&self, body: RequestBody, deadline: Instant) -> Result<ReplyBody, LinkError> {
        self.call_unless(None, body, deadline)
    }

    /// Like [`Self::call`], but an interrupt ends the wait. The request is then withdrawn, and the
    /// resources of a reply that was already on its way are given back.
    ///
    /// # Errors
    ///
    /// As [`Self::call`], and [`LinkError::Interrupted`].
    pub fn call_unless(
        &self,
        interrupt: Option<&Interrupt>,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<ReplyBody, LinkError> {
        let started = Instant::now();
        let seq = self.next_seq();
        let undo = Undo::of(&body);
        if let Undo::Reserve(names) = &undo {
            self.settle_names(names, interrupt, deadline)?;
        }
        lock(&self.receiving).waiting.insert(seq);
        match self.send(seq, body, deadline) {
            Ok(true) => self.receive(PendingCall { seq, undo, started, deadline, interrupt }),
            Ok(false) => {
                lock(&self.receiving).abandon(seq, undo);
                Err(self.timeout(started))
            }
            Err(error) => {
                lock(&self.receiving).waiting.remove(&seq);
                Err(error)
            }
        }
    }

    /// Waits until no earlier request, whose caller has given up, may still reserve one of these
    /// names: the node would refuse the next request for it, as one for another client's name.
    fn settle_names(
        &self,
        names: &[String],
        interrupt: Option<&Interrupt>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let started = Instant::now();
        let mut state = lock(&self.receiving);
        // Where nothing can be sent, the caller learns it from its own request.
        let can_send = |state: &Inbox| state.dead.is_none() && state.unsendable.is_none();
        while can_send(&state) && state.may_reserve(names) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.timeout(started));
            }
            drop(state);
            // The check runs user code, and the earlier request may not be sent yet.
            if interrupt.is_some_and(Interrupt::is_up) {
                return Err(LinkError::Interrupted { waited_ms: millis_since(started) });
            }
            self.write_rest();
            state = lock(&self.receiving);
            if state.has_reader || state.undoing_count > 0 {
                state = self.wait_for_reader(state, left);
            } else if state.may_reserve(names) {
                let had_signal;
                (state, had_signal) = self.read_for_all(state);
                let ending = interrupt.filter(|one| had_signal && one.ends_on_signal());
                if let Some(interrupt) = ending {
                    interrupt.end();
                    return Err(LinkError::Interrupted { waited_ms: millis_since(started) });
                }
            }
        }
        Ok(())
    }

    fn next_seq(&self) -> u64 {
        self.next_seq.fetch_add(1, sync::Ordering::Relaxed)
    }

    /// Sends a request without waiting for anything; its reply is dropped.
    pub fn notify(&self, notification: Notification) -> Notified {
        let written = {
            let mut outbox = lock(&self.sending);
            outbox.notify(notification);
            outbox.write(&self.stream)
        };
        match written {
            Ok(true) => Notified::Written,
            Ok(false) => Notified::Queued,
            Err(error) => {
                self.mark_unsendable(&error);
                Notified::Closed
            }
        }
    }

    /// True once the connection is closed, or takes no more requests.
    pub fn is_dead(&self) -> bool {
        let state = lock(&self.receiving);
        state.dead.is_some() || state.unsendable.is_some()
    }

    /// True once the connection is closed, also where the daemon closed it while no call waited.
    pub fn has_ended(&self) -> bool {
        let mut socket = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let is_polled = poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
        self.is_dead() || (is_polled && socket.iter().any(|one| one.revents().intersects(ends)))
    }

    /// False in a forked child, and after the connection was passed on.
    fn is_own_process(&self) -> bool {
        self.process.load(sync::Ordering::Relaxed) == process_number()
    }

    /// Appends the request to what is unsent, and writes until the deadline, at least once. False:
    /// the rest stays queued, so that the stream keeps its frame boundaries, and follows with the
    /// next request. After a `Timeout` nothing of it is queued.
    fn send(&self, seq: u64, body: RequestBody, deadline: Instant) -> Result<bool, LinkError> {
        let started = Instant::now();
        let request = Request { seq, body };
        let mut outbox = lock(&self.sending);
        let Some(end) = outbox.push(&request)? else {
            return Err(self.timeout(started));
        };
        loop {
            let written = outbox.write(&self.stream);
            let is_sent = outbox.has_written(end);
            // Other threads may send while this one waits.
            drop(outbox);
            let reason = written.err().map(|error| self.mark_unsendable(&error));
            match reason {
                _ if is_sent => return Ok(true),
                Some(reason) => {
                    // A partial frame is never served.
                    let (socket, body) = (self.socket.clone(), Box::new(request.body));
                    return Err(LinkError::Unsent { socket, reason, body });
                }
                None if Instant::now() >= deadline => return Ok(false),
                None => self.wait_for(PollFlags::OUT, deadline),
            };
            outbox = lock(&self.sending);
        }
    }

    /// Waits for one of these events of the socket: for a slice of time, and not beyond the
    /// deadline.
    fn wait_for(&self, what: PollFlags, deadline: Instant) -> PollFlags {
        let left = deadline.saturating_duration_since(Instant::now()).min(SLICE);
        let timeout = Timespec::try_from(left).ok();
        let mut socket = [PollFd::new(&self.stream, what)];
        match poll(&mut socket, timeout.as_ref()) {
            Ok(_) => socket.first().map_or(PollFlags::empty(), PollFd::revents),
            Err(_) => PollFlags::empty(),
        }
    }

    /// Writes what is unsent, as far as the daemon reads it at once. True: nothing is left.
    fn write_rest(&self) -> bool {
        let written = lock(&self.sending).write(&self.stream);
        written.unwrap_or_else(|error| {
            self.mark_unsendable(&error);
            true
        })
    }

    fn receive(&self, call: PendingCall<'_>) -> Result<ReplyBody, LinkError> {
        let PendingCall { seq, started, deadline, interrupt, .. } = call;
        let ends_on_signal = interrupt.is_some_and(Interrupt::ends_on_signal);
        let mut pace = Pace::new();
        let mut state = lock(&self.receiving);
        loop {
            if let Some(reply) = state.replies.remove(&seq) {
                return Ok(reply?);
            }
            if let Some(reason) = &state.dead {
                return Err(LinkError::Closed {
                    socket: self.socket.clone(),
                    reason: reason.clone(),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.abandon(seq, call.undo);
                return Err(self.timeout(started));
            }
            let mut had_signal = false;
            if state.has_reader && ends_on_signal {
                drop(state);
                had_signal = !interrupt::sleep_until_signal(left.min(SIGNAL_PIECE));
                state = lock(&self.receiving);
            } else if state.has_reader {
                state = self.wait_for_reader(state, left);
            } else {
                (state, had_signal) = self.read_for_all(state);
            }
            let Some(interrupt) = interrupt.filter(|_| had_signal || pace.is_due()) else {
                continue;
            };
            // The check runs user code, so the lock is released.
            drop(state);
            if (had_signal && ends_on_signal) || interrupt.is_up() {
                interrupt.end();
                return Err(self.cancel(call));
            }
            state = lock(&self.receiving);
        }
    }

    /// Sleeps until the reading thread has read, for a slice of time at the most.
    fn wait_for_reader<'a>(
        &self,
        mut state: MutexGuard<'a, Inbox>,
        left: Duration,
    ) -> MutexGuard<'a, Inbox> {
        state.sleeper_count += 1;
        let waited = self.arrived.wait_timeout(state, left.min(SLICE));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.sleeper_count -= 1;
        state
    }

    /// Wakes the threads that wait for a reader. A wake-up is a system call, which the usual
    /// connection, with one thread, can do without.
    fn wake_sleepers(&self, state: &Inbox) {
        if state.sleeper_count > 0 {
            self.arrived.notify_all();
        }
    }

    /// Reads once on behalf of all waiting threads. Returns true if a signal ended the read.
    fn read_for_all<'a>(
        &'a self,
        mut state: MutexGuard<'a, Inbox>,
    ) -> (MutexGuard<'a, Inbox>, bool) {
        state.has_reader = true;
        let mut input = std::mem::take(&mut state.input);
        drop(state);
        let read = inbox::read_some(&self.stream, &mut input);
        let mut state = lock(&self.receiving);
        state.has_reader = false;
        let had_signal = matches!(read, Ok(true));
        if let Err(reason) = read.and_then(|_| state.hand_out(&mut input)) {
            state.dead.get_or_insert(reason);
        }
        state.input = input;
        self.wake_sleepers(&state);
        if !state.undoing.is_empty() {
            let undoing = std::mem::take(&mut state.undoing);
            state.undoing_count += 1;
            drop(state);
            for notification in undoing {
                self.notify(notification);
            }
            state = lock(&self.receiving);
            state.undoing_count -= 1;
            self.wake_sleepers(&state);
        }
        (state, had_signal)
    }

    /// Withdraws a request, and waits briefly for its reply.
    fn cancel(&self, call: PendingCall<'_>) -> LinkError {
        let PendingCall { seq, started, ref undo, .. } = call;
        self.notify(Notification::Cancel(seq));
        let undo = undo.clone();
        let deadline = Instant::now() + CANCEL_PATIENCE;
        // Without a reply in this time the request is abandoned, and its reply is undone on
        // arrival.
        if let Ok(reply) = self.receive(PendingCall { deadline, interrupt: None, ..call })
            && let Some(notification) = undo.after(reply)
        {
            self.notify(notification);
        }
        LinkError::Interrupted { waited_ms: millis_since(started) }
    }

    fn die(&self, reason: &str) -> LinkError {
        LinkError::Closed { socket: self.socket.clone(), reason: self.mark_dead(reason) }
    }

    /// Notes that nothing can be sent any more. Returns the first reason. Threads that wait for a
    /// reply go on until the end of the stream.
    fn mark_unsendable(&self, error: &io::Error) -> String {
        let mut state = lock(&self.receiving);
        state.unsendable.get_or_insert_with(|| error.to_string()).clone()
    }

    /// Marks the link as dead. Returns the first reason.
    fn mark_dead(&self, reason: &str) -> String {
        let mut state = lock(&self.receiving);
        let reason = state.dead.get_or_insert_with(|| reason.to_owned()).clone();
        self.wake_sleepers(&state);
        reason
    }

    fn timeout(&self, started: Instant) -> LinkError {
        LinkError::Timeout { socket: self.socket.clone(), waited_ms: millis_since(started) }
    }
}

fn millis_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
