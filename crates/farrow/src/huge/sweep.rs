//! Deletion of a table, and of the remains of an interrupted deletion.

use std::time::Duration;

use farrow_store::ObjectId;

use super::HugeTable;
use super::labels;
use super::place::Place;
use crate::api::Client;
use crate::error::Error;
use crate::interrupt::suspend;
use crate::lock::lock;

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
        self.client.nodes().own().check()?;
        let mut state = lock(&self.state);
        let home = loop {
            let home = self.discover_members(&mut state)?;
            match home.delete(&[state.root]) {
                Ok(()) => break home,
                // Dropped by another client, or moved: then it is found at its new node.
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        };
        // Nodes that became members before the root was deleted; later ones see that it is deleted.
        self.last_members(&home, &mut state)?;
        let (mut places, mut lost) = (Vec::new(), None);
        for (_, member) in &state.members.nodes {
            match Place::new(&self.client, member.region, &member.node) {
                Ok(place) => places.push(place),
                Err(error) => drop(lost.get_or_insert(error)),
            }
        }
        // The members are in the memory of the root's node: it is swept last.
        places.retain(|place| place.region() != home.region());
        places.push(home);
        all(&places, &labels::prefix(&self.name, self.id))?;
        lost.map_or(Ok(()), Err)
    }
}

/// Deletes all objects with this name prefix in the memory of these nodes.
pub(super) fn all(places: &[Place<'_>], prefix: &str) -> Result<(), Error> {
    for place in places {
        let listed = place.list(prefix)?;
        delete_all(place, &listed.into_iter().map(|(_, one)| one.id).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Deletes the remains of tables of this name whose root is deleted: a client may have died while it
/// dropped one or appended to it.
pub(super) fn orphans(client: &Client, name: &str) -> Result<(), Error> {
    let places = Place::all(client)?;
    for place in &places {
        let mut orphans = Vec::new();
        for (below, found) in place.list(&format!("{name}/"))? {
            let Some(root) = labels::root_of(name, &below) else { continue };
            // If the root's node cannot be searched, the root may still be there.
            let home = places.iter().find(|home| home.region() == root.region().0);
            let is_removed = home.map_or(Ok(true), |home| home.has(root)).is_ok_and(|has| !has);
            // A root that has moved has another id.
            if is_removed && !is_table(client, name, root)? {
                orphans.push(found.id);
            }
        }
        delete_all(place, &orphans)?;
    }
    Ok(())
}

/// Whether a table of this name has this id.
pub(super) fn is_table(client: &Client, name: &str, table: ObjectId) -> Result<bool, Error> {
    let root = match client.get(&name.into(), Duration::ZERO) {
        Ok(root) => root,
        Err(Error::NotFound { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    match client.metadata(&root.id().into()) {
        Ok(metadata) => Ok(labels::read_root(name, root.id(), &metadata)?.0 == table),
        // It moves on at this moment.
        Err(Error::NotFound { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Deletes objects, some of which may already be deleted.
fn delete_all(place: &Place<'_>, ids: &[ObjectId]) -> Result<(), Error> {
    match place.delete(ids) {
        Err(Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}
