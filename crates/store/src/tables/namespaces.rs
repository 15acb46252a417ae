//! The namespace table: names, limits and permitted writers of all namespaces.
//!
//! The default namespace has number 0, no record, no name and no limits. Record `n` describes
//! number `n + 1`. A record is written while its state is free, and becomes valid by one store.

use crate::error::StoreError;
use crate::failpoint;
use crate::format::ids::NamespaceId;
use crate::format::layout::{Layout, NAMESPACE_BYTES};
use crate::format::options::{NAMESPACE_NAME_BYTES_MAX, WRITERS_MAX};
use crate::tables::control::{Control, word_of};

const RECORD_WORDS: usize = (NAMESPACE_BYTES / 8) as usize;
const STATE_WORD: u64 = 0;
const FREE: u64 = 0;
const IN_USE: u64 = 1;
/// Lengths, and the limit of objects.
const OBJECTS_WORD: usize = 1;
/// Words of the name.
const NAME_WORDS: std::ops::Range<usize> = 2..10;
const BYTES_WORD: usize = 10;
const EVENTS_WORD: usize = 11;
/// Words of the writers, two in each.
const WRITER_WORDS: std::ops::Range<usize> = 12..16;
/// Number of writers if every user may write.
const ANYBODY: u64 = 0xff;

/// The options of a namespace. [`Default`]: the default namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceOptions {
    /// 1 to 63 bytes of UTF-8 without NUL.
    pub name: String,
    /// Bytes for all its clients and the objects of departed clients; `None`: no limit.
    pub bytes_max: Option<u64>,
    /// Sealed objects in it; `None`: as many as the region allows.
    pub objects_max: Option<u32>,
    /// Users that may write in it, at most 8; `None`: all.
    pub writers: Option<Vec<u32>>,
}

/// A namespace in the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Namespace {
    /// Its number.
    pub id: NamespaceId,
    /// Its name and its limits.
    pub options: NamespaceOptions,
    /// How many events were published before its creation: those are not its own.
    pub events_from: u64,
}

/// The table and the home's copy of it.
#[derive(Debug)]
pub(crate) struct NamespaceTable {
    control: Control,
    layout: Layout,
    default: Namespace,
    /// By record.
    known: Vec<Option<Namespace>>,
}

impl NamespaceTable {
    /// Read the table. Also returns a message for each invalid record; those are freed.
    pub(crate) fn open(
        control: Control,
        layout: Layout,
    ) -> Result<(Self, Vec<String>), StoreError> {
        let default = Namespace::default();
        let mut table = Self { control, layout, default, known: Vec::new() };
        let mut damaged = Vec::new();
        for record in 0..layout.namespaces_max {
            let words: [u64; RECORD_WORDS] = table.control.load_record(table.word(record, 0))?;
            let found = match words[STATE_WORD as usize] {
                FREE => None,
                IN_USE => decode(&words, id_of(record)),
                _ => None,
            };
            let is_new = |one: &Namespace| table.find(&one.options.name).is_none();
            let found = found.filter(is_new);
            if found.is_none() && words[STATE_WORD as usize] != FREE {
                damaged.push(format!("namespace record {record} is invalid"));
                table.control.store(table.word(record, STATE_WORD), FREE)?;
            }
            table.known.push(found);
        }
        Ok((table, damaged))
    }

    /// Create a namespace and return its number. `is_unused`: whether nothing is left of an
    /// earlier namespace with a number.
    pub(crate) fn create(
        &mut self,
        options: &NamespaceOptions,
        events_from: u64,
        is_unused: impl Fn(NamespaceId) -> bool,
    ) -> Result<NamespaceId, StoreError> {
        check(options)?;
        if self.find(&options.name).is_some() {
            return Err(StoreError::NameTaken { name: options.name.clone() });
        }
        let max = self.layout.namespaces_max;
        let free = (0..).zip(&self.known).filter(|(_, known)| known.is_none());
        let record = free.map(|(record, _)| record).find(|record| is_unused(id_of(*record)));
        let record = record.ok_or(StoreError::TooManyNamespaces { max })?;
        let id = id_of(record);
        let namespace = Namespace { id, options: options.clone(), events_from };
        let words = encode(&namespace);
        self.control.store_record(self.word(record, 1), words.get(1..).unwrap_or_default())?;
        failpoint!("namespace.record");
        self.control.store(self.word(record, STATE_WORD), IN_USE)?;
        failpoint!("namespace.created");
        if let Some(place) = self.known.get_mut(record as usize) {
            *place = Some(namespace);
        }
        Ok(id)
    }

    /// Set both limits, each by one store, so that the record is valid at each moment.
    pub(crate) fn set_limits(
        &mut self,
        id: NamespaceId,
        bytes_max: Option<u64>,
        objects_max: Option<u32>,
    ) -> Result<(), StoreError> {
        let record = u32::from(id.0).checked_sub(1);
        let known = record.and_then(|record| self.known.get_mut(record as usize)?.as_mut());
        let (Some(record), Some(known)) = (record, known) else {
            return Err(StoreError::NamespaceNameInvalid { bytes: 0 });
        };
        // The largest values stand for "no limit" in the record.
        known.options.bytes_max = bytes_max.filter(|max| *max != u64::MAX);
        known.options.objects_max = objects_max.filter(|max| *max != u32::MAX);
        let words = encode(known);
        for (word, value) in (0..).zip(words) {
            if word == OBJECTS_WORD || word == BYTES_WORD {
                self.control.store(self.word(record, word as u64), value)?;
            }
        }
        Ok(())
    }

