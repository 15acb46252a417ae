//! What the audit log records: requests as they arrive, with the replies to them.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use farrow_store::ObjectId;
use farrow_wire::{
    BATCH_ITEMS_MAX, DrainStep, ImportStep, Reply, ReplyBody, Request, RequestBody, WireError,
    WireTarget,
};

use super::Server;
use crate::audit::{Actor, AuditItem, AuditLog, AuditRecord};
use crate::protocol::{NodeState, SessionId};

/// Limit on requests whose replies are awaited. Beyond it, those of ended connections are dropped,
/// then the oldest.
const AWAITED_MAX: usize = 1 << 14;

/// A request that the log records whatever becomes of it.
#[derive(Debug)]
struct AuditedRequest {
    action: &'static str,
    actor: Actor,
    /// One for each item of the reply, or one for the request.
    items: Vec<AuditItem>,
}

/// The audit log, and the requests that it awaits replies to.
#[derive(Debug)]
pub(super) struct Audit {
    log: AuditLog,
    awaited: BTreeMap<(SessionId, u64), AuditedRequest>,
    /// Objects and bytes that the node had evicted when it was last looked at.
    evicted: (u64, u64),
}

impl Audit {
    pub(super) fn new(log: AuditLog) -> Self {
        Self { log, awaited: BTreeMap::new(), evicted: (0, 0) }
    }

    /// Lines written and dropped since the start.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.log.totals()
    }

    fn push(&self, action: &'static str, actor: Option<Actor>, items: Vec<AuditItem>) {
        if !items.is_empty() {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let wall_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            self.log.push(AuditRecord { wall_ns, action, actor, items });
        }
    }

    /// Notes a request before it is handled: afterwards its object may not exist.
    fn on_request(&mut self, state: &NodeState, from: (SessionId, Option<&str>), ask: &Request) {
        let (session, node) = from;
        let Some((action, items)) = subject(state, &ask.body) else { return };
        let mut actor = actor_of(state, session, node);
        if let RequestBody::Hello(hello) = &ask.body {
            actor.namespace.clone_from(&hello.namespace);
        }
        if self.awaited.len() >= AWAITED_MAX {
            self.awaited.retain(|(session, _), _| state.is_open(*session));
            if self.awaited.len() >= AWAITED_MAX {
                self.awaited.pop_first();
            }
        }
        self.awaited.insert((session, ask.seq), AuditedRequest { action, actor, items });
    }

    /// Records a request once its reply is known.
    fn on_reply(&mut self, state: &NodeState, from: (SessionId, Option<&str>), reply: &Reply) {
        let (session, node) = from;
        let Some(awaited) = self.awaited.remove(&(session, reply.seq)) else {
            // Of other requests only refusals are recorded.
            if let Err(error) = &reply.body
                && is_refusal(error)
            {
                let item = AuditItem { error: error_of(error), ..AuditItem::default() };
                self.push("request", Some(actor_of(state, session, node)), vec![item]);
            }
            return;
        };
        let AuditedRequest { action, actor, mut items } = awaited;
        match &reply.body {
            Ok(ReplyBody::Sealed(results)) => {
                for (item, result) in items.iter_mut().zip(results) {
                    match result {
                        Ok(id) => item.id = Some(*id),
                        Err(error) => item.error = error_of(error),
                    }
                }
            }
            Ok(ReplyBody::Deleted(results)) => {
                for (item, result) in items.iter_mut().zip(results) {
                    item.error = result.as_ref().err().and_then(error_of);
                }
            }
            Ok(ReplyBody::Evicted(report)) => {
                // They are not recorded again as the node's own.
                self.evicted.0 = self.evicted.0.saturating_add(report.objects);
                self.evicted.1 = self.evicted.1.saturating_add(report.bytes);
                for item in &mut items {
                    (item.count, item.bytes) = (Some(report.objects), Some(report.bytes));
                }
            }
            Ok(ReplyBody::Fetched(Some(id))) => items.iter_mut().for_each(|it| it.id = Some(*id)),
            // Connections are not recorded, only refused ones.
            Ok(_) if action == "connect" => return,
            Ok(_) => {}
            Err(error) => items.iter_mut().for_each(|item| item.error = error_of(error)),
        }
        self.push(action, Some(actor), items);
    }

    /// Records objects that the node evicted by itself since the last call.
    fn on_turn(&mut self, state: &NodeState) {
        let now = state.evicted();
        let (objects, bytes) =
            (now.0.saturating_sub(self.evicted.0), now.1.saturating_sub(self.evicted.1));
        self.evicted = now;
        if objects > 0 {
            let (count, bytes) = (Some(objects), Some(bytes));
            let item = AuditItem { count, bytes, ..AuditItem::default() };
            self.push("evict", None, vec![item]);
        }
    }
}

