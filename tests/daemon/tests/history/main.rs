//! A history of the calls of many clients, on three nodes whose daemons are killed, paused and
//! upgraded and whose links fail, judged by independent checkers: names, deletes, waits and flags
//! are linearizable, each object has the bytes that were put, and no deleted object reappears.
//!
//! `FARROW_HISTORY_OPERATIONS` makes the runs longer than those of every run of the tests,
//! `FARROW_HISTORY_SEED` other ones; `make history` sets them. A folder in `FARROW_HISTORY_FOLDER`
//! keeps what was recorded, and what is judged, for porcupine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod canaries;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod content;
mod faults;
mod judge;
mod model;
mod partition;
mod porcupine;
mod record;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::Daemon;
use common::ground::Ground;
use common::nodes::DaemonNodes;
use common::proxy::Linked;
use farrow_store::failpoints;
use faults::FaultyRun;
use judge::{Judgement, judge_all};
use partition::Partitions;

const OPERATIONS_VARIABLE: &str = "FARROW_HISTORY_OPERATIONS";
const SEED_VARIABLE: &str = "FARROW_HISTORY_SEED";
const FOLDER_VARIABLE: &str = "FARROW_HISTORY_FOLDER";
/// Calls of a run in every run of the tests.
const OPERATIONS: u64 = 10_000;
const CANARY_OPERATIONS: u64 = 2_000;
/// Of this number of parts, one may be undecided.
const UNDECIDED_OF: usize = 500;
/// Of the two lines of a call, at most on average: a run is long enough when this number of bytes a call
/// were written.
const CALL_BYTES: u64 = 230;
/// A run that does not come to its calls in this time is over.
const SECONDS_PER_1000: u64 = 12;
const MEMORY: &str = "64MiB";
const MEMORY_BYTES: u64 = 64 << 20;
/// So little that objects do not fit.
const MEMORY_TO_EVICT: &str = "8MiB";
const NODES: &[&str] = &["--lease-ms", "1000", "--no-prepare"];

/// One at a time: each fills the machine.
static ONE: Mutex<()> = Mutex::new(());

/// Not a test by itself: a child process calls.
#[test]
fn worker() {
    client::work();
}

fn number_of(variable: &str, otherwise: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return otherwise };
    let digits = text.strip_prefix("0x");
    digits.map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16)).expect("a number")
}

fn retained_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from)
}

/// What a run is to be.
struct RunPlan {
    name: &'static str,
    seed: u64,
    operations: u64,
    /// Objects may go by themselves.
    is_evicted: bool,
    has_faults: bool,
}

impl RunPlan {
    fn new(name: &'static str, seed: u64) -> Self {
        let seed = number_of(SEED_VARIABLE, seed);
        let operations = number_of(OPERATIONS_VARIABLE, OPERATIONS);
        Self { name, seed, operations, is_evicted: false, has_faults: true }
    }

    /// Runs this number of calls, and returns their outcomes.
    fn run(&self, ground: Ground) -> Partitions {
        let Self { name, seed, operations, .. } = *self;
        println!("{name}: seed {seed:#x}; {SEED_VARIABLE} sets it");
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut run = FaultyRun::start(ground, folder.path(), seed);
        let until = Instant::now() + Duration::from_secs(60 + operations * SECONDS_PER_1000 / 1000);
        while run.recorded_bytes() < operations * CALL_BYTES {
            assert!(Instant::now() < until, "{name}: too slow: {} bytes", run.recorded_bytes());
            run.sleep(300, 4000);
            run.note_exclusions();
            if self.has_faults {
                let seconds = (record::now_ns() - run.from_ns) / 1_000_000_000;
                println!("{name}, {seconds:>6} s: {}", run.fault());
            }
        }
        let (faults, losses) = run.finish();
        if let Some(retained) = retained_folder() {
            record::copy(folder.path(), &retained.join(name));
        }
        let parts = Partitions::of(&record::read(folder.path()), &losses);
        println!("{name}: {faults} faults; {:#?}", parts.counts);
        parts
    }

    /// By both checkers, which have to agree. Each has a limit, so one may decide what the other cannot.
    fn judge(&self, parts: &Partitions) -> Judgement {
        let (name, begin) = (self.name, Instant::now());
        let mut judgement = judge_all(parts, self.is_evicted);
        println!("{name}: judged in {:?}: {judgement}", begin.elapsed());
        let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = retained_folder().unwrap_or_else(|| temporary.path().to_owned());
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("{name}.jsonl"));
        judge::export(parts, self.is_evicted, &file);
        if let Some((is_right_by_porcupine, words)) = porcupine::judge(&file) {
            println!("{words}");
            if judgement.not_count == 0 && judgement.undecided > 0 && is_right_by_porcupine {
                judgement.undecided = 0;
            }
            let is_right = judgement.not_count == 0 && judgement.undecided == 0;
            assert_eq!(is_right, is_right_by_porcupine, "{name}: {judgement}, but {words}");
        }
        judgement
    }

    fn assert_linearizable(&self, ground: Ground) {
        let parts = self.run(ground);
        let (name, seed) = (self.name, self.seed);
        assert!(parts.wrong.is_empty(), "{name}, seed {seed:#x}: {:#?}", parts.wrong);
        let foreign = parts.foreign();
        assert!(foreign.is_empty(), "{name}, seed {seed:#x}: {foreign:#?}");
        let judgement = self.judge(&parts);
        let not = judgement.not.join("\n");
        assert!(judgement.not_count == 0, "{name}, seed {seed:#x}: {judgement}\n{not}");
        // Some part with many calls of unknown outcome may be beyond the limits of both checkers.
        let undecided_max = judgement.parts / UNDECIDED_OF;
        assert!(judgement.undecided <= undecided_max, "{name}, seed {seed:#x}: {judgement}");
        assert!(parts.counts.judged * 2 > self.operations, "too tame: {:#?}", parts.counts);
    }
}

