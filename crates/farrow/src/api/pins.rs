//! Pins and eviction.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use farrow_wire::link::confused;
use farrow_wire::{EvictedReport, MemberInfo, ReplyBody, RequestBody, WireError};

use crate::api::Client;
use crate::clock::millis;
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;
use crate::objects::delete::CHANGES_IN_MESSAGE;
use crate::objects::object::Object;

/// Attempts to find an object that moves between nodes.
const MOVES_MAX: u32 = 3;

/// Objects of a node whose memory is not mapped.
type FarTargets = (MemberInfo, Vec<ObjectKey>);

impl Client {
    /// Pins objects: they are never evicted until they are unpinned by [`Client::unpin`] or
    /// deleted, or the region ends. Pinning one twice changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] names the first missing object, [`Error::PermissionDenied`] the first of
    /// another namespace; the others are pinned.
    pub fn pin(&self, targets: &[ObjectKey]) -> Result<(), Error> {
        self.set_pins(targets, true)
    }

    /// Removes pins, including those of other clients.
    ///
    /// # Errors
    ///
    /// As [`Client::pin`].
    pub fn unpin(&self, targets: &[ObjectKey]) -> Result<(), Error> {
        self.set_pins(targets, false)
    }

    /// Evicts objects of this client's namespace, or spills them if the node is set up to, least
    /// recently used first, until `bytes` more are free. Objects that are held, pinned or being
    /// written stay. The report counts the evicted objects and bytes and, if too little was freed,
    /// the bytes that could not be evicted.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn evict(&self, bytes: u64) -> Result<EvictedReport, Error> {
        match self.session().call(RequestBody::Evict { bytes })? {
            ReplyBody::Evicted(report) => Ok(report),
            other => Err(confused(&other).into()),
        }
    }

    fn set_pins(&self, targets: &[ObjectKey], is_pinned: bool) -> Result<(), Error> {
        for _ in 0..MOVES_MAX {
            match self.set_pins_now(targets, is_pinned) {
                // It may have moved to another node meanwhile. To pin one twice changes nothing.
                Err(Error::NotFound { .. }) if self.nodes().is_any_draining()? => {}
                done => return done,
            }
        }
        self.set_pins_now(targets, is_pinned)
    }

    fn set_pins_now(&self, targets: &[ObjectKey], is_pinned: bool) -> Result<(), Error> {
        let mut first_error = None;
        let (mut near, mut far) = (Vec::new(), BTreeMap::<String, FarTargets>::new());
        for target in targets {
            match self.net_home_of(target)? {
                None => near.push(target.clone()),
                Some(node) => {
                    let some = far.entry(node.name.clone()).or_insert((node, Vec::new()));
                    some.1.push(target.clone());
                }
            }
        }
        for (node, targets) in far.into_values() {
            if let Err(error) = self.set_far_pins(&node, targets, is_pinned) {
                first_error.get_or_insert(error);
            }
        }
        let targets = &near;
        for (session, numbers) in self.by_home(targets)? {
            let some = numbers.iter().filter_map(|number| targets.get(*number).cloned());
            if let Err(error) = set_pins(&session, &some.collect::<Vec<_>>(), is_pinned) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Pins or unpins objects of a node whose memory is not mapped here, at that node.
    fn set_far_pins(
        &self,
        node: &MemberInfo,
        mut left: Vec<ObjectKey>,
        is_pinned: bool,
    ) -> Result<(), Error> {
        let link = self.nodes().request_link(node)?;
        let mut first_error: Option<Error> = None;
        let began = Instant::now();
        loop {
            // The search restores what is spilled, which may take long: one more attempt follows.
            let is_last = began.elapsed() >= link.own.timeout;
            let mut again = Vec::new();
            for batch in left.chunks(CHANGES_IN_MESSAGE) {
                let targets = batch.iter().map(ObjectKey::wire).collect();
                let results = match link.call(RequestBody::Pin { targets, is_pinned })? {
                    ReplyBody::Pinned(results) => results,
                    other => return Err(confused(&other).into()),
                };
                for (target, result) in batch.iter().zip(results) {
                    match result.map_err(Error::from) {
                        Ok(_) => {}
                        // Spilled objects are restored by the search, and can be pinned then.
                        Err(Error::NotFound { .. })
                            if !self.find_at(node, slice::from_ref(target))?.is_empty() =>
                        {
                            again.push(target.clone());
                        }
                        Err(error) => drop(first_error.get_or_insert(error)),
                    }
                }
            }
            if again.is_empty() {
                return first_error.map_or(Ok(()), Err);
            }
            if is_last {
                let what =
                    format!("objects of node {:?}, which leave memory again and again", node.name);
                let waited_ms = millis(began.elapsed());
                return Err(first_error.unwrap_or(Error::Timeout { what, waited_ms }));
            }
            left = again;
        }
    }
}

fn set_pins(session: &Arc<Session>, targets: &[ObjectKey], is_pinned: bool) -> Result<(), Error> {
    let mut first_error: Option<Error> = None;
    for batch in targets.chunks(CHANGES_IN_MESSAGE) {
        // An object to be pinned must be in memory, and stay there until the node has pinned it.
        let mut held = Vec::new();
        for target in batch.iter().filter(|_| is_pinned) {
            if session.is_away(target)? {
                held.extend(session.hold(target)?.map(|one| Object::new(session, one)));
            }
        }
        let targets = batch.iter().map(ObjectKey::wire).collect();
        let results = match session.call(RequestBody::Pin { targets, is_pinned })? {
            ReplyBody::Pinned(results) => results,
            other => return Err(confused(&other).into()),
        };
        for error in results.into_iter().filter_map(Result::err) {
            first_error.get_or_insert(WireError::into(error));
        }
    }
    first_error.map_or(Ok(()), Err)
}
