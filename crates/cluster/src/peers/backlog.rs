//! Events from the transport's thread for the event loop, and the descriptor that signals them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use prost::bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{Semaphore, oneshot};

use super::address::{RemoteSessionId, RequestToken};
use super::event::PeerEvent;
use super::limits::Permit;
use super::outbox::RemoteSessionOutbox;

/// An event, with the state that the event loop's side stores for it.
#[derive(Debug)]
pub(super) enum QueuedEvent {
    Event(PeerEvent),
    /// A request, and the channel for its answer.
    Request(PeerEvent, RequestToken, oneshot::Sender<Bytes>),
    /// The caller no longer waits for the answer.
    RequestCancelled(RequestToken),
    /// Another node opened a remote session here.
    Opened(PeerEvent, RemoteSessionId, Arc<RemoteSessionOutbox>),
}

/// Messages that one turn of the event loop takes. Each needs about 10 us.
const MESSAGES_PER_TURN: usize = 64;

/// Requests that one turn takes. One may contain 4 MiB of names.
const QUESTIONS_PER_TURN: usize = 8;

/// Other events that one turn takes, except those of remote sessions: mostly answers.
const ANSWERS_PER_TURN: usize = 64;

/// Events of remote sessions that one turn takes, in turn from each session.
const REMOTE_SESSION_EVENTS_PER_TURN: usize = 64;

/// Permits that an event keeps until it is taken.
pub(super) type Permits = Vec<Permit>;

pub(super) type Taken = Vec<(QueuedEvent, Permits)>;

type QueueLane = VecDeque<(QueuedEvent, Permits)>;

/// Waiting events by kind, so a flood of one kind or of one remote session delays neither
/// heartbeats nor other sessions. Each queue is in order of arrival.
#[derive(Debug, Default)]
struct Backlog {
    messages: QueueLane,
    questions: QueueLane,
    answers: QueueLane,
    remote_sessions: BTreeMap<RemoteSessionId, QueueLane>,
    /// The remote session from which the last event was taken.
    last_remote_session: Option<RemoteSessionId>,
}

/// Filled by tasks, emptied by the event loop. Each kind of event has a limit of its own.
#[derive(Debug)]
pub(super) struct EventQueue {
    waiting: Mutex<Backlog>,
    wake: OwnedFd,
    pub(super) messages: Arc<Semaphore>,
}

impl EventQueue {
    pub(super) fn new(messages_max: usize) -> io::Result<Self> {
        Ok(Self {
            waiting: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            messages: Arc::new(Semaphore::new(messages_max)),
        })
    }

    /// Another descriptor of the wake.
    pub(super) fn wake(&self) -> io::Result<OwnedFd> {
        self.wake.as_fd().try_clone_to_owned()
    }

    pub(super) fn push(&self, event: QueuedEvent) {
        self.push_with(event, Vec::new());
    }

