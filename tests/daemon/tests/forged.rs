//! A client with write access forges descriptors that refer to memory of others, to none, or to
//! another region. The daemon only checks that an object is in the client's own blocks; every
//! reader detects the forgery before it makes a view, and other objects are unaffected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use common::nodes::DaemonNodes;
use common::raw::RawSocket;
use common::{Daemon, assert_balanced};
use farrow::arrow::{DescriptorStamp, Plan};
use farrow::{BatchData, Client, Error, Object, ObjectId, ObjectKind, Rebuilt, SchemaNode, Value};
use farrow_wire::{ReplyBody, RequestBody, SealItem, Welcome, WireSpan};

const NOW: Duration = Duration::ZERO;
/// Of the one column; whole lines, so that nothing is rounded.
const ROWS: i64 = 16;
const COLUMN_BYTES: u64 = 8 * ROWS as u64;
const BLOCK_BYTES: u64 = 1024;
/// In a block: the column, then the descriptor.
const DESCRIPTOR_AT: u64 = COLUMN_BYTES;

fn batch() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    RecordBatch::try_from_iter([("n", numbers)]).unwrap()
}

/// A descriptor of such a table whose one buffer is said to lie there.
fn descriptor(place: u64, region: u64) -> Vec<u8> {
    let batch = batch();
    let schema = SchemaNode::try_from(&*batch.schema()).unwrap();
    let batches = [BatchData::from(&batch)];
    // Places that fit are said from the region's start, others from a base.
    let plan = Plan::table(&schema, &batches, &mut |_, _| Some(place)).unwrap();
    plan.descriptor(DescriptorStamp { region, epoch: 0 }, place)
}

/// A client that writes what it likes into what it was granted.
struct ForgingClient {
    raw: RawSocket,
    data: File,
    welcome: Welcome,
    granted: WireSpan,
    used: u64,
}

impl ForgingClient {
    fn new(daemon: &Daemon) -> Self {
        let (mut raw, welcome) = RawSocket::joined(daemon);
        let ask = RequestBody::Grant { min: 1 << 16, want: 1 << 16, wait_ms: 0 };
        let Ok(ReplyBody::Granted(granted)) = raw.ask(ask) else { panic!("no grant") };
        let mut files = std::fs::read_dir(daemon.dir.path()).unwrap();
        let data = files.find_map(|entry| {
            let path = entry.unwrap().path();
            path.extension().is_some_and(|end| end == "data").then_some(path)
        });
        let data = File::options().write(true).open(data.unwrap()).unwrap();
        Self { raw, data, welcome, granted, used: 0 }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let at = at - self.welcome.control_bytes + self.welcome.data_file_offset;
        self.data.write_all_at(bytes, at).unwrap();
    }

    /// The next block of what was granted.
    fn block(&mut self) -> u64 {
        let block = self.granted.0 + self.used;
        self.used += BLOCK_BYTES;
        assert!(self.used <= self.granted.1);
        block
    }

    /// A table in the next block, with its column where it should be; `descriptor` makes the rest.
    fn seal(&mut self, descriptor: impl Fn(u64) -> Vec<u8>) -> ObjectId {
        self.seal_as(ObjectKind::Table, 0, descriptor)
    }

    /// With these bits of the checksum changed.
    fn seal_as(
        &mut self,
        kind: ObjectKind,
        changed: u32,
        descriptor: impl Fn(u64) -> Vec<u8>,
    ) -> ObjectId {
        let block = self.block();
        let descriptor = descriptor(block);
        let column: Vec<u8> = (0..ROWS).flat_map(i64::to_le_bytes).collect();
        self.write(block, &column);
        self.write(block + DESCRIPTOR_AT, &descriptor);
        self.seal_item(SealItem {
            kind: kind as u8,
            descriptor: (block + DESCRIPTOR_AT, descriptor.len() as u64),
            descriptor_crc: crc32c::crc32c(&descriptor) ^ changed,
            ..SealItem::bytes((block, BLOCK_BYTES), COLUMN_BYTES)
        })
    }

