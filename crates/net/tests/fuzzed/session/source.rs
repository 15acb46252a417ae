//! Objects and grants with rights, over the table of the crate.

use std::sync::{Arc, Mutex};

use farrow_memory::{FileMap, Offset, Span};
use farrow_net::CHUNK_BYTES;
use farrow_net::frame::{ErrorCode, Opened};
use farrow_net::source::table::TableSource;
use farrow_net::source::{GrantId, Guard, HoldId, MemberLife, PushTarget, Source, SourceRefusal};

use super::super::{BLOCK, SECTION};
use crate::common::{member, memory, pattern, span};

/// The member that may read all objects but one, and the one that may read all of them.
pub const MEMBERS: [&str; 2] = ["liar", "owner"];

/// An object of several pieces, which every member may read.
pub const PLAIN: u64 = 1;
/// An object that only the owner may read.
pub const SECRET: u64 = 2;
/// An object that is on its way into memory, and does not arrive.
pub const AWAY: u64 = 3;
/// An object that an answer to Open includes.
pub const SMALL: u64 = 4;
/// An object that shrinks when it is packed.
pub const FLAT: u64 = 5;

pub fn objects() -> [(u64, Span); 4] {
    [
        (PLAIN, BLOCK),
        (SECRET, span(0x6_8000, CHUNK_BYTES)),
        (SMALL, span(0x7_F000, 100)),
        (FLAT, span(0x8_0000, 0x1_8000)),
    ]
}

pub fn block_of(key: u64) -> Option<Span> {
    objects().iter().find(|(of, _)| *of == key).map(|(_, block)| *block)
}

/// Grant 1 is the liar's, grant 2 the owner's.
pub fn grants() -> [Span; 2] {
    [2, 3].map(|chunks| span(SECTION - chunks * CHUNK_BYTES, CHUNK_BYTES))
}

#[derive(Default)]
struct Log {
    /// Questions for the object that is away.
    requested: u64,
    written: Vec<(GrantId, Vec<Span>)>,
}

/// A table whose secret object has an owner.
pub struct GatedSource {
    pub table: Arc<TableSource>,
    map: Arc<FileMap>,
    log: Mutex<Log>,
}

impl GatedSource {
    /// Returns the source, and all bytes of its memory.
    pub fn new() -> (Arc<Self>, Vec<u8>) {
        let map = memory(SECTION);
        let table = TableSource::new(Arc::clone(&map));
        let mut image = vec![0; SECTION as usize];
        for (key, block) in objects() {
            let bytes = match key {
                FLAT => vec![0x77; block.length.as_usize()],
                _ => pattern(block),
            };
            map.write(block.offset, &bytes).unwrap();
            image[block.offset.0 as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        (Arc::new(Self { table, map, log: Mutex::default() }), image)
    }

    /// Adds all objects and grants.
    pub fn reset(&self) {
        for name in MEMBERS {
            self.table.forget(&member(name));
        }
        for (key, block) in objects() {
            self.table.add(key, vec![block]);
        }
        for (number, (grant, name)) in (1..).zip(grants().into_iter().zip(MEMBERS)) {
            self.table.grant(GrantId(number), &member(name), grant);
        }
        *self.log.lock().unwrap() = Log::default();
    }

    /// All acknowledged pushes.
    pub fn written(&self) -> Vec<(GrantId, Vec<Span>)> {
        self.log.lock().unwrap().written.clone()
    }

    pub fn bytes(&self, offset: u64, length: u64) -> &[u8] {
        self.map.sealed(span(offset, length)).unwrap()
    }
}

impl Source for GatedSource {
    fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    fn open(
        &self,
        member: &MemberLife,
        hold: HoldId,
        want: &[u8],
    ) -> Result<Opened, SourceRefusal> {
        match want.try_into().map(u64::from_le_bytes) {
            Ok(SECRET) if member.name != MEMBERS[1] => {
                Err(SourceRefusal::new(ErrorCode::Denied, "the object is the owner's"))
            }
            Ok(AWAY) => {
                let mut log = self.log.lock().unwrap();
                log.requested += 1;
                match log.requested % 2 {
                    1 => Err(SourceRefusal::passing("on its way")),
                    _ => Err(SourceRefusal::new(ErrorCode::NotFound, "it did not arrive")),
                }
            }
            _ => self.table.open(member, hold, want),
        }
    }

    fn read(
        &self,
        member: &MemberLife,
        hold: HoldId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal> {
        self.table.read(member, hold, ranges)
    }

    fn release(&self, member: &MemberLife, hold: HoldId) {
        self.table.release(member, hold);
    }

    fn on_invalidated(&self, _: &MemberLife, _: u64) {}
}

impl PushTarget for GatedSource {
    fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    fn write(
        &self,
        member: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal> {
        self.table.write(member, grant, ranges)
    }

    fn written(
        &self,
        _: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<(), SourceRefusal> {
        // The guard of `write` must still live.
        assert!(self.table.guards() > 0, "no guard for {ranges:?}");
        self.log.lock().unwrap().written.push((grant, ranges.to_vec()));
        Ok(())
    }
}

/// Ranges at the edges of the objects and grants, and outside of them.
pub fn edge(number: u8, length: u64) -> Span {
    let [_, (_, secret), (_, small), (_, flat)] = objects();
    let [own, foreign] = grants();
    let starts = [
        BLOCK.offset,
        Offset(BLOCK.end().unwrap_or_default().0.saturating_sub(length)),
        secret.offset,
        small.offset,
        flat.offset,
        own.offset,
        foreign.offset,
        Offset(BLOCK.offset.0 - 1),
        Offset(BLOCK.end().unwrap_or_default().0 - 1),
        Offset(SECTION - 1),
        Offset(0),
        Offset(u64::MAX - length / 2),
    ];
    Span::new(starts[usize::from(number) % starts.len()], farrow_memory::Length(length))
}
