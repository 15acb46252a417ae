//! Names of files. A write or a delete that timed out may still take effect, so its file has its own
//! name: the next write of the object has another number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farrow_store::ObjectId;

use crate::protocol::WriteFault;

/// Limit of the numbers of one object's files: changes of each that have not ended.
pub(super) const NUMBERS_MAX: u32 = 8;

/// A change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileChange {
    Write,
    Delete,
}

/// A file of an object. File 0 is named like the object.
pub(super) type FileNumber = (ObjectId, u32);

/// The files of objects, as far as they are not number 0.
#[derive(Debug, Clone, Default)]
pub(super) struct FileNames(Arc<Mutex<FileNameState>>);

#[derive(Debug, Default)]
struct FileNameState {
    /// Files with a change that timed out and has not ended.
    late: BTreeSet<FileNumber>,
    /// The number of an object's file, if it is not 0.
    current: BTreeMap<ObjectId, u32>,
    /// Numbered files that an earlier daemon left, by the text of the id.
    found: BTreeMap<String, BTreeSet<u32>>,
}

impl FileNames {
    fn lock(&self) -> MutexGuard<'_, FileNameState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of this file has timed out.
    pub(super) fn begin_late(&self, file: FileNumber) {
        self.lock().late.insert(file);
    }

    /// It has ended.
    pub(super) fn end_late(&self, file: FileNumber) {
        self.lock().late.remove(&file);
    }

    /// Whether the change of any file is late.
    #[cfg(test)]
    pub(super) fn is_any_late(&self) -> bool {
        !self.lock().late.is_empty()
    }

    /// The number of an object's file; `None`: it is 0, or that of an earlier daemon.
    pub(super) fn number(&self, id: ObjectId) -> Option<u32> {
        self.lock().current.get(&id).copied()
    }

    /// Records the number of an object's file.
    pub(super) fn set_number(&self, (id, number): FileNumber) {
        let mut state = self.lock();
        match number {
            0 => drop(state.current.remove(&id)),
            number => drop(state.current.insert(id, number)),
        }
    }

    /// The number of the next write of an object: that of its present file, or one that no change
    /// has which may still take effect.
    pub(super) fn next(&self, id: ObjectId) -> Result<u32, WriteFault> {
        let state = self.lock();
        let current = state.current.get(&id).copied();
        let numbers = current.into_iter().chain(0..NUMBERS_MAX);
        let mut unused = numbers.filter(|number| !state.late.contains(&(id, *number)));
        unused.next().ok_or_else(|| {
            let reason = format!("{NUMBERS_MAX} writes or deletes of its files have not ended");
            WriteFault { is_full: false, reason }
        })
    }

    /// Forgets an object. Returns its files, without those that the end of a late write removes.
    pub(super) fn take(&self, id: ObjectId) -> Vec<FileNumber> {
        let mut state = self.lock();
        let found = state.found.remove(&id.to_string());
        let mut numbers = found.unwrap_or_default();
        let current = state.current.remove(&id);
        if current.is_none() || !numbers.is_empty() {
            numbers.insert(0);
        }
        numbers.extend(current);
        let files = numbers.into_iter().map(|number| (id, number));
        files.filter(|file| !state.late.contains(file)).collect()
    }

    /// The file of an object with this name.
    pub(super) fn parse(name: &str) -> Option<FileNumber> {
        let (id, number) = name.split_once('.').unwrap_or((name, "0"));
        Some((id.parse().ok()?, number.parse().ok()?))
    }

    /// Whether a file is that of one of these objects. Its number is noted.
    pub(super) fn is_of(&self, name: &str, objects: &BTreeSet<String>) -> bool {
        let Some((id, number)) = name.split_once('.') else {
            return objects.contains(name);
        };
        let number = number.parse().ok().filter(|number| (1..NUMBERS_MAX).contains(number));
        match number {
            Some(number) if objects.contains(id) => {
                self.lock().found.entry(id.to_owned()).or_default().insert(number);
                true
            }
            _ => false,
        }
    }
}
