//! What this machine does with a region: copies by each method and number of threads, populating,
//! publishing, and changing a range between writable and read-only.
//!
//! `cargo run --release -p farrow-memory --example memory_speed [MiB] [DIR]`: prints medians of
//! seven runs. With a directory the region lies in a file there, without in a memory file.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use farrow_memory::cache;
use farrow_memory::copy::{self, CopyPlan};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Geometry, Length, Offset, Populate, Region, Span, WINDOW_BASE};

const RUNS: usize = 7;
const HUGE: u64 = 2 << 20;

/// Median seconds of `RUNS` runs; the least where `FARROW_SPEED_BEST` is set, for a busy machine.
fn median(mut run: impl FnMut()) -> f64 {
    let mut seconds: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    if std::env::var_os("FARROW_SPEED_BEST").is_some() { seconds[0] } else { seconds[RUNS / 2] }
}

/// Seconds of one run, for what is only new once.
fn once<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let value = run();
    (start.elapsed().as_secs_f64(), value)
}

fn line(what: &str, bytes: u64, seconds: f64) {
    let speed = bytes as f64 / seconds / f64::from(1 << 30);
    println!("{what:<58} {:>10.3} ms {speed:>8.2} GiB/s", seconds * 1e3);
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mib: u64 = arguments.next().map_or(Ok(1536), |text| text.parse())?;
    let bytes = mib << 20;
    let geometry = Geometry { control: Length(HUGE), data: Length(bytes) };
    let (seconds, fabric) = once(|| match arguments.next() {
        Some(dir) => {
            let name = format!("memory-speed-{}", std::process::id());
            let fabric = ShmFabric::create(Path::new(&dir), &name, geometry);
            ShmFabric::unlink(Path::new(&dir), &name).ok();
            fabric
        }
        None => ShmFabric::memfd("memory-speed", geometry),
    });
    let fabric = Arc::new(fabric?);
    line("commit pages (fallocate)", bytes, seconds);
    let region = Arc::new(Region::map(fabric, Access::Home, Some(WINDOW_BASE))?);
    let huge = region.fabric().huge_page_bytes();
    println!("at {} (wished: {}), huge {huge:?}", region.base(), region.is_at_wish());
    region.advise_huge();
    let span = region.geometry().span_of(farrow_memory::Section::Data);
    let (seconds, ready) = once(|| region.prepare(span, &|| false));
    ready?;
    line("prepare, first time", bytes, seconds);
    let (seconds, ready) = once(|| region.prepare(span, &|| false));
    ready?;
    line("prepare, again", bytes, seconds);

    copies(&region, span)?;
    protection(&region, span)?;
    small(&region, span)?;
    Ok(())
}

fn copies(region: &Arc<Region>, span: Span) -> Result<(), Box<dyn Error>> {
    let bytes = span.length.0;
    let source = vec![7u8; span.length.as_usize()];
    let mut private = vec![1u8; span.length.as_usize()];
    let alias = region.alias(span)?;
    let (seconds, done) = once(|| alias.populate());
    done?;
    line("populate a new alias, all pages there", bytes, seconds);
    let cores = std::thread::available_parallelism()?.get();
    for threads in 1..=cores {
        for method in copy::methods_available() {
            let plan = CopyPlan {
                stream_bytes_min: Length(0),
                method,
                threads_max: NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN),
                ..CopyPlan::automatic()
            };
            let name = method.as_str();
            let seconds = median(|| {
                copy::copy_slice(&mut private, &source, plan);
            });
            line(&format!("private, {threads} threads, {name}"), bytes, seconds);
            let seconds = median(|| drop(alias.write_as(span.offset, &source, plan)));
            line(&format!("region, {threads} threads, {name}"), bytes, seconds);
        }
    }
    drop(alias);
    let seconds = median(|| {
        // The kernel's copy into the page cache: no maps, no page tables.
        std::thread::scope(|scope| {
            for index in 0..cores {
                let (source, region) = (&source, region);
                scope.spawn(move || {
                    for (part, bytes) in source.chunks(HUGE as usize).enumerate() {
                        if part % cores == index {
                            let at = Offset(span.offset.0 + part as u64 * HUGE);
                            drop(region.write_by_call(at, bytes));
                        }
                    }
                });
            }
        });
    });
    line(&format!("region, {cores} threads, by call"), bytes, seconds);
    let seconds = median(|| {
        let Ok(alias) = region.alias(span) else {
            return;
        };
        drop(alias.populate());
        drop(alias.write_large(span.offset, &source));
    });
    line("region, alias + populate + automatic copy + unmap", bytes, seconds);
    let seconds = median(|| {
        let Ok(alias) = region.alias(span) else {
            return;
        };
        drop(alias.write_large(span.offset, &source));
    });
    line("region, alias + automatic copy + unmap, no populate", bytes, seconds);
    Ok(())
}

