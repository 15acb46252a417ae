//! The writes of a node: its registration, the next view, its farewell.

use super::state::{ChangePurpose, EtcdMembership};
use super::types::{CHANGED_MAX, Change, EtcdRequest, Key, NodeRecord, Put, Revision};
use crate::message::ClashError;
use crate::state::next_random;
use crate::types::{ClusterId, Epoch, Incarnation, MEMBERS_MAX, NodeName, NodeSet};
use crate::view::{JoinCandidate, View};

/// Leases after which the registrations of nodes that never joined, or that left, are deleted.
const CLEAN_LEASES: u64 = 8;

/// A change of the view that this node would make.
struct ProposedUpdate {
    value: View,
    /// Names with keys that the change depends on.
    about: Vec<NodeName>,
    /// Registrations to delete with the change.
    deletes: Vec<Key>,
}

impl EtcdMembership {
    fn change(&mut self, change: Change, purpose: ChangePurpose) {
        let id = self.ask(EtcdRequest::Change(change));
        self.change = Some((id, purpose));
    }

    fn expect(&self, key: Key) -> (Key, Revision) {
        let revision = self.mirror.revision_of(&key);
        (key, revision)
    }

    /// Registers this life, once its name is free and it has a lease of etcd.
    pub(super) fn register(&mut self) {
        let name = self.options.name.clone();
        let own = self.retained.own.incarnation;
        let other = self.mirror.record(&name).filter(|record| {
            let life = record.node.incarnation;
            // This life with other content is not of this node.
            let is_this = life == own && record.node == self.retained.own;
            !is_this && Some(life) != self.retained.former
        });
        if let Some(other) = other
            && self.mirror.is_alive(&name)
        {
            let address = other.node.address.clone();
            return self.wait_for_name(address);
        }
        let recorded = other.map(|other| other.node.incarnation);
        let viewed = self.mirror.view().ok().flatten().and_then(|view| view.last_life(&name));
        let last = recorded.max(viewed.filter(|_| self.retained.view.is_none()));
        if let Some(last) = last.filter(|last| *last >= own) {
            self.rise_above(last);
        }
        let Some(lease) = self.etcd_lease.filter(|_| !self.is_lease_used) else {
            self.etcd_lease = None;
            return self.ask_for_lease();
        };
        self.is_lease_used = true;
        let record = self.own_record(false);
        let life = self.retained.own.incarnation.0.to_string().into_bytes();
        let keys = [Key::Node(name.clone()), Key::Alive(name.clone())];
        let change = Change {
            expected: keys.map(|key| self.expect(key)).into(),
            puts: vec![
                Put { key: Key::Node(name.clone()), value: record.encode(), lease: None },
                Put { key: Key::Alive(name), value: life, lease: Some(lease) },
            ],
            deletes: Vec::new(),
        };
        self.change(change, ChangePurpose::Register);
    }

    fn own_record(&self, is_leaving: bool) -> NodeRecord {
        let lease_ms = Some(self.options.lease_ms);
        NodeRecord { node: self.retained.own.clone(), is_leaving, lease_ms }
    }

    /// Writes that this life leaves; false if it is not registered.
    pub(super) fn write_farewell(&mut self) -> bool {
        let name = self.options.name.clone();
        if self.mirror.record(&name).is_none_or(|record| record.node != self.retained.own) {
            return false;
        }
        let record = self.own_record(true);
        let change = Change {
            expected: vec![self.expect(Key::Node(name.clone()))],
            puts: vec![Put { key: Key::Node(name.clone()), value: record.encode(), lease: None }],
            deletes: vec![Key::Alive(name)],
        };
        self.change(change, ChangePurpose::Leave);
        true
    }