    fn seal_item(&mut self, item: SealItem) -> ObjectId {
        match self.raw.ask(RequestBody::Seal { items: vec![item] }) {
            Ok(ReplyBody::Sealed(sealed)) => (*sealed[0].as_ref().unwrap()).into(),
            other => panic!("{other:?}"),
        }
    }
}

/// What a reader says of an object, which has to be the same in every way to read it.
fn refusal(object: &Object) -> String {
    let words = |error: Error| match error {
        Error::InvalidDescriptor(why) => why,
        other => panic!("{other:?}"),
    };
    let why = words(object.rebuild().unwrap_err());
    assert_eq!(words(object.rebuild_checked().unwrap_err()), why);
    assert_eq!(words(object.ndarray().unwrap_err()), why);
    assert!(matches!(object.view(), Err(Error::InvalidArgument(_))), "it is no plain bytes");
    why
}

fn assert_is_batch(object: &Object) {
    let Rebuilt::Arrow(found) = object.rebuild_checked().unwrap() else { panic!("no table") };
    assert_eq!(found.record_batches().unwrap(), [batch()]);
}

fn get(client: &Client, id: ObjectId) -> Object {
    client.get(&id.into(), NOW).unwrap()
}

#[test]
fn no_view_is_made_of_what_a_forged_descriptor_refers_to() {
    let nodes = DaemonNodes::start(2, "8MiB", &["--no-prepare", "--lease-ms", "10000"]);
    let (honest, far) = (nodes.client(0), nodes.client(1));
    let secret = honest.put(&Value::Bytes(&[7; 4096]), Some("secret")).unwrap();
    let secret_at = get(&honest, secret).blocks()[0].offset.0;
    let freed = honest.put(&Value::Bytes(&[8; 8192]), Some("freed")).unwrap();
    let freed_at = get(&honest, freed).blocks()[0].offset.0;
    honest.delete(&["freed".into()]).unwrap();
    let mut forger = ForgingClient::new(&nodes.daemons[0]);
    let before = honest.stats().unwrap().node;
    let Welcome { region_uid: uid, control_bytes, data_bytes, .. } = forger.welcome;
    let end = control_bytes + data_bytes;
    let granted_end = forger.granted.0 + forger.granted.1;
    // The same as below, and not forged.
    let good = forger.seal(|block| descriptor(block, uid));
    assert_is_batch(&get(&honest, good));
    assert_is_batch(&get(&far, good));

    let astray: [(&str, &dyn Fn(u64) -> u64); 14] = [
        ("another's object", &|_| secret_at),
        ("what was freed", &|_| freed_at),
        ("over the end of its block", &|block| block + BLOCK_BYTES - 64),
        ("before its block", &|block| block - 64),
        ("the block behind, that is its writer's", &|block| block + BLOCK_BYTES),
        ("what its writer was granted and did not seal", &|_| granted_end - 4096),
        ("behind what its writer was granted", &|_| granted_end),
        ("the region's header", &|_| 0),
        ("the control section", &|_| control_bytes - 64),
        ("over the end of the region", &|_| end - 64),
        ("beyond the region", &|_| end),
        ("far beyond the region", &|_| 1 << 61),
        ("so far that twice of it is its block", &|block| block + (1 << 63)),
        ("over the end of all numbers", &|_| u64::MAX - 63),
    ];
    let mut forged = Vec::new();
    for (what, place) in astray {
        let id = forger.seal(|block| descriptor(place(block), uid));
        for client in [&honest, &far] {
            let why = refusal(&get(client, id));
            assert!(why.contains("do not lie in the object"), "{what}: {why}");
        }
        forged.push(id);
    }
    // Of another region, or of another life of this one: its offsets would mean other bytes.
    for region in [uid ^ 1, uid.wrapping_add(1), 0, u64::MAX] {
        let id = forger.seal(|block| descriptor(block, region));
        for client in [&honest, &far] {
            let why = refusal(&get(client, id));
            let (theirs, ours) = (format!("{region:#018x}"), format!("{uid:#018x}"));
            assert!(why.contains(&theirs) && why.contains(&ours), "{why}");
        }
        forged.push(id);
    }
    // Cut short, with a checksum that is right.
    let id = forger.seal(|block| {
        let mut bytes = descriptor(block, uid);
        bytes.truncate(bytes.len() - 1);
        bytes
    });
    assert!(refusal(&get(&far, id)).contains("says it has"));
    forged.push(id);
    // Whole, with one that is not.
    let id = forger.seal_as(ObjectKind::Table, 1, |block| descriptor(block, uid));
    assert!(refusal(&get(&far, id)).contains("checksum"));
    forged.push(id);
    // A table by its descriptor, something else by its entry.
    let id = forger.seal_as(ObjectKind::NdArray, 0, |block| descriptor(block, uid));
    assert!(refusal(&get(&far, id)).contains("table"));
    forged.push(id);

    // Nothing is lost: what was forged can be deleted, and what was not is as before.
    for client in [&honest, &far] {
        assert_eq!(&get(client, secret).view().unwrap()[..], &[7; 4096]);
        assert_is_batch(&get(client, good));
    }
    forged.push(good);
    honest.delete(&forged.into_iter().map(Into::into).collect::<Vec<_>>()).unwrap();
    let granted = RequestBody::Release {
        spans: vec![(forger.granted.0 + forger.used, forger.granted.1 - forger.used)],
    };
    assert_eq!(forger.raw.ask(granted), Ok(ReplyBody::Done));
    let stats = honest.stats().unwrap();
    assert_balanced(&stats);
    let after = stats.node;
    assert_eq!((after.objects, after.used), (before.objects, before.used));
    assert_eq!((after.granted, after.retiring), (before.granted - (1 << 16), 0));
}

