//! Puts into the memory of a node that is named.

use std::time::{Duration, Instant};

use farrow_store::ObjectId;
use farrow_wire::{BATCH_ITEMS_MAX, RequestBody, WireTarget};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::cluster::placement::{PlacementNeed, PlacementRule};
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
    /// The client at the node in whose memory buffers should be that are to be put at `node`, and
    /// the name of that node, empty without a cluster: that node, or this client's own if the memory
    /// of the other one is not mapped here. `"nearest"` and `"most-free"` choose a node with room
    /// for `bytes`. See [`Self::at`] and [`Self::pool`].
    ///
    /// # Errors
    ///
    /// As [`Self::at`]; [`Error::NoNodeHasRoom`].
    pub fn at_pool_node(&self, node: &str, bytes: u64) -> Result<(String, Self), Error> {
        let chosen = match PlacementRule::parse(node) {
            None => Some(node.to_owned()),
            Some(rule) => {
                let need = PlacementNeed { bytes: bytes.max(1), is_mapped: false };
                self.first_by(rule, need)?
            }
        };
        let Some(chosen) = chosen else { return Ok((String::new(), self.at_own())) };
        let node = self.pool_node(&chosen)?;
        let client = self.at_named(&node)?;
        Ok((node, client))
    }

    fn pool_node(&self, node: &str) -> Result<String, Error> {
        let own = self.nodes().own().region_uid();
        match self.by_net_member(node)? {
            Some(_) => self.nodes().name_of(own),
            None => Ok(node.to_owned()),
        }
    }

    /// As [`Self::put_with`], in the memory of a node of the cluster. A node whose memory cannot be
    /// mapped here brings the object over the network. `"nearest"` chooses the first node with room:
    /// this client's own, then mapped memory, then the network, each by its measured cost.
    /// `"most-free"` chooses the node with the most free bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::put_with`]; [`Error::NoNodeHasRoom`] if no node that the rule
    /// considers takes the object.
    pub fn put_on(
        &self,
        node: &str,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<ObjectId, Error> {
        let Some(rule) = PlacementRule::parse(node) else {
            return self.put_at(node, value, options);
        };
        // A node that is not mapped replaces nothing.
        let need = PlacementNeed { bytes: value.bytes(), is_mapped: options.replace };
        self.place_by(rule, need, options.wait, |attempt| {
            let options = ObjectOptions { wait: attempt.wait, ..*options };
            match attempt.node {
                Some(node) => self.put_at(node, value, &options),
                None => self.at_own().put_with(value, &options),
            }
        })
    }

    fn put_at(
        &self,
        node: &str,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<ObjectId, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at_named(node)?.put_with(value, options);
        };
        check_far([options])?;
        let deadline = deadline_after(options.wait);
        let destination = FarDestination::reserve(&link, vec![options.name])?.pop();
        self.put_there(destination, value, options, deadline)
    }

    /// As [`Self::put_many`], in the memory of a node of the cluster. If one of the objects cannot be
    /// put, the node has none of them. A rule chooses one node for all of them.
    ///
    /// # Errors
    ///
    /// As [`Self::put_on`] and [`Self::put_many`].
    pub fn put_many_on(
        &self,
        node: &str,
        values: &[(Value<'_>, ObjectOptions<'_>)],
    ) -> Result<Vec<ObjectId>, Error> {
        let Some(rule) = PlacementRule::parse(node) else {
            return self.put_many_at(node, values);
        };
        let need = PlacementNeed {
            bytes: values.iter().map(|(value, _)| value.bytes()).sum(),
            is_mapped: values.iter().any(|(_, options)| options.replace),
        };
        self.place_by(rule, need, Duration::ZERO, |attempt| match attempt.node {
            Some(node) => self.put_many_at(node, values),
            None => self.at_own().put_many(values),
        })
    }

    fn put_many_at(
        &self,
        node: &str,
        values: &[(Value<'_>, ObjectOptions<'_>)],
    ) -> Result<Vec<ObjectId>, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at_named(node)?.put_many(values);
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
                        let targets = some.iter().map(|id| WireTarget::Id((*id).into())).collect();
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
    /// As [`Self::put_on`] and [`Self::create_with`].
    pub fn create_on(
        &self,
        node: &str,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Writer, Error> {
        let Some(rule) = PlacementRule::parse(node) else {
            return self.create_at(node, bytes, options);
        };
        let need = PlacementNeed { bytes, is_mapped: options.replace };
        self.place_by(rule, need, options.wait, |attempt| {
            let options = ObjectOptions { wait: attempt.wait, ..*options };
            match attempt.node {
                Some(node) => self.create_at(node, bytes, &options),
                None => self.at_own().create_with(bytes, &options),
            }
        })
    }

    /// As [`Self::create_many`], in the memory of a node of the cluster that is mapped here. A rule
    /// chooses one node for all objects.
    ///
    /// # Errors
    ///
    /// As [`Self::at`], [`Self::put_on`] and [`Self::create_many`].
    pub fn create_many_on(
        &self,
        node: &str,
        objects: &[(u64, ObjectOptions<'_>)],
    ) -> Result<Vec<Writer>, Error> {
        let Some(rule) = PlacementRule::parse(node) else {
            return self.at_named(node)?.create_many(objects);
        };
        let bytes = objects.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
        let need = PlacementNeed { bytes, is_mapped: true };
        self.place_by(rule, need, Duration::ZERO, |attempt| match attempt.node {
            Some(node) => self.at_named(node)?.create_many(objects),
            None => self.at_own().create_many(objects),
        })
    }

    fn create_at(
        &self,
        node: &str,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Writer, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at_named(node)?.create_with(bytes, options);
        };
        check_far([options])?;
        let destination = FarDestination::reserve(&link, vec![options.name])?.pop();
        let mut writer = Writer::staged(self.nodes().own(), bytes, options)?;
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
        let no_destination = || Error::InvalidArgument("nowhere to put it".to_owned());
        destination.ok_or_else(no_destination)?.import(staged.id(), deadline)
    }
}
