//! Objects in a file that another process truncates: an error for their readers, no signal for the
//! home, and never zeros in place of their bytes.
//!
//! A client has a writable descriptor of the memory of its node. A home that compressed, encrypted or
//! summed bytes beyond the new end of the file was killed by SIGBUS.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::Arc;

use common::identity::Authority;
use common::{LONG, ReaderOptions, TestHome, TestReader, memory, pattern, span};
use farrow_memory::{Offset, Span, lost_pages, survive_lost_pages};
use farrow_net::NetError;
use farrow_net::pack::{PackMode, PackingOptions};
use farrow_net::peer::{Piece, Placement};
use farrow_net::records::Credentials;
use farrow_net::source::table::want;

const SECTION: u64 = 16 << 20;
const TRUNCATED: u64 = 8 << 20;

fn first() -> Span {
    span(4096, 3 << 20)
}

/// It begins before the end of the truncated file.
fn last() -> Span {
    span(TRUNCATED - (1 << 20), 3 << 20)
}

fn read(reader: &TestReader, key: u64, block: Span) -> Result<Vec<u8>, NetError> {
    let opened = reader.peer.open(&want(key))?;
    let map = memory(block.length.0.next_multiple_of(1 << 20));
    let piece = Piece { from: block, to: Offset(0) };
    let placement = Placement::new(Arc::clone(&map), vec![piece]).unwrap();
    reader.peer.read(placement, opened.hold, LONG)?;
    Ok(map.sealed(span(0, block.length.0)).unwrap().to_vec())
}

fn check(packing: PackMode, [of_home, of_reader]: [Credentials; 2]) {
    let packing = || PackingOptions { packing, counts: Arc::default() };
    let home = TestHome::packing(SECTION, of_home, (LONG, packing()));
    let plain = ReaderOptions::plain(home.address, LONG);
    let settings = ReaderOptions { packing: packing(), credentials: of_reader, ..plain };
    let reader = TestReader::start(&home, settings);
    home.add(1, &[first()]);
    home.add(2, &[last()]);
    assert!(read(&reader, 2, last()).unwrap() == pattern(last()));
    let before = lost_pages();
    rustix::fs::ftruncate(home.map.file(), TRUNCATED).unwrap();
    assert!(read(&reader, 2, last()).is_err(), "a part of it is not there");
    assert!(lost_pages() > before);
    assert!(read(&reader, 1, first()).unwrap() == pattern(first()));
    assert!(read(&reader, 2, last()).is_err());
    // The home still has zeros in its map where the file has bytes again.
    rustix::fs::ftruncate(home.map.file(), SECTION).unwrap();
    home.add(2, &[last()]);
    assert!(read(&reader, 2, last()).unwrap() == pattern(last()));
}

#[test]
fn readers_of_a_truncated_file_see_an_error_or_the_right_bytes() {
    survive_lost_pages().unwrap();
    let authority = Authority::new();
    for packing in [PackMode::Off, PackMode::Lz4] {
        check(packing, [Credentials::Plain, Credentials::Plain]);
        check(packing, ["home", "reader"].map(|name| authority.credentials(name)));
    }
}
