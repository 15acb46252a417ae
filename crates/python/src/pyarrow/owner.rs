//! Owners of bytes, as words that C can keep.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Drops the value behind a word. It is called once, on any thread.
pub type Release = unsafe extern "C" fn(*mut c_void);

/// Runs a callback of C, into which a panic must not unwind; the panic hook has reported it.
pub fn contained(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

/// Any value that keeps bytes valid, as one word and the function that drops it.
pub struct RawOwner {
    word: *mut c_void,
    release: Release,
}

// SAFETY: both constructors take owners that may be dropped on any thread; nothing else reads them.
unsafe impl Send for RawOwner {}

unsafe extern "C" fn drop_box<T>(word: *mut c_void) {
    // SAFETY: `word` came from `Box::into_raw` in `boxed`, and this runs once.
    contained(|| drop(unsafe { Box::from_raw(word.cast::<T>()) }));
}

unsafe extern "C" fn drop_shared<T>(word: *mut c_void) {
    // SAFETY: `word` came from `Arc::into_raw` in `shared`, and this runs once.
    contained(|| drop(unsafe { Arc::from_raw(word.cast_const().cast::<T>()) }));
}

impl RawOwner {
    pub fn boxed<T: Send + 'static>(owner: T) -> RawOwner {
        RawOwner { word: Box::into_raw(Box::new(owner)).cast(), release: drop_box::<T> }
    }

    /// Without an allocation.
    pub fn shared<T: Send + Sync + 'static>(owner: Arc<T>) -> RawOwner {
        RawOwner { word: Arc::into_raw(owner).cast_mut().cast(), release: drop_shared::<T> }
    }

    /// The parts. The caller must see to it that `release(word)` is called once.
    pub fn into_parts(self) -> (*mut c_void, Release) {
        let parts = (self.word, self.release);
        std::mem::forget(self);
        parts
    }
}

impl Drop for RawOwner {
    fn drop(&mut self) {
        // SAFETY: `into_parts` forgets the value, so this is the only call.
        unsafe { (self.release)(self.word) };
    }
}
