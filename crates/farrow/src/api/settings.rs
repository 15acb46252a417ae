//! Settings of a node, changed while it serves.

use farrow_wire::{RequestBody, Setting};

use crate::api::Client;
use crate::error::Error;

impl Client {
    /// Changes settings of this client's node: all of them, or none. A change lasts until the
    /// node's daemon ends in order; it outlives a kill and an upgrade. Limits of a namespace are
    /// kept with the namespace. A limit below the present use removes no object.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a setting that this node does not have or a filter that
    /// cannot be parsed, [`Error::NoNamespace`], [`Error::PermissionDenied`] unless the node
    /// belongs to this user.
    pub fn change_settings(&self, settings: &[Setting]) -> Result<(), Error> {
        self.session().call(RequestBody::Set(settings.to_vec())).map(drop)
    }
}
