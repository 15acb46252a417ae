//! What must be found: a small history that is right, and the same with one thing changed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use super::judge::{Judgement, judge_all};
use super::partition::Partitions;
use super::record::{HistoryCall, HistoryOutcome, ObjectDraft, ReadObject, Recorded};

fn put(name: &str, version: u64) -> HistoryCall {
    let draft = ObjectDraft { name: Some(name.to_owned()), version };
    HistoryCall::Put { drafts: vec![draft], node: "a".to_owned() }
}

fn replace(name: &str, version: u64) -> HistoryCall {
    let draft = ObjectDraft { name: Some(name.to_owned()), version };
    HistoryCall::Replace { draft, node: "a".to_owned() }
}

fn made(version: u64) -> HistoryOutcome {
    HistoryOutcome::Put { ids: vec![format!("id {version}")] }
}

fn get(name: &str) -> HistoryCall {
    HistoryCall::Get { names: vec![name.to_owned()] }
}

fn got(version: u64) -> HistoryOutcome {
    HistoryOutcome::Got { objects: vec![ReadObject { id: format!("id {version}"), version }] }
}

fn not_found(name: &str) -> HistoryOutcome {
    HistoryOutcome::NotFound { name: Some(name.to_owned()) }
}

fn taken(name: &str) -> HistoryOutcome {
    HistoryOutcome::Taken { name: name.to_owned() }
}

/// Calls that follow one another.
fn history(calls: Vec<(HistoryCall, Option<HistoryOutcome>)>) -> Vec<Recorded> {
    let one = |(number, (call, outcome)): (usize, (HistoryCall, Option<HistoryOutcome>))| {
        let begin_ns = 10 * number as i64;
        Recorded { begin_ns, call, end: outcome.map(|outcome| (begin_ns + 5, outcome)) }
    };
    calls.into_iter().enumerate().map(one).collect()
}

fn judged(calls: Vec<(HistoryCall, Option<HistoryOutcome>)>, is_evicted: bool) -> Judgement {
    let parts = Partitions::of(&history(calls), &[]);
    assert!(parts.wrong.is_empty(), "{:?}", parts.wrong);
    judge_all(&parts, is_evicted)
}

fn right() -> Vec<(HistoryCall, Option<HistoryOutcome>)> {
    let n = || "n".to_owned();
    let unknown = || Some(HistoryOutcome::Unknown("lost".to_owned()));
    let flags = |set, clear| HistoryCall::SetFlags { name: "f".to_owned(), set, clear };
    vec![
        (get("n"), Some(not_found("n"))),
        (put("n", 1), Some(made(1))),
        (put("n", 2), Some(taken("n"))),
        (get("n"), Some(got(1))),
        (HistoryCall::Contains { name: n() }, Some(HistoryOutcome::Is(true))),
        (HistoryCall::Delete { name: n() }, Some(HistoryOutcome::Deleted)),
        (HistoryCall::GetById { version: 1 }, Some(HistoryOutcome::NotFound { name: None })),
        (flags(1, 0), Some(HistoryOutcome::Flags(1))),
        (flags(2, 0), Some(HistoryOutcome::Flags(3))),
        (flags(4, 1), Some(HistoryOutcome::Flags(6))),
        (put("n", 3), unknown()),
        (HistoryCall::Wait { name: n() }, Some(HistoryOutcome::Is(false))),
        (get("n"), Some(got(3))),
        (HistoryCall::DeleteById { version: 3 }, unknown()),
        (get("n"), Some(got(3))),
        (HistoryCall::Contains { name: n() }, Some(HistoryOutcome::Is(false))),
        (put("n", 4), None),
        (put("n", 5), Some(taken("n"))),
    ]
}

#[test]
fn a_right_history_is_right() {
    for is_evicted in [false, true] {
        let judgement = judged(right(), is_evicted);
        assert_eq!((judgement.not_count, judgement.undecided), (0, 0), "{:?}", judgement.not);
    }
}

