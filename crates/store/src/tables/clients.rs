//! The client table: all joined clients, so that a restarted home knows which processes to watch.

use crate::error::StoreError;
use crate::failpoint;
use crate::format::ids::NamespaceId;
use crate::format::layout::{CLIENT_BYTES, Layout};
use crate::tables::control::{Control, word_of};

/// Index of a record in the client table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientSlot(pub u32);

/// The result of joining. The nonce proves that a client is the same one when it reconnects to a
/// restarted home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joined {
    /// Its slot.
    pub client: ClientSlot,
    /// A random number known only to the client and the home.
    pub nonce: u64,
}

/// The node of a client that runs on another node than the home.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RemoteClient {
    /// The daemon's id of that node, stable across restarts of both.
    pub node: u64,
}

/// A client that joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Newcomer {
    /// Its process.
    pub pid: u32,
    /// Start time of that process: distinguishes it from a later one with the same pid.
    pub start_time: u64,
    /// Its user.
    pub uid: u32,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// `None`: it runs on the home's own node.
    pub remote_client: Option<RemoteClient>,
}

/// A record of the client table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientRecord {
    /// Its slot.
    pub client: ClientSlot,
    /// Its process.
    pub pid: u32,
    /// Start time of that process, in a unit chosen by the daemon: distinguishes it from a later
    /// process with the same pid.
    pub start_time: u64,
    /// Its user.
    pub uid: u32,
    /// See [`Joined`].
    pub nonce: u64,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// `None`: it runs on the home's own node.
    pub remote_client: Option<RemoteClient>,
}

const STATE_WORD: u64 = 0;
const FREE: u64 = 0;
const JOINED: u64 = 1;
const LEAVING: u64 = 2;
const RECORD_WORDS: usize = 8;

/// The table and the home's copy of it.
#[derive(Debug)]
pub(crate) struct ClientTable {
    control: Control,
    layout: Layout,
    joined: Vec<Option<ClientRecord>>,
    free: Vec<u32>,
    /// Clients whose departure a former home did not finish.
    leaving: Vec<u32>,
}

impl ClientTable {
    pub(crate) fn open(control: Control, layout: Layout) -> Result<Self, StoreError> {
        let mut table =
            Self { control, layout, joined: Vec::new(), free: Vec::new(), leaving: Vec::new() };
        for slot in 0..layout.clients_max {
            let at = word_of(layout.clients, CLIENT_BYTES, slot, 0);
            let words: [u64; RECORD_WORDS] = table.control.load_record(at)?;
            let record = ClientRecord {
                client: ClientSlot(slot),
                pid: words[1] as u32,
                start_time: words[2],
                uid: (words[1] >> 32) as u32,
                nonce: words[3],
                namespace: NamespaceId(words[4] as u16),
                remote_client: (words[4] >> 16 & 1 == 1).then_some(RemoteClient { node: words[5] }),
            };
            table.joined.push((words[0] != FREE).then_some(record));
            match words[0] {
                FREE => table.free.push(slot),
                JOINED => {}
                _ => table.leaving.push(slot),
            }
        }
        table.free.reverse();
        Ok(table)
    }

    pub(crate) fn join(&mut self, newcomer: &Newcomer) -> Result<Joined, StoreError> {
        let Newcomer { pid, start_time, uid, namespace, remote_client } = *newcomer;
        let max = self.layout.clients_max;
        let slot = *self.free.last().ok_or(StoreError::TooManyClients { max })?;
        let nonce = random()?;
        let client = ClientSlot(slot);
        let who = u64::from(pid) | u64::from(uid) << 32;
        let whence = u64::from(namespace.0) | u64::from(remote_client.is_some()) << 16;
        let node = remote_client.map_or(0, |remote_client| remote_client.node);
        let record = [who, start_time, nonce, whence, node];
        self.control.store_record(self.word(client, 1), &record)?;
        failpoint!("client.join.record");
        self.set_state(client, JOINED)?;
        failpoint!("client.join.state");
        self.free.pop();
        if let Some(place) = self.joined.get_mut(slot as usize) {
            *place = Some(ClientRecord {
                client,
                pid,
                start_time,
                uid,
                nonce,
                namespace,
                remote_client,
            });
        }
        Ok(Joined { client, nonce })
    }

    pub(crate) fn get(&self, client: ClientSlot) -> Result<&ClientRecord, StoreError> {
        let place = self.joined.get(client.0 as usize).and_then(Option::as_ref);
        place.ok_or(StoreError::NoSuchClient { slot: client.0 })
    }

    /// From here on a new home finishes the departure of this client.
    pub(crate) fn begin_leave(&mut self, client: ClientSlot) -> Result<(), StoreError> {
        self.get(client)?;
        self.set_state(client, LEAVING)
    }

    pub(crate) fn end_leave(&mut self, client: ClientSlot) -> Result<(), StoreError> {
        self.set_state(client, FREE)?;
        if let Some(place) = self.joined.get_mut(client.0 as usize) {
            *place = None;
        }
        self.free.push(client.0);
        Ok(())
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &ClientRecord> {
        self.joined.iter().flatten()
    }

    pub(crate) fn has_place(&self) -> bool {
        !self.free.is_empty()
    }

    /// Clients whose departure a former home did not finish; empty on a second call.
    pub(crate) fn take_leaving(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.leaving)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        for (slot, record) in (0..).zip(&self.joined) {
            let state = self.control.load(self.word(ClientSlot(slot), STATE_WORD));
            let state = state.map_err(|error| error.to_string())?;
            let expected = if record.is_some() { JOINED } else { FREE };
            if state != expected || record.is_some() == self.free.contains(&slot) {
                return Err(format!("client {slot}: state {state}, expected {expected}"));
            }
        }
        Ok(())
    }

    fn set_state(&self, client: ClientSlot, state: u64) -> Result<(), StoreError> {
        self.control.store(self.word(client, STATE_WORD), state)
    }

    fn word(&self, client: ClientSlot, word: u64) -> farrow_memory::Offset {
        word_of(self.layout.clients, CLIENT_BYTES, client.0, word)
    }
}

/// A random word that is not zero.
pub(crate) fn random() -> Result<u64, StoreError> {
    loop {
        let word = getrandom::u64()
            .map_err(|error| StoreError::Inconsistent(format!("no random numbers: {error}")))?;
        if word != 0 {
            return Ok(word);
        }
    }
}
