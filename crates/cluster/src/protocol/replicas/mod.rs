//! Replicas of objects between nodes whose memory cannot be mapped.
//!
//! **Get.** A client that finds an object nowhere in mapped memory asks its node to fetch it. The
//! node opens the object at its home, allocates memory, has the bytes transferred, and seals a
//! replica under the same name. From then on each process of the node finds the replica by loads.
//!
//! **Pages.** A client may read an object whose bytes are brought page by page ([`lazy`]).
//!
//! **Delete.** The home notes each member that opened an object. Before a delete it rejects further
//! opens and notifies these members. It deletes the object when all of them have dropped their
//! replicas or are lost. Objects held by readers stay readable. Objects with replicas elsewhere are
//! not evicted: other objects could take their names.
//!
//! **Incarnations.** When an incarnation of a node ends, its objects may no longer exist. Replicas
//! of them are dropped, and its interest in objects of this node ends.

mod delete;
mod fetch;
mod import;
mod imported;
mod invalidate;
pub(super) mod invalidation_notice;
mod lazy;
mod lazy_objects;
mod listings;
mod replace;
mod replica_table;
mod search;
mod senders;
mod state;
#[cfg(test)]
mod tests;
mod transfers;
mod withdrawals;

use std::sync::Arc;

use farrow_memory::Span;
use farrow_store::StoreError;
use farrow_wire::ReplyBody;

use super::Action;
use super::action::answer_to;
use super::net::{NetAction, NetEvent, NetFault, NetReaders};
use super::state::NodeState;
use invalidation_notice::LastNotice;
pub(super) use search::pages_elsewhere;
use state::Port;
pub(super) use state::Replicas;
pub(super) use transfers::ImportSeal;
use transfers::ROOM_MS_MAX;
pub(super) use withdrawals::{DeleteOrigin, ReplacingSeal, Withdrawal};

/// Start time in the client record of the threads that read for other nodes: no process has this
/// one. The record is in the region, so that the next incarnation finds it.
const NET_START_TIME: u64 = 0;

impl NodeState {
    /// Attaches the network fabric. `bytes_max` limits the memory of replicas.
    pub(crate) fn set_net(
        &mut self,
        readers: Arc<dyn NetReaders>,
        kind: &'static str,
        bytes_max: Option<u64>,
    ) {
        self.replicas.port = Some(Port { readers, kind });
        self.replicas.bytes_max = bytes_max;
        // An earlier incarnation created this record once another node read from it by network.
        self.replicas.is_new_life = self.home.clients().any(|one| one.start_time == NET_START_TIME);
        self.replicas.publish_rules(&self.rules, &self.home);
    }

    /// Whether other nodes read from an earlier incarnation of this node by network.
    pub(crate) fn was_read_by_net(&self) -> bool {
        self.replicas.is_new_life
    }

    /// Joins as a client for the threads that read for other nodes, unless it has; returns one more
    /// hold block.
    pub(crate) fn net_hold_block(&mut self) -> Result<Span, StoreError> {
        if let Some(slot) = self.replicas.net_client {
            return self.home.hold_block(slot);
        }
        let joined = self.home.client_join(self.pid, NET_START_TIME, self.clients.owner_uid())?;
        match self.home.hold_block(joined.client) {
            Ok(block) => {
                self.replicas.net_client = Some(joined.client);
                Ok(block)
            }
            Err(error) => {
                self.home.client_leave(joined.client)?;
                Err(error)
            }
        }
    }

    /// Handles an event of the network fabric.
    pub(crate) fn net_event(&mut self, event: NetEvent, now_ms: u64, out: &mut Vec<Action>) {
        self.residency.set_now(now_ms);
        self.heed_lease(now_ms, out);
        match event {
            NetEvent::Opened { token, node, result } => {
                self.opened_elsewhere(token, &node, result, now_ms, out);
            }
            NetEvent::Loaded { origin, result } => self.loaded(origin, result, now_ms, out),
            NetEvent::Pages { token, result } => self.pages_came(token, result, out),
            NetEvent::Transferred { node, bytes, way, elapsed_us } => {
                self.transferred(&node, bytes, elapsed_us);
                self.reached_by(&node, way);
            }
            NetEvent::Resolved { node, at, section } => {
                let addresses = at.iter().map(ToString::to_string).collect();
                out.push(Action::Net(NetAction::Connect { node, addresses, section }));
            }
            NetEvent::TicketWanted { node, number } => self.want_ticket(&node, number, out),
            NetEvent::Restore { id } => self.residency.restore_soon(&self.home, id),
        }
        self.residency.take_jobs(out);
    }

    /// Does the work that is due.
    pub(super) fn tick_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let unrestored = self.residency.take_unrestored();
        if let Some(port) = &self.replicas.port {
            unrestored.into_iter().for_each(|(id, why)| port.readers.not_restored(id, why));
        }
        self.end_imports(now_ms, out);
        self.end_stalled_imports(now_ms, out);
        self.release_idle_lazy(now_ms, out);
        self.recall_replicas(now_ms, out);
        self.serve_deletes_in_debt(now_ms, out);
        for waiters in self.replicas.waiters() {
            for late in waiters.extract_if(.., |one| one.until_ms <= now_ms) {
                out.push(answer_to(late.session, late.seq, Ok(ReplyBody::Fetching)));
            }
        }
        let due: Vec<u64> = self.replicas.openings.keys().copied().collect();
        for token in due {
            let Some(opening) = self.replicas.openings.get_mut(&token) else { continue };
            let is_late = opening.deadline_ms <= now_ms;
            let nodes = opening.again.iter().filter(|(_, at_ms)| **at_ms <= now_ms);
            let nodes: Vec<String> = nodes.map(|(node, _)| node.clone()).collect();
            opening.again.retain(|_, at_ms| *at_ms > now_ms);
            for node in nodes {
                if is_late {
                    let fault = match opening.refusals.remove(&node) {
                        Some(lost @ NetFault::Lost(_)) => lost,
                        Some(NetFault::Busy(why)) => {
                            NetFault::Busy(format!("it was busy for {ROOM_MS_MAX} ms: {why}"))
                        }
                        _ => NetFault::Busy(format!("it was busy for {ROOM_MS_MAX} ms")),
                    };
                    let (what, cluster) = (opening.key.wish.to_string(), &self.cluster);
                    let error = cluster.unreachable_by_net(&node)(fault, &what);
                    opening.fault.get_or_insert(error);
                } else {
                    opening.left.insert(node.clone());
                    out.push(opening.key.open_at(token, node));
                }
            }
            self.end_late_opening(token, now_ms);
            self.settle_opening(token, now_ms, out);
        }
        self.ask_for_senders_again(now_ms, out);
        let waiting = self.replicas.loading.iter().filter(|(_, one)| !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.load_replica(origin, now_ms, out);
        }
        let leaving = self.replicas.leaving.iter();
        let late = leaving.flat_map(|(id, members)| {
            let is_late = |last: &LastNotice| last.again_at_ms.is_some_and(|at| at <= now_ms);
            let late = members.iter().filter(|(_, last)| is_late(last));
            late.map(|(member, _)| (*id, member.clone())).collect::<Vec<_>>()
        });
        let late = late.collect::<Vec<_>>();
        if !late.is_empty() {
            for (id, member) in late {
                self.invalidate_at_member(&member, id, now_ms, out);
            }
            self.settle_leaving(now_ms, out);
        }
    }
}
