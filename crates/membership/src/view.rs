//! A view: the agreed members of the cluster at one epoch.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::message::Sender;
use super::types::{
    ADDRESS_BYTES_MAX, ClusterId, Epoch, INFO_BYTES_MAX, Incarnation, MEMBERS_MAX, NodeName,
    NodeNumber, NodeSet,
};

/// One life of a node in a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number in this cluster.
    pub number: NodeNumber,
    /// Its name.
    pub name: NodeName,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its address, at most 255 bytes.
    pub address: String,
    /// How to map its region, opaque to this crate; at most 1,024 bytes.
    pub info: Vec<u8>,
}

/// A node that was in the cluster and is not now. Its number is not given to another name while
/// there are fresh ones, its earlier lives cannot return, and members probe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// Its former number, which it gets again.
    pub number: NodeNumber,
    /// Its name.
    pub name: NodeName,
    /// Its last incarnation here.
    pub incarnation: Incarnation,
    /// Its last address.
    pub address: String,
    /// The first view without it.
    pub since: Epoch,
    /// It left by itself, so it is probed less often.
    pub has_left: bool,
}

/// The members of the cluster at one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its position in the chain of views.
    pub epoch: Epoch,
    /// 1 to 64 members, sorted by number.
    pub members: Vec<Member>,
    /// Former members, sorted by number; no number is in both lists.
    pub former: Vec<Former>,
}

/// A node that asks for admission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinCandidate {
    /// Its name.
    pub name: NodeName,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its address.
    pub address: String,
    /// See [`Member::info`].
    pub info: Vec<u8>,
}

impl JoinCandidate {
    /// Whether its parts are within their limits.
    pub(super) fn is_sound(&self) -> bool {
        is_address(&self.address) && self.info.len() <= INFO_BYTES_MAX
    }
}

/// Whether an address is within its limits.
pub(super) fn is_address(address: &str) -> bool {
    !address.is_empty() && address.len() <= ADDRESS_BYTES_MAX
}

impl View {
    /// The numbers of all members.
    #[must_use]
    pub fn numbers(&self) -> NodeSet {
        self.members.iter().map(|member| member.number).collect()
    }

    /// The member with this number.
    #[must_use]
    pub fn member(&self, number: NodeNumber) -> Option<&Member> {
        let place = self.members.binary_search_by_key(&number, |member| member.number);
        place.ok().and_then(|place| self.members.get(place))
    }