/// The action of a request that is recorded whatever becomes of it, and its objects.
fn subject(state: &NodeState, body: &RequestBody) -> Option<(&'static str, Vec<AuditItem>)> {
    let named = |name: Option<String>| AuditItem { name, ..AuditItem::default() };
    let one = |name: &str| vec![named(Some(name.to_owned()))];
    // Too long to be served: one line says so.
    let many = |count: usize| vec![AuditItem { count: Some(count as u64), ..AuditItem::default() }];
    Some(match body {
        RequestBody::Seal { items } if items.len() > BATCH_ITEMS_MAX => {
            ("create", many(items.len()))
        }
        RequestBody::Delete { targets } if targets.len() > BATCH_ITEMS_MAX => {
            ("delete", many(targets.len()))
        }
        RequestBody::Seal { items } => {
            let item = |item: &farrow_wire::SealItem| AuditItem {
                bytes: Some(item.size),
                ..named(item.name.clone())
            };
            ("create", items.iter().map(item).collect())
        }
        RequestBody::Import { step: ImportStep::Seal { name, .. }, .. } => {
            ("create", vec![named(name.clone())])
        }
        RequestBody::Delete { targets } => {
            let item = |target: &WireTarget| match target {
                WireTarget::Name(name) => named(Some(name.clone())),
                WireTarget::Id(hi, lo) => {
                    let name = state.home().name_of_object(ObjectId { hi: *hi, lo: *lo });
                    let name = name.map(|full| farrow_store::own_name(&full).to_owned());
                    AuditItem { id: Some((*hi, *lo)), ..named(name) }
                }
            };
            ("delete", targets.iter().map(item).collect())
        }
        RequestBody::Evict { bytes } => {
            ("evict", vec![AuditItem { bytes: Some(*bytes), ..AuditItem::default() }])
        }
        RequestBody::Hello(_) => ("connect", vec![AuditItem::default()]),
        RequestBody::CreateNamespace(spec) => ("create_namespace", one(&spec.name)),
        RequestBody::DropNamespace { name } => ("drop_namespace", one(name)),
        RequestBody::SetRule(rule) => {
            ("grant", one(&format!("{}:{}:{}", rule.namespace, rule.node, rule.rights)))
        }
        RequestBody::RemoveRule { namespace, node } => {
            ("drop_grant", one(&format!("{namespace}:{node}")))
        }
        RequestBody::Set(settings) => {
            ("set", settings.iter().map(|setting| named(Some(format!("{setting:?}")))).collect())
        }
        RequestBody::Drain(DrainStep::Begin) => ("drain", one("begin")),
        RequestBody::Drain(DrainStep::Cancel) => ("drain", one("cancel")),
        RequestBody::Drain(
            DrainStep::Move { id: (hi, lo), .. } | DrainStep::MoveAs { id: (hi, lo), .. },
        ) => {
            let name = state.home().name_of_object(ObjectId { hi: *hi, lo: *lo });
            let name = name.map(|full| farrow_store::own_name(&full).to_owned());
            ("move", vec![AuditItem { id: Some((*hi, *lo)), ..named(name) }])
        }
        RequestBody::Forget { node } => ("forget", one(node)),
        RequestBody::Shutdown => ("stop", vec![AuditItem::default()]),
        _ => return None,
    })
}

fn actor_of(state: &NodeState, session: SessionId, node: Option<&str>) -> Actor {
    let mut actor = Actor { node: node.map(str::to_owned), ..Actor::default() };
    if let Some((peer, namespace)) = state.who_is(session) {
        (actor.pid, actor.uid, actor.namespace) = (peer.pid, peer.uid, namespace);
    }
    actor
}

/// Whether an error is about permissions or quotas.
fn is_refusal(error: &WireError) -> bool {
    use WireError as Error;
    matches!(error, Error::Denied(_) | Error::NotGranted { .. } | Error::QuotaExceeded { .. })
}

fn error_of(error: &WireError) -> Option<(&'static str, String)> {
    Some((error.kind(), error.to_string()))
}

impl Server {
    pub(super) fn audit_request(&mut self, session: SessionId, request: &Request) {
        let Self { audit: Some(audit), state, remote_sessions, .. } = self else { return };
        let remote = remote_sessions.as_ref().and_then(|all| all.remote_clients.get(&session));
        audit.on_request(state, (session, remote.map(|one| one.node.as_str())), request);
    }

    pub(super) fn audit_reply(&mut self, session: SessionId, reply: &Reply) {
        let Self { audit: Some(audit), state, remote_sessions, .. } = self else { return };
        let remote = remote_sessions.as_ref().and_then(|all| all.remote_clients.get(&session));
        audit.on_reply(state, (session, remote.map(|one| one.node.as_str())), reply);
    }

    /// Records what the node itself does.
    pub(super) fn audit_node(&self, action: &'static str) {
        if let Some(audit) = &self.audit {
            audit.push(action, None, vec![AuditItem::default()]);
        }
    }

    pub(super) fn audit_turn(&mut self) {
        if let Some(audit) = &mut self.audit {
            audit.on_turn(&self.state);
        }
    }
}