    /// Free a record. The caller has checked that the namespace is empty.
    pub(crate) fn remove(&mut self, id: NamespaceId) -> Result<(), StoreError> {
        let Some(record) = u32::from(id.0).checked_sub(1) else {
            return Ok(());
        };
        self.control.store(self.word(record, STATE_WORD), FREE)?;
        failpoint!("namespace.dropped");
        if let Some(place) = self.known.get_mut(record as usize) {
            *place = None;
        }
        Ok(())
    }

    /// All namespaces, the default one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> {
        std::iter::once(&self.default).chain(self.known.iter().flatten())
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Namespace> {
        self.iter().find(|one| one.options.name == name)
    }

    pub(crate) fn get(&self, id: NamespaceId) -> Option<&Namespace> {
        match usize::from(id.0).checked_sub(1) {
            Some(record) => self.known.get(record).and_then(Option::as_ref),
            None => Some(&self.default),
        }
    }

    /// Whether private state and table agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (record, known) in (0..).zip(&self.known) {
            let words = self.control.load_record(self.word(record, 0));
            let words: [u64; RECORD_WORDS] = words.map_err(|error| error.to_string())?;
            let is_right = match known {
                Some(known) => words == encode(known),
                None => words[STATE_WORD as usize] == FREE,
            };
            if !is_right {
                return Err(format!("namespace record {record} is not that of {known:?}"));
            }
        }
        Ok(())
    }

    fn word(&self, record: u32, word: u64) -> farrow_memory::Offset {
        word_of(self.layout.namespaces, NAMESPACE_BYTES, record, word)
    }
}

/// `NAMESPACES_MAX` is far below 16 bits.
fn id_of(record: u32) -> NamespaceId {
    NamespaceId(u16::try_from(record + 1).unwrap_or(u16::MAX))
}

fn check(options: &NamespaceOptions) -> Result<(), StoreError> {
    let bytes = options.name.len() as u64;
    if bytes == 0 || bytes > NAMESPACE_NAME_BYTES_MAX || options.name.contains('\0') {
        return Err(StoreError::NamespaceNameInvalid { bytes });
    }
    let found = options.writers.as_ref().map_or(0, Vec::len);
    if found > WRITERS_MAX {
        return Err(StoreError::TooManyWriters { found, max: WRITERS_MAX });
    }
    Ok(())
}

fn encode(namespace: &Namespace) -> [u64; RECORD_WORDS] {
    let NamespaceOptions { name, bytes_max, objects_max, writers } = &namespace.options;
    let mut words = [0; RECORD_WORDS];
    let count = writers.as_ref().map_or(ANYBODY, |writers| writers.len() as u64);
    words[STATE_WORD as usize] = IN_USE;
    words[1] =
        name.len() as u64 & 0xff | count << 8 | u64::from(objects_max.unwrap_or(u32::MAX)) << 32;
    for (word, chunk) in words.iter_mut().skip(NAME_WORDS.start).zip(name.as_bytes().chunks(8)) {
        let byte = |i: usize| u64::from(chunk.get(i).copied().unwrap_or(0)) << (8 * i);
        *word = (0..8).map(byte).sum();
    }
    words[BYTES_WORD] = bytes_max.unwrap_or(u64::MAX);
    words[EVENTS_WORD] = namespace.events_from;
    let pairs = writers.as_deref().unwrap_or_default().chunks(2);
    for (word, pair) in words.iter_mut().skip(WRITER_WORDS.start).zip(pairs) {
        let user = |i: usize| u64::from(pair.get(i).copied().unwrap_or(0));
        *word = user(0) | user(1) << 32;
    }
    words
}

fn decode(words: &[u64; RECORD_WORDS], id: NamespaceId) -> Option<Namespace> {
    let bytes = words.get(NAME_WORDS)?.iter().flat_map(|word| word.to_le_bytes());
    let name: Vec<u8> = bytes.take((words[1] & 0xff) as usize).collect();
    let users =
        words.get(WRITER_WORDS)?.iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
    let writers = match words[1] >> 8 & 0xff {
        ANYBODY => None,
        count => Some(users.take(usize::try_from(count).ok()?).collect()),
    };
    let options = NamespaceOptions {
        name: String::from_utf8(name).ok()?,
        bytes_max: Some(words[BYTES_WORD]).filter(|max| *max != u64::MAX),
        objects_max: Some((words[1] >> 32) as u32).filter(|max| *max != u32::MAX),
        writers,
    };
    let namespace = Namespace { id, options, events_from: words[EVENTS_WORD] };
    (check(&namespace.options).is_ok() && encode(&namespace) == *words).then_some(namespace)
}
