//! The seam between the two membership back ends and the rest of a node. Both take the time and
//! events, and return views, reachability and leases.

use farrow_membership::etcd::{EtcdMembership, EtcdOutput, EtcdReply};
use farrow_membership::{
    Incarnation, Membership, Message, Options, Output, PersistentState, Sender, View,
};

use crate::protocol::cluster::{AgreementKind, JoinError, PeerAction};

/// The membership back end of a node.
#[derive(Debug)]
pub(in crate::protocol::cluster) enum Agreement {
    Embedded(Box<Membership>),
    Etcd(Box<EtcdMembership>),
}

/// Output of either back end.
pub(in crate::protocol::cluster) enum Outcome {
    /// Output that both have.
    Membership(Output),
    /// A request to etcd.
    Ask(PeerAction),
    /// Bytes to store before the next outcome.
    Keep(Vec<u8>),
}

impl Agreement {
    /// The info of this node in the state of an earlier process; `None` if that is of another kind.
    pub(super) fn retained_info(kind: AgreementKind, retained: &[u8]) -> Option<Vec<u8>> {
        match kind {
            AgreementKind::Embedded => {
                postcard::from_bytes::<PersistentState>(retained).ok().map(|retained| retained.info)
            }
            AgreementKind::Etcd => EtcdMembership::retained_info(retained),
        }
    }

    /// `retained` is the state of an earlier process; that of another kind is ignored.
    /// `incarnation` increases from one process to the next.
    pub(in crate::protocol::cluster) fn new(
        kind: AgreementKind,
        options: Options,
        retained: Option<&[u8]>,
        now_ms: u64,
    ) -> Result<Self, JoinError> {
        Ok(match kind {
            AgreementKind::Embedded => {
                let retained =
                    retained.and_then(|bytes| postcard::from_bytes::<PersistentState>(bytes).ok());
                Self::Embedded(Box::new(Membership::new(options, retained, now_ms)?))
            }
            AgreementKind::Etcd => {
                Self::Etcd(Box::new(EtcdMembership::new(options, retained, now_ms)?))
            }
        })
    }

    pub(in crate::protocol::cluster) fn handle(
        &mut self,
        message: Message,
        now_ms: u64,
    ) -> Vec<Outcome> {
        self.with_embedded(|membership, out| membership.handle(message, now_ms, out))
    }

    pub(in crate::protocol::cluster) fn on_etcd_response(
        &mut self,
        id: u64,
        reply: EtcdReply,
        now_ms: u64,
    ) -> Vec<Outcome> {
        self.with_etcd(|membership, out| membership.on_response(id, reply, now_ms, out))
    }

    pub(super) fn etcd_changed(&mut self, now_ms: u64) -> Vec<Outcome> {
        self.with_etcd(|membership, out| membership.poked(now_ms, out))
    }

    pub(in crate::protocol::cluster) fn tick(&mut self, now_ms: u64) -> Vec<Outcome> {
        match self {
            Self::Embedded(_) => self.with_embedded(|one, out| one.tick(now_ms, out)),
            Self::Etcd(_) => self.with_etcd(|one, out| one.tick(now_ms, out)),
        }
    }

    pub(in crate::protocol::cluster) fn leave(&mut self, now_ms: u64) -> Vec<Outcome> {
        match self {
            Self::Embedded(_) => self.with_embedded(|one, out| one.leave(now_ms, out)),
            Self::Etcd(_) => self.with_etcd(|one, out| one.leave(now_ms, out)),
        }
    }

    pub(super) fn rejoin(&mut self, incarnation: Incarnation, now_ms: u64) {
        match self {
            Self::Embedded(one) => one.rejoin(incarnation, now_ms),
            Self::Etcd(one) => one.rejoin(incarnation, now_ms),
        }
    }

    /// Rejects a node that asks to join with another lease.
    pub(super) fn refuse_lease(&mut self, from: &Sender) -> Vec<Outcome> {
        self.with_embedded(|one, out| one.refuse_lease(from, out))
    }

    pub(in crate::protocol::cluster) fn next_deadline_ms(&self) -> u64 {
        match self {
            Self::Embedded(one) => one.next_deadline_ms(),
            Self::Etcd(one) => one.next_deadline_ms(),
        }
    }

    pub(in crate::protocol::cluster) fn view(&self) -> Option<&View> {
        match self {
            Self::Embedded(one) => one.view(),
            Self::Etcd(one) => one.view(),
        }
    }

    pub(in crate::protocol::cluster) fn incarnation(&self) -> Incarnation {
        match self {
            Self::Embedded(one) => one.incarnation(),
            Self::Etcd(one) => one.incarnation(),
        }
    }

    pub(in crate::protocol::cluster) fn has_lease(&self, now_ms: u64) -> bool {
        match self {
            Self::Embedded(one) => one.has_lease(now_ms),
            Self::Etcd(one) => one.has_lease(now_ms),
        }
    }

    pub(in crate::protocol::cluster) fn lease_left_ms(&self, now_ms: u64) -> u64 {
        match self {
            Self::Embedded(one) => one.lease_left_ms(now_ms),
            Self::Etcd(one) => one.lease_left_ms(now_ms),
        }
    }

    /// Calls the embedded membership; does nothing with another.
    fn with_embedded(
        &mut self,
        what: impl FnOnce(&mut Membership, &mut Vec<Output>),
    ) -> Vec<Outcome> {
        let Self::Embedded(membership) = self else { return Vec::new() };
        let mut out = Vec::new();
        what(membership, &mut out);
        let outcome = |output| match output {
            Output::Keep(retained) => {
                Outcome::Keep(postcard::to_allocvec(&retained).unwrap_or_default())
            }
            other => Outcome::Membership(other),
        };
        out.into_iter().map(outcome).collect()
    }

    fn with_etcd(
        &mut self,
        what: impl FnOnce(&mut EtcdMembership, &mut Vec<EtcdOutput>),
    ) -> Vec<Outcome> {
        let Self::Etcd(membership) = self else { return Vec::new() };
        let mut out = Vec::new();
        what(membership, &mut out);
        let outcome = |output| match output {
            EtcdOutput::Ask { id, request } => Outcome::Ask(PeerAction::AskEtcd { id, request }),
            EtcdOutput::Keep(bytes) => Outcome::Keep(bytes),
            EtcdOutput::Membership(output) => Outcome::Membership(output),
        };
        out.into_iter().map(outcome).collect()
    }
}
