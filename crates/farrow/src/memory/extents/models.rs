//! Threads of a client that take and give back pages, in every order that their lock allows: no
//! page is handed out twice or lost.

use farrow_memory::Length;
use farrow_memory::sync::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;

/// Pages that the node grants at a time; a thread takes one.
const GRANT_PAGES: u64 = 2;
const THREADS: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExtentsMutant {
    None,
    /// Looks under one lock and takes under another.
    TakeInTwoSteps,
    /// The head of a grant is free for other threads before it is handed out.
    HeadLeftFree,
}

struct SharedExtents {
    mutant: ExtentsMutant,
    broken: std::sync::Arc<AtomicBool>,
    state: Mutex<ExtentsState>,
    /// First page that the node has not granted.
    node: Mutex<u64>,
    /// Ranges that are handed out now.
    out: Mutex<Vec<Span>>,
}

fn pages(first: u64, count: u64) -> Span {
    let page = page_bytes();
    Span { offset: Offset(first * page), length: Length(count * page) }
}

fn take(shared: &SharedExtents) -> Span {
    let whole = page_bytes();
    if shared.mutant == ExtentsMutant::TakeInTwoSteps {
        let seen = shared.state.lock().unwrap().free.runs().next();
        if let Some(run) = seen {
            let head = Run { start: run.start, end: run.start + whole };
            let _ = shared.state.lock().unwrap().free.claim(head);
            return run_span(head);
        }
    } else if let Some(span) = shared.state.lock().unwrap().take(whole) {
        return span;
    }
    let granted = {
        let mut next = shared.node.lock().unwrap();
        *next += GRANT_PAGES;
        pages(*next - GRANT_PAGES, GRANT_PAGES)
    };
    if shared.mutant == ExtentsMutant::HeadLeftFree {
        let mut state = shared.state.lock().unwrap();
        state.insert_granted(granted);
        let _ = state.free.free(span_run(granted));
        return pages(granted.offset.0 / whole, 1);
    }
    let mut state = shared.state.lock().unwrap();
    state.insert_granted(granted);
    state.hand_out(granted, whole)
}

fn work(shared: &SharedExtents) {
    let span = take(shared);
    note(shared, span);
    shared.out.lock().unwrap().retain(|other| *other != span);
    let freed = shared.state.lock().unwrap().free.free(span_run(span));
    if freed.is_err() {
        shared.broken.store(true, Ordering::Relaxed);
    }
    // A second range, which is retained.
    note(shared, take(shared));
}

fn note(shared: &SharedExtents, span: Span) {
    let mut out = shared.out.lock().unwrap();
    if out.iter().any(|other| other.overlaps(span)) {
        shared.broken.store(true, Ordering::Relaxed);
    }
    out.push(span);
}

fn model(mutant: ExtentsMutant, broken: &std::sync::Arc<AtomicBool>) {
    let heap = pages(0, 16);
    let extents = Extents::new(heap, false).unwrap();
    let state = extents.state.into_inner().unwrap();
    let shared = Arc::new(SharedExtents {
        mutant,
        broken: std::sync::Arc::clone(broken),
        state: Mutex::new(state),
        node: Mutex::new(0),
        out: Mutex::new(Vec::new()),
    });
    let threads: Vec<_> = (1..THREADS)
        .map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || work(&shared))
        })
        .collect();
    work(&shared);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let granted = *shared.node.lock().unwrap() * page_bytes();
    let (free, known) = {
        let state = shared.state.lock().unwrap();
        let known: u64 = state.granted.iter().map(|(start, end)| end - start).sum();
        (state.free.free_bytes(), known)
    };
    if free + THREADS * page_bytes() != granted || known != granted {
        broken.store(true, Ordering::Relaxed);
    }
}

/// Whether some order breaks the invariant. Recorded outside of loom, whose locks do not survive a
/// panic.
fn is_broken(mutant: ExtentsMutant) -> bool {
    let broken = std::sync::Arc::new(AtomicBool::new(false));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    let noted = std::sync::Arc::clone(&broken);
    builder.check(move || model(mutant, &noted));
    broken.load(Ordering::Relaxed)
}

#[test]
fn no_page_is_handed_out_twice_or_lost() {
    assert!(!is_broken(ExtentsMutant::None));
}

#[test]
fn mutants_are_caught() {
    assert!(is_broken(ExtentsMutant::TakeInTwoSteps));
    assert!(is_broken(ExtentsMutant::HeadLeftFree));
}
