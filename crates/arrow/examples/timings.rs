//! Medians of describe and rebuild, for 3 and for 100 columns. Run it in release:
//! `cargo run --release -p farrow-arrow --features testing --example timings`.

#![allow(clippy::expect_used, reason = "a program that measures")]

use arrow_array::{Array, Int64Array, StringArray, UInt16Array};
use arrow_data::ArrayData;
use arrow_schema::{Field, Schema};
use farrow_arrow::testing::RegionBytes;
use farrow_arrow::{BatchData, Decoded, DescriptorStamp, Limits, Plan, SchemaNode, ffi};
use std::hint::black_box;
use std::time::Instant;

fn median(mut run: impl FnMut()) -> f64 {
    (0..100).for_each(|_| run());
    let mut samples: Vec<f64> = (0..2001)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn column(index: usize) -> ArrayData {
    match index % 3 {
        0 => Int64Array::from_iter((0..1000).map(|i| (i % 7 > 0).then_some(i))).to_data(),
        1 => StringArray::from_iter_values((0..1000).map(|i| format!("value {i}"))).to_data(),
        _ => UInt16Array::from_iter_values(0..1000).to_data(),
    }
}

fn main() {
    println!(
        "{:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  (microseconds, medians)",
        "columns", "schema", "describe", "encode", "parse", "rebuild", "export", "bytes"
    );
    for columns in [1, 3, 100] {
        let arrays: Vec<ArrayData> = (0..columns).map(column).collect();
        let mut arena = RegionBytes::default();
        let arrays = arena.adopt_all(&arrays, &mut || true);
        let fields = arrays.iter().enumerate();
        let fields = fields.map(|(i, a)| Field::new(format!("c{i}"), a.data_type().clone(), true));
        let fields = Schema::new(fields.collect::<Vec<_>>());
        let schema = SchemaNode::try_from(&fields).expect("plain types");
        let batch = BatchData { rows: 1000, columns: arrays };
        let plan = || arena.plan(|locate| Plan::record_batch(&schema, &batch, locate));
        let stamp = DescriptorStamp { region: 1, epoch: 1 };
        let descriptor = plan().expect("good arrays").descriptor(stamp, 0);
        let parse = || Decoded::parse(&descriptor, &Limits::default()).expect("our own");
        let decoded = parse();
        let resolve = |offset: u64, length: u64| arena.resolve(offset, length);
        println!(
            "{columns:>7} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>9}",
            median(|| drop(black_box(SchemaNode::try_from(&fields)))),
            median(|| drop(black_box(plan()))),
            median(|| drop(black_box(plan().map(|plan| plan.descriptor(stamp, 0))))),
            median(|| drop(black_box(parse()))),
            median(|| drop(black_box(parse().rebuild(&resolve)))),
            median(|| drop(black_box(ffi::export_batch(&schema, &batch)))),
            descriptor.len(),
        );
        black_box(decoded);
    }
}
