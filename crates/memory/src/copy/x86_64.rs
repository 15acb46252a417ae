//! Streaming (non-temporal) stores of x86-64. The caller must end them with `sfence`.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_set1_epi8, _mm_stream_si128,
    _mm256_loadu_si256, _mm256_set1_epi8, _mm256_stream_si256, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_stream_si512,
};

use super::StreamMethod;

/// Stores are made in whole lines, so that each fills a write-combining buffer.
const LINE_BYTES: usize = 64;

pub(super) fn methods_available() -> Vec<StreamMethod> {
    [StreamMethod::Avx512, StreamMethod::Avx2, StreamMethod::Sse2]
        .into_iter()
        .filter(|method| is_available(*method))
        .chain([StreamMethod::Memcpy])
        .collect()
}

pub(super) fn is_available(method: StreamMethod) -> bool {
    match method {
        StreamMethod::Avx512 => std::arch::is_x86_feature_detected!("avx512f"),
        // The stores need only AVX, but CPUs without AVX2 split them into slow halves.
        StreamMethod::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
        StreamMethod::Sse2 => true,
        StreamMethod::Memcpy => false,
    }
}

/// Copies whole lines with non-temporal stores and the ends with plain stores.
///
/// # Safety
/// As [`super::copy_into`], and this CPU supports the method.
pub(super) unsafe fn copy(into: *mut u8, from: &[u8], method: StreamMethod) {
    let head = into.align_offset(LINE_BYTES).min(from.len());
    let (head, rest) = from.split_at(head);
    let (lines, tail) = rest.split_at(rest.len() - rest.len() % LINE_BYTES);
    // SAFETY: the three parts follow each other in the caller's range; `lines` starts at a line
    // and is whole lines; the caller checked the method.
    unsafe {
        std::ptr::copy_nonoverlapping(head.as_ptr(), into, head.len());
        let start = into.add(head.len());
        match method {
            StreamMethod::Avx512 => stream_avx512(start, lines),
            StreamMethod::Avx2 => stream_avx2(start, lines),
            _ => stream_sse2(start, lines),
        }
        std::ptr::copy_nonoverlapping(tail.as_ptr(), start.add(lines.len()), tail.len());
    }
}

/// Fills whole lines with non-temporal stores and the ends with plain stores.
///
/// # Safety
/// As [`super::fill_into`], and this CPU supports the method.
pub(super) unsafe fn fill(into: *mut u8, length: usize, value: u8, method: StreamMethod) {
    let head = into.align_offset(LINE_BYTES).min(length);
    let tail = (length - head) % LINE_BYTES;
    let lines = length - head - tail;
    // SAFETY: the three parts follow each other in the caller's range; the second starts at a line
    // and is whole lines; the caller checked the method.
    unsafe {
        into.write_bytes(value, head);
        let start = into.add(head);
        match method {
            StreamMethod::Avx512 => fill_avx512(start, lines, value),
            StreamMethod::Avx2 => fill_avx2(start, lines, value),
            _ => fill_sse2(start, lines, value),
        }
        start.add(lines).write_bytes(value, tail);
    }
}

/// # Safety
/// `into` is aligned to a line and writable for `length`, which is whole lines; AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn fill_avx512(into: *mut u8, length: usize, value: u8) {
    let value = _mm512_set1_epi32(i32::from_ne_bytes([value; 4]));
    for offset in (0..length).step_by(LINE_BYTES) {
        // SAFETY: an aligned line of the target.
        unsafe { _mm512_stream_si512(into.wrapping_add(offset).cast::<__m512i>(), value) };
    }
}

/// # Safety
/// As [`fill_avx512`], with AVX.
#[target_feature(enable = "avx")]
unsafe fn fill_avx2(into: *mut u8, length: usize, value: u8) {
    let value = _mm256_set1_epi8(i8::from_ne_bytes([value]));
    for offset in (0..length).step_by(32) {
        // SAFETY: an aligned half of a line of the target.
        unsafe { _mm256_stream_si256(into.wrapping_add(offset).cast::<__m256i>(), value) };
    }
}

/// # Safety
/// As [`fill_avx512`], without requirements on the CPU.
unsafe fn fill_sse2(into: *mut u8, length: usize, value: u8) {
    // SAFETY: every x86-64 CPU has SSE2; aligned quarters of lines of the target.
    unsafe {
        let value = _mm_set1_epi8(i8::from_ne_bytes([value]));
        for offset in (0..length).step_by(16) {
            _mm_stream_si128(into.wrapping_add(offset).cast::<__m128i>(), value);
        }
    }
}

/// # Safety
/// `into` is aligned to a line and writable for `from.len()`, which is whole lines; AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn stream_avx512(into: *mut u8, from: &[u8]) {
    for (index, line) in from.chunks_exact(LINE_BYTES).enumerate() {
        let target = into.wrapping_add(index * LINE_BYTES).cast::<__m512i>();
        // SAFETY: the loads are inside `line`, the aligned store inside the target.
        unsafe { _mm512_stream_si512(target, _mm512_loadu_si512(line.as_ptr().cast())) };
    }
}

/// # Safety
/// As [`stream_avx512`], with AVX.
#[target_feature(enable = "avx")]
unsafe fn stream_avx2(into: *mut u8, from: &[u8]) {
    for (index, line) in from.chunks_exact(LINE_BYTES).enumerate() {
        let target = into.wrapping_add(index * LINE_BYTES).cast::<__m256i>();
        let source = line.as_ptr().cast::<__m256i>();
        // SAFETY: two halves of one line on both sides.
        unsafe {
            let (low, high) = (_mm256_loadu_si256(source), _mm256_loadu_si256(source.add(1)));
            _mm256_stream_si256(target, low);
            _mm256_stream_si256(target.add(1), high);
        }
    }
}

/// # Safety
/// As [`stream_avx512`], without requirements on the CPU.
unsafe fn stream_sse2(into: *mut u8, from: &[u8]) {
    for (index, line) in from.chunks_exact(LINE_BYTES).enumerate() {
        let target = into.wrapping_add(index * LINE_BYTES).cast::<__m128i>();
        let source = line.as_ptr().cast::<__m128i>();
        for quarter in 0..4 {
            // SAFETY: four quarters of one line on both sides.
            unsafe {
                _mm_stream_si128(target.add(quarter), _mm_loadu_si128(source.add(quarter)));
            }
        }
    }
}