    /// The member with this name, in any incarnation.
    #[must_use]
    pub fn named(&self, name: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.name == *name)
    }

    /// The number of a life, if exactly this life is a member.
    #[must_use]
    pub fn number_of(&self, name: &NodeName, incarnation: Incarnation) -> Option<NodeNumber> {
        let member = self.named(name).filter(|member| member.incarnation == incarnation);
        member.map(|member| member.number)
    }

    pub(super) fn number_of_sender(&self, from: &Sender) -> Option<NodeNumber> {
        self.number_of(&from.name, from.incarnation)
    }

    /// The last incarnation of a name that is or was a member.
    #[must_use]
    pub fn last_life(&self, name: &NodeName) -> Option<Incarnation> {
        let former = self.former.iter().find(|former| former.name == *name);
        let member = self.named(name).map(|member| member.incarnation);
        member.or(former.map(|former| former.incarnation))
    }

    /// Whether nodes could have agreed on this view.
    pub(super) fn is_sound(&self) -> bool {
        let members = self.members.iter();
        let sizes =
            members.clone().all(|m| is_address(&m.address) && m.info.len() <= INFO_BYTES_MAX);
        let is_sorted = members.clone().is_sorted_by(|a, b| a.number < b.number)
            && self.former.iter().is_sorted_by(|a, b| a.number < b.number);
        let former: NodeSet = self.former.iter().map(|former| former.number).collect();
        let former_names = self.former.iter().map(|former| &former.name);
        let names: BTreeSet<_> = members.map(|m| &m.name).chain(former_names).collect();
        sizes
            && is_sorted
            && !self.members.is_empty()
            && self.epoch > Epoch(0)
            && self.numbers().and(former).is_empty()
            && names.len() == self.members.len() + self.former.len()
            && self.former.iter().all(|former| is_address(&former.address))
    }

    /// Whether `next` may follow this view: names keep their numbers, incarnations only grow.
    pub(super) fn may_precede(&self, next: &Self) -> bool {
        next.is_sound()
            && next.cluster == self.cluster
            && next.epoch == self.epoch.next()
            && next.members.iter().all(|member| match self.named(&member.name) {
                Some(old) => old.number == member.number && old.incarnation <= member.incarnation,
                None => self.last_life(&member.name).is_none_or(|last| last < member.incarnation),
            })
    }

    /// The members of this view whose life is not in `next`.
    pub(super) fn dropped_by(&self, next: &Self) -> NodeSet {
        let members = self.members.iter();
        let dropped =
            members.filter(|member| next.number_of(&member.name, member.incarnation).is_none());
        dropped.map(|member| member.number).collect()
    }

    /// The next view, without some members and with new ones. A candidate without a free number
    /// stays outside.
    pub(super) fn next(&self, without: NodeSet, left: NodeSet, joins: &[JoinCandidate]) -> Self {
        let epoch = self.epoch.next();
        let mut next =
            Self { cluster: self.cluster, epoch, members: Vec::new(), former: self.former.clone() };
        for member in &self.members {
            if without.has(member.number) {
                next.former.push(Former {
                    number: member.number,
                    name: member.name.clone(),
                    incarnation: member.incarnation,
                    address: member.address.clone(),
                    since: epoch,
                    has_left: left.has(member.number),
                });
            } else {
                next.members.push(member.clone());
            }
        }
        for join in joins {
            if next.named(&join.name).is_none() && next.members.len() < MEMBERS_MAX {
                next.join(join);
            }
        }
        next.members.sort_by_key(|member| member.number);
        next.former.sort_by_key(|former| former.number);
        next
    }

    fn join(&mut self, join: &JoinCandidate) {
        let Some(number) = self.number_for(&join.name) else { return };
        self.former.retain(|former| former.number != number && former.name != join.name);
        self.members.push(Member {
            number,
            name: join.name.clone(),
            incarnation: join.incarnation,
            address: join.address.clone(),
            info: join.info.clone(),
        });
    }

    /// The former number of the name, else a fresh one, else that of the node that is absent for
    /// longest.
    fn number_for(&self, name: &NodeName) -> Option<NodeNumber> {
        if let Some(former) = self.former.iter().find(|former| former.name == *name) {
            return Some(former.number);
        }
        let used: NodeSet = self.former.iter().map(|former| former.number).collect();
        let fresh = NodeSet(!(used.0 | self.numbers().0));
        let longest = || self.former.iter().min_by_key(|former| (former.since, former.number));
        NodeNumber::all()
            .find(|number| fresh.has(*number))
            .or_else(|| longest().map(|former| former.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, incarnation: u64) -> JoinCandidate {
        JoinCandidate {
            name: NodeName::new(name).unwrap(),
            incarnation: Incarnation(incarnation),
            address: format!("{name}:1"),
            info: vec![1; 8],
        }
    }

    fn empty() -> View {
        View { cluster: ClusterId(1), epoch: Epoch(0), members: Vec::new(), former: Vec::new() }
    }

    #[test]
    fn a_name_keeps_its_number_and_others_get_it_only_when_none_is_fresh() {
        let first: Vec<_> = (0..3).map(|n| candidate(&format!("n{n}"), 1)).collect();
        let view = empty().next(NodeSet(0), NodeSet(0), &first);
        let view = view.next(NodeSet(0b010), NodeSet(0b010), &[candidate("other", 1)]);
        assert!(view.is_sound());
        assert_eq!(view.named(&NodeName::new("other").unwrap()).unwrap().number.get(), 3);
        let back = view.next(NodeSet(0), NodeSet(0), &[candidate("n1", 2)]);
        assert_eq!(back.named(&NodeName::new("n1").unwrap()).unwrap().number.get(), 1);
        assert!(view.may_precede(&back) && back.former.is_empty());
        let stale = view.next(NodeSet(0), NodeSet(0), &[candidate("n1", 1)]);
        assert!(!view.may_precede(&stale), "an old life came back");

        let many: Vec<_> = (0..70).map(|n| candidate(&format!("m{n}"), 1)).collect();
        let full = view.next(NodeSet(0), NodeSet(0), &many);
        assert!(full.is_sound() && full.members.len() == MEMBERS_MAX && full.former.is_empty());
        assert_eq!(full.member(NodeNumber::new(1).unwrap()).unwrap().name.as_str(), "m60");
    }

    #[test]
    fn a_new_life_replaces_the_old_one_in_its_place() {
        let view = empty().next(NodeSet(0), NodeSet(0), &[candidate("a", 1), candidate("b", 1)]);
        let next = view.next(NodeSet(0b01), NodeSet(0), &[candidate("a", 2)]);
        assert!(view.may_precede(&next) && next.former.is_empty());
        assert_eq!(view.dropped_by(&next), NodeSet(0b01));
        assert_eq!(next.members.first().unwrap().incarnation, Incarnation(2));
    }
}