    /// Writes the next view, if a change is due and it is this node's turn. Valid only right after
    /// a look.
    pub(super) fn propose(&mut self) {
        let Some(wish) = self.wish() else {
            self.wish_since_ms = None;
            return self.clean();
        };
        let since_ms = *self.wish_since_ms.get_or_insert(self.now_ms);
        // The first present node proposes; another one follows if the first does not act.
        let turn_ms = since_ms + self.rank() * self.options.lease_ms / 4;
        if self.now_ms < turn_ms {
            self.next_look_ms = self.next_look_ms.min(turn_ms);
            return;
        }
        let mut expected = vec![self.expect(Key::View)];
        for name in &wish.about {
            #[cfg(test)]
            if self.mutant == Some(super::state::EtcdMutant::ComparesViewOnly) {
                continue;
            }
            expected.extend(self.mirror.marks_of(name));
        }
        let value = postcard::to_allocvec(&wish.value).unwrap_or_default();
        let puts = vec![Put { key: Key::View, value, lease: None }];
        self.change(Change { expected, puts, deletes: wish.deletes }, ChangePurpose::View);
    }

    /// The number of nodes that would propose before this one: members by number, then the others
    /// by name.
    fn rank(&self) -> u64 {
        let view = self.mirror.view().ok().flatten();
        let place = |name: &NodeName, life: Incarnation| {
            let number = view.and_then(|view| view.number_of(name, life));
            (number.is_none(), number, name.clone())
        };
        let own = place(&self.options.name, self.retained.own.incarnation);
        let before = self.present().filter(|one| place(&one.name, one.incarnation) < own);
        before.count() as u64
    }

    /// Lives that are present and not leaving.
    fn present(&self) -> impl Iterator<Item = &JoinCandidate> {
        let nodes = self.mirror.records().map(|record| &record.node);
        nodes.filter(|node| self.mirror.is_present(&node.name, node.incarnation))
    }

    fn wish(&mut self) -> Option<ProposedUpdate> {
        let view = self.mirror.view().ok()?.cloned();
        let Some(view) = view else { return self.first_view() };
        if let Some(error) = self.lease_clash(&view) {
            self.clash(error);
            return None;
        }
        let (without, left) = self.absent(&view);
        let joins = self.joins(&view, without);
        let value = view.next(without, left, &joins);
        if value.members.is_empty() || value.members == view.members {
            let is_outside = value.named(&self.options.name).is_none();
            if is_outside && value.members.len() >= MEMBERS_MAX {
                self.clash(ClashError::Full { members: MEMBERS_MAX });
            }
            return None;
        }
        let removed = view.members.iter().filter(|member| without.has(member.number));
        let mut about: Vec<NodeName> = removed.clone().map(|member| member.name.clone()).collect();
        let joined = joins.iter().map(|one| &one.name).filter(|name| !about.contains(name));
        let joined: Vec<NodeName> = joined.cloned().collect();
        about.extend(joined);
        // A later life that waits for admission keeps its registration.
        let is_last = |name: &NodeName, life| {
            self.mirror.record(name).is_some_and(|record| record.node.incarnation == life)
        };
        let deletes = removed
            .filter(|member| is_last(&member.name, member.incarnation))
            .map(|member| Key::Node(member.name.clone()))
            .collect();
        Some(ProposedUpdate { value, about, deletes })
    }

    /// The error of a node that is to join members with another lease.
    fn lease_clash(&self, view: &View) -> Option<ClashError> {
        let (own, own_ms) = (&self.retained.own, self.options.lease_ms);
        if view.number_of(&own.name, own.incarnation).is_some() {
            return None;
        }
        let present =
            view.members.iter().filter(|one| self.mirror.is_present(&one.name, one.incarnation));
        let mut records = present.filter_map(|one| self.mirror.record(&one.name));
        let other = records.find(|record| !record.agrees_with(own_ms))?;
        let (address, theirs_ms) = (other.node.address.clone(), other.lease_ms?);
        Some(ClashError::Lease { address, own_ms, theirs_ms })
    }

