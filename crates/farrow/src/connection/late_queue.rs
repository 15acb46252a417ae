//! What is left of calls that have ended: requests whose answers are late, notifications that the
//! node does not read yet. One thread of the client waits for the node, so that neither memory nor
//! holds wait for the next call.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use farrow_wire::link::{Attendance, Link, Notification, Notified};

use crate::lock::lock;

/// The thread waits for one piece of work this long at a time.
const TURN: Duration = Duration::from_millis(100);

/// Most pieces of work: as many as calls that end without an answer before the node answers the
/// first. The others wait for the next connection.
const WORK_MAX: usize = 4096;

/// Work that waits for the node.
pub(crate) trait LateWork: Debug + Send {
    /// Waits for the node until `deadline`, and meanwhile retains the connection only. Returns what
    /// is left.
    fn turn(self: Box<Self>, deadline: Instant) -> Option<Box<dyn LateWork>>;
}

/// The work of one client.
#[derive(Debug, Default)]
pub(crate) struct LateQueue(Arc<Mutex<LateState>>);

#[derive(Debug, Default)]
struct LateState {
    work: VecDeque<Box<dyn LateWork>>,
    has_thread: bool,
}

impl LateQueue {
    pub(crate) fn add(&self, work: Box<dyn LateWork>) {
        let mut state = lock(&self.0);
        if state.work.len() >= WORK_MAX {
            return tracing::warn!(requests = WORK_MAX, "too many requests without an answer");
        }
        state.work.push_back(work);
        self.start_thread(&mut state);
    }

    /// Sends a notification. If the node does not read it now, the thread writes it later. False:
    /// the connection is closed.
    pub(crate) fn notify(&self, link: &Arc<Link>, notification: Notification) -> bool {
        match link.notify(notification) {
            Notified::Written => true,
            Notified::Queued => {
                self.attend(link);
                true
            }
            Notified::Closed => false,
        }
    }

    /// Has the thread finish what is left on a connection: to be called after a call ended early.
    pub(crate) fn attend(&self, link: &Arc<Link>) {
        match link.attendance() {
            Some(attendance) => self.add(Box::new(attendance)),
            None => self.start_thread(&mut lock(&self.0)),
        }
    }

    /// Starts the thread if there is work and no thread.
    fn start_thread(&self, state: &mut LateState) {
        if state.has_thread || state.work.is_empty() {
            return;
        }
        let queue = Arc::downgrade(&self.0);
        let thread = std::thread::Builder::new().name("farrow-late".into());
        match thread.spawn(move || while take_turn(&queue) {}) {
            Ok(_) => state.has_thread = true,
            // The next work tries again; the next connection shows the outcome in any case.
            Err(error) => tracing::warn!(%error, "no thread waits for a late answer"),
        }
    }
}

/// Waits for the first piece of work for a short time. False: nothing is left to wait for.
fn take_turn(queue: &Weak<Mutex<LateState>>) -> bool {
    let work = {
        let Some(queue) = queue.upgrade() else {
            return false;
        };
        let mut state = lock(&queue);
        let work = state.work.pop_front();
        state.has_thread = work.is_some();
        work
    };
    let Some(work) = work else {
        return false;
    };
    let Some(left) = work.turn(Instant::now() + TURN) else {
        return true;
    };
    let Some(queue) = queue.upgrade() else {
        return false;
    };
    lock(&queue).work.push_back(left);
    true
}

impl LateWork for Attendance {
    fn turn(self: Box<Self>, deadline: Instant) -> Option<Box<dyn LateWork>> {
        self.run(deadline).map(|left| Box::new(left) as Box<dyn LateWork>)
    }
}
