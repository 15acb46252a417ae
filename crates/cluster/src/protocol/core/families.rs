//! Clients that have ended and whose forked processes may still read.

use std::collections::BTreeMap;

use farrow_store::{ClientSlot, EntryRegistration};

use crate::protocol::identity::PeerIdentity;

/// First pause between checks: after a goodbye the region is unmapped except for operations in
/// progress.
const LOOK_MS_MIN: u64 = 1;
/// Longest pause between checks: a child may stay for days, and its end is noticed this late at
/// most.
const LOOK_MS_MAX: u64 = 100;
/// Pause before a node that did not answer is asked again.
const ASK_MS: u64 = 500;

/// Slots to give up once no process reads through them.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Families {
    places: BTreeMap<ClientSlot, Family>,
}

#[derive(Debug)]
struct Family {
    peer: PeerIdentity,
    /// Time of the next check; `None`: its node is being asked, or no process reads any more.
    look_at_ms: Option<u64>,
    wait_ms: u64,
    /// No process reads any more, and its objects are being registered.
    ending: Option<EntryRegistration>,
}

impl Families {
    pub(in crate::protocol) fn count(&self) -> usize {
        self.places.len()
    }

    pub(in crate::protocol) fn has(&self, slot: ClientSlot) -> bool {
        self.places.contains_key(&slot)
    }

    /// Waits for the processes of a client that has ended.
    pub(in crate::protocol) fn insert(
        &mut self,
        slot: ClientSlot,
        peer: PeerIdentity,
        now_ms: u64,
    ) {
        let look_at_ms = Some(now_ms);
        let family = Family { peer, look_at_ms, wait_ms: LOOK_MS_MIN, ending: None };
        self.places.insert(slot, family);
    }

    /// No process of a client reads any more: its slot is given up after a registration.
    pub(in crate::protocol) fn ends(&mut self, slot: ClientSlot, registration: EntryRegistration) {
        if let Some(family) = self.places.get_mut(&slot) {
            (family.look_at_ms, family.ending) = (None, Some(registration));
        }
    }

    /// A client whose slot is given up after a registration: this one, or the first.
    pub(in crate::protocol) fn ending(
        &self,
        only: Option<ClientSlot>,
    ) -> Option<(ClientSlot, EntryRegistration)> {
        let all = self.places.iter().filter(|(slot, _)| only.is_none_or(|only| only == **slot));
        all.filter_map(|(slot, family)| Some((*slot, family.ending?))).next()
    }

    /// Ends a wait; false: there is none.
    pub(in crate::protocol) fn remove(&mut self, slot: ClientSlot) -> bool {
        self.places.remove(&slot).is_some()
    }

    /// The clients to check now.
    pub(in crate::protocol) fn due(&self, now_ms: u64) -> Vec<(ClientSlot, PeerIdentity)> {
        let all = self.places.iter();
        let due = all.filter(|(_, family)| family.look_at_ms.is_some_and(|at| at <= now_ms));
        due.map(|(slot, family)| (*slot, family.peer)).collect()
    }

    /// A process still reads: it is checked again later.
    pub(in crate::protocol) fn look_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(family) = self.waiting(slot) {
            family.look_at_ms = Some(now_ms.saturating_add(family.wait_ms));
            family.wait_ms = (family.wait_ms * 2).min(LOOK_MS_MAX);
        }
    }

    /// Its node is being asked, and answers later.
    pub(in crate::protocol) fn query_sent(&mut self, slot: ClientSlot) {
        if let Some(family) = self.places.get_mut(&slot) {
            family.look_at_ms = None;
        }
    }

    /// Whether its node is being asked.
    pub(in crate::protocol) fn is_queried(&self, slot: ClientSlot) -> bool {
        let family = self.places.get(&slot);
        family.is_some_and(|family| family.look_at_ms.is_none() && family.ending.is_none())
    }

    /// Its node could not be asked, or did not answer.
    pub(in crate::protocol) fn ask_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(family) = self.waiting(slot) {
            family.look_at_ms = Some(now_ms.saturating_add(ASK_MS));
        }
    }

    /// A client of which some process may still read.
    fn waiting(&mut self, slot: ClientSlot) -> Option<&mut Family> {
        self.places.get_mut(&slot).filter(|family| family.ending.is_none())
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let at_ms = |family: &Family| family.ending.map_or(family.look_at_ms, |_| Some(0));
        self.places.values().filter_map(at_ms).min()
    }

    /// Slots of the clients of a node.
    pub(in crate::protocol) fn of_node(&self, key: u64) -> Vec<ClientSlot> {
        let all = self.places.iter();
        let of_it = all.filter(|(_, family)| family.peer.is_of_node(key));
        of_it.map(|(slot, _)| *slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use farrow_store::RemoteClient;

    use super::*;

    const SLOT: ClientSlot = ClientSlot(3);

    fn peer(node: Option<u64>) -> PeerIdentity {
        let remote_client = node.map(|node| RemoteClient { node });
        PeerIdentity { pid: 7, start_time: 1, uid: 0, remote_client }
    }

    #[test]
    fn a_family_is_checked_ever_more_rarely_until_it_has_ended() {
        let mut families = Families::default();
        families.insert(SLOT, peer(None), 10);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let at_ms = families.next_deadline_ms().unwrap();
            assert_eq!(families.due(at_ms), [(SLOT, peer(None))]);
            families.look_later(SLOT, at_ms);
            pauses.push(families.next_deadline_ms().unwrap() - at_ms);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        assert!(families.remove(SLOT) && !families.remove(SLOT));
        assert_eq!((families.count(), families.next_deadline_ms()), (0, None));
    }

    #[test]
    fn a_family_of_another_node_is_not_checked_while_its_node_is_asked() {
        let mut families = Families::default();
        families.insert(SLOT, peer(Some(5)), 0);
        assert_eq!((families.of_node(5), families.of_node(6)), (vec![SLOT], vec![]));
        families.query_sent(SLOT);
        assert!(families.is_queried(SLOT) && families.due(u64::MAX).is_empty());
        assert_eq!(families.next_deadline_ms(), None);
        families.ask_later(SLOT, 100);
        assert!(!families.is_queried(SLOT));
        assert_eq!(families.next_deadline_ms(), Some(100 + ASK_MS));
    }
}
