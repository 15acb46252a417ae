//! What the audit log records: requests as they arrive, with the replies to them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use farrow_store::{NAME_BYTES_MAX, ObjectId};
use farrow_wire::{
    BATCH_ITEMS_MAX, DrainStep, ImportStep, Reply, ReplyBody, Request, RequestBody, SETTINGS_MAX,
    WireError, WireTarget,
};

use super::Server;
use crate::audit::{Actor, AuditItem, AuditLog, AuditRecord};
use crate::protocol::{NodeState, SessionId};

/// Limit on requests whose replies are awaited, and on the bytes of what is to be recorded of them.
/// Beyond it, the first ones are recorded without their results.
const AWAITED_MAX: (usize, usize) = (1 << 16, 16 << 20);

/// Longest reason of a line in bytes: a sentence with a name and some numbers.
const REASON_BYTES_MAX: usize = 512;

/// A request that the log records whatever becomes of it.
#[derive(Debug)]
struct AuditedRequest {
    action: &'static str,
    actor: Actor,
    /// One for each item of the reply, or one for the request.
    items: Vec<AuditItem>,
}

impl AuditedRequest {
    fn bytes(&self) -> usize {
        self.items.iter().map(AuditItem::bytes).sum()
    }
}

/// The requests under way of one client with one number, which the client chose.
#[derive(Debug)]
struct NumberedRequests {
    /// The number of replies that follow.
    replies: u64,
    /// `None`: the request is not recorded unless it is refused, or has been recorded.
    request: Option<AuditedRequest>,
}

/// The audit log, and the requests that it awaits replies to.
#[derive(Debug)]
pub(super) struct Audit {
    log: AuditLog,
    awaited: BTreeMap<(SessionId, u64), NumberedRequests>,
    /// Bytes of the requests in it.
    awaited_bytes: usize,
    /// Clients that have disconnected in this turn, of which some replies may not be recorded yet.
    closed: Vec<SessionId>,
    /// Objects and bytes that the node had evicted when it was last looked at.
    evicted: (u64, u64),
}

impl Audit {
    pub(super) fn new(log: AuditLog) -> Self {
        let (awaited, closed) = (BTreeMap::new(), Vec::new());
        Self { log, awaited, awaited_bytes: 0, closed, evicted: (0, 0) }
    }

    /// Lines written and dropped since the start.
    pub(super) fn totals(&self) -> (u64, u64) {
        self.log.totals()
    }

    fn push(&self, action: &'static str, actor: Option<Actor>, items: Vec<AuditItem>) {
        if !items.is_empty() {
            self.log.push(AuditRecord::now(action, actor, items));
        }
    }

    /// Records a request whose result is not known. A connection is recorded only if it is refused.
    fn push_unknown(&self, request: Option<AuditedRequest>, reason: &str) {
        let Some(AuditedRequest { action, actor, mut items }) = request else { return };
        if action != "connect" {
            items.iter_mut().for_each(|item| item.error = Some(("unknown", reason.to_owned())));
            self.push(action, Some(actor), items);
        }
    }

    /// Takes out the recorded part of a request under way.
    fn take(&mut self, key: (SessionId, u64)) -> Option<AuditedRequest> {
        let request = self.awaited.get_mut(&key)?.request.take()?;
        self.awaited_bytes = self.awaited_bytes.saturating_sub(request.bytes());
        Some(request)
    }

    /// Notes a request before it is handled: afterwards its object may not exist.
    fn on_request(&mut self, state: &NodeState, from: (SessionId, Option<&str>), ask: &Request) {
        let (session, node) = from;
        let key = (session, ask.seq);
        let request = subject(state, &ask.body).map(|(action, items)| {
            let mut actor = actor_of(state, session, node);
            if let RequestBody::Hello(hello) = &ask.body {
                actor.namespace = name_of(format_args!("{}", hello.namespace));
            }
            AuditedRequest { action, actor, items }
        });
        if self.awaited.contains_key(&key) {
            // The replies cannot be distinguished.
            let earlier = self.take(key);
            for request in [earlier, request] {
                self.push_unknown(request, "two requests of this client have the same number");
            }
            self.awaited.entry(key).and_modify(|one| one.replies += 1);
            return;
        }
        self.awaited_bytes += request.as_ref().map_or(0, AuditedRequest::bytes);
        self.awaited.insert(key, NumberedRequests { replies: 1, request });
        let (count_max, bytes_max) = AWAITED_MAX;
        while self.awaited.len() > count_max || self.awaited_bytes > bytes_max {
            let Some(first) = self.awaited.keys().next().copied() else { return };
            self.forget(first, "too many requests wait for their results");
        }
    }

    /// Stops waiting for the replies to a number.
    fn forget(&mut self, key: (SessionId, u64), reason: &str) {
        let request = self.take(key);
        self.push_unknown(request, reason);
        self.awaited.remove(&key);
    }

