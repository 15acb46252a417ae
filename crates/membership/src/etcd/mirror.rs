//! The result of the last look.

use std::collections::BTreeMap;

use super::types::{EtcdSnapshot, Key, LeaseId, NodeRecord, Revision};
use crate::types::{Incarnation, NodeName};
use crate::view::View;

#[derive(Debug)]
enum KeyContent {
    View(View),
    Record(NodeRecord),
    Alive,
    /// Not written by a node of this cluster.
    Nonsense,
}

#[derive(Debug)]
struct MirrorEntry {
    revision: Revision,
    lease: Option<LeaseId>,
    content: KeyContent,
}

/// All keys below the prefix, as of one revision.
#[derive(Debug, Default)]
pub(super) struct EtcdMirror {
    revision: Revision,
    entries: BTreeMap<Key, MirrorEntry>,
}

impl EtcdMirror {
    /// First revision of the values that the next look needs.
    pub(super) fn since(&self) -> Revision {
        match self.revision {
            Revision(0) => Revision(0),
            Revision(last) => Revision(last.saturating_add(1)),
        }
    }

    /// Applies a look; false if it does not continue from the last one. The data of etcd was then
    /// replaced, and a look at all of it is necessary.
    pub(super) fn apply(&mut self, snapshot: EtcdSnapshot) -> bool {
        let is_older = snapshot.revision < self.revision;
        for found in snapshot.changed {
            let content = read(&found.key, &found.value);
            let entry = MirrorEntry { revision: found.revision, lease: found.lease, content };
            self.entries.insert(found.key, entry);
        }
        let listed: BTreeMap<Key, Revision> = snapshot.keys.into_iter().collect();
        self.entries.retain(|key, _| listed.contains_key(key));
        let is_known = |(key, revision): (&Key, &Revision)| {
            self.entries.get(key).is_some_and(|entry| entry.revision == *revision)
        };
        if is_older || !listed.iter().all(is_known) {
            *self = Self::default();
            return false;
        }
        self.revision = snapshot.revision;
        true
    }

    /// Revision at which a key was last written; 0: it does not exist.
    pub(super) fn revision_of(&self, key: &Key) -> Revision {
        self.entries.get(key).map_or(Revision(0), |entry| entry.revision)
    }

    /// The view; an error if the stored view cannot be decoded.
    pub(super) fn view(&self) -> Result<Option<&View>, Revision> {
        match self.entries.get(&Key::View) {
            None => Ok(None),
            Some(MirrorEntry { content: KeyContent::View(view), .. }) => Ok(Some(view)),
            Some(entry) => Err(entry.revision),
        }
    }

    /// The registration of a node.
    pub(super) fn record(&self, name: &NodeName) -> Option<&NodeRecord> {
        match self.entries.get(&Key::Node(name.clone()))? {
            MirrorEntry { content: KeyContent::Record(record), .. } => Some(record),
            _ => None,
        }
    }

    /// All registrations.
    pub(super) fn records(&self) -> impl Iterator<Item = &NodeRecord> {
        self.entries.values().filter_map(|entry| match &entry.content {
            KeyContent::Record(record) => Some(record),
            _ => None,
        })
    }

    /// The lease of a node's sign of life; `None` without one.
    pub(super) fn lease_of(&self, name: &NodeName) -> Option<LeaseId> {
        self.entries.get(&Key::Alive(name.clone()))?.lease
    }

    /// Whether a node has a sign of life, of any incarnation.
    pub(super) fn is_alive(&self, name: &NodeName) -> bool {
        self.entries.contains_key(&Key::Alive(name.clone()))
    }

    /// Whether exactly this life is present and not leaving.
    pub(super) fn is_present(&self, name: &NodeName, incarnation: Incarnation) -> bool {
        let is_it =
            |record: &NodeRecord| record.node.incarnation == incarnation && !record.is_leaving;
        self.record(name).is_some_and(is_it) && self.is_alive(name)
    }

    /// The revisions of the two keys of a node: equal in two looks only if neither key was written
    /// between them.
    pub(super) fn marks_of(&self, name: &NodeName) -> [(Key, Revision); 2] {
        let keys = [Key::Node(name.clone()), Key::Alive(name.clone())];
        keys.map(|key| {
            let revision = self.revision_of(&key);
            (key, revision)
        })
    }
}

fn read(key: &Key, value: &[u8]) -> KeyContent {
    match key {
        Key::Alive(_) => KeyContent::Alive,
        Key::View => match postcard::from_bytes::<View>(value) {
            Ok(view) if view.is_sound() => KeyContent::View(view),
            _ => KeyContent::Nonsense,
        },
        Key::Node(name) => match NodeRecord::decode(value) {
            Some(record) if record.node.name == *name && record.node.is_sound() => {
                KeyContent::Record(record)
            }
            _ => KeyContent::Nonsense,
        },
    }
}
