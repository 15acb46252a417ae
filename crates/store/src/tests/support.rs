//! A region in memory, opened as a home and as a client, and a client that builds objects.

use std::sync::Arc;

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Fabric, Length, Offset, Region, Span};

use crate::format::entry::encode_extra;
use crate::{
    BLOCK_BYTES, ClientSlot, EntryTable, HoldTable, Home, Layout, Newcomer, ObjectId, ObjectKind,
    Reader, RegionOptions, SealRequest, StoreError, full_name,
};

/// A region whose home can be dropped and opened again.
pub(crate) struct TestRegion {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) options: RegionOptions,
}

/// Options small enough that every limit is soon reached.
pub(crate) fn small() -> RegionOptions {
    RegionOptions {
        capacity: Length(64 << 12),
        objects_max: 24,
        clients_max: 4,
        hold_blocks_max: 6,
        grants_max: 24,
        name_bytes: Length(40 * 32),
        client_objects_max: 84,
        events_max: 32,
        namespaces_max: 4,
    }
}

impl TestRegion {
    pub(crate) fn new(options: RegionOptions) -> Self {
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("farrow-store-test", geometry).unwrap());
        Self { fabric, options }
    }

    pub(crate) fn map(&self, access: Access) -> Arc<Region> {
        Arc::new(Region::map(Arc::clone(&self.fabric), access, None).unwrap())
    }

    pub(crate) fn create(&self) -> Home {
        Home::create(self.map(Access::Home), &self.options, 1).unwrap()
    }

    /// As after a kill, once all clients have reconnected and reported their holds.
    pub(crate) fn adopt(&self) -> Home {
        let mut home = self.adopt_in_doubt();
        all_come_back(&mut home);
        home
    }

    /// As after a kill.
    pub(crate) fn adopt_in_doubt(&self) -> Home {
        let (home, report) = Home::adopt(self.map(Access::Home)).unwrap();
        assert_eq!(report.dropped, [], "dropped on adoption");
        home.check().unwrap();
        home
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader::open(self.map(Access::Client)).unwrap()
    }
}

/// Confirm every client, as if it reported its holds.
pub(crate) fn all_come_back(home: &mut Home) {
    for client in home.clients().map(|record| record.client).collect::<Vec<_>>() {
        home.confirm_earlier(client);
    }
    home.reclaim().unwrap();
}

/// The state of a client process.
pub(crate) struct TestClient {
    pub(crate) slot: ClientSlot,
    pub(crate) nonce: u64,
    pub(crate) reader: Reader,
    pub(crate) holds: Arc<HoldTable>,
    pub(crate) entries: EntryTable,
}

impl TestClient {
    pub(crate) fn join(world: &TestRegion, home: &mut Home) -> Result<Self, StoreError> {
        Self::join_in(world, home, "")
    }

    /// Into a namespace.
    pub(crate) fn join_in(
        world: &TestRegion,
        home: &mut Home,
        namespace: &str,
    ) -> Result<Self, StoreError> {
        let id = home.namespace(namespace)?.id;
        let joined = home.client_join_as(&Newcomer {
            pid: 42,
            start_time: 7,
            uid: 1000,
            namespace: id,
            remote_client: None,
        })?;
        let block = match home.hold_block(joined.client) {
            Ok(block) => block,
            Err(error) => {
                home.client_leave(joined.client)?;
                return Err(error);
            }
        };
        let reader = world.reader().in_namespace(id, namespace);
        let holds = Arc::new(HoldTable::new(Arc::clone(reader.region()), &[block])?);
        let entries = EntryTable::new(Arc::clone(reader.region()), joined.client, 42)?;
        Ok(Self { slot: joined.client, nonce: joined.nonce, reader, holds, entries })
    }

    /// Write bytes into a range of the heap, as a client does through an alias.
    pub(crate) fn write(&self, offset: Offset, bytes: &[u8]) {
        let span = Span::new(offset, Length(bytes.len() as u64));
        let pages = span.outward(farrow_memory::page_bytes()).unwrap();
        let alias = self.reader.region().alias(pages).unwrap();
        alias.write(offset, bytes).unwrap();
    }

    pub(crate) fn read(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.length.0 as usize];
        self.reader.region().copy_out(span.offset, &mut bytes).unwrap();
        bytes
    }

    /// Make an object of plain bytes that are in place, by stores of the client alone.
    pub(crate) fn seal_local(&self, primary: Span, now_ns: u64) -> Option<ObjectId> {
        let request = SealRequest::bytes(primary, primary.length, None);
        self.entries.seal(&request, now_ns, None).unwrap().map(|(id, _)| id)
    }

    /// Make an object of plain bytes.
    pub(crate) fn put(
        &self,
        home: &mut Home,
        bytes: &[u8],
        name: Option<&str>,
    ) -> Result<ObjectId, StoreError> {
        let blocks = (bytes.len() as u64).max(1).next_multiple_of(BLOCK_BYTES);
        let extent = home.grant(self.slot, Length(blocks), Length(blocks))?;
        self.write(extent.offset, bytes);
        let primary = Span::new(extent.offset, Length(blocks));
        let full = name.map(|name| full_name(self.reader.namespace().1, name)).transpose();
        let sealed = full.and_then(|full| {
            let size = Length(bytes.len() as u64);
            home.seal(self.slot, &SealRequest::bytes(primary, size, full.as_deref()), 5)
        });
        // The rest of the extent, or all of it, is released.
        let left = match &sealed {
            Ok(_) => Span::between(primary.end().unwrap(), extent.end().unwrap()).unwrap(),
            Err(_) => extent,
        };
        if !left.is_empty() {
            home.release(self.slot, &[left])?;
        }
        sealed
    }
}

/// A request for a table with extra blocks: writes descriptor and list into `primary`.
pub(crate) fn table<'a>(
    client: &TestClient,
    primary: Span,
    extra: &[Span],
    name: Option<&'a str>,
) -> SealRequest<'a> {
    let descriptor = b"descriptor of 24 bytes..";
    let list = encode_extra(extra);
    client.write(primary.offset, descriptor);
    client.write(Offset(primary.offset.0 + 24), &list);
    SealRequest {
        kind: ObjectKind::Table,
        primary,
        descriptor: Span::new(primary.offset, Length(24)),
        descriptor_crc: crc32c::crc32c(descriptor),
        extra: extra.to_vec(),
        extra_crc: crc32c::crc32c(&list),
        size: Length(extra.iter().map(|span| span.length.0).sum()),
        metadata_bytes: 0,
        metadata_crc: 0,
        name,
        is_reserved: false,
        is_staged: false,
    }
}

pub(crate) fn part(of: Span, from: u64, length: u64) -> Span {
    Span::new(Offset(of.offset.0 + from), Length(length))
}
