//! How a guest reports steps and failures to the host, and waits.

use std::error::Error as StdError;
use std::fmt::Display;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) type Anything<T = ()> = Result<T, Box<dyn StdError>>;

/// Emulated processors are slow, and the host may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

pub(crate) fn same<T: PartialEq + Display>(what: &str, found: T, expected: T) -> Anything {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found}, expected {expected}").into())
}

/// One more pause, unless patience is at its end.
pub(crate) fn until(begin: Instant, what: impl FnOnce() -> String) -> Anything {
    if begin.elapsed() > PATIENCE {
        return Err(format!("after {PATIENCE:?}: {}", what()).into());
    }
    sleep(PAUSE);
    Ok(())
}

pub(crate) fn step(what: &str) {
    println!("vm: ok: {what}");
}
