//! Which node sends a large object to which of its readers: a tree that grows from the home.
//!
//! Each node that has the object, the home or a member with a complete replica, sends it to one
//! reader at a time, and to a second one if that takes long. The others wait in the order of their arrival. So no node is asked by all at
//! once, and the number of senders multiplies with each finished transfer. A reader asks again
//! while it waits, so nothing is retained for one that ended.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use farrow_net::source::{HoldId, MemberLife};
use serde::{Deserialize, Serialize};

/// Bytes from which an object has a tree. Smaller ones take less time than a wait for their turn.
pub(crate) const BROADCAST_BYTES_MIN: u64 = 8 << 20;

/// Transfers of one object from one node at a time. One fills most links, and two that share a link
/// both end when the second one alone would.
const SENDS_MAX: usize = 2;

/// A transfer that is slower than this delays no others: the node begins a second one.
const SLOW_SEND_BYTES_PER_MS: u64 = 50_000;

/// Readers of one object that may wait. Further ones are sent the object by its home.
const WAITING_MAX: usize = 1024;

/// A reader that has not asked for this long waits no more. It asks every 20 ms.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// Limit of a wait: this, and the time of the object at a slow rate. Then the home sends it.
const WAIT_MIN: Duration = Duration::from_secs(5);
const SLOW_BYTES_PER_MS: u64 = 100_000;

/// The limit of the wait for a sender of an object of this many bytes.
pub(crate) fn wait_max(bytes: u64) -> Duration {
    WAIT_MIN.saturating_add(Duration::from_millis(bytes / SLOW_BYTES_PER_MS))
}

/// The secret by which a member serves a replica. The home passes it to the readers that it admits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ReplicaKey(pub(crate) [u8; 32]);

impl ReplicaKey {
    /// Whether both are equal, in a time that does not depend on the bytes.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

impl fmt::Debug for ReplicaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicaKey(..)")
    }
}

/// The home's answer to a reader that asks for a sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SenderAnswer {
    /// The home sends the object.
    Home,
    /// All senders are busy: ask again soon.
    Wait,
    /// A member with a complete replica sends it to any node with the key.
    Member { name: String, key: ReplicaKey },
}

/// A transfer of an object: the reader, and its hold at the home.
pub(crate) type ReaderId = (MemberLife, HoldId);

#[derive(Debug)]
struct WaitingReader {
    reader: ReaderId,
    since: Instant,
    seen: Instant,
}

/// A transfer under way.
#[derive(Debug)]
struct Sending {
    /// `None`: the home.
    sender: Option<MemberLife>,
    since: Instant,
}

/// The tree of one object.
#[derive(Debug, Default)]
struct BroadcastTree {
    /// Members with complete replicas.
    complete: BTreeMap<MemberLife, ReplicaKey>,
    /// Transfers under way.
    sends: BTreeMap<ReaderId, Sending>,
    waiting: VecDeque<WaitingReader>,
}

/// The trees of a home's objects, by the low halves of their ids. Time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Broadcasts {
    trees: BTreeMap<u64, BroadcastTree>,
}

/// A reader's request for a sender.
#[derive(Debug)]
pub(crate) struct SenderRequest<'a> {
    pub(crate) object: u64,
    pub(crate) bytes: u64,
    pub(crate) reader: ReaderId,
    /// The member that did not send it.
    pub(crate) failed: Option<&'a str>,
}

