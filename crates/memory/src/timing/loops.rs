//! The timed loops, and the code that brings cache lines into the initial state.

use std::hint::spin_loop;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::job::{
    AccessPattern, Job, LineState, SAMPLES_MAX, THREADS_MAX, TimingError, Work, clock_ns,
};
use crate::cache::{self, Method};
use crate::copy::{self, CopyPlan, CopyReport, StreamMethod};
use crate::sync::{AtomicUsize, Ordering, fence};
use crate::units::{Length, Offset, Span, page_bytes};
use crate::write_way::WriteWay;

/// Number of times a waiting thread spins before it yields.
const SPINS_MAX: u32 = 2000;

/// Value that [`Work::Fill`] stores.
const FILLED_WITH: u8 = 0x5A;

/// Line size in bytes, by which arenas are divided.
fn line_bytes() -> u64 {
    u64::from(cache::line_bytes()).min(page_bytes())
}

/// Checks that the job can be run in an arena of this length.
pub(super) fn check(job: &Job, arena: Length) -> Result<(), TimingError> {
    let number = |what, number: u64, max: u64| {
        let is_good = (1..=max).contains(&number);
        if is_good { Ok(()) } else { Err(TimingError::BadNumber { what, number, max }) }
    };
    number("range", job.range.0, arena.0)?;
    number("batch", u64::from(job.batch), u64::from(SAMPLES_MAX))?;
    number("number of samples", u64::from(job.samples), u64::from(SAMPLES_MAX))?;
    number("number of threads", job.threads.get() as u64, THREADS_MAX as u64)?;
    let is_possible = match job.work {
        Work::Publish(method)
        | Work::PublishAgain(method)
        | Work::Write(WriteWay::CopyThenPublish(method)) => {
            method.is_available().then_some(()).ok_or(method.as_str())
        }
        Work::Refresh(method) => method.can_refresh().then_some(()).ok_or(method.as_str()),
        Work::Write(WriteWay::Stream(method)) => {
            method.is_streaming().then_some(()).ok_or(method.key())
        }
        Work::Copy(StreamMethod::Memcpy) | Work::Fill(StreamMethod::Memcpy) => Ok(()),
        Work::Copy(method) | Work::Fill(method) => {
            method.is_streaming().then_some(()).ok_or(method.key())
        }
        Work::Load(pattern) | Work::Store(pattern) => return check_pattern(pattern, job, arena),
    };
    is_possible.map_err(|method| TimingError::NotAvailable { method })?;
    if matches!(job.work, Work::Write(_) | Work::Copy(_)) {
        number("source", job.source.0, arena.0)?;
    }
    check_room(job, arena)
}

fn check_pattern(pattern: AccessPattern, job: &Job, arena: Length) -> Result<(), TimingError> {
    if !matches!(pattern.width, 1 | 2 | 4 | 8) {
        let (what, number) = ("width in bytes (1, 2, 4 or 8)", u64::from(pattern.width));
        return Err(TimingError::BadNumber { what, number, max: 8 });
    }
    let stride = u64::from(pattern.stride);
    if stride < u64::from(pattern.width) || !stride.is_multiple_of(u64::from(pattern.width)) {
        let what = "stride (a multiple of the width)";
        return Err(TimingError::BadNumber { what, number: stride, max: job.range.0 });
    }
    if job.range.0 < stride {
        return Err(TimingError::BadNumber { what: "stride", number: stride, max: job.range.0 });
    }
    check_room(job, arena)
}

fn check_room(job: &Job, arena: Length) -> Result<(), TimingError> {
    let threads = job.threads.get() as u64;
    let requested = step_of(job).saturating_mul(u64::from(job.batch)).saturating_mul(threads);
    if requested > arena.0 {
        return Err(TimingError::TooLarge { requested: Length(requested), arena });
    }
    Ok(())
}

/// Bytes from the start of one range to the start of the next. No two ranges share a line.
fn step_of(job: &Job) -> u64 {
    job.range.0.div_ceil(line_bytes()).saturating_mul(line_bytes())
}

/// A start pointer shared by threads, each of which works on its own part.
#[derive(Clone, Copy)]
struct Start(*mut u8);

// SAFETY: threads work on disjoint parts, see `run`.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

impl Start {
    fn at(&self, offset: u64) -> *mut u8 {
        self.0.wrapping_add(Length(offset).as_usize())
    }
}

