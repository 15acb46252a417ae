//! Publish and refresh of a range act on the lines around it: on all of them, and on no other.
#![allow(clippy::unwrap_used)] // a failure is the result

use std::sync::Arc;

use farrow_memory::{Access, Length, Offset, Region, Span, page_bytes};
use farrow_testkit::fabric::{data_pages, geometry};
use farrow_testkit::incoherent::{CacheSettings, CallWatch, IncoherentNodes, Upkeep};

/// Ranges within a page: aligned to lines of 64 and 128 B, and across their edges.
fn ranges() -> Vec<Span> {
    let page = data_pages(3, 1).offset.0;
    let ranges = [
        (0, 0),
        (0, 1),
        (0, 64),
        (0, 128),
        (0, 129),
        (1, 63),
        (1, 64),
        (63, 1),
        (63, 2),
        (64, 64),
        (100, 28),
        (100, 29),
        (127, 2),
        (128, 256),
        (255, 2),
        (777, 1555),
        (4095, 1),
        (0, 4096),
    ];
    ranges.map(|(first, bytes)| Span::new(Offset(page + first), Length(bytes))).to_vec()
}

/// How ranges are given: one, or several at a time.
#[derive(Clone, Copy, Debug)]
enum RangeMode {
    One,
    Several,
}

/// Repeatedly writes a whole page, publishes and refreshes a range of it, and compares memory and
/// the view of another node with the expected bytes.
fn check(line: u32, way: RangeMode, watch: Option<CallWatch>) -> Result<(), String> {
    // Without a demon, which would write back and fetch other lines.
    let cluster =
        IncoherentNodes::new(geometry(), 3, CacheSettings { line_bytes: line, acts: 0, seed: 7 });
    if let Some(watch) = watch {
        cluster.watch(&watch);
    }
    let (writer, reader) = (cluster.map(1, Access::Client), cluster.map(2, Access::Client));
    let page = data_pages(3, 1);
    let alias = writer.alias(page).unwrap();
    let lines = (page_bytes() / u64::from(line)) as usize;
    let (mut memory, mut seen) = (vec![0; lines], vec![0; lines]);
    for (number, range) in ranges().into_iter().enumerate() {
        let value = number as u8 + 1;
        alias.write(page.offset, &vec![value; page_bytes() as usize]).unwrap();
        let first = ((range.offset.0 - page.offset.0) / u64::from(line)) as usize;
        let touched = first..first + lines_around(line, range);

        let before = writer.counters().published_lines;
        let due = act(&writer, Upkeep::Publish, range, way);
        memory[touched.clone()].fill(value);
        compare("memory", range, &lines_of(line, &of_memory(&cluster, page)), &memory)?;
        compare("before the refresh", range, &lines_of(line, &of_region(&reader, page)), &seen)?;
        act(&reader, Upkeep::Refresh, range, way);
        seen[touched.clone()].copy_from_slice(&memory[touched.clone()]);
        compare("after the refresh", range, &lines_of(line, &of_region(&reader, page)), &seen)?;
        let counted = writer.counters().published_lines - before;
        if counted != due as u64 {
            return Err(format!("{range}: {counted} of {due} lines of {line} B were counted"));
        }
    }
    Ok(())
}

fn lines_around(line: u32, range: Span) -> usize {
    let (line, end) = (u64::from(line), range.offset.0 + range.length.0);
    if range.is_empty() { 0 } else { (end.div_ceil(line) - range.offset.0 / line) as usize }
}

/// Returns how many lines there are to act on.
fn act(region: &Region, what: Upkeep, range: Span, way: RangeMode) -> usize {
    // Two halves that meet between two lines or inside of one, which is then in both.
    let half = range.length.0 / 2;
    let parts = [
        Span::new(range.offset, Length(half)),
        Span::new(Offset(range.offset.0 + half), Length(range.length.0 - half)),
    ];
    match (what, way) {
        (Upkeep::Publish, RangeMode::One) => region.publish(range),
        (Upkeep::Publish, RangeMode::Several) => region.publish_all(&parts),
        (Upkeep::Refresh, RangeMode::One) => region.refresh(range),
        (Upkeep::Refresh, RangeMode::Several) => region.refresh_all(&parts),
    }
    .unwrap();
    let acted_on: &[Span] = match way {
        RangeMode::One => &[range],
        RangeMode::Several => &parts,
    };
    acted_on.iter().map(|range| lines_around(region.line_bytes(), *range)).sum()
}

fn of_memory(cluster: &IncoherentNodes, span: Span) -> Vec<u8> {
    cluster.memory(span).iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn of_region(region: &Region, span: Span) -> Vec<u8> {
    let mut bytes = vec![0; span.length.as_usize()];
    region.copy_out(span.offset, &mut bytes).unwrap();
    bytes
}

/// The value of each line; all its bytes are equal.
fn lines_of(line: u32, bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.chunks(line as usize);
    lines.inspect(|line| assert!(line.iter().all(|byte| *byte == line[0]))).map(|l| l[0]).collect()
}

fn compare(what: &str, range: Span, found: &[u8], right: &[u8]) -> Result<(), String> {
    match found.iter().zip(right).position(|(found, right)| found != right) {
        None => Ok(()),
        Some(at) => Err(format!("{what}, {range}: line {at} has {}, not {}", found[at], right[at])),
    }
}

#[test]
fn the_lines_around_a_range_move_and_no_other() {
    for line in [64, 128] {
        for way in [RangeMode::One, RangeMode::Several] {
            check(line, way, None).unwrap();
        }
    }
}

/// The canary: omitting either call is detected, in the first range of the page.
#[test]
fn a_mutant_that_leaves_one_out_is_seen() {
    let leave_out = |what| -> CallWatch { Arc::new(move |call| call.what != what) };
    for way in [RangeMode::One, RangeMode::Several] {
        let publish = check(64, way, Some(leave_out(Upkeep::Publish))).unwrap_err();
        assert!(publish.starts_with("memory"), "{publish}");
        let refresh = check(64, way, Some(leave_out(Upkeep::Refresh))).unwrap_err();
        assert!(refresh.starts_with("after the refresh"), "{refresh}");
    }
}

/// If one range is outside the region, none of the others is moved.
#[test]
fn of_several_ranges_all_or_none_move() {
    let cluster =
        IncoherentNodes::new(geometry(), 2, CacheSettings { acts: 0, ..CacheSettings::default() });
    let writer = cluster.map(1, Access::Client);
    let page = data_pages(3, 1);
    writer.alias(page).unwrap().write(page.offset, &vec![1; page_bytes() as usize]).unwrap();
    let total = geometry().total().0;
    for (offset, length) in [(total, 1), (total - 1, 2), (u64::MAX, 1), (64, u64::MAX - 63)] {
        let outside = Span::new(Offset(offset), Length(length));
        let errors = [writer.publish_all(&[page, outside]), writer.refresh_all(&[page, outside])];
        for error in errors.map(Result::unwrap_err) {
            let numbers = (error.offset.0, error.length.0, error.region.0);
            assert_eq!(numbers, (offset, length, total));
        }
    }
    assert!(of_memory(&cluster, page).iter().all(|byte| *byte == 0));
    let counters = writer.counters();
    assert_eq!((counters.publish_calls, counters.refresh_calls), (0, 0));
    assert_eq!((counters.published_lines, counters.refreshed_lines), (0, 0));
}
