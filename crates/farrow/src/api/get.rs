//! Searches and waits for objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_arrow::{ArrowObject, Rebuilt};
use farrow_wire::link::confused;
use farrow_wire::{BATCH_ITEMS_MAX, PartSpec, ReplyBody, RequestBody, WAIT_MS_MAX};

use crate::api::Client;
use crate::clock::{deadline_after, millis, wall_clock_ns};
use crate::cluster::lookup::RemoteLookup;
use crate::connection::session::Session;
use crate::error::Error;
use crate::interrupt;
use crate::key::ObjectKey;
use crate::lazy::{self, FoundLazy};
use crate::objects::held_bytes::{self, BatchBytes, BatchItem};
use crate::objects::object::Object;

/// Pauses between searches for an id, which the node does not report: it is found at once unless it
/// is on its way between nodes, or from a file. The last one costs a waiting client ten messages a
/// second.
const ID_PAUSE_FIRST: Duration = Duration::from_millis(1);
const ID_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Pause after a name that was sealed and deleted before it was found.
const NAME_PAUSE: Duration = Duration::from_millis(1);

/// The result of [`Client::get_lazy`].
#[derive(Debug)]
pub enum LazyValue {
    /// All of the object is in memory here.
    Object(Object),
    /// Its pages are brought when they are first read.
    Pages(Rebuilt),
}

impl Client {
    /// Finds and holds a sealed object. Sends no message if the object is in memory here. Otherwise
    /// waits up to `timeout` for a name to be sealed.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] with a zero timeout, else [`Error::Timeout`]; [`Error::NodeLost`] and
    /// [`Error::NodeUnreachable`] name the node that has the object, or may have it.
    pub fn get(&self, target: &ObjectKey, timeout: Duration) -> Result<Object, Error> {
        let look = || self.get_now(target);
        self.get_by(target, timeout, || self.nodes().despite_moves(look))
    }

    /// Finds some columns and rows of a table, record batch or other Arrow object, as [`Self::get`]
    /// does. If the object's memory is not mapped here, only the part is transferred, once for all
    /// processes of the machine. A part consists of the selected rows of each selected column, with
    /// the strings and children that they use. Dictionaries are transferred whole, and values of
    /// which a cut would save less than 64 KiB.
    ///
    /// # Errors
    ///
    /// As [`Self::get`]; [`Error::InvalidArgument`] for an unknown or ambiguous column, and for an
    /// object without columns or rows.
    pub fn get_part(
        &self,
        target: &ObjectKey,
        part: &PartSpec,
        timeout: Duration,
    ) -> Result<ArrowObject, Error> {
        let look = || self.get_part_now(target, part);
        self.get_by(target, timeout, || self.nodes().despite_moves(look))
    }

    /// As [`Self::get`], without the bytes of an object of a node whose memory is not mapped: each
    /// page is brought when it is first read, once for all processes of the machine. Values of
    /// other objects, of less than 128 KiB and of plain bytes are those of [`Self::get`].
    ///
    /// A read of a page that can no longer be brought, because its node is lost, ends with the
    /// signal SIGBUS, or in a system call with `EFAULT`. [`crate::fetch`] brings pages in advance
    /// and returns an error instead. A forked child that reads the value gets SIGSEGV.
    ///
    /// # Errors
    ///
    /// As [`Self::get`]; [`Error::PermissionDenied`] if neither this process nor its node may serve
    /// page faults inside system calls; [`Error::NoRoom`] if the node has no room for all pages.
    pub fn get_lazy(&self, target: &ObjectKey, timeout: Duration) -> Result<LazyValue, Error> {
        let look = || self.get_lazy_now(target);
        self.get_by(target, timeout, || self.nodes().despite_moves(look))
    }

    fn get_lazy_now(&self, target: &ObjectKey) -> Result<Option<LazyValue>, Error> {
        let object = |session: &Arc<Session>, held| Object::new(session, held);
        if let Some(held) = self.session().hold(target)? {
            return Ok(Some(LazyValue::Object(object(self.session(), held)?)));
        }
        self.nodes().settled(target, || {
            let look = |session: &Arc<Session>| {
                let held = session.hold(target)?;
                held.map(|held| object(session, held).map(LazyValue::Object)).transpose()
            };
            match self.nodes().first(self.session(), target, look)? {
                RemoteLookup::Here(found) => Ok(Some(found)),
                RemoteLookup::Nowhere => Ok(None),
                RemoteLookup::Unknown(error) => Err(error),
                RemoteLookup::ByNet(unseen) => match lazy::open(self.nodes().own(), target)? {
                    FoundLazy::Nothing => {
                        self.nodes().at_unseen(unseen, target)?.map_or(Ok(None), Err)
                    }
                    FoundLazy::Value(value) => Ok(Some(LazyValue::Pages(value))),
                    // It may be evicted before it is held.
                    FoundLazy::Replica => {
                        self.get_now(target).map(|found| found.map(LazyValue::Object))
                    }
                },
            }
        })
    }

