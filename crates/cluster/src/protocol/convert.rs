//! Conversions between the types of the wire and those of the store.

use farrow_store::{StoreError, Target};

use farrow_wire::{NamespaceInUse, NoNamespace, NoRoom, OutOfMemory, WireError, WireTarget};

pub(super) fn store_target(target: &WireTarget) -> Target<'_> {
    match target {
        WireTarget::Id(id) => Target::Id((*id).into()),
        WireTarget::Name(name) => Target::Name(name),
    }
}

/// The error for a client, by the action that it can take.
pub(super) fn store_error(error: StoreError) -> WireError {
    match error {
        StoreError::OutOfMemory { requested, free, largest } => {
            WireError::OutOfMemory(OutOfMemory {
                requested: requested.0,
                free: free.0,
                largest: largest.0,
                waiting: 0,
                waited_ms: 0,
            })
        }
        StoreError::NameSpaceFull { requested, free, largest, used } => WireError::NoRoom(NoRoom {
            what: "names".to_owned(),
            requested: requested.0,
            free: free.0,
            largest: largest.0,
            used: used.0,
            waiting: 0,
            waited_ms: 0,
        }),
        StoreError::TooManyObjects { max } => too_many("objects", max),
        StoreError::TooManyClients { max } => too_many("clients", max),
        StoreError::TooManyGrants { max } => too_many("grants", max),
        StoreError::HoldBlocksExhausted { max } => too_many("hold blocks", max),
        StoreError::EntryPagesExhausted { max } => too_many("entry pages", max),
        StoreError::TooManyNamespaces { max } => too_many("namespaces", max),
        StoreError::NoSuchNamespace { name, known } => {
            WireError::NoNamespace(NoNamespace { name, known })
        }
        StoreError::NamespaceInUse { name, objects, bytes, clients } => {
            WireError::NamespaceInUse(NamespaceInUse {
                name,
                objects: objects.into(),
                bytes: bytes.0,
                clients: clients.into(),
            })
        }
        StoreError::NameTaken { name } => WireError::NameTaken { name },
        StoreError::NotFound { what } => WireError::NotFound { what },
        error @ StoreError::NoSuchClient { .. } => WireError::Denied(error.to_string()),
        error @ (StoreError::NotYours { .. }
        | StoreError::BadSpan { .. }
        | StoreError::BadRequest { .. }
        | StoreError::NameInvalid { .. }
        | StoreError::NamespaceNameInvalid { .. }
        | StoreError::TooManyWriters { .. }) => WireError::Invalid(error.to_string()),
        error => WireError::Damaged(error.to_string()),
    }
}

pub(super) fn too_many(what: &str, max: impl Into<u64>) -> WireError {
    WireError::TooMany { what: what.to_owned(), max: max.into() }
}
