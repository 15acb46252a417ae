//! A client truncates the memory of its node: every client has a writable descriptor of the data
//! section, and files of a tmpfs cannot be sealed. The daemon was killed by SIGBUS.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::raw::RawSocket;
use common::{Daemon, wait_for};
use farrow::{Client, ObjectKind, Value};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Offset, Region, Span, survive_lost_pages};
use farrow_store::{Layout, Reader, encode_extra};
use farrow_wire::{ReplyBody, RequestBody, SealItem, Welcome};

const PAGE: u64 = 4096;

/// The memory of a daemon, as a client has it.
struct DaemonMemory {
    data: File,
    layout: Layout,
}

impl DaemonMemory {
    fn of(daemon: &Daemon) -> Self {
        let mut files = std::fs::read_dir(daemon.dir.path()).unwrap();
        let path: PathBuf = files
            .find_map(|entry| {
                let path = entry.unwrap().path();
                path.extension().is_some_and(|end| end == "data").then_some(path)
            })
            .unwrap();
        let data = File::options().write(true).open(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let fabric = Arc::new(ShmFabric::inspect(daemon.dir.path(), name).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Client, None).unwrap());
        let layout = *Reader::open(region).unwrap().layout();
        Self { data, layout }
    }

    /// Where a byte of the region is in the file.
    fn place(&self, at: Offset) -> u64 {
        at.0 - self.layout.geometry.control.0
    }

    /// Calls `during` while the file ends at `at`. Its clients can use their memory only afterwards.
    fn cut<T>(&self, at: Offset, during: impl FnOnce() -> T) -> T {
        self.data.set_len(self.place(at)).unwrap();
        let result = during();
        self.data.set_len(self.layout.geometry.data.0).unwrap();
        result
    }
}

fn assert_serves(daemon: &mut Daemon) {
    assert!(daemon.is_running(), "the daemon was killed");
    let client = daemon.client();
    let id = client.put(&Value::Bytes(&[7; 100_000]), Some("still here")).unwrap();
    let object = client.get(&id.into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], [7; 100_000]);
    client.delete(&[id.into()]).unwrap();
}

#[test]
fn an_eviction_without_the_stamps_of_uses() {
    // This process has clients too.
    survive_lost_pages().unwrap();
    let mut daemon = Daemon::start("64MiB", &["--no-prepare", "--evict", "lru"]);
    let client: Client = daemon.client();
    client.put(&Value::Bytes(&[1; 100_000]), None).unwrap();
    let memory = DaemonMemory::of(&daemon);
    let uses = memory.layout.uses.offset;
    // A client's first stamp may share a page with what comes before.
    let first = Offset(uses.0 / PAGE * PAGE);
    let evicted = memory.cut(first, || client.evict(1000));
    assert!(evicted.is_err(), "{evicted:?}");
    assert_serves(&mut daemon);
}

#[test]
fn a_seal_without_the_list_of_blocks() {
    let mut daemon = Daemon::start("64MiB", &["--no-prepare"]);
    let (mut raw, _welcome): (RawSocket, Welcome) = RawSocket::joined(&daemon);
    let ask = RequestBody::Grant { min: 1 << 16, want: 1 << 16, wait_ms: 0 };
    let Ok(ReplyBody::Granted(granted)) = raw.ask(ask) else { panic!("no grant") };
    let memory = DaemonMemory::of(&daemon);
    let block = |at: u64, length: u64| Span::new(Offset(granted.0 + at), Length(length));
    let (primary, extra) = (block(0, 1024), block(1024, 1024));
    let list = encode_extra(&[extra]);
    let descriptor = [1; 64];
    let at = memory.place(primary.offset);
    memory.data.write_all_at(&descriptor, at).unwrap();
    memory.data.write_all_at(&list, at + 64).unwrap();
    let item = || SealItem {
        kind: ObjectKind::Table as u8,
        descriptor: (primary.offset.0, 64),
        descriptor_crc: crc32c::crc32c(&descriptor),
        extra: vec![(extra.offset.0, 1024)],
        extra_crc: crc32c::crc32c(&list),
        ..SealItem::bytes((primary.offset.0, 1024), 1024)
    };
    let mut seal = || match raw.ask(RequestBody::Seal { items: vec![item()] }) {
        Ok(ReplyBody::Sealed(sealed)) => sealed[0].clone().map(drop),
        other => panic!("{other:?}"),
    };
    let sealed = memory.cut(memory.layout.heap.offset, &mut seal);
    assert!(sealed.is_err(), "{sealed:?}");
    memory.data.write_all_at(&list, at + 64).unwrap();
    seal().unwrap();
    assert_serves(&mut daemon);
}

/// Holds of a daemon, for readers on other nodes, are words in a page that a client can cut off.
#[test]
fn a_read_by_another_node_without_the_pages_of_holds() {
    survive_lost_pages().unwrap();
    let arguments = ["--no-prepare", "--lease-ms", "10000", "--net", "only"];
    let mut nodes = common::nodes::DaemonNodes::start(2, "16MiB", &arguments);
    let (home, far) = (nodes.client(0), nodes.client(1));
    let put = |name: &str| home.put(&Value::Bytes(&[9; 300_000]), Some(name)).unwrap();
    let get = |name: &str| {
        far.get(&name.into(), Duration::ZERO).map(|found| found.view().unwrap().to_vec())
    };
    put("before");
    put("cut");
    assert_eq!(get("before").unwrap(), [9; 300_000]);
    let memory = DaemonMemory::of(&nodes.daemons[0]);
    let cut = memory.cut(memory.layout.hold_blocks.offset, || get("cut"));
    assert!(cut.is_err(), "{:?}", cut.map(|bytes| bytes.len()));
    let reported = || (nodes.daemons[0].said("removed pages") > 0).then_some(());
    wait_for("a line in the log", reported).unwrap();
    for daemon in &mut nodes.daemons {
        assert!(daemon.is_running(), "a daemon was killed");
    }
}
