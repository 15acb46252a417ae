//! Named points where a test may kill: one between any two stores that change shared state.
//!
//! Compiled only under `cfg(test)` or the feature `failpoints`; otherwise `failpoint!` expands to
//! nothing. A test sets a hook that receives the name of each point passed. The hook either panics
//! or aborts the process, as [`arm`] does. After a caught panic the home must be dropped and the
//! region adopted.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::thread::LocalKey;

use farrow_memory::sync::{AtomicU64, Ordering};

/// Every name, so that a test can visit all of them and check that it reached each.
pub const ALL: &[&str] = &[
    "create.making",
    "create.tables",
    "create.withdrawn",
    "create.header",
    "create.magic",
    "adopt.life",
    "adopt.grants",
    "adopt.entries",
    "adopt.locals",
    "adopt.index",
    "adopt.leaving",
    "client.join.record",
    "client.join.state",
    "client.leave.state",
    "client.leave.holds",
    "client.leave.grant",
    "client.leave.done",
    "cluster.keep.filled",
    "cluster.publish.filled",
    "namespace.record",
    "namespace.created",
    "namespace.dropped",
    "hold_block.zeroed",
    "hold_block.owned",
    "entry_page.zeroed",
    "entry_page.owned",
    "entry_page.left",
    "entry_page.freed",
    "grant.range",
    "grant.owner",
    "carve.drop",
    "carve.prefix",
    "carve.suffix",
    "carve.split.new",
    "carve.split.old",
    "release.carved",
    "withdraw.recorded",
    "withdraw.extended",
    "lend.recorded",
    "seal.name",
    "seal.slots_used",
    "seal.writing",
    "seal.words",
    "seal.published",
    "seal.indexed",
    "seal.redirected",
    "seal.carved",
    "delete.retiring",
    "delete.unindexed",
    "delete.scanned",
    "free.entry",
    "event.opened",
    "event.drafted",
    "event.closed",
    "event.published",
    "local.carved",
    "local.refused",
    "local.retiring",
    "local.freed",
    "life.ended",
    "takeover.registered",
    "takeover.forward",
    "takeover.silent",
    "takeover.moved",
    "takeover.ended",
    "pin.stored",
    "evict.leaving",
    "evict.held",
    "evict.scanned",
    "spill.spilled",
    "spill.freed",
    "spill.deleted",
    "restore.words",
    "restore.published",
    "unname.unindexed",
    "unname.word",
    "unname.unnamed",
    "index.zeroed",
    "index.filled",
    "index.turned",
];

/// Points in clients' own stores. Thread-local hooks do not run there: a panic caught there would
/// not discard the client's private state.
pub const OF_CLIENTS: &[&str] =
    &["hold.marked", "hold.claimed", "hold.released", "own.filled", "own.sealed"];

/// Points between a client's messages. A test stops a thread there.
pub const OF_SESSIONS: &[&str] = &["seal.lost"];

/// Points between two loads of a reader, where a test lets the home act. Only the hook of
/// [`set_reader`] runs there.
pub const OF_READERS: &[&str] = &["find.place", "look.forward"];

/// Points of the daemon's decisions, which its region outlives.
pub const OF_NODES: &[&str] = &[
    "move.recorded",
    "move.taken",
    "move.removed",
    "move.ended",
    "take.recorded",
    "take.unpinned",
    "take.sealed",
    "take.ended",
];

/// Deliberate faults. A long-running test uses them to show that it can find a bug.
pub const FAULTS: &[&str] = &["names.blind", "replicas.retained"];

/// Environment variable that [`is_faulty`] reads: the name of one of [`FAULTS`].
pub const FAULT_VARIABLE: &str = "FARROW_FAULT";

/// Environment variable that [`arm`] reads: `seal.words:3` is the third pass of that point.
pub const VARIABLE: &str = "FARROW_FAILPOINT";

type LocalHook = Box<dyn FnMut(&'static str)>;
type GlobalHook = Box<dyn Fn(&'static str) + Send + Sync>;

thread_local! {
    static LOCAL: RefCell<Option<LocalHook>> = const { RefCell::new(None) };
    static READER: RefCell<Option<LocalHook>> = const { RefCell::new(None) };
}
static GLOBAL: OnceLock<GlobalHook> = OnceLock::new();

/// Call `hook` at every failpoint this thread passes, until another hook is set.
pub fn set_local(hook: Option<LocalHook>) {
    LOCAL.with(|local| *local.borrow_mut() = hook);
}

/// Call `hook` at every point of [`OF_READERS`] this thread passes, until another hook is set.
pub fn set_reader(hook: Option<LocalHook>) {
    READER.with(|reader| *reader.borrow_mut() = hook);
}

/// Call `hook` at every failpoint any thread of the process passes. It can be set only once:
/// returns false if there is a hook already.
pub fn set_global(hook: GlobalHook) -> bool {
    GLOBAL.set(hook).is_ok()
}

/// Make this process abort, as by `kill -9`, at the point that [`VARIABLE`] names, if it is set. If
/// the value begins with `stop:`, it calls `stop` there instead. Returns false if the value names no
/// point.
#[must_use]
pub fn arm(stop: fn()) -> bool {
    let Ok(said) = std::env::var(VARIABLE) else {
        return true;
    };
    let (said, act): (&str, fn()) = match said.strip_prefix("stop:") {
        Some(said) => (said, stop),
        None => (&said, || std::process::abort()),
    };
    let Some((place, count)) = said.split_once(':') else {
        return false;
    };
    let known = ALL.iter().chain(OF_CLIENTS).chain(OF_NODES).find(|name| **name == place);
    let (Some(&place), Ok(count)) = (known, count.parse::<u64>()) else {
        return false;
    };
    let passed = AtomicU64::new(0);
    set_global(Box::new(move |name| {
        if name == place && passed.fetch_add(1, Ordering::Relaxed) + 1 == count {
            act();
        }
    }))
}

/// Whether `fault`, one of [`FAULTS`], is enabled in this process.
#[must_use]
pub fn is_faulty(fault: &str) -> bool {
    static FAULT: OnceLock<Option<String>> = OnceLock::new();
    let said = FAULT.get_or_init(|| std::env::var(FAULT_VARIABLE).ok());
    said.as_deref().is_some_and(|said| said == fault && FAULTS.contains(&said))
}

/// Pass the point `name` of a client.
#[doc(hidden)]
pub fn hit_by_client(name: &'static str) {
    if let Some(hook) = GLOBAL.get() {
        hook(name);
    }
}

/// Pass the point `name` of a reader.
#[doc(hidden)]
pub fn hit_by_reader(name: &'static str) {
    run_hook(&READER, name);
}

/// Pass the point `name`.
#[doc(hidden)]
pub fn hit(name: &'static str) {
    hit_by_client(name);
    run_hook(&LOCAL, name);
}

fn run_hook(place: &'static LocalKey<RefCell<Option<LocalHook>>>, name: &'static str) {
    // The place is empty while the hook runs: the hook may panic or pass failpoints itself.
    if let Some(mut hook) = place.with(|hook| hook.borrow_mut().take()) {
        hook(name);
        place.with(|place| {
            place.borrow_mut().get_or_insert(hook);
        });
    }
}
