//! The network fabric in the event loop.

use farrow_net::source::MemberLife;
use farrow_wire::{BootTime, Reply, ReplyBody, WireError, awake_ns};

use super::Server;
use crate::protocol::cluster::Answer;
use crate::protocol::net::NetAction;
use crate::protocol::{Action, SessionId, answer_peer};

const NS_IN_MS: u64 = 1_000_000;

/// A lease extension shorter than this is not published.
const LEASE_GRAIN_NS: u64 = 20 * NS_IN_MS;

impl Server {
    /// Handles a limited number of events of the network fabric in one turn.
    pub(super) fn take_net_events(&mut self, actions: &mut Vec<Action>) {
        let Some(net) = &self.net else { return };
        let (events, has_more) = net.events();
        for event in events {
            let now_ms = self.now_ms();
            self.state.net_event(event, now_ms, actions);
        }
        self.has_net_events = has_more;
    }

    /// Counts what was brought for page faults without this loop.
    pub(super) fn count_faulted_bytes(&mut self) {
        if let Some(net) = &self.net {
            self.state.count_pages(net.take_faulted_bytes());
        }
    }

    /// Publishes the end of this node's lease. Clients read replicas by loads until then, even
    /// while the daemon is stopped, and no longer.
    pub(super) fn publish_lease(&mut self) {
        // Read before the rest of the lease is: this process may be stopped in between.
        let (now, now_awake_ns) = (BootTime::now(), awake_ns());
        let now_ms = now.ms_since(self.started);
        let Some(left_ms) = self.state.replicas_last_ms(now_ms) else { return };
        let end = |now_ns: u64| match left_ms {
            0 => 0,
            left_ms => now_ns.saturating_add(left_ms.saturating_mul(NS_IN_MS)),
        };
        let until_ns = end(now.as_nanos());
        // An end slightly before that of the lease is safe, so not every turn publishes.
        let is_near = until_ns.abs_diff(self.replicas_until_ns) < LEASE_GRAIN_NS;
        if until_ns < self.replicas_until_ns || !is_near {
            self.replicas_until_ns = until_ns;
            self.state.set_replicas_until(until_ns, end(now_awake_ns));
        }
    }

    pub(super) fn perform_by_net(&mut self, action: NetAction) {
        match action {
            NetAction::IssueTicket { token, node, incarnation, life } => {
                let answer = self.issue_ticket(&MemberLife { name: node, incarnation }, life);
                let answer = answer.map_or_else(Answer::No, Answer::Ticket);
                self.perform(vec![answer_peer(token, &answer)]);
            }
            action => {
                if let Some(net) = &mut self.net {
                    net.perform(action);
                }
            }
        }
    }

    /// Sends a client the descriptors of a file for the pages of an object.
    pub(super) fn send_file(&mut self, session: SessionId, mut reply: Reply, file: u64) {
        let Some(connection) = self.connections.get_mut(&session) else { return };
        let net = self.net.as_mut().ok_or_else(|| "this node has no data server".to_owned());
        let is_same_user = connection.identity.uid == rustix::process::geteuid().as_raw();
        let opened = net.and_then(|net| {
            let mut descriptors = net.file_descriptors(file)?;
            let socket = is_same_user.then(|| net.serve_faults(session, file));
            match (socket, &mut reply.body) {
                (Some(Ok(socket)), Ok(ReplyBody::Lazy(object))) => {
                    object.is_served = true;
                    descriptors.insert(1, socket);
                }
                (Some(Err(why)), _) => {
                    tracing::debug!(why, "a client serves its page faults itself")
                }
                _ => {}
            }
            Ok(descriptors)
        });
        match opened {
            Ok(descriptors) => connection.file = descriptors,
            Err(why) => reply.body = Err(WireError::Invalid(why)),
        }
        connection.is_closing |= reply.body.is_err();
        if let Err(error) = connection.queue(&reply, reply.body.is_ok()) {
            tracing::error!(session = session.0, %error, "a reply exceeds the limit of a message");
            connection.is_closing = true;
        }
        self.touched.insert(session);
    }

    /// Issues a ticket for a connection of a member. The first ticket takes a client slot, by which
    /// threads hold objects for other nodes.
    fn issue_ticket(&mut self, member: &MemberLife, life: u64) -> Result<[u8; 32], String> {
        self.join_net()?;
        let net = self.net.as_ref().ok_or("this node has no data server")?;
        let ticket = net.issue_ticket(member, life)?;
        // Those that there are serve it as well, until all are in use.
        if let Err(why) = self.add_hold_blocks() {
            tracing::warn!(
                %member, why,
                "other nodes can hold fewer objects than the limit allows"
            );
        }
        Ok(ticket)
    }

    /// Takes that client slot, unless it is taken already.
    pub(super) fn join_net(&mut self) -> Result<(), String> {
        match self.net.as_ref().is_some_and(|net| !net.is_ready()) {
            true => self.add_hold_blocks(),
            false => Ok(()),
        }
    }

    /// Takes hold blocks until each member that reads here may hold as many objects as one member may.
    fn add_hold_blocks(&mut self) -> Result<(), String> {
        while let Some(net) = self.net.as_ref().filter(|net| net.needs_hold_block()) {
            let block = self.state.net_hold_block().map_err(|error| error.to_string())?;
            net.add_hold_block(block)?;
        }
        Ok(())
    }
}
