//! The three calls of `node.proto`, on the calling side.

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicU64, Ordering};
use prost::bytes::Bytes;
use tonic::{Request, Status, Streaming};

use super::address::RemoteSessionId;
use super::backlog::{EventQueue, QueuedEvent};
use super::error::{PeerError, shorten};
use super::event::{PeerAnswer, PeerEvent, RemoteProcess};
use super::failures::{FailureLog, cause_of_call};
use super::generated::pb::{Frame, Message, Open, Question};
use super::limits::{AskPlace, PeerLimits, PeerTimes, Permit, VERSION};
use super::link::{Lane, LiveConnection, PeerLink};
use super::outbox::{Frames, RemoteSessionOutbox};
use super::remote_session::{self, RemoteSessionRoom};
use super::tls::Tls;
use crate::certs::NodeName;

/// Time limit for opening a remote session. The other node answers once it has read one frame.
const REMOTE_SESSION_TAKEN_MAX: Duration = Duration::from_secs(2);

/// Attempts to send a call. A peer with other certificate files ends each connection once.
const ATTEMPTS_MAX: u32 = 3;

/// First words of the status of a call for which the connection has no place any more.
const NOT_READY: &str = "Service was not ready";

/// Checks for the cause of an ended connection, which is known within a few steps of the thread.
const ENDED_LOOKS: u32 = 5;
const ENDED_PAUSE: Duration = Duration::from_millis(10);

/// This node as a caller.
#[derive(Debug)]
pub(super) struct PeerClient {
    pub(super) name: NodeName,
    pub(super) incarnation: AtomicU64,
    pub(super) limits: PeerLimits,
    pub(super) times: PeerTimes,
    pub(super) tls: Option<Tls>,
    pub(super) events: Arc<EventQueue>,
    pub(super) failures: Arc<FailureLog>,
}

impl PeerClient {
    fn from(&self) -> String {
        self.name.to_string()
    }

    fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Relaxed)
    }

    pub(super) async fn send_message(
        self: Arc<Self>,
        link: Arc<PeerLink>,
        body: Bytes,
        _place: Permit,
    ) {
        let mut used = None;
        let call = async {
            let mut attempt = 1;
            loop {
                let live = link.connection(&self, Lane::Messages).await?;
                used = Some(live.clone());
                let (from, incarnation) = (self.from(), self.incarnation());
                let message = Message { version: VERSION, from, incarnation, body: body.clone() };
                match live.client().tell(message).await {
                    Err(status) if attempt < ATTEMPTS_MAX && is_unsent(&status) => attempt += 1,
                    result => return Ok::<(), PeerError>(result.map(drop)?),
                }
            }
        };
        let notify_ms = u64::try_from(self.times.message.as_millis()).unwrap_or(u64::MAX);
        let sent = tokio::time::timeout(self.times.message, call).await;
        let sent = sent.unwrap_or(Err(PeerError::Deadline { deadline_ms: notify_ms }));
        let may_want_tls = self.tls.is_none() && !link.delivery.has_arrived();
        let address = link.address.to_string();
        let result = match &sent {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::debug!(address, %error, "a message is lost");
                Err((error, cause_of_call(error, ended(used).await, may_want_tls)))
            }
        };
        if let Some(why_not) = link.delivery.note(&address, result, &self.failures) {
            self.events.push(QueuedEvent::Event(PeerEvent::Delivery { address, why_not }));
        }
    }

    pub(super) async fn ask(
        self: Arc<Self>,
        token: u64,
        link: Arc<PeerLink>,
        body: Bytes,
        deadline: Duration,
        place: AskPlace,
    ) {
        let mut taken = None;
        let call = async {
            taken = match place {
                AskPlace::Taken(permit) => Some(permit),
                AskPlace::Waiting(_bytes) => Permit::wait(&link.asks).await,
            };
            let until = Instant::now() + deadline;
            let mut attempt = 1;
            loop {
                let live = link.connection(&self, Lane::Work).await?;
                let (from, incarnation) = (self.from(), self.incarnation());
                let question = Question { version: VERSION, from, incarnation, body: body.clone() };
                let mut request = Request::new(question);
                let since = Instant::now();
                request.set_timeout(until.saturating_duration_since(since));
                match live.client().ask(request).await {
                    Err(status) if attempt < ATTEMPTS_MAX && is_unsent(&status) => attempt += 1,
                    result => {
                        let body = result?.into_inner().body;
                        return Ok(PeerAnswer { from: live.peer, body, elapsed: since.elapsed() });
                    }
                }
            }
        };
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let result = match tokio::time::timeout(deadline, call).await {
            Ok(Err(PeerError::Refused { code: tonic::Code::DeadlineExceeded, .. })) | Err(_) => {
                Err(PeerError::Deadline { deadline_ms })
            }
            Ok(result) => result,
        };
        let response = PeerEvent::Response { token, result };
        self.events.push_with(QueuedEvent::Event(response), taken.into_iter().collect());
    }

    pub(super) async fn take_remote_session(
        self: Arc<Self>,
        link: Arc<PeerLink>,
        remote_session: RemoteSessionId,
        process: RemoteProcess,
        outbox: Arc<RemoteSessionOutbox>,
        place: Permit,
    ) {
        let call = async {
            let mut attempt = 1;
            loop {
                let live = link.connection(&self, Lane::Work).await?;
                match self.open(live, process, &outbox, &place).await {
                    Err(status) if attempt < ATTEMPTS_MAX && is_unsent(&status) => attempt += 1,
                    opened => return Ok::<_, PeerError>(opened?),
                }
            }
        };
        let reason = match tokio::time::timeout(REMOTE_SESSION_TAKEN_MAX, call).await {
            Ok(Ok(frames)) => {
                let events = Arc::clone(&self.events);
                let room = RemoteSessionRoom {
                    bytes_max: self.limits.remote_session_bytes_max,
                    of_peer: None,
                };
                return remote_session::pump(remote_session, frames, outbox, events, room).await;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} ms", REMOTE_SESSION_TAKEN_MAX.as_millis()),
        };
        outbox.abort();
        let reason = shorten(&reason);
        let ended =
            PeerEvent::RemoteSessionEnded { remote_session, has_process_ended: None, reason };
        self.events.push_with(QueuedEvent::Event(ended), vec![place]);
    }

    async fn open(
        &self,
        live: LiveConnection,
        process: RemoteProcess,
        outbox: &Arc<RemoteSessionOutbox>,
        place: &Permit,
    ) -> Result<Streaming<Frame>, Status> {
        let RemoteProcess { pid, start_time, uid } = process;
        let open = Open { version: VERSION, from: self.from(), pid, start_time, uid };
        let frames = Frames {
            open: Some(open),
            outbox: Arc::clone(outbox),
            events: Arc::clone(&self.events),
            _place: place.clone(),
        };
        Ok(live.client().remote_session(frames).await?.into_inner())
    }
}

/// Whether a call failed before it was sent: the connection takes no more calls, as when the peer has
/// other certificate files.
fn is_unsent(status: &Status) -> bool {
    let of_hyper = status.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    of_hyper.is_some_and(hyper::Error::is_canceled) || status.message().starts_with(NOT_READY)
}

/// Why a connection ended. Another task stores the cause, possibly later than the call fails.
async fn ended(used: Option<LiveConnection>) -> Option<String> {
    let live = used?;
    for _ in 0..ENDED_LOOKS {
        match live.ended.get() {
            None if live.sender.is_closed() => tokio::time::sleep(ENDED_PAUSE).await,
            known => return known,
        }
    }
    None
}
