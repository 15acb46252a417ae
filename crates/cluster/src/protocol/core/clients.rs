//! Clients: their connections, and those that are expected back.
//!
//! A connection has to send its first message in time, and then belongs to a client with a slot, or
//! only listens for events. A client without a connection, an orphan, keeps its slot while its
//! process lives: it may still read what it holds.

use std::collections::{BTreeMap, BTreeSet};

use farrow_store::{ClientSlot, NamespaceId, RemoteClient};
use farrow_wire::Rights;

use crate::protocol::identity::{PeerIdentity, SessionId};

/// A connection must send `Hello` within this time.
const HELLO_MS_MAX: u64 = 5_000;

/// Limit of connections at a time of users that may not connect.
const STRANGERS_MAX: usize = 16;

/// First check for orphans that map nothing: a client that was admitted by the former daemon has
/// mapped the region by then.
const ENDED_MS_MIN: u64 = 1_000;
/// Longest pause between these checks.
const ENDED_MS_MAX: u64 = 60_000;

/// Interval between checks for clients that did not return after a kill.
const DOUBTS_MS: u64 = 200;

/// A connection.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct ClientSession {
    pub(in crate::protocol) peer: PeerIdentity,
    pub(in crate::protocol) slot: Option<ClientSlot>,
    pub(in crate::protocol) has_said_goodbye: bool,
    /// The slot of the client of which this is a further connection, for events only.
    pub(in crate::protocol) listens_for: Option<ClientSlot>,
    /// Namespace of the client; the default one until there is a client.
    pub(in crate::protocol) namespace: NamespaceId,
    /// Rights in the namespace; for a remote client by the rules for its node.
    pub(in crate::protocol) rights: Rights,
    /// False: a remote client that sends requests alone. It cannot reconnect.
    pub(in crate::protocol) maps_memory: bool,
    /// Whether it has its slot since this connection, so it maps nothing before the first answer.
    pub(in crate::protocol) is_newcomer: bool,
    /// The nonce of the client; 0 until there is one.
    pub(in crate::protocol) nonce: u64,
    /// Its user may not connect.
    is_stranger: bool,
    hello_by_ms: u64,
}

impl ClientSession {
    /// Whether its first message was accepted.
    pub(in crate::protocol) fn is_introduced(&self) -> bool {
        self.slot.is_some() || self.listens_for.is_some()
    }
}

/// What the first message of a connection led to.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct Admitted {
    /// The client's slot, if the connection is the one that has it.
    pub(in crate::protocol) slot: Option<ClientSlot>,
    /// The client's slot, if the connection only listens for events.
    pub(in crate::protocol) listens_for: Option<ClientSlot>,
    pub(in crate::protocol) namespace: NamespaceId,
    pub(in crate::protocol) rights: Rights,
    pub(in crate::protocol) maps_memory: bool,
    pub(in crate::protocol) is_newcomer: bool,
    pub(in crate::protocol) nonce: u64,
}

/// When to look for orphans that have ended: their goodbye was answered by the former daemon, which
/// still waited for the end of their mapping when it was replaced or killed.
#[derive(Debug)]
struct EndedOrphans {
    at_ms: u64,
    wait_ms: u64,
}

impl EndedOrphans {
    fn new(now_ms: u64) -> Self {
        Self { at_ms: now_ms.saturating_add(ENDED_MS_MIN), wait_ms: ENDED_MS_MIN }
    }
}

/// The connections, and the clients that are expected back.
#[derive(Debug)]
pub(in crate::protocol) struct Clients {
    owner_uid: u32,
    /// Users that may connect besides the owner.
    users: BTreeSet<u32>,
    sessions: BTreeMap<SessionId, ClientSession>,
    /// Number of connections of users that may not connect.
    strangers: usize,
    /// Connections without a hello, by their deadline for it.
    silent: BTreeSet<(u64, SessionId)>,
    /// Clients without a connection that may still read what they hold.
    orphans: BTreeMap<ClientSlot, PeerIdentity>,
    /// Time of the next check for clients that did not return after a kill; `None`: there are none.
    doubts_at_ms: Option<u64>,
    ended_orphans: EndedOrphans,
}

impl Clients {
    /// `orphans` are the clients of the former daemon.
    pub(in crate::protocol) fn new(
        owner_uid: u32,
        orphans: impl IntoIterator<Item = (ClientSlot, PeerIdentity)>,
        now_ms: u64,
    ) -> Self {
        Self {
            owner_uid,
            users: BTreeSet::new(),
            sessions: BTreeMap::new(),
            strangers: 0,
            silent: BTreeSet::new(),
            orphans: orphans.into_iter().collect(),
            doubts_at_ms: Some(now_ms),
            ended_orphans: EndedOrphans::new(now_ms),
        }
    }

