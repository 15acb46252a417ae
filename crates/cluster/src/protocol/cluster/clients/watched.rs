//! Remote clients without a connection: whether their processes live and their caches are clean.

use farrow_store::RemoteClient;

/// Pause before a client whose node gave no answer is asked about again.
pub(in crate::protocol) const AGAIN_MS: u64 = 500;

/// State of the watch of a remote client without a connection.
#[derive(Debug)]
pub(in crate::protocol) enum Watched {
    /// Its process is visible from here.
    Here,
    /// Its node is being asked.
    Asking,
    /// At this time it is checked, or its node is asked, again.
    AskAt(u64),
}

impl Watched {
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        match self {
            Self::AskAt(at_ms) => Some(*at_ms),
            Self::Here | Self::Asking => None,
        }
    }
}

/// An ended client whose writable memory is in quarantine.
#[derive(Debug)]
pub(in crate::protocol) struct Dirty {
    pub(in crate::protocol) remote_client: RemoteClient,
    /// Time at which its node is asked to clean; `None`: it is being asked.
    pub(in crate::protocol) ask_at_ms: Option<u64>,
}

impl Dirty {
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.ask_at_ms
    }
}
