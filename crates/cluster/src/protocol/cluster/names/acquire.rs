//! Names are unique in the cluster: a request that takes names waits until they are granted.

use std::collections::{BTreeMap, BTreeSet};

use farrow_membership::Member;
use farrow_membership::naming::{self, NameRefusal, NameRequest};
use farrow_store::{ClientSlot, namespace_of};
use farrow_wire::{
    BATCH_ITEMS_MAX, ReplyBody, RequestBody, Rights, SealItem, WireError, WireTarget,
};

use super::parked::{PendingNameRelease, Then, WaitingForNames, names_bytes};
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::peers::peer::{is_name_known, unread};
use crate::protocol::cluster::state::{ASK_LEASES_MAX, Cluster};
use crate::protocol::cluster::{PendingQuestion, Question};
use crate::protocol::context::RequestContext;
use crate::protocol::core::namespaces::full_name;
use crate::protocol::identity::node_key;
use crate::protocol::replicas::ReplacingSeal;
use crate::protocol::sessions::buffered::body_bytes;
use crate::protocol::state::NodeState;

/// Limit of requests that wait for names at a time.
const PARKED_MAX: usize = 4096;

impl NodeState {
    /// Parks a request that takes names until the cluster grants them. A request that frees names or
    /// gives them other objects waits until their authorities know that they are not in flight, and
    /// until the old home of an object that has moved here has removed it. `Err` returns a request that
    /// does neither, or takes no name that is free here.
    pub(in crate::protocol) fn park(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) -> Result<(), RequestBody> {
        let RequestContext { session, slot, seq, now_ms } = context;
        let Some(names) = self.names_in_debt(slot, &body) else {
            return self.park_for_names(context, body, out);
        };
        let bytes = body_bytes(&body);
        if !self.has_place_to_park(context, Some(bytes + names_bytes(&names)), out) {
            return Ok(());
        }
        // An authority that is silent for a lease is excluded, and the next one knows nothing. An old
        // home that is restarted needs longer, and a replacement is not served before.
        let leases = if matches!(body, RequestBody::Seal { .. }) { ASK_LEASES_MAX } else { 1 };
        let deadline_ms = now_ms.saturating_add(self.cluster.lease_ms().saturating_mul(leases));
        let then = Then::Serve(body);
        let (drain, mut rest) = self.drain(now_ms, out);
        names.iter().for_each(|name| drain.ask_if_removed(name, &mut rest));
        let release = PendingNameRelease { session, slot, seq, bytes, names, deadline_ms, then };
        if let Some(cluster) = &mut self.cluster.0 {
            cluster.parked.indebted.push(release);
        }
        Ok(())
    }

    /// Whether one more request may wait for names; otherwise it is refused. It needs this number of
    /// bytes; `None`: they are not limited.
    fn has_place_to_park(
        &mut self,
        context: RequestContext,
        bytes: Option<usize>,
        out: &mut Vec<Action>,
    ) -> bool {
        let parked = self.cluster.0.as_ref().map_or(0, |cluster| cluster.parked.count());
        let checked = if parked >= PARKED_MAX {
            let what = "requests that wait for names".to_owned();
            Err(WireError::TooMany { what, max: PARKED_MAX as u64 })
        } else {
            bytes.map_or(Ok(()), |bytes| self.check_waiting(context.session, bytes))
        };
        checked
            .map_err(|error| out.push(answer_to(context.session, context.seq, Err(error))))
            .is_ok()
    }

