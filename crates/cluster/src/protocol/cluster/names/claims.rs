//! Names that this node holds or asks for.

use farrow_membership::naming::NameRefusal;
use farrow_store::{Home, namespace_of, own_name};
use farrow_wire::{NotPermitted, Rights, WireError, WireTarget};

use crate::protocol::cluster::OptionalCluster;
use crate::protocol::identity::SessionId;

impl OptionalCluster {
    /// Checks that this node may give an object the name now. A name that was not requested had an
    /// object when the request arrived. The later delete of that object does not make the name
    /// free.
    ///
    /// # Errors
    /// [`WireError::NameTaken`] if it is not held.
    pub(in crate::protocol) fn check_held(&self, full: &str) -> Result<(), WireError> {
        match &self.0 {
            Some(cluster) if !cluster.naming.holds(full) => {
                Err(WireError::NameTaken { name: own_name(full).to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// As [`Self::check_held`], of a name that a client has reserved before. Another object has it, or
    /// the reservation ended when this node was excluded.
    ///
    /// # Errors
    /// [`WireError::NameTaken`], [`WireError::CutOff`].
    pub(in crate::protocol) fn check_reserved(
        &self,
        home: &Home,
        full: &str,
    ) -> Result<(), WireError> {
        let held = self.check_held(full);
        if held.is_err() && home.is_reserved(full) && !home.has_name(full).unwrap_or(true) {
            let reason = format!("it has no lease for the reserved name {:?}", own_name(full));
            return Err(WireError::CutOff { node: self.own_name(), reason });
        }
        held
    }

    /// Has reserved names checked in the next tick: some may not be reserved any more.
    pub(in crate::protocol) fn note_reservations(&mut self) {
        if let Some(cluster) = &mut self.0 {
            cluster.parked.has_changed = true;
        }
    }

    /// The full names on which the cluster decides at this moment.
    pub(in crate::protocol) fn parked_names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().flat_map(|cluster| cluster.parked.names())
    }

    /// Memory of the requests of a session that wait for names.
    pub(in crate::protocol) fn parked_bytes(&self, session: SessionId) -> usize {
        self.0.as_ref().map_or(0, |cluster| cluster.parked.bytes_of(session))
    }

    /// Ends the wait of a request for names, or of a lookup on other nodes. False: there is none.
    pub(in crate::protocol) fn cancel_in_cluster(&mut self, session: SessionId, seq: u64) -> bool {
        let cluster = self.0.as_mut();
        cluster.is_some_and(|cluster| {
            cluster.parked.cancel(session, seq) || cluster.lookups.cancel(session, seq)
        })
    }

    pub(in crate::protocol) fn refusal_error(&self, full: &str, why: &NameRefusal) -> WireError {
        let node = self.own_name();
        match why {
            NameRefusal::Taken => WireError::NameTaken { name: own_name(full).to_owned() },
            NameRefusal::TooMany { limit } => {
                WireError::TooMany { what: "names in flight".to_owned(), max: *limit as u64 }
            }
            NameRefusal::Invalid { .. } => WireError::Invalid(why.to_string()),
            NameRefusal::NotAllowed { .. } => WireError::NotPermitted(NotPermitted {
                node,
                namespace: namespace_of(full).to_owned(),
                right: Rights::WRITE.to_string(),
            }),
            NameRefusal::Unread { node: lost } => self
                .lost_member(*lost)
                .unwrap_or_else(|| WireError::CutOff { node, reason: why.to_string() }),
            NameRefusal::NoResponse { authority } => {
                let silent =
                    self.name_of(*authority).unwrap_or_else(|| authority.get().to_string());
                let reason = format!("node {silent:?}, which grants the name, did not answer");
                WireError::CutOff { node, reason }
            }
            why => WireError::CutOff { node, reason: why.to_string() },
        }
    }

    /// Whether an authority may not know yet that an object has this name.
    pub(in crate::protocol) fn is_in_debt(&self, home: &Home, target: &WireTarget) -> bool {
        let Some(naming) = self.0.as_ref().map(|cluster| &cluster.naming) else {
            return false;
        };
        match target {
            WireTarget::Name(full) => naming.owes(full),
            WireTarget::Id(id) => {
                let name = home.name_of_object((*id).into());
                name.is_some_and(|full| naming.owes(&full))
            }
        }
    }
}
