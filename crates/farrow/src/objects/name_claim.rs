//! Names that are reserved for one operation.

use std::sync::Arc;

use crate::connection::session::Session;
use crate::error::Error;

/// Reserved names of objects that are about to be written. Unused names are given back on drop.
#[derive(Debug, Default)]
pub(crate) struct NameClaim {
    session: Option<Arc<Session>>,
    names: Vec<String>,
}

impl NameClaim {
    /// Reserves all names, or none.
    pub(crate) fn take(session: &Arc<Session>, names: Vec<String>) -> Result<Self, Error> {
        if names.is_empty() {
            return Ok(Self::default());
        }
        session.reservations.take(&**session, names.clone())?;
        Ok(Self { session: Some(Arc::clone(session)), names })
    }

    pub(crate) fn is_there(&self) -> bool {
        !self.names.is_empty()
    }

    /// Splits off one of the names.
    pub(crate) fn split(&mut self, name: Option<&str>) -> Self {
        let place = self.names.iter().position(|one| Some(one.as_str()) == name);
        let names = place.map(|place| self.names.swap_remove(place)).into_iter().collect();
        Self { session: self.session.clone(), names }
    }

    /// Records that sealed objects have these names now.
    pub(crate) fn sealed(&mut self) {
        if let Some(session) = &self.session {
            self.names.drain(..).for_each(|name| session.reservations.sealed(&name));
        }
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        if let Some(session) = &self.session
            && session.is_own_process()
        {
            session.reservations.give(&**session, std::mem::take(&mut self.names));
        }
    }
}
