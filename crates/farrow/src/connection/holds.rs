//! Objects of a session's region: searches, holds, and restores of spilled ones.

use std::time::{Duration, Instant};

use farrow_memory::Span;
use farrow_store::{Entry, Held, ObjectId, StoreError, Whereabouts};
use farrow_wire::link::{Notification, confused};
use farrow_wire::{BootTime, ReplyBody, RequestBody, span};

use crate::clock::{deadline_after, millis, wall_clock_ns};
use crate::connection::session::Session;
use crate::error::{Error, named};
use crate::interrupt::pause;
use crate::key::ObjectKey;
use crate::lock::lock;

/// Uses of an object within this time count as one.
const USE_GRAIN_NS: u64 = 1_000_000;

/// Attempts to hold a spilled object without a pause: it may leave memory again between its restore
/// and the hold. Further ones follow until the timeout of the client.
const RETURNS_AT_ONCE: u32 = 16;

/// Pause before each further attempt.
const RETURN_PAUSE: Duration = Duration::from_millis(1);

/// A file may be long and its disk slow. The node itself gives up after a minute.
const RESTORE_PATIENCE: Duration = Duration::from_secs(65);

/// The reason of a wait for another thread, in errors.
const WAIT_FOR_BLOCK: &str = "a page of holds, which another thread requests";

impl Session {
    /// Finds an object, restores it if necessary, and holds it; `None` if there is no such object.
    pub(crate) fn hold(&self, target: &ObjectKey) -> Result<Option<Held>, Error> {
        let began = Instant::now();
        for attempt in 1.. {
            if let Some(held) = self.hold_here(target)? {
                return Ok(Some(held));
            }
            match self.reader.whereabouts(target.store()).map_err(named)? {
                Whereabouts::Nowhere => return Ok(None),
                Whereabouts::InMemory if self.is_outdated(target)? => return Ok(None),
                Whereabouts::InMemory => {}
                // If the object was deleted meanwhile, its name may have a new object: look again.
                Whereabouts::Away(id) => self.restore(id)?,
            }
            if attempt >= RETURNS_AT_ONCE {
                if began.elapsed() >= self.timeout {
                    break;
                }
                pause(RETURN_PAUSE)?;
            }
        }
        let what = format!("object {target}, which leaves memory again and again");
        Err(Error::Timeout { what, waited_ms: millis(began.elapsed()) })
    }

    /// Whether there is such an object, in memory or not.
    pub(crate) fn has(&self, target: &ObjectKey) -> Result<bool, Error> {
        self.check()?;
        match self.reader.whereabouts(target.store()).map_err(named)? {
            Whereabouts::Nowhere => Ok(false),
            Whereabouts::InMemory => Ok(!self.is_outdated(target)?),
            Whereabouts::Away(_) => Ok(true),
        }
    }

    /// Whether the only local copy of an object is a replica that may be outdated.
    fn is_outdated(&self, target: &ObjectKey) -> Result<bool, Error> {
        let found = self.reader.lookup(target.store()).map_err(named)?;
        found.map_or(Ok(false), |entry| Ok(!self.is_current(&entry)?))
    }

    /// Whether an object is spilled, or moving to or from memory.
    pub(crate) fn is_away(&self, target: &ObjectKey) -> Result<bool, Error> {
        let place = self.reader.whereabouts(target.store()).map_err(named)?;
        Ok(matches!(place, Whereabouts::Away(_)))
    }

