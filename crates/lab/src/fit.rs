//! A linear cost model: a fixed cost per call and a cost per line.

/// `fixed_ns + line_ns * lines`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// Nanoseconds per call, never below zero.
    pub fixed_ns: f64,
    /// Nanoseconds per line, never below zero.
    pub line_ns: f64,
    /// Root mean square of the relative errors over the points it was fitted to.
    pub error: f64,
}

impl CostModel {
    /// Predicted nanoseconds for a number of lines.
    #[must_use]
    pub fn ns(&self, lines: f64) -> f64 {
        self.fixed_ns + self.line_ns * lines
    }
}

/// Fits the model to (lines, nanoseconds) by least squares of relative errors, so that one line has
/// the same weight as a gigabyte. `None` if there are fewer than two different numbers of lines, or
/// if any number is not finite and above zero.
#[must_use]
pub fn fit(points: &[(f64, f64)]) -> Option<CostModel> {
    let is_usable = |number: f64| number.is_finite() && number > 0.0;
    if !points.iter().all(|(lines, ns)| is_usable(*lines) && is_usable(*ns)) {
        return None;
    }
    // Each error is divided by its ns: rows (1/ns, lines/ns) . (fixed, line) = 1.
    let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (lines, ns) in points {
        let (one, slope) = (1.0 / ns, lines / ns);
        aa += one * one;
        ab += one * slope;
        bb += slope * slope;
        a += one;
        b += slope;
    }
    let determinant = aa * bb - ab * ab;
    if points.len() < 2 || determinant <= f64::EPSILON * aa * bb {
        return None;
    }
    let mut fixed_ns = (a * bb - b * ab) / determinant;
    let mut line_ns = (aa * b - ab * a) / determinant;
    // If the unconstrained solution is outside the quadrant, the best one is on its edge.
    if fixed_ns < 0.0 {
        (fixed_ns, line_ns) = (0.0, b / bb);
    } else if line_ns < 0.0 {
        (fixed_ns, line_ns) = (a / aa, 0.0);
    }
    let mut model = CostModel { fixed_ns, line_ns, error: 0.0 };
    let squares: f64 = points.iter().map(|(lines, ns)| (model.ns(*lines) / ns - 1.0).powi(2)).sum();
    model.error = (squares / points.len() as f64).sqrt();
    Some(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_model_is_found_again() {
        for (fixed, line) in [(250.0, 3.3), (0.0, 140.0), (1000.0, 0.01), (90.0, 0.0)] {
            let points: Vec<(f64, f64)> = (0..24)
                .map(|shift| f64::from(1u32 << shift))
                .map(|lines| (lines, fixed + line * lines))
                .collect();
            let model = fit(&points).unwrap();
            assert!((model.fixed_ns - fixed).abs() < 1e-3 * (fixed + 1.0), "{model:?}");
            assert!((model.line_ns - line).abs() < 1e-3 * (line + 1e-3), "{model:?}");
            assert!(model.error < 1e-3, "{model:?}");
            assert!((model.ns(100.0) / (fixed + 100.0 * line) - 1.0).abs() < 1e-3);
        }
    }

    #[test]
    fn noise_moves_it_little_and_is_reported() {
        let points: Vec<(f64, f64)> = (0..20)
            .map(|shift| {
                let lines = f64::from(1u32 << shift);
                let noise = if shift % 2 == 0 { 1.1 } else { 0.9 };
                (lines, (200.0 + 5.0 * lines) * noise)
            })
            .collect();
        let model = fit(&points).unwrap();
        assert!((0.8..1.2).contains(&(model.fixed_ns / 200.0)), "{model:?}");
        assert!((0.8..1.2).contains(&(model.line_ns / 5.0)), "{model:?}");
        assert!((0.08..0.12).contains(&model.error), "{model:?}");
    }

    #[test]
    fn neither_number_is_ever_below_zero() {
        let less_than_linear = fit(&[(1.0, 100.0), (10.0, 90.0), (100.0, 80.0)]).unwrap();
        assert!(less_than_linear.line_ns == 0.0 && less_than_linear.fixed_ns > 80.0);
        let more_than_linear = fit(&[(1.0, 1.0), (10.0, 40.0), (100.0, 900.0)]).unwrap();
        assert!(more_than_linear.fixed_ns == 0.0 && more_than_linear.line_ns > 1.0);
    }

    #[test]
    fn too_little_is_no_model() {
        for points in [
            &[][..],
            &[(1.0, 5.0)],
            &[(4.0, 5.0), (4.0, 6.0)],
            &[(1.0, 5.0), (2.0, 0.0)],
            &[(0.0, 5.0), (2.0, 6.0)],
            &[(1.0, f64::NAN), (2.0, 6.0)],
        ] {
            assert_eq!(fit(points), None, "{points:?}");
        }
    }
}
