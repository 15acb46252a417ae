//! Imports: objects that clients of other nodes put here.
//!
//! Such a client cannot map this node's memory. It seals the object in the memory of its own node,
//! reserves a name here, and asks this node to bring the object. The object gets its id here.

use farrow_arrow::{DescriptorStamp, restamp};
use farrow_memory::Span;
use farrow_store::{
    ClientSlot, Home, METADATA_BYTES_MAX, Metadata, ObjectId, ObjectKind, ReplicaSeal, SpillHead,
    Target,
};
use farrow_wire::{Extent, ImportStep, ReplyBody, WAIT_MS_MAX, WireError};

use super::context::ReplicaContext;
use super::search::answer_all;
use super::state::{BroughtImport, Replicas};
use super::transfers::{
    FetchKey, FetchWaiter, Fetching, ImportAsk, ImportSeal, ImportTarget, Opening, STEP_MS_MAX,
};
use crate::protocol::SessionId;
use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::core::drain::outgoing::failpoint;
use crate::protocol::core::namespaces::full_name;
use crate::protocol::core::residency::CopyRoom;
use crate::protocol::limits::check_limit;
use crate::protocol::net::query::NetQuery;
use crate::protocol::node_key;

/// Objects that are imported at a time.
const IMPORTS_MAX: usize = 256;

/// Objects that one session imports at a time.
const IMPORTS_PER_SESSION_MAX: usize = 64;

/// The result of a step of an import.
#[derive(Debug)]
pub(in crate::protocol) enum ImportReply {
    /// This is the answer.
    Now(ReplyBody),
    /// The answer follows later, or once the node has sealed this.
    Later(Option<BroughtImport>),
}

impl Replicas {
    /// Brings an object of another node and makes it one of this node. `None`: the answer follows
    /// later.
    pub(in crate::protocol) fn import_for(
        &mut self,
        request: RequestContext,
        origin: ObjectId,
        step: ImportStep,
        wait_ms: u64,
        context: &mut ReplicaContext<'_>,
    ) -> Result<ImportReply, WireError> {
        let RequestContext { session, slot, seq, now_ms } = request;
        let until_ms = now_ms.saturating_add(wait_ms.min(WAIT_MS_MAX));
        let ask = ImportAsk { session, slot, seq, origin, step, until_ms };
        self.import(ask, context)
    }

    fn import(
        &mut self,
        ask: ImportAsk,
        context: &mut ReplicaContext<'_>,
    ) -> Result<ImportReply, WireError> {
        let ImportAsk { session, slot, seq, origin, step, until_ms } = ask;
        if step == ImportStep::Abandon {
            self.abandon_import(session, origin, context);
            return Ok(ImportReply::Now(ReplyBody::Done));
        }
        context.clients.check_writer(context.home, slot)?;
        let node = node_of_import(session, origin, context)?;
        let import = ImportTarget { session, slot, seal: seal_of(context.home, slot, step)? };
        let query = NetQuery::Id(origin.hi, origin.lo);
        let key = FetchKey::new(query, Extent::Whole)?;
        let waiter = FetchWaiter { key: key.clone(), session, seq, until_ms };
        // The client asks again while the object is on its way.
        let openings = self.openings.values_mut();
        let mut same = openings.filter(|one| one.key == key);
        if let Some(opening) =
            same.find(|one| one.import.as_ref().is_some_and(|it| it.is_of(&import)))
        {
            opening.import = Some(import);
            opening.waiters.push(waiter);
            return Ok(ImportReply::Later(None));
        }
        match self.loading.get_mut(&origin) {
            Some(loading) if loading.import.as_ref().is_some_and(|it| it.is_of(&import)) => {
                let is_to_stay = import.seal.is_none();
                loading.import = Some(import);
                if loading.is_brought && is_to_stay {
                    return Ok(ImportReply::Now(ReplyBody::Done));
                }
                loading.waiters.push(waiter);
                let is_brought = loading.is_brought;
                let brought = is_brought.then(|| self.import_brought(origin, context));
                return Ok(ImportReply::Later(brought.flatten()));
            }
            // The import of an earlier connection of the client ends with its transfer.
            Some(loading) if loading.import.is_some() && loading.is_invalidated => {
                return Ok(ImportReply::Now(ReplyBody::Fetching));
            }
            Some(_) => {
                return Err(WireError::Invalid(format!(
                    "object {origin} is being brought already"
                )));
            }
            None => {}
        }
        let process = context.clients.session(session).map(|one| one.peer);
        if let Some(id) = process.and_then(|by| self.imported.get(origin, by)) {
            return Ok(ImportReply::Now(ReplyBody::Fetched(Some(id.into()))));
        }
        check_seal(&import, context)?;
        self.check_imports(session)?;
        let token = self.token();
        context.out.push(key.open_at(token, node.clone()));
        let lost_ms = context.now_ms.saturating_add(context.cluster.net_patience_ms());
        let opening = Opening::new(key, vec![waiter], [node], context.now_ms, lost_ms);
        let opening = Opening { import: Some(import), ..opening };
        self.openings.insert(token, opening);
        Ok(ImportReply::Later(None))
    }

