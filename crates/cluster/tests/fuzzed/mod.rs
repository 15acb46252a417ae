//! What other nodes send, as a row of steps that a fuzzer makes up or that real nodes took.
//!
//! Node `a` is under test; `b` is an honest one that it shares a cluster with. A step is a message, a
//! question, an answer, bytes of a remote session, time, or a round in which both say what they have to say.
//! `clients` is the same for what clients send. Used by the fuzz targets, by the example that writes their first inputs, and by a plain test.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

pub mod clients;
pub mod nodes;
pub mod seeds;

use farrow_cluster::protocol::cluster::{Answer, Offer, Question};
use farrow_wire::{self as wire, Hello, Members, Reply, Request, RequestBody};

use farrow_membership::{Message, View};
use nodes::FuzzedNodes;

/// What a step is: its first byte, modulo their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    /// A message of `b`.
    Message,
    /// A question of `b`.
    Question,
    /// The answer of `b` to the oldest question of `a` that it has not answered.
    Answer,
    /// Bytes on the remote session of a client of `b`.
    RemoteSession,
    /// A request of a client of `a`.
    Local,
    /// Milliseconds that go by.
    Time,
    /// Both nodes handle their messages, this number of times.
    Round,
    /// A message from whoever says that he is another node.
    Stranger,
}

const KINDS: [StepKind; 8] = [
    StepKind::Message,
    StepKind::Question,
    StepKind::Answer,
    StepKind::RemoteSession,
    StepKind::Local,
    StepKind::Time,
    StepKind::Round,
    StepKind::Stranger,
];

/// Most steps of a run: one takes some 10 us.
const STEPS_MAX: usize = 64;

/// A step as bytes: kind, length (two bytes, the lower first), contents.
pub fn step(kind: StepKind, body: &[u8]) -> Vec<u8> {
    let number = KINDS.iter().position(|one| *one == kind).unwrap() as u8;
    let length = u16::try_from(body.len()).unwrap();
    let mut bytes = vec![number];
    bytes.extend(length.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn steps(mut rest: &[u8]) -> Vec<(StepKind, &[u8])> {
    let mut steps = Vec::new();
    while let Some(([kind, low, high], body)) = rest.split_first_chunk::<3>()
        && steps.len() < STEPS_MAX
    {
        // The length is the fuzzer's to choose, but not the bulk of its bytes.
        let take = usize::from(u16::from_le_bytes([*low, *high])).min(body.len());
        let (body, after) = body.split_at(take);
        steps.push((KINDS[usize::from(*kind) % KINDS.len()], body));
        rest = after;
    }
    steps
}

/// Takes all steps. Whatever they are the sums of bytes balance, the node does not spin, an object of its
/// own client is there, and the honest node is still heard.
pub fn run(data: &[u8]) {
    let mut world = FuzzedNodes::founded();
    for (kind, body) in steps(data) {
        world.take(kind, body);
    }
    world.assert_sound();
}

/// Whatever decodes is the same after it was encoded and decoded again.
pub fn decode(data: &[u8]) {
    fn same<T>(data: &[u8])
    where
        T: serde::Serialize + for<'a> serde::Deserialize<'a> + PartialEq + std::fmt::Debug,
    {
        if let Ok(value) = postcard::from_bytes::<T>(data) {
            let bytes = postcard::to_allocvec(&value).unwrap();
            assert_eq!(postcard::from_bytes::<T>(&bytes).unwrap(), value);
        }
    }
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    match kind % 9 {
        0 => same::<Message>(body),
        1 => same::<Question>(body),
        2 => same::<Answer>(body),
        3 => {
            if let Ok(view) = postcard::from_bytes::<View>(body) {
                // What a member says of itself is read where the view is installed.
                view.members.iter().for_each(|member| drop(Offer::decode(&member.info)));
            }
            same::<View>(body);
        }
        4 => {
            if let Some(offer) = Offer::decode(body)
                && let Some(bytes) = offer.encode()
            {
                assert_eq!(Offer::decode(&bytes), Some(offer));
            }
        }
        5 => {
            if let Some(members) = Members::decode(body) {
                assert_eq!(Members::decode(&members.encode()), Some(members));
            }
        }
        6 => drop(wire::decode::<Reply>(body)),
        7 => drop(wire::decode::<Request>(body)),
        _ => same::<Hello>(body),
    }
    same::<RequestBody>(body);
}
