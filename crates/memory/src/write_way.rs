//! The ways to copy bytes into memory that other nodes read.

use std::fmt;

use crate::cache::{self, Method};
use crate::copy::{self, StreamMethod};

/// Method to copy bytes into memory that other nodes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteWay {
    /// With non-temporal stores; only the lines at the two ends are written back.
    Stream(StreamMethod),
    /// With plain stores; then the lines are written back one by one.
    CopyThenPublish(Method),
}

impl WriteWay {
    /// Whether this CPU supports it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Stream(method) => method.is_streaming(),
            Self::CopyThenPublish(method) => method.is_available(),
        }
    }

    /// Its name in files: that of the instruction, such as `clwb` or `avx512`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Stream(method) => method.key(),
            Self::CopyThenPublish(method) => method.as_str(),
        }
    }

    /// The method with this [key](Self::key), whether or not this CPU supports it.
    #[must_use]
    pub fn of_key(key: &str) -> Option<Self> {
        match StreamMethod::of_key(key) {
            Some(StreamMethod::Memcpy) => None,
            Some(method) => Some(Self::Stream(method)),
            None => Method::of_name(key).map(Self::CopyThenPublish),
        }
    }

    /// All methods that this CPU supports, those with non-temporal stores first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let streams = copy::methods_available().into_iter().filter(|method| method.is_streaming());
        let methods = cache::methods_available().into_iter().map(Self::CopyThenPublish);
        streams.map(Self::Stream).chain(methods).collect()
    }
}

impl fmt::Display for WriteWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(method) => f.write_str(method.as_str()),
            Self::CopyThenPublish(method) => write!(f, "copy, {}", method.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_have_names_of_their_own() {
        let all = WriteWay::all();
        for way in &all {
            assert!(way.is_available());
            assert_eq!(WriteWay::of_key(way.key()), Some(*way));
            assert!(!way.to_string().is_empty());
        }
        assert!(all.contains(&WriteWay::CopyThenPublish(cache::publish_method())));
        assert_eq!(WriteWay::of_key("memcpy"), None);
        assert_eq!(WriteWay::of_key(""), None);
    }
}