    /// Records a request once its reply is known.
    fn on_reply(&mut self, state: &NodeState, from: (SessionId, Option<&str>), reply: &Reply) {
        let (session, node) = from;
        let key = (session, reply.seq);
        let request = self.take(key);
        if let Some(awaited) = self.awaited.get_mut(&key) {
            awaited.replies -= 1;
            if awaited.replies == 0 {
                self.awaited.remove(&key);
            }
        }
        let Some(AuditedRequest { action, actor, mut items }) = request else {
            // Of other requests only refusals are recorded.
            if let Err(error) = &reply.body
                && is_refusal(error)
            {
                let item = AuditItem { error: error_of(error), ..AuditItem::default() };
                self.push("request", Some(actor_of(state, session, node)), vec![item]);
            }
            return;
        };
        match &reply.body {
            Ok(ReplyBody::Sealed(results)) => {
                for (item, result) in items.iter_mut().zip(results) {
                    match result {
                        Ok(id) => item.id = Some((*id).into()),
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
            Ok(ReplyBody::Fetched(Some(id))) => {
                items.iter_mut().for_each(|it| it.id = Some((*id).into()));
            }
            // Connections are not recorded, only refused ones.
            Ok(_) if action == "connect" => return,
            Ok(_) => {}
            Err(error) => {
                let error = error_of(error);
                items.iter_mut().for_each(|item| item.error.clone_from(&error));
            }
        }
        self.push(action, Some(actor), items);
    }

    /// Records what clients that disconnected had under way, to which no reply may follow, and objects
    /// that the node evicted by itself since the last call.
    fn on_turn(&mut self, state: &NodeState) {
        for session in std::mem::take(&mut self.closed) {
            let keys = self.awaited.range((session, 0)..=(session, u64::MAX)).map(|(key, _)| *key);
            for key in keys.collect::<Vec<_>>() {
                self.forget(key, "the client disconnected before the reply");
            }
        }
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
    let own = |name: &String| name_of(format_args!("{name}"));
    let one = |name: fmt::Arguments<'_>| vec![named(Some(name_of(name)))];
    let of_id = |id: ObjectId| {
        let full = state.home().name_of_object(id);
        let name = full.map(|full| farrow_store::own_name(&full).to_owned());
        AuditItem { id: Some(id), ..named(name) }
    };
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
                ..named(item.name.as_ref().map(own))
            };
            ("create", items.iter().map(item).collect())
        }
        RequestBody::Import { step: ImportStep::Seal { name, .. }, .. } => {
            ("create", vec![named(name.as_ref().map(own))])
        }
        RequestBody::Delete { targets } => {
            let item = |target: &WireTarget| match target {
                WireTarget::Name(name) => named(Some(own(name))),
                WireTarget::Id(id) => of_id((*id).into()),
            };
            ("delete", targets.iter().map(item).collect())
        }
        RequestBody::Evict { bytes } => {
            ("evict", vec![AuditItem { bytes: Some(*bytes), ..AuditItem::default() }])
        }
        RequestBody::Hello(_) => ("connect", vec![AuditItem::default()]),
        RequestBody::CreateNamespace(spec) => {
            ("create_namespace", one(format_args!("{}", spec.name)))
        }
        RequestBody::DropNamespace { name } => ("drop_namespace", one(format_args!("{name}"))),
        RequestBody::SetRule(rule) => {
            ("permit", one(format_args!("{}:{}:{}", rule.namespace, rule.node, rule.rights)))
        }
        RequestBody::RemoveRule { namespace, node } => {
            ("drop_permission", one(format_args!("{namespace}:{node}")))
        }
        RequestBody::Set(settings) if settings.len() > SETTINGS_MAX => {
            ("set", many(settings.len()))
        }
        RequestBody::Set(settings) => {
            ("set", settings.iter().flat_map(|one_of| one(format_args!("{one_of:?}"))).collect())
        }
        RequestBody::Drain(DrainStep::Begin) => ("drain", one(format_args!("begin"))),
        RequestBody::Drain(DrainStep::Cancel) => ("drain", one(format_args!("cancel"))),
        RequestBody::Drain(DrainStep::Move { id, .. } | DrainStep::MoveAs { id, .. }) => {
            ("move", vec![of_id((*id).into())])
        }
        RequestBody::Forget { node } => ("forget", one(format_args!("{node}"))),
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
    matches!(error, Error::Denied(_) | Error::NotPermitted(_) | Error::QuotaExceeded(_))
}

fn error_of(error: &WireError) -> Option<(&'static str, String)> {
    Some((error.kind(), cut(REASON_BYTES_MAX, format_args!("{error}"))))
}

/// A name as it is recorded: a request may have one of megabytes, which is refused later.
fn name_of(name: fmt::Arguments<'_>) -> String {
    cut(NAME_BYTES_MAX as usize, name)
}

/// The text, cut to `bytes_max` bytes and with dots at the end if it is longer. The rest is not
/// formatted.
fn cut(bytes_max: usize, text: fmt::Arguments<'_>) -> String {
    struct Cut {
        text: String,
        bytes_max: usize,
    }
    impl Write for Cut {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            let room = self.bytes_max.saturating_sub(self.text.len());
            let fits = more.len() <= room;
            let end = (0..=room.min(more.len())).rev().find(|end| more.is_char_boundary(*end));
            self.text.push_str(more.get(..end.unwrap_or(0)).unwrap_or(""));
            if fits { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut cut = Cut { text: String::new(), bytes_max };
    if cut.write_fmt(text).is_err() {
        let dots = "...";
        let end = bytes_max.saturating_sub(dots.len()).min(cut.text.len());
        let end = (0..=end).rev().find(|end| cut.text.is_char_boundary(*end));
        cut.text.truncate(end.unwrap_or(0));
        cut.text.push_str(dots);
    }
    cut.text
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

    pub(super) fn audit_closed(&mut self, session: SessionId) {
        if let Some(audit) = &mut self.audit {
            audit.closed.push(session);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = |bytes: usize| format!("{}ä", "x".repeat(bytes - 2));
        assert_eq!(cut(255, format_args!("{}", text(255))), text(255));
        let long = text(256);
        assert_eq!(cut(255, format_args!("{long}")), format!("{}...", "x".repeat(252)));
        let long = "ä".repeat(200);
        assert_eq!(cut(255, format_args!("{long}")), format!("{}...", "ä".repeat(126)));
        assert_eq!(cut(5, format_args!("{:?}", "\u{1}".repeat(1 << 20))).len(), 5);
    }
}
