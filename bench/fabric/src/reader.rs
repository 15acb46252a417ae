//! The fabric's side of the comparison: a cache, a mirror and a peer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length, Offset, Span};
use farrow_net::cache::{Cache, Mirror, MirrorHold};
use farrow_net::peer::{Peer, PeerOptions};
use farrow_net::records::Credentials;
use farrow_net::source::HoldId;
use farrow_net::source::table::want;

use crate::AnyError;
use crate::home::{HomeProcess, SMALL, TABLE, socket_options};

const TIME: Duration = Duration::from_secs(300);

/// The file of a mirror, and the size of its pages.
pub struct MirrorMemory {
    pub map: Arc<FileMap>,
    pub grain: Length,
}

pub struct MirrorReader {
    mirror: Arc<Mirror>,
    peer: Peer,
}

impl MirrorReader {
    pub fn start(
        home: &HomeProcess,
        layer: &'static str,
        connections: usize,
        congestion: &str,
        memory: MirrorMemory,
    ) -> Result<Self, AnyError> {
        let greeting = &home.greeting;
        let (address, credentials) = match layer {
            "tls" => (greeting.tls, greeting.credentials()?),
            _ => (greeting.plain, Credentials::Plain),
        };
        let section = Length(greeting.section);
        let options = PeerOptions {
            socket: socket_options(congestion),
            bulk_connections: connections,
            ..PeerOptions::new("home", address, section)
        };
        let peer = Peer::start(options, credentials, home.control(layer))?;
        let MirrorMemory { map, grain } = memory;
        let cache = Cache::new(Length(section.0 + 2 * grain.0));
        let mirror = cache.mirror(map, grain)?;
        Ok(Self { mirror, peer })
    }

    /// Commits the pages of ranges, until their bytes are removed.
    pub fn commit(&self, ranges: &[Span]) -> Result<(), AnyError> {
        Ok(ranges.iter().try_for_each(|range| self.mirror.map().commit(*range))?)
    }

    pub fn open(&self) -> Result<(HoldId, MirrorHold), AnyError> {
        let opened = self.peer.open(&want(TABLE))?;
        let held = self.mirror.insert(TABLE, &opened.opened.blocks, TIME)?;
        Ok((opened.hold, held))
    }

    /// All steps from the name: open, insert, fetch.
    pub fn fetch(&self, ranges: &[Span]) -> Result<(HoldId, MirrorHold), AnyError> {
        let (hold, held) = self.open()?;
        self.peer.fetch(&held, hold, ranges, TIME)?;
        Ok((hold, held))
    }

    /// Restores the state before the first fetch.
    pub fn forget(&self, (hold, held): (HoldId, MirrorHold)) {
        drop(held);
        self.mirror.remove(TABLE);
        self.peer.release(hold);
    }

    /// A small object, the node's first fetch of it: its bytes arrive with the answer. Returns the
    /// time until they are in the mirror, without the time to forget it.
    pub fn fetch_small(&self) -> Result<Duration, AnyError> {
        let begin = Instant::now();
        let opened = self.peer.open(&want(SMALL))?;
        let held = self.mirror.insert(SMALL, &opened.opened.blocks, TIME)?;
        let claim = held.claim(&opened.opened.blocks, TIME)?;
        let offset = opened.opened.blocks.first().map_or(Offset(0), |block| block.offset);
        claim.put(offset, &opened.opened.inline)?;
        let elapsed = begin.elapsed();
        drop((claim, held));
        self.mirror.remove(SMALL);
        self.peer.release(opened.hold);
        Ok(elapsed)
    }

    /// One range of an open table.
    pub fn fetch_more(
        &self,
        (hold, held): &(HoldId, MirrorHold),
        range: Span,
    ) -> Result<(), AnyError> {
        self.peer.fetch(held, *hold, &[range], TIME)?;
        Ok(())
    }

    pub fn bytes(&self, span: Span) -> Result<&[u8], AnyError> {
        Ok(self.mirror.map().sealed(span)?)
    }
}
