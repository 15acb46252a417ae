//! How a client gives back what the answer to a request brings when nobody waits for it any more.

use crate::{ReplyBody, RequestBody};

/// What is to be undone.
#[derive(Debug, Clone)]
pub(super) enum Undo {
    /// The answer brings nothing that stays.
    Nothing,
    /// Granted memory.
    Grant,
    /// Room for so many objects.
    Reservation(u32),
    /// Reserved names.
    Reserve(Vec<String>),
}

impl Undo {
    pub(super) fn of(body: &RequestBody) -> Self {
        match body {
            RequestBody::Grant { .. } | RequestBody::Room(_) => Self::Grant,
            RequestBody::ReserveObjects { objects, .. } => Self::Reservation(*objects),
            RequestBody::Reserve { names } => Self::Reserve(names.clone()),
            _ => Self::Nothing,
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// What to tell the daemon after this answer. Nothing was written to a range whose grant
    /// nobody took, so it goes back as it came.
    pub(super) fn after(self, reply: ReplyBody) -> Option<RequestBody> {
        match (self, reply) {
            (Self::Grant, ReplyBody::Granted(span)) => {
                Some(RequestBody::Release { spans: vec![span] })
            }
            (Self::Grant, ReplyBody::Room(spans)) => {
                (!spans.is_empty()).then_some(RequestBody::Release { spans })
            }
            (Self::Reservation(objects), ReplyBody::Done) => {
                Some(RequestBody::UnreserveObjects { objects })
            }
            (Self::Reserve(names), ReplyBody::Done) => Some(RequestBody::Unreserve { names }),
            _ => None,
        }
    }
}
