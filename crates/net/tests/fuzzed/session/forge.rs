//! Frames that fit the state of a connection, mostly, with offsets, ids and lengths at the edges.

use farrow_memory::Span;
use farrow_net::frame::{
    ConnectionClass, ENDPOINT_BYTES, FrameHeader, Op, RANGES_MAX, READ_BYTES_MAX,
    encode_packed_read, encode_ranges,
};
use farrow_net::pack::PackWish;
use farrow_net::source::table::want;

use crate::common::span;

use super::super::{Dice, PIECE_BYTES_MAX};
use super::model::{ModelledSession, Shared};
use super::source::{FLAT, block_of, edge, grants};

/// The next frame of a connection.
pub(super) fn frame(session: &ModelledSession, shared: &Shared, dice: &mut Dice<'_>) -> Vec<u8> {
    if dice.byte().is_multiple_of(32) {
        return dice.frame(&[1, 2]);
    }
    if let Some((id, piece)) = session.due() {
        return data(id, piece, dice);
    }
    let op = match session.member() {
        Some((_, ConnectionClass::Small)) => {
            dice.pick(&[Op::Open, Op::Open, Op::Read, Op::Read, Op::Release, Op::Invalidated])
        }
        Some((_, ConnectionClass::Bulk)) => dice.pick(&[Op::Read, Op::ReadPacked]),
        Some((_, ConnectionClass::Push)) => Op::Push,
        Some((_, ConnectionClass::Rdma)) => dice.pick(&[Op::Meet, Op::Expose, Op::Conceal]),
        None => return dice.frame(&[]),
    };
    let (at, key) = target(session, shared, dice);
    let body = match op {
        Op::Open => match dice.byte() % 16 {
            0 => vec![dice.byte(); usize::from(dice.byte()) + 1],
            // The last one takes some milliseconds.
            _ => want(dice.pick(&[1, 5, 5, 4, 5, 2, 6, 0, 1, 5, 4, 1, 5, 1, 4, 3])).to_vec(),
        },
        Op::Read | Op::Expose => encode_ranges(&ranges(dice, block_of(key))),
        Op::Push => encode_ranges(&ranges(dice, Some(grants()[usize::from(at == 2)]))),
        Op::ReadPacked => {
            let wish = PackWish { rate: dice.pick(&[0, 0, 1, 1_000_000, u64::MAX]) };
            encode_packed_read(wish, &ranges(dice, block_of(key)))
        }
        Op::Meet => vec![dice.byte(); ENDPOINT_BYTES],
        _ => Vec::new(),
    };
    whole(op, dice.word(), at, &body)
}

/// Data of a push, mostly of the piece that is due.
fn data(id: u64, piece: Span, dice: &mut Dice<'_>) -> Vec<u8> {
    let (mut id, mut offset, mut length) = (id, piece.offset.0, piece.length.0);
    match dice.byte() % 32 {
        0 => id = id.wrapping_add(1),
        1 => offset = dice.word(),
        2 => length = (length + 1).min(PIECE_BYTES_MAX),
        3 => length = length.saturating_sub(1).max(1),
        _ => {}
    }
    whole(Op::Data, id, offset, &vec![dice.byte(); length as usize])
}

fn whole(op: Op, id: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    let head = FrameHeader::new(op, id, offset, body.len() as u64).encode(body, true);
    [&head[..], body].concat()
}

/// A hold or a grant, and the object of the hold: mostly one that the member has.
fn target(session: &ModelledSession, shared: &Shared, dice: &mut Dice<'_>) -> (u64, u64) {
    let member = session.member().map_or(0, |(member, _)| member);
    let number = u64::from(dice.byte() % 3) + 1;
    let key = |at: u64| shared.holds.get(&(member, at)).copied();
    match (dice.byte() % 32, session.member()) {
        (0, _) => (dice.word(), 1),
        (1..8, _) => (number, dice.pick(&[1, 2, 4, FLAT])),
        (_, Some((_, ConnectionClass::Push))) => (member as u64 + 1, 1),
        _ => {
            let held = (1..=3).cycle().skip(number as usize).take(3).find(|at| key(*at).is_some());
            let at = held.unwrap_or(number);
            (at, key(at).unwrap_or(1))
        }
    }
}

/// Ranges within an object or grant, mostly.
fn ranges(dice: &mut Dice<'_>, whole: Option<Span>) -> Vec<Span> {
    let count = match dice.byte() {
        0 => RANGES_MAX,
        1 => RANGES_MAX + 1,
        2 => 0,
        few => usize::from(few % 3) + 1,
    };
    let lengths = [1, 2, 100, 4096, 65_536, 65_537, READ_BYTES_MAX, u64::MAX];
    let mut one = || match (dice.byte() % 16, whole) {
        (0, _) | (_, None) => edge(dice.byte(), dice.pick(&lengths)),
        (1, Some(whole)) => whole,
        (_, Some(whole)) => {
            let from = dice.word() % whole.length.0;
            let most = (whole.length.0 - from).min(20_000);
            let length = 1 + u64::from(dice.byte()) * 997 % most;
            span(whole.offset.0 + from, length)
        }
    };
    (0..count).map(|_| one()).collect()
}
