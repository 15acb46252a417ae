//! One connection, from its first frame to its last.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use farrow_memory::{FileMap, Span};

use super::ServerShared;
use super::opens::Opens;
use super::registry::{RegistryEntry, SharedWriter};
use crate::error::{ConnectionError, FrameError};
use crate::frame::{
    CAN_PACK, ConnectionClass, ERROR_TEXT_BYTES_MAX, ErrorCode, ExpectedRanges, FrameHeader, Op,
    PeerHello, VERSION, behind, decode_packed_read, decode_ranges, piece,
};
use crate::pack::{PackMode, PackWish, Packer};
use crate::records::{FrameBody, FrameReader, FrameWriter, RecordStream};
use crate::socket::Socket;
use crate::source::{GrantId, HoldId, MemberLife, SourceRefusal};

/// Admits the connection and answers its requests until it ends.
pub(super) fn serve(
    shared: &ServerShared,
    socket: &Arc<Socket>,
    entry: &RegistryEntry,
) -> Result<(), ConnectionError> {
    let wire = RecordStream::accept(socket, &shared.credentials)?;
    let (mut reader, certificate) = (wire.reader, wire.certificate);
    let writer = Arc::new(Mutex::new(wire.writer));
    let hello = read_hello(&mut reader)?;
    let admitted = shared.registry.admit(entry, hello.class, &writer, || {
        let mut tickets = shared.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let redeemed = tickets.redeem(&hello.ticket, certificate.as_deref(), shared.now_ms());
        redeemed.map_err(|error| ConnectionError::NotAdmitted(error.to_string()))
    });
    let admitted = admitted.and_then(|member| {
        // The requests of the previous small connection are complete before this one starts.
        shared.registry.replace_small(entry, &member, hello.class, socket.frame_time())?;
        Ok(member)
    });
    let member = match admitted {
        Ok(member) => member,
        Err(error) => {
            let text = error.to_string();
            refuse(&mut lock(&writer), 0, &SourceRefusal::new(ErrorCode::Denied, text))?;
            return Err(error);
        }
    };
    let section = shared.source.map().length();
    let can_pack = shared.options.packing.packing != PackMode::Off;
    let abilities = if can_pack { CAN_PACK } else { 0 };
    lock(&writer).write_bytes(Op::Welcome, abilities, VERSION, &section.0.to_le_bytes())?;
    let opens = Opens::new(shared, socket, member.clone(), Arc::clone(&writer));
    let mut session = PeerSession {
        shared,
        socket,
        member,
        class: hello.class,
        reader,
        writer,
        packer: can_pack.then(Packer::default),
        #[cfg(feature = "rdma")]
        exposures: shared.options.rdma.clone().map(super::rdma::Exposures::new),
    };
    // The thread of waiting opens has ended when this returns.
    std::thread::scope(|scope| {
        let ended = session.run(scope, &opens);
        opens.close();
        ended
    })
}

fn lock(writer: &SharedWriter) -> std::sync::MutexGuard<'_, FrameWriter> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_hello(reader: &mut FrameReader) -> Result<PeerHello, ConnectionError> {
    let patience = reader.stall();
    let header = reader.header(patience)?;
    if header.op != Op::Hello {
        let (op, id, place) = (header.op, header.id, "as the first frame");
        return Err(FrameError::Unexpected { op, id, place }.into());
    }
    if header.offset != VERSION {
        return Err(FrameError::Version { found: header.offset, expected: VERSION }.into());
    }
    let body = reader.body(&header)?;
    Ok(PeerHello::decode(&body)?)
}

pub(super) fn refuse(
    writer: &mut FrameWriter,
    id: u64,
    refusal: &SourceRefusal,
) -> Result<(), ConnectionError> {
    let mut end = refusal.text.len().min(ERROR_TEXT_BYTES_MAX as usize);
    while !refusal.text.is_char_boundary(end) {
        end -= 1;
    }
    let text = refusal.text.get(..end).unwrap_or_default();
    writer.write_bytes(Op::Error, id, refusal.code.to_word(), text.as_bytes())
}

struct PeerSession<'a> {
    shared: &'a ServerShared,
    socket: &'a Arc<Socket>,
    member: MemberLife,
    class: ConnectionClass,
    reader: FrameReader,
    writer: SharedWriter,
    /// `None`: this node packs nothing.
    packer: Option<Packer>,
    #[cfg(feature = "rdma")]
    exposures: Option<super::rdma::Exposures>,
}