    /// As [`Self::park`], of a request that need not wait to free names.
    fn park_for_names(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) -> Result<(), RequestBody> {
        let RequestContext { session, slot, seq, now_ms } = context;
        let Some(names) = self.names_to_take(slot, &body) else {
            return Err(body);
        };
        let bytes = body_bytes(&body);
        // Renewed names were admitted before, and a client takes a refusal for the end of the node.
        let is_renewal = matches!(body, RequestBody::Renew { .. });
        let more = (!is_renewal).then(|| bytes + names_bytes(&names));
        if !self.has_place_to_park(context, more, out) {
            return Ok(());
        }
        let lease_ms = self.cluster.lease_ms();
        let deadline_ms = now_ms.saturating_add(lease_ms.saturating_mul(ASK_LEASES_MAX));
        let waiting = WaitingForNames {
            session,
            slot,
            seq,
            body,
            bytes,
            names,
            deadline_ms,
            lease_awaited_until_ms: deadline_ms,
            is_cancelled: false,
        };
        self.ask_names(waiting, now_ms, out);
        Ok(())
    }

    /// Names in a delete that have objects, while an authority may not know that yet: it would
    /// report them as taken after they are free again. Also names in a delete, or of replacements,
    /// whose objects may still be at their old home.
    fn names_in_debt(&self, slot: ClientSlot, body: &RequestBody) -> Option<Vec<String>> {
        let targets = match body {
            RequestBody::Delete { targets } => targets,
            RequestBody::Seal { items } => return self.names_arriving(slot, items),
            _ => return None,
        };
        let naming = &self.cluster.0.as_ref()?.naming;
        let is_any = naming.owes_any() || !self.drain.record.incoming.is_empty();
        if !is_any || targets.len() > BATCH_ITEMS_MAX {
            return None;
        }
        let full = |target: &WireTarget| match target {
            WireTarget::Name(name) => full_name(&self.home, slot, name).ok(),
            WireTarget::Id(id) => self.home.name_of_object((*id).into()),
        };
        let names = targets.iter().filter_map(full);
        let names = names.filter(|name| naming.owes(name) || self.drain.has_arriving(name));
        let names: Vec<String> = names.collect();
        (!names.is_empty()).then_some(names)
    }

    /// Names of objects that are replaced while their old home may still have them.
    fn names_arriving(&self, slot: ClientSlot, items: &[SealItem]) -> Option<Vec<String>> {
        if self.drain.record.incoming.is_empty() {
            return None;
        }
        let replacing = items.iter().filter(|item| item.is_replacing);
        let names = replacing.filter_map(|item| item.name.as_deref());
        let names = names.filter_map(|name| full_name(&self.home, slot, name).ok());
        let names: Vec<String> = names.filter(|name| self.drain.has_arriving(name)).collect();
        (!names.is_empty()).then_some(names)
    }

    /// Resumes requests that need not wait for authorities any more.
    pub(in crate::protocol) fn serve_indebted(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Self { cluster, drain, .. } = self;
        let Some(Cluster { naming, parked, .. }) = cluster.0.as_deref_mut() else {
            return;
        };
        let is_early = |name: &String| naming.owes(name) || drain.has_arriving(name);
        let is_due = |one: &mut PendingNameRelease| {
            one.deadline_ms <= now_ms || !one.names.iter().any(is_early)
        };
        let due: Vec<PendingNameRelease> = parked.indebted.extract_if(.., is_due).collect();
        for PendingNameRelease { session, slot, seq, names, then, .. } in due {
            match then {
                // The old home may keep its object after all, and a replaced one cannot be undone.
                Then::Serve(RequestBody::Seal { .. })
                    if names.iter().any(|name| self.drain.has_arriving(name)) =>
                {
                    let text = "its old node has not confirmed the move of the object to replace";
                    let error = WireError::NotMoved(text.to_owned());
                    out.push(answer_to(session, seq, Err(error)));
                }
                // Its client has ended: nothing more is stored or requested for it.
                Then::Serve(_) if !self.clients.is_of(session, slot) => {}
                Then::Serve(body) => {
                    let context = RequestContext { session, slot, seq, now_ms };
                    // A seal may also create names.
                    if let Err(body) = self.park_for_names(context, body, out) {
                        self.serve_parked(context, body, out);
                    }
                }
                Then::Answer(body) => out.push(answer_to(session, seq, body)),
            }
        }
    }

