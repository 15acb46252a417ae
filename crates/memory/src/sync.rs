//! All atomics of the project come from this module.
//!
//! The types wrap those of `std` instead of re-exporting them: `clippy.toml` bans the originals,
//! and a lint by type sees through a re-export. A model checker can replace them here, and only
//! here. Words inside mapped memory are accessed through [`crate::Words`], never by a cast.
#![allow(clippy::disallowed_types)]

use std::sync::atomic as inner;
pub use std::sync::atomic::{Ordering, fence};

macro_rules! wrap {
    ($name:ident, $inner:ty, $value:ty, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            /// Creates an atomic with this value.
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self(<$inner>::new(value))
            }

            /// Loads the value. As in `std`, panics for orderings with `Release`.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            /// Stores `value`. As in `std`, panics for orderings with `Acquire`.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
            }

            /// Stores `value` and returns the previous value.
            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }

            /// Stores `new` if the value is `current`, and returns the previous value.
            ///
            /// # Errors
            /// The value found, if it is not `current`.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(current, new, success, failure)
            }

            /// As [`Self::compare_exchange`], but may fail spuriously.
            ///
            /// # Errors
            /// The value found.
            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            /// Consumes the atomic and returns its value.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $value:ty) => {
        impl $name {
            /// Adds with wrapping; returns the previous value.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, order)
            }

            /// Subtracts with wrapping; returns the previous value.
            #[inline]
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_sub(value, order)
            }

            /// Stores the maximum of both values; returns the previous value.
            #[inline]
            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_max(value, order)
            }

            /// Stores the minimum of both values; returns the previous value.
            #[inline]
            pub fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_min(value, order)
            }
        }
    };
}

wrap!(AtomicU64, inner::AtomicU64, u64, "A `u64` shared between threads.");
wrap!(AtomicU32, inner::AtomicU32, u32, "A `u32` shared between threads.");
wrap!(AtomicUsize, inner::AtomicUsize, usize, "A `usize` shared between threads.");
wrap!(AtomicU8, inner::AtomicU8, u8, "A `u8` shared between threads.");
wrap!(AtomicBool, inner::AtomicBool, bool, "A flag shared between threads.");
arithmetic!(AtomicU8, u8);
arithmetic!(AtomicU64, u64);
arithmetic!(AtomicU32, u32);
arithmetic!(AtomicUsize, usize);
