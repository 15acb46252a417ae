//! Times the small steps of Farrow and prints raw samples; `bench/run.py` puts them beside its
//! own. `--json`: a list of `{name, unit, samples}`; otherwise medians for people.
//!
//! cargo run --release -p farrow-bench-micro
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow_buffer::Buffer;
use arrow_schema::{Field, Schema};
use farrow::arrow::{Decoded, DescriptorStamp, Limits, Plan};
use farrow::{BatchData, Client, ConnectOptions, ObjectKey, ObjectOptions, SchemaNode, Value};
use farrow_cluster::node::{EvictionKind, MemorySource, Node, NodeOptions};
use farrow_memory::copy::CopyPlan;
use farrow_memory::device::DeviceFabric;
use farrow_memory::{Access, CoherenceClass, Geometry, Length, Offset, Region, Span, page_bytes};

type MicroResult = Result<(), Box<dyn std::error::Error>>;

#[derive(serde::Serialize)]
struct Series {
    name: String,
    unit: &'static str,
    samples: Vec<f64>,
}

#[derive(Default)]
struct MicroBench {
    all: Vec<Series>,
}

impl MicroBench {
    /// `rounds` samples of microseconds a call, each over `calls` calls.
    fn time(&mut self, name: &str, rounds: usize, calls: u32, mut work: impl FnMut()) {
        work();
        let samples = (0..rounds)
            .map(|_| {
                let started = Instant::now();
                (0..calls).for_each(|_| work());
                started.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
            })
            .collect();
        self.all.push(Series { name: name.to_owned(), unit: "us", samples });
    }

    /// As [`Self::time`], turned into GiB/s for `bytes` a call.
    fn rate(&mut self, name: &str, rounds: usize, bytes: u64, work: impl FnMut()) {
        self.time(name, rounds, 1, work);
        if let Some(series) = self.all.last_mut() {
            series.unit = "GiB/s";
            for sample in &mut series.samples {
                *sample = bytes as f64 / (1_u64 << 30) as f64 / (*sample * 1e-6);
            }
        }
    }
}

fn batch(columns: usize) -> (SchemaNode, BatchData) {
    let rows = 10_000;
    let make = |column: usize| -> ArrayRef {
        let numbers = 0..rows as i64;
        match column % 3 {
            0 => Arc::new(Int64Array::from_iter_values(numbers)),
            1 => {
                Arc::new(Float64Array::from_iter(numbers.map(|n| (n % 9 > 0).then_some(n as f64))))
            }
            _ => Arc::new(StringArray::from_iter_values(numbers.map(|n| n.to_string()))),
        }
    };
    let arrays: Vec<ArrayRef> = (0..columns).map(make).collect();
    let field = |(number, array): (usize, &ArrayRef)| {
        Field::new(format!("column {number}"), array.data_type().clone(), true)
    };
    let schema = Schema::new(arrays.iter().enumerate().map(field).collect::<Vec<_>>());
    let schema = SchemaNode::try_from(&schema).expect("a schema");
    let columns = arrays.iter().map(|array| array.to_data()).collect();
    (schema, BatchData { rows, columns })
}

fn descriptors(bench: &mut MicroBench) -> MicroResult {
    for (columns, calls) in [(1, 1000), (3, 1000), (100, 50)] {
        let (schema, batch) = batch(columns);
        // As if all of it lay in the region: no copy is part of these times.
        let mut place = |pointer: *const u8, _: usize| Some(pointer as u64);
        bench.time(&format!("describe {columns} columns"), 51, calls, || {
            let plan = Plan::record_batch(&schema, &batch, &mut place).expect("a plan");
            black_box(plan.descriptor(DescriptorStamp { region: 1, epoch: 1 }, 0));
        });
        let plan = Plan::record_batch(&schema, &batch, &mut |_, _| None)?;
        let mut area = vec![0_u64; (plan.copy_bytes() as usize).div_ceil(8)];
        let mut bytes = vec![0; plan.copy_bytes() as usize];
        plan.write_copies(&mut bytes)?;
        for (word, eight) in area.iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            all[..eight.len()].copy_from_slice(eight);
            *word = u64::from_le_bytes(all);
        }
        let area = Buffer::from_vec(area);
        let descriptor = plan.descriptor(DescriptorStamp { region: 1, epoch: 1 }, 0);
        bench.time(&format!("rebuild {columns} columns"), 51, calls, || {
            let decoded = Decoded::parse(&descriptor, &Limits::default()).expect("a descriptor");
            let rebuilt = decoded.rebuild(&|offset, length| {
                Some(area.slice_with_length(offset as usize, length as usize))
            });
            black_box(rebuilt.expect("a batch"));
        });
    }
    Ok(())
}

