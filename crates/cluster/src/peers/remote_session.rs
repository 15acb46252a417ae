//! Incoming frames of one remote session, on either side.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::{Status, Streaming};

use super::address::RemoteSessionId;
use super::backlog::{EventQueue, QueuedEvent};
use super::error::shorten;
use super::event::{PeerEvent, RemoteSessionBytes};
use super::generated::pb::{Frame, frame::Kind};
use super::limits::{BytesRoom, REMOTE_SESSION_FRAME_BYTES_MAX};
use super::outbox::RemoteSessionOutbox;

/// Minimum cost of a frame in bytes of its remote session, so that many empty frames are limited
/// too.
const FRAME_COST_MIN: usize = 256;

/// Time that the other side has to read the end of a remote session before its stream is cut.
const END_GRACE: Duration = Duration::from_secs(1);

/// Limits on bytes of a remote session that were read but not taken.
#[derive(Debug)]
pub(super) struct RemoteSessionRoom {
    pub(super) bytes_max: usize,
    /// The limit of the peer. `None` for a remote session that this node opened.
    pub(super) of_peer: Option<BytesRoom>,
}

/// Why a remote session ended. The first field is whether the client's process is dead, if the
/// other side reported it.
struct SessionEnd(Option<bool>, String);

impl SessionEnd {
    fn broken(reason: impl Into<String>) -> Self {
        Self(None, reason.into())
    }
}

/// Reads a remote session until it ends.
pub(super) async fn pump(
    remote_session: RemoteSessionId,
    mut frames: Streaming<Frame>,
    outbox: Arc<RemoteSessionOutbox>,
    events: Arc<EventQueue>,
    room: RemoteSessionRoom,
) {
    let ended = tokio::select! {
        ended = read(remote_session, &mut frames, &events, room) => Some(ended),
        () = outbox.is_ended.notified() => None,
    };
    if let Some(SessionEnd(has_process_ended, reason)) = ended {
        if has_process_ended.is_none() {
            outbox.abort();
        }
        let reason = shorten(&reason);
        events.push(QueuedEvent::Event(PeerEvent::RemoteSessionEnded {
            remote_session,
            has_process_ended,
            reason,
        }));
        outbox.end(false);
    }
    let rest = async { while let Ok(Some(_)) = frames.message().await {} };
    let _ = tokio::time::timeout(END_GRACE, rest).await;
    outbox.abort();
}

async fn read(
    remote_session: RemoteSessionId,
    frames: &mut Streaming<Frame>,
    events: &EventQueue,
    RemoteSessionRoom { bytes_max, of_peer }: RemoteSessionRoom,
) -> SessionEnd {
    let room = Arc::new(Semaphore::new(bytes_max));
    loop {
        let bytes = match frames.message().await {
            Ok(Some(Frame { kind: Some(Kind::Data(bytes)) })) => bytes,
            Ok(Some(Frame { kind: Some(Kind::End(end)) })) => {
                return SessionEnd(Some(end.has_process_ended), "given back".to_owned());
            }
            Ok(Some(_)) => return SessionEnd::broken("a frame that does not belong here"),
            Ok(None) => return SessionEnd::broken("the stream stopped without an end"),
            Err(status) => return SessionEnd::broken(words(&status)),
        };
        if bytes.len() > REMOTE_SESSION_FRAME_BYTES_MAX {
            return SessionEnd::broken(format!("{} B in one frame", bytes.len()));
        }
        let cost = bytes.len().max(FRAME_COST_MIN).min(bytes_max);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let Ok(_room) = Arc::clone(&room).acquire_many_owned(cost).await else {
            return SessionEnd::broken("closed");
        };
        let _of_peer = match &of_peer {
            Some(of_peer) => of_peer.take(cost).await,
            None => None,
        };
        let bytes = RemoteSessionBytes { bytes, _room, _of_peer };
        events.push(QueuedEvent::Event(PeerEvent::RemoteSessionData { remote_session, bytes }));
    }
}

pub(super) fn words(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
