//! Object lists of nodes whose memory cannot be mapped, page by page, and looks for some objects.

use farrow_net::frame::{OPEN_BYTES_MAX, Opened};
use farrow_store::{ClientSlot, Home, NAME_BYTES_MAX};
use farrow_wire::{ReplyBody, WireError, WireTarget};

use super::context::ReplicaContext;
use super::state::Replicas;
use super::transfers::release;
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::limits::check_limit;
use crate::protocol::net::query::NetQuery;
use crate::protocol::net::{NetAction, NetFault, listing};

/// Limit of pages requested at a time.
const LISTINGS_MAX: usize = 256;

impl Replicas {
    /// Asks another node for a page of its list. The answer follows later.
    pub(in crate::protocol) fn list_at(
        &mut self,
        request: RequestContext,
        node: String,
        prefix: String,
        from: u64,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        check_limit("bytes of a prefix", prefix.len(), NAME_BYTES_MAX as usize)?;
        let namespace = namespace_name(context.home, request.slot)?;
        let query = NetQuery::List { namespace, prefix, from };
        self.ask_for_items(request, node, &query, context)
    }

    /// Asks another node which of these objects it has. The answer follows later.
    pub(in crate::protocol) fn find_at(
        &mut self,
        request: RequestContext,
        node: String,
        targets: Vec<WireTarget>,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let query =
            NetQuery::Find { namespace: namespace_name(context.home, request.slot)?, targets };
        check_limit("bytes of names to look for", query.encode().len(), OPEN_BYTES_MAX as usize)?;
        self.ask_for_items(request, node, &query, context)
    }

    fn ask_for_items(
        &mut self,
        request: RequestContext,
        node: String,
        query: &NetQuery,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        check_limit(
            "lists that are asked for at other nodes",
            self.listings.len() + 1,
            LISTINGS_MAX,
        )?;
        if context.cluster.net_region_of(&node).is_none() {
            return Err(context.cluster.not_by_net(&node));
        }
        let token = self.token();
        let want = query.encode();
        context.out.push(Action::Net(NetAction::Open { token, node, want, part: None }));
        self.listings.insert(token, request.reply_to());
        Ok(None)
    }

    /// Handles the result of a request for a page. `false`: the token is not that of a list.
    pub(super) fn page_came(
        &mut self,
        token: u64,
        node: &str,
        result: &Result<(u64, Opened), NetFault>,
        context: &mut ReplicaContext<'_>,
    ) -> bool {
        let Some(waiter) = self.listings.remove(&token) else { return false };
        let unreachable = context.cluster.unreachable_by_net(node);
        let body = match result {
            Ok((hold, opened)) => {
                release(context.out, node, *hold);
                listing::decode(&opened.entry).map_err(NetFault::Other)
            }
            Err(fault) => Err(fault.clone()),
        };
        let body = body.map(ReplyBody::Listing);
        let body =
            body.map_err(|fault| unreachable(fault, &format!("list of objects at node {node}")));
        context.out.push(answer_to(waiter.session, waiter.seq, body));
        true
    }
}

fn namespace_name(home: &Home, slot: ClientSlot) -> Result<String, WireError> {
    let namespace = home.namespace_of(slot).map_err(store_error)?;
    Ok(namespace.options.name.clone())
}
