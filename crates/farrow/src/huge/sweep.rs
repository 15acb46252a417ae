//! Deletion of a table, and of the remains of an interrupted deletion.

use std::sync::Arc;

use super::labels;
use super::{HugeTable, SeenTable};
use crate::client::{self, Client};
use crate::error::Error;
use crate::interrupt::suspend;
use crate::key::ObjectKey;
use crate::lock::lock;
use crate::session::Session;

impl HugeTable {
    /// Deletes the table on all nodes. Readers keep their objects; later appends fail.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] when the table is already dropped. [`Error::NodeLost`]: if the root's
    /// node is lost, nothing is deleted. If another node is lost, the table is dropped; chunks in
    /// that node's memory are deleted when a table of this name is created after the node's return.
    pub fn drop_table(&self) -> Result<(), Error> {
        let _quiet = suspend();
        // In a forked child the thread that has the lock may not exist.
        self.client.nodes().own().check_process()?;
        let mut state = lock(&self.state);
        let home = self.discover_members(&mut state)?;
        client::delete(&home, &[self.root.into()])?;
        // Nodes that became members before the root was deleted; later ones see that it is gone.
        self.last_members(&home, &mut state)?;
        let (mut places, mut lost) = (Vec::new(), None);
        for member in &state.members {
            match self.client.nodes().place_of(member.region, &member.node) {
                Ok(place) => places.push(place),
                Err(error) => drop(lost.get_or_insert(error)),
            }
        }
        // The members are in the memory of the root's node: it is swept last.
        places.retain(|place| !Arc::ptr_eq(place, &home));
        places.push(home);
        all(&places, &labels::prefix(&self.name, self.root))?;
        lost.map_or(Ok(()), Err)
    }

    fn last_members(&self, home: &Arc<Session>, state: &mut SeenTable) -> Result<(), Error> {
        loop {
            let number = state.members.len() as u64 + 1;
            let name = labels::member_name(&self.name, self.root, number);
            match super::find(home, &name)? {
                Some((_, metadata)) => state.members.push(labels::read_member(&name, &metadata)?),
                None => return Ok(()),
            }
        }
    }
}

/// Deletes all objects with this name prefix in the memory of these nodes.
pub(super) fn all(places: &[Arc<Session>], prefix: &str) -> Result<(), Error> {
    for place in places {
        let listed = place.reader.list(prefix)?;
        delete_all(place, listed.into_iter().map(|one| one.entry.id.into()).collect())?;
    }
    Ok(())
}

/// Deletes the remains of tables of this name whose root is gone: a client may have died while it
/// dropped one or appended to it.
pub(super) fn orphans(client: &Client, name: &str) -> Result<(), Error> {
    let places = client.nodes().places()?;
    for place in &places {
        let mut orphans = Vec::new();
        for one in place.reader.list(&format!("{name}/"))? {
            let root = one.name.as_deref().and_then(|below| labels::root_of(name, below));
            let Some(root) = root else {
                continue;
            };
            // If the root's node cannot be searched, the root may still be there.
            let home = places.iter().find(|home| home.region_uid() == root.region().0);
            if home.map_or(Ok(true), |home| home.has(&root.into())).is_ok_and(|has| !has) {
                orphans.push(ObjectKey::Id(one.entry.id));
            }
        }
        delete_all(place, orphans)?;
    }
    Ok(())
}

/// Deletes objects, some of which may already be gone.
fn delete_all(place: &Arc<Session>, targets: Vec<ObjectKey>) -> Result<(), Error> {
    if targets.is_empty() {
        return Ok(());
    }
    match client::delete(place, &targets) {
        Err(Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}
