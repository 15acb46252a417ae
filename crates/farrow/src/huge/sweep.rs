//! The end of a table, and of what an interrupted end left behind.

use std::sync::Arc;

use super::labels;
use super::{HugeTable, SeenTable};
use crate::client::{self, Client, ObjectKey};
use crate::error::Error;
use crate::interrupt::suspend;
use crate::session::{Session, lock};

impl HugeTable {
    /// Deletes the table on all nodes. Readers keep what they have; whoever appends is told.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] when it was dropped before. [`Error::NodeLost`]: where the root's node
    /// is lost nothing was deleted; of another node the table is gone, and what lies in that
    /// node's memory is deleted when a table of this name is made again, after it came back.
    pub fn drop_table(&self) -> Result<(), Error> {
        let _quiet = suspend();
        let mut state = lock(&self.state);
        let home = self.discover_members(&mut state)?;
        client::delete(&home, &[self.root.into()])?;
        // Nodes that became members before the root went; later ones see that it has gone.
        self.last_members(&home, &mut state)?;
        let (mut places, mut lost) = (Vec::new(), None);
        for member in &state.members {
            match self.client.nodes().place_of(member.region, &member.node) {
                Ok(place) => places.push(place),
                Err(error) => drop(lost.get_or_insert(error)),
            }
        }
        // The members are in the memory of the root: they go last.
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

/// Deletes all named objects that begin like this in the memory of these nodes.
pub(super) fn all(places: &[Arc<Session>], prefix: &str) -> Result<(), Error> {
    for place in places {
        let listed = place.reader.list(prefix)?;
        delete_all(place, listed.into_iter().map(|one| one.entry.id.into()).collect())?;
    }
    Ok(())
}

/// Deletes what is left of tables of this name whose root is gone: whoever dropped one, or
/// appended to it then, may have died before it was done.
pub(super) fn orphans(client: &Client, name: &str) -> Result<(), Error> {
    let places = client.nodes().places()?;
    for place in &places {
        let mut orphans = Vec::new();
        for one in place.reader.list(&format!("{name}/"))? {
            let root = one.name.as_deref().and_then(|below| labels::root_of(name, below));
            let Some(root) = root else {
                continue;
            };
            // What cannot be looked for may be there.
            let home = places.iter().find(|home| home.region_uid() == root.region().0);
            if home.map_or(Ok(true), |home| home.has(&root.into())).is_ok_and(|has| !has) {
                orphans.push(ObjectKey::Id(one.entry.id));
            }
        }
        delete_all(place, orphans)?;
    }
    Ok(())
}

/// Some may be gone already.
fn delete_all(place: &Arc<Session>, targets: Vec<ObjectKey>) -> Result<(), Error> {
    if targets.is_empty() {
        return Ok(());
    }
    match client::delete(place, &targets) {
        Err(Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}