    /// Serves a request after its wait, if its client is still connected.
    fn serve_parked(&mut self, context: RequestContext, body: RequestBody, out: &mut Vec<Action>) {
        if self.clients.is_of(context.session, context.slot) {
            self.serve(context, body, out);
        }
    }

    fn ask_names(&mut self, waiting: WaitingForNames, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        if !cluster.has_lease {
            let until_ms = cluster.lease_awaited_until_ms(now_ms);
            return cluster.parked.await_lease(waiting, until_ms);
        }
        let ticket = cluster.parked.next_ticket;
        cluster.parked.next_ticket += 1;
        let WaitingForNames { names, deadline_ms, .. } = &waiting;
        let request = NameRequest { ticket, names: names.clone(), deadline_ms: *deadline_ms };
        cluster.parked.waiting.insert(ticket, waiting);
        let Cluster { naming, peers, membership, .. } = &mut **cluster;
        let record = &self.drain.record;
        let exists = |name: &str| is_name_known(&self.home, peers, record, name);
        let mut outputs = Vec::new();
        naming.set_unread(unread(peers, record, membership.view()));
        naming.ask(request, now_ms, &exists, &mut outputs);
        self.perform_naming(outputs, now_ms, out);
    }

    /// Resumes the requests that wait for the lease, once there is one.
    pub(in crate::protocol::cluster) fn ask_again(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        for mut waiting in std::mem::take(&mut cluster.parked.asleep) {
            // Its reserved names are held again, unless the view changed meanwhile.
            match self.names_to_take(waiting.slot, &waiting.body) {
                Some(names) => {
                    waiting.names = names;
                    self.ask_names(waiting, now_ms, out);
                }
                None => {
                    let WaitingForNames { session, slot, seq, body, .. } = waiting;
                    let context = RequestContext { session, slot, seq, now_ms };
                    self.serve_parked(context, body, out);
                }
            }
        }
    }

    pub(in crate::protocol::cluster) fn tick_names(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let Cluster { naming, peers, parked, membership, .. } = &mut **cluster;
        let record = &self.drain.record;
        let asleep = std::mem::take(&mut parked.asleep);
        let (late, asleep): (Vec<WaitingForNames>, _) =
            asleep.into_iter().partition(|one| one.lease_awaited_until_ms <= now_ms);
        parked.asleep = asleep;
        naming.set_unread(unread(peers, record, membership.view()));
        let exists = |name: &str| is_name_known(&self.home, peers, record, name);
        let mut outputs = Vec::new();
        naming.tick(now_ms, &exists, &mut outputs);
        for WaitingForNames { session, seq, .. } in late {
            let error = self.cluster.refusal_error("", &NameRefusal::NoLease);
            out.push(answer_to(session, seq, Err(error)));
        }
        self.perform_naming(outputs, now_ms, out);
        self.serve_indebted(now_ms, out);
    }

    /// Full names that a request takes and that are free here. `None`: there are none, or the
    /// request will be refused anyway.
    fn names_to_take(&self, slot: ClientSlot, body: &RequestBody) -> Option<Vec<String>> {
        let names: Vec<&String> = match body {
            RequestBody::Reserve { names } | RequestBody::Renew { names, .. } => {
                names.iter().collect()
            }
            RequestBody::Seal { items } => {
                items.iter().filter_map(|item| item.name.as_ref()).collect()
            }
            _ => return None,
        };
        let naming = &self.cluster.0.as_ref()?.naming;
        let (mut full, mut seen) = (Vec::with_capacity(names.len()), BTreeSet::new());
        for name in names {
            let name = full_name(&self.home, slot, name).ok()?;
            // A reserved name may not be held any more, if this node was excluded meanwhile.
            let is_missing = !naming.holds(&name) && !self.home.has_name(&name).ok()?;
            if is_missing && seen.insert(name.clone()) {
                full.push(name);
            }
        }
        (!full.is_empty()).then_some(full)
    }

