//! Named places where a test may kill: one between any two stores that change shared state.
//!
//! Compiled only under `cfg(test)` or the feature `failpoints`; elsewhere `failpoint!` is nothing.
//! A test sets a hook that is called with the name of each place passed. The hook panics (to be
//! caught, after which the home must be thrown away and the region adopted) or aborts the process, as
//! [`arm`] has it do.

use std::cell::RefCell;
use std::sync::OnceLock;

use farrow_memory::sync::{AtomicU64, Ordering};

/// Every name, so that a test can walk all of them and see that it reached each.
pub const ALL: &[&str] = &[
    "create.making",
    "create.tables",
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
    "cluster.tell.filled",
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
    "seal.name",
    "seal.slots_used",
    "seal.writing",
    "seal.words",
    "seal.published",
    "seal.indexed",
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
    "index.zeroed",
    "index.filled",
    "index.turned",
];

/// Places that clients pass, by stores of their own. Hooks of a thread are not called there: who
/// catches a panic there could not throw the client's books away.
pub const OF_CLIENTS: &[&str] =
    &["hold.marked", "hold.claimed", "hold.released", "own.filled", "own.sealed"];

/// Deliberate faults: a test that lasts over days of calls shows by them that it finds something.
pub const FAULTS: &[&str] = &["names.blind"];

/// Where [`is_faulty`] looks: the name of one of [`FAULTS`].
pub const FAULT_VARIABLE: &str = "FARROW_FAULT";

/// Where [`arm`] looks: `seal.words:3` is the third time that this place is passed.
pub const VARIABLE: &str = "FARROW_FAILPOINT";

type LocalHook = Box<dyn FnMut(&'static str)>;
type GlobalHook = Box<dyn Fn(&'static str) + Send + Sync>;

thread_local! {
    static LOCAL: RefCell<Option<LocalHook>> = const { RefCell::new(None) };
}
static GLOBAL: OnceLock<GlobalHook> = OnceLock::new();

/// Call `hook` at every failpoint this thread passes, until another one is set.
pub fn set_local(hook: Option<LocalHook>) {
    LOCAL.with(|local| *local.borrow_mut() = hook);
}

/// Call `hook` at every failpoint any thread passes. For a whole process, and only once: false if
/// there was one already.
pub fn set_global(hook: GlobalHook) -> bool {
    GLOBAL.set(hook).is_ok()
}

/// Have this process die, as by `kill -9`, at the place that [`VARIABLE`] names, if it is set. False
/// if it names none.
#[must_use]
pub fn arm() -> bool {
    let Ok(said) = std::env::var(VARIABLE) else {
        return true;
    };
    let Some((place, count)) = said.split_once(':') else {
        return false;
    };
    let known = ALL.iter().chain(OF_CLIENTS).find(|name| **name == place);
    let (Some(&place), Ok(count)) = (known, count.parse::<u64>()) else {
        return false;
    };
    let passed = AtomicU64::new(0);
    set_global(Box::new(move |name| {
        if name == place && passed.fetch_add(1, Ordering::Relaxed) + 1 == count {
            std::process::abort();
        }
    }))
}

/// Whether this process has this one of [`FAULTS`].
#[must_use]
pub fn is_faulty(fault: &str) -> bool {
    static FAULT: OnceLock<Option<String>> = OnceLock::new();
    let said = FAULT.get_or_init(|| std::env::var(FAULT_VARIABLE).ok());
    said.as_deref().is_some_and(|said| said == fault && FAULTS.contains(&said))
}

/// Pass the place `name` of a client.
#[doc(hidden)]
pub fn hit_by_client(name: &'static str) {
    if let Some(hook) = GLOBAL.get() {
        hook(name);
    }
}

/// Pass the place `name`.
#[doc(hidden)]
pub fn hit(name: &'static str) {
    hit_by_client(name);
    // The hook is out of its place while it runs: it may panic, or pass failpoints itself.
    if let Some(mut hook) = LOCAL.with(|local| local.borrow_mut().take()) {
        hook(name);
        LOCAL.with(|local| {
            local.borrow_mut().get_or_insert(hook);
        });
    }
}
