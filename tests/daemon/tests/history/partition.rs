//! Splits the recorded history into the parts that are judged: one for each name, each object
//! without a name, and each set of flags.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::model::{FlagsOp, NameOp};
use super::record::{HistoryCall, HistoryOutcome, ObjectDraft, ReadObject, Recorded};

/// The end of what has none in time.
pub const NEVER: i64 = i64::MAX;
/// The end of [`NameOp::Close`].
pub const CLOSE_NS: i64 = NEVER - 1;

/// A node is excluded no more often than this in one of the faults, and then its flags are lost.
const LOSSES_MAX: usize = 3;

/// A name that was reserved for what then had no room is given back by a message without an answer.
const GIVEN_BACK_NS: i64 = 1_000_000_000;

/// An operation and its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Timed<Op> {
    pub begin_ns: i64,
    pub end_ns: i64,
    pub op: Op,
}

/// A history in parts that are judged one by one.
#[derive(Debug, Default)]
pub struct Partitions {
    pub names: BTreeMap<String, Vec<Timed<NameOp>>>,
    pub flags: BTreeMap<String, Vec<Timed<FlagsOp>>>,
    /// What no client may ever see.
    pub wrong: Vec<String>,
    pub counts: Counts,
}

/// What a run consisted of.
#[derive(Debug, Default, Serialize)]
pub struct Counts {
    /// Calls that ended, whatever came of them.
    pub calls: u64,
    /// Of them, those that say what was so: those that are judged.
    pub judged: u64,
    /// Calls that changed something perhaps.
    pub unknown: u64,
    /// Calls of which nothing is known and nothing came, and those that were refused.
    pub without_effect: u64,
    /// Names that were taken while another put was under way.
    pub taken_in_flight: u64,
    pub calls_by_outcome: BTreeMap<String, u64>,
}

/// Where versions are and what they are called.
#[derive(Debug, Default)]
struct Versions {
    /// The partition of each version.
    partition: BTreeMap<u64, String>,
    by_id: BTreeMap<String, u64>,
    /// Those of a partition that are in the memory of a node if they are.
    at: BTreeMap<(String, String), Vec<u64>>,
}

fn partition_of(draft: &ObjectDraft) -> String {
    draft.name.clone().unwrap_or_else(|| format!("#{:x}", draft.version))
}

impl Versions {
    fn of(all: &[Recorded], wrong: &mut Vec<String>) -> Self {
        let mut versions = Self::default();
        for one in all {
            let outcome = one.end.as_ref().map(|(_, outcome)| outcome);
            if let Some((drafts, node)) = one.call.drafts() {
                for (at, draft) in drafts.iter().enumerate() {
                    let partition = partition_of(draft);
                    let there = versions.at.entry((partition.clone(), node.clone()));
                    there.or_default().push(draft.version);
                    versions.partition.insert(draft.version, partition);
                    if let Some(HistoryOutcome::Put { ids }) = outcome {
                        versions.is(&ids[at], draft.version, wrong);
                    }
                }
            }
            if let Some(HistoryOutcome::Got { objects }) = outcome {
                objects
                    .iter()
                    .for_each(|ReadObject { id, version }| versions.is(id, *version, wrong));
            }
        }
        versions
    }

    /// An id never belongs to another version.
    fn is(&mut self, id: &str, version: u64, wrong: &mut Vec<String>) {
        let other = self.by_id.insert(id.to_owned(), version);
        if other.is_some_and(|other| other != version) {
            wrong.push(format!("{id} was {other:x?}, and then {version:x}"));
        }
    }
}

/// The times of puts of a name.
type Puts = BTreeMap<String, Vec<(i64, i64)>>;

impl Partitions {
    /// `losses`: the times in which a node may have been killed or excluded. What it retained is
    /// lost, and which flags these are no client knows: so all flags may be lost then, and at no
    /// other time.
    pub fn of(all: &[Recorded], losses: &[(i64, i64)]) -> Self {
        let mut parts = Self::default();
        let versions = Versions::of(all, &mut parts.wrong);
        let mut puts = Puts::new();
        for one in all {
            parts.count(one);
            parts.add(one, &versions, &mut puts);
        }
        parts.note_flights(&puts);
        parts.end_what_was_seen();
        parts.names.values_mut().for_each(close);
        parts.flags.values_mut().for_each(|ops| add_losses(ops, losses));
        parts
    }

