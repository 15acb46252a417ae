//! Measures the throughput of features: `throughput FILE PATTERN WINDOW [options]`.
//!
//! FILE is a stream in the format of `stream/mod.rs`; WINDOW is in hours. The rows before `--from`
//! (a share of all rows) fill the graph, then `--rows` rows are timed in batches.

mod stream;

use farrow_graph::{
    Column, Edges, GraphError, GraphFeatures, Measure, Mode, PatternSettings, Settings,
    StatisticsSettings,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use stream::Dump;

struct ThroughputOptions {
    file: String,
    patterns: Vec<(String, u64)>,
    batch: usize,
    rows: usize,
    from: f64,
    threads: usize,
    mode: Mode,
    work_max: u64,
    length: usize,
    /// The time span of each segment in seconds. Segments stay in this process.
    segment: Option<u64>,
}

fn options() -> Result<ThroughputOptions, String> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or(format!("{what} is missing"));
    let file = next("FILE")?;
    let mut options = ThroughputOptions {
        file,
        patterns: Vec::new(),
        batch: 2048,
        rows: 200_000,
        from: 0.4,
        threads: 1,
        mode: Mode::Batch,
        work_max: u64::MAX,
        length: 10,
        segment: None,
    };
    while let Ok(word) = next("") {
        let number = |text: String| text.parse::<f64>().map_err(|error| format!("{text}: {error}"));
        match word.as_str() {
            "--batch" => options.batch = number(next("--batch")?)? as usize,
            "--rows" => options.rows = number(next("--rows")?)? as usize,
            "--from" => options.from = number(next("--from")?)?,
            "--threads" => options.threads = number(next("--threads")?)? as usize,
            "--work" => options.work_max = number(next("--work")?)? as u64,
            "--length" => options.length = number(next("--length")?)? as usize,
            "--segment" => options.segment = Some(number(next("--segment")?)? as u64),
            "--causal" => options.mode = Mode::Causal,
            pattern => {
                let hours = number(next("hours of the window")?)?;
                options.patterns.push((pattern.to_owned(), (hours * 3600.0) as u64));
            }
        }
    }
    Ok(options)
}

fn settings(options: &ThroughputOptions) -> Result<Settings, String> {
    let mut settings = Settings {
        mode: options.mode,
        threads: options.threads,
        work_max: options.work_max,
        cycle_length_max: options.length,
        segment: options.segment,
        ..Settings::default()
    };
    for (name, window) in &options.patterns {
        let bins = Some(PatternSettings { window: *window, bins: (2..31).collect() });
        match name.as_str() {
            "fan" => settings.fan = bins,
            "degree" => settings.degree = bins,
            "scatter-gather" => settings.scatter_gather = bins,
            "temp-cycle" => settings.temporal_cycle = bins,
            "lc-cycle" => settings.simple_cycle = bins,
            "gather-scatter" => settings.gather_scatter = bins,
            "vertex-stats" => {
                let measures = [0, 1, 2, 3, 4, 8, 9, 10].map(|code| Measure::ALL[code]).to_vec();
                let columns = vec![Column::Time];
                settings.statistics =
                    Some(StatisticsSettings { window: *window, measures, columns });
            }
            _ => return Err(format!("a pattern {name:?}")),
        }
    }
    if settings.mode == Mode::Batch {
        settings.time_window = options.patterns.iter().map(|(_, window)| *window).max();
    }
    Ok(settings)
}

/// Builds segments of all full spans, and drains their edges from the store.
fn seal(features: &mut GraphFeatures) -> Result<(), GraphError> {
    while let Some(frozen) = features.freeze() {
        features.attach(Arc::new(frozen.plan()?.build()?))?;
        while features.stats().draining > 0 {
            features.learn(&Edges {
                ids: &[],
                sources: &[],
                targets: &[],
                times: &[],
                columns: &[],
            })?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let dump = Dump::read(Path::new(&options.file))?;
    let (count, times_of_all) = (dump.rows(), dump.times());
    let mut features = GraphFeatures::new(settings(&options)?)?;
    let start = (options.from * count as f64) as usize;
    // Of the rows before `start`, only the last window matters.
    let window = options.patterns.iter().map(|(_, window)| *window).max().unwrap_or(0);
    let oldest = times_of_all[start] - window as i64 - 3600;
    let first = times_of_all.partition_point(|&time| time < oldest);
    let filled = Instant::now();
    let mut at = first;
    while at < start {
        let to = (at + 65_536).min(start);
        features.learn(&dump.part(at, to))?;
        seal(&mut features)?;
        at = to;
    }
    let fill = filled.elapsed().as_secs_f64();
    let end = (start + options.rows).min(count);
    let (mut times, mut found) = (Vec::new(), 0.0);
    while at < end {
        let to = (at + options.batch).min(end);
        let began = Instant::now();
        let rows = features.transform(&dump.part(at, to))?;
        times.push(began.elapsed().as_secs_f64());
        found += rows.iter().sum::<f64>();
        seal(&mut features)?;
        at = to;
    }
    let total: f64 = times.iter().sum();
    times.sort_by(f64::total_cmp);
    let stats = features.stats();
    println!(
        "{:?} fill {:.0}/s, {:.0} rows/s, batch p10 {:.3} ms p50 {:.3} ms p99 {:.3} ms max {:.3} ms, sum {found}, {} edges, {} accounts, {:.1} B/edge, {} segments of {:.1} B/edge, cut short {:?}",
        options.patterns,
        (start - first) as f64 / fill,
        (end - start) as f64 / total,
        times[times.len() / 10] * 1e3,
        times[times.len() / 2] * 1e3,
        times[times.len() * 99 / 100] * 1e3,
        times[times.len() - 1] * 1e3,
        stats.edges,
        stats.accounts,
        stats.bytes as f64 / stats.edges as f64,
        stats.segments,
        stats.sealed_bytes as f64 / stats.sealed.max(1) as f64,
        stats.cut_short,
    );
    Ok(())
}