/// Ids of another region, of another life of a slot, and of slots that there are not.
#[test]
fn forged_ids_are_of_no_object() {
    let nodes = DaemonNodes::start(2, "8MiB", &["--no-prepare", "--lease-ms", "10000"]);
    let clients = [nodes.client(0), nodes.client(1)];
    let named = clients[0].put(&Value::Bytes(b"named"), Some("named")).unwrap();
    let own = clients[0].put(&Value::Bytes(b"own"), None).unwrap();
    let elsewhere = clients[1].put(&Value::Bytes(b"there"), None).unwrap();
    for ObjectId { hi, lo } in [named, own] {
        let forged = [
            ObjectId { hi: hi ^ 1, lo },
            ObjectId { hi: 0, lo },
            // The same place in the memory of another node.
            ObjectId { hi: elsewhere.hi, lo: lo ^ (1 << 40) },
            ObjectId { hi, lo: lo + 1 },
            ObjectId { hi, lo: lo ^ (1 << 32) },
            ObjectId { hi, lo: lo ^ (1 << 63) },
            ObjectId { hi, lo: lo | u64::from(u32::MAX) },
            ObjectId { hi, lo: u64::MAX },
            ObjectId { hi: u64::MAX, lo: u64::MAX },
        ];
        for id in forged {
            for client in &clients {
                let is_none = |error: &Error| matches!(error, Error::NotFound { .. });
                assert!(is_none(&client.get(&id.into(), NOW).unwrap_err()), "{id}");
                assert!(is_none(&client.delete(&[id.into()]).unwrap_err()), "{id}");
                assert!(is_none(&client.metadata(&id.into()).unwrap_err()), "{id}");
                assert!(!client.contains(&id.into()).unwrap(), "{id}");
                let all = client.get_batch(&[id.into()], NOW);
                assert!(is_none(&all.err().unwrap()), "{id}");
            }
        }
    }
    for client in &clients {
        for (id, bytes) in [(named, &b"named"[..]), (own, b"own"), (elsewhere, b"there")] {
            assert_eq!(&get(client, id).view().unwrap()[..], bytes);
        }
        assert_balanced(&client.stats().unwrap());
    }
}
