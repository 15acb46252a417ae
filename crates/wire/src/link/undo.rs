//! Returns the resources that a late reply brings after its call has ended.

use super::notifications::Notification;
use crate::{ReplyBody, RequestBody, WireObjectId};

/// The resource to give back.
#[derive(Debug, Clone)]
pub(super) enum Undo {
    /// The reply brings no resource.
    Nothing,
    /// The reply is stored for its caller: see [`super::PendingReply`].
    Keep,
    /// Granted memory.
    Grant,
    /// Reservations for this number of objects.
    Reservation(u32),
    /// Reserved names.
    Reserve(Vec<String>),
    /// An object of this id that the node imported, or brought.
    Import(WireObjectId),
}

impl Undo {
    pub(super) fn of(body: &RequestBody) -> Self {
        match body {
            RequestBody::Grant { .. } | RequestBody::Room(_) => Self::Grant,
            RequestBody::ReserveObjects { objects, .. } => Self::Reservation(*objects),
            RequestBody::Reserve { names } => Self::Reserve(names.clone()),
            RequestBody::Import { origin, .. } => Self::Import(*origin),
            _ => Self::Nothing,
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Keep)
    }

    /// Whether it gives back one of these names.
    pub(super) fn reserves(&self, names: &[String]) -> bool {
        match self {
            Self::Reserve(own) => own.iter().any(|name| names.contains(name)),
            _ => false,
        }
    }

    /// What undoes this reply. No caller received the granted range, so nothing was written to it
    /// and it is released unchanged.
    pub(super) fn after(self, reply: ReplyBody) -> Option<Notification> {
        match (self, reply) {
            (Self::Grant, ReplyBody::Granted(span)) => Some(Notification::Release(vec![span])),
            (Self::Grant, ReplyBody::Room(spans)) => {
                (!spans.is_empty()).then_some(Notification::Release(spans))
            }
            (Self::Reservation(objects), ReplyBody::Done) => {
                Some(Notification::UnreserveObjects(objects))
            }
            (Self::Import(_), ReplyBody::Fetched(Some(id))) => Some(Notification::Delete(vec![id])),
            (Self::Import(origin), ReplyBody::Done) => Some(Notification::AbandonImport(origin)),
            (Self::Reserve(names), ReplyBody::Done) => Some(Notification::Unreserve(names)),
            _ => None,
        }
    }
}