/// Runs a checked job. Returns nanoseconds per range for each sample.
///
/// # Safety
/// `length` bytes from `start` are writable, and no other code uses them until the return.
pub(super) unsafe fn run(job: &Job, start: *mut u8, length: Length, source: &[u8]) -> Vec<f64> {
    let clock = clock_ns();
    let threads = job.threads.get() as u64;
    let part = length.0 / threads / line_bytes() * line_bytes();
    let slowest = Mutex::new(vec![0u64; job.samples as usize]);
    let (start, gate) = (Start(start), StartGate::new(job.threads));
    let one = |index: u64| {
        // SAFETY: the caller guarantees the whole range. Each thread gets its own part, which is
        // large enough for a batch of ranges, as verified by `check`.
        let own = unsafe { samples(job, start.at(index * part), part, source, &gate) };
        let mut slowest = slowest.lock().unwrap_or_else(PoisonError::into_inner);
        for (cell, ns) in slowest.iter_mut().zip(own) {
            *cell = (*cell).max(ns);
        }
    };
    std::thread::scope(|scope| {
        for index in 1..threads {
            let one = &one;
            let helper = std::thread::Builder::new().name("farrow-lab".to_owned());
            if let Err(error) = helper.spawn_scoped(scope, move || one(index)) {
                tracing::debug!(%error, "measuring with fewer threads");
                gate.leave();
            }
        }
        one(0);
    });
    let slowest = slowest.into_inner().unwrap_or_else(PoisonError::into_inner);
    let batch = f64::from(job.batch);
    slowest.into_iter().map(|ns| ns.saturating_sub(clock).max(1) as f64 / batch).collect()
}

/// All samples of one thread, in nanoseconds per batch.
///
/// # Safety
/// `part` bytes from `start` are writable and used by this thread only. A batch of ranges fits in
/// them.
unsafe fn samples(
    job: &Job,
    start: *mut u8,
    part: u64,
    source: &[u8],
    gate: &StartGate,
) -> Vec<u64> {
    let step = step_of(job);
    let batches = (part / (step * u64::from(job.batch))).max(1);
    let range = job.range.as_usize();
    (0..u64::from(job.samples))
        .map(|sample| {
            let first = (sample % batches) * step * u64::from(job.batch);
            let at =
                |index: u32| start.wrapping_add(Length(first + u64::from(index) * step).as_usize());
            for index in 0..job.batch {
                // SAFETY: a range of this thread's part.
                unsafe { put_into(job.state, at(index), range) };
            }
            gate.wait();
            let begin = Instant::now();
            for index in 0..job.batch {
                // SAFETY: as above; no other code reads or writes it.
                unsafe { work(job.work, at(index), range, source) };
            }
            // Drains the CPU's store buffers. Otherwise methods that leave more in them would look
            // cheaper, by an amount that varies from run to run.
            fence(Ordering::SeqCst);
            begin.elapsed().as_nanos() as u64
        })
        .collect()
}

/// Brings the lines of a range into a state. Their contents do not change.
///
/// # Safety
/// The range is writable and used by the caller only.
unsafe fn put_into(state: LineState, start: *mut u8, length: usize) {
    let line = line_bytes() as usize;
    if state != LineState::Dirty {
        // SAFETY: by the caller's contract.
        unsafe { cache::refresh_lines(start, length) };
    }
    for offset in (0..length).step_by(line) {
        let at = start.wrapping_add(offset);
        // SAFETY: a byte of the range. Volatile, so that the accesses are not optimised away.
        unsafe {
            match state {
                LineState::Uncached => break,
                LineState::Cached => {
                    at.read_volatile();
                }
                LineState::Dirty => at.write_volatile(at.read_volatile()),
            }
        }
    }
}

/// Performs the timed operation.
///
/// # Safety
/// The range is writable and used by the caller only. This CPU supports the method.
unsafe fn work(work: Work, start: *mut u8, length: usize, source: &[u8]) {
    // SAFETY: by the caller's contract.
    unsafe {
        match work {
            Work::Publish(method) => publish(method, start, length),
            Work::PublishAgain(method) => {
                publish(method, start, length);
                put_into(LineState::Dirty, start, length);
            }
            Work::Refresh(method) => {
                cache::refresh_lines_by(method, start, length);
            }
            Work::Write(WriteWay::CopyThenPublish(method)) => {
                write(StreamMethod::Memcpy, start, length, source);
                publish(method, start, length);
            }
            Work::Write(WriteWay::Stream(method)) => {
                write(method, start, length, source);
                let report = CopyReport { is_nontemporal: true, threads: 1 };
                let whole = Span::new(Offset(0), Length::from(length));
                for edge in report.cached_ends(whole) {
                    let at = start.wrapping_add(Length(edge.offset.0).as_usize());
                    cache::publish_lines(at, edge.length.as_usize());
                }
            }
            Work::Copy(method) => write(method, start, length, source),
            Work::Fill(method) => {
                let plan = CopyPlan { stream_bytes_min: Length(0), method, ..CopyPlan::plain() };
                copy::fill_into(start, Length::from(length), FILLED_WITH, plan);
            }
            Work::Load(pattern) => load(pattern, start, length),
            Work::Store(pattern) => store(pattern, start, length),
        }
    }
}