    fn get_by<T>(
        &self,
        target: &ObjectKey,
        timeout: Duration,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if timeout.is_zero() {
            return Err(Error::no_object(target.store()));
        }
        let started = Instant::now();
        let deadline = deadline_after(timeout);
        let mut id_pause = ID_PAUSE_FIRST;
        loop {
            self.wait_until(std::slice::from_ref(target), 1, deadline)?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let waited_ms = millis(started.elapsed());
                return Err(Error::Timeout { what: format!("object {target}"), waited_ms });
            }
            let pause = match target {
                ObjectKey::Name(_) => NAME_PAUSE,
                ObjectKey::Id(_) => id_pause,
            };
            interrupt::pause(pause.min(left))?;
            id_pause = (id_pause * 2).min(ID_PAUSE_MAX);
        }
    }

    /// As [`Self::get`] for each target, within one `timeout`. Missing targets are waited for with
    /// one message.
    ///
    /// # Errors
    ///
    /// The error of the first target that fails.
    pub fn get_many(&self, targets: &[ObjectKey], timeout: Duration) -> Result<Vec<Object>, Error> {
        let deadline = deadline_after(timeout);
        // One clock reading for all: they are used at the same time.
        let now_ns = wall_clock_ns();
        let get_now = |target: &ObjectKey| match self.get_here_at(target, now_ns)? {
            Some(object) => Ok(Some(object)),
            None => self.nodes().despite_moves(|| self.get_now(target)),
        };
        let found: Vec<Option<Object>> = targets.iter().map(get_now).collect::<Result<_, _>>()?;
        let missing: Vec<ObjectKey> = targets
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.is_none())
            .map(|(target, _)| target.clone())
            .collect();
        if !missing.is_empty() && !timeout.is_zero() {
            self.wait_until(&missing, missing.len(), deadline)?;
        }
        // A target still missing is looked up once more, and then times out.
        let least = Duration::from_millis(1).min(timeout);
        let left = || deadline.saturating_duration_since(Instant::now()).max(least);
        let all = targets.iter().zip(found);
        all.map(|(target, found)| found.map_or_else(|| self.get(target, left()), Ok)).collect()
    }

    /// As [`Self::get_many`], at a lower cost for small plain-bytes objects.
    ///
    /// # Errors
    ///
    /// As [`Self::get_many`].
    pub fn get_batch(
        &self,
        targets: &[ObjectKey],
        timeout: Duration,
    ) -> Result<Vec<BatchItem>, Error> {
        let now_ns = wall_clock_ns();
        let mut found = held_bytes::get(self.session(), targets, now_ns)?;
        self.get_batch_elsewhere(targets, now_ns, &mut found)?;
        let is_left =
            |(target, found): (&ObjectKey, &Option<_>)| found.is_none().then(|| target.clone());
        let left: Vec<ObjectKey> = targets.iter().zip(&found).filter_map(is_left).collect();
        let mut left = match left.is_empty() {
            true => Vec::new().into_iter(),
            false => self.get_many(&left, timeout)?.into_iter(),
        };
        let missing = || Error::Protocol("an object was lost on its way to its place".into());
        let one = |found: Option<BatchBytes>| match found {
            Some(bytes) => Ok(BatchItem::Bytes(bytes)),
            None => left.next().map(BatchItem::Object).ok_or_else(missing),
        };
        found.into_iter().map(one).collect()
    }

    fn get_now(&self, target: &ObjectKey) -> Result<Option<Object>, Error> {
        if let Some(held) = self.session().hold(target)? {
            return Object::new(self.session(), held).map(Some);
        }
        let found = self.hold_elsewhere(target, None)?;
        found.map(|found| Object::new(&found.session, found.held)).transpose()
    }

    fn get_part_now(
        &self,
        target: &ObjectKey,
        part: &PartSpec,
    ) -> Result<Option<ArrowObject>, Error> {
        if let Some(held) = self.session().hold(target)? {
            return Object::new(self.session(), held)?.rebuild_part(part).map(Some);
        }
        let Some(found) = self.hold_elsewhere(target, Some(part))? else { return Ok(None) };
        let object = Object::new(&found.session, found.held)?;
        let arrow = if found.is_part { object.rebuild_arrow() } else { object.rebuild_part(part) };
        arrow.map(Some)
    }

    /// Finds and holds an object in memory. Sends no message. `None`: there is no such object, or
    /// [`Client::get`] would have to ask the node for it.
    ///
    /// # Errors
    ///
    /// The object or the region is damaged.
    pub fn get_here(&self, target: &ObjectKey) -> Result<Option<Object>, Error> {
        self.get_here_at(target, wall_clock_ns())
    }

    fn get_here_at(&self, target: &ObjectKey, now_ns: u64) -> Result<Option<Object>, Error> {
        let own = self.session();
        if own.may_have(target)
            && let Some(held) = own.hold_by_loads(target, now_ns)?
        {
            return Object::new(own, held).map(Some);
        }
        let found = self.nodes().hold_by_loads(own, target, now_ns)?;
        found.map(|(session, held)| Object::new(&session, held)).transpose()
    }

    /// Finds and holds small plain-bytes objects, those that are not yet `found`, in the memory of
    /// nodes at which this client already has a session. Sends messages only for pages of holds.
    fn get_batch_elsewhere(
        &self,
        targets: &[ObjectKey],
        now_ns: u64,
        found: &mut [Option<BatchBytes>],
    ) -> Result<(), Error> {
        let mut left: Vec<usize> =
            (0..found.len()).filter(|index| matches!(found.get(*index), Some(None))).collect();
        if left.is_empty() {
            return Ok(());
        }
        let usable = self.nodes().usable()?;
        for session in self.nodes().except(&usable, self.session()) {
            let is_possible = |index: &&usize| {
                targets.get(**index).is_some_and(|target| session.may_have(target))
            };
            let possible: Vec<usize> = left.iter().filter(is_possible).copied().collect();
            if possible.is_empty() {
                continue;
            }
            let some: Vec<ObjectKey> =
                possible.iter().filter_map(|index| targets.get(*index).cloned()).collect();
            for (index, one) in possible.into_iter().zip(held_bytes::get(session, &some, now_ns)?) {
                if let Some(place) = found.get_mut(index) {
                    *place = one;
                }
            }
            left.retain(|index| matches!(found.get(*index), Some(None)));
        }
        Ok(())
    }

    /// Waits until `count` of the objects are sealed or the timeout expires, and returns which are
    /// sealed. Only names can be waited for: an id exists from its seal on.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended; [`Error::NodeUnreachable`] when one of the
    /// objects is, or is sealed, in memory that cannot be mapped here.
    pub fn wait(
        &self,
        targets: &[ObjectKey],
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<bool>, Error> {
        let ready = targets.iter().map(|target| self.contains(target));
        let ready: Vec<bool> = ready.collect::<Result<_, _>>()?;
        let have = ready.iter().filter(|ready| **ready).count();
        if have >= count.min(targets.len()) || timeout.is_zero() {
            return Ok(ready);
        }
        self.wait_until(targets, count, deadline_after(timeout))
    }

    pub(crate) fn wait_until(
        &self,
        targets: &[ObjectKey],
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<bool>, Error> {
        if targets.len() > BATCH_ITEMS_MAX {
            return Err(Error::TooMany {
                what: "objects to wait for".into(),
                max: BATCH_ITEMS_MAX as u64,
            });
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout_ms = millis(left).min(WAIT_MS_MAX);
            let body = RequestBody::Wait {
                targets: targets.iter().map(ObjectKey::wire).collect(),
                count: u32::try_from(count).unwrap_or(u32::MAX),
                timeout_ms,
            };
            // The node enforces the timeout; its answer may take a little longer.
            let patience = deadline.checked_add(self.session().timeout).unwrap_or(deadline);
            let ready = match self.session().call_until(body, patience)? {
                ReplyBody::Ready(ready) => ready,
                other => return Err(confused(&other).into()),
            };
            let have = ready.iter().filter(|ready| **ready).count();
            if have >= count.min(targets.len()) || timeout_ms < WAIT_MS_MAX {
                return Ok(ready);
            }
        }
    }
}
