//! Lookup of many objects by their ids. On a node-local region the entries of all objects are
//! fetched together, so that the latency is paid once.

use farrow_memory::Span;
use farrow_memory::sync::Ordering;

use super::Reader;
use super::look::{EntryReader, Look};
use crate::error::StoreError;
use crate::format::client_entry::{FORWARD_WORD, decode, is_open, life_of};
use crate::format::entry::{ENTRY_WORDS, Entry, EntryState, Sequence};
use crate::format::ids::{ObjectId, Target};
use crate::seqlock::{self, Copied};

/// An object to look for, with its index among the targets.
type IndexedTarget = (usize, ObjectId);

impl Reader {
    /// Calls `tell` for the sealed objects among `targets`, with their indexes. An object that is
    /// not reported may still be there: [`Reader::lookup`] decides. A reported entry is not
    /// validated until it is claimed, and its namespace may be missing.
    ///
    /// # Errors
    /// As [`Reader::lookup`].
    pub(crate) fn look_for_many(
        &self,
        targets: &[Target<'_>],
        mut visit: impl FnMut(usize, &Entry),
    ) -> Result<(), StoreError> {
        let is_node_local = self.region.is_node_local();
        let (mut of_clients, mut of_home) = (Vec::new(), Vec::new());
        for (index, target) in targets.iter().enumerate() {
            match target {
                Target::Id(id) if is_node_local && id.region() == self.header.uid => {
                    match self.layout().client_entry(id.slot()) {
                        Some(_) => of_clients.push((index, *id)),
                        None => of_home.push((index, *id)),
                    }
                }
                _ => {
                    if let Some(entry) = self.lookup(*target)? {
                        visit(index, &entry);
                    }
                }
            }
        }
        // A life is fetched before the entry written in it, as in a lookup of one object.
        let lives = of_clients.iter().filter_map(|(_, id)| self.life_span(*id));
        self.fetch(lives.filter(|_| self.region.is_remote()).collect())?;
        of_clients.retain(|(_, id)| self.is_alive(*id));
        let spans = of_clients.iter().filter_map(|(_, id)| self.client_entry_span(*id));
        let of_home_spans = of_home.iter().map(|(_, id)| self.entry_span(id.slot()));
        self.fetch(spans.chain(of_home_spans.filter(|_| self.region.is_remote())).collect())?;
        self.visit_clients(&of_clients, &mut visit);
        self.visit_home(&of_home, &mut visit)
    }

    fn fetch(&self, spans: Vec<Span>) -> Result<(), StoreError> {
        if spans.is_empty() {
            return Ok(());
        }
        Ok(self.region.refresh_all(&spans)?)
    }

    fn life_span(&self, id: ObjectId) -> Option<Span> {
        self.layout().client_entry(id.slot()).map(|number| self.life_span_of(number))
    }

    fn client_entry_span(&self, id: ObjectId) -> Option<Span> {
        self.layout().client_entry(id.slot()).map(|number| self.layout().client_entry_span(number))
    }

    /// Whether a client's entry is in the life that the id names, and the home has not adopted it.
    fn is_alive(&self, id: ObjectId) -> bool {
        let words = self.life_span(id).and_then(|span| self.region.words(span).ok());
        words.is_some_and(|words| {
            let life = words.load(0, Ordering::Acquire).map(life_of);
            let to = words.load(FORWARD_WORD as usize, Ordering::Acquire);
            life.is_some_and(|life| is_open(life) && life.generation() == id.generation())
                && to == Some(0)
        })
    }

    /// Reports entries whose life was seen; the claim checks that the life has lasted.
    fn visit_clients(&self, all: &[IndexedTarget], visit: &mut impl FnMut(usize, &Entry)) {
        for (index, id) in all {
            let words = self.client_entry_span(*id).and_then(|span| self.region.words(span).ok());
            let first = Sequence::new(id.generation(), EntryState::Sealed).0;
            let copied =
                words.and_then(|words| seqlock::copy(&EntryReader(words), |word| word == first));
            // An entry that does not decode may have been fetched in parts of different age.
            if let Some(Copied::Words(words)) = copied
                && let Ok(entry) = decode(&words, self.header.uid, id.slot(), self.layout())
            {
                visit(*index, &entry);
            }
        }
    }

    fn visit_home(
        &self,
        all: &[IndexedTarget],
        visit: &mut impl FnMut(usize, &Entry),
    ) -> Result<(), StoreError> {
        let directory = self.region.words(self.layout().directory)?;
        for (index, id) in all {
            let entry = directory.slice(id.slot().0 as usize * ENTRY_WORDS, ENTRY_WORDS);
            let is_slot = id.slot().0 < self.layout().objects_max;
            if let Some(entry) = entry.filter(|_| is_slot)
                && let Ok(Look::Sealed(entry)) = self.look_once(entry, id.slot())
                && entry.id == *id
            {
                visit(*index, &entry);
            }
        }
        Ok(())
    }
}
