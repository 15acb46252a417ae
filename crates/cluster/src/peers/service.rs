//! The three calls of `node.proto`, on the called side.

use std::sync::Arc;
use std::time::Duration;

use farrow_memory::sync::{AtomicU64, Ordering};
use futures_util::StreamExt;
use futures_util::stream::Map;
use tokio::sync::oneshot;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::address::{RemoteSessionId, RequestToken};
use super::backlog::{EventQueue, QueuedEvent};
use super::error::shorten;
use super::event::{PeerEvent, RemoteProcess};
use super::failures::FailureLog;
use super::generated::pb::{Answer, Frame, Message, Question, Receipt, frame::Kind, node_server};
use super::limits::{ASK_BYTES_MAX, Caller, MESSAGE_BYTES_MAX, PeerLimits, Permit};
use super::outbox::{Frames, RemoteSessionOutbox};
use super::remote_session::{self, RemoteSessionRoom};

/// Limit on the deadline of a request.
const ASK_MAX: Duration = Duration::from_secs(60);

/// Time limit for the first frame of a remote session, which identifies the client.
const OPEN_MAX: Duration = Duration::from_secs(1);

/// The service, shared by all connections.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) events: Arc<EventQueue>,
    pub(super) failures: Arc<FailureLog>,
    pub(super) limits: PeerLimits,
    pub(super) requests: AtomicU64,
    pub(super) remote_sessions: AtomicU64,
}

/// Withdraws a request when its caller no longer waits.
struct Asking<'a> {
    events: &'a EventQueue,
    token: RequestToken,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.events.push(QueuedEvent::RequestCancelled(self.token));
    }
}

#[tonic::async_trait]
impl node_server::Node for Service {
    type RemoteSessionStream = Map<Frames, fn(Frame) -> Result<Frame, Status>>;

    async fn tell(&self, request: Request<Message>) -> Result<Response<Receipt>, Status> {
        let (caller, of_peer) = admitted(request.extensions())?;
        let Message { version, from, incarnation, body } = request.into_inner();
        let from = caller.check(version, &from).inspect_err(|status| {
            self.failures.refused(&shorten(&from), status.message());
        })?;
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(too_long(body.len(), MESSAGE_BYTES_MAX));
        }
        let place = Permit::take(&self.events.messages)
            .ok_or_else(|| Status::resource_exhausted("too many messages wait to be handled"))?;
        let mut places = vec![place, of_peer];
        places.extend(caller.account.bytes.try_take(body.len())?);
        let event = PeerEvent::Message { from, incarnation, body };
        // All permits are held until the message is taken, so that no peer fills the queue of all.
        self.events.push_with(QueuedEvent::Event(event), places);
        Ok(Response::new(Receipt {}))
    }

    async fn ask(&self, request: Request<Question>) -> Result<Response<Answer>, Status> {
        let (caller, place) = admitted(request.extensions())?;
        let deadline = match request.metadata().get("grpc-timeout") {
            Some(text) => text
                .to_str()
                .ok()
                .and_then(read_timeout)
                .ok_or_else(|| Status::invalid_argument("grpc-timeout cannot be read"))?,
            None => ASK_MAX,
        };
        let Question { version, from, incarnation, body } = request.into_inner();
        let from = caller.check(version, &from)?;
        if body.len() > ASK_BYTES_MAX {
            return Err(too_long(body.len(), ASK_BYTES_MAX));
        }
        let mut places = vec![place];
        places.extend(caller.account.bytes.try_take(body.len())?);
        let token = RequestToken(self.requests.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        let event = PeerEvent::Request { token, from, incarnation, body };
        self.events.push_with(QueuedEvent::Request(event, token, reply), places);
        let _asking = Asking { events: &self.events, token };
        match tokio::time::timeout(deadline.min(ASK_MAX), answer).await {
            Ok(Ok(body)) => Ok(Response::new(Answer { body })),
            Ok(Err(_)) => Err(Status::unavailable("the question was not answered")),
            Err(_) => Err(Status::deadline_exceeded("not answered in time")),
        }
    }

    async fn remote_session(
        &self,
        request: Request<Streaming<Frame>>,
    ) -> Result<Response<Self::RemoteSessionStream>, Status> {
        let (caller, place) = admitted(request.extensions())?;
        let mut frames = request.into_inner();
        let open = match tokio::time::timeout(OPEN_MAX, frames.message()).await {
            Ok(first) => match first?.and_then(|frame| frame.kind) {
                Some(Kind::Open(open)) => open,
                _ => {
                    return Err(Status::invalid_argument(
                        "the first frame does not open the session",
                    ));
                }
            },
            Err(_) => return Err(Status::deadline_exceeded("no one accepted the session")),
        };
        let from = caller.check(open.version, &open.from)?;
        let process = RemoteProcess { pid: open.pid, start_time: open.start_time, uid: open.uid };
        let remote_session =
            RemoteSessionId::incoming(self.remote_sessions.fetch_add(1, Ordering::Relaxed));
        let bytes_max = self.limits.remote_session_bytes_max;
        let outbox = RemoteSessionOutbox::new(remote_session, bytes_max);
        let event = PeerEvent::RemoteSessionOpened { remote_session, from, process };
        let opened = QueuedEvent::Opened(event, remote_session, Arc::clone(&outbox));
        self.events.push_with(opened, vec![place.clone()]);
        let events = Arc::clone(&self.events);
        let room = RemoteSessionRoom { bytes_max, of_peer: Some(caller.account.bytes.clone()) };
        let pump = remote_session::pump(remote_session, frames, Arc::clone(&outbox), events, room);
        let out =
            Frames { open: None, outbox, events: Arc::clone(&self.events), _place: place.clone() };
        tokio::spawn(async move {
            pump.await;
            drop(place);
        });
        Ok(Response::new(out.map(Ok)))
    }
}

/// The values that the gate attached to the request.
fn admitted(extensions: &Extensions) -> Result<(Arc<Caller>, Permit), Status> {
    let caller = extensions.get::<Arc<Caller>>().cloned();
    caller
        .zip(extensions.get::<Permit>().cloned())
        .ok_or_else(|| Status::internal("a call that did not pass the gate"))
}

fn too_long(bytes: usize, max: usize) -> Status {
    Status::invalid_argument(format!("{bytes} B in a body, at most {max} B"))
}

/// `grpc-timeout`: up to eight digits and a unit (gRPC over HTTP/2, "Timeout").
fn read_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(read_timeout("500m"), Some(Duration::from_millis(500)));
        assert_eq!(read_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for text in ["", "m", "5", "5s", "123456789m", "-1S", "+1S", "1.5S", "1\u{e9}", "\u{e9}"] {
            assert_eq!(read_timeout(text), None, "{text}");
        }
    }
}
