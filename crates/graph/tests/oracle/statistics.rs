//! Statistics of the edges at an account (E).

use super::view::{EdgeDirection, OracleView};
use super::{DefinitionFault, Edge, before};
use farrow_graph::{Column, Measure, StatisticsSettings};

/// Source out, source in, target out, target in (C3).
pub fn of_row(
    view: &OracleView<'_>,
    wanted: &StatisticsSettings,
    recent: u64,
    row: EdgeRow,
) -> Vec<f64> {
    let EdgeRow { source, target, time } = row;
    let ends = [source, target].into_iter();
    let sides = ends.flat_map(|account| {
        [EdgeDirection::Out, EdgeDirection::In].map(|way| AccountSide { account, way })
    });
    sides.flat_map(|side| of_side(view, wanted, recent, side, time)).collect()
}

/// A row whose statistics are wanted.
pub struct EdgeRow {
    pub source: i64,
    pub target: i64,
    pub time: i64,
}

struct AccountSide {
    account: i64,
    way: EdgeDirection,
}

fn of_side(
    view: &OracleView<'_>,
    wanted: &StatisticsSettings,
    recent: u64,
    side: AccountSide,
    time: i64,
) -> Vec<f64> {
    let AccountSide { account, way } = side;
    let start = before(time, wanted.window);
    let is_endless = !view.is_causal || view.fault == Some(DefinitionFault::EndlessStatistics);
    let is_seen = |one: &&Edge| is_endless || (i128::from(one.time) > start && one.time <= time);
    let ends = view.ends(account, way);
    let edges: Vec<&Edge> = ends.values().flatten().copied().filter(is_seen).collect();
    let fan = ends.values().filter(|edges| edges.iter().any(is_seen)).count();
    let late: Vec<&Edge> =
        edges.iter().copied().filter(|one| view.is_causal || one.number >= recent).collect();
    let has = |measure| wanted.measures.contains(&measure);
    let (degree, fan) = (edges.len() as f64, fan as f64);
    let ratio = if edges.is_empty() { 0.0 } else { degree / fan };
    let counts = [(Measure::Fan, fan), (Measure::Degree, degree), (Measure::Ratio, ratio)];
    let mut cells: Vec<f64> =
        counts.into_iter().filter(|one| has(one.0)).map(|one| one.1).collect();
    let mut given = 0;
    for column in &wanted.columns {
        let value = |one: &&Edge| match column {
            Column::Time => one.time as f64,
            Column::Given => one.values[given],
        };
        let all: Vec<f64> = edges.iter().map(value).collect();
        let some: Vec<f64> = late.iter().map(value).collect();
        let figures = of_column(view, &all, &some);
        cells.extend(figures.into_iter().filter(|one| has(one.0)).map(|one| one.1));
        given += usize::from(*column == Column::Given);
    }
    cells
}

/// E2 to E5 of one column: all edges, and those that the moments count.
fn of_column(view: &OracleView<'_>, all: &[f64], some: &[f64]) -> [(Measure, f64); 8] {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (sorted.first().copied(), sorted.last().copied());
    let (mean, [m2, m3, m4]) = moments(some, view.fault);
    // E5; in causal mode, only rounding error is cut off.
    let cutoff = if view.is_causal { 1e-29 } else { 1e-5 };
    let is_flat = m2 <= 0.0 || m2 < cutoff * mean * mean;
    let unless_flat = |value: f64| if is_flat { 0.0 } else { value };
    [
        (Measure::Mean, mean),
        (Measure::Sum, some.iter().sum()),
        (Measure::Min, first.unwrap_or(0.0)),
        (Measure::Max, last.unwrap_or(0.0)),
        (Measure::Median, median(&sorted)),
        (Measure::Variance, unless_flat(m2)),
        (Measure::Skewness, unless_flat(m3 / m2.powf(1.5))),
        (Measure::Kurtosis, unless_flat(m4 / m2.powi(2))),
    ]
}

/// E4: the mean and the second, third and fourth central moment of a population.
fn moments(values: &[f64], fault: Option<DefinitionFault>) -> (f64, [f64; 3]) {
    if values.is_empty() {
        return (0.0, [0.0; 3]);
    }
    let count = values.len() as f64;
    let rough = values.iter().sum::<f64>() / count;
    // A second pass removes the rounding error of the first.
    let mean = rough + values.iter().map(|value| value - rough).sum::<f64>() / count;
    let power = |power| values.iter().map(|value| (value - mean).powi(power)).sum::<f64>();
    let divisor = if fault == Some(DefinitionFault::SampleVariance) { count - 1.0 } else { count };
    (mean, [power(2) / divisor, power(3) / count, power(4) / count])
}

/// E2: for an even count, the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count.is_multiple_of(2) => sorted[middle - 1] / 2.0 + sorted[middle] / 2.0,
        _ => sorted[middle],
    }
}
