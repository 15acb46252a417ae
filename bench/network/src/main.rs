//! `farrow-bench-network compare FILE ...`: one stream through a private graph, through segments in
//! this process and through segments behind a network. `whatif FILE ...`: the same in remote
//! memory of other speeds. Both print JSON. FILE is a stream in the format of `stream`.

#![forbid(unsafe_code)]

use clap::{Args, Parser, Subcommand};
use farrow_bench_network::cache::{CachedContent, Design, Policy, RowCache, RowCacheSettings};
use farrow_bench_network::client::{DEADLINE, RowClient};
use farrow_bench_network::hits;
use farrow_bench_network::process::{ServerProcess, serve_until_input_ends};
use farrow_bench_network::rows::{FetchSettings, Index, Remote};
use farrow_bench_network::run::{RunResults, SearchedPattern, Task};
use farrow_bench_network::stream::Dump;
use farrow_bench_network::whatif::{
    EventCounter, LINKS, LineCacheShape, LineWait, MemoryLink, RemoteMemory, Touched,
    local_latency_ns, median, predicted,
};
use farrow_graph::{GraphFeatures, Segment};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

type NetworkFault = Box<dyn std::error::Error>;

#[derive(Parser)]
#[command(about = "Graph features over rows from elsewhere.")]
struct NetworkArguments {
    #[command(subcommand)]
    command: NetworkCommand,
}

#[derive(Subcommand)]
enum NetworkCommand {
    /// Private memory, segments here, segments over a network.
    Compare(NetworkComparison),
    /// Segments in remote memory of other speeds, by a model and by injected delays.
    Whatif(Whatif),
    /// The cost of a hit by the length of its row, in both designs.
    Hits,
    /// Serves segments until standard input ends.
    Serve,
}

#[derive(Args)]
struct WorkArguments {
    /// The stream.
    file: PathBuf,
    /// The pattern to search.
    #[arg(long, value_enum)]
    pattern: SearchedPattern,
    /// Its window in hours.
    #[arg(long)]
    hours: u64,
    /// Rows of one call.
    #[arg(long, default_value_t = 2048)]
    batch: usize,
    /// Most rows to measure.
    #[arg(long, default_value_t = 40_960)]
    rows: usize,
    /// Seconds after which the clock stops, for each of the ways.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Row by row, rather than batch by batch.
    #[arg(long)]
    causal: bool,
    /// The first measured day, from 0; default: the last full one.
    #[arg(long)]
    day: Option<u64>,
    /// Edges that one search may visit; default: no limit.
    #[arg(long)]
    work_max: Option<u64>,
}

#[derive(Args)]
struct NetworkComparison {
    #[command(flatten)]
    work: WorkArguments,
    #[arg(long, value_enum, default_value = "lru")]
    policy: Policy,
    #[arg(long, value_enum, default_value = "full")]
    content: CachedContent,
    /// Bytes of the cache.
    #[arg(long, default_value_t = 64 << 20)]
    capacity: usize,
    #[arg(long, default_value_t = 16)]
    banks: usize,
    #[arg(long, value_enum, default_value = "ours")]
    design: Design,
    /// Location of the index of rows; remote in the thesis' design, local in ours.
    #[arg(long, value_enum)]
    index: Option<Index>,
    /// Most rows of one prefetch; 0 for none.
    #[arg(long, default_value_t = 65_536)]
    prefetch: usize,
    #[arg(long)]
    no_cache: bool,
    /// Measures a second pass over the same rows, with the cache filled by the first.
    #[arg(long)]
    hot: bool,
}

#[derive(Args)]
struct Whatif {
    #[command(flatten)]
    work: WorkArguments,
    /// Bytes of the modelled cache; default: one core's share of this machine's last-level cache.
    #[arg(long)]
    cache_bytes: Option<u64>,
    #[arg(long)]
    cache_ways: Option<u64>,
    /// Latency of a local load, in ns; default: measured.
    #[arg(long)]
    local_ns: Option<f64>,
    /// Runs of each kind, alternately; the median counts.
    #[arg(long, default_value_t = 10)]
    runs: usize,
}

