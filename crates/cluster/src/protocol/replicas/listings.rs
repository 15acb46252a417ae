//! Object lists of nodes whose memory cannot be mapped, page by page, and looks for some objects.

use farrow_net::frame::{OPEN_BYTES_MAX, Opened};
use farrow_store::{ClientSlot, NAME_BYTES_MAX};
use farrow_wire::{ReplyBody, WireError, WireTarget};

use super::transfers::DeleteWaiter;
use crate::net::query::NetQuery;
use crate::net::{NetAction, NetFault, listing};
use crate::protocol::action::answer_to;
use crate::protocol::convert::{limit, store_error};
use crate::protocol::state::NodeState;
use crate::protocol::{Action, SessionId};

/// Limit of pages requested at a time.
const LISTINGS_MAX: usize = 256;

impl NodeState {
    /// Requests a page of another node's list for a client. The answer follows later.
    pub(in crate::protocol) fn list_at(
        &mut self,
        (session, seq): (SessionId, u64),
        slot: ClientSlot,
        (node, prefix, from): (String, String, u64),
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        limit("bytes of a prefix", prefix.len(), NAME_BYTES_MAX as usize)?;
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        let namespace = namespace.options.name.clone();
        let query = NetQuery::List { namespace, prefix, from };
        self.ask_for_items((session, seq), node, &query, out)
    }

    /// Looks for objects at another node, for a client. The answer follows later.
    pub(in crate::protocol) fn find_at(
        &mut self,
        asker: (SessionId, u64),
        slot: ClientSlot,
        (node, targets): (String, Vec<WireTarget>),
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        let namespace = namespace.options.name.clone();
        let query = NetQuery::Find { namespace, targets };
        limit("bytes of names to look for", query.encode().len(), OPEN_BYTES_MAX as usize)?;
        self.ask_for_items(asker, node, &query, out)
    }

    fn ask_for_items(
        &mut self,
        (session, seq): (SessionId, u64),
        node: String,
        query: &NetQuery,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        limit(
            "lists that are asked for at other nodes",
            self.replicas.listings.len() + 1,
            LISTINGS_MAX,
        )?;
        if self.cluster.net_region_of(&node).is_none() {
            return Err(self.cluster.not_by_net(&node));
        }
        let token = self.replicas.token();
        let want = query.encode();
        out.push(Action::Net(NetAction::Open { token, node, want, part: None }));
        self.replicas.listings.insert(token, DeleteWaiter { session, seq });
        Ok(())
    }

    /// Handles the result of a request for a page. `false`: the token is not that of a list.
    pub(super) fn page_came(
        &mut self,
        token: u64,
        node: &str,
        result: &Result<(u64, Opened), NetFault>,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(waiter) = self.replicas.listings.remove(&token) else { return false };
        let unreachable = self.cluster.unreachable_by_net(node);
        let body = match result {
            Ok((hold, opened)) => {
                out.push(Action::Net(NetAction::Release { node: node.to_owned(), hold: *hold }));
                listing::decode(&opened.entry).map_err(NetFault::Other)
            }
            Err(fault) => Err(fault.clone()),
        };
        let body = body.map(ReplyBody::Listing);
        let body = body.map_err(|fault| unreachable(fault, &format!("the list of node {node}")));
        out.push(answer_to(waiter.session, waiter.seq, body));
        true
    }
}
