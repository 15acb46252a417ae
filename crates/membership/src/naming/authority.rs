//! The state of an authority in one epoch.

use std::collections::{BTreeMap, BTreeSet};

use super::unread::UndecidedClaims;
use super::{NAMES_MAX, NameChecks, Verdict};
use crate::{NodeNumber, NodeSet};

/// State of one home, as an authority knows it.
#[derive(Debug, Default)]
struct HomeNames {
    session: u64,
    serial: u64,
    /// Received parts of its list.
    parts: BTreeSet<u32>,
    names: usize,
}

/// A part of the list of names of a home.
#[derive(Debug)]
pub(super) struct ListPart {
    pub(super) session: u64,
    pub(super) serial: u64,
    pub(super) part: u32,
    pub(super) parts: u32,
    pub(super) names: Vec<String>,
}

#[derive(Debug, Default)]
pub(super) struct NameAuthority {
    flights: BTreeMap<String, NodeNumber>,
    homes: BTreeMap<NodeNumber, HomeNames>,
    /// Homes with complete lists.
    informed: NodeSet,
    members: NodeSet,
    /// Claims that wait for members with unreadable directories.
    pub(super) undecided: UndecidedClaims,
    /// Grants before all lists are complete: a fault that the tests must detect.
    #[cfg(test)]
    pub(super) is_hasty: bool,
}

impl NameAuthority {
    /// Begins an epoch.
    pub(super) fn begin(&mut self, members: NodeSet) {
        self.flights.clear();
        self.homes.clear();
        self.undecided.clear();
        self.informed = NodeSet::default();
        self.members = members;
    }

    /// The members of this epoch.
    pub(super) fn members(&self) -> NodeSet {
        self.members
    }

    /// Whether a name is in flight for this home.
    pub(super) fn is_in_flight(&self, home: NodeNumber, name: &str) -> bool {
        self.flights.get(name) == Some(&home)
    }

    /// Whether the lists of all members are complete.
    pub(super) fn is_settled(&self) -> bool {
        #[cfg(test)]
        if self.is_hasty {
            return true;
        }
        !self.members.is_empty() && self.members.without(self.informed).is_empty()
    }

    /// Handles a part of a home's list. Returns whether to acknowledge it.
    pub(super) fn list(&mut self, from: NodeNumber, list: ListPart) -> bool {
        let ListPart { session, serial, part, parts, names } = list;
        let home = self.homes.entry(from).or_default();
        if session < home.session {
            return false;
        }
        if session > home.session {
            // Another process of the same life: it no longer holds the names of the previous one.
            self.flights.retain(|_, holder| *holder != from);
            self.undecided.forget(from);
            self.informed = self.informed.without([from].into_iter().collect());
            *home = HomeNames { session, ..HomeNames::default() };
        }
        if home.parts.insert(part) {
            // Earlier claims are void: the list contains their results, or they are settled.
            home.serial = home.serial.max(serial);
            for name in names {
                if home.names < NAMES_MAX && !self.flights.contains_key(&name) {
                    self.flights.insert(name, from);
                    home.names += 1;
                }
            }
        }
        if home.parts.len() >= parts as usize {
            self.informed.insert(from);
        }
        true
    }

    /// Whether a claim or settlement is newer than all others of its home.
    pub(super) fn is_newest(&mut self, from: NodeNumber, session: u64, serial: u64) -> bool {
        let Some(home) = self.homes.get_mut(&from).filter(|home| home.session == session) else {
            return false;
        };
        let is_newest = serial > home.serial;
        home.serial = home.serial.max(serial);
        is_newest
    }

    /// Grants free names that the home may have. It checks the flights before the directories: a
    /// name settled in between is visible there.
    pub(super) fn claim(
        &mut self,
        from: NodeNumber,
        names: &[String],
        checks: NameChecks<'_>,
    ) -> Vec<Verdict> {
        let mut grant = |name: &String| {
            if !(checks.may_name)(name) {
                return Verdict::NotAllowed;
            }
            let holder = self.flights.get(name).copied();
            let home = self.homes.entry(from).or_default();
            if holder.is_some_and(|holder| holder != from) {
                return Verdict::Taken;
            }
            if (checks.exists)(name) {
                // A home claims only names that it does not hold, so an earlier flight is settled.
                if self.flights.remove(name).is_some() {
                    home.names = home.names.saturating_sub(1);
                }
                return Verdict::Taken;
            }
            if holder.is_none() {
                if home.names >= NAMES_MAX {
                    return Verdict::Taken;
                }
                home.names += 1;
                self.flights.insert(name.clone(), from);
            }
            Verdict::Granted
        };
        names.iter().map(&mut grant).collect()
    }

    /// Removes names of a home from the flights.
    pub(super) fn settle(&mut self, from: NodeNumber, names: &[String]) {
        self.undecided.void(from, names);
        for name in names {
            if self.flights.get(name) == Some(&from) {
                self.flights.remove(name);
                if let Some(home) = self.homes.get_mut(&from) {
                    home.names = home.names.saturating_sub(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_name_that_its_home_may_not_have_is_not_in_flight() {
        let [home, other] = [0, 1].map(|number| NodeNumber::new(number).unwrap());
        let mut authority = NameAuthority::default();
        authority.begin([home, other].into_iter().collect());
        let names = ["team\0x".to_owned(), "x".to_owned()];
        let exists = |_: &str| false;
        let may_name = |name: &str| !name.starts_with("team");
        let verdicts =
            authority.claim(home, &names, NameChecks { exists: &exists, may_name: &may_name });
        assert_eq!(verdicts, [Verdict::NotAllowed, Verdict::Granted]);
        // It is free for another home.
        let verdicts =
            authority.claim(other, &names, NameChecks { exists: &exists, may_name: &|_| true });
        assert_eq!(verdicts, [Verdict::Granted, Verdict::Taken]);
    }
}