impl Broadcasts {
    /// Chooses the sender for a reader. `may_send`: whether a member is trusted with objects of
    /// this namespace.
    pub(crate) fn assign(
        &mut self,
        request: SenderRequest<'_>,
        may_send: impl Fn(&MemberLife) -> bool,
        now: Instant,
    ) -> SenderAnswer {
        let SenderRequest { object, bytes, reader, failed } = request;
        let tree = self.trees.entry(object).or_default();
        // It fetches the object, so it has no replica any more.
        tree.complete.remove(&reader.0);
        tree.sends.remove(&reader);
        if let Some(failed) = failed {
            tree.complete.retain(|member, _| member.name != failed);
            return tree.send_from_home(reader, now);
        }
        let is_there = |one: &WaitingReader| {
            one.reader == reader || now.saturating_duration_since(one.seen) < SILENT_MAX
        };
        tree.waiting.retain(is_there);
        let position = match tree.waiting.iter().position(|one| one.reader == reader) {
            Some(position) => position,
            None if tree.waiting.len() >= WAITING_MAX => return tree.send_from_home(reader, now),
            None => {
                let reader = reader.clone();
                tree.waiting.push_back(WaitingReader { reader, since: now, seen: now });
                tree.waiting.len() - 1
            }
        };
        // Those before this one in the queue take their places when they ask again.
        let slow = now.checked_sub(Duration::from_millis(bytes / SLOW_SEND_BYTES_PER_MS));
        let free = tree.free_senders(&may_send, slow);
        if position < free.len() {
            let sender = free.into_iter().next().flatten();
            return tree.send_from(sender, reader, now);
        }
        let Some(waiting) = tree.waiting.get_mut(position) else { return SenderAnswer::Home };
        waiting.seen = now;
        if now.saturating_duration_since(waiting.since) < wait_max(bytes) {
            return SenderAnswer::Wait;
        }
        tree.send_from_home(reader, now)
    }

    /// Notes that a member has a complete replica.
    pub(crate) fn completed(&mut self, object: u64, member: &MemberLife, key: ReplicaKey) {
        self.trees.entry(object).or_default().complete.insert(member.clone(), key);
    }

    /// Notes that a reader has released its hold: its transfer is over, or it has given up.
    pub(crate) fn ended(&mut self, object: u64, reader: &ReaderId) {
        let Some(tree) = self.trees.get_mut(&object) else { return };
        tree.sends.remove(reader);
        tree.waiting.retain(|one| one.reader != *reader);
        self.drop_if_empty(object);
    }

    /// Forgets the replicas of an object: their members are notified to drop them.
    pub(crate) fn recalled(&mut self, object: u64) {
        if let Some(tree) = self.trees.get_mut(&object) {
            tree.complete.clear();
        }
        self.drop_if_empty(object);
    }

    /// Forgets a member, or a daemon of it, that has ended.
    pub(crate) fn forget(&mut self, member: &MemberLife) {
        self.trees.retain(|_, tree| {
            tree.complete.remove(member);
            tree.sends.retain(|(reader, _), _| reader != member);
            tree.waiting.retain(|one| one.reader.0 != *member);
            !tree.is_empty()
        });
    }

    fn drop_if_empty(&mut self, object: u64) {
        if self.trees.get(&object).is_some_and(BroadcastTree::is_empty) {
            self.trees.remove(&object);
        }
    }
}

impl BroadcastTree {
    fn is_empty(&self) -> bool {
        self.complete.is_empty() && self.sends.is_empty() && self.waiting.is_empty()
    }

    /// The senders with a free place: the least busy first, and members before the home. Transfers
    /// that began before `slow` are slow.
    fn free_senders(
        &self,
        may_send: impl Fn(&MemberLife) -> bool,
        slow: Option<Instant>,
    ) -> Vec<Option<MemberLife>> {
        let members = self.complete.keys().filter(|member| may_send(member));
        let mut all: Vec<(usize, Option<&MemberLife>)> = members
            .map(Some)
            .chain([None])
            .filter_map(|sender| {
                let mut sends = self.sends.values().filter(|one| one.sender.as_ref() == sender);
                let count = sends.clone().count();
                let are_slow = sends.all(|one| slow.is_some_and(|slow| one.since <= slow));
                (count < SENDS_MAX && are_slow).then_some((count, sender))
            })
            .collect();
        all.sort_by_key(|(sends, sender)| (*sends, sender.is_none(), sender.cloned()));
        all.into_iter().map(|(_, sender)| sender.cloned()).collect()
    }

    fn send_from_home(&mut self, reader: ReaderId, now: Instant) -> SenderAnswer {
        self.send_from(None, reader, now)
    }