fn objects(bench: &mut MicroBench, client: &Client) -> MicroResult {
    let kilobyte = vec![7; 1024];
    let value = Value::Bytes(&kilobyte);
    let id: ObjectKey = client.put(&value, Some("small"))?.into();
    bench.time("get 1 KiB by id", 51, 1000, || {
        black_box(client.get(&id, Duration::ZERO).and_then(|o| o.view()).expect("there"));
    });
    let name = ObjectKey::from("small");
    bench.time("get 1 KiB by name", 51, 1000, || {
        black_box(client.get(&name, Duration::ZERO).and_then(|o| o.view()).expect("there"));
    });
    let mut ids = Vec::new();
    bench.time("put 1 KiB", 51, 100, || ids.push(client.put(&value, None).expect("room")));
    let targets: Vec<ObjectKey> = ids.drain(..).map(ObjectKey::from).collect();
    client.delete(&targets)?;
    let many = vec![(value, ObjectOptions::default()); 1000];
    let mut sets = Vec::new();
    bench.time("put 1000 of 1 KiB in one message", 9, 1, || {
        sets.push(client.put_many(&many).expect("room"));
    });
    for set in sets {
        client.delete(&set.into_iter().map(ObjectKey::from).collect::<Vec<_>>())?;
    }
    let pool = client.pool();
    for bytes in [64, 4096, 1 << 20] {
        bench.time(&format!("allocate and free {bytes} B in the pool"), 51, 200, || {
            let pointer = pool.allocate(bytes, 64).expect("room");
            pool.free(black_box(pointer), bytes);
        });
    }
    for bytes in [16_u64 << 20, 512 << 20] {
        let source = vec![1_u8; bytes as usize];
        let mut last = None;
        bench.rate(&format!("put {} MiB of bytes", bytes >> 20), 9, bytes, || {
            if let Some(id) = last.take() {
                client.delete(&[ObjectKey::Id(id)]).expect("there");
            }
            last = Some(client.put(&Value::Bytes(&source), None).expect("room"));
        });
        if let Some(id) = last {
            bench.time(&format!("get {} MiB of bytes", bytes >> 20), 51, 100, || {
                let object = client.get(&ObjectKey::Id(id), Duration::ZERO).expect("there");
                black_box(object.view().expect("bytes"));
            });
            client.delete(&[ObjectKey::Id(id)])?;
        }
    }
    Ok(())
}

/// Publish and refresh on memory that is declared coherent only inside a node, where they are
/// really done.
fn coherence(bench: &mut MicroBench, dir: &std::path::Path) -> MicroResult {
    let bytes = 256_u64 << 20;
    let geometry = Geometry { control: Length(page_bytes()), data: Length(bytes) };
    let path = dir.join("device");
    std::fs::File::create(&path)?.set_len(bytes + page_bytes())?;
    let fabric = DeviceFabric::open(&path, 0, geometry, CoherenceClass::NodeLocal)?;
    let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None)?);
    let data = Span::new(Offset(page_bytes()), Length(bytes));
    let alias = region.alias(data)?;
    let source = vec![1_u8; bytes as usize];
    alias.write(data.offset, &source)?;
    for kib in [1_u64, 64, 1024, 16384] {
        let span = Span::new(data.offset, Length(kib << 10));
        bench.time(&format!("publish {kib} KiB, clean"), 51, 10, || {
            region.publish(span).expect("in bounds");
        });
        bench.time(&format!("refresh {kib} KiB"), 51, 10, || {
            region.refresh(span).expect("in bounds");
        });
    }
    bench.rate("write by cached stores, then publish", 9, bytes, || {
        alias.write_as(data.offset, &source, CopyPlan::plain()).expect("in bounds");
        region.publish(data).expect("in bounds");
    });
    bench.rate("write by non-temporal stores, published", 9, bytes, || {
        alias
            .write_as(data.offset, &source, CopyPlan::automatic().in_one_thread())
            .expect("in bounds");
    });
    Ok(())
}

fn main() -> MicroResult {
    let dir = tempfile::Builder::new().prefix("farrow-bench-").tempdir_in("/dev/shm")?;
    let mut options = NodeOptions::new(dir.path().join("n.sock"));
    let memory_dir = std::env::var_os("FARROW_MEMORY_DIR").map(std::path::PathBuf::from);
    options.source = MemorySource::Shm { dir: memory_dir.unwrap_or(dir.path().to_owned()) };
    options.memory = Some(Length(1536 << 20));
    options.is_fresh = true;
    options.eviction = EvictionKind::None;
    let node = Node::open(options.clone())?;
    let stopper = node.stopper()?;
    let thread = std::thread::spawn(move || node.run());
    let mut bench = MicroBench::default();
    {
        let client = Client::connect(&ConnectOptions::at(&options.socket))?;
        let until = Instant::now() + Duration::from_secs(120);
        while client.stats()?.node.prepared < 1536 << 20 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        descriptors(&mut bench)?;
        objects(&mut bench, &client)?;
    }
    coherence(&mut bench, dir.path())?;
    stopper.stop();
    thread.join().map_err(|_| "the node panicked")??;
    if std::env::args().any(|word| word == "--json") {
        println!("{}", serde_json::to_string(&bench.all)?);
        return Ok(());
    }
    for series in &mut bench.all {
        series.samples.sort_by(f64::total_cmp);
        let median = series.samples.get(series.samples.len() / 2).copied().unwrap_or_default();
        println!("{:45} {median:10.3} {}", series.name, series.unit);
    }
    Ok(())
}
