//! When deleted objects that were held are freed.

use farrow_store::{Home, RECLAIMED_MAX, Room};

/// First pause before deleted objects that are held are checked again. Clients announce releases;
/// the timer is for clients that died or failed to.
const RECLAIM_MS_MIN: u64 = 5;
/// Longest such pause; it doubles with each check.
const RECLAIM_MS_MAX: u64 = 200;

/// The timer for deleted objects that are held.
#[derive(Debug)]
pub(in crate::protocol) struct Reclaim {
    at_ms: Option<u64>,
    wait_ms: u64,
}

impl Reclaim {
    pub(in crate::protocol) fn new(now_ms: u64) -> Self {
        Self { at_ms: Some(now_ms), wait_ms: RECLAIM_MS_MIN }
    }

    /// Has the objects checked at the next tick: a hold may have ended.
    pub(in crate::protocol) fn soon(&mut self, home: &Home, now_ms: u64) {
        if home.has_retiring() {
            self.wait_ms = RECLAIM_MS_MIN;
            self.at_ms = Some(now_ms);
        }
    }

    /// Has the objects checked in the next turn: one was deleted while it was held, and the hold may
    /// have ended since.
    pub(in crate::protocol) fn next_turn(&mut self) {
        self.wait_ms = RECLAIM_MS_MIN;
        self.at_ms = Some(0);
    }

    /// Frees what no client holds any more, if it is time. Of many objects some, and the rest in the
    /// next turns.
    pub(in crate::protocol) fn tick(&mut self, home: &mut Home, now_ms: u64) {
        if self.at_ms.is_none_or(|at| at > now_ms) {
            return;
        }
        if self.free_some(home) {
            return;
        }
        self.at_ms = home.has_retiring().then(|| {
            self.wait_ms = (self.wait_ms * 2).min(RECLAIM_MS_MAX);
            now_ms.saturating_add(self.wait_ms)
        });
    }

    /// Frees what no client holds any more, at once. Returns whether many objects are left, which the
    /// next turns free: no other client is served meanwhile.
    pub(in crate::protocol) fn free_some(&mut self, home: &mut Home) -> bool {
        match home.reclaim_some(RECLAIMED_MAX) {
            Ok(reclaimed) if reclaimed.objects as usize == RECLAIMED_MAX => self.next_turn(),
            Ok(_) => return false,
            Err(error) => {
                tracing::error!(%error, "deleted objects cannot be reclaimed");
                return false;
            }
        }
        true
    }

    /// Frees all that no client holds any more.
    pub(in crate::protocol) fn free_all(&mut self, home: &mut Home) {
        if let Err(error) = home.reclaim() {
            tracing::error!(%error, "deleted objects cannot be reclaimed");
        }
    }

    /// Whether the next turn frees more objects.
    pub(in crate::protocol) fn is_behind(&self) -> bool {
        self.at_ms == Some(0)
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.at_ms
    }
}