    /// Restores an object, unless it is deleted.
    fn restore(&self, id: ObjectId) -> Result<(), Error> {
        let deadline = deadline_after(self.timeout.max(RESTORE_PATIENCE));
        match self.call_until(RequestBody::Restore { id: id.into() }, deadline) {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Finds an object in memory and holds it; `None` if it is not there. Sends messages only for
    /// pages of holds.
    pub(crate) fn hold_here(&self, target: &ObjectKey) -> Result<Option<Held>, Error> {
        self.hold_here_at(target, wall_clock_ns())
    }

    /// As [`Self::hold_here`], with the current time as an argument.
    pub(crate) fn hold_here_at(
        &self,
        target: &ObjectKey,
        now_ns: u64,
    ) -> Result<Option<Held>, Error> {
        self.check()?;
        let held = self.with_hold_blocks(|| self.reader.hold(&self.holds, target.store()))?;
        self.used_now(held, now_ns)
    }

    /// As [`Self::hold_here_at`], without any message: also `None` if a page of holds is missing.
    pub(crate) fn hold_by_loads(
        &self,
        target: &ObjectKey,
        now_ns: u64,
    ) -> Result<Option<Held>, Error> {
        self.check()?;
        match self.reader.hold(&self.holds, target.store()) {
            Err(StoreError::HoldsExhausted { .. }) => Ok(None),
            held => self.used_now(held.map_err(named)?, now_ns),
        }
    }

    fn used_now(&self, held: Option<Held>, now_ns: u64) -> Result<Option<Held>, Error> {
        let Some(entry) = held.as_ref().map(Held::entry) else {
            return Ok(None);
        };
        if !self.is_current(entry)? {
            return Ok(None);
        }
        self.touch(entry.id, now_ns);
        Ok(held)
    }

    /// Records a use of an object.
    pub(crate) fn touch(&self, id: ObjectId, now_ns: u64) {
        self.uses.touch(id.slot(), now_ns, USE_GRAIN_NS);
    }

    /// As [`Self::hold_sealed`], for an object of one block that this process wrote entirely.
    pub(crate) fn hold_written(&self, id: ObjectId, primary: Span) -> Result<Held, Error> {
        if let Some(entry) = self.lookup(&ObjectKey::Id(id))?
            && entry.primary.offset == primary.offset
        {
            self.reader.note_written(&entry);
        }
        self.hold_sealed(id)
    }

    /// Holds an object that this client has just sealed and whose memory it continues to use, and
    /// confirms that to the node, which retains the object until then. Another client may have
    /// deleted the object meanwhile: its memory comes back with the release of this hold.
    pub(crate) fn hold_sealed(&self, id: ObjectId) -> Result<Held, Error> {
        let held = match self.hold(&ObjectKey::Id(id))? {
            None => self.with_hold_blocks(|| self.reader.hold_retained(&self.holds, id))?,
            held => held,
        };
        let held = held.ok_or_else(|| Error::no_object(id))?;
        self.confirm(id)?;
        Ok(held)
    }

    /// Reports that this client holds an object that it sealed, or does not use it.
    pub(crate) fn confirm(&self, id: ObjectId) -> Result<(), Error> {
        let ids = vec![id.into()];
        if !self.notify(Notification::Confirm(ids.clone())) {
            // The last daemon may have handed over that this confirmation is outstanding.
            self.call(RequestBody::Confirm { ids })?;
        }
        Ok(())
    }

    /// Asks the node for pages of holds until there is one for this hold.
    fn with_hold_blocks<T>(&self, hold: impl Fn() -> Result<T, StoreError>) -> Result<T, Error> {
        loop {
            match hold() {
                Err(StoreError::HoldsExhausted { slots, .. }) => self.add_hold_block(slots)?,
                other => return other.map_err(named),
            }
        }
    }

    /// Releases a hold.
    pub(crate) fn release(&self, held: Held) {
        let id = held.entry().id;
        drop(held);
        self.released(id);
    }

    /// Follows the release of a hold. If the object was deleted meanwhile, the node is asked to
    /// reclaim it.
    pub(crate) fn released(&self, id: ObjectId) {
        if self.is_own_process() && matches!(self.reader.is_there(id), Ok(false)) {
            self.notify(Notification::Reclaim);
        }
    }

    pub(crate) fn lookup(&self, target: &ObjectKey) -> Result<Option<Entry>, Error> {
        self.check()?;
        let found = self.reader.lookup(target.store()).map_err(named)?;
        found.map_or(Ok(None), |entry| Ok(self.is_current(&entry)?.then_some(entry)))
    }

    /// Whether an object is known to exist. Once this node's lease has expired, the original of a
    /// replica may have been deleted without this node's knowledge.
    pub(crate) fn is_current(&self, entry: &Entry) -> Result<bool, Error> {
        Ok(!entry.is_replica || BootTime::now().as_nanos() < self.reader.replicas_until()?)
    }

    /// Whether an object may be here: an id names the region of its object.
    pub(crate) fn may_have(&self, target: &ObjectKey) -> bool {
        !matches!(target, ObjectKey::Id(id) if id.region().0 != self.region_uid())
    }

    /// Adds a page for holds, unless another thread got one since `slots` were counted. The caller
    /// tries again in any case.
    pub(crate) fn add_hold_block(&self, slots: u64) -> Result<(), Error> {
        let deadline = deadline_after(self.timeout);
        let _one = self.hold_blocks.enter(WAIT_FOR_BLOCK, deadline)?;
        let mut late = {
            let mut request = lock(&self.hold_request);
            if request.slots > slots {
                return Ok(());
            }
            request.late.take()
        };
        let answer = self.call_after_late(&mut late, deadline, RequestBody::HoldBlock, deadline);
        lock(&self.hold_request).late = late;
        let block = match answer? {
            ReplyBody::HoldBlock(block) => span(block),
            other => return Err(confused(&other).into()),
        };
        // The page of a late reply may be one that the next daemon has named: the caller asks
        // again.
        if self.holds.add_block(block)? {
            lock(&self.hold_request).slots = slots + 1;
        }
        Ok(())
    }
}
