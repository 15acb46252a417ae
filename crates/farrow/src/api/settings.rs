//! Settings of a node, changed while it serves.

use std::time::Duration;

use farrow_wire::{RequestBody, Setting};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::error::Error;

/// Longest wait for a change of the memory: a terabyte takes minutes. The node itself ends a change
/// without progress.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(600);

impl Client {
    /// Changes settings of this client's node: all of them, or none. A change lasts until the
    /// node's daemon ends in order; it outlives a kill and an upgrade. Limits of a namespace are
    /// stored with the namespace. A limit below the present use removes no object; a smaller memory
    /// does. A change of the memory is waited for, for ten minutes at most. It goes on after
    /// [`Error::Timeout`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a setting that this node does not have, a filter that cannot
    /// be parsed, or memory that the machine does not have or objects keep, with the numbers;
    /// [`Error::NoNamespace`], [`Error::PermissionDenied`] unless the node
    /// belongs to this user.
    pub fn change_settings(&self, settings: &[Setting]) -> Result<(), Error> {
        let session = self.session();
        let is_memory = settings.iter().any(|one| matches!(one, Setting::Memory(_)));
        let wait = if is_memory { session.timeout.max(MEMORY_WAIT_MAX) } else { session.timeout };
        let body = RequestBody::Set(settings.to_vec());
        session.call_until(body, deadline_after(wait)).map(drop)
    }
}
