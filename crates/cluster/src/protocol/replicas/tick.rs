//! The network fabric of the replicas, and what is due at a time.

use std::sync::Arc;

use farrow_memory::Span;
use farrow_store::{Home, ObjectId, StoreError};
use farrow_wire::ReplyBody;

use super::context::ReplicaContext;
use super::state::{Port, Replicas};
use super::transfers::ROOM_MS_MAX;
use crate::protocol::action::answer_to;
use crate::protocol::net::{NetFault, NetReaders};

/// Start time in the client record of the threads that read for other nodes: no process has this
/// one. The record is in the region, so that the next incarnation finds it.
const NET_START_TIME: u64 = 0;

impl Replicas {
    /// Attaches the network fabric. `bytes_max` limits the memory of replicas.
    pub(in crate::protocol) fn attach(
        &mut self,
        readers: Arc<dyn NetReaders>,
        kind: &'static str,
        bytes_max: Option<u64>,
        home: &Home,
    ) {
        self.port = Some(Port { readers, kind });
        self.bytes_max = bytes_max;
        // An earlier incarnation created this record once another node read from it by network.
        self.is_new_life = home.clients().any(|one| one.start_time == NET_START_TIME);
    }

    /// Joins as a client for the threads that read for other nodes, unless it has; returns one more
    /// hold block. The threads are of the process `pid` of user `uid`.
    pub(in crate::protocol) fn hold_block(
        &mut self,
        home: &mut Home,
        pid: u32,
        uid: u32,
    ) -> Result<Span, StoreError> {
        if let Some(slot) = self.net_client {
            return home.hold_block(slot);
        }
        let joined = home.client_join(pid, NET_START_TIME, uid)?;
        match home.hold_block(joined.client) {
            Ok(block) => {
                self.net_client = Some(joined.client);
                Ok(block)
            }
            Err(error) => {
                home.client_leave(joined.client)?;
                Err(error)
            }
        }
    }

    /// Ends imports that are over and releases what is unused.
    pub(in crate::protocol) fn tick_ends(&mut self, context: &mut ReplicaContext<'_>) {
        let unrestored = context.residency.take_unrestored();
        if let Some(port) = &self.port {
            unrestored.into_iter().for_each(|(id, why)| port.readers.not_restored(id, why));
        }
        self.end_imports(context);
        self.end_stalled_imports(context);
        self.release_idle_lazy(context);
        self.recall_replicas(context);
    }

    /// Goes on with searches and questions that are due.
    pub(in crate::protocol) fn tick_searches(&mut self, context: &mut ReplicaContext<'_>) {
        let now_ms = context.now_ms;
        for waiters in self.waiters() {
            for late in waiters.extract_if(.., |one| one.until_ms <= now_ms) {
                context.out.push(answer_to(late.session, late.seq, Ok(ReplyBody::Fetching)));
            }
        }
        let due: Vec<u64> = self.openings.keys().copied().collect();
        for token in due {
            self.open_later(token, context);
            self.end_late_opening(token, context);
            self.settle_opening(token, context);
        }
        self.ask_for_senders_again(context);
    }

    /// Asks nodes again that were busy or lost, unless they were for too long.
    fn open_later(&mut self, token: u64, context: &mut ReplicaContext<'_>) {
        let now_ms = context.now_ms;
        let Some(opening) = self.openings.get_mut(&token) else { return };
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
                let what = opening.key.wish.to_string();
                let error = context.cluster.unreachable_by_net(&node)(fault, &what);
                opening.fault.get_or_insert(error);
            } else {
                opening.left.insert(node.clone());
                context.out.push(opening.key.open_at(token, node));
            }
        }
    }

    /// The objects whose transfers have not begun.
    pub(in crate::protocol) fn to_load(&self) -> Vec<ObjectId> {
        let waiting = self.loading.iter().filter(|(_, one)| !one.is_on_its_way);
        waiting.map(|(origin, _)| *origin).collect()
    }
}