impl WorkArguments {
    fn task(&self) -> Task {
        let &WorkArguments { pattern, hours, batch, rows, seconds, causal, day, work_max, .. } =
            self;
        Task { pattern, hours, batch, rows, seconds, is_causal: causal, day, work_max }
    }
}

fn figures(outcome: &RunResults) -> Value {
    let batches = outcome.times.len();
    let (rows, seconds) = (outcome.count(batches), outcome.seconds(batches));
    let cut: u64 = outcome.cut_short.iter().sum();
    json!({
        "rows": rows,
        "seconds": seconds,
        "rows_per_second": rows as f64 / seconds,
        "times": outcome.times,
        "cut_short": cut,
    })
}

/// Places a graph's segments.
type SegmentPlacer<'a> = &'a mut dyn FnMut(u32, Segment) -> Result<Arc<Segment>, NetworkFault>;

fn here(_: u32, segment: Segment) -> Result<Arc<Segment>, NetworkFault> {
    Ok(Arc::new(segment))
}

fn learned(
    task: &Task,
    dump: &Dump,
    place: Option<SegmentPlacer<'_>>,
) -> Result<GraphFeatures, NetworkFault> {
    task.learned(dump, place)
}

fn compare(options: &NetworkComparison) -> Result<Value, NetworkFault> {
    let (task, dump) = (options.work.task(), Dump::read(&options.work.file)?);
    let private = task.measure(&dump, learned(&task, &dump, None)?, usize::MAX)?;
    let mapped = learned(&task, &dump, Some(&mut here))?;
    let mapped = task.measure(&dump, mapped, usize::MAX)?;
    let server = ServerProcess::start()?;
    let cache = RowCacheSettings {
        policy: options.policy,
        content: options.content,
        capacity: options.capacity,
        banks: options.banks,
        design: options.design,
    };
    let index = options.index.unwrap_or(match options.design {
        Design::Thesis => Index::Remote,
        Design::Ours => Index::Local,
    });
    let fetch = FetchSettings {
        design: options.design,
        index,
        prefetch_max: options.prefetch,
        is_traced: false,
    };
    let kept = (!options.no_cache).then(|| RowCache::new(cache.clone()));
    let remote = Remote::new(RowClient::new(server.address, DEADLINE)?, kept, fetch);
    let mut bring = |number, segment: Segment| {
        remote.bring(number, &segment)?;
        Ok(Arc::new(remote.segment(number, &segment)?))
    };
    let features = learned(&task, &dump, Some(&mut bring))?;
    let mut network = task.measure(&dump, features, usize::MAX)?;
    let mut is_same = private.agrees(&mapped) && private.agrees(&network);
    let mut replayed = Value::Null;
    if options.hot {
        let batches = network.times.len();
        let mut again = |number, segment: Segment| Ok(Arc::new(remote.segment(number, &segment)?));
        let features = learned(&task, &dump, Some(&mut again))?;
        remote.reset_counters();
        network = task.measure(&dump, features, batches)?;
        is_same &= private.agrees(&network);
        replayed = replay(options, &task, &dump, &server, batches)?;
    }
    if !is_same {
        return Err("the ways found different features".into());
    }
    let mut settings = json!(cache);
    settings["index"] = json!(index);
    settings["prefetch"] = json!(options.prefetch);
    settings["has_cache"] = json!(!options.no_cache);
    settings["is_hot"] = json!(options.hot);
    let mut over_network = figures(&network);
    over_network["counters"] = json!(remote.counters());
    over_network["cache_bytes"] = json!(remote.bytes());
    Ok(json!({
        "task": task,
        "settings": settings,
        "edges": mapped.edges,
        "sealed": mapped.sealed,
        "private": figures(&private),
        "mapped": figures(&mapped),
        "network": over_network,
        "mapped_over_private": mapped.over(&private),
        "network_over_private": network.over(&private),
        "network_over_mapped": network.over(&mapped),
        "same": is_same,
        "replay": replayed,
    }))
}

