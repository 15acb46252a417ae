//! Puts into the memory of a node that is named.

use std::time::Instant;

use farrow_store::ObjectId;
use farrow_wire::{BATCH_ITEMS_MAX, RequestBody, WireTarget};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::cluster::request_link::FarDestination;
use crate::error::Error;
use crate::interrupt;
use crate::objects::draft::Draft;
use crate::objects::writer::Writer;
use crate::options::ObjectOptions;
use crate::value::Value;

/// Objects are brought to a node that this machine cannot map under names that are free there.
fn check_far<'a>(all: impl IntoIterator<Item = &'a ObjectOptions<'a>>) -> Result<(), Error> {
    match all.into_iter().find(|options| options.replace) {
        None => Ok(()),
        Some(ObjectOptions { name, .. }) => Err(Error::InvalidArgument(format!(
            "{} cannot be replaced on a node whose memory cannot be mapped here: delete it first",
            name.unwrap_or("an object without a name")
        ))),
    }
}

impl Client {
    /// The node in whose memory buffers should be that are to be put at `node`: that node, or this
    /// client's own if the memory of the other one is not mapped here. See [`Self::at`] and
    /// [`Self::pool`].
    ///
    /// # Errors
    ///
    /// The membership list is damaged.
    pub fn pool_node(&self, node: &str) -> Result<String, Error> {
        let own = self.nodes().own().region_uid();
        match self.by_net_member(node)? {
            Some(_) => self.nodes().name_of(own),
            None => Ok(node.to_owned()),
        }
    }

    /// As [`Self::put_with`], in the memory of a node of the cluster. A node whose memory cannot be
    /// mapped here brings the object over the network.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::put_with`].
    pub fn put_on(
        &self,
        node: &str,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<ObjectId, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at(node)?.put_with(value, options);
        };
        check_far([options])?;
        let deadline = deadline_after(options.wait);
        let destination = FarDestination::reserve(&link, vec![options.name])?.pop();
        self.put_there(destination, value, options, deadline)
    }

    /// As [`Self::put_many`], in the memory of a node of the cluster. If one of the objects cannot be
    /// put, the node has none of them.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::put_many`].
    pub fn put_many_on(
        &self,
        node: &str,
        values: &[(Value<'_>, ObjectOptions<'_>)],
    ) -> Result<Vec<ObjectId>, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at(node)?.put_many(values);
        };
        check_far(values.iter().map(|(_, options)| options))?;
        let names = values.iter().map(|(_, options)| options.name).collect();
        let mut done: Vec<ObjectId> = Vec::with_capacity(values.len());
        let destinations = FarDestination::reserve(&link, names)?;
        for ((value, options), destination) in values.iter().zip(destinations) {
            let deadline = deadline_after(options.wait);
            match self.put_there(Some(destination), value, options, deadline) {
                Ok(id) => done.push(id),
                Err(error) => {
                    let _quiet = interrupt::suspend();
                    for some in done.chunks(BATCH_ITEMS_MAX) {
                        let targets = some.iter().map(|id| WireTarget::Id(id.hi, id.lo)).collect();
                        if let Err(error) = link.call(RequestBody::Delete { targets }) {
                            tracing::warn!(%error, objects = some.len(), "left at node {node}");
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(done)
    }

    /// As [`Self::create_with`], in the memory of a node of the cluster. At a node whose memory cannot
    /// be mapped here, the bytes are sent when the object is sealed.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::create_with`].
    pub fn create_on(
        &self,
        node: &str,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Writer, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at(node)?.create_with(bytes, options);
        };
        check_far([options])?;
        let destination = FarDestination::reserve(&link, vec![options.name])?.pop();
        let staged = ObjectOptions { name: None, ..*options };
        let mut writer = Writer::new(self.nodes().own(), bytes, &staged)?;
        writer.send_to(destination);
        Ok(writer)
    }

    fn put_there(
        &self,
        destination: Option<FarDestination>,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
        deadline: Instant,
    ) -> Result<ObjectId, Error> {
        let staged = Draft::staged(self.nodes().own(), value, options)?.stage()?;
        let gone = || Error::InvalidArgument("nowhere to put it".to_owned());
        destination.ok_or_else(gone)?.import(staged.id(), deadline)
    }
}
