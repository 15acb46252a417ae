//! Nodes that did not join: noted, and listed with the reason.

use farrow_membership::{Body, ClashError, Message};
use farrow_wire::{MemberInfo, Reach};

use super::agreement::Outcome;
use crate::protocol::cluster::OptionalCluster;
use crate::protocol::cluster::peers::offer::lease_ms_in;

impl OptionalCluster {
    /// Notes that messages to an address arrive, or why they do not.
    pub(in crate::protocol) fn delivery_changed(
        &mut self,
        address: String,
        why_not: Option<String>,
    ) {
        let Some(cluster) = &mut self.0 else {
            return;
        };
        match why_not {
            Some(why) => cluster.not_joined.note(&address, why),
            None => drop(cluster.not_joined.why_not.remove(&address)),
        }
    }

    /// Rejects a node with another lease: each node relies on the lease of all others.
    pub(super) fn refuse_lease(&mut self, message: &Message, now_ms: u64) -> Option<Vec<Outcome>> {
        let Body::Ask { info, .. } = &message.body else {
            return None;
        };
        let cluster = self.0.as_mut()?;
        let (own_ms, theirs_ms) = (cluster.options.lease_ms, lease_ms_in(info)?);
        if own_ms == theirs_ms {
            return None;
        }
        let (name, address) = (&message.from.name, &message.from.address);
        let words = format!(
            "node {name} at {address} is not let in: its lease is {theirs_ms} ms, that of this \
             node {own_ms} ms (--lease-ms)"
        );
        if cluster.not_joined.is_due(&words, now_ms) {
            tracing::error!("{words}");
        }
        cluster.not_joined.note(address, words);
        Some(cluster.membership.refuse_lease(&message.from))
    }

    /// Nodes that this one is to join and that are no members, each with the reason.
    pub(in crate::protocol) fn not_joined(&self) -> Vec<MemberInfo> {
        let Some(cluster) = &self.0 else {
            return Vec::new();
        };
        let is_known = |address: &String| {
            *address == cluster.options.address
                || cluster.peers.values().any(|one| one.member.address == *address)
        };
        let absent = cluster.options.seeds.iter().filter(|address| !is_known(address));
        let absent =
            absent.filter_map(|address| Some((address, cluster.not_joined.why_not.get(address)?)));
        absent
            .map(|(address, why)| MemberInfo {
                address: address.clone(),
                reach: Reach::NotJoined,
                why_not: why.clone(),
                ..MemberInfo::default()
            })
            .collect()
    }

    /// Notes a clash that only the operator of the nodes can resolve. Returns the error that ends
    /// this node, if it does.
    pub(super) fn clashed(&mut self, clash: &ClashError, now_ms: u64) -> Option<String> {
        let cluster = self.0.as_mut()?;
        let words = clash.to_string();
        if let Some(address) = clash.address() {
            cluster.not_joined.note(address, words.clone());
        }
        let is_newcomer = cluster.membership.view().is_none() && !cluster.was_member;
        if let (ClashError::NameInUse { name, address }, true) = (clash, is_newcomer) {
            let own = &cluster.options.address;
            return Some(format!(
                "the name {name} is in use: by the node at {address}, and by this one at {own}; \
                 start this one with another --name"
            ));
        }
        if cluster.not_joined.is_due(&words, now_ms) {
            tracing::error!(%clash, "the cluster rejects this node");
        }
        None
    }
}