/// # Safety
/// As [`work`].
unsafe fn publish(method: Method, start: *const u8, length: usize) {
    // SAFETY: by the caller's contract.
    unsafe { cache::publish_lines_by(method, start, length) };
}

/// Fills a range with repeated copies of the source.
///
/// # Safety
/// As [`work`].
unsafe fn write(method: StreamMethod, start: *mut u8, length: usize, source: &[u8]) {
    for offset in (0..length).step_by(source.len().max(1)) {
        let part = source.get(..source.len().min(length - offset)).unwrap_or_default();
        // SAFETY: `part` ends inside the range, which is writable; the source is our own borrow.
        unsafe { copy::copy_unfenced(start.wrapping_add(offset), part, method) };
    }
    // Once at the end, as for one copy of this length.
    copy::end_part(method);
}

/// # Safety
/// As [`work`].
unsafe fn load(pattern: AccessPattern, start: *const u8, length: usize) {
    // SAFETY: by the caller's contract; the width was checked.
    unsafe {
        match pattern.width {
            1 => load_as::<u8>(start, length, pattern.stride as usize),
            2 => load_as::<u16>(start, length, pattern.stride as usize),
            4 => load_as::<u32>(start, length, pattern.stride as usize),
            _ => load_as::<u64>(start, length, pattern.stride as usize),
        }
    }
}

/// # Safety
/// As [`work`]; the stride is a multiple of the size of `T`, and ranges start at line boundaries.
unsafe fn load_as<T>(start: *const u8, length: usize, stride: usize) {
    for index in 0..length / stride {
        let at = start.wrapping_add(index * stride).cast::<T>();
        // SAFETY: an element of the range. Volatile, so that each is a load of its own width.
        let _ = unsafe { at.read_volatile() };
    }
}

/// # Safety
/// As [`work`].
unsafe fn store(pattern: AccessPattern, start: *mut u8, length: usize) {
    // SAFETY: by the caller's contract; the width was checked.
    unsafe {
        match pattern.width {
            1 => store_as(start, length, pattern.stride as usize, 0x5a_u8),
            2 => store_as(start, length, pattern.stride as usize, 0x5a5a_u16),
            4 => store_as(start, length, pattern.stride as usize, 0x5a5a_5a5a_u32),
            _ => store_as(start, length, pattern.stride as usize, 0x5a5a_5a5a_5a5a_5a5a_u64),
        }
    }
}

/// # Safety
/// As [`load_as`].
unsafe fn store_as<T: Copy>(start: *mut u8, length: usize, stride: usize, value: T) {
    for index in 0..length / stride {
        let at = start.wrapping_add(index * stride).cast::<T>();
        // SAFETY: an element of the range. Volatile, so that each is a store of its own width.
        unsafe { at.write_volatile(value) };
    }
}

/// Starts threads at the same time. Spins, since a wake-up takes longer than the timed operation.
struct StartGate {
    threads: AtomicUsize,
    arrived: AtomicUsize,
}

impl StartGate {
    fn new(threads: NonZeroUsize) -> Self {
        Self { threads: AtomicUsize::new(threads.get()), arrived: AtomicUsize::new(0) }
    }

    /// Reduces the number of threads by one.
    fn leave(&self) {
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns when all threads have arrived as often as the caller.
    fn wait(&self) {
        let ticket = self.arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0;
        loop {
            let threads = self.threads.load(Ordering::Acquire).max(1);
            // A round is complete once the number of arrivals is a multiple of the threads.
            if self.arrived.load(Ordering::Acquire) >= (ticket / threads + 1) * threads {
                return;
            }
            spins += 1;
            if spins < SPINS_MAX { spin_loop() } else { std::thread::yield_now() }
        }
    }
}
