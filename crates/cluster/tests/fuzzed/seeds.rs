//! First inputs for the fuzzers: what real nodes say to each other.

use farrow_cluster::protocol::cluster::{Answer, Question};
use farrow_wire::{
    Extent, MemberInfo, Members, PartSpec, Purpose, RequestBody, RoomAsk, SealItem, SyncAsk, Watch,
    WireObjectId, WireTarget,
};

use super::nodes::FuzzedNodes;
use super::{StepKind, step};

/// Enough for all that was asked to be answered.
const ROUNDS: usize = 8;

/// Runs of steps, each with what it is about.
pub fn runs() -> Vec<(String, Vec<u8>)> {
    let about = [
        ("founding", founding()),
        ("names", recorded(names)),
        ("waits", recorded(waits)),
        ("sync", recorded(sync)),
        ("remote_session", recorded(remote_session)),
        ("processes", vec![processes()]),
    ];
    let numbered = |(about, runs): (&'static str, Vec<Vec<u8>>)| {
        runs.into_iter().enumerate().map(move |(number, run)| (format!("{about}-{number}"), run))
    };
    about.into_iter().flat_map(numbered).collect()
}

/// Single messages, as the decoders take them: a number that says of what kind, and the message.
pub fn messages() -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    for (_, run) in runs() {
        for (kind, body) in super::steps(&run) {
            let number = match kind {
                StepKind::Message | StepKind::Stranger => 0,
                StepKind::Question => 1,
                StepKind::Answer => 2,
                StepKind::RemoteSession => 7,
                _ => continue,
            };
            messages.push([&[number], body].concat());
        }
    }
    let node = MemberInfo { name: "a".into(), number: 3, ..MemberInfo::default() };
    let nodes = vec![node];
    let members = Members { cluster: 1, epoch: 2, has_lease: true, nodes, draining: vec![1] };
    messages.push([&[5][..], &members.encode()].concat());
    messages.sort();
    messages.dedup();
    messages
}

/// Two nodes find each other, vote, and live on.
fn founding() -> Vec<Vec<u8>> {
    let mut world = FuzzedNodes::new(None, true);
    (0..60).for_each(|_| world.round());
    world.runs()
}

fn recorded(act: fn(&mut FuzzedNodes)) -> Vec<Vec<u8>> {
    let mut world = FuzzedNodes::founded();
    world.record_from_now();
    act(&mut world);
    (0..ROUNDS).for_each(|_| world.round());
    let mut runs = world.runs();
    // Rounds between the steps let the node itself speak.
    if let Some(first) = runs.first_mut() {
        first.extend(step(StepKind::Round, &[]));
    }
    runs
}

fn named(number: usize) -> String {
    format!("n{number}")
}

fn names(world: &mut FuzzedNodes) {
    // Some are registered by the one, some by the other.
    for number in 0..8 {
        world.request_of_b(false, RequestBody::Reserve { names: vec![named(number)] });
    }
    (0..ROUNDS).for_each(|_| world.round());
    let names = (0..8).map(named).collect();
    world.request_of_b(false, RequestBody::Unreserve { names });
}

fn waits(world: &mut FuzzedNodes) {
    let wait = |count: usize| RequestBody::Wait {
        targets: (0..count).map(|number| WireTarget::Name(named(number))).collect(),
        count: 1,
        timeout_ms: 1000,
    };
    world.request_of_b(false, wait(3));
    world.request_of_b(true, wait(2));
    world.round();
    world.seal_at_b(&named(0));
    (0..ROUNDS).for_each(|_| world.round());
}

fn sync(world: &mut FuzzedNodes) {
    for number in 0..8 {
        let name = named(number);
        let ask = SyncAsk::Arrive { parties: 2, timeout_ms: 1000 };
        world.request_of_b(false, RequestBody::Sync { name: name.clone(), ask: ask.clone() });
        world.request_of_a(RequestBody::Sync { name: name.clone(), ask });
        let ask = SyncAsk::SetFlags { set: 5, clear: 1 };
        world.request_of_b(false, RequestBody::Sync { name: name.clone(), ask });
        let ask = SyncAsk::WaitFlags { mask: 8, timeout_ms: 100 };
        world.request_of_b(false, RequestBody::Sync { name, ask });
        world.round();
    }
}

fn remote_session(world: &mut FuzzedNodes) {
    let retained = || vec![FuzzedNodes::retained_target()];
    let watch = Watch { after: 0, prefix: "n".into(), kinds: u8::MAX, timeout_ms: 10 };
    for body in [
        RequestBody::Grant { min: 4096, want: 8192, wait_ms: 5 },
        RequestBody::Room(RoomAsk {
            sizes: vec![4096, 128],
            want: 0,
            wait_ms: 5,
            purpose: Some(Purpose { objects: 1, names: vec![9] }),
        }),
        RequestBody::EntryPages { count: 1 },
        RequestBody::HoldBlock,
        RequestBody::Reserve { names: vec![named(9)] },
        RequestBody::Renew { names: vec![named(9)], are_all: true },
        RequestBody::Seal { items: vec![SealItem::bytes((4096, 128), 7)] },
        RequestBody::Confirm { ids: vec![WireObjectId { hi: 1, lo: 2 }] },
        RequestBody::Wait { targets: retained(), count: 1, timeout_ms: 5 },
        RequestBody::Watch(watch),
        RequestBody::Pin { targets: retained(), is_pinned: false },
        RequestBody::Delete { targets: retained() },
        RequestBody::Evict { bytes: 1 },
        RequestBody::Overview { cells: 4, held_max: 4 },
        RequestBody::Stats,
        RequestBody::Namespaces,
        RequestBody::Rules,
        RequestBody::Nodes,
        RequestBody::FindLost { name: named(1) },
        RequestBody::Fetch {
            target: WireTarget::Id(WireObjectId { hi: 1, lo: 2 }),
            extent: Extent::Whole,
            wait_ms: 1,
        },
        RequestBody::Fetch {
            target: WireTarget::Name("t".into()),
            extent: Extent::Part(PartSpec {
                columns: Some(vec!["a".into()]),
                start: Some(-1),
                stop: None,
            }),
            wait_ms: 1,
        },
        RequestBody::Pages { start: 0, end: 1 },
        RequestBody::Restore { id: WireObjectId { hi: 1, lo: 2 } },
        RequestBody::Release { spans: vec![(4096, 128)] },
        RequestBody::Reclaim,
        RequestBody::Shutdown,
        RequestBody::Forget { node: "b".into() },
        RequestBody::Goodbye,
    ] {
        world.request_of_b(true, body);
    }
}

fn processes() -> Vec<u8> {
    let question =
        |question: &Question| step(StepKind::Question, &postcard::to_allocvec(question).unwrap());
    let answer = |answer: &Answer| step(StepKind::Answer, &postcard::to_allocvec(answer).unwrap());
    [
        question(&Question::Watch { pid: 7, start_time: 1 }),
        question(&Question::Clean { region_uid: 1, spans: vec![(0, 4096)] }),
        question(&Question::Sealed { names: vec![named(0)] }),
        answer(&Answer::IsThere(false)),
        answer(&Answer::No("no".into())),
        step(StepKind::Time, &[200]),
        step(StepKind::Round, &[]),
    ]
    .concat()
}