    /// Queues an event. The permits are released when it is taken.
    pub(super) fn push_with(&self, event: QueuedEvent, places: Permits) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = waiting.is_empty();
        waiting.lane_of(&event).push_back((event, places));
        drop(waiting);
        if was_empty {
            self.wake_loop();
        }
    }

    /// Takes as many events as one turn handles. Clears the wake first. Later and remaining events
    /// set it again.
    pub(super) fn take(&self) -> Taken {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = waiting.take();
        if !waiting.is_empty() {
            self.wake_loop();
        }
        taken
    }

    fn wake_loop(&self) {
        // Fails only if the counter is full, and then the event loop wakes anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Backlog {
    fn is_empty(&self) -> bool {
        let lanes = [&self.messages, &self.questions, &self.answers];
        lanes.into_iter().all(VecDeque::is_empty) && self.remote_sessions.is_empty()
    }

    fn lane_of(&mut self, event: &QueuedEvent) -> &mut QueueLane {
        match event {
            QueuedEvent::Request(..) | QueuedEvent::RequestCancelled(_) => &mut self.questions,
            QueuedEvent::Opened(_, remote_session, _) => {
                self.remote_sessions.entry(*remote_session).or_default()
            }
            QueuedEvent::Event(event) => match event {
                PeerEvent::Message { .. } => &mut self.messages,
                PeerEvent::Request { .. } => &mut self.questions,
                PeerEvent::RemoteSessionOpened { remote_session, .. }
                | PeerEvent::RemoteSessionData { remote_session, .. }
                | PeerEvent::RemoteSessionWritable { remote_session }
                | PeerEvent::RemoteSessionEnded { remote_session, .. } => {
                    self.remote_sessions.entry(*remote_session).or_default()
                }
                PeerEvent::Response { .. }
                | PeerEvent::EtcdResponse { .. }
                | PeerEvent::EtcdChanged
                | PeerEvent::Delivery { .. } => &mut self.answers,
            },
        }
    }

    fn take(&mut self) -> Taken {
        let mut taken = Vec::new();
        for (lane, count) in [
            (&mut self.messages, MESSAGES_PER_TURN),
            (&mut self.answers, ANSWERS_PER_TURN),
            (&mut self.questions, QUESTIONS_PER_TURN),
        ] {
            taken.extend(lane.drain(..count.min(lane.len())));
        }
        for _ in 0..REMOTE_SESSION_EVENTS_PER_TURN {
            let Some(remote_session) = self.next_remote_session() else {
                break;
            };
            self.last_remote_session = Some(remote_session);
            if let Some(lane) = self.remote_sessions.get_mut(&remote_session) {
                taken.extend(lane.pop_front());
                if lane.is_empty() {
                    self.remote_sessions.remove(&remote_session);
                }
            }
        }
        taken
    }

    /// The next remote session with events after the last one, or the first.
    fn next_remote_session(&self) -> Option<RemoteSessionId> {
        let after = self.last_remote_session.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.remote_sessions.range((after, Bound::Unbounded)).next();
        next.or_else(|| self.remote_sessions.first_key_value())
            .map(|(remote_session, _)| *remote_session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> EventQueue {
        EventQueue::new(1).unwrap()
    }

    fn writable(remote_session: u64) -> QueuedEvent {
        QueuedEvent::Event(PeerEvent::RemoteSessionWritable {
            remote_session: RemoteSessionId::outgoing(remote_session),
        })
    }

    fn has_wake(queue: &EventQueue) -> bool {
        let reported = rustix::io::read(&queue.wake, &mut [0_u8; 8]).is_ok();
        if reported {
            queue.wake_loop();
        }
        reported
    }

    /// Regression test: a flood of frames on one remote session delayed the next heartbeat, and
    /// another client's first frame.
    #[test]
    fn a_flood_of_one_remote_session_is_ahead_of_no_message_and_no_other_remote_session() {
        let queue = queue();
        for _ in 0..10_000 {
            queue.push(writable(1));
        }
        queue.push(writable(2));
        let from = || "a".parse().unwrap();
        queue.push(QueuedEvent::Event(PeerEvent::Message {
            from: from(),
            incarnation: 1,
            body: Bytes::new(),
        }));
        let taken = queue.take();
        assert!(taken.len() <= 1 + REMOTE_SESSION_EVENTS_PER_TURN, "{}", taken.len());
        assert!(matches!(taken[0].0, QueuedEvent::Event(PeerEvent::Message { .. })));
        let other = RemoteSessionId::outgoing(2);
        let is_other = |left: &QueuedEvent| matches!(left, QueuedEvent::Event(PeerEvent::RemoteSessionWritable { remote_session }) if *remote_session == other);
        assert_eq!(taken.iter().filter(|(left, _)| is_other(left)).count(), 1);
        assert!(has_wake(&queue), "the rest is for the next turn");
        let mut count = taken.len();
        while has_wake(&queue) {
            count += queue.take().len();
        }
        assert_eq!(count, 10_002);
    }

    #[test]
    fn what_is_of_one_remote_session_stays_in_order() {
        let queue = queue();
        for remote_session in [7, 8] {
            queue.push(writable(remote_session));
            let remote_session = RemoteSessionId::outgoing(remote_session);
            let reason = String::new();
            queue.push(QueuedEvent::Event(PeerEvent::RemoteSessionEnded {
                remote_session,
                has_process_ended: None,
                reason,
            }));
        }
        let is_end = |left: &QueuedEvent| {
            matches!(left, QueuedEvent::Event(PeerEvent::RemoteSessionEnded { .. }))
        };
        let ends: Vec<bool> = queue.take().iter().map(|(left, _)| is_end(left)).collect();
        assert_eq!(ends, [false, false, true, true]);
        assert!(!has_wake(&queue));
    }
}
