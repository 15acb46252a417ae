//! A change of the memory that the node lends, and who waits for it.

use std::sync::Arc;

use farrow_memory::sync;

use crate::protocol::context::ReplyTo;
use crate::protocol::identity::SessionId;

/// The thread that touches pages before their first use.
#[derive(Debug, Clone)]
pub(crate) struct Preparation {
    pub(crate) should_go_on: Arc<sync::AtomicBool>,
    pub(crate) is_running: Arc<sync::AtomicBool>,
}

impl Preparation {
    /// Ends the thread soon: it would touch pages that were given back. Returns whether it still
    /// runs.
    pub(in crate::protocol) fn stop(&self) -> bool {
        self.should_go_on.store(false, sync::Ordering::Relaxed);
        self.is_running.load(sync::Ordering::Acquire)
    }
}

/// A change under way.
#[derive(Debug)]
pub(in crate::protocol) struct ResizeJob {
    pub(in crate::protocol) target: u64,
    pub(in crate::protocol) waiters: Vec<ReplyTo>,
    /// When it looks next.
    pub(in crate::protocol) at_ms: u64,
    /// When it ends without progress; `None` before its first piece.
    pub(in crate::protocol) until_ms: Option<u64>,
}

/// Changes of the memory that the node lends.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Resize {
    pub(in crate::protocol) job: Option<ResizeJob>,
    pub(in crate::protocol) sweep_at_ms: Option<u64>,
    pub(in crate::protocol) preparation: Option<Preparation>,
}

impl Resize {
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let job = self.job.as_ref().map(|job| job.at_ms);
        job.into_iter().chain(self.sweep_at_ms).min()
    }

    /// Forgets one request. The change goes on.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let Some(job) = &mut self.job else { return false };
        let before = job.waiters.len();
        job.waiters.retain(|waiter| *waiter != ReplyTo { session, seq });
        job.waiters.len() < before
    }

    /// Forgets the requests of an ended session. The change goes on.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        if let Some(job) = &mut self.job {
            job.waiters.retain(|waiter| waiter.session != session);
        }
    }

    /// Takes out all waiting requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let waiters = self.job.as_mut().map(|job| std::mem::take(&mut job.waiters));
        waiters.into_iter().flatten().map(|to| (to.session, to.seq)).collect()
    }
}
