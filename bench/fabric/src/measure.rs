//! Rounds of every way, and their report.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use farrow_memory::{HUGE_PAGE_BYTES_USUAL, Length, Offset, Span};
use farrow_net::CHUNK_BYTES;
use serde::Serialize;

use crate::home::{HomeProcess, SMALL_BYTES, cpu_seconds, huge_memory, memory, pattern};
use crate::raw::RawStreams;
use crate::reader::{MirrorMemory, MirrorReader};
use crate::{AnyError, FabricComparison};

const GIB: f64 = (1_u64 << 30) as f64;

/// One way in one round.
#[derive(Clone, Copy, Serialize)]
struct Sample {
    seconds: f64,
    bytes: u64,
    reader_cpu_seconds: f64,
    home_cpu_seconds: f64,
}

/// Small requests of one round.
#[derive(Clone, Copy, Serialize)]
struct Latency {
    p50_us: f64,
    p99_us: f64,
}

#[derive(Default, Serialize)]
struct Samples {
    bulk: BTreeMap<&'static str, Vec<Sample>>,
    small: BTreeMap<&'static str, Vec<Latency>>,
}

struct FabricBench<'a> {
    home: &'a HomeProcess,
    samples: Samples,
}

impl FabricBench<'_> {
    fn bulk<T>(
        &mut self,
        way: &'static str,
        ranges: &[Span],
        run: impl FnOnce() -> Result<T, AnyError>,
    ) -> Result<T, AnyError> {
        let (home, own, begin) = (self.home.cpu_seconds()?, cpu_seconds(), Instant::now());
        let done = run()?;
        let (seconds, own) = (begin.elapsed().as_secs_f64(), cpu_seconds() - own);
        let home = self.home.cpu_seconds()? - home;
        let bytes = ranges.iter().map(|range| range.length.0).sum();
        let sample = Sample { seconds, bytes, reader_cpu_seconds: own, home_cpu_seconds: home };
        self.samples.bulk.entry(way).or_default().push(sample);
        Ok(done)
    }

    fn small(
        &mut self,
        way: &'static str,
        count: usize,
        mut run: impl FnMut(usize) -> Result<Duration, AnyError>,
    ) -> Result<(), AnyError> {
        let mut micros = Vec::with_capacity(count);
        for number in 0..count {
            micros.push(run(number)?.as_secs_f64() * 1e6);
        }
        micros.sort_by(f64::total_cmp);
        let at = |part: f64| micros.get((count as f64 * part) as usize).copied().unwrap_or(0.0);
        let latency = Latency { p50_us: at(0.5), p99_us: at(0.99) };
        self.samples.small.entry(way).or_default().push(latency);
        Ok(())
    }
}

fn timed(run: impl FnOnce() -> Result<(), AnyError>) -> Result<Duration, AnyError> {
    let begin = Instant::now();
    run()?;
    Ok(begin.elapsed())
}

/// Checks samples of the bytes against the home.
fn check(reader: &MirrorReader, ranges: &[Span]) -> Result<(), AnyError> {
    for range in ranges {
        for at in (0..range.length.0.saturating_sub(8)).step_by(1 << 16) {
            let word = Span::new(Offset((range.offset.0 + at).next_multiple_of(8)), Length(8));
            if range.contains(word) && reader.bytes(word)? != pattern(word) {
                return Err(format!("wrong bytes at {}", word.offset).into());
            }
        }
    }
    Ok(())
}

