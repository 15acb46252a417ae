//! Objects of other nodes whose pages are brought as clients read them.
//!
//! Such an object is held at its home, and its bytes go into a sparse file of this node, which the
//! network fabric keeps ([`crate::net`]). Each client that reads it has a connection of its own,
//! which gets the file and asks for ranges of it. The object is released some time after the last
//! of these connections has ended.
//!
//! The bytes of a file never change, and its memory is used for nothing else. So a client that has
//! it mapped never reads wrong bytes there, whatever ends: this daemon, the home, or the object.

use std::collections::BTreeSet;
use std::ops::Range;

use farrow_memory::{Length, Offset, Span};
use farrow_store::Target;
use farrow_wire::{
    Extent, LazyBlock, LazyObject, NoRoom, OpenLazy, Reply, ReplyBody, WAIT_MS_MAX, WireError,
    WireTarget,
};

use super::context::ReplicaContext;
use super::lazy_objects::{Lazy, LazyObjects, PagesWaiter};
use super::search::{LocalReplica, answer_all, fetched};
use super::state::Replicas;
use super::transfers::{FetchKey, FetchWaiter, ObjectAtHome, Opening, release, wish_of};
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::context::ReplyTo;
use crate::protocol::limits::check_limit;
use crate::protocol::net::query::NetQuery;
use crate::protocol::net::{HOLDS_PER_MEMBER_MAX, NetAction, NetFault};

/// Limit of these objects. Each has a file.
const LAZY_OBJECTS_MAX: usize = 256;

/// Limit of those of one home. Each keeps one of the holds that the home lends to this node, and other
/// fetches need some.
const LAZY_OBJECTS_OF_HOME_MAX: usize = HOLDS_PER_MEMBER_MAX / 2;

/// Limit of ranges that one connection waits for.
const PAGES_WAITING_MAX: usize = 64;

impl Replicas {
    /// Opens an object whose pages are brought one by one, by its full name or id, for a connection
    /// that is used for nothing else. `None`: the answer follows later.
    pub(in crate::protocol) fn open_lazy(
        &mut self,
        to: ReplyTo,
        target: &WireTarget,
        open: &OpenLazy,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let ReplyTo { session, seq } = to;
        let wish = wish_of(target);
        let is_current = self.are_current(context.cluster, context.now_ms);
        let known = self.lazy.known(&wish).filter(|_| is_current);
        if let Some(file) = known {
            self.attach_lazy(file, [to], context);
            return Ok(None);
        }
        let key = FetchKey::new(wish, Extent::Lazy { is_again: open.is_again })?;
        let until_ms = context.now_ms.saturating_add(open.wait_ms.min(WAIT_MS_MAX));
        self.fetch(FetchWaiter { key, session, seq, until_ms }, context)
    }

    /// An object was opened for its pages.
    pub(super) fn begin_lazy(
        &mut self,
        opening: Opening,
        found: ObjectAtHome,
        context: &mut ReplicaContext<'_>,
    ) {
        let ObjectAtHome { node, hold, opened, brought, head } = found;
        let origin = head.id;
        let Opening { key, waiters, late, .. } = opening;
        let waiters: Vec<_> = waiters.into_iter().chain(late).collect();
        let waiting: Vec<_> = waiters.iter().map(FetchWaiter::reply_to).collect();
        let bytes: u64 = opened.blocks.iter().map(|block| block.length.0).sum();
        let is_again = key.extent == Extent::Lazy { is_again: true };
        let whole = self.replica_of(origin, None, context.home).filter(|_| !is_again);
        if let Some(whole) = whole.map(LocalReplica::Whole) {
            release(context.out, node, hold);
            return answer_all(waiters, &Ok(fetched(Some(whole))), context.out);
        }
        if let Some(file) = self.lazy.known(&NetQuery::Id(origin.hi, origin.lo)) {
            release(context.out, node, hold);
            return self.attach_lazy(file, waiting, context);
        }
        let room = self.hold_for_lazy(&node, context);
        if let Err(error) = room.and_then(|()| self.room_for_lazy(bytes, context)) {
            release(context.out, node, hold);
            return answer_all(waiters, &Err(error), context.out);
        }
        let object = LazyObject {
            id: origin.into(),
            kind: head.kind.as_u8(),
            bytes: head.size.0,
            blocks: blocks_of(&opened.blocks, &head.origins),
            descriptor: brought.descriptor,
            descriptor_crc: brought.descriptor_crc,
            is_served: false,
        };
        let (file, blocks) = (self.token(), opened.blocks);
        let (at, of_file) = (node.clone(), blocks.clone());
        let open = NetAction::OpenFile { file, key: origin.lo, node: at, hold, blocks: of_file };
        context.out.push(Action::Net(open));
        let lazy = Lazy {
            node,
            hold,
            origin,
            wish: key.wish,
            blocks,
            bytes,
            object,
            users: BTreeSet::new(),
            until_ms: Some(context.now_ms),
            is_current: true,
        };
        self.lazy.all.insert(file, lazy);
        self.fetched_total += 1;
        self.attach_lazy(file, waiting, context);
    }

