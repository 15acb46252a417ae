//! Judges the parts of a history by a checker for linearizability that is not ours, the one of
//! `todc-utils`: the search of Wing and Gong with the memory of Lowe. `tests/history` has porcupine
//! judge the same parts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::io::Write;
use std::path::Path;

use serde::Serialize;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

use super::model::{EvictedNames, FlagsModel, NamesModel, Operation, STEPS_LEFT};
use super::partition::{CLOSE_NS, NEVER, Partitions, Timed};

/// Steps of the search in one part; an honest history of 1,000 operations takes some 2,000.
const STEPS_MAX: u64 = 1_000_000;
/// Parts that are not linearizable, and operations of each, that a failure shows.
const SHOWN_MAX: usize = 3;
const OPERATIONS_SHOWN_MAX: usize = 60;

/// What the checker said of one part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartVerdict {
    Linearizable,
    Not,
    /// The search took more steps than it may.
    Undecided,
}

/// Judges one part, in the order of its times: of two at one time the begin is first.
pub fn judge<S: Specification>(ops: &[Timed<S::Operation>]) -> PartVerdict {
    let mut events: Vec<(i64, bool, usize)> = Vec::with_capacity(2 * ops.len());
    for (number, one) in ops.iter().enumerate() {
        events.push((one.begin_ns, false, number));
        events.push((one.end_ns, true, number));
    }
    events.sort_unstable();
    let action = |(_, is_end, number): (i64, bool, usize)| {
        let op = ops[number].op.clone();
        (number, if is_end { Action::Response(op) } else { Action::Call(op) })
    };
    let history = History::from_actions(events.into_iter().map(action).collect());
    STEPS_LEFT.set(STEPS_MAX);
    let is_linearizable = WGLChecker::<S>::is_linearizable(history);
    match (is_linearizable, STEPS_LEFT.get()) {
        (true, _) => PartVerdict::Linearizable,
        (false, 0) => PartVerdict::Undecided,
        (false, _) => PartVerdict::Not,
    }
}

/// The first operations, by their ends, that are no history: the last of them is what the others
/// leave no room for.
fn shortest_wrong<S: Specification>(ops: &[Timed<S::Operation>]) -> Vec<Timed<S::Operation>>
where
    S::Operation: Operation,
{
    let mut ends: Vec<i64> = ops.iter().map(|one| one.end_ns).collect();
    ends.sort_unstable();
    // What was read later says nothing of the time before; what was being changed then may count.
    let until = |end_ns: i64| {
        let is_before = |one: &&Timed<S::Operation>| {
            one.end_ns <= end_ns
                || one.end_ns == CLOSE_NS
                || (one.begin_ns <= end_ns && one.op.may_change())
        };
        ops.iter().filter(is_before).cloned().collect::<Vec<_>>()
    };
    let (mut right, mut wrong) = (0, ends.len() - 1);
    while right + 1 < wrong {
        let middle = (right + wrong) / 2;
        let is_wrong = judge::<S>(&until(ends[middle])) == PartVerdict::Not;
        *(if is_wrong { &mut wrong } else { &mut right }) = middle;
    }
    let mut some = until(ends[wrong]);
    some.sort_by_key(|one| one.end_ns);
    let last = some.iter().rposition(|one| one.end_ns <= ends[wrong]).map_or(0, |at| at + 1);
    some.drain(..last.saturating_sub(OPERATIONS_SHOWN_MAX));
    some
}

/// What a judgement is about, in numbers.
#[derive(Debug, Default)]
pub struct Judgement {
    pub parts: usize,
    pub operations: usize,
    pub longest: usize,
    pub undecided: usize,
    /// In words, the first of those that are not linearizable.
    pub not: Vec<String>,
    pub not_count: usize,
}

impl Judgement {
    fn add<S: Specification>(&mut self, parts: &BTreeMap<String, Vec<Timed<S::Operation>>>)
    where
        S::Operation: Operation,
    {
        for (name, ops) in parts {
            self.parts += 1;
            self.operations += ops.len();
            self.longest = self.longest.max(ops.len());
            match judge::<S>(ops) {
                PartVerdict::Linearizable => {}
                PartVerdict::Undecided => self.undecided += 1,
                PartVerdict::Not => {
                    self.not_count += 1;
                    if self.not.len() < SHOWN_MAX {
                        self.not.push(in_words(name, &shortest_wrong::<S>(ops)));
                    }
                }
            }
        }
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parts, operations, longest, undecided, not_count, .. } = self;
        write!(
            f,
            "{operations} operations in {parts} parts, the longest of {longest}: {not_count} not \
             linearizable, {undecided} undecided"
        )
    }
}

fn in_words<Op: Debug>(name: &str, ops: &[Timed<Op>]) -> String {
    let from = ops.iter().map(|one| one.begin_ns).min().unwrap_or(0);
    let us = |at: i64| match at {
        CLOSE_NS | NEVER => "never".to_owned(),
        at => format!("{}", (at - from) / 1000),
    };
    let line = |one: &Timed<Op>| {
        format!("  {:>9} to {:>9} us  {:?}", us(one.begin_ns), us(one.end_ns), one.op)
    };
    let lines: Vec<String> = ops.iter().map(line).collect();
    format!("{name:?} is not linearizable, at the last of these that ends:\n{}", lines.join("\n"))
}

/// `is_evicted`: objects may go by themselves.
pub fn judge_all(parts: &Partitions, is_evicted: bool) -> Judgement {
    let mut judgement = Judgement::default();
    match is_evicted {
        true => judgement.add::<EvictedNames>(&parts.names),
        false => judgement.add::<NamesModel>(&parts.names),
    }
    judgement.add::<FlagsModel>(&parts.flags);
    judgement
}

/// The parts as porcupine's judge reads them: a line for each.
pub fn export(parts: &Partitions, is_evicted: bool, to: &Path) {
    #[derive(Serialize)]
    struct JudgedPart<'a, Op> {
        part: &'a str,
        kind: &'a str,
        operations: &'a [Timed<Op>],
    }
    let mut file = std::io::BufWriter::new(std::fs::File::create(to).unwrap());
    let kind = if is_evicted { "evicted names" } else { "names" };
    for (part, operations) in &parts.names {
        serde_json::to_writer(&mut file, &JudgedPart { part, kind, operations }).unwrap();
        file.write_all(b"\n").unwrap();
    }
    for (part, operations) in &parts.flags {
        serde_json::to_writer(&mut file, &JudgedPart { part, kind: "flags", operations }).unwrap();
        file.write_all(b"\n").unwrap();
    }
    file.flush().unwrap();
}
