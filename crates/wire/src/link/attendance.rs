//! Work that is left after calls have ended: unsent requests, and late replies to undo.

use std::sync::Arc;
use std::time::Instant;

use farrow_memory::sync::Ordering;
use rustix::event::PollFlags;

use super::{Link, SLICE, lock};

/// The right to finish a link's work in the background; one thread at a time has it.
#[derive(Debug)]
pub struct Attendance {
    link: Arc<Link>,
}

impl Link {
    /// The right to finish what is left, for a thread of the caller. `None`: nothing is left, or a
    /// thread has the right already. To be asked for after the work was left.
    pub fn attendance(self: &Arc<Self>) -> Option<Attendance> {
        let is_due = self.has_work() && !self.is_attended.swap(true, Ordering::AcqRel);
        is_due.then(|| Attendance { link: Arc::clone(self) })
    }

    fn has_work(&self) -> bool {
        let inbox = lock(&self.receiving);
        if inbox.dead.is_some() {
            return false;
        }
        let (has_abandoned, may_send) = (inbox.has_abandoned(), inbox.unsendable.is_none());
        drop(inbox);
        has_abandoned || (may_send && !lock(&self.sending).is_empty())
    }
}

impl Attendance {
    /// Writes what is unsent and reads what is late, until `deadline`. `None`: nothing is left.
    #[must_use]
    pub fn run(self, deadline: Instant) -> Option<Self> {
        while self.link.has_work() {
            if Instant::now() >= deadline {
                return Some(self);
            }
            self.work_once(deadline);
        }
        // Work that was left before the right is given up finds it taken.
        let link = Arc::clone(&self.link);
        drop(self);
        link.attendance()
    }

    fn work_once(&self, deadline: Instant) {
        // A daemon that cannot write its replies reads no requests.
        let has_input = !self.link.write_rest()
            && self.link.wait_for(PollFlags::IN | PollFlags::OUT, deadline).contains(PollFlags::IN);
        let inbox = lock(&self.link.receiving);
        if inbox.has_reader {
            let left = deadline.saturating_duration_since(Instant::now()).min(SLICE);
            drop(self.link.wait_for_reader(inbox, left));
        } else if has_input || inbox.has_abandoned() {
            drop(self.link.read_for_all(inbox));
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.link.is_attended.store(false, Ordering::Release);
    }
}
