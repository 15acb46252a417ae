//! Mean, sum, variance, skewness and kurtosis from sums of powers.

use super::double_double::{CompensatedSum, DoubleDouble};

/// Sums of the first four powers of the distances from a pivot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moments {
    count: usize,
    /// One of the values. Distances from it are small if values differ by little.
    pivot: f64,
    sums: [DoubleDouble; 4],
    /// The largest sum of fourth powers so far.
    peak: f64,
    /// Whether a value beyond [`HUGE`] has been subtracted.
    has_lost_huge: bool,
}

/// Sums have some 104 bits. A sum that has shrunk by this factor from its peak is rebuilt.
const LOST_MAX: f64 = 1e5;
/// Sums are also rebuilt when the squared distance of the pivot from the mean is this many
/// variances. A kurtosis loses the square of this factor. With both factors, 5e-32 becomes 5e-23:
/// far below the last digit, so that it does not matter which sums are carried on.
const FAR_MAX: f64 = 1e2;

/// Values up to this one, near 2^245, have distances whose fourth powers have a finite sum: below
/// 2^984 each. Larger ones may leave sums of infinity or NaN behind.
const HUGE: f64 = 5e73;

/// The third powers of whole numbers up to this one, 2^17, are exact.
const WHOLE_MAX: f64 = 131_072.0;

impl Moments {
    pub(crate) fn add(&mut self, value: f64) {
        if self.count == 0 {
            *self = Moments { pivot: value, ..Moments::default() };
        }
        self.include(value);
    }

    /// The moments of some values, one of which is the pivot.
    pub(crate) fn of(pivot: f64, values: impl Iterator<Item = f64>) -> Moments {
        let mut moments = Moments { pivot, ..Moments::default() };
        values.for_each(|value| moments.include(value));
        moments
    }

    fn include(&mut self, value: f64) {
        self.count += 1;
        self.sums = match whole_powers(value, self.pivot) {
            Some((first, fourth)) => {
                let [s1, s2, s3, s4] = self.sums;
                [s1 + first[0], s2 + first[1], s3 + first[2], s4 + fourth]
            }
            None => {
                let powers = powers(value, self.pivot);
                std::array::from_fn(|at| self.sums[at] + powers[at])
            }
        };
        self.peak = self.peak.max(self.sums[3].value());
    }

    /// Whether subtractions have made the sums too small, so that rounding errors matter. Either
    /// the removed values were much larger than the rest, or the pivot is far from the mean, or a
    /// removed value has made a sum infinite. While such a value is there, no rebuild would help.
    pub(crate) fn is_worn(&self) -> bool {
        if self.count == 0 {
            return false;
        }
        let count = self.count as f64;
        let [s1, s2, _, s4] = self.sums;
        let (d1, d2) = (s1 / count, s2 / count);
        let (square, variance) = ((d1 * d1).value(), (d2 - d1 * d1).value());
        if self.has_lost_huge && !s4.value().is_finite() {
            return true;
        }
        // With a pivot among the values, the square is at most as many variances as there are
        // values.
        self.peak > LOST_MAX * s4.value() || square > (FAR_MAX + 2.0 * count) * variance
    }

    /// Subtracts a value that was added.
    pub(crate) fn take(&mut self, value: f64) {
        self.count -= 1;
        self.has_lost_huge |= value.abs() > HUGE;
        for (sum, power) in self.sums.iter_mut().zip(powers(value, self.pivot)) {
            *sum = *sum - power;
        }
    }

    /// Mean, sum, variance, skewness and kurtosis. The last three are 0 if the variance is below
    /// `cutoff` of the squared mean.
    pub(crate) fn figures(&self, cutoff: f64) -> [f64; 5] {
        if self.count == 0 {
            return [0.0; 5];
        }
        let count = self.count as f64;
        // One division for all sums: divisions take most of the time here.
        let share = DoubleDouble::share_of(count);
        let [d1, d2, d3, d4] = self.sums.map(|sum| sum * share);
        let pivot = DoubleDouble::from(self.pivot);
        let mean = (pivot + d1).value();
        let sum = (pivot * DoubleDouble::from(count) + self.sums[0]).value();
        let square = d1 * d1;
        let m2 = (d2 - square).value();
        if is_nothing(m2, mean, cutoff) {
            return [mean, sum, 0.0, 0.0, 0.0];
        }
        // d3 - 3 d1 d2 + 2 d1^3, and d4 - 4 d1 d3 + 6 d1^2 d2 - 3 d1^4.
        let (threes, squares) = (d2.scaled(2.0) + d2, square.scaled(2.0));
        let m3 = (d3 - d1 * (threes - squares)).value();
        let inner = threes.scaled(2.0) - (squares + square);
        let m4 = (d4 - d1 * (d3.scaled(4.0) - d1 * inner)).value();
        shaped(mean, sum, [m2, m3, m4])
    }
}

