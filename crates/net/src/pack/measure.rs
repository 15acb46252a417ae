//! How often a home compresses a sample.

/// Requests without a sample after one that did not pay, at most: then a sample costs less than a
/// thousandth of the transfer.
const SKIPPED_MAX: u32 = 31;

/// Takes fewer samples where they do not pay.
#[derive(Debug, Default)]
pub(crate) struct SamplePace {
    /// Requests that pass before the next sample.
    left: u32,
    /// Requests that passed before the last one.
    skipped: u32,
}

impl SamplePace {
    /// Whether a sample of this request is due. Otherwise it is one of those that pass.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// Notes whether a sample paid. After one that did, the next request has one too.
    pub(crate) fn on_sample(&mut self, pays: bool) {
        self.skipped = if pays { 0 } else { (2 * self.skipped + 1).min(SKIPPED_MAX) };
        self.left = self.skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_do_not_pay_become_rare_and_one_that_pays_makes_them_frequent() {
        let mut pace = SamplePace::default();
        let mut samples = Vec::new();
        for request in 0..200 {
            if pace.is_due() {
                samples.push(request);
                pace.on_sample(false);
            }
        }
        assert_eq!(samples, [0, 2, 6, 14, 30, 62, 94, 126, 158, 190]);
        while !pace.is_due() {}
        pace.on_sample(true);
        assert!(
            pace.is_due() && {
                pace.on_sample(true);
                pace.is_due()
            }
        );
    }
}