fn protection(region: &Arc<Region>, span: Span) -> Result<(), Box<dyn Error>> {
    let bytes = span.length.0;
    region.make_read_only(span)?;
    for retires in [false, true] {
        let (mut writable, mut populate, mut sealed, mut rest, mut read) = (0., 0., 0., 0., 0.);
        for _ in 0..3 {
            writable = once(|| region.make_writable(span)).0;
            populate = once(|| region.populate(span, Populate::Write)).0;
            if retires {
                let (seconds, retired) = once(|| region.retire_writable(span));
                sealed = seconds;
                rest = once(|| drop(retired)).0;
            } else {
                sealed = once(|| region.make_read_only(span)).0;
            }
            read = once(|| region.populate(span, Populate::Read)).0;
        }
        line("make writable over a populated range", bytes, writable);
        line("  populate for writing", bytes, populate);
        let name = if retires { "  retire writable" } else { "  make read-only" };
        line(name, bytes, sealed);
        if retires {
            line("  drop of the retired", bytes, rest);
        }
        line("  populate for reading", bytes, read);
    }
    Ok(())
}

fn small(region: &Arc<Region>, span: Span) -> Result<(), Box<dyn Error>> {
    let alias = region.alias(Span::new(span.offset, Length(64 << 20)))?;
    alias.populate()?;
    let source = vec![3u8; 64 << 20];
    maintenance(&source);
    for shift in 12..=26 {
        let length = 1usize << shift;
        let Some(part) = source.get(..length) else {
            break;
        };
        let repeat = (64usize << 20) / length;
        let mut speed = String::new();
        let streamed = CopyPlan { stream_bytes_min: Length(0), ..CopyPlan::automatic() };
        let plans = [
            ("plain", CopyPlan::plain()),
            ("streamed", streamed.in_one_thread()),
            ("automatic", CopyPlan::automatic()),
            ("threads", CopyPlan { parallel_bytes_min: Length(0), ..streamed }),
        ];
        for (name, plan) in plans {
            let seconds = median(|| {
                for index in 0..repeat {
                    let offset = Offset(span.offset.0 + (index * length) as u64);
                    drop(alias.write_as(offset, part, plan));
                }
            });
            let gib = (repeat * length) as f64 / seconds / f64::from(1 << 30);
            speed.push_str(&format!(" {name} {gib:6.2}"));
        }
        println!("copies of {:>6} KiB, GiB/s:{speed}", length >> 10);
    }
    Ok(())
}

/// Publishing after plain stores against stores past the cache, in private memory.
fn maintenance(source: &[u8]) {
    let mut target = vec![0u8; source.len()];
    let bytes = source.len() as u64;
    let seconds = median(|| {
        copy::copy_slice(&mut target, source, CopyPlan::plain());
        // SAFETY: the range is this vector.
        unsafe { cache::publish_lines(target.as_ptr(), target.len()) };
    });
    let name = format!("64 MiB, copy then {}", cache::publish_method().as_str());
    line(&name, bytes, seconds);
    let streamed = CopyPlan { stream_bytes_min: Length(0), ..CopyPlan::automatic() };
    let seconds = median(|| {
        copy::copy_slice(&mut target, source, streamed.in_one_thread());
    });
    line("64 MiB, copy past the cache, one thread", bytes, seconds);
    let seconds = median(|| {
        // SAFETY: as above.
        unsafe { cache::refresh_lines(target.as_ptr(), target.len()) };
    });
    let name = format!("64 MiB, refresh by {}", cache::refresh_method().as_str());
    line(&name, bytes, seconds);
}
