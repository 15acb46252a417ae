//! The profile of this machine: loaded from the user's file, or measured.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::costs::Findings;
use super::methods::{Origin, Profile};
use super::{file, measure};
use crate::fork;

impl Profile {
    /// Measures this machine. Makes two to nine rounds over all methods and sizes, as many as fit
    /// in `budget`, and one or two for large sizes. The minimum of the rounds is used. Returns
    /// [`Profile::unmeasured`] if there is no memory for the measurement. With a path, the result
    /// replaces the file there. The second value says whether it was stored.
    #[must_use]
    pub fn measure(budget: Duration, keep: Option<&Path>) -> (Self, bool) {
        measured(budget, None, keep)
    }

    /// The profile of this machine: loaded if there are enough measurements, or else measured,
    /// merged with earlier measurements and stored in the user's file. Measures at most once per
    /// process.
    #[must_use]
    pub fn of_machine() -> Arc<Self> {
        static MEASURED: OnceLock<Arc<Profile>> = OnceLock::new();
        let loaded = loaded();
        if let Some((found, profile)) = loaded
            && found.is_settled()
        {
            return Arc::clone(profile);
        }
        let measure = || {
            let before = loaded.map(|(found, _)| found);
            Arc::new(measured(measure::BUDGET, before, file::path().as_deref()).0)
        };
        Arc::clone(once(&MEASURED, measure))
    }

    /// The profile of this machine if a process of this user has measured it before; else
    /// [`Profile::unmeasured`]. Measures nothing.
    #[must_use]
    pub fn known() -> Arc<Self> {
        static UNMEASURED: OnceLock<Arc<Profile>> = OnceLock::new();
        match loaded() {
            Some((_, profile)) => Arc::clone(profile),
            None => Arc::clone(UNMEASURED.get_or_init(|| Arc::new(Self::unmeasured()))),
        }
    }
}

/// Measures this machine and merges earlier measurements. Returns whether the result was stored.
fn measured(budget: Duration, before: Option<&Findings>, keep: Option<&Path>) -> (Profile, bool) {
    let begin = Instant::now();
    let mut found = match measure::measure(budget) {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(%error, "profile not measured");
            let known = before.map(|found| found.profile(Origin::File));
            return (known.unwrap_or_else(Profile::unmeasured), false);
        }
    };
    if let Some(before) = before {
        found.merge(before);
    }
    let is_retained = keep.is_some_and(|path| file::store(path, &found));
    (found.profile(Origin::Measured(begin.elapsed())), is_retained)
}

/// The contents of the user's file, loaded once.
fn loaded() -> Option<&'static (Findings, Arc<Profile>)> {
    static LOADED: OnceLock<Option<(Findings, Arc<Profile>)>> = OnceLock::new();
    let load = || {
        #[cfg(any(test, feature = "failpoints"))]
        fork::trial::pass(fork::trial::ForkSection::Profile);
        let found = file::load(&file::path()?)?;
        let profile = found.profile(Origin::File);
        Some((found, Arc::new(profile)))
    };
    once(&LOADED, load).as_ref()
}

/// Initialises `cell` where no fork is under way: a child would wait for a thread that it does not
/// have.
fn once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    if let Some(made) = cell.get() {
        return made;
    }
    let _steady = fork::without_fork();
    cell.get_or_init(make)
}
