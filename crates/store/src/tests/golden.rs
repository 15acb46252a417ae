//! Version 3, to the byte: a region made by today's code equals `golden_v3.txt`, and the region in
//! that file can be opened. If this fails, either the code is wrong or the format has another
//! version number.

use farrow_memory::{Access, Length, Offset, Span};

use super::support::{TestClient, TestRegion, part, table};
use crate::format::hash::HashKey;
use crate::format::header::RegionHeader;
use crate::{
    FormatError, Home, Layout, NamespaceId, NamespaceOptions, ObjectId, Reader, RegionOptions,
    RegionUid, SealRequest, StoreError, Target,
};

/// Words that are not 0, one a line: offset and value. Lines with `#` describe the following words.
const GOLDEN: &str = include_str!("golden_v3.txt");

/// The nonces of clients are random. Word 3 of records 0 and 1 of the client table.
const NONCES: [u64; 2] = [4096 + 24, 4096 + 64 + 24];

fn options() -> RegionOptions {
    RegionOptions {
        capacity: Length(4 << 12),
        objects_max: 4,
        clients_max: 2,
        hold_blocks_max: 2,
        grants_max: 4,
        name_bytes: Length(128),
        client_objects_max: 42,
        events_max: 4,
        namespaces_max: 2,
    }
}

/// The region of the golden file: plain bytes with a name, a table of two blocks that is held, a
/// deleted object, one sealed by the client without the home, the rest of an extent, and a
/// namespace with an object and a client in it.
fn make(world: &TestRegion) -> (Home, TestClient) {
    let header = RegionHeader {
        uid: RegionUid(0x1122_3344_5566_7788),
        key: HashKey([0x0101, 0x0202]),
        created_at_ns: 1_000,
        layout: Layout::new(&options()).unwrap(),
    };
    let mut home = Home::create_as(world.map(Access::Home), header, Length(u64::MAX)).unwrap();
    let client = TestClient::join(world, &mut home).unwrap();
    let extent = home.grant(client.slot, Length(2 << 12), Length(2 << 12)).unwrap();
    client.write(extent.offset, b"hello, far memory");
    let request = SealRequest::bytes(part(extent, 0, 128), Length(17), Some("greeting"));
    home.seal(client.slot, &request, 2_000).unwrap();
    let removed = SealRequest::bytes(part(extent, 128, 128), Length(0), Some("gone"));
    let removed = home.seal(client.slot, &removed, 3_000).unwrap();
    client.write(Offset(extent.offset.0 + 4096), &[7; 8]);
    let blocks = [part(extent, 4096, 1024)];
    let request = table(&client, part(extent, 256, 128), &blocks, Some("table"));
    let id = home.seal(client.slot, &request, 4_000).unwrap();
    home.delete(Target::Id(removed)).unwrap();
    client.entries.add_pages(home.entry_pages(client.slot, 1).unwrap()).unwrap();
    client.seal_local(part(extent, 384, 128), 5_000).unwrap();
    let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap().unwrap();
    client.holds.abandon();
    drop(held);
    let team = NamespaceOptions {
        name: "team".to_owned(),
        bytes_max: Some(8192),
        objects_max: Some(9),
        writers: Some(vec![1000, 1001, 1002]),
    };
    home.create_namespace(&team).unwrap();
    let member = TestClient::join_in(world, &mut home, "team").unwrap();
    let extent = home.grant(member.slot, Length(1 << 12), Length(1 << 12)).unwrap();
    let request = SealRequest::bytes(part(extent, 0, 128), Length(3), Some("team\0greeting"));
    home.seal(member.slot, &request, 6_000).unwrap();
    (home, client)
}

/// All words of the region that are not 0.
fn words(world: &TestRegion) -> Vec<(u64, u64)> {
    let region = world.map(Access::Client);
    let words = region.words(Span::new(Offset(0), region.length())).unwrap();
    let load = |i| words.load(i, farrow_memory::sync::Ordering::Relaxed).unwrap();
    let all = (0..words.len()).map(|i| (i as u64 * 8, load(i)));
    all.filter(|(at, word)| *word != 0 && !NONCES.contains(at)).collect()
}

