//! Bytes as a client could send them, to a node that has one honest object: nothing aborts, the
//! books balance, and the honest object is still there unless it was deleted by name or id.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use farrow_cluster::protocol::{Action, NodeState, PeerIdentity, SessionId};
use farrow_cluster::wire::{self, Hello, PROTOCOL_VERSION, Request, RequestBody};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_store::{Home, Layout, Lru, RegionOptions};
use libfuzzer_sys::fuzz_target;

thread_local! {
    /// Mapped once; each run lays it out anew.
    static REGION: RefCell<Option<Arc<Region>>> = const { RefCell::new(None) };
}

fn options() -> RegionOptions {
    let mut options = RegionOptions::for_capacity(Length(256 << 10));
    options.objects_max = 16;
    options.clients_max = 4;
    options.grants_max = 16;
    options.hold_blocks_max = 8;
    // Each run makes all tables anew.
    options.client_objects_max = 84;
    options.events_max = 32;
    options.namespaces_max = 4;
    options.name_bytes = Length(1 << 12);
    options
}

fn home() -> Home {
    let region = REGION.with_borrow_mut(|kept| {
        Arc::clone(kept.get_or_insert_with(|| {
            let geometry = Layout::new(&options()).unwrap().geometry;
            let fabric = Arc::new(ShmFabric::memfd("fuzz", geometry).unwrap());
            Arc::new(Region::map(fabric, Access::Home, None).unwrap())
        }))
    });
    Home::create(region, &options(), 0).unwrap()
}

fuzz_target!(|data: &[u8]| {
    let mut state = NodeState::new(home(), 0, 1, 1000, Vec::new(), 0, 0);
    state.set_eviction_policy(Box::new(Lru));
    for session in 0..2 {
        let peer = PeerIdentity { pid: 10 + session as u32, start_time: 1, uid: 1000, guest: None };
        state.opened(SessionId(session), peer, 0);
        let namespace = String::new();
        let hello = Hello { version: PROTOCOL_VERSION, resume: None, namespace, node: String::new() };
        let body = RequestBody::Hello(hello);
        let grant = RequestBody::Grant { min: 32768, want: 32768, wait_ms: 0 };
        let mut out = Vec::new();
        state.handle(SessionId(session), Request { seq: 0, body }, 0, 0, &mut out);
        state.handle(SessionId(session), Request { seq: 0, body: grant }, 0, 0, &mut out);
    }
    let (mut rest, mut now_ms) = (data, 0);
    while let Some((first, body)) = rest.split_first() {
        // The length of a frame is the fuzzer's to choose, but not the bulk of its bytes.
        let take = body.len().min(1 + usize::from(first >> 1));
        let mut frame = (take as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&body[..take]);
        rest = &body[take..];
        now_ms += 3;
        let session = SessionId(u64::from(first & 1));
        if let Ok(Some((request, _))) = wire::decode::<Request>(&frame) {
            let mut out = Vec::new();
            state.handle(session, request, now_ms, 0, &mut out);
            state.tick(now_ms, &mut out);
            for action in out {
                if let Action::Close { session } = action {
                    state.closed(session, false, now_ms);
                }
            }
        }
    }
    state.home().check().unwrap();
    let stats = state.stats(now_ms).unwrap();
    assert_eq!(stats.capacity, stats.used + stats.free + stats.granted + stats.retiring);
});