    /// The user that runs the node.
    pub(in crate::protocol) fn owner_uid(&self) -> u32 {
        self.owner_uid
    }

    /// Whether a user may do everything: the node's own, and root.
    pub(in crate::protocol) fn is_owner(&self, uid: u32) -> bool {
        uid == self.owner_uid || uid == 0
    }

    /// Sets the users that may connect besides the node's own and root.
    pub(in crate::protocol) fn allow_users(&mut self, users: &[u32]) {
        self.users = users.iter().copied().collect();
    }

    /// Whether this user may connect. For a remote client its own node decides, since user ids
    /// differ between nodes.
    pub(in crate::protocol) fn may_connect(&self, peer: &PeerIdentity) -> bool {
        peer.remote_client.is_some() || self.is_owner(peer.uid) || self.users.contains(&peer.uid)
    }

    /// Whether to accept a connection. Users that may not connect only get that answer, and must
    /// not exhaust the descriptors of the node.
    pub(in crate::protocol) fn has_room_for(&self, peer: &PeerIdentity) -> bool {
        self.may_connect(peer) || self.strangers < STRANGERS_MAX
    }

    /// Notes an accepted connection.
    pub(in crate::protocol) fn opened(&mut self, id: SessionId, peer: PeerIdentity, now_ms: u64) {
        let hello_by_ms = now_ms.saturating_add(HELLO_MS_MAX);
        let session = ClientSession {
            peer,
            slot: None,
            has_said_goodbye: false,
            listens_for: None,
            namespace: NamespaceId::DEFAULT,
            rights: if peer.remote_client.is_some() { Rights::NONE } else { Rights::ALL },
            maps_memory: true,
            is_newcomer: false,
            nonce: 0,
            is_stranger: !self.may_connect(&peer),
            hello_by_ms,
        };
        self.strangers += usize::from(session.is_stranger);
        self.sessions.insert(id, session);
        self.silent.insert((hello_by_ms, id));
    }

    /// Takes out a connection that has ended.
    pub(in crate::protocol) fn closed(&mut self, id: SessionId) -> Option<ClientSession> {
        let session = self.sessions.remove(&id)?;
        self.silent.remove(&(session.hello_by_ms, id));
        self.strangers -= usize::from(session.is_stranger);
        Some(session)
    }

    pub(in crate::protocol) fn session(&self, id: SessionId) -> Option<&ClientSession> {
        self.sessions.get(&id)
    }

