//! Object lists of nodes whose memory cannot be mapped, page by page, and looks for some objects.

use farrow_net::frame::{OPEN_BYTES_MAX, Opened};
use farrow_store::{ClientSlot, NAME_BYTES_MAX};
use farrow_wire::{ReplyBody, WireError, WireTarget};

use super::transfers::release;
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::limits::check_limit;
use crate::protocol::net::query::NetQuery;
use crate::protocol::net::{NetAction, NetFault, listing};
use crate::protocol::state::NodeState;

/// Limit of pages requested at a time.
const LISTINGS_MAX: usize = 256;

impl NodeState {
    /// Asks another node for a page of its list. The answer follows later.
    pub(in crate::protocol) fn list_at(
        &mut self,
        context: RequestContext,
        node: String,
        prefix: String,
        from: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        check_limit("bytes of a prefix", prefix.len(), NAME_BYTES_MAX as usize)?;
        let namespace = self.namespace_name(context.slot)?;
        self.ask_for_items(context, node, &NetQuery::List { namespace, prefix, from }, out)
    }

    /// Asks another node which of these objects it has. The answer follows later.
    pub(in crate::protocol) fn find_at(
        &mut self,
        context: RequestContext,
        node: String,
        targets: Vec<WireTarget>,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let query = NetQuery::Find { namespace: self.namespace_name(context.slot)?, targets };
        check_limit("bytes of names to look for", query.encode().len(), OPEN_BYTES_MAX as usize)?;
        self.ask_for_items(context, node, &query, out)
    }

    fn namespace_name(&self, slot: ClientSlot) -> Result<String, WireError> {
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        Ok(namespace.options.name.clone())
    }

    fn ask_for_items(
        &mut self,
        context: RequestContext,
        node: String,
        query: &NetQuery,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        check_limit(
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
        self.replicas.listings.insert(token, context.reply_to());
        Ok(None)
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
                release(out, node, *hold);
                listing::decode(&opened.entry).map_err(NetFault::Other)
            }
            Err(fault) => Err(fault.clone()),
        };
        let body = body.map(ReplyBody::Listing);
        let body =
            body.map_err(|fault| unreachable(fault, &format!("list of objects at node {node}")));
        out.push(answer_to(waiter.session, waiter.seq, body));
        true
    }
}
