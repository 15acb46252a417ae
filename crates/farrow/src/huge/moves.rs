//! Moves of the parts of a table to other nodes, while their node drains.
//!
//! A chunk keeps its name, and moves as any other object, to a node that the table knows. The root
//! moves as a new object, which has the id of the table and its members in its metadata: their
//! records are in the memory of the old root's node, and end with it. So the table has its root and
//! all of its members at one node at any time.

use std::time::Instant;

use farrow_store::ObjectId;
use farrow_wire::{DrainStep, RequestBody};

use super::labels;
use super::place::Place;
use super::{HugeTable, sweep};
use crate::cluster::request_link::discard;
use crate::error::Error;
use crate::interrupt::suspend;
use crate::lock::lock;
use crate::objects::draft::Draft;
use crate::options::ObjectOptions;
use crate::value::Value;

impl HugeTable {
    /// Moves a part of the table, an object of this client's draining node, to another node. A
    /// record of a root that has moved is deleted instead.
    ///
    /// # Errors
    ///
    /// As [`Client::move_object`](crate::Client::move_object). [`Error::NodeDraining`] names the
    /// node of the root, if that has to move first; [`Error::NotMoved`] also while parts are
    /// written.
    pub fn move_part(
        &self,
        id: ObjectId,
        part: &str,
        node: &str,
        deadline: Instant,
    ) -> Result<(), Error> {
        if part == self.name {
            return self.move_root(id, node, deadline);
        }
        let prefix = labels::prefix(&self.name, self.id);
        match labels::version_of(&prefix, part) {
            Some(_) => self.move_chunk(id, node, deadline),
            None => self.delete_record(id),
        }
    }

    fn move_chunk(&self, id: ObjectId, node: &str, deadline: Instant) -> Result<(), Error> {
        let place = Place::to_append(&self.client, Some(node))?;
        // Before the chunk is there: a reader looks at members only.
        self.join(&place, Instant::now())?;
        self.client.move_object(id, node, deadline)?;
        let _quiet = suspend();
        match self.discover_members(&mut lock(&self.state)) {
            // `drop_table` deletes the root first and then looks for chunks: one of the two sees
            // this object.
            Err(error @ Error::NotFound { .. }) => {
                sweep::all(&[place], &labels::prefix(&self.name, self.id))?;
                Err(error)
            }
            done => done.map(drop),
        }
    }

    fn move_root(&self, id: ObjectId, node: &str, deadline: Instant) -> Result<(), Error> {
        let (root, members) = {
            let _quiet = suspend();
            self.client.nodes().own().check()?;
            let mut state = lock(&self.state);
            self.discover_members(&mut state)?;
            (state.root, state.members.clone())
        };
        if root != id {
            return Err(Error::no_object(id));
        }
        // The node accepts no record while it drains. None may have been written meanwhile.
        let next = labels::member_name(&self.name, self.id, members.records + 1);
        let metadata = labels::moved_root_metadata(&self.order, self.id, &members)?;
        let empty = Value::Table { schema: &self.schema, batches: &[] };
        let options = ObjectOptions { metadata: Some(&metadata), ..ObjectOptions::default() };
        let own = self.client.nodes().own();
        // A draining daemon grants memory only to sessions that move objects.
        own.call(RequestBody::Drain(DrainStep::Report))?;
        let staged = Draft::staged(own, &empty, &options)?.stage()?;
        let moved = self.client.move_name((root, staged.id()), node, &next, deadline);
        discard(own, staged.id());
        moved.map(drop)
    }

    fn delete_record(&self, id: ObjectId) -> Result<(), Error> {
        let _quiet = suspend();
        self.client.nodes().own().check()?;
        let mut state = lock(&self.state);
        self.discover_members(&mut state)?;
        if state.root.region() == id.region() {
            return Err(Error::NotMoved("the root of its table has to move first".into()));
        }
        Place::new(&self.client, id.region().0, "")?.delete(&[id])
    }

    /// Records that the client's own node, which drains, has no chunks of the table any more. So the
    /// table does not miss the node when it has left.
    ///
    /// # Errors
    ///
    /// [`Error::NotMoved`] if the node has chunks; [`Error::NodeDraining`] names the node of the
    /// root, if that has to move first; and others of that node.
    pub fn leave_node(&self, deadline: Instant) -> Result<(), Error> {
        let own = self.client.nodes().own();
        let region = own.region_uid();
        let prefix = labels::prefix(&self.name, self.id);
        loop {
            let quiet = suspend();
            own.check()?;
            let mut state = lock(&self.state);
            let home = self.discover_members(&mut state)?;
            let Some((_, member)) = state.members.find(region).cloned() else { return Ok(()) };
            let number = state.members.records + 1;
            drop((state, quiet));
            let listed = Place::new(&self.client, region, &member.node)?.list(&prefix)?;
            let chunks =
                listed.iter().filter(|(name, _)| labels::version_of(&prefix, name).is_some());
            let count = chunks.count();
            if count > 0 {
                return Err(Error::NotMoved(format!(
                    "{count} of its chunks are at {:?}",
                    member.node
                )));
            }
            self.record(&home, number, (&member, true), deadline)?;
        }
    }
}