/// Frees deleted objects that are held no more, until there is room.
pub(in crate::protocol) fn reclaim_for(home: &mut Home, room: &Room) {
    if let Err(error) = home.reclaim_until(|home| home.has_room(room)) {
        tracing::error!(%error, "deleted objects cannot be reclaimed");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use farrow_memory::shm::ShmFabric;
    use farrow_memory::{Access, Length, Offset, Region, Span};
    use farrow_store::{Layout, RegionOptions, SealRequest, Target};
    use farrow_wire::{
        Hello, NamespaceSpec, PROTOCOL_VERSION, ReplyBody, Request, RequestBody, WireError,
    };

    use super::*;
    use crate::protocol::{Action, AdoptedState, DaemonInfo, NodeState, PeerIdentity, SessionId};

    const CAPACITY: u64 = 2 << 20;
    const OBJECT_BYTES: u64 = 256;
    const ASKER: SessionId = SessionId(2);

    /// A node whose memory is full of objects of the namespace "team", which were deleted while a
    /// client held them. Its end was not noticed yet, and so was that of their creator.
    struct RetiringNode(NodeState);

    impl RetiringNode {
        fn new() -> Self {
            let mut options = RegionOptions::for_capacity(Length(CAPACITY));
            options.objects_max = options.objects_max.max((CAPACITY / OBJECT_BYTES) as u32);
            let geometry = Layout::new(&options).unwrap().geometry;
            let fabric = Arc::new(ShmFabric::memfd("reclaim-test", geometry).unwrap());
            let region = Region::map(fabric, Access::Home, None).unwrap();
            let home = Home::create(Arc::new(region), &options, 0).unwrap();
            let daemon = DaemonInfo { base: 0, pid: 1, owner_uid: 0 };
            let mut node = Self(NodeState::new(home, daemon, AdoptedState::default(), 0));
            node.join(ASKER, "");
            let spec = NamespaceSpec { name: "team".to_owned(), ..NamespaceSpec::default() };
            node.ask(RequestBody::CreateNamespace(spec)).unwrap().unwrap();
            node.fill();
            node
        }

        fn join(&mut self, session: SessionId, namespace: &str) {
            let pid = session.0 as u32;
            let peer = PeerIdentity { pid, start_time: 1, uid: 0, remote_client: None };
            self.0.opened(session, peer, 0);
            let body = RequestBody::Hello(Hello {
                version: PROTOCOL_VERSION,
                resume: None,
                namespace: namespace.to_owned(),
                node: String::new(),
                maps_memory: true,
            });
            self.0.handle(session, Request { seq: 1, body }, 0, 1, &mut Vec::new());
        }

        fn fill(&mut self) {
            let creator = SessionId(1);
            self.join(creator, "team");
            let home = &mut self.0.home;
            let namespace = home.namespace("team").unwrap().id;
            let slot = home.clients_in(namespace).next().unwrap();
            let page = home.layout().page.0;
            let mut ids = Vec::new();
            while let Ok(spans) = home.grant_all(slot, &[Length(page)], Length(page)) {
                for at in (0..page).step_by(OBJECT_BYTES as usize) {
                    let start = Offset(spans[0].offset.0 + at);
                    let block = Span::new(start, Length(OBJECT_BYTES));
                    let request = SealRequest::bytes(block, Length(OBJECT_BYTES), None);
                    ids.push(home.seal(slot, &request, 1).unwrap());
                }
            }
            for id in &ids {
                home.keep_for(slot, *id);
                home.delete(Target::Id(*id)).unwrap();
            }
            self.0.closed(creator, false, 0);
            let home = &mut self.0.home;
            for id in &ids {
                home.confirm(slot, *id);
            }
            assert!(self.left() > 3 * RECLAIMED_MAX, "{}", self.left());
        }

        fn left(&self) -> usize {
            self.0.home.stats().unwrap().objects_retiring as usize
        }

        /// The answer, if there is one already.
        fn ask(&mut self, body: RequestBody) -> Option<Result<ReplyBody, WireError>> {
            let mut out = Vec::new();
            self.0.handle(ASKER, Request { seq: 2, body }, 0, 1, &mut out);
            answer_in(out)
        }

        fn tick(&mut self) -> Option<Result<ReplyBody, WireError>> {
            let mut out = Vec::new();
            self.0.tick(0, &mut out);
            answer_in(out)
        }
    }

    fn answer_in(out: Vec<Action>) -> Option<Result<ReplyBody, WireError>> {
        out.into_iter().find_map(|action| match action {
            Action::Send { session: ASKER, reply, .. } => Some(reply.body),
            _ => None,
        })
    }

    /// Each freed all of them at once: no other client was served meanwhile.
    #[test]
    fn no_request_frees_very_many_objects_at_once() {
        for body in [RequestBody::Evict { bytes: 1 }, RequestBody::Reclaim] {
            let mut node = RetiringNode::new();
            let before = node.left();
            assert!(node.ask(body.clone()).unwrap().is_ok());
            assert_eq!(node.left(), before - RECLAIMED_MAX, "{body:?}");
            assert_eq!(node.0.next_deadline_ms(), Some(0), "{body:?}");
            node.tick();
            assert_eq!(node.left(), before - 2 * RECLAIMED_MAX, "{body:?}");
        }
    }

    #[test]
    fn a_namespace_is_dropped_once_its_deleted_objects_are_freed() {
        let drop = || RequestBody::DropNamespace { name: "team".to_owned() };
        let mut node = RetiringNode::new();
        let mut left = node.left();
        assert!(node.ask(drop()).is_none());
        let answer = loop {
            assert_eq!(node.left(), left - RECLAIMED_MAX);
            left = node.left();
            if let Some(answer) = node.tick() {
                break answer;
            }
        };
        assert!(matches!(answer, Ok(ReplyBody::Done)), "{answer:?}");
        assert_eq!(node.left(), 0);
        assert!(node.0.home.namespace("team").is_err());
        // Without many objects the answer is there at once.
        assert!(matches!(node.ask(drop()), Some(Err(WireError::NoNamespace(_)))));
    }

    #[test]
    fn drops_that_wait_end_with_their_client_with_the_daemon_and_when_cancelled() {
        let drop = || RequestBody::DropNamespace { name: "team".to_owned() };
        let mut node = RetiringNode::new();
        assert!(node.ask(drop()).is_none());
        let cancelled = node.ask(RequestBody::Cancel { seq: 2 });
        assert!(matches!(cancelled, Some(Err(WireError::Cancelled))), "{cancelled:?}");
        assert!(node.0.namespace_drops.is_empty());
        assert!(node.ask(drop()).is_none());
        let mut out = Vec::new();
        node.0.finish_counts(0, &mut out);
        assert!(matches!(answer_in(out), Some(Ok(ReplyBody::Done))));
        let mut node = RetiringNode::new();
        assert!(node.ask(drop()).is_none());
        let mut out = Vec::new();
        node.0.stop(&mut out);
        assert!(matches!(answer_in(out), Some(Err(WireError::Closing))));
        let mut node = RetiringNode::new();
        assert!(node.ask(drop()).is_none());
        node.0.closed(ASKER, false, 0);
        assert!(node.0.namespace_drops.is_empty());
    }
}