    fn send_from(
        &mut self,
        sender: Option<MemberLife>,
        reader: ReaderId,
        since: Instant,
    ) -> SenderAnswer {
        self.waiting.retain(|one| one.reader != reader);
        let found = sender.and_then(|member| self.complete.get_key_value(&member));
        let found = found.map(|(member, key)| (member.clone(), *key));
        let sender = found.as_ref().map(|(member, _)| member.clone());
        self.sends.insert(reader, Sending { sender, since });
        match found {
            Some((member, key)) => SenderAnswer::Member { name: member.name, key },
            None => SenderAnswer::Home,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: u64 = 1 << 32;
    const BYTES: u64 = 100 << 20;
    const SLOW: Duration = Duration::from_millis(BYTES / SLOW_SEND_BYTES_PER_MS);

    fn member(name: &str) -> MemberLife {
        MemberLife { name: name.to_owned(), incarnation: 1 }
    }

    /// A home whose readers ask with one hold each.
    struct BroadcastHome {
        broadcasts: Broadcasts,
        now: Instant,
    }

    impl BroadcastHome {
        fn new() -> Self {
            Self { broadcasts: Broadcasts::default(), now: Instant::now() }
        }

        fn ask_with(&mut self, name: &str, failed: Option<&str>) -> SenderAnswer {
            let reader = (member(name), HoldId(7));
            let request = SenderRequest { object: OBJECT, bytes: BYTES, reader, failed };
            self.broadcasts.assign(request, |member| member.name != "untrusted", self.now)
        }

        fn ask(&mut self, name: &str) -> SenderAnswer {
            self.ask_with(name, None)
        }

        fn sender(&mut self, name: &str) -> Option<String> {
            match self.ask(name) {
                SenderAnswer::Home => Some("home".to_owned()),
                SenderAnswer::Wait => None,
                SenderAnswer::Member { name, .. } => Some(name),
            }
        }

        /// A reader has all bytes.
        fn complete(&mut self, name: &str) {
            self.broadcasts.completed(OBJECT, &member(name), ReplicaKey([name.as_bytes()[0]; 32]));
            self.end(name);
        }

        fn end(&mut self, name: &str) {
            self.broadcasts.ended(OBJECT, &(member(name), HoldId(7)));
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
        }
    }

    #[test]
    fn an_object_spreads_from_those_that_have_it() {
        let mut home = BroadcastHome::new();
        let mut left: Vec<String> = (0..26).map(|n| format!("{}", (b'a' + n) as char)).collect();
        let mut from_home = 0;
        let mut rounds = 0;
        while !left.is_empty() {
            rounds += 1;
            let mut taken = Vec::new();
            let mut by_sender: BTreeMap<String, usize> = BTreeMap::new();
            for reader in &left {
                if let Some(sender) = home.sender(reader) {
                    from_home += usize::from(sender == "home");
                    *by_sender.entry(sender).or_default() += 1;
                    taken.push(reader.clone());
                }
            }
            assert!(by_sender.values().all(|sends| *sends == 1), "{by_sender:?}");
            assert!(left.starts_with(&taken), "in the order of arrival");
            taken.iter().for_each(|reader| home.complete(reader));
            left.retain(|reader| !taken.contains(reader));
            home.pass(Duration::from_millis(20));
        }
        // Each round doubles those that have it: 1, 2, 4, 8, 16. Then the members suffice.
        assert_eq!((rounds, from_home), (5, 4));
    }

    #[test]
    fn one_after_another_the_home_sends_it_once() {
        let mut home = BroadcastHome::new();
        assert_eq!(home.sender("a").as_deref(), Some("home"));
        home.complete("a");
        for reader in ["b", "c", "d"] {
            assert_ne!(home.sender(reader).as_deref(), Some("home"));
            home.complete(reader);
        }
        let SenderAnswer::Member { name, key } = home.ask("e") else { panic!("no member") };
        assert_eq!(key, ReplicaKey([name.as_bytes()[0]; 32]), "the key of that member");
    }

    #[test]
    fn waiting_ends_after_a_while_and_the_home_sends() {
        let mut home = BroadcastHome::new();
        assert_eq!(home.ask("a"), SenderAnswer::Home);
        home.pass(SLOW);
        assert_eq!(home.ask("b"), SenderAnswer::Home);
        let end = home.now + wait_max(BYTES);
        // No third one, however slow both are.
        while home.now < end {
            assert_eq!(home.ask("c"), SenderAnswer::Wait);
            home.pass(SILENT_MAX / 2);
        }
        assert_eq!(home.ask("c"), SenderAnswer::Home);
        assert_eq!(home.ask("d"), SenderAnswer::Wait, "d has just come");
    }

    #[test]
    fn a_second_transfer_begins_beside_a_slow_one() {
        let mut home = BroadcastHome::new();
        assert_eq!(home.ask("a"), SenderAnswer::Home);
        home.pass(SLOW - Duration::from_millis(1));
        assert_eq!(home.ask("b"), SenderAnswer::Wait);
        home.pass(Duration::from_millis(1));
        assert_eq!(home.ask("b"), SenderAnswer::Home);
        assert_eq!(home.ask("c"), SenderAnswer::Wait);
        home.complete("b");
        // The first one is still slow; the new member has a place too.
        assert_eq!(home.sender("c").as_deref(), Some("b"));
        assert_eq!(home.sender("d").as_deref(), Some("home"));
        assert_eq!(home.ask("e"), SenderAnswer::Wait);
    }

    #[test]
    fn a_silent_reader_loses_its_turn_and_a_lost_one_its_place() {
        let mut home = BroadcastHome::new();
        home.ask("a");
        assert_eq!(home.ask("b"), SenderAnswer::Wait);
        home.pass(SILENT_MAX);
        assert_eq!(home.ask("c"), SenderAnswer::Wait);
        home.end("a");
        assert_eq!(home.ask("c"), SenderAnswer::Home, "b has not asked for a second");
        assert_eq!(home.ask("d"), SenderAnswer::Wait);
        home.broadcasts.forget(&member("c"));
        assert_eq!(home.ask("d"), SenderAnswer::Home);
    }

    #[test]
    fn a_sender_that_failed_is_not_named_again_and_the_reader_does_not_wait() {
        let mut home = BroadcastHome::new();
        home.ask("a");
        home.complete("a");
        assert_eq!(home.sender("b").as_deref(), Some("a"));
        assert_eq!(home.sender("c").as_deref(), Some("home"));
        assert_eq!(home.ask("d"), SenderAnswer::Wait);
        assert_eq!(home.ask_with("b", Some("a")), SenderAnswer::Home, "beyond the limit");
        for reader in ["b", "c"] {
            home.end(reader);
        }
        assert_eq!(home.ask("d"), SenderAnswer::Home, "not a");
    }

    #[test]
    fn untrusted_and_recalled_replicas_are_not_sent() {
        let mut home = BroadcastHome::new();
        home.ask("untrusted");
        home.complete("untrusted");
        assert_eq!(home.ask("a"), SenderAnswer::Home);
        home.complete("a");
        home.broadcasts.recalled(OBJECT);
        assert_eq!(home.ask("b"), SenderAnswer::Home);
        home.end("b");
        assert!(home.broadcasts.trees.is_empty(), "{:?}", home.broadcasts);
    }

    #[test]
    fn a_node_is_never_its_own_sender() {
        let mut home = BroadcastHome::new();
        home.ask("a");
        home.complete("a");
        // Its replica was evicted.
        assert_eq!(home.ask("a"), SenderAnswer::Home);
        home.end("a");
        assert_eq!(home.ask("b"), SenderAnswer::Home, "nobody else has one");
    }

    #[test]
    fn the_queue_has_a_limit() {
        let mut home = BroadcastHome::new();
        home.ask("a");
        for number in 0..WAITING_MAX {
            assert_eq!(home.ask(&format!("w{number}")), SenderAnswer::Wait);
        }
        assert_eq!(home.ask("late"), SenderAnswer::Home);
    }

    #[test]
    fn keys_are_compared_whole_and_not_shown() {
        let key = ReplicaKey([7; 32]);
        let mut other = key;
        assert!(key.is(&other));
        other.0[31] ^= 1;
        assert!(!key.is(&other));
        assert_eq!(format!("{key:?}"), "ReplicaKey(..)");
    }
}