/// The cost of a hit in both designs, over the rows that the search requests.
fn replay(
    options: &NetworkComparison,
    task: &Task,
    dump: &Dump,
    server: &ServerProcess,
    batches: usize,
) -> Result<Value, NetworkFault> {
    let made = |remote: &Arc<Remote>| -> Result<GraphFeatures, NetworkFault> {
        let mut again = |number, segment| Ok(Arc::new(remote.segment(number, &segment)?));
        learned(task, dump, Some(&mut again))
    };
    let remote = |design, is_traced| hits::remote(server.address, design, options.banks, is_traced);
    let asking = remote(Design::Ours, true)?;
    task.measure(dump, made(&asking)?, batches)?;
    let (thesis, ours) = (remote(Design::Thesis, false)?, remote(Design::Ours, false)?);
    made(&thesis)?;
    made(&ours)?;
    Ok(hits::compared(&asking.traced(), &thesis, &ours))
}

fn whatif(options: &Whatif) -> Result<Value, NetworkFault> {
    let (task, dump) = (options.work.task(), Dump::read(&options.work.file)?);
    let machine = LineCacheShape::of_machine(Path::new("/sys/devices/system/cpu/cpu0/cache"));
    let shape = LineCacheShape {
        bytes: options.cache_bytes.unwrap_or(machine.bytes),
        ways: options.cache_ways.unwrap_or(machine.ways),
    };
    // Four times a large cache, and enough steps for a second.
    let local_ns = options.local_ns.unwrap_or_else(|| local_latency_ns(512 << 20, 4_000_000));
    let features = learned(&task, &dump, Some(&mut here))?;
    let work = || task.measure(&dump, features, usize::MAX);
    let (first, hardware, counters) = match EventCounter::of_misses() {
        Ok(mut counter) => {
            let (outcome, misses) = counter.during(work)?;
            let about = "the processor's: loads of the whole search that missed its last cache";
            (outcome?, Some(misses), about.to_owned())
        }
        Err(error) => {
            let about = "a model of the last cache; the processor's are not there";
            (work()?, None, format!("{about}: {error}"))
        }
    };
    let task = Task { seconds: 1e6, ..task };
    let there = There::new(&task, &dump, shape, first)?;
    let (local, base, delayed) = there.in_turn(options.runs.max(1), local_ns)?;
    let (touched, rows) = (there.touched, there.first.count(there.batches()) as f64);
    // The delays are always those of the model's misses.
    let misses = hardware.unwrap_or(touched.misses);
    let links = LINKS.iter().zip(delayed).map(|(link, measured)| {
        let expected = predicted(base, touched.misses, link.latency_ns, local_ns);
        let whole = predicted(local, misses, link.latency_ns, local_ns);
        json!({
            "link": link.name,
            "latency_ns": link.latency_ns,
            "rows_per_second": rows / whole,
            "over_local": whole / local,
            "check": {
                "predicted_seconds": expected,
                "measured_seconds": measured,
                "predicted_over_measured": expected / measured,
            },
        })
    });
    Ok(json!({
        "links": links.collect::<Vec<Value>>(),
        "task": task,
        "counters": counters,
        "seconds": "of the thread on a core; medians of runs in turn",
        "assumes": "whole rows are touched, misses do not overlap, the cache is empty at first",
        "cache": shape,
        "local_ns": local_ns,
        "edges": there.first.edges,
        "sealed": there.first.sealed,
        "rows": rows,
        "local_seconds": local,
        "local_rows_per_second": rows / local,
        "asked_rows": touched.rows,
        "touched_lines": touched.lines,
        "misses": touched.misses,
        "hardware_misses": hardware,
        "misses_per_row": misses as f64 / rows,
        "base_seconds": base,
    }))
}