/// What does not fit in memory is spilled, so nothing goes but by a delete.
#[test]
fn names_and_flags_are_linearizable_where_nothing_is_evicted() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let spill = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let more = [NODES, &["--spill", spill.path().to_str().unwrap()]].concat();
    let ground = Ground::Loopback(DaemonNodes::start(3, MEMORY, &more));
    RunPlan::new("spilled", 0x4157_0001).assert_linearizable(ground);
}

/// As before, and links are cut, flap, lose and delay, in one direction too.
#[test]
fn names_and_flags_are_linearizable_where_links_fail() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let spill = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let more = [NODES, &["--spill", spill.path().to_str().unwrap()]].concat();
    let ground = Ground::Proxied(Linked::start(3, MEMORY, &more));
    RunPlan::new("links", 0x4157_0004).assert_linearizable(ground);
}

/// As the first, in memory that each machine keeps coherent for itself only, which is refreshed and
/// cleaned by software.
#[test]
fn names_and_flags_are_linearizable_in_node_local_memory() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (nodes, _devices) = DaemonNodes::node_local(3, MEMORY_BYTES, &[], NODES);
    RunPlan::new("node-local", 0x4157_0005).assert_linearizable(Ground::Loopback(nodes));
}

/// As the first, on nodes that map nothing of each other: what one reads of another is a copy.
#[test]
fn names_and_flags_are_linearizable_where_objects_are_brought_by_network() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let spill = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let more = ["--net", "only", "--spill", spill.path().to_str().unwrap()];
    let ground = Ground::Loopback(DaemonNodes::start(3, MEMORY, &[NODES, &more].concat()));
    RunPlan::new("by-net", 0x4157_0006).assert_linearizable(ground);
}

/// As before, and the links of both the membership and the objects are cut, flap, lose and delay, in
/// one direction too.
#[test]
fn names_and_flags_are_linearizable_where_the_network_of_objects_fails() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let spill = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let more = ["--net", "only", "--spill", spill.path().to_str().unwrap()];
    let ground = Ground::Proxied(Linked::start(3, MEMORY, &[NODES, &more].concat()));
    RunPlan::new("by-net-links", 0x4158_f76b).assert_linearizable(ground);
}

/// What does not fit goes, by the policy: then nothing says that a name must be there, but what is
/// there is what was put last, and no deleted object comes back.
#[test]
fn names_and_flags_are_linearizable_where_objects_are_evicted() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let more = [NODES, &["--evict", "lru"]].concat();
    let ground = Ground::Loopback(DaemonNodes::start(3, MEMORY_TO_EVICT, &more));
    let plan = RunPlan { is_evicted: true, ..RunPlan::new("evicted", 0x4157_0002) };
    plan.assert_linearizable(ground);
}

/// The canary: a node that says that names are free without looking whether they are.
#[test]
fn names_that_are_given_away_twice_are_found() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let fault = format!("{}=names.blind", failpoints::FAULT_VARIABLE);
    let nodes = DaemonNodes::start_each(3, NODES, |_, words| {
        Daemon::start_by(&["/usr/bin/env", &fault], MEMORY, words)
    });
    assert_found("blind", 0x4157_0003, nodes);
}

/// The canary by network: nodes that keep their replicas of objects that were deleted.
#[test]
fn deleted_objects_that_other_nodes_still_find_are_found() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let fault = format!("{}=replicas.retained", failpoints::FAULT_VARIABLE);
    let nodes = DaemonNodes::start_each(3, &[NODES, &["--net", "only"]].concat(), |_, words| {
        Daemon::start_by(&["/usr/bin/env", &fault], MEMORY, words)
    });
    assert_found("retained", 0x4157_0008, nodes);
}

/// Nodes with a planted fault, and a history that tells it.
fn assert_found(name: &'static str, seed: u64, nodes: DaemonNodes) {
    let plan =
        RunPlan { operations: CANARY_OPERATIONS, has_faults: false, ..RunPlan::new(name, seed) };
    let parts = plan.run(Ground::Loopback(nodes));
    let judgement = plan.judge(&parts);
    assert!(judgement.not_count > 0, "{judgement}");
    println!("as it should be: {}", judgement.not[0]);
}