    fn count(&mut self, one: &Recorded) {
        let Some((_, outcome)) = &one.end else { return };
        self.counts.calls += 1;
        match outcome {
            HistoryOutcome::Unknown(_) => self.counts.unknown += 1,
            HistoryOutcome::Refused(_) => self.counts.without_effect += 1,
            HistoryOutcome::Wrong(what) => self.wrong.push(format!("{:?}: {what}", one.call)),
            _ => self.counts.judged += 1,
        }
        let word = |text: String| {
            text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
        };
        let kind = format!("{} {}", word(format!("{:?}", one.call)), word(format!("{outcome:?}")));
        *self.counts.calls_by_outcome.entry(kind).or_default() += 1;
    }

    fn add(&mut self, one: &Recorded, versions: &Versions, puts: &mut Puts) {
        let begin_ns = one.begin_ns;
        let (end_ns, outcome) = match &one.end {
            Some((_, HistoryOutcome::Unknown(_))) | None => (NEVER, None),
            Some((end_ns, outcome)) => (*end_ns, Some(outcome)),
        };
        let mut name = |name: &str, end_ns: i64, op: NameOp| {
            let ops = self.names.entry(name.to_owned()).or_default();
            ops.push(Timed { begin_ns, end_ns, op });
        };
        let of = |version: &u64| versions.partition.get(version).cloned().unwrap_or_default();
        let is_replacing = matches!(one.call, HistoryCall::Replace { .. });
        match (&one.call, outcome) {
            (HistoryCall::Put { .. } | HistoryCall::Replace { .. }, outcome) => {
                let drafts = one.call.drafts().map(|(drafts, _)| drafts).unwrap_or_default();
                for draft in drafts {
                    let (partition, version) = (partition_of(draft), draft.version);
                    let is_taken = matches!(outcome, Some(HistoryOutcome::Taken { name })
                        if draft.name.as_ref() == Some(name));
                    let is_refused = matches!(outcome, Some(HistoryOutcome::Refused(_)));
                    let more_ns = if is_refused { GIVEN_BACK_NS } else { 0 };
                    let until_ns = end_ns.saturating_add(more_ns);
                    puts.entry(partition.clone()).or_default().push((begin_ns, until_ns));
                    match outcome {
                        Some(HistoryOutcome::Put { .. }) if is_replacing => {
                            name(&partition, end_ns, NameOp::Replaced { version });
                        }
                        None if is_replacing => {
                            name(&partition, NEVER, NameOp::MayReplace { version });
                        }
                        Some(HistoryOutcome::Put { .. }) => {
                            name(&partition, end_ns, NameOp::Put { version });
                        }
                        Some(HistoryOutcome::Taken { .. }) if is_taken => {
                            name(&partition, end_ns, NameOp::Taken { is_in_flight: false });
                        }
                        None => {
                            name(&partition, NEVER, NameOp::MayPut { version });
                            // A node that is killed while it seals may seal some of several, and
                            // then its client takes them back.
                            if drafts.len() > 1 {
                                name(&partition, NEVER, NameOp::MayDeleteById { version });
                            }
                        }
                        // One of several, of which another one failed.
                        _ => name(&partition, end_ns, NameOp::TakenBack { version }),
                    }
                }
            }
            (HistoryCall::Get { names }, Some(HistoryOutcome::Got { objects })) => {
                for (one, ReadObject { version, .. }) in names.iter().zip(objects) {
                    name(one, end_ns, NameOp::Got { version: *version });
                }
            }
            (HistoryCall::Get { .. }, Some(HistoryOutcome::NotFound { name: Some(which) })) => {
                name(which, end_ns, NameOp::NotFound);
            }
            (HistoryCall::GetById { version }, Some(HistoryOutcome::Got { .. })) => {
                name(&of(version), end_ns, NameOp::Got { version: *version });
            }
            (
                HistoryCall::GetById { version } | HistoryCall::DeleteById { version },
                Some(HistoryOutcome::NotFound { .. }),
            ) => name(&of(version), end_ns, NameOp::IsNot { version: *version }),
            (
                HistoryCall::Contains { name: one } | HistoryCall::Wait { name: one },
                Some(HistoryOutcome::Is(is)),
            ) => {
                let there = NameOp::IsThere { is_in_flight: false };
                name(one, end_ns, if *is { there } else { NameOp::NotFound });
            }
            (HistoryCall::Delete { name: one }, Some(HistoryOutcome::Deleted)) => {
                name(one, end_ns, NameOp::Deleted { is_in_flight: false });
            }
            (HistoryCall::Delete { name: one }, Some(HistoryOutcome::NotFound { .. })) => {
                name(one, end_ns, NameOp::NotFound);
            }
            (HistoryCall::Delete { name: one }, None) => {
                name(one, NEVER, NameOp::MayDelete { order: 0 });
            }
            (HistoryCall::DeleteById { version }, Some(HistoryOutcome::Deleted)) => {
                name(&of(version), end_ns, NameOp::DeletedById { version: *version });
            }
            (HistoryCall::DeleteById { version }, None) => {
                name(&of(version), NEVER, NameOp::MayDeleteById { version: *version });
            }
            (HistoryCall::List { names, node }, Some(HistoryOutcome::Listed(listed))) => {
                for one in names {
                    let there = versions.at.get(&(one.clone(), node.clone()));
                    let op = match listed.get(one).map(|id| versions.by_id.get(id)) {
                        Some(Some(version)) => NameOp::Got { version: *version },
                        // Of a put whose client was killed: nobody else saw it.
                        Some(None) => NameOp::IsThere { is_in_flight: false },
                        None => match there {
                            Some(there) => NameOp::NotListed { versions: there.clone() },
                            None => continue,
                        },
                    };
                    name(one, end_ns, op);
                }
            }
            (HistoryCall::SetFlags { name, set, clear }, outcome) => {
                let (set, clear) = (*set, *clear);
                let op = match outcome {
                    Some(HistoryOutcome::Flags(flags)) => {
                        FlagsOp::Set { set, clear, flags: *flags }
                    }
                    // A node that the others went on without does not know either.
                    None | Some(HistoryOutcome::Refused(_)) => FlagsOp::MaySet { set, clear },
                    Some(_) => return,
                };
                let end_ns = if matches!(op, FlagsOp::MaySet { .. }) { NEVER } else { end_ns };
                self.flag(name, Timed { begin_ns, end_ns, op });
            }
            (HistoryCall::WaitFlags { name, mask }, outcome) => {
                let op = match outcome {
                    Some(HistoryOutcome::Flags(flags)) => {
                        FlagsOp::Met { mask: *mask, flags: *flags }
                    }
                    Some(HistoryOutcome::NotSet) => FlagsOp::NotMet { mask: *mask },
                    _ => return,
                };
                self.flag(name, Timed { begin_ns, end_ns, op });
            }
            _ => {}
        }
    }