/// The figures of [`Moments::figures`] from all values, in two passes. Only the sums need twice
/// the digits of a float, and the order of the values makes no difference.
pub(crate) fn figures_of(values: &[f64], cutoff: f64) -> [f64; 5] {
    let Some(&pivot) = values.first() else { return [0.0; 5] };
    let count = values.len() as f64;
    let mut distances = CompensatedSum::default();
    for &value in values {
        distances.add(DoubleDouble::of_difference(value, pivot));
    }
    let distances = distances.total();
    let distance = distances / count;
    let mean = (DoubleDouble::from(pivot) + distance).value();
    let sum = (DoubleDouble::from(pivot) * DoubleDouble::from(count) + distances).value();
    let mut sums = [CompensatedSum::default(); 3];
    for &value in values {
        let from_mean = DoubleDouble::of_difference(value, pivot).minus(distance);
        let square = from_mean * from_mean;
        sums[0].add(DoubleDouble::from(square));
        sums[1].add(DoubleDouble::from(square * from_mean));
        sums[2].add(DoubleDouble::from(square * square));
    }
    let [m2, m3, m4] = sums.map(|sum| sum.total().value() / count);
    if is_nothing(m2, mean, cutoff) {
        return [mean, sum, 0.0, 0.0, 0.0];
    }
    shaped(mean, sum, [m2, m3, m4])
}

/// Whether a variance is below `cutoff` of the squared mean.
fn is_nothing(m2: f64, mean: f64, cutoff: f64) -> bool {
    m2 <= 0.0 || m2 < cutoff * mean * mean
}

/// The figures from central moments.
fn shaped(mean: f64, sum: f64, [m2, m3, m4]: [f64; 3]) -> [f64; 5] {
    [mean, sum, m2, m3 / (m2 * m2.sqrt()), m4 / (m2 * m2)]
}

/// The powers of a distance that is a whole number, if the first three fit into a float. Distances
/// between timestamps in a window usually do.
fn whole_powers(value: f64, pivot: f64) -> Option<([f64; 3], DoubleDouble)> {
    let distance = DoubleDouble::of_difference(value, pivot).single()?;
    if distance.abs() > WHOLE_MAX || (distance as i64) as f64 != distance {
        return None;
    }
    let square = distance * distance;
    Some(([distance, square, square * distance], DoubleDouble::of_product(square, square)))
}

fn powers(value: f64, pivot: f64) -> [DoubleDouble; 4] {
    let distance = DoubleDouble::of_difference(value, pivot);
    let square = distance * distance;
    [distance, square, square * distance, square * square]
}

#[cfg(test)]
mod tests {
    use super::{DoubleDouble, Moments, powers, whole_powers};

    #[test]
    fn whole_distances_have_the_powers_of_any_other() {
        for (value, pivot) in
            [(5.0, 2.0), (1_662_000_000.0, 1_661_900_000.0), (-131_072.0, 0.0), (0.5, -2.5)]
        {
            let (first, fourth) = whole_powers(value, pivot).unwrap();
            let all = first.map(DoubleDouble::from).into_iter().chain([fourth]);
            assert_eq!(all.collect::<Vec<_>>(), powers(value, pivot));
        }
        // A fraction, a number that is whole only when rounded, one that is too far away, and NaN.
        for (value, pivot) in [(5.5, 2.0), (1.1, 0.1), (131_073.0, 0.0), (f64::NAN, 0.0)] {
            assert!(whole_powers(value, pivot).is_none(), "{value} from {pivot}");
        }
    }