impl PeerSession<'_> {
    fn run<'scope>(
        &mut self,
        scope: &'scope Scope<'scope, '_>,
        opens: &'scope Opens<'_>,
    ) -> Result<(), ConnectionError> {
        loop {
            let header = match self.reader.header(self.shared.options.idle) {
                // No request within the limit; the client reconnects on demand.
                Err(ConnectionError::Stalled { waited }) if waited == self.shared.options.idle => {
                    return Ok(());
                }
                header => header?,
            };
            match (header.op, self.class) {
                (Op::Open, ConnectionClass::Small) => {
                    let want = self.reader.body(&header)?;
                    opens.open(scope, (header.id, HoldId(header.offset)), want)?;
                }
                _ => self.on_frame(header)?,
            }
        }
    }

    fn on_frame(&mut self, header: FrameHeader) -> Result<(), ConnectionError> {
        match (header.op, self.class) {
            (Op::Read, ConnectionClass::Small | ConnectionClass::Bulk) => {
                let ranges = decode_ranges(&self.reader.body(&header)?)?;
                self.on_read(&header, ranges, None)
            }
            (Op::ReadPacked, ConnectionClass::Bulk) => {
                let (wish, ranges) = decode_packed_read(&self.reader.body(&header)?)?;
                self.on_read(&header, ranges, Some(wish))
            }
            (Op::Push, ConnectionClass::Push) => self.on_push(&header),
            (Op::Release, ConnectionClass::Small) => {
                self.shared.source.release(&self.member, HoldId(header.offset));
                lock(&self.writer).write_bytes(Op::Released, header.id, header.offset, &[])
            }
            (Op::Invalidated, ConnectionClass::Small) => {
                self.shared.source.on_invalidated(&self.member, header.offset);
                Ok(())
            }
            (Op::Meet | Op::Expose | Op::Conceal, ConnectionClass::Rdma) => self.on_rdma(&header),
            (op, _) => {
                let place = "at a server, on a connection of another class";
                Err(FrameError::Unexpected { op, id: header.id, place }.into())
            }
        }
    }

    fn on_read(
        &mut self,
        header: &FrameHeader,
        ranges: Vec<Span>,
        wish: Option<PackWish>,
    ) -> Result<(), ConnectionError> {
        let hold = HoldId(header.offset);
        let guard = self.shared.source.read(&self.member, hold, &ranges);
        let mut writer = lock(&self.writer);
        let _guard = match guard {
            Ok(guard) => guard,
            Err(refusal) => return refuse(&mut writer, header.id, &refusal),
        };
        let map = self.shared.source.map();
        let mut packer = self.packer.as_mut().filter(|_| wish.is_some());
        let longest = ranges.iter().max_by_key(|range| range.length.0);
        if let (Some(one), Some(wish), Some(longest)) = (&mut packer, wish, longest)
            && !one.should_pack(wish, &map.read(piece(*longest))?)
        {
            packer = None;
        }
        let counts = &*self.shared.options.packing.counts;
        for range in ranges {
            let mut rest = Some(range);
            while let Some(range) = rest {
                let piece = piece(range);
                let (offset, length) = (piece.offset.0, piece.length.0);
                let packed = match &mut packer {
                    Some(packer) => {
                        let bytes = map.read(piece)?;
                        let packed = packer.pack(&bytes, counts);
                        bytes.check()?;
                        packed
                    }
                    None => None,
                };
                match packed {
                    Some(packed) => writer.write_bytes(Op::Packed, header.id, offset, packed)?,
                    None => {
                        let head = FrameHeader::new(Op::Data, header.id, offset, length);
                        writer.write(head, FrameBody::Map(map, piece))?;
                    }
                }
                rest = behind(range, piece.length);
                if self.socket.is_cut() {
                    return Err(ConnectionError::Cut("cut while sending".into()));
                }
            }
        }
        Ok(())
    }

    /// Only network cards read on such a connection, where this node has one.
    fn on_rdma(&mut self, header: &FrameHeader) -> Result<(), ConnectionError> {
        let body = self.reader.body(header)?;
        let mut writer = lock(&self.writer);
        #[cfg(feature = "rdma")]
        if let Some(exposures) = &mut self.exposures {
            let source = &*self.shared.source;
            return match exposures.on_frame(source, &self.member, header, &body)? {
                Ok(Some((op, body))) => writer.write_bytes(op, header.id, header.offset, &body),
                Ok(None) => Ok(()),
                Err(refusal) => refuse(&mut writer, header.id, &refusal),
            };
        }
        drop(body);
        let refusal = SourceRefusal::new(ErrorCode::Denied, "this node uses no RDMA");
        refuse(&mut writer, header.id, &refusal)
    }

    /// Checks the grant, and receives directly into the heap. A refused push is read to its end, so
    /// that the client receives the reason.
    fn on_push(&mut self, header: &FrameHeader) -> Result<(), ConnectionError> {
        let ranges = decode_ranges(&self.reader.body(header)?)?;
        let (id, grant) = (header.id, GrantId(header.offset));
        let refusal = match &self.shared.target {
            None => SourceRefusal::new(ErrorCode::Denied, "this node takes no pushes"),
            Some(target) => match target.write(&self.member, grant, &ranges) {
                Ok(_guard) => {
                    receive(&mut self.reader, id, &ranges, Some(target.map()))?;
                    match target.written(&self.member, grant, &ranges) {
                        Ok(()) => {
                            return lock(&self.writer).write_bytes(Op::Pushed, id, grant.0, &[]);
                        }
                        Err(refusal) => return refuse(&mut lock(&self.writer), id, &refusal),
                    }
                }
                Err(refusal) => refusal,
            },
        };
        receive(&mut self.reader, id, &ranges, None)?;
        refuse(&mut lock(&self.writer), id, &refusal)
    }
}

/// Receives the data of a push into a map, or discards it.
fn receive(
    reader: &mut FrameReader,
    id: u64,
    ranges: &[Span],
    map: Option<&Arc<FileMap>>,
) -> Result<(), ConnectionError> {
    let mut expected = ExpectedRanges::new(id, ranges);
    while !expected.is_done() {
        let header = reader.header(reader.stall())?;
        if header.op != Op::Data {
            let place = "where data of a push is due";
            return Err(FrameError::Unexpected { op: header.op, id: header.id, place }.into());
        }
        let piece = expected.check(&header)?;
        match map {
            Some(map) => reader.body_into(&header, map, piece)?,
            None => drop(reader.body(&header)?),
        }
        expected.advance();
    }
    Ok(())
}
