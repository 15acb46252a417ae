//! Pages of the list of this node's objects, for nodes that cannot map its memory.

use farrow_store::{DirectoryItem, Metadata, Reader, StoreError, Target, Whereabouts};
use farrow_wire::{ListedItem, Listing};

/// A page ends after this many bytes of names and metadata, or this many objects.
const PAGE_BYTES: usize = 512 << 10;
const PAGE_OBJECTS: usize = 2048;

/// A page visits at most this many positions of the directory, which takes some milliseconds.
const PAGE_STEPS: u64 = 1 << 16;

/// Upper bound on the bytes of an item besides its name and metadata.
const ITEM_BYTES: usize = 96;

/// Attempts to read an object that moves meanwhile.
const MOVES_MAX: usize = 64;

/// The page that starts at this position.
pub(crate) fn page(reader: &Reader, from: u64, prefix: &str) -> Result<Listing, StoreError> {
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut failed = None;
    let next = reader.list_from(from, PAGE_STEPS, prefix, &mut |listed| {
        match item(reader, &listed) {
            Ok(Some(item)) => {
                bytes +=
                    ITEM_BYTES + item.metadata.len() + item.name.as_deref().map_or(0, str::len);
                items.push(item);
            }
            // The object was removed meanwhile.
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
        failed.is_none() && bytes < PAGE_BYTES && items.len() < PAGE_OBJECTS
    })?;
    failed.map_or(Ok(Listing { items, next }), Err)
}

fn item(reader: &Reader, listed: &DirectoryItem) -> Result<Option<ListedItem>, StoreError> {
    // The metadata of a spilled object is in its file.
    let metadata = match listed.is_spilled {
        true => Some(Metadata::default()),
        false => reader.metadata(&listed.entry)?,
    };
    Ok(metadata.map(|metadata| ListedItem {
        id: listed.entry.id.into(),
        name: listed.name.clone(),
        kind: listed.entry.kind.as_u8(),
        bytes: listed.entry.size.0,
        sealed_at_ns: listed.entry.sealed_at_ns,
        creator_pid: listed.entry.creator_pid,
        metadata: metadata.encode(),
        is_pinned: listed.is_pinned,
        last_use_ns: listed.last_use_ns,
        is_spilled: listed.is_spilled,
        is_name_damaged: listed.is_name_damaged,
    }))
}

/// An object of the reader's namespace, as a list has it; `None` if there is none.
pub(crate) fn find(reader: &Reader, target: Target<'_>) -> Result<Option<ListedItem>, StoreError> {
    for _ in 0..MOVES_MAX {
        if let Some(entry) = reader.lookup(target)? {
            if entry.is_replica || entry.namespace != reader.namespace().0 {
                return Ok(None);
            }
            let found = DirectoryItem {
                name: reader.name_of(&entry)?,
                entry,
                is_pinned: false,
                last_use_ns: entry.sealed_at_ns,
                is_spilled: false,
                is_name_damaged: false,
            };
            // `None`: the object moved or was removed meanwhile.
            if let Some(item) = item(reader, &found)? {
                return Ok(Some(item));
            }
            continue;
        }
        match reader.whereabouts(target)? {
            Whereabouts::Nowhere => return Ok(None),
            Whereabouts::InMemory => {}
            Whereabouts::Away(id) => {
                let name = match target {
                    Target::Name(name) => Some(name.to_owned()),
                    Target::Id(_) => None,
                };
                let id = id.into();
                return Ok(Some(ListedItem { id, name, is_spilled: true, ..Default::default() }));
            }
        }
    }
    Err(StoreError::BadRequest { reason: "the object is moved repeatedly" })
}

/// Decodes a page that another node sent.
pub(crate) fn decode(bytes: &[u8]) -> Result<Listing, String> {
    postcard::from_bytes(bytes).map_err(|error| format!("a list of {} B: {error}", bytes.len()))
}

pub(crate) fn encode(listing: &Listing) -> Result<Vec<u8>, String> {
    postcard::to_allocvec(listing).map_err(|error| error.to_string())
}
