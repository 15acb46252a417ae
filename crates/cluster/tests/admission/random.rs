//! Random requests for memory: each is answered in time, and a large one is served among small ones.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// For any requests and releases: each request is answered once, by its deadline at the latest,
    /// nothing is lost, and others overtake the first waiter by at most the bytes that it asks for.
    #[test]
    fn every_request_is_answered_in_time(
        steps in prop::collection::vec((0u64..5, 1u64..200, 0u64..50, 0u64..4), 1..80),
    ) {
        let mut node = AdmissionNode::new(5);
        let mut held: Vec<(u64, WireSpan)> = Vec::new();
        let mut open: Vec<(u64, u64, u64)> = Vec::new();
        for (client, pages, wait_ms, what) in steps {
            if what == 0 && !held.is_empty() {
                let (owner, span) = held.swap_remove(pages as usize % held.len());
                node.release(owner, span);
            } else if what == 1 {
                node.pass(wait_ms);
            } else {
                let seq = node.grant(client, pages * 4 * KIB, wait_ms);
                open.push((client, seq, node.now_ms + wait_ms));
            }
            let now_ms = node.now_ms;
            open.retain(|(client, seq, deadline_ms)| match node.answer(*client, *seq) {
                None => {
                    assert!(*deadline_ms > now_ms, "a request is answered by its deadline");
                    true
                }
                Some(Ok(ReplyBody::Granted(span))) => {
                    held.push((*client, span));
                    false
                }
                Some(Err(WireError::OutOfMemory(_))) => false,
                Some(other) => panic!("{other:?}"),
            });
            let stats = node.state.stats(now_ms).unwrap();
            prop_assert_eq!(stats.waiting, open.len() as u64);
            let bytes: u64 = held.iter().map(|(_, span)| span.1).sum();
            prop_assert_eq!(stats.granted, bytes);
        }
    }

    /// Clients that never wait allocate and free small pieces at random. Their memory and the large
    /// request together exceed the capacity; the request is served all the same, before they took
    /// more than it asks for.
    #[test]
    fn a_great_request_is_served_in_a_stream_of_small_ones(
        great_pages in 130u64..=256,
        steps in prop::collection::vec((2u64..6, 1u64..16, 0usize..32), 1..50),
    ) {
        let mut node = AdmissionNode::new(6);
        let mut held: Vec<(u64, WireSpan)> = Vec::new();
        let take = |node: &mut AdmissionNode, client, pages| {
            let seq = node.grant(client, pages * 4 * KIB, 0);
            match node.answer(client, seq) {
                Some(Ok(ReplyBody::Granted(span))) => Some((client, span)),
                Some(Err(WireError::OutOfMemory(_))) => None,
                other => panic!("{other:?}"),
            }
        };
        let mut stream = steps.iter().cycle();
        while let Some(one) = stream.next().and_then(|(client, pages, _)| take(&mut node, *client, *pages)) {
            held.push(one);
        }
        let great = node.grant(1, great_pages * 4 * KIB, 60_000);
        prop_assert!(node.is_waiting(1, great));
        let mut passed = 0;
        for (client, pages, which) in stream {
            // Each freed piece is replaced by a new one.
            let (owner, span) = held.swap_remove(which % held.len());
            node.release(owner, span);
            if !node.is_waiting(1, great) {
                break;
            }
            if let Some(one) = take(&mut node, *client, *pages) {
                passed += one.1.1;
                held.push(one);
            }
            prop_assert!(passed <= great_pages * 4 * KIB);
            prop_assert!(!held.is_empty(), "all memory is free, and it still waits");
        }
        prop_assert_eq!(node.granted(1, great).1, great_pages * 4 * KIB);
    }
}