    /// Handles the result for the names of a request.
    pub(super) fn names_granted(
        &mut self,
        ticket: u64,
        results: &[Result<(), NameRefusal>],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let Some(waiting) = cluster.parked.waiting.remove(&ticket) else {
            return;
        };
        let mut refusals = results.iter().filter_map(|result| result.as_ref().err());
        let is_left = now_ms < waiting.deadline_ms && !waiting.is_cancelled;
        if refusals.any(|why| *why == NameRefusal::NoLease) && is_left {
            let names = waiting.names.iter().zip(results).filter(|(_, result)| result.is_ok());
            let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
            cluster.naming.settle(names);
            let until_ms = cluster.lease_awaited_until_ms(now_ms);
            return cluster.parked.await_lease(waiting, until_ms);
        }
        let granted: Vec<String> = (waiting.names.iter().zip(results))
            .filter(|(_, result)| result.is_ok())
            .map(|(name, _)| name.clone())
            .collect();
        granted.iter().for_each(|name| self.joined.settle(name));
        let refused: BTreeMap<&str, &NameRefusal> = (waiting.names.iter().zip(results))
            .filter_map(|(name, result)| result.as_ref().err().map(|error| (name.as_str(), error)))
            .collect();
        let WaitingForNames { session, slot, seq, body, is_cancelled, .. } = waiting;
        if is_cancelled || !self.clients.is_of(session, slot) {
            return self.settle(granted);
        }
        let context = RequestContext { session, slot, seq, now_ms };
        match body {
            RequestBody::Seal { items } if refused.is_empty() => {
                self.seal_granted(ReplacingSeal { context, items, granted }, out);
            }
            body => {
                let body = self.serve_granted(slot, body, &refused);
                self.settle(granted.clone());
                self.answer_granted(context, granted, body, out);
            }
        }
    }

    /// Serves a seal with the names that were granted for it. If it replaces objects of which other
    /// nodes have replicas, it is served once these are dropped, and its names stay in flight.
    pub(in crate::protocol) fn seal_granted(&mut self, seal: ReplacingSeal, out: &mut Vec<Action>) {
        let (context, granted) = (seal.context, seal.granted.clone());
        let checked = self
            .clients
            .check_writer(&self.home, context.slot)
            .and_then(|()| self.check_granted(&granted));
        let sealed = checked.and_then(|()| self.seal_in_places(seal, out));
        let Some(body) = sealed.transpose() else {
            return;
        };
        self.settle(granted.clone());
        self.answer_granted(context, granted, body, out);
    }

    /// Checks that granted names are still this node's: its lease may have ended while their seal
    /// waited for replicas.
    fn check_granted(&self, granted: &[String]) -> Result<(), WireError> {
        let is_lost = |name: &&String| {
            self.cluster.check_held(name).is_err() && !self.home.has_name(name).unwrap_or(true)
        };
        granted
            .iter()
            .find(is_lost)
            .map_or(Ok(()), |name| Err(self.cluster.refusal_error(name, &NameRefusal::NoLease)))
    }

    /// Answers a request, at once if it used all granted names. Unused names must be free when it
    /// is answered.
    fn answer_granted(
        &mut self,
        context: RequestContext,
        mut granted: Vec<String>,
        body: Result<ReplyBody, WireError>,
        out: &mut Vec<Action>,
    ) {
        let RequestContext { session, slot, seq, now_ms } = context;
        let Some(Cluster { naming, parked, options, .. }) = self.cluster.0.as_deref_mut() else {
            return out.push(answer_to(session, seq, body));
        };
        // A name with an object is taken, whatever its authority assumes.
        granted.retain(|name| naming.owes(name) && !self.home.has_name(name).unwrap_or(true));
        if granted.is_empty() {
            return out.push(answer_to(session, seq, body));
        }
        let (names, then) = (granted, Then::Answer(body));
        let deadline_ms = now_ms.saturating_add(options.lease_ms);
        // An answer is small: its request is served.
        let bytes = 0;
        let release = PendingNameRelease { session, slot, seq, bytes, names, deadline_ms, then };
        parked.indebted.push(release);
    }

