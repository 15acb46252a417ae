//! Outgoing frames of one remote session: queued by the event loop, taken by HTTP/2 as fast as the
//! peer reads.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::Stream;
use prost::bytes::Bytes;
use tokio::sync::Notify;

use super::address::RemoteSessionId;
use super::backlog::{EventQueue, QueuedEvent};
use super::event::PeerEvent;
use super::generated::pb::{End, Frame, Open, frame::Kind};
use super::limits::{Permit, REMOTE_SESSION_FRAME_BYTES_MAX};

#[derive(Debug, Default)]
struct OutboxState {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// The event loop waits for room.
    is_room_wanted: bool,
    end: Option<End>,
    /// No more frames are sent.
    is_closed: bool,
    waker: Option<Waker>,
}

/// The outgoing queue of one remote session.
#[derive(Debug)]
pub(super) struct RemoteSessionOutbox {
    remote_session: RemoteSessionId,
    bytes_max: usize,
    state: Mutex<OutboxState>,
    /// Notified when this side ends the remote session.
    pub(super) is_ended: Notify,
}

impl RemoteSessionOutbox {
    pub(super) fn new(remote_session: RemoteSessionId, bytes_max: usize) -> Arc<Self> {
        let (state, is_ended) = (Mutex::default(), Notify::new());
        Arc::new(Self { remote_session, bytes_max, state, is_ended })
    }

    fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues bytes, split into frames. Returns them if there is no room;
    /// [`PeerEvent::RemoteSessionWritable`] then follows once there is.
    pub(super) fn push(&self, mut bytes: Bytes) -> Result<(), Bytes> {
        let mut state = self.state();
        if state.is_closed || state.end.is_some() {
            return Ok(());
        }
        if state.bytes >= self.bytes_max {
            state.is_room_wanted = true;
            return Err(bytes);
        }
        state.bytes += bytes.len();
        while !bytes.is_empty() {
            let frame = bytes.split_to(bytes.len().min(REMOTE_SESSION_FRAME_BYTES_MAX));
            state.frames.push_back(frame);
        }
        wake(&mut state);
        Ok(())
    }

    /// Ends the remote session from this side, after the queued frames.
    pub(super) fn end(&self, has_process_ended: bool) {
        let mut state = self.state();
        state.end.get_or_insert(End { has_process_ended });
        wake(&mut state);
        drop(state);
        self.is_ended.notify_one();
    }

    /// Drops all frames and closes the stream.
    pub(super) fn abort(&self) {
        let mut state = self.state();
        state.frames.clear();
        state.bytes = 0;
        state.is_closed = true;
        wake(&mut state);
    }
}

fn wake(state: &mut OutboxState) {
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
}

/// The stream of frames that HTTP/2 reads.
pub(super) struct Frames {
    pub(super) open: Option<Open>,
    pub(super) outbox: Arc<RemoteSessionOutbox>,
    pub(super) events: Arc<EventQueue>,
    /// An unread stream counts as a remote session until it is dropped.
    pub(super) _place: Permit,
}

impl Stream for Frames {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        if let Some(open) = self.open.take() {
            return Poll::Ready(Some(Frame { kind: Some(Kind::Open(open)) }));
        }
        let mut state = self.outbox.state();
        if let Some(bytes) = state.frames.pop_front() {
            state.bytes = state.bytes.saturating_sub(bytes.len());
            let has_room = state.bytes <= self.outbox.bytes_max / 2;
            if has_room && std::mem::take(&mut state.is_room_wanted) {
                let remote_session = self.outbox.remote_session;
                self.events
                    .push(QueuedEvent::Event(PeerEvent::RemoteSessionWritable { remote_session }));
            }
            return Poll::Ready(Some(Frame { kind: Some(Kind::Data(bytes)) }));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        if let Some(end) = state.end {
            state.is_closed = true;
            return Poll::Ready(Some(Frame { kind: Some(Kind::End(end)) }));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> (Arc<RemoteSessionOutbox>, Frames, Arc<EventQueue>) {
        let outbox = RemoteSessionOutbox::new(RemoteSessionId::outgoing(1), 100);
        let events = Arc::new(EventQueue::new(1).unwrap());
        let _place = Permit::take(&Arc::new(tokio::sync::Semaphore::new(1))).unwrap();
        let frames =
            Frames { open: None, outbox: Arc::clone(&outbox), events: Arc::clone(&events), _place };
        (outbox, frames, events)
    }

    fn next(frames: &mut Frames) -> Poll<Option<Frame>> {
        Pin::new(frames).poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_full_queue_gives_back_and_says_once_when_there_is_room() {
        let (outbox, mut frames, events) = parts();
        outbox.push(Bytes::from(vec![1; 60])).unwrap();
        outbox.push(Bytes::from(vec![2; 60])).unwrap();
        let back = outbox.push(Bytes::from(vec![3; 7])).unwrap_err();
        assert_eq!(back, vec![3; 7]);
        assert!(next(&mut frames).is_ready());
        assert!(events.take().is_empty(), "60 of 100 are still more than half");
        assert!(next(&mut frames).is_ready());
        let reported = events.take();
        assert!(
            matches!(&reported[0].0, QueuedEvent::Event(PeerEvent::RemoteSessionWritable { .. })),
            "{reported:?}"
        );
        outbox.push(back).unwrap();
        assert!(next(&mut frames).is_ready());
        assert!(events.take().is_empty());
    }

    #[test]
    fn what_is_too_long_for_one_frame_goes_in_several_and_the_end_comes_last() {
        let (outbox, mut frames, _events) = parts();
        outbox.push(Bytes::from(vec![7; REMOTE_SESSION_FRAME_BYTES_MAX + 5])).unwrap();
        outbox.end(true);
        outbox.push(Bytes::from(vec![8; 5])).unwrap();
        let mut lengths = Vec::new();
        while let Poll::Ready(Some(frame)) = next(&mut frames) {
            lengths.push(match frame.kind.unwrap() {
                Kind::Data(bytes) => bytes.len(),
                Kind::End(end) => usize::from(end.has_process_ended),
                Kind::Open(_) => 0,
            });
        }
        assert_eq!(lengths, [REMOTE_SESSION_FRAME_BYTES_MAX, 5, 1]);
        assert!(matches!(next(&mut frames), Poll::Ready(None)));
    }
}
