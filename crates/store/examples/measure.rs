//! Time the operations of the store on a large region: `cargo run --release -p farrow-store
//! --example measure [objects]`. Prints medians of rounds; asserts nothing.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Fabric, Length, Offset, Region, Span};
use farrow_store::{
    ClientSlot, HoldTable, Home, Layout, ObjectId, Reader, RegionOptions, SealRequest, Target,
};

type MeasureResult<T> = Result<T, Box<dyn Error>>;

/// Operations in a timed round, and rounds of which the median counts.
const ROUND: usize = 10_000;
const ROUNDS: usize = 11;

fn main() -> MeasureResult<()> {
    let objects: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let options = RegionOptions {
        objects_max: objects + 16,
        name_bytes: Length(u64::from(objects + 16) * 32),
        ..RegionOptions::for_capacity(Length(u64::from(objects) * 128 + (64 << 20)))
    };
    let geometry = Layout::new(&options)?.geometry;
    let fabric: Arc<dyn Fabric> = Arc::new(ShmFabric::memfd("farrow-measure", geometry)?);
    let map = |access| Region::map(Arc::clone(&fabric), access, None).map(Arc::new);
    println!("{objects} objects, region of {}", geometry.total());

    let mut home = Home::create(map(Access::Home)?, &options, 0)?;
    let client = home.client_join(std::process::id(), 0, 0)?.client;
    let ids = fill(&mut home, client, objects)?;
    let reader = Reader::open(map(Access::Client)?)?;
    let block = home.hold_block(client)?;
    let holds = Arc::new(HoldTable::new(Arc::clone(reader.region()), &[block])?);
    read(&reader, &holds, &ids)?;
    change(&mut home, client)?;
    drop(home);

    let region = map(Access::Home)?;
    let (start, cpu) = (Instant::now(), cpu_ms()?);
    let (mut home, report) = Home::adopt(region)?;
    let (wall, cpu) = (ms(start.elapsed()), cpu_ms()? - cpu);
    println!("adopt: {wall:.0} ms, {cpu:.0} ms of it on a core, {} objects", report.objects);
    let start = Instant::now();
    let mut deleted = 0;
    for id in ids.iter().take(100_000) {
        deleted += u32::from(home.delete(Target::Id(*id))?.freed_now);
    }
    println!("delete: {:.0} ns, {deleted} times", ns(start.elapsed(), deleted as usize));
    Ok(())
}

/// Seal `objects` named objects of one block each.
fn fill(home: &mut Home, client: ClientSlot, objects: u32) -> MeasureResult<Vec<ObjectId>> {
    let bytes = Length(u64::from(objects) * 128);
    let extent = home.grant(client, bytes, bytes)?;
    let names: Vec<String> = (0..objects).map(name).collect();
    let mut ids = Vec::with_capacity(names.len());
    let start = Instant::now();
    for (i, name) in names.iter().enumerate() {
        let block = Span::new(Offset(extent.offset.0 + i as u64 * 128), Length(128));
        ids.push(home.seal(client, &SealRequest::bytes(block, Length(100), Some(name)), 0)?);
    }
    println!("seal with a name: {:.0} ns", ns(start.elapsed(), names.len()));
    Ok(ids)
}

fn name(i: u32) -> String {
    format!("object-{i:08}")
}

fn read(reader: &Reader, holds: &Arc<HoldTable>, ids: &[ObjectId]) -> MeasureResult<()> {
    let stride = |i: usize| i * 7919 % ids.len();
    let near = |i: usize| i % ids.len().min(64);
    for (what, pick) in [("in cache", &near as &dyn Fn(usize) -> usize), ("anywhere", &stride)] {
        let names: Vec<String> = (0..ROUND).map(|i| name(pick(i) as u32)).collect();
        let wanted: Vec<ObjectId> = (0..ROUND).map(|i| ids[pick(i)]).collect();
        round(&format!("find by name, {what}"), |i| {
            black_box(reader.find(&names[i])?);
            Ok(())
        })?;
        round(&format!("find by id, {what}"), |i| {
            black_box(reader.by_id(wanted[i])?);
            Ok(())
        })?;
        round(&format!("find by id, hold, release, {what}"), |i| {
            black_box(reader.hold(holds, Target::Id(wanted[i]))?);
            Ok(())
        })?;
        round(&format!("find by name, hold, release, {what}"), |i| {
            black_box(reader.hold(holds, Target::Name(&names[i]))?);
            Ok(())
        })?;
        let entries: Vec<_> = wanted.iter().filter_map(|id| reader.by_id(*id).ok()?).collect();
        round(&format!("hold, release, {what}"), |i| {
            black_box(holds.hold(&entries[i])?);
            Ok(())
        })?;
        let _held = reader.hold(holds, Target::Id(wanted[0]))?;
        round(&format!("hold again, release, {what}"), |_| {
            black_box(holds.hold(&entries[0])?);
            Ok(())
        })?;
    }
    Ok(())
}

fn change(home: &mut Home, client: ClientSlot) -> MeasureResult<()> {
    round("grant 64 KiB, release", |_| {
        let extent = home.grant(client, Length(1 << 16), Length(1 << 16))?;
        Ok(home.release(client, &[extent])?)
    })?;
    let extent = home.grant(client, Length(1 << 20), Length(1 << 20))?;
    let block = Span::new(extent.offset, Length(128));
    // The block is a part of the grant the first time, and of the object's life from then on.
    let keep = home.seal(client, &SealRequest::bytes(block, Length(1), None), 0)?;
    round("seal without a name, delete", |_| {
        let id = home.seal(client, &SealRequest::bytes(block, Length(1), None), 0)?;
        home.delete(Target::Id(id))?;
        Ok(())
    })?;
    home.delete(Target::Id(keep))?;
    Ok(())
}

/// The median of some rounds of an operation.
fn round(what: &str, mut operation: impl FnMut(usize) -> MeasureResult<()>) -> MeasureResult<()> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for i in 0..ROUND {
            operation(i)?;
        }
        times.push(ns(start.elapsed(), ROUND));
    }
    times.sort_by(f64::total_cmp);
    println!("{what}: {:.0} ns", times[ROUNDS / 2]);
    Ok(())
}

fn ns(time: Duration, operations: usize) -> f64 {
    time.as_nanos() as f64 / operations.max(1) as f64
}

/// Time this thread was on a core: what counts where others use the machine too.
fn cpu_ms() -> MeasureResult<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e6)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