    /// Whether a connection is that of a client with this slot.
    pub(in crate::protocol) fn is_of(&self, id: SessionId, slot: ClientSlot) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.slot == Some(slot))
    }

    /// The connections of a slot: one, or none.
    pub(in crate::protocol) fn sessions_of(
        &self,
        slot: ClientSlot,
    ) -> impl Iterator<Item = (SessionId, &ClientSession)> {
        let all = self.sessions.iter().map(|(id, session)| (*id, session));
        all.filter(move |(_, session)| session.slot == Some(slot))
    }

    /// Number of further connections of a client, which listen for events.
    pub(in crate::protocol) fn listeners_of(&self, slot: ClientSlot) -> usize {
        self.sessions.values().filter(|session| session.listens_for == Some(slot)).count()
    }

    /// The connections of clients of other nodes.
    pub(in crate::protocol) fn of_other_nodes(
        &self,
    ) -> impl Iterator<Item = (SessionId, RemoteClient, NamespaceId)> {
        let all = self.sessions.iter();
        all.filter_map(|(id, one)| Some((*id, one.peer.remote_client?, one.namespace)))
    }

    /// Sets the rights of a connection after a change of the rules.
    pub(in crate::protocol) fn set_rights(&mut self, id: SessionId, rights: Rights) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.rights = rights;
        }
    }

    /// Notes that the first message of a connection was accepted.
    pub(in crate::protocol) fn admitted(&mut self, id: SessionId, admitted: Admitted) {
        let Admitted { slot, listens_for, namespace, rights, maps_memory, is_newcomer, nonce } =
            admitted;
        self.introduced(id);
        if let Some(session) = self.sessions.get_mut(&id) {
            (session.slot, session.listens_for) = (slot, listens_for);
            (session.namespace, session.rights) = (namespace, rights);
            (session.maps_memory, session.is_newcomer) = (maps_memory, is_newcomer);
            session.nonce = nonce;
        }
        if let Some(slot) = slot {
            self.orphans.remove(&slot);
        }
    }

    /// Ends the wait for a first message: it arrived, or was forwarded to another node.
    pub(in crate::protocol) fn introduced(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(&id) {
            self.silent.remove(&(session.hello_by_ms, id));
        }
    }

    /// Notes that a client will not return.
    pub(in crate::protocol) fn said_goodbye(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.has_said_goodbye = true;
        }
    }

    /// The connection that has been silent for the longest time.
    pub(in crate::protocol) fn first_silent(&self) -> Option<SessionId> {
        self.silent.first().map(|(_, session)| *session)
    }

    /// Takes out a connection whose first message did not arrive in time.
    pub(in crate::protocol) fn take_silent(&mut self, now_ms: u64) -> Option<SessionId> {
        let due = self.silent.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms)?;
        self.silent.remove(&due);
        Some(due.1)
    }

    /// The clients without a connection that are still expected.
    pub(in crate::protocol) fn orphans(
        &self,
    ) -> impl Iterator<Item = (ClientSlot, PeerIdentity)> + '_ {
        self.orphans.iter().map(|(slot, peer)| (*slot, *peer))
    }

    pub(in crate::protocol) fn orphan(&self, slot: ClientSlot) -> Option<PeerIdentity> {
        self.orphans.get(&slot).copied()
    }

    /// Expects a client back whose connection has ended. The next check for its end is soon, and no
    /// later than it was: connections may end all the time.
    pub(in crate::protocol) fn expect(
        &mut self,
        slot: ClientSlot,
        peer: PeerIdentity,
        now_ms: u64,
    ) {
        self.orphans.insert(slot, peer);
        let next = EndedOrphans::new(now_ms);
        let at_ms = next.at_ms.min(self.ended_orphans.at_ms.max(now_ms));
        self.ended_orphans = EndedOrphans { at_ms, ..next };
    }

    /// Takes out a client that does not return.
    pub(in crate::protocol) fn take_orphan(&mut self, slot: ClientSlot) -> Option<PeerIdentity> {
        self.orphans.remove(&slot)
    }

    /// Number of clients that are connected or expected back.
    pub(in crate::protocol) fn count(&self) -> usize {
        let connected = self.sessions.values().filter(|session| session.slot.is_some()).count();
        connected + self.orphans.len()
    }

    /// Whether to check for clients that did not return after a kill.
    pub(in crate::protocol) fn are_doubts_due(&self, now_ms: u64) -> bool {
        self.doubts_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Notes the end of such a check, and whether there are still such clients.
    pub(in crate::protocol) fn checked_doubts(&mut self, are_left: bool, now_ms: u64) {
        self.doubts_at_ms = are_left.then(|| now_ms.saturating_add(DOUBTS_MS));
    }

    /// Whether to check for orphans that map nothing any more; the next check is later.
    pub(in crate::protocol) fn is_end_check_due(&mut self, now_ms: u64) -> bool {
        let timer = &mut self.ended_orphans;
        if self.orphans.is_empty() || timer.at_ms > now_ms {
            return false;
        }
        timer.wait_ms = (timer.wait_ms * 2).min(ENDED_MS_MAX);
        timer.at_ms = now_ms.saturating_add(timer.wait_ms);
        true
    }

    /// When a check or the end of a silent connection is due.
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let hello = self.silent.first().map(|(at_ms, _)| *at_ms);
        let ended = (!self.orphans.is_empty()).then_some(self.ended_orphans.at_ms);
        [hello, self.doubts_at_ms, ended].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;

    fn peer(uid: u32) -> PeerIdentity {
        PeerIdentity { pid: 7, start_time: 1, uid, remote_client: None }
    }

    fn admitted(slot: Option<u32>) -> Admitted {
        let (slot, namespace) = (slot.map(ClientSlot), NamespaceId::DEFAULT);
        let listens_for = slot.is_none().then_some(ClientSlot(0));
        Admitted {
            slot,
            listens_for,
            namespace,
            rights: Rights::ALL,
            maps_memory: true,
            is_newcomer: slot.is_some(),
            nonce: 9,
        }
    }

    #[test]
    fn a_connection_without_a_hello_ends_and_others_do_not() {
        let mut clients = Clients::new(OWNER, [], 0);
        clients.checked_doubts(false, 0);
        for id in [1, 2, 3] {
            clients.opened(SessionId(id), peer(OWNER), id);
        }
        clients.admitted(SessionId(1), admitted(Some(4)));
        clients.introduced(SessionId(2));
        assert_eq!(clients.first_silent(), Some(SessionId(3)));
        assert_eq!(clients.next_deadline_ms(), Some(3 + HELLO_MS_MAX));
        assert_eq!(clients.take_silent(2 + HELLO_MS_MAX), None);
        assert_eq!(clients.take_silent(3 + HELLO_MS_MAX), Some(SessionId(3)));
        assert_eq!(clients.take_silent(u64::MAX), None);
        assert!(clients.is_of(SessionId(1), ClientSlot(4)) && clients.count() == 1);
    }

    /// Connections of strangers only get an answer, and few of them exist at a time.
    #[test]
    fn connections_of_users_that_may_not_connect_are_limited() {
        let mut clients = Clients::new(OWNER, [], 0);
        clients.allow_users(&[5]);
        assert!([0, OWNER, 5].iter().all(|uid| clients.may_connect(&peer(*uid))));
        assert!(!clients.is_owner(5) && clients.is_owner(0));
        for id in 0..STRANGERS_MAX as u64 {
            assert!(clients.has_room_for(&peer(6)));
            clients.opened(SessionId(id), peer(6), 0);
        }
        assert!(!clients.has_room_for(&peer(6)) && clients.has_room_for(&peer(5)));
        assert!(clients.closed(SessionId(0)).is_some() && clients.closed(SessionId(0)).is_none());
        assert!(clients.has_room_for(&peer(6)));
    }

    #[test]
    fn a_client_that_returns_is_expected_no_more() {
        let orphans = [(ClientSlot(1), peer(OWNER)), (ClientSlot(2), peer(OWNER))];
        let mut clients = Clients::new(OWNER, orphans, 0);
        clients.opened(SessionId(1), peer(OWNER), 0);
        clients.admitted(SessionId(1), admitted(Some(1)));
        assert_eq!(clients.orphans().collect::<Vec<_>>(), orphans[1..]);
        let session = clients.closed(SessionId(1)).unwrap();
        assert!(session.is_introduced() && !session.has_said_goodbye);
        clients.expect(ClientSlot(1), session.peer, 0);
        assert_eq!(clients.count(), 2);
        assert_eq!(clients.take_orphan(ClientSlot(2)), Some(peer(OWNER)));
        assert_eq!(clients.take_orphan(ClientSlot(2)), None);
        // A connection that listens is no client.
        clients.opened(SessionId(2), peer(OWNER), 0);
        clients.admitted(SessionId(2), admitted(None));
        assert!(clients.session(SessionId(2)).unwrap().is_introduced());
        assert_eq!(clients.count(), 1);
    }

    #[test]
    fn checks_for_ended_orphans_become_rare_and_stop_with_the_last_one() {
        let mut clients = Clients::new(OWNER, [(ClientSlot(1), peer(OWNER))], 0);
        assert!(clients.are_doubts_due(0));
        clients.checked_doubts(true, 0);
        assert_eq!(clients.next_deadline_ms(), Some(DOUBTS_MS));
        clients.checked_doubts(false, DOUBTS_MS);
        assert!(!clients.are_doubts_due(u64::MAX));
        let mut due_ms = Vec::new();
        for _ in 0..8 {
            let at_ms = clients.next_deadline_ms().unwrap();
            assert!(!clients.is_end_check_due(at_ms - 1) && clients.is_end_check_due(at_ms));
            due_ms.push(at_ms);
        }
        let pauses: Vec<u64> = due_ms.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        // A client that is expected since then does not wait for the rare ones.
        let now_ms = due_ms[7] + 10;
        clients.expect(ClientSlot(2), peer(OWNER), now_ms);
        assert_eq!(clients.next_deadline_ms(), Some(now_ms + ENDED_MS_MIN));
        assert!(clients.is_end_check_due(now_ms + ENDED_MS_MIN));
        clients.expect(ClientSlot(3), peer(OWNER), now_ms + ENDED_MS_MIN);
        clients.expect(ClientSlot(3), peer(OWNER), now_ms + ENDED_MS_MIN + 500);
        assert_eq!(clients.next_deadline_ms(), Some(now_ms + 2 * ENDED_MS_MIN), "not later");
        clients.take_orphan(ClientSlot(3));
        clients.take_orphan(ClientSlot(2));
        clients.take_orphan(ClientSlot(1));
        assert_eq!(clients.next_deadline_ms(), None);
        assert!(!clients.is_end_check_due(u64::MAX));
    }
}