    fn flag(&mut self, name: &str, op: Timed<FlagsOp>) {
        self.flags.entry(name.to_owned()).or_default().push(op);
    }

    /// While a put is under way its name is taken, whatever comes of it; and what is taken back for
    /// another's sake is there for a while.
    fn note_flights(&mut self, puts: &Puts) {
        for (partition, ops) in &mut self.names {
            let all = puts.get(partition).map(Vec::as_slice).unwrap_or_default();
            let is_taken_back = |one: &&Timed<NameOp>| matches!(one.op, NameOp::TakenBack { .. });
            let taken_back = ops.iter().filter(is_taken_back);
            let taken_back: Vec<_> = taken_back.map(|one| (one.begin_ns, one.end_ns)).collect();
            for one in ops.iter_mut() {
                let (begin, end) = (one.begin_ns, one.end_ns);
                let is_during = |times: &[(i64, i64)]| {
                    times.iter().any(|time| time.0 < end && time.1 > begin && *time != (begin, end))
                };
                match &mut one.op {
                    NameOp::Taken { is_in_flight } => {
                        *is_in_flight = is_during(all);
                        self.counts.taken_in_flight += u64::from(*is_in_flight);
                    }
                    NameOp::IsThere { is_in_flight } | NameOp::Deleted { is_in_flight } => {
                        *is_in_flight = is_during(&taken_back);
                    }
                    _ => {}
                }
            }
        }
    }