    fn of(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|&value| moments.add(value));
        moments
    }

    /// The pivot of an account used to be its first payment while the window was carried on. A day
    /// after a payment of millions, values that differed by cents had two digits left.
    #[test]
    fn removed_values_leave_no_rounding_behind() {
        let cents: Vec<f64> = (0..50).map(|n| 20.0 + f64::from(n % 7) * 0.01).collect();
        for outlier in [3e9, 5e5, 1e7] {
            let mut moments = of(&[outlier, cents[0]]);
            cents[1..].iter().for_each(|&value| moments.add(value));
            assert!(!moments.is_worn(), "the pivot is one of the values");
            moments.take(outlier);
            assert!(moments.is_worn());
            assert_ne!(moments.figures(0.0)[4], of(&cents).figures(0.0)[4], "{outlier}");
            let again = Moments::of(cents[49], cents.iter().copied());
            assert!(!again.is_worn());
            for (got, want) in again.figures(0.0).into_iter().zip(of(&cents).figures(0.0)) {
                assert!((got - want).abs() <= 1e-15 * want.abs(), "{got}, not {want}");
            }
        }
    }

    /// The fourth power of a huge payment is infinite, and infinity less infinity is NaN. Comparisons
    /// with NaN are false, so the sums passed for good ones after the payment had left.
    #[test]
    fn what_was_infinite_leaves_no_nan_behind() {
        let cents: Vec<f64> = (0..50).map(|n| 20.0 + f64::from(n % 7) * 0.01).collect();
        let (newest, scanned) = (cents[49], of(&cents).figures(0.0));
        for huge in [1e74, 2f64.powi(256), -1e160, f64::MAX] {
            // The payment is the pivot, or a later one is.
            for pivot in [huge, cents[0]] {
                let mut moments = of(&[pivot, huge]);
                cents.iter().for_each(|&value| moments.add(value));
                assert!(!moments.is_worn(), "a rebuild with {huge} in the window would not help");
                moments.take(pivot);
                moments.take(huge);
                assert!(moments.is_worn(), "{huge} from {pivot}");
                let again = Moments::of(newest, cents.iter().copied());
                assert!(!again.is_worn());
                for (got, want) in again.figures(0.0).into_iter().zip(scanned) {
                    assert!((got - want).abs() <= 1e-15 * want.abs(), "{got}, not {want}");
                }
            }
        }
    }

    /// Sums that were carried on gave another kurtosis than those of a scan, in its eleventh digit:
    /// a payment of thousands had left them, and their pivot, just below the limits.
    #[test]
    fn sums_that_are_not_worn_give_what_a_scan_gives() {
        let cents: Vec<f64> = (0..50).map(|n| 20.0 + f64::from(n % 7) * 0.01).collect();
        let scanned = of(&cents).figures(0.0);
        let mut carried_on = 0;
        for pivot in (0..40).map(|n| 20.0 + 0.05 * 1.2_f64.powi(n)) {
            for outlier in (0..60).map(|n| 20.0 + 0.1 * 1.3_f64.powi(n)) {
                let mut moments = of(&[pivot]);
                cents.iter().for_each(|&value| moments.add(value));
                moments.add(outlier);
                moments.take(outlier);
                moments.take(pivot);
                if moments.is_worn() {
                    continue;
                }
                carried_on += 1;
                for (got, want) in moments.figures(0.0).into_iter().zip(scanned) {
                    let limit = 1e-15 * want.abs().max(1.0);
                    assert!((got - want).abs() <= limit, "{got}, not {want}: {pivot}, {outlier}");
                }
            }
        }
        assert!(carried_on > 100, "{carried_on}");
    }

    #[test]
    fn two_passes_give_what_sums_of_powers_give() {
        let amounts = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 12) / 100.0;
        let all: Vec<f64> = (0..5000).map(amounts).collect();
        let times: Vec<f64> = (0..5000).map(|n| 1.66e9 + amounts(n).floor()).collect();
        for values in [&all[..], &all[..3], &all[..1], &times, &times[..2], &[5.0; 9], &[]] {
            let (one, other) = (of(values).figures(0.0), super::figures_of(values, 0.0));
            assert_eq!(one[..2], other[..2], "mean and sum are the nearest floats");
            for (one, other) in one.into_iter().zip(other) {
                assert!((one - other).abs() <= 1e-12 * one.abs().max(1.0), "{one}, not {other}");
            }
        }
    }

    #[test]
    fn the_order_of_values_makes_no_difference() {
        let values: Vec<f64> =
            (0..300u32).map(|n| f64::from(n.wrapping_mul(2_654_435_761) >> 9) / 7.0).collect();
        let figures = super::figures_of(&values, 0.0);
        for turn in 1..300 {
            let mut turned = values.clone();
            turned.rotate_left(turn);
            assert_eq!(super::figures_of(&turned, 0.0), figures);
        }
    }

    #[test]
    fn figures_of_a_few_values() {
        let figures = of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).figures(0.0);
        assert_eq!(figures[..4], [5.0, 40.0, 4.0, 5.25 / 8.0]);
        assert!((figures[4] - 44.5 / 16.0).abs() < 1e-12, "{figures:?}");
    }

    #[test]
    fn seconds_of_an_epoch_have_a_variance_unless_it_is_cut_off() {
        let times = of(&[1.66e9, 1.66e9 + 60.0]);
        assert_eq!(times.figures(crate::statistics::BATCH_CUTOFF)[2], 0.0);
        assert_eq!(times.figures(crate::statistics::NOISE_CUTOFF)[2], 900.0);
    }

    /// A window that slides over a million values of very different size has the same figures as
    /// its values alone.
    #[test]
    fn a_sliding_window_does_not_drift() {
        let value = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8).powi(2) * 1e-3 + 0.01;
        let mut sliding = Moments::default();
        for n in 0..1_000_000 {
            sliding.add(value(n));
            if n >= 100 {
                sliding.take(value(n - 100));
            }
        }
        let last: Vec<f64> = (999_900..1_000_000).map(value).collect();
        assert_eq!(sliding.figures(0.0), of(&last).figures(0.0));
    }
}
