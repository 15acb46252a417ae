//! The etcd that stores the membership, called on the transport's thread over one connection at a
//! time. This module makes no decisions: the state machine of membership chooses each read and
//! write.
//!
//! Each call has a deadline of a quarter of a lease, a write of half a lease. If an endpoint fails
//! or times out, the next call uses the next one.

mod calls;
mod channel;
mod config;
mod keys;
mod place;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use farrow_membership::etcd::{EtcdReply, EtcdRequest, Revision};
use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tonic::Status;

use super::backlog::{EventQueue, QueuedEvent};
use super::error::{StartError, shorten};
use super::event::PeerEvent;
use super::generated::etcd_pb::watch_client::WatchClient;
use super::generated::etcd_pb::watch_request::RequestUnion;
use super::generated::etcd_pb::{WatchCreateRequest, WatchRequest};
use super::limits::{PeerTimes, Permit};
use super::link::{REST_MAX, REST_MIN};
use channel::{EtcdChannel, EtcdFailure};
use keys::Keys;

pub use config::{EtcdConfig, EtcdTls, EtcdUser};
pub use place::EtcdPlace;

/// Time limit on the probe of etcd at start: longer than an election of etcd's leader.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// A watch that ended sooner is restarted with a longer pause.
const WATCH_LONG: Duration = Duration::from_secs(1);

/// The client of etcd on the transport's thread.
#[derive(Debug)]
pub(super) struct Etcd {
    place: EtcdPlace,
    keys: Keys,
    channel: Arc<EtcdChannel>,
    deadline: Duration,
    events: Arc<EventQueue>,
    /// Allows one notification of a change to wait at a time.
    words: Arc<Semaphore>,
}

impl Etcd {
    pub(super) fn new(
        config: &EtcdConfig,
        lease: Duration,
        events: Arc<EventQueue>,
    ) -> Result<Self, StartError> {
        let times = PeerTimes::for_lease(lease);
        Ok(Self {
            place: config.place.clone(),
            keys: Keys::below(&config.place.prefix),
            channel: Arc::new(EtcdChannel::new(config, times)?),
            deadline: lease / 4,
            events,
            words: Arc::new(Semaphore::new(1)),
        })
    }

    /// Waits until a read of etcd succeeds.
    pub(super) fn probe(self: &Arc<Self>, runtime: &Handle) -> Result<(), StartError> {
        let failed = |reason| StartError::Etcd { place: self.place.to_string(), reason };
        let (sender, receiver) = mpsc::sync_channel(1);
        let etcd = Arc::clone(self);
        runtime.spawn(async move {
            let until = Instant::now() + PROBE_MAX;
            let request = EtcdRequest::Look { since: Revision(0) };
            let mut result = etcd.try_ask(request.clone(), PROBE_MAX).await;
            // Etcd may be starting too.
            while result.as_ref().is_err_and(|failure| !failure.is_answer)
                && Instant::now() + REST_MAX < until
            {
                tokio::time::sleep(REST_MIN * 4).await;
                result = etcd.try_ask(request.clone(), until - Instant::now()).await;
            }
            let _ = sender.send(result.map(drop));
        });
        match receiver.recv_timeout(PROBE_MAX * 2) {
            Ok(result) => result.map_err(|failure| failed(failure.reason)),
            Err(_) => Err(failed(format!("no answer within {} s", 2 * PROBE_MAX.as_secs()))),
        }
    }

    pub(super) async fn ask(self: Arc<Self>, id: u64, request: EtcdRequest) {
        // A write waits for a disk, and for other members of etcd.
        let deadline = match &request {
            EtcdRequest::Look { .. } | EtcdRequest::KeepAlive { .. } => self.deadline,
            EtcdRequest::Grant { .. } | EtcdRequest::Change(_) => self.deadline * 2,
        };
        let reply = match self.try_ask(request, deadline).await {
            Ok(reply) => reply,
            Err(EtcdFailure { reason, .. }) => {
                EtcdReply::Failed { reason: format!("{}: {reason}", self.place) }
            }
        };
        self.events.push(QueuedEvent::Event(PeerEvent::EtcdResponse { id, reply }));
    }

    async fn try_ask(
        &self,
        request: EtcdRequest,
        deadline: Duration,
    ) -> Result<EtcdReply, EtcdFailure> {
        let call = async {
            let (live, generation) = self.channel.connection().await?;
            let result = calls::call(&live, &self.keys, request).await;
            Ok((result, generation))
        };
        let ended = tokio::time::timeout(deadline, call).await;
        let (result, generation) = match ended {
            Ok(Ok(response)) => response,
            Ok(Err(failure)) => return Err(failure),
            Err(_) => {
                self.channel.discard(None).await;
                let reason = format!("no answer within {} ms", deadline.as_millis());
                return Err(EtcdFailure { is_answer: false, reason });
            }
        };
        match result {
            Ok(reply) => Ok(reply),
            Err(status) => {
                let is_answer = channel::is_answer(&status);
                if !is_answer {
                    self.channel.discard(Some(generation)).await;
                }
                Err(EtcdFailure { is_answer, reason: channel::reason_of(&status) })
            }
        }
    }

    /// Reports each change, and each interruption in which a change may have been missed.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut rest = REST_MIN;
        loop {
            let began = Instant::now();
            let ended = self.watch_once().await;
            tracing::debug!(place = %self.place, ?ended, "a watch of etcd ended");
            self.say_changed();
            rest = if began.elapsed() >= WATCH_LONG { REST_MIN } else { (rest * 2).min(REST_MAX) };
            tokio::time::sleep(rest).await;
        }
    }

    async fn watch_once(&self) -> Result<(), EtcdFailure> {
        let failed =
            |status: Status| EtcdFailure { is_answer: false, reason: shorten(status.message()) };
        let (live, _) = self.channel.connection().await?;
        let (key, range_end) = self.keys.range();
        let create = RequestUnion::CreateRequest(WatchCreateRequest { key, range_end });
        let create = WatchRequest { request_union: Some(create) };
        // The watch lasts until the stream of requests ends.
        let requests = stream::once(async { create }).chain(stream::pending());
        let mut client = WatchClient::with_origin(live.live.clone(), live.origin.clone());
        let opening = client.watch(live.request(requests));
        let Ok(opened) = tokio::time::timeout(REST_MAX, opening).await else {
            return Err(EtcdFailure { is_answer: false, reason: "no watch in time".to_owned() });
        };
        let mut changes = opened.map_err(failed)?.into_inner();
        while let Some(change) = changes.message().await.map_err(failed)? {
            self.say_changed();
            if change.canceled {
                // For example after a compaction. The next read finds the missed changes.
                let reason = shorten(&change.cancel_reason);
                return Err(EtcdFailure { is_answer: true, reason });
            }
        }
        Ok(())
    }

    fn say_changed(&self) {
        if let Some(place) = Permit::take(&self.words) {
            self.events.push_with(QueuedEvent::Event(PeerEvent::EtcdChanged), vec![place]);
        }
    }
}