fn golden() -> Vec<(u64, u64)> {
    let lines = GOLDEN.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    lines.map(|line| line.split_once(' ').unwrap()).map(|(a, b)| (number(a), number(b))).collect()
}

#[test]
fn todays_code_makes_the_golden_image() {
    let world = TestRegion::new(options());
    let _made = make(&world);
    let found = words(&world);
    let text: String = found.iter().map(|(at, word)| format!("{at:06x} {word:016x}\n")).collect();
    assert_eq!(found, golden(), "the image is now:\n{text}");
}

#[test]
fn the_golden_image_can_be_opened() {
    let world = TestRegion::new(options());
    let control = Layout::new(&options()).unwrap().geometry.control.0;
    let region = world.map(Access::Home);
    let data = Span::new(Offset(control), Length(region.length().0 - control));
    let alias = region.alias(data).unwrap();
    for (at, word) in golden() {
        if at < control {
            region.write(Offset(at), &word.to_le_bytes()).unwrap();
        } else {
            alias.write(Offset(at), &word.to_le_bytes()).unwrap();
        }
    }
    let reader = world.reader();
    let id: ObjectId = "11223344556677880000000100000000".parse().unwrap();
    let entry = reader.by_id(id).unwrap().unwrap();
    assert_eq!(reader.find("greeting").unwrap(), Some(entry));
    let mut bytes = [0; 17];
    reader.region().copy_out(entry.payload().offset, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello, far memory");
    let table = reader.find("table").unwrap().unwrap();
    assert_eq!(reader.blocks(&table).unwrap()[1].length.0, 1024);
    assert_eq!(reader.find("gone").unwrap(), None);
    let own: ObjectId = "11223344556677880000000100000004".parse().unwrap();
    assert_eq!(reader.by_id(own).unwrap().unwrap().sealed_at_ns, 5_000);
    let team = world.reader().in_namespace(NamespaceId(1), "team");
    let theirs = team.find("greeting").unwrap().unwrap();
    assert_eq!((theirs.namespace, theirs.size.0, theirs.id == id), (NamespaceId(1), 3, false));
    assert_eq!(team.name_of(&theirs).unwrap().as_deref(), Some("greeting"));

    let mut home = world.adopt();
    assert_eq!(home.life(), 2);
    let stats = home.stats().unwrap();
    assert_eq!((stats.objects, stats.holds, stats.clients), (4, 1, 2));
    let made = home.namespace("team").unwrap().options.clone();
    assert_eq!((made.bytes_max, made.objects_max), (Some(8192), Some(9)));
    assert_eq!(made.writers, Some(vec![1000, 1001, 1002]));
    assert!(!home.delete(Target::Name("table")).unwrap().freed_now);
}

#[test]
fn another_version_is_refused_with_both_numbers() {
    let world = TestRegion::new(options());
    let _made = make(&world);
    let region = world.map(Access::Home);
    region.write(Offset(8), &7u32.to_le_bytes()).unwrap();
    let expected = FormatError::OtherVersion { found: 7, known: 3 };
    assert_eq!(Reader::open(world.map(Access::Client)).unwrap_err(), expected);
    match Home::adopt(world.map(Access::Home)) {
        Err(StoreError::Format(found)) => assert_eq!(found, expected),
        other => panic!("{other:?}"),
    }
    assert_eq!(expected.to_string(), "region format version 7; this program knows version 3");
}

#[test]
fn a_region_that_is_shorter_than_its_header_says_is_refused() {
    let long = TestRegion::new(options());
    let _made = make(&long);
    let mut shorter = options();
    shorter.capacity = Length(3 << 12);
    let short = TestRegion::new(shorter);
    let mut header = vec![0; 4096];
    long.map(Access::Client).copy_out(Offset(0), &mut header).unwrap();
    short.map(Access::Home).write(Offset(0), &header).unwrap();
    let error = Reader::open(short.map(Access::Client)).unwrap_err();
    assert!(matches!(error, FormatError::Truncated { .. }), "{error}");
    assert!(Home::adopt(short.map(Access::Home)).is_err());
    let empty = TestRegion::new(options());
    let error = Reader::open(empty.map(Access::Client)).unwrap_err();
    assert_eq!(error, FormatError::BadMagic { found: 0 });
}
