//! Sums with twice the digits of a float.
//!
//! Moments are computed from sums of powers, with millions of additions and subtractions. With some
//! 106 bits the rounding error stays far below the last digit of the result.
//! Source: error-free transformations (Dekker 1971, Knuth TAOCP 4.2.2).

use std::ops::{Add, Div, Mul, Neg, Sub};

/// The unevaluated sum of two floats, the second at most half a unit of the first's last place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DoubleDouble {
    high: f64,
    low: f64,
}

/// Splits a float into halves whose products are exact: 2^27 + 1.
const SPLIT: f64 = 134_217_729.0;

impl DoubleDouble {
    fn of_sum(a: f64, b: f64) -> DoubleDouble {
        let high = a + b;
        let part = high - a;
        DoubleDouble { high, low: (a - (high - part)) + (b - part) }
    }

    /// As `of_sum`, if `a` has the larger magnitude.
    fn of_ordered(a: f64, b: f64) -> DoubleDouble {
        let high = a + b;
        DoubleDouble { high, low: b - (high - a) }
    }

    pub(crate) fn of_product(a: f64, b: f64) -> DoubleDouble {
        let halves = |value: f64| {
            let scaled = SPLIT * value;
            let upper = scaled - (scaled - value);
            (upper, value - upper)
        };
        let high = a * b;
        let ((a1, a2), (b1, b2)) = (halves(a), halves(b));
        DoubleDouble { high, low: ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2 }
    }

    /// The exact difference.
    pub(crate) fn of_difference(a: f64, b: f64) -> DoubleDouble {
        DoubleDouble::of_sum(a, -b)
    }

    /// The float nearest to `self - other`, or the next one.
    pub(crate) fn minus(self, other: DoubleDouble) -> f64 {
        let sum = DoubleDouble::of_sum(self.high, -other.high);
        sum.high + (sum.low + (self.low - other.low))
    }

    /// The reciprocal of a count.
    pub(crate) fn share_of(count: f64) -> DoubleDouble {
        let high = 1.0 / count;
        let whole = DoubleDouble::of_product(high, count);
        DoubleDouble::of_ordered(high, ((1.0 - whole.high) - whole.low) / count)
    }

    /// The exact product with a power of two.
    pub(crate) fn scaled(self, power: f64) -> DoubleDouble {
        DoubleDouble { high: self.high * power, low: self.low * power }
    }

    /// The value as a single float, if that is exact.
    pub(crate) fn single(self) -> Option<f64> {
        (self.low == 0.0).then_some(self.high)
    }

    /// The nearest float.
    pub(crate) fn value(self) -> f64 {
        self.high
    }
}

impl From<f64> for DoubleDouble {
    fn from(value: f64) -> DoubleDouble {
        DoubleDouble { high: value, low: 0.0 }
    }
}

impl Add for DoubleDouble {
    type Output = DoubleDouble;

    fn add(self, other: DoubleDouble) -> DoubleDouble {
        let high = DoubleDouble::of_sum(self.high, other.high);
        let low = DoubleDouble::of_sum(self.low, other.low);
        let sum = DoubleDouble::of_ordered(high.high, high.low + low.high);
        DoubleDouble::of_ordered(sum.high, sum.low + low.low)
    }
}

impl Add<f64> for DoubleDouble {
    type Output = DoubleDouble;

    fn add(self, other: f64) -> DoubleDouble {
        let sum = DoubleDouble::of_sum(self.high, other);
        DoubleDouble::of_ordered(sum.high, sum.low + self.low)
    }
}

impl Neg for DoubleDouble {
    type Output = DoubleDouble;

    fn neg(self) -> DoubleDouble {
        DoubleDouble { high: -self.high, low: -self.low }
    }
}

impl Sub for DoubleDouble {
    type Output = DoubleDouble;

    fn sub(self, other: DoubleDouble) -> DoubleDouble {
        self + -other
    }
}

impl Mul for DoubleDouble {
    type Output = DoubleDouble;

    fn mul(self, other: DoubleDouble) -> DoubleDouble {
        let product = DoubleDouble::of_product(self.high, other.high);
        let low = product.low + (self.high * other.low + self.low * other.high);
        DoubleDouble::of_ordered(product.high, low)
    }
}

impl Div<f64> for DoubleDouble {
    type Output = DoubleDouble;

    fn div(self, divisor: f64) -> DoubleDouble {
        let first = self.high / divisor;
        let rest = self - DoubleDouble::of_product(first, divisor);
        let second = rest.high / divisor;
        let rest = rest - DoubleDouble::of_product(second, divisor);
        DoubleDouble::of_ordered(first, second) + DoubleDouble::from(rest.high / divisor)
    }
}

/// A running sum with a second sum of the rounding errors (Neumaier 1974). Its dependency chain is
/// one float addition for each value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompensatedSum {
    high: f64,
    lost: f64,
}

impl CompensatedSum {
    pub(crate) fn add(&mut self, value: DoubleDouble) {
        let sum = DoubleDouble::of_sum(self.high, value.high);
        self.high = sum.high;
        self.lost += sum.low + value.low;
    }

    pub(crate) fn total(self) -> DoubleDouble {
        DoubleDouble::of_sum(self.high, self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::{CompensatedSum, DoubleDouble};

    #[test]
    fn a_running_sum_loses_nothing() {
        let mut sum = CompensatedSum::default();
        let values = (0..1000).map(|n| 1e16 / f64::from(n % 7 + 1));
        values.clone().for_each(|value| sum.add(DoubleDouble::from(value)));
        sum.add(DoubleDouble::from(1.0));
        values.for_each(|value| sum.add(DoubleDouble::from(-value)));
        assert_eq!(sum.total().value(), 1.0);
    }

    #[test]
    fn what_is_added_and_taken_again_leaves_nothing() {
        let mut sum = DoubleDouble::default();
        let values: Vec<f64> = (1..1000).map(|n| f64::from(n).powi(4) * 1e11 / 3.0).collect();
        for &value in &values {
            sum = sum + DoubleDouble::from(value) * DoubleDouble::from(0.1);
        }
        for &value in &values {
            sum = sum - DoubleDouble::from(value) * DoubleDouble::from(0.1);
        }
        assert!(sum.value().abs() < 1e-5, "{sum:?} of sums near 1e25");
    }

    #[test]
    fn a_quotient_times_its_divisor_is_the_dividend() {
        let dividend = DoubleDouble::from(1.0) + DoubleDouble::from(1e-20);
        let again = (dividend / 3.0) * DoubleDouble::from(3.0) - dividend;
        assert!(again.value().abs() < 1e-31, "{again:?}");
    }
}