    fn check_imports(&self, session: SessionId) -> Result<(), WireError> {
        let openings = self.openings.values().filter_map(|one| one.import.as_ref());
        let loading = self.loading.values().filter_map(|one| one.import.as_ref());
        let (mut all, mut own) = (1, 1);
        for import in openings.chain(loading) {
            all += 1;
            own += usize::from(import.session == session);
        }
        check_limit("objects that a client imports", own, IMPORTS_PER_SESSION_MAX)?;
        check_limit("objects that are imported", all, IMPORTS_MAX)
    }

    /// All bytes of an import are in memory. `None`: it waits for its client to say what becomes of
    /// it.
    pub(super) fn import_brought(
        &mut self,
        origin: ObjectId,
        context: &mut ReplicaContext<'_>,
    ) -> Option<BroughtImport> {
        let loading = self.loading.get_mut(&origin)?;
        let target = loading.import.clone()?;
        (loading.is_brought, loading.brought_ms) = (true, context.now_ms);
        if target.seal.is_none() {
            let waiters = std::mem::take(&mut loading.waiters);
            answer_all(waiters, &Ok(ReplyBody::Done), context.out);
            return None;
        }
        Some(BroughtImport { origin, target })
    }

    /// Frees what was brought for a client that gives it up.
    fn abandon_import(
        &mut self,
        session: SessionId,
        origin: ObjectId,
        context: &mut ReplicaContext<'_>,
    ) {
        let is_its = |import: &Option<ImportTarget>| {
            import.as_ref().is_some_and(|import| import.session == session)
        };
        let wish = NetQuery::Id(origin.hi, origin.lo);
        self.openings.retain(|_, one| !is_its(&one.import) || one.key.wish != wish);
        let Some(loading) = self.loading.get_mut(&origin) else { return };
        if !is_its(&loading.import) {
            return;
        }
        loading.is_invalidated = true;
        // Otherwise it waits for room, or the transfer reports its end.
        if loading.is_brought || !loading.is_on_its_way {
            if loading.is_brought {
                context.abort_replica(origin);
            }
            self.end_load(origin, Err(WireError::Closing), context);
        }
    }

    /// Ends imports for sessions that have ended. Transfers under way report their end themselves.
    pub(super) fn end_imports(&mut self, context: &mut ReplicaContext<'_>) {
        let loading = self.loading.iter();
        let over = loading.filter(|(_, one)| one.import.is_some() && one.is_invalidated);
        let over = over.filter(|(_, one)| one.is_brought || !one.is_on_its_way);
        let over = over.map(|(origin, one)| (*origin, one.is_brought));
        for (origin, is_brought) in over.collect::<Vec<_>>() {
            if is_brought {
                context.abort_replica(origin);
            }
            self.end_load(origin, Err(WireError::Closing), context);
        }
    }