    /// The first view, only after a whole lease without one: no node may still have a lease from a
    /// view that was lost.
    fn first_view(&mut self) -> Option<ProposedUpdate> {
        let due_ms = self.no_view_since_ms? + self.options.lease_ms;
        if self.now_ms < due_ms {
            self.next_look_ms = self.next_look_ms.min(due_ms);
            return None;
        }
        let joins = self.present().filter(|node| self.has_own_lease(node));
        let joins: Vec<JoinCandidate> = joins.take(CHANGED_MAX).cloned().collect();
        let cluster = ClusterId(next_random(&mut self.random));
        let empty = View { cluster, epoch: Epoch(0), members: Vec::new(), former: Vec::new() };
        let value = empty.next(NodeSet::default(), NodeSet::default(), &joins);
        let about = joins.into_iter().map(|join| join.name).collect();
        (!value.members.is_empty()).then_some(ProposedUpdate { value, about, deletes: Vec::new() })
    }

    /// The members to exclude, and those of them that left by themselves. For members that are
    /// absent for less than a lease, it schedules the next look.
    fn absent(&mut self, view: &View) -> (NodeSet, NodeSet) {
        let (mut without, mut left) = (NodeSet::default(), NodeSet::default());
        let mut next_look_ms = self.next_look_ms;
        for member in &view.members {
            let Some(absence) = self.absences.get(&member.name) else { continue };
            if without.len() as usize >= CHANGED_MAX {
                break;
            }
            let has_left = self.mirror.record(&member.name).is_some_and(|record| {
                record.is_leaving && record.node.incarnation == member.incarnation
            });
            let due_ms = absence.since_ms + self.options.lease_ms;
            #[cfg(test)]
            let due_ms = match self.mutant {
                Some(super::state::EtcdMutant::ExcludesAtOnce) => absence.since_ms,
                _ => due_ms,
            };
            if has_left {
                left.insert(member.number);
            }
            if has_left || self.now_ms >= due_ms {
                without.insert(member.number);
            } else {
                next_look_ms = next_look_ms.min(due_ms);
            }
        }
        self.next_look_ms = next_look_ms;
        (without, left)
    }

    /// The candidates to admit when `without` is excluded.
    fn joins(&self, view: &View, without: NodeSet) -> Vec<JoinCandidate> {
        let has_place = |node: &&JoinCandidate| {
            let last = view.last_life(&node.name);
            last.is_none_or(|last| last < node.incarnation)
                && view.named(&node.name).is_none_or(|old| without.has(old.number))
        };
        let joins = self.present().filter(has_place).filter(|node| self.has_own_lease(node));
        joins.take(CHANGED_MAX).cloned().collect()
    }

    /// Whether a candidate has the lease of this node: each member relies on that of all others.
    fn has_own_lease(&self, node: &JoinCandidate) -> bool {
        let record = self.mirror.record(&node.name);
        record.is_none_or(|record| record.agrees_with(self.options.lease_ms))
    }

    /// Deletes registrations of nodes that are neither members nor alive.
    fn clean(&mut self) {
        let patience_ms = CLEAN_LEASES * self.options.lease_ms;
        let view = self.mirror.view().ok().flatten();
        let is_member = |name: &NodeName| view.is_some_and(|view| view.named(name).is_some());
        let removed = self.absences.iter().filter(|(name, absence)| {
            self.now_ms - absence.since_ms >= patience_ms
                && !is_member(name)
                && self.mirror.record(name).is_some()
        });
        let removed: Vec<_> = removed.take(CHANGED_MAX).map(|(_, one)| one.marks.clone()).collect();
        if removed.is_empty() || self.rank() > 0 {
            return;
        }
        let mut expected = vec![self.expect(Key::View)];
        let deletes = removed.iter().map(|[(node, _), _]| node.clone()).collect();
        expected.extend(removed.into_iter().flatten());
        self.change(Change { expected, puts: Vec::new(), deletes }, ChangePurpose::Clean);
    }
}
