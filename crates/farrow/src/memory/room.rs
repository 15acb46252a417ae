//! Requests to the node for memory: free memory, or memory made free by eviction.
//!
//! Free memory has no cost to other objects. The node evicts objects only for an operation that
//! declares its whole demand and has reserved its name. The demand is one message, and the node
//! satisfies all of it or changes nothing.

use std::time::Duration;

use farrow_memory::{Span, page_bytes};
use farrow_wire::link::confused;
use farrow_wire::{Purpose, ROOM_RANGES_MAX, ReplyBody, RequestBody, RoomAsk, WAIT_MS_MAX, span};

use crate::clock::{deadline_after, millis};
use crate::error::Error;
use crate::memory::extents::Granted;
use crate::memory::node::NodeAccess;

/// The purpose of a request for memory, and how long the node may take.
#[derive(Debug, Clone, Default)]
pub(crate) struct Demand {
    pub(crate) purpose: Purpose,
    pub(crate) wait: Duration,
}

impl Demand {
    /// The demand of this many objects, some of which have names.
    pub(crate) fn new<'a>(
        objects: usize,
        names: impl Iterator<Item = &'a str>,
        wait: Duration,
    ) -> Self {
        let objects = u32::try_from(objects).unwrap_or(u32::MAX);
        let names = names.map(|name| u32::try_from(name.len()).unwrap_or(u32::MAX)).collect();
        Self { purpose: Purpose { objects, names }, wait }
    }

    /// The demand of an object that is only on its way to another node.
    pub(crate) fn transit(wait: Duration) -> Self {
        Self { purpose: Purpose::transit(), wait }
    }
}

/// Requests a range for each size from free memory or, with a demand, also by eviction. A single
/// range may be as long as `want`.
pub(crate) fn ask(
    node: &dyn NodeAccess,
    sizes: Vec<u64>,
    want: u64,
    demand: Option<&Demand>,
) -> Result<Granted, Error> {
    let wait = demand.map(|demand| demand.wait).unwrap_or_default();
    let purpose = demand.map(|demand| demand.purpose.clone());
    let requested = sizes.clone();
    let ask = RoomAsk { sizes, want, wait_ms: millis(wait).min(WAIT_MS_MAX), purpose };
    // The node enforces the wait; its answer may take a little longer.
    let deadline = deadline_after(wait.saturating_add(node.timeout()));
    let (reply, connection) = node.call_numbered(RequestBody::Room(ask), deadline)?;
    let granted: Vec<Span> = match reply {
        ReplyBody::Room(granted) => granted.into_iter().map(span).collect(),
        other => return Err(confused(&other).into()),
    };
    let is_right = |(granted, requested): (&Span, &u64)| {
        granted.length.0 >= *requested && granted.offset.0.is_multiple_of(page_bytes())
    };
    if granted.len() != requested.len() || !granted.iter().zip(&requested).all(is_right) {
        return Err(Error::Protocol(format!(
            "{granted:?} granted, {requested:?} B were requested"
        )));
    }
    granted.iter().try_for_each(|span| node.region().check(*span))?;
    Ok(Granted { ranges: granted, connection })
}

/// Whether the directory has no slot, or no bytes for a name, for a written object.
pub(crate) fn is_entry_short(error: &Error) -> bool {
    match error {
        Error::NoRoom(_) => true,
        Error::TooMany { what, .. } => what == "objects",
        _ => false,
    }
}

/// Whether memory was short, so that an operation that declares its whole demand may still succeed.
pub(crate) fn is_short(error: &Error) -> bool {
    matches!(error, Error::OutOfMemory(_))
}

/// Combines adjacent sizes into at most `most` groups, so that one message can request all of them.
/// Returns the number of sizes in each group, as evenly as whole sizes allow.
pub(crate) fn groups(sizes: &[u64], most: usize) -> Vec<usize> {
    if sizes.len() <= most {
        return vec![1; sizes.len()];
    }
    let total = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
    let share = total.div_ceil(most.max(1) as u64);
    let (mut groups, mut bytes): (Vec<usize>, u64) = (Vec::new(), 0);
    for size in sizes {
        let is_full = bytes >= share && groups.len() < most;
        match groups.last_mut() {
            Some(group) if !is_full => *group += 1,
            _ => {
                groups.push(1);
                bytes = 0;
            }
        }
        bytes = bytes.saturating_add(*size);
    }
    groups
}

/// Maximum number of groups in one message.
pub(crate) const GROUPS_MAX: usize = ROOM_RANGES_MAX - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_grouped_evenly_and_none_is_lost() {
        assert_eq!(groups(&[1, 2, 3], 3), [1, 1, 1]);
        assert_eq!(groups(&[10; 8], 4), [2, 2, 2, 2]);
        for most in 1..20 {
            let sizes: Vec<u64> = (0..100).map(|n| n * n % 37 + 1).collect();
            let groups = groups(&sizes, most);
            assert!(groups.len() <= most, "{groups:?}");
            assert_eq!(groups.iter().sum::<usize>(), sizes.len());
            assert!(groups.iter().all(|group| *group > 0));
        }
    }
}
