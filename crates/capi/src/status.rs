//! `FarrowStatus`: errors by how a C caller can react.

use farrow::Error;

/// The values of `FarrowStatus` in `farrow.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The header documents each.
pub enum FarrowStatus {
    Ok = 0,
    NotFound = 1,
    AlreadyExists = 2,
    OutOfMemory = 3,
    TooMany = 4,
    Timeout = 5,
    InvalidDescriptor = 6,
    Disconnected = 7,
    PermissionDenied = 8,
    InvalidArgument = 9,
    Protocol = 10,
    System = 11,
    Panic = 12,
    NodeLost = 13,
    CutOff = 14,
    NodeUnreachable = 15,
    Interrupted = 16,
    QuotaExceeded = 17,
    NotRestored = 18,
}

impl From<&Error> for FarrowStatus {
    fn from(error: &Error) -> Self {
        match error {
            Error::NotFound { .. } => FarrowStatus::NotFound,
            Error::AlreadyExists { .. } => FarrowStatus::AlreadyExists,
            Error::OutOfMemory(_)
            | Error::NoRoom(_)
            | Error::NotSpilled(_)
            | Error::NoNodeHasRoom { .. }
            | Error::NodeDraining { .. }
            | Error::TooLarge(_) => FarrowStatus::OutOfMemory,
            Error::TooMany { .. } => FarrowStatus::TooMany,
            Error::QuotaExceeded(_) => FarrowStatus::QuotaExceeded,
            Error::NotRestored(_) => FarrowStatus::NotRestored,
            Error::Timeout { .. } => FarrowStatus::Timeout,
            Error::InvalidDescriptor(_) => FarrowStatus::InvalidDescriptor,
            Error::Disconnected { .. } | Error::NodeReplaced { .. } => FarrowStatus::Disconnected,
            Error::PermissionDenied(_) | Error::NotPermitted(_) => FarrowStatus::PermissionDenied,
            Error::InvalidArgument(_) => FarrowStatus::InvalidArgument,
            Error::NodeLost { .. } => FarrowStatus::NodeLost,
            Error::CutOff { .. } => FarrowStatus::CutOff,
            Error::NodeUnreachable(_) => FarrowStatus::NodeUnreachable,
            Error::Interrupted => FarrowStatus::Interrupted,
            Error::Protocol(_) => FarrowStatus::Protocol,
            _ => FarrowStatus::System,
        }
    }
}