    /// Ensures that one more object may keep a hold at its home.
    fn hold_for_lazy(
        &mut self,
        home: &str,
        context: &mut ReplicaContext<'_>,
    ) -> Result<(), WireError> {
        if self.lazy.count_of(home) >= LAZY_OBJECTS_OF_HOME_MAX {
            release_lazy(self.lazy.take_idle(u64::MAX), context.out);
        }
        let count = self.lazy.count_of(home) + 1;
        let what = format!("objects of node {home:?} with pages on demand");
        check_limit(&what, count, LAZY_OBJECTS_OF_HOME_MAX)
    }

    /// Ensures that all pages of one more object have room, so that no fault fails for lack of it.
    fn room_for_lazy(
        &mut self,
        bytes: u64,
        context: &mut ReplicaContext<'_>,
    ) -> Result<(), WireError> {
        let capacity = context.home.layout().heap.length.0;
        let max = self.bytes_max.map_or(capacity, |max| max.min(capacity));
        if self.lazy.bytes().saturating_add(bytes) > max || self.lazy.all.len() >= LAZY_OBJECTS_MAX
        {
            let idle = self.lazy.take_idle(u64::MAX);
            release_lazy(idle, context.out);
        }
        self.release_idle_lazy(context);
        check_limit(
            "objects of other nodes with pages on demand",
            self.lazy.all.len() + 1,
            LAZY_OBJECTS_MAX,
        )?;
        let used = self.lazy.bytes();
        if used.saturating_add(bytes) <= max {
            return Ok(());
        }
        let free = max.saturating_sub(used);
        Err(WireError::NoRoom(NoRoom {
            what: "pages on demand of other nodes' objects (--cache, or the node's memory)".into(),
            requested: bytes,
            free,
            largest: free,
            used,
            waiting: 0,
            waited_ms: 0,
        }))
    }

    fn attach_lazy(
        &mut self,
        file: u64,
        users: impl IntoIterator<Item = ReplyTo>,
        context: &mut ReplicaContext<'_>,
    ) {
        let LazyObjects { all, files, .. } = &mut self.lazy;
        let Some(lazy) = all.get_mut(&file) else { return };
        for ReplyTo { session, seq } in users {
            files.insert(session, file);
            lazy.users.insert(session);
            lazy.until_ms = None;
            let body = Ok(ReplyBody::Lazy(Box::new(lazy.object.clone())));
            context.out.push(Action::SendFile { session, reply: Reply { seq, body }, file });
        }
    }

    /// Brings the bytes of an object that lie in a range of its file. `None`: the answer follows.
    pub(in crate::protocol) fn bring_pages(
        &mut self,
        to: ReplyTo,
        wanted: Range<u64>,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let none = || WireError::Invalid("this connection has no object".into());
        let ReplyTo { session, seq } = to;
        let file = *self.lazy.files.get(&session).ok_or_else(none)?;
        let lazy = self.lazy.all.get(&file).ok_or_else(none)?;
        let length = wanted.end.saturating_sub(wanted.start);
        let wanted = Span::new(Offset(wanted.start), Length(length));
        let ranges = lazy.blocks.iter().filter_map(|block| block.intersection(wanted));
        let ranges: Vec<Span> = ranges.filter(|range| !range.is_empty()).collect();
        if ranges.is_empty() {
            return Ok(Some(ReplyBody::Done));
        }
        let (node, hold) = (lazy.node.clone(), lazy.hold);
        let waiting = self.lazy.waiting.values();
        let waiting = waiting.filter(|one| one.session == session).count();
        check_limit("ranges of pages that a client waits for", waiting + 1, PAGES_WAITING_MAX)?;
        let token = self.token();
        self.lazy.waiting.insert(token, PagesWaiter { session, seq, file });
        context.out.push(Action::Net(NetAction::Pages { token, file, node, hold, ranges }));
        Ok(None)
    }

    /// Handles the end of a transfer of pages: its new bytes, or why some are missing.
    pub(in crate::protocol) fn pages_came(
        &mut self,
        token: u64,
        result: Result<u64, NetFault>,
        context: &mut ReplicaContext<'_>,
    ) {
        self.fetched_bytes_total += result.as_ref().copied().unwrap_or_default();
        let Some(waiter) = self.lazy.waiting.remove(&token) else { return };
        let PagesWaiter { session, seq, file } = waiter;
        let Some(lazy) = self.lazy.all.get_mut(&file) else { return };
        let body = result.map(|_| ReplyBody::Done).map_err(|fault| {
            // The hold may have ended at the home. A later open makes another one.
            lazy.is_current = false;
            let unreachable = context.cluster.unreachable_by_net(&lazy.node);
            unreachable(fault, &Target::Id(lazy.origin).to_string())
        });
        context.out.push(answer_to(session, seq, body));
    }

    /// Releases the objects that are unused for a while.
    pub(super) fn release_idle_lazy(&mut self, context: &mut ReplicaContext<'_>) {
        release_lazy(self.lazy.take_idle(context.now_ms), context.out);
    }
}

fn release_lazy(idle: Vec<(u64, Lazy)>, out: &mut Vec<Action>) {
    for (file, Lazy { node, hold, .. }) in idle {
        out.push(Action::Net(NetAction::CloseFile { file }));
        release(out, node, hold);
    }
}

fn blocks_of(blocks: &[Span], origins: &[Span]) -> Vec<LazyBlock> {
    let block = |(block, origin): (&Span, &Span)| LazyBlock {
        origin: origin.offset.0,
        offset: block.offset.0,
        length: block.length.0,
    };
    blocks.iter().zip(origins).map(block).collect()
}
