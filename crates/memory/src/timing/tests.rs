//! Tests of the effects of jobs on memory, and of invalid jobs. No test asserts a time.

use std::num::NonZeroUsize;

use super::*;
use crate::cache::{self, Method};
use crate::copy::{self, StreamMethod};
use crate::units::{Address, Length};
use crate::write_way::WriteWay;

const ARENA: Length = Length(2 << 20);

fn job(work: Work, state: LineState, range: u64) -> Job {
    Job {
        work,
        state,
        range: Length(range),
        batch: 2,
        samples: 3,
        threads: NonZeroUsize::MIN,
        source: Length(range.min(4096)),
    }
}

fn arena() -> TimedBuffer {
    let mut bytes: Vec<u64> = (0..ARENA.0 / 8).map(|index| index * 0x9e37_79b9).collect();
    let start = Address::from(bytes.as_mut_ptr().cast_const());
    // SAFETY: the vector's buffer does not move while the box owns it, and no other code uses it.
    unsafe { TimedBuffer::over(start, ARENA, Box::new(bytes)) }
}

#[test]
fn maintenance_by_every_method_leaves_the_bytes() {
    let mut arena = arena();
    let before = arena.as_slice().to_vec();
    for method in cache::methods_available() {
        for state in [LineState::Uncached, LineState::Cached, LineState::Dirty] {
            for range in [1, 64, 100, 5000, 300_000] {
                let publish = arena.run(&job(Work::Publish(method), state, range)).unwrap();
                assert!(publish.len() == 3 && publish.iter().all(|ns| *ns > 0.0), "{publish:?}");
                arena.run(&job(Work::PublishAgain(method), state, range)).unwrap();
                let refresh = arena.run(&job(Work::Refresh(method), state, range));
                assert_eq!(refresh.is_ok(), method.can_refresh(), "{method:?}");
                let read = Work::Load(AccessPattern { width: 1, stride: 1 });
                arena.run(&job(read, state, range)).unwrap();
            }
        }
    }
    assert!(arena.as_slice() == before);
}

#[test]
fn every_way_writes_its_source() {
    let mut arena = TimedBuffer::private(ARENA, Pages::Small).unwrap();
    let copies = copy::methods_available().into_iter().map(Work::Copy);
    for work in WriteWay::all().into_iter().map(Work::Write).chain(copies) {
        let clear = Work::Store(AccessPattern { width: 8, stride: 8 });
        arena.run(&Job { batch: 1, ..job(clear, LineState::Dirty, ARENA.0) }).unwrap();
        assert!(arena.as_slice().iter().all(|byte| *byte == 0x5a));
        arena.run(&job(work, LineState::Uncached, 10_000)).unwrap();
        let expected = |index: usize| (index % 4096 * 31) as u8;
        let is_written =
            |part: &[u8]| part.iter().enumerate().all(|(index, byte)| *byte == expected(index));
        // Three samples of two ranges, each starting at the next line boundary.
        let step = 10_000usize.next_multiple_of(cache::line_bytes() as usize);
        for index in 0..6 {
            assert!(is_written(&arena.as_slice()[index * step..][..10_000]), "{work:?}");
        }
        assert!(arena.as_slice()[6 * step..].iter().all(|byte| *byte == 0x5a), "{work:?}");
    }
}

#[test]
fn every_way_fills() {
    let mut arena = arena();
    for method in copy::methods_available() {
        let before = arena.as_slice().to_vec();
        let clear = Work::Copy(StreamMethod::Memcpy);
        arena.run(&job(clear, LineState::Dirty, 10_000)).unwrap();
        let one =
            Job { batch: 1, samples: 1, ..job(Work::Fill(method), LineState::Uncached, 10_000) };
        arena.run(&one).unwrap();
        assert!(arena.as_slice()[..10_000].iter().all(|byte| *byte == 0x5a), "{method:?}");
        let step = 10_000usize.next_multiple_of(cache::line_bytes() as usize);
        assert!(arena.as_slice()[6 * step..] == before[6 * step..], "{method:?}");
    }
}