    /// A put of which nothing is known was made before the end of who saw its object. One that was
    /// taken back was made only if somebody saw it.
    fn end_what_was_seen(&mut self) {
        for ops in self.names.values_mut() {
            let mut seen: BTreeMap<u64, i64> = BTreeMap::new();
            for one in ops.iter() {
                if let NameOp::Got { version } | NameOp::DeletedById { version } = one.op {
                    let end = seen.entry(version).or_insert(one.end_ns);
                    *end = one.end_ns.min(*end);
                }
            }
            let mut more = Vec::new();
            ops.retain_mut(|one| {
                match one.op {
                    NameOp::MayPut { version } => {
                        if let Some(end_ns) = seen.get(&version) {
                            (one.end_ns, one.op) = (*end_ns, NameOp::Put { version });
                        }
                    }
                    NameOp::MayReplace { version } => {
                        if let Some(end_ns) = seen.get(&version) {
                            (one.end_ns, one.op) = (*end_ns, NameOp::Replaced { version });
                        }
                    }
                    NameOp::TakenBack { version } => {
                        if seen.contains_key(&version) {
                            more.push(Timed { op: NameOp::Put { version }, ..one.clone() });
                            more.push(Timed { op: NameOp::Unmade { version }, ..one.clone() });
                        }
                        return false;
                    }
                    _ => {}
                }
                true
            });
            ops.extend(more);
        }
    }

    /// Versions that were got although nobody had put them.
    pub fn foreign(&self) -> Vec<String> {
        let mut foreign = Vec::new();
        for (name, ops) in &self.names {
            let put: BTreeSet<u64> = ops
                .iter()
                .filter_map(|one| match one.op {
                    NameOp::Put { version }
                    | NameOp::MayPut { version }
                    | NameOp::Replaced { version }
                    | NameOp::MayReplace { version } => Some(version),
                    _ => None,
                })
                .collect();
            for one in ops {
                if let NameOp::Got { version } = one.op
                    && !put.contains(&version)
                {
                    foreign.push(format!("{name}: {version:x} was got, and not put"));
                }
            }
        }
        foreign
    }
}

/// Puts deletes of which nothing is known in order, and an end behind all that has one.
fn close(ops: &mut Vec<Timed<NameOp>>) {
    ops.sort_by_key(|one| one.begin_ns);
    let mut next = 0;
    for one in ops.iter_mut() {
        if let NameOp::MayDelete { order } = &mut one.op {
            *order = next;
            next += 1;
        }
    }
    let ends = ops.iter().map(|one| one.end_ns).filter(|end| *end != NEVER);
    let begin_ns = ends.chain(ops.iter().map(|one| one.begin_ns)).max().unwrap_or(0) + 1;
    ops.push(Timed { begin_ns, end_ns: CLOSE_NS, op: NameOp::Close });
}

/// Adds the losses of the time in which flags were used.
fn add_losses(ops: &mut Vec<Timed<FlagsOp>>, losses: &[(i64, i64)]) {
    let begin = ops.iter().map(|one| one.begin_ns).min().unwrap_or(NEVER);
    let ends = ops.iter().map(|one| if one.end_ns == NEVER { one.begin_ns } else { one.end_ns });
    let end = ends.max().unwrap_or(begin);
    let in_use = losses.iter().filter(|loss| loss.0 <= end && loss.1 >= begin);
    for (begin_ns, end_ns) in in_use.copied() {
        let loss = Timed { begin_ns, end_ns, op: FlagsOp::MayLose };
        ops.extend(std::iter::repeat_n(loss, LOSSES_MAX));
    }
}
