//! What a server must answer: a second, slower account of the protocol, without sockets and threads.

use std::collections::BTreeMap;

use farrow_memory::Span;
use farrow_net::frame::{
    ConnectionClass, ErrorCode, ExpectedRanges, FrameHeader, HEADER_BYTES, Op, PeerHello, VERSION,
    behind, decode_packed_read, decode_ranges, piece,
};
use farrow_net::ticket::Ticket;

use super::source::{AWAY, SECRET, block_of, grants};

/// An answer that the model expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer {
    Welcome,
    Opened {
        id: u64,
        hold: u64,
        key: u64,
    },
    Pieces {
        id: u64,
        pieces: Vec<Span>,
        may_pack: bool,
    },
    Released {
        id: u64,
        hold: u64,
    },
    /// The pieces with their bytes.
    Pushed {
        id: u64,
        grant: u64,
        pieces: Vec<(Span, Vec<u8>)>,
    },
    Error {
        id: u64,
        code: ErrorCode,
    },
    Invalidate {
        object: u64,
    },
}

/// A push whose data is due.
pub struct Pushing {
    header: FrameHeader,
    ranges: Vec<Span>,
    expected: ExpectedRanges,
    is_accepted: bool,
    pieces: Vec<(Span, Vec<u8>)>,
}

#[derive(Default)]
pub enum Phase {
    #[default]
    Hello,
    Serving(usize, ConnectionClass),
    Ended,
}

/// One connection: what it received and did not use yet.
#[derive(Default)]
pub struct ModelledSession {
    received: Vec<u8>,
    pub phase: Phase,
    /// What was admitted, also if the connection ended then.
    pub admitted: Option<(usize, ConnectionClass)>,
    pub push: Option<Pushing>,
}

/// What all connections share.
#[derive(Default)]
pub struct Shared {
    /// Members of tickets that were not used.
    pub tickets: Vec<(Ticket, usize)>,
    /// Objects by member and hold.
    pub holds: BTreeMap<(usize, u64), u64>,
    /// Objects that exist.
    pub objects: Vec<u64>,
    /// Members whose grants have ended.
    pub is_forgotten: [bool; 2],
    /// Acknowledged pushes.
    pub written: Vec<(u64, Vec<Span>)>,
}

impl ExpectedAnswer {
    /// Its kind, for counts.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Welcome => "welcome",
            Self::Opened { .. } => "opened",
            Self::Pieces { may_pack: false, .. } => "read",
            Self::Pieces { may_pack: true, .. } => "read packed",
            Self::Released { .. } => "released",
            Self::Pushed { .. } => "pushed",
            Self::Error { code: ErrorCode::NotFound, .. } => "not found",
            Self::Error { code: ErrorCode::Denied, .. } => "denied",
            Self::Error { code: ErrorCode::NotHeld, .. } => "not held",
            Self::Error { .. } => "taken",
            Self::Invalidate { .. } => "invalidate",
        }
    }
}

