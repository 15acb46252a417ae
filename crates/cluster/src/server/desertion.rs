//! When a private node ends.

use std::time::{Duration, Instant};

/// A private node that no client has joined ends after this time.
const UNJOINED: Duration = Duration::from_secs(15);

/// The end of a private node: with its last client, or, while objects have names by which the
/// next program may look for them, some time later.
#[derive(Debug)]
pub(super) struct Desertion {
    /// How long named objects are retained after the last client.
    linger: Duration,
    had_client: bool,
    /// Since when there has been no client.
    alone_since: Option<Instant>,
}

impl Desertion {
    pub(super) fn new(linger: Duration, started: Instant) -> Self {
        Self { linger, had_client: false, alone_since: Some(started) }
    }

    /// Notes whether there are clients now.
    pub(super) fn observe(&mut self, has_clients: bool) {
        self.had_client |= has_clients;
        self.alone_since = match (has_clients, self.alone_since) {
            (true, _) => None,
            (false, None) => Some(Instant::now()),
            (false, since) => since,
        };
    }

    /// When the node ends unless a client connects; `None` while there are clients.
    pub(super) fn deadline(&self, has_names: bool) -> Option<Instant> {
        let unjoined = if self.had_client { Duration::ZERO } else { UNJOINED };
        let linger = if has_names { self.linger } else { Duration::ZERO };
        Some(self.alone_since? + unjoined.max(linger))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outlive_the_last_client_for_a_while() {
        let started = Instant::now();
        let mut desertion = Desertion::new(Duration::from_secs(600), started);
        assert_eq!(desertion.deadline(false), Some(started + UNJOINED), "nobody came yet");
        desertion.observe(true);
        assert_eq!(desertion.deadline(true), None);
        desertion.observe(false);
        let alone = desertion.alone_since.unwrap();
        assert_eq!(desertion.deadline(false), Some(alone));
        assert_eq!(desertion.deadline(true), Some(alone + Duration::from_secs(600)));
        desertion.observe(false);
        assert_eq!(desertion.alone_since, Some(alone), "the time runs on");
        desertion.observe(true);
        assert_eq!(desertion.deadline(true), None, "the next program came");
    }
}
