//! What counts of statistics share: the threads that help, and the text of the result.

use std::num::NonZero;
use std::thread;

use farrow_arrow::statistics::Counting;
use farrow_memory::AfterCopy;

/// Tasks from which on a thread pays: below, its start takes as long as the count.
pub(crate) const TASKS_PER_THREAD: usize = 32;
/// More threads only wait for memory, which the copy needs as well.
const THREADS_MAX: usize = 4;

/// Counts what `copy` copies, piece by piece, so that memory is read once for both; then, in several
/// threads, what it has not copied. After a copy that failed nothing is counted.
pub(crate) fn count_within<T, E>(
    counting: &Counting<'_>,
    copy: impl FnOnce(Option<AfterCopy<'_>>) -> Result<T, E>,
) -> Result<T, E> {
    let copied = copy(Some(&|piece| counting.work_on(piece)))?;
    Ok(count_while(counting, || copied))
}

/// Does all tasks, in the caller's thread after `work` and in threads of its own beside it.
pub(crate) fn count_while<T>(counting: &Counting<'_>, work: impl FnOnce() -> T) -> T {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let useful = (counting.tasks_left() / TASKS_PER_THREAD).min(THREADS_MAX);
    thread::scope(|scope| {
        for _ in 0..useful.min(cores.div_ceil(2)) {
            // Without a thread, the caller counts all of it.
            let thread = thread::Builder::new().name("farrow-statistics".into());
            drop(thread.spawn_scoped(scope, || counting.work()));
        }
        let done = work();
        counting.work();
        done
    })
}

/// The alphabet of RFC 4648, section 4.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 without padding.
pub(crate) fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        for at in 0..=group.len() {
            let digit = bits >> (18 - 6 * at) & 63;
            text.push(ALPHABET.get(digit as usize).map_or('A', |digit| char::from(*digit)));
        }
    }
    text
}

/// The bits of each digit of [`ALPHABET`]; [`NO_DIGIT`] for other bytes.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut bits = 0;
    while bits < ALPHABET.len() {
        digits[ALPHABET[bits] as usize] = bits as u8;
        bits += 1;
    }
    digits
};

const NO_DIGIT: u8 = u8::MAX;

/// The bytes of a text that [`to_base64`] returned; `None` for other characters.
pub(crate) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            let digit = DIGITS.get(usize::from(*digit)).filter(|digit| **digit != NO_DIGIT)?;
            bits = bits << 6 | u32::from(*digit);
        }
        bits <<= 6 * (4 - group.len()) as u32;
        // A group of one to four digits is none to three bytes of the lower three.
        bytes.extend(bits.to_be_bytes().get(1..group.len())?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_that_of_the_rfc() {
        let pairs = [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")];
        for (bytes, text) in pairs {
            assert_eq!(to_base64(bytes.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(from_base64("Zm=v"), None);
        assert_eq!(from_base64("\u{e4}"), None);
    }

    proptest! {
        #[test]
        fn all_bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(from_base64(&to_base64(&bytes)), Some(bytes));
        }
    }
}
