//! The specification of names, ids and flags for a checker: one name, one id or one set of flags at
//! a time, because no call affects two of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Debug;

use serde::Serialize;
use todc_utils::specifications::Specification;

/// An operation on one name, or on the one object without a name that a partition is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum NameOp {
    /// An object of this version was made; it needs a free name.
    Put {
        version: u64,
    },
    /// An object of this version was made, and took the place of the one with its name, if there
    /// was one.
    Replaced {
        version: u64,
    },
    /// Perhaps one took the place of another. It has no end in time either.
    MayReplace {
        version: u64,
    },
    /// Perhaps one was made. As all that begins with "may" it has no end in time, so that it may be
    /// behind [`Self::Close`], where it does nothing.
    MayPut {
        version: u64,
    },
    /// The name was taken: by an object, or perhaps by one that was in flight at the time.
    Taken {
        is_in_flight: bool,
    },
    /// One was made, perhaps, and deleted again by its maker. Not judged as it is.
    TakenBack {
        version: u64,
    },
    Got {
        version: u64,
    },
    NotFound,
    /// An object has it, or perhaps one that was taken back.
    IsThere {
        is_in_flight: bool,
    },
    /// No object of this version has the name.
    IsNot {
        version: u64,
    },
    /// In a list of what is in the memory of one node there was none; these would be there.
    NotListed {
        versions: Vec<u64>,
    },
    /// One was deleted, or perhaps one that would have been taken back.
    Deleted {
        is_in_flight: bool,
    },
    /// One that was made was taken back, unless it was gone.
    Unmade {
        version: u64,
    },
    /// Perhaps it was deleted, by name. Of those of a name the one that began first deletes first:
    /// which it was cannot be told, so a search through all orders would find nothing more.
    MayDelete {
        order: u32,
    },
    DeletedById {
        version: u64,
    },
    MayDeleteById {
        version: u64,
    },
    /// Behind all that has an end.
    Close,
}

/// What both kinds of operations can say.
pub trait Operation: Clone + Debug {
    /// Whether something is, or may be, another after it than before.
    fn may_change(&self) -> bool;
}

impl Operation for NameOp {
    fn may_change(&self) -> bool {
        match self {
            Self::Put { .. } | Self::MayPut { .. } | Self::MayDelete { .. } => true,
            Self::Replaced { .. } | Self::MayReplace { .. } => true,
            Self::Deleted { .. } | Self::Unmade { .. } => true,
            Self::DeletedById { .. } | Self::MayDeleteById { .. } => true,
            Self::TakenBack { .. } | Self::Taken { .. } | Self::Got { .. } | Self::NotFound => {
                false
            }
            Self::IsThere { .. } => false,
            Self::IsNot { .. } | Self::NotListed { .. } | Self::Close => false,
        }
    }
}

impl Operation for FlagsOp {
    fn may_change(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::MaySet { .. } | Self::MayLose)
    }
}

/// A name: the version of the object that has it, if one has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NameVersions {
    version: Option<u64>,
    /// Deletes of which nothing is known that took place.
    may_deletes: u32,
    is_closed: bool,
}

