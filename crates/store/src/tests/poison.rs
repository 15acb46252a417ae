//! Overwrite memory as it becomes free: for tests that ask for it, each in a thread of its own.

use std::cell::Cell;

/// What freed bytes become.
pub(crate) const BYTE: u8 = 0xdd;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// From now on what the homes of this thread free is overwritten.
pub(crate) fn turn_on() {
    IS_ON.set(true);
}

pub(crate) fn is_on() -> bool {
    IS_ON.get()
}
