//! The homes of names, as a name authority remembers them.

use std::collections::BTreeMap;

/// Limit of remembered names: at most 16 MiB of names of full length.
const HINTS_MAX: usize = 32_768;

/// The homes of names.
#[derive(Debug, Default)]
pub(in crate::protocol) struct NameHints {
    by_name: BTreeMap<String, (u64, String)>,
    by_age: BTreeMap<u64, String>,
    next: u64,
}

impl NameHints {
    pub(in crate::protocol::cluster) fn note(&mut self, home: &str, name: String) {
        let age = self.next;
        self.next += 1;
        if let Some((before, _)) = self.by_name.insert(name.clone(), (age, home.to_owned())) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(age, name);
        while self.by_age.len() > HINTS_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_name.remove(&oldest);
        }
    }

    pub(super) fn home_of(&self, name: &str) -> Option<&str> {
        self.by_name.get(name).map(|(_, home)| home.as_str())
    }
}

/// A search that a hint is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) enum HintFor {
    /// An object that is fetched, by the number of its opening.
    Opening(u64),
    /// A lookup of a name.
    Lookup(u64),
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_last_home_is_known_and_the_oldest_names_are_forgotten() {
        let mut hints = NameHints::default();
        hints.note("a", "x".to_owned());
        hints.note("b", "x".to_owned());
        assert_eq!(hints.home_of("x"), Some("b"));
        for number in 0..HINTS_MAX {
            hints.note("c", format!("{number}"));
        }
        assert_eq!(hints.home_of("x"), None);
        assert_eq!(hints.home_of("0"), Some("c"));
        assert_eq!((hints.by_name.len(), hints.by_age.len()), (HINTS_MAX, HINTS_MAX));
    }
}
