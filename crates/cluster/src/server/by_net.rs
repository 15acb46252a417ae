//! The network fabric in the event loop.

use farrow_net::source::Member;

use super::Server;
use crate::net::NetAction;
use crate::protocol::Action;
use crate::protocol::cluster::{Answer, answer_peer};

impl Server {
    /// What happened in the network fabric, a limited part of it in one turn.
    pub(super) fn take_net_events(&mut self, actions: &mut Vec<Action>) {
        let now_ms = self.now_ms();
        let Some(net) = &self.net else { return };
        let (events, has_more) = net.events();
        for event in events {
            self.state.net_event(event, now_ms, actions);
        }
        self.has_net_events = has_more;
    }

    pub(super) fn perform_by_net(&mut self, action: NetAction) {
        match action {
            NetAction::IssueTicket { token, node, incarnation } => {
                let answer = self.issue_ticket(Member { name: node, incarnation });
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

    /// A ticket for a connection of a member. The first one takes a place among the clients, by which
    /// threads hold objects for other nodes.
    fn issue_ticket(&mut self, member: Member) -> Result<[u8; 32], String> {
        let Some(net) = &self.net else {
            return Err("this node has no data server".to_owned());
        };
        if !net.is_ready() {
            let block = self.state.join_net().map_err(|error| error.to_string())?;
            net.hold_by(block)?;
        }
        net.issue_ticket(&member)
    }
}