pub fn run(options: &FabricComparison) -> Result<(), AnyError> {
    let home = HomeProcess::start(options.bytes, &options.congestion)?;
    let mut bench = FabricBench { home: &home, samples: Samples::default() };
    let (count, congestion) = (options.connections, options.congestion.as_str());
    let start = |layer, map, grain| {
        MirrorReader::start(&home, layer, count, congestion, MirrorMemory { map, grain })
    };
    let (section, chunk_bytes) = (home.greeting.section, Length(CHUNK_BYTES));
    let plain = start("plain", memory(section)?, chunk_bytes)?;
    let tls = start("tls", memory(section)?, chunk_bytes)?;
    let raw = RawStreams::connect(home.greeting.raw, count, congestion)?;
    let whole = [Span::new(Offset(0), Length(options.bytes))];
    // The third and the seventieth of a hundred columns of the same length.
    let column = options.bytes / 100 / 64 * 64;
    let columns = [3, 70].map(|at| Span::new(Offset(at * column), Length(column)));

    for round in 0..options.rounds {
        let target = memory(home.greeting.section)?;
        bench.bulk("raw, fresh", &whole, || raw.fetch(&target, &whole))?;
        // Its pages are committed now.
        bench.bulk("raw, committed", &whole, || raw.fetch(&target, &whole))?;
        bench.bulk("raw, 2 of 100 columns", &columns, || raw.fetch(&target, &columns))?;
        let at = home.greeting.section - 4096;
        let small = Span::new(Offset(at), Length(SMALL_BYTES));
        bench.small("raw, 1 kB", options.requests, |_| timed(|| raw.fetch_one(&target, small)))?;
        let chunk = |number: usize| {
            let number = number as u64 % (options.bytes / CHUNK_BYTES);
            Span::new(Offset(number * CHUNK_BYTES), Length(CHUNK_BYTES))
        };
        bench.small("raw, 64 KiB", options.requests, |at| {
            timed(|| raw.fetch_one(&target, chunk(at)))
        })?;
        drop(target);

        for (reader, names) in [
            (
                &plain,
                [
                    "net, fresh",
                    "net, committed",
                    "net, 2 of 100 columns",
                    "net, 1 kB",
                    "net, 64 KiB",
                ],
            ),
            (
                &tls,
                [
                    "net+TLS, fresh",
                    "net+TLS, committed",
                    "net+TLS, 2 of 100 columns",
                    "net+TLS, 1 kB",
                    "net+TLS, 64 KiB",
                ],
            ),
        ] {
            let [fresh, committed, two, one, fault] = names;
            let kept = bench.bulk(fresh, &whole, || reader.fetch(&whole))?;
            check(reader, &whole)?;
            reader.forget(kept);
            reader.commit(&whole)?;
            let kept = bench.bulk(committed, &whole, || reader.fetch(&whole))?;
            check(reader, &whole)?;
            reader.forget(kept);
            reader.commit(&columns)?;
            let kept = bench.bulk(two, &columns, || reader.fetch(&columns))?;
            check(reader, &columns)?;
            reader.forget(kept);
            bench.small(one, options.requests, |_| reader.fetch_small())?;
            let kept = reader.open()?;
            let faults = options.requests.min((options.bytes / CHUNK_BYTES) as usize);
            bench.small(fault, faults, |at| timed(|| reader.fetch_more(&kept, chunk(at))))?;
            reader.forget(kept);
        }
        // A separate mirror, which ends before the next round.
        if let Some(map) = huge_memory(section)? {
            let reader = start("plain", map, HUGE_PAGE_BYTES_USUAL)?;
            let kept = bench.bulk("net, fresh huge pages", &whole, || reader.fetch(&whole))?;
            check(&reader, &whole)?;
            reader.forget(kept);
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    show(&bench.samples);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&bench.samples)?)?;
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn show(samples: &Samples) {
    println!("| way | GiB/s, median (all) | ms | CPU s/GiB, reader + home | of raw |");
    println!("| --- | --- | --- | --- | --- |");
    for (way, all) in &samples.bulk {
        let rates: Vec<_> = all.iter().map(|one| one.bytes as f64 / GIB / one.seconds).collect();
        let cpu =
            |of: fn(&Sample) -> f64| median(all.iter().map(|one| of(one) * GIB / one.bytes as f64));
        let (reader, home) = (cpu(|one| one.reader_cpu_seconds), cpu(|one| one.home_cpu_seconds));
        let rate = median(rates.iter().copied());
        let pages = way.split_once(", ").map_or("", |(_, rest)| rest);
        let base = format!("raw, {}", pages.trim_end_matches(" huge pages"));
        // Compared by rounds: both ran in the same minute.
        let ratio = samples
            .bulk
            .get(base.as_str())
            .map(|raw| median(all.iter().zip(raw).map(|(own, raw)| raw.seconds / own.seconds)));
        let listed: Vec<_> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        println!(
            "| {way} | {rate:.2} ({}) | {:.1} | {reader:.2} + {home:.2} = {:.2} | {:.2} |",
            listed.join(" "),
            1000.0 * median(all.iter().map(|one| one.seconds)),
            reader + home,
            ratio.unwrap_or(0.0),
        );
    }
    println!();
    println!("| way | p50 us, median (all) | p99 us |");
    println!("| --- | --- | --- |");
    for (way, all) in &samples.small {
        let listed: Vec<_> = all.iter().map(|one| format!("{:.1}", one.p50_us)).collect();
        println!(
            "| {way} | {:.1} ({}) | {:.1} |",
            median(all.iter().map(|one| one.p50_us)),
            listed.join(" "),
            median(all.iter().map(|one| one.p99_us)),
        );
    }
}