    fn serve_granted(
        &mut self,
        slot: ClientSlot,
        body: RequestBody,
        refused: &BTreeMap<&str, &NameRefusal>,
    ) -> Result<ReplyBody, WireError> {
        let errors =
            refused.iter().map(|(name, why)| (*name, self.cluster.refusal_error(name, why)));
        let errors: BTreeMap<&str, WireError> = errors.collect();
        match body {
            RequestBody::Seal { items } => {
                // If one name is refused, no object is sealed.
                let error = errors.into_values().next().unwrap_or(WireError::Closing);
                Ok(ReplyBody::Sealed(vec![Err(error); items.len()]))
            }
            // Names are renewed one by one: those that are not held are skipped.
            RequestBody::Renew { names, are_all } => {
                self.clients.check_writer(&self.home, slot)?;
                self.renew(slot, &names, are_all)
            }
            RequestBody::Reserve { names } => {
                if let Some(error) = errors.into_values().next() {
                    return Err(error);
                }
                self.clients.check_writer(&self.home, slot)?;
                self.reserve(slot, &names)
            }
            _ => Err(WireError::Invalid("a request that takes no name".into())),
        }
    }

    /// Settles granted names: reserved ones stay in flight, the others are sealed, or free again.
    pub(in crate::protocol) fn settle(&mut self, granted: Vec<String>) {
        let home = &self.home;
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let (reserved, done): (Vec<String>, Vec<String>) =
            granted.into_iter().partition(|name| home.is_reserved(name));
        cluster.parked.reserved.extend(reserved);
        cluster.naming.settle(done.iter().map(String::as_str));
    }

    /// Settles names that are not reserved any more.
    pub(in crate::protocol) fn settle_reserved(&mut self) {
        let home = &self.home;
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        if !std::mem::take(&mut cluster.parked.has_changed) {
            return;
        }
        let (reserved, done): (Vec<String>, Vec<String>) =
            std::mem::take(&mut cluster.parked.reserved)
                .into_iter()
                .partition(|name| home.is_reserved(name));
        cluster.parked.reserved = reserved;
        cluster.naming.settle(done.iter().map(String::as_str));
    }

    pub(in crate::protocol::cluster) fn handle_naming(
        &mut self,
        from: &Member,
        message: naming::NameMessage,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        self.cluster.note_hints(from.name.as_str(), &message.body);
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let Cluster { naming, peers, membership, .. } = &mut **cluster;
        let record = &self.drain.record;
        let exists = |name: &str| is_name_known(&self.home, peers, record, name);
        let (rules, key) = (&self.rules, node_key(from.name.as_str()));
        let may_name = |name: &str| rules.of(namespace_of(name), key).has(Rights::WRITE);
        let checks = naming::NameChecks { exists: &exists, may_name: &may_name };
        let life = naming::NumberedLife { number: from.number, incarnation: from.incarnation };
        let mut outputs = Vec::new();
        naming.set_unread(unread(peers, record, membership.view()));
        naming.handle(life, message, checks, now_ms, &mut outputs);
        self.perform_naming(outputs, now_ms, out);
        self.serve_indebted(now_ms, out);
    }

    pub(in crate::protocol::cluster) fn perform_naming(
        &mut self,
        outputs: Vec<naming::NameOutput>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        for output in outputs {
            match output {
                naming::NameOutput::Send { to, message } => {
                    if let Some(to) = self.cluster.name_of(to) {
                        self.cluster.ask_node(
                            &to,
                            &Question::Naming(message),
                            PendingQuestion::Naming,
                            out,
                        );
                    }
                }
                naming::NameOutput::Answer { ticket, results } => {
                    self.names_granted(ticket, &results, now_ms, out);
                }
            }
        }
    }
}