    /// Ends imports whose clients take no next step, so that clients that wait for the objects can
    /// fetch them. Such an import begins again with its next step.
    pub(super) fn end_stalled_imports(&mut self, context: &mut ReplicaContext<'_>) {
        let is_late =
            |one: &Fetching| one.step_until_ms().is_some_and(|until| until <= context.now_ms);
        let stalled = self.loading.iter().filter(|(_, one)| is_late(one));
        for origin in stalled.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            tracing::warn!(%origin, "an import ends: its client is silent, and readers wait");
            context.abort_replica(origin);
            let text =
                format!("no next step of the import of object {origin} for {STEP_MS_MAX} ms");
            self.end_load(origin, Err(WireError::NotMoved(text)), context);
        }
    }

    /// Memory for an import. A put may evict objects as any other one. An object that moves here may
    /// not: those that came before it, and this node's own, would be lost. `None`: memory is on its way.
    pub(super) fn room_for_import(
        &mut self,
        head: &SpillHead,
        slot: ClientSlot,
        is_put: bool,
        context: &mut ReplicaContext<'_>,
    ) -> Result<Option<Vec<Span>>, WireError> {
        let bytes = context.check_size(Home::restored_bytes(head))?;
        context.quota.allowance(context.home, slot, bytes, bytes)?;
        let room = CopyRoom { bytes, may_evict: is_put };
        let begin = |home: &mut Home| home.begin_import(head, slot);
        self.begin_with_room(head, room, begin, context)
    }

    /// Whether an import may be sealed now: its client still waits, and its name and quota allow it.
    /// Otherwise its memory is freed.
    pub(in crate::protocol) fn check_import(
        &self,
        import: &BroughtImport,
        context: &mut ReplicaContext<'_>,
    ) -> Result<(), WireError> {
        let BroughtImport { origin, target } = import;
        let checked = match context.clients.is_of(target.session, target.slot) {
            true => check_seal(target, context),
            false => Err(WireError::Closing),
        };
        if checked.is_err() {
            context.abort_replica(*origin);
        }
        checked
    }

    /// All bytes of an import are here: it is an object from here on.
    pub(in crate::protocol) fn seal_brought(
        &self,
        origin: ObjectId,
        import: &ImportTarget,
        context: &mut ReplicaContext<'_>,
    ) -> Result<ObjectId, WireError> {
        let wanted = import.seal.clone().unwrap_or_default();
        let missing = || WireError::NotFound { what: Target::Id(origin).to_string() };
        let loading = self.loading.get(&origin).ok_or_else(missing)?;
        let mut descriptor = loading.brought.descriptor.clone();
        let stamp = DescriptorStamp { region: context.home.uid().0, epoch: 0 };
        if loading.head.kind != ObjectKind::Bytes && !restamp(&mut descriptor, stamp) {
            let text = format!("a descriptor of {} B of object {origin}", descriptor.len());
            context.abort_replica(origin);
            return Err(WireError::Damaged(text));
        }
        let now_ns = context.home.now_ns();
        let metadata = wanted.metadata.as_ref().unwrap_or(&loading.brought.metadata);
        let seal = ReplicaSeal {
            name: wanted.name.as_deref(),
            namespace: loading.namespace,
            descriptor: &descriptor,
            descriptor_crc: crc32c::crc32c(&descriptor),
            metadata,
            metadata_crc: crc32c::crc32c(metadata),
            sealed_at_ns: if wanted.is_moved { loading.brought.sealed_at_ns } else { now_ns },
            importer: Some(import.slot),
        };
        let id = context.home.finish_replica(origin, &seal, now_ns).map_err(store_error)?;
        if wanted.is_moved {
            failpoint!("take.unpinned");
        }
        if wanted.is_pinned
            && let Err(error) = context.home.pin(Target::Id(id), true)
        {
            tracing::warn!(%id, %error, "an imported object is not pinned");
        }
        Ok(id)
    }
}

/// The node of an object that a client may have imported: its own.
fn node_of_import(
    session: SessionId,
    origin: ObjectId,
    context: &ReplicaContext<'_>,
) -> Result<String, WireError> {
    // Also of a node whose memory is mapped here: the client's node does not map this one's,
    // and its daemon keeps the object until this one has copied it.
    let Some(node) = context.cluster.member_with_region(origin.hi) else {
        let text = format!("object {origin} is not of a node that is reached by network");
        return Err(WireError::Invalid(text));
    };
    // This node may read more there than the client's node may elsewhere.
    let importer = context.clients.session(session).and_then(|one| one.peer.remote_client);
    if importer.is_none_or(|client| client.node != node_key(&node)) {
        let text = format!("object {origin} is of node {node}, not of the client's own");
        return Err(WireError::Denied(text));
    }
    Ok(node)
}

fn seal_of(
    home: &Home,
    slot: ClientSlot,
    step: ImportStep,
) -> Result<Option<ImportSeal>, WireError> {
    let ImportStep::Seal { name, metadata, is_pinned } = step else { return Ok(None) };
    let bytes = metadata.as_ref().map_or(0, Vec::len);
    check_limit("bytes of metadata", bytes, METADATA_BYTES_MAX as usize)?;
    if let Some(Err(error)) = metadata.as_deref().map(Metadata::decode) {
        return Err(WireError::Invalid(error.to_string()));
    }
    let name = name.as_deref().map(|name| full_name(home, slot, name)).transpose()?;
    Ok(Some(ImportSeal { name, metadata, is_pinned, is_moved: false }))
}

/// Whether the object could be sealed now.
fn check_seal(import: &ImportTarget, context: &mut ReplicaContext<'_>) -> Result<(), WireError> {
    let name = import.seal.as_ref().and_then(|seal| seal.name.as_deref());
    name.map_or(Ok(()), |name| context.cluster.check_reserved(context.home, name))?;
    context.quota.check_objects(context.home, import.slot, 1)
}