/// A task with segments in memory whose latency can be increased.
struct There<'a> {
    task: &'a Task,
    dump: &'a Dump,
    /// The outcome with local segments.
    first: RunResults,
    memory: RemoteMemory,
    segments: Vec<Arc<Segment>>,
    touched: Touched,
}

impl<'a> There<'a> {
    /// Counts the task's misses in a cache of this shape.
    fn new(
        task: &'a Task,
        dump: &'a Dump,
        shape: LineCacheShape,
        first: RunResults,
    ) -> Result<Self, NetworkFault> {
        let (memory, mut segments) = (RemoteMemory::default(), Vec::new());
        let mut place = |_, segment: Segment| {
            segments.push(Arc::new(memory.segment(Arc::new(segment))?));
            Ok(Arc::clone(&segments[segments.len() - 1]))
        };
        let features = learned(task, dump, Some(&mut place))?;
        memory.count(shape);
        let counted = task.measure(dump, features, first.times.len())?;
        let touched = memory.touched();
        let there = There { task, dump, first, memory, segments, touched };
        there.seconds(&counted)?;
        Ok(there)
    }

    fn batches(&self) -> usize {
        self.first.times.len()
    }

    /// Median seconds with local segments, with remote ones without delay, and with the delay of
    /// each link. The runs alternate in a rotating order, so that disturbances affect all of them.
    fn in_turn(&self, runs: usize, local_ns: f64) -> Result<(f64, f64, Vec<f64>), NetworkFault> {
        let wait = |link: &MemoryLink| {
            let nanoseconds = (link.latency_ns - local_ns).max(0.0);
            LineWait::calibrated(Duration::from_secs_f64(nanoseconds * 1e-9))
        };
        let waits: Vec<LineWait> =
            [LineWait::default()].into_iter().chain(LINKS.iter().map(wait)).collect();
        let mut local = Vec::new();
        let mut delayed = vec![Vec::new(); waits.len()];
        for run in 0..runs {
            let features = learned(self.task, self.dump, Some(&mut here))?;
            let outcome = self.task.measure(self.dump, features, self.batches())?;
            local.push(self.seconds(&outcome)?);
            for at in (0..waits.len()).map(|at| (at + run) % waits.len()) {
                delayed[at].push(self.delayed(waits[at])?);
            }
        }
        let mut delayed = delayed.into_iter().map(median);
        let base = delayed.next().unwrap_or(f64::NAN);
        Ok((median(local), base, delayed.collect()))
    }

    fn delayed(&self, wait: LineWait) -> Result<f64, NetworkFault> {
        let mut same = |number: u32, _| {
            self.segments.get(number as usize).cloned().ok_or_else(|| "a new segment".into())
        };
        let features = learned(self.task, self.dump, Some(&mut same))?;
        self.memory.delay(wait);
        let outcome = self.task.measure(self.dump, features, self.batches())?;
        let (waited, missed) = (self.memory.waited(), self.touched.misses);
        if waited != missed {
            return Err(format!("{waited} lines were waited for, {missed} were missing").into());
        }
        self.seconds(&outcome)
    }

    /// Seconds of a run, if its results are equal.
    fn seconds(&self, outcome: &RunResults) -> Result<f64, NetworkFault> {
        if !outcome.agrees(&self.first) {
            return Err("the ways found different features".into());
        }
        Ok(outcome.busy_seconds())
    }
}

fn main() -> Result<(), NetworkFault> {
    let answer = match NetworkArguments::parse().command {
        NetworkCommand::Serve => return Ok(serve_until_input_ends()?),
        NetworkCommand::Compare(options) => compare(&options)?,
        NetworkCommand::Whatif(options) => whatif(&options)?,
        NetworkCommand::Hits => json!(hits::by_length(ServerProcess::start()?.address, 16)?),
    };
    println!("{answer:#}");
    Ok(())
}