thread_local! {
    /// Steps that the checker may still take on this thread: its search has no limit of its own.
    pub static STEPS_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// False when there are none left: then nothing is valid, so that the search ends.
fn may_step() -> bool {
    STEPS_LEFT.with(|left| {
        left.set(left.get().saturating_sub(1));
        left.get() > 0
    })
}

/// A name whose objects do not go by themselves.
#[derive(Debug)]
pub struct NamesModel;

impl Specification for NamesModel {
    type State = NameVersions;
    type Operation = NameOp;

    fn init() -> Self::State {
        NameVersions::default()
    }

    fn apply(op: &NameOp, state: &NameVersions) -> (bool, NameVersions) {
        step_within(op, *state, false)
    }
}

/// As [`NamesModel`], where objects are evicted at any time.
#[derive(Debug)]
pub struct EvictedNames;

impl Specification for EvictedNames {
    type State = NameVersions;
    type Operation = NameOp;

    fn init() -> Self::State {
        NameVersions::default()
    }

    fn apply(op: &NameOp, state: &NameVersions) -> (bool, NameVersions) {
        step_within(op, *state, true)
    }
}

fn step_within(op: &NameOp, state: NameVersions, is_evicted: bool) -> (bool, NameVersions) {
    let mut next = step(op, state);
    // What needs a free name is right if the object was evicted just before.
    if is_evicted && next.is_none() {
        next = step(op, NameVersions { version: None, ..state });
    }
    match next.filter(|_| may_step()) {
        Some(next) => (true, next),
        None => (false, state),
    }
}

/// The state behind an operation, if it is possible.
fn step(op: &NameOp, state: NameVersions) -> Option<NameVersions> {
    let version = state.version;
    let now = |version: Option<u64>| NameVersions { version, ..state };
    if state.is_closed {
        let is_open_ended = matches!(
            op,
            NameOp::MayPut { .. }
                | NameOp::MayReplace { .. }
                | NameOp::MayDelete { .. }
                | NameOp::MayDeleteById { .. }
        );
        return is_open_ended.then_some(state);
    }
    let (is_possible, next) = match op {
        NameOp::Put { version: new } | NameOp::MayPut { version: new } => {
            (version.is_none(), now(Some(*new)))
        }
        NameOp::Replaced { version: new } | NameOp::MayReplace { version: new } => {
            (true, now(Some(*new)))
        }
        NameOp::TakenBack { .. } => (true, state),
        NameOp::Taken { is_in_flight } => (*is_in_flight || version.is_some(), state),
        NameOp::Got { version: found } => (version == Some(*found), state),
        NameOp::NotFound => (version.is_none(), state),
        NameOp::IsThere { is_in_flight } => (*is_in_flight || version.is_some(), state),
        NameOp::IsNot { version: other } => (version != Some(*other), state),
        NameOp::NotListed { versions } => {
            (version.is_none_or(|version| !versions.contains(&version)), state)
        }
        NameOp::Deleted { is_in_flight } => (*is_in_flight || version.is_some(), now(None)),
        NameOp::Unmade { version: old } => (true, now(version.filter(|one| one != old))),
        NameOp::MayDelete { order } => (
            version.is_some() && *order == state.may_deletes,
            NameVersions { version: None, may_deletes: order + 1, ..state },
        ),
        NameOp::DeletedById { version: old } | NameOp::MayDeleteById { version: old } => {
            (version == Some(*old), now(None))
        }
        NameOp::Close => (true, NameVersions { is_closed: true, ..state }),
    };
    is_possible.then_some(next)
}

/// An operation on flags of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum FlagsOp {
    /// They were changed, and were this then.
    Set { set: u64, clear: u64, flags: u64 },
    /// Perhaps they were changed. Without an end in time: so they may never have been.
    MaySet { set: u64, clear: u64 },
    /// All of a mask were set; all flags.
    Met { mask: u64, flags: u64 },
    /// Not all of a mask were set.
    NotMet { mask: u64 },
    /// Perhaps they were lost with the node that retained them: all are clear.
    MayLose,
}

/// Flags: all that they may be. Clear at first.
#[derive(Debug)]
pub struct FlagsModel;

impl Specification for FlagsModel {
    type State = BTreeSet<u64>;
    type Operation = FlagsOp;

    fn init() -> Self::State {
        BTreeSet::from([0])
    }

    fn apply(op: &FlagsOp, state: &BTreeSet<u64>) -> (bool, BTreeSet<u64>) {
        let values = state.iter().copied();
        let next: BTreeSet<u64> = match *op {
            FlagsOp::Set { set, clear, flags } => {
                let changed = values.map(|before| (before & !clear) | set);
                changed.filter(|after| *after == flags).collect()
            }
            FlagsOp::MaySet { set, clear } => {
                values.map(|before| (before & !clear) | set).collect()
            }
            FlagsOp::Met { mask, flags } => {
                values.filter(|value| *value == flags && flags & mask == mask).collect()
            }
            FlagsOp::NotMet { mask } => values.filter(|value| value & mask != mask).collect(),
            FlagsOp::MayLose => values.chain([0]).collect(),
        };
        match may_step() && !next.is_empty() {
            true => (true, next),
            false => (false, state.clone()),
        }
    }
}