impl ModelledSession {
    /// The member of an admitted connection.
    pub fn member(&self) -> Option<(usize, ConnectionClass)> {
        match self.phase {
            Phase::Serving(member, class) => Some((member, class)),
            Phase::Hello | Phase::Ended => None,
        }
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Whether the data of a granted push is due.
    pub fn is_writing(&self) -> bool {
        !self.is_ended() && self.push.as_ref().is_some_and(|push| push.is_accepted)
    }

    /// The next piece of the push whose data is due, and the number of the push.
    pub fn due(&self) -> Option<(u64, Span)> {
        let push = self.push.as_ref()?;
        Some((push.header.id, push.expected.next()?))
    }

    /// Takes bytes, and returns all answers to the frames that are complete with them.
    pub fn feed(&mut self, bytes: &[u8], shared: &mut Shared) -> Vec<ExpectedAnswer> {
        self.received.extend(bytes);
        let mut answers = Vec::new();
        while !self.is_ended() {
            match self.step(shared, &mut answers) {
                Some(true) => {}
                Some(false) => self.phase = Phase::Ended,
                None => break,
            }
        }
        answers
    }

    /// Handles one frame. `None`: it is not complete; false: it ends the connection.
    fn step(&mut self, shared: &mut Shared, answers: &mut Vec<ExpectedAnswer>) -> Option<bool> {
        let head = *self.received.first_chunk::<HEADER_BYTES>()?;
        let Ok(header) = FrameHeader::decode(&head, true) else { return Some(false) };
        if header.length == 0 && header.verify(&head, &[]).is_err() {
            return Some(false);
        }
        if !self.is_due(&header) {
            return Some(false);
        }
        let end = HEADER_BYTES + header.length as usize;
        let body = self.received.get(HEADER_BYTES..end)?.to_vec();
        self.received.drain(..end);
        if header.verify(&head, &body).is_err() {
            return Some(false);
        }
        Some(match self.phase {
            Phase::Ended => false,
            Phase::Hello => self.hello(&body, shared, answers),
            Phase::Serving(..) if self.push.is_some() => self.data(body, shared, answers),
            Phase::Serving(..) => self.request(&header, &body, shared, answers),
        })
    }

    /// Whether a frame may have this header. The server reads no body of another one.
    fn is_due(&self, header: &FrameHeader) -> bool {
        let class = match self.phase {
            Phase::Ended => return false,
            Phase::Hello => return header.op == Op::Hello && header.offset == VERSION,
            Phase::Serving(_, class) => class,
        };
        if let Some(push) = &self.push {
            return header.op == Op::Data && push.expected.check(header).is_ok();
        }
        match class {
            ConnectionClass::Small => {
                matches!(header.op, Op::Open | Op::Read | Op::Release | Op::Invalidated)
            }
            ConnectionClass::Bulk => matches!(header.op, Op::Read | Op::ReadPacked),
            ConnectionClass::Push => header.op == Op::Push,
            ConnectionClass::Rdma => matches!(header.op, Op::Meet | Op::Expose | Op::Conceal),
        }
    }

    fn hello(
        &mut self,
        body: &[u8],
        shared: &mut Shared,
        answers: &mut Vec<ExpectedAnswer>,
    ) -> bool {
        let Ok(hello) = PeerHello::decode(body) else { return false };
        let known = shared.tickets.iter().position(|(ticket, _)| *ticket == hello.ticket);
        let Some(known) = known else {
            answers.push(ExpectedAnswer::Error { id: 0, code: ErrorCode::Denied });
            return false;
        };
        let (_, member) = shared.tickets.swap_remove(known);
        self.phase = Phase::Serving(member, hello.class);
        self.admitted = Some((member, hello.class));
        answers.push(ExpectedAnswer::Welcome);
        true
    }

    fn request(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        shared: &mut Shared,
        answers: &mut Vec<ExpectedAnswer>,
    ) -> bool {
        let Some((member, _)) = self.member() else { return false };
        let (id, at) = (header.id, header.offset);
        let ranges = match header.op {
            Op::Read | Op::Push => decode_ranges(body),
            Op::ReadPacked => decode_packed_read(body).map(|(_, ranges)| ranges),
            _ => Ok(Vec::new()),
        };
        let Ok(ranges) = ranges else { return false };
        match header.op {
            Op::Open => answers.push(shared.open(member, header, body)),
            Op::Read | Op::ReadPacked => {
                let may_pack = header.op == Op::ReadPacked;
                let answer = match shared.may_read(member, at, &ranges) {
                    true => ExpectedAnswer::Pieces { id, pieces: pieces(&ranges), may_pack },
                    false => ExpectedAnswer::Error { id, code: ErrorCode::NotHeld },
                };
                answers.push(answer);
            }
            Op::Push => {
                let expected = ExpectedRanges::new(id, &ranges);
                let is_accepted = shared.may_write(member, at, &ranges);
                let (header, pieces) = (*header, Vec::new());
                self.push = Some(Pushing { header, ranges, expected, is_accepted, pieces });
            }
            Op::Release => {
                shared.holds.remove(&(member, at));
                answers.push(ExpectedAnswer::Released { id, hold: at });
            }
            Op::Invalidated => {}
            _ => answers.push(ExpectedAnswer::Error { id, code: ErrorCode::Denied }),
        }
        true
    }

    fn data(
        &mut self,
        body: Vec<u8>,
        shared: &mut Shared,
        answers: &mut Vec<ExpectedAnswer>,
    ) -> bool {
        let Some(push) = &mut self.push else { return false };
        let Some(piece) = push.expected.next() else { return false };
        push.pieces.push((piece, body));
        push.expected.advance();
        if !push.expected.is_done() {
            return true;
        }
        let Some(push) = self.push.take() else { return false };
        let (id, grant) = (push.header.id, push.header.offset);
        if !push.is_accepted {
            answers.push(ExpectedAnswer::Error { id, code: ErrorCode::NotHeld });
            return true;
        }
        shared.written.push((grant, push.ranges));
        let mut pieces = push.pieces;
        // Later pieces of one push may overwrite earlier ones.
        let is_last = |at: usize, all: &[(Span, Vec<u8>)]| {
            all.iter().skip(at + 1).all(|(later, _)| !later.overlaps(all[at].0))
        };
        let retained: Vec<bool> = (0..pieces.len()).map(|at| is_last(at, &pieces)).collect();
        let mut retained = retained.into_iter();
        pieces.retain(|_| retained.next() == Some(true));
        answers.push(ExpectedAnswer::Pushed { id, grant, pieces });
        true
    }
}

impl Shared {
    fn open(&mut self, member: usize, header: &FrameHeader, want: &[u8]) -> ExpectedAnswer {
        let (id, hold) = (header.id, header.offset);
        let key = want.try_into().map(u64::from_le_bytes);
        let code = match key {
            Ok(SECRET) if member == 0 => ErrorCode::Denied,
            Ok(AWAY) => ErrorCode::NotFound,
            Ok(key) if self.objects.contains(&key) => {
                if let std::collections::btree_map::Entry::Vacant(free) =
                    self.holds.entry((member, hold))
                {
                    free.insert(key);
                    return ExpectedAnswer::Opened { id, hold, key };
                }
                ErrorCode::Other
            }
            _ => ErrorCode::NotFound,
        };
        ExpectedAnswer::Error { id, code }
    }

    fn may_read(&self, member: usize, hold: u64, ranges: &[Span]) -> bool {
        let key = self.holds.get(&(member, hold)).filter(|key| self.objects.contains(key));
        let block = key.and_then(|key| block_of(*key));
        block.is_some_and(|block| ranges.iter().all(|range| block.contains(*range)))
    }

    fn may_write(&self, member: usize, grant: u64, ranges: &[Span]) -> bool {
        let own = grants()[member];
        let is_own = grant == member as u64 + 1 && !self.is_forgotten[member];
        is_own && ranges.iter().all(|range| own.contains(*range))
    }
}

fn pieces(ranges: &[Span]) -> Vec<Span> {
    let mut pieces = Vec::new();
    for range in ranges {
        let mut rest = Some(*range);
        while let Some(range) = rest {
            let next = piece(range);
            pieces.push(next);
            rest = behind(range, next.length);
        }
    }
    pieces
}