#[test]
fn what_was_changed_is_found() {
    let changes: [(&str, usize, HistoryOutcome); 10] = [
        ("found before it was put", 0, got(1)),
        ("a name made twice", 2, made(2)),
        ("another object", 3, got(4)),
        ("there, and not found", 4, HistoryOutcome::Is(false)),
        ("deleted, and then not there to be deleted", 5, not_found("n")),
        ("back after its deletion", 6, got(1)),
        ("flags that were not set", 7, HistoryOutcome::Flags(2)),
        ("flags that were lost", 8, HistoryOutcome::Flags(2)),
        ("deleted by an unknown call, and found", 15, HistoryOutcome::Is(true)),
        ("waited for in vain", 11, HistoryOutcome::Is(true)),
    ];
    for (what, at, outcome) in changes {
        let mut calls = right();
        if what == "deleted by an unknown call, and found" {
            calls[14].1 = Some(not_found("n"));
        }
        if what == "waited for in vain" {
            calls[10] = (get("n"), Some(not_found("n")));
            calls.truncate(12);
        }
        calls[at].1 = Some(outcome);
        let judgement = judged(calls, false);
        assert_eq!(judgement.not_count, 1, "{what}: {judgement}");
    }
}

/// A name leads to the old object or the new one at every moment, and to no other.
#[test]
fn replaced_objects_do_not_come_back() {
    let right = || {
        vec![
            (put("n", 1), Some(made(1))),
            (replace("n", 2), Some(made(2))),
            (get("n"), Some(got(2))),
            (HistoryCall::GetById { version: 1 }, Some(HistoryOutcome::NotFound { name: None })),
            (replace("n", 3), Some(HistoryOutcome::Unknown("lost".to_owned()))),
            (get("n"), Some(got(3))),
            (replace("n", 4), None),
            (HistoryCall::Delete { name: "n".to_owned() }, Some(HistoryOutcome::Deleted)),
            (replace("n", 5), Some(made(5))),
        ]
    };
    let judgement = judged(right(), false);
    assert_eq!((judgement.not_count, judgement.undecided), (0, 0), "{:?}", judgement.not);
    let changes = [
        ("the old one", 2, got(1)),
        ("none", 2, not_found("n")),
        ("the old one by its id", 3, got(1)),
        ("an older one", 5, got(1)),
    ];
    for (what, at, outcome) in changes {
        let mut calls = right();
        calls[at].1 = Some(outcome);
        let judgement = judged(calls, false);
        assert_eq!(judgement.not_count, 1, "{what}: {judgement}");
    }
}

/// Where objects are evicted, what was not there may be right; what was there may not be wrong.
#[test]
fn what_was_changed_is_found_where_objects_are_evicted() {
    let changes: [(&str, usize, HistoryOutcome, usize); 5] = [
        ("evicted, and put again", 2, made(2), 0),
        ("evicted", 3, not_found("n"), 0),
        ("another object", 3, got(4), 1),
        ("back after its deletion", 6, got(1), 1),
        ("found before it was put", 0, got(1), 1),
    ];
    for (what, at, outcome, wrong) in changes {
        let mut calls = right();
        calls[at].1 = Some(outcome);
        calls.truncate(at + 1);
        let judgement = judged(calls, true);
        assert_eq!(judgement.not_count, wrong, "{what}: {:?}", judgement.not);
    }
}

/// A name that nobody has and nobody is about to take is not taken.
#[test]
fn a_name_that_no_object_has_is_found() {
    let calls = vec![
        (put("n", 1), Some(made(1))),
        (HistoryCall::Delete { name: "n".to_owned() }, Some(HistoryOutcome::Deleted)),
        (put("n", 2), Some(taken("n"))),
    ];
    let judgement = judged(calls, false);
    assert_eq!(judgement.not_count, 1);
    assert!(judgement.not[0].contains("Taken"), "{:?}", judgement.not);
}

fn flags_judged(values: &[(u64, u64, u64)], losses: &[(i64, i64)]) -> Judgement {
    let call = |(set, clear, flags): &(u64, u64, u64)| {
        let call = HistoryCall::SetFlags { name: "f".to_owned(), set: *set, clear: *clear };
        (call, Some(HistoryOutcome::Flags(*flags)))
    };
    judge_all(&Partitions::of(&history(values.iter().map(call).collect()), losses), false)
}

/// Flags may be lost while a node is, and do not come back.
#[test]
fn flags_that_are_lost_do_not_come_back() {
    let values = [(29, 0, 29), (64, 2, 64), (1, 64, 1)];
    assert_eq!(flags_judged(&values, &[(7, 12)]).not_count, 0);
    assert_eq!(flags_judged(&values, &[(16, 18)]).not_count, 1, "not at that time");
    assert_eq!(flags_judged(&values, &[]).not_count, 1);
    let back = [(29, 0, 29), (64, 2, 64), (0, 2, 93)];
    assert_eq!(flags_judged(&back, &[(7, 12)]).not_count, 1, "they were not lost");
}
