//! Overwrite memory as it becomes free: for tests that turn it on, each in a thread of its own.

use std::cell::Cell;

/// The value of freed bytes.
pub(crate) const BYTE: u8 = 0xdd;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// From now on the homes of this thread overwrite the memory they free.
pub(crate) fn turn_on() {
    IS_ON.set(true);
}

pub(crate) fn is_on() -> bool {
    IS_ON.get()
}