#[test]
fn a_pattern_touches_one_element_of_each_stride() {
    let mut arena = arena();
    for (width, stride) in [(1, 1), (1, 64), (2, 128), (4, 64), (8, 4096)] {
        let before = arena.as_slice().to_vec();
        let store = Work::Store(AccessPattern { width, stride });
        let one = Job { batch: 1, samples: 1, ..job(store, LineState::Cached, 8192) };
        arena.run(&one).unwrap();
        for (index, (byte, old)) in arena.as_slice().iter().zip(&before).enumerate() {
            let is_touched = index < 8192 && index % (stride as usize) < usize::from(width);
            assert_eq!(*byte, if is_touched { 0x5a } else { *old }, "{width} {stride} {index}");
        }
    }
}

#[test]
fn threads_work_on_parts_of_their_own() {
    let mut arena = arena();
    let threads = NonZeroUsize::new(3).unwrap();
    let store = Work::Store(AccessPattern { width: 8, stride: 8 });
    let one = Job { threads, batch: 1, samples: 1, ..job(store, LineState::Uncached, 64 << 10) };
    assert_eq!(arena.run(&one).unwrap().len(), 1);
    let line = u64::from(cache::line_bytes());
    let part = (ARENA.0 / 3 / line * line) as usize;
    for thread in 0..3 {
        let own = &arena.as_slice()[thread * part..][..part];
        assert!(own[..64 << 10].iter().all(|byte| *byte == 0x5a));
        assert!(!own[64 << 10..][..4096].iter().all(|byte| *byte == 0x5a));
    }
}

#[test]
fn what_cannot_be_run_is_refused_with_the_numbers() {
    let mut arena = arena();
    let publish = Work::Publish(cache::publish_method());
    let fits = job(publish, LineState::Dirty, 64);
    for (wrong, part) in [
        (Job { range: Length(0), ..fits }, "range of 0 refused: 1 to 2097152"),
        (Job { range: Length(u64::MAX), ..fits }, "range of 18446744073709551615"),
        (Job { batch: 0, ..fits }, "batch of 0"),
        (Job { samples: 0, ..fits }, "number of samples of 0"),
        (Job { samples: SAMPLES_MAX + 1, ..fits }, "1 to 1000000"),
        (Job { threads: NonZeroUsize::new(5000).unwrap(), ..fits }, "1 to 1024"),
        (Job { range: ARENA, ..fits }, "do not fit in an arena"),
        (
            job(Work::Load(AccessPattern { width: 3, stride: 3 }), LineState::Dirty, 64),
            "width in bytes",
        ),
        (job(Work::Load(AccessPattern { width: 8, stride: 4 }), LineState::Dirty, 64), "stride"),
        (
            job(Work::Load(AccessPattern { width: 8, stride: 128 }), LineState::Dirty, 64),
            "stride of 128",
        ),
    ] {
        let error = arena.run(&wrong).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let foreign = [Method::Clwb, Method::DcCvac].into_iter().find(|m| !m.is_available()).unwrap();
    for work in [
        Work::Publish(foreign),
        Work::Refresh(foreign),
        Work::Write(WriteWay::CopyThenPublish(foreign)),
        Work::Write(WriteWay::Stream(StreamMethod::Memcpy)),
    ] {
        let error = arena.run(&job(work, LineState::Dirty, 64)).unwrap_err();
        assert!(matches!(error, TimingError::NotAvailable { .. }), "{error}");
    }
    let error = TimedBuffer::private(Length(1 << 50), Pages::Huge).unwrap_err();
    assert!(matches!(error, TimingError::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("available"), "{error}");
}

#[test]
fn pages_are_what_the_kernel_says() {
    let small = TimedBuffer::private(Length(4 << 20), Pages::Small).unwrap();
    assert!(small.huge_bytes().is_none_or(|bytes| bytes == Length(0)));
    let huge = TimedBuffer::private(Length(4 << 20), Pages::Huge).unwrap();
    assert!(huge.huge_bytes().is_none_or(|bytes| bytes <= huge.length()));
}
