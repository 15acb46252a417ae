//! A store that frees memory retains its edges.

use super::{Adjacency, DynamicGraph, EdgeRemoval, Side};
use crate::edge::Visibility;
use proptest::prelude::*;

/// The edges of an account by the callers' numbers: other end, time, sequence number.
fn edges(graph: &DynamicGraph<u32>, key: i64, side: Side) -> Vec<(i64, u32, u32)> {
    let Some(account) = graph.find(key) else { return Vec::new() };
    let window = (0, u32::MAX);
    let all =
        graph.ascending(account, side, window, Visibility::all(0)).chain(graph.loops(account));
    all.map(|one| (graph.key(one.other), one.time, one.seq)).collect()
}

fn add(graph: &mut DynamicGraph<u32>, rows: &[(i64, i64, u32)]) {
    let mut found = Vec::new();
    graph.intern(rows.len(), |at| rows[at], &mut found, None).unwrap();
    graph.insert(&found, None).unwrap();
}

proptest! {
    /// A store whose accounts are renumbered equals one whose accounts are not.
    #[test]
    fn a_graph_that_shrinks_is_the_same(
        steps in prop::collection::vec((0..90i64, 0..90i64, 0..9u32, 0..40u8), 1..900),
    ) {
        let mut graph = DynamicGraph::<u32>::new(0, false);
        let mut other = DynamicGraph::<u32>::new(0, false);
        let mut renumbered = 0;
        for (number, &(source, target, late, kind)) in (0u64..).zip(&steps) {
            let target = if kind % 4 == 1 { 0 } else { target };
            let row = (source, target, number as u32 + late);
            // Now and then most edges are removed.
            let left = if kind == 0 { 5 } else { 300 };
            for graph in [&mut graph, &mut other] {
                add(graph, &[row]);
                while graph.len() > left {
                    let oldest = graph.removal(graph.head());
                    graph.remove_all(oldest.as_slice(), None);
                }
            }
            renumbered += u32::from(graph.shrink(100));
            if kind < 4 {
                prop_assert_eq!(graph.accounts(), other.accounts());
                prop_assert!(graph.numbered() <= other.numbered());
                for account in 0..90 {
                    for side in [Side::Out, Side::In] {
                        prop_assert_eq!(edges(&graph, account, side), edges(&other, account, side));
                    }
                }
                let key = |graph: &DynamicGraph<u32>, account| graph.key(account);
                let records = |graph: &DynamicGraph<u32>| -> Vec<_> {
                    let all = graph.records();
                    all.map(|(at, one)| (at, key(graph, one.source), key(graph, one.target), one.time)).collect()
                };
                prop_assert_eq!(records(&graph), records(&other));
            }
        }
        // In streams this long, some edges are always removed.
        prop_assert!(steps.len() < 800 || renumbered > 0);
    }

    /// A rebuilt store equals the original, before and after further changes.
    #[test]
    fn a_rebuilt_graph_is_the_same(
        steps in prop::collection::vec((0..40i64, 0..40i64, 0..50u32, 0..4u8), 1..500),
        remembers: bool,
        far: bool,
    ) {
        let key = |account: i64| if far { (account - 20) << 40 } else { account };
        let mut graph = DynamicGraph::<u32>::new(0, remembers);
        for (number, &(source, target, time, kind)) in (0u64..).zip(&steps) {
            // A hub has long lists.
            let target = if kind == 1 { 0 } else { target };
            add(&mut graph, &[(key(source), key(target), number as u32 / 2 + time)]);
            // Some edges are removed, at the old end and elsewhere.
            let leaving = if kind == 0 { graph.head() } else { number.saturating_sub(30) };
            let leaving = graph.record(leaving).map(|record| EdgeRemoval { record, seq: leaving as u32 });
            if let Some(removal) = leaving.filter(|_| kind != 2) {
                graph.remove_all(&[removal], None);
            }
        }
        let mut rebuilt = graph.rebuilt(None).unwrap();
        for round in 0..2 {
            prop_assert_eq!(rebuilt.accounts(), graph.accounts());
            prop_assert_eq!(rebuilt.in_order(), graph.in_order());
            prop_assert_eq!((rebuilt.head(), rebuilt.next(), rebuilt.len()), (graph.head(), graph.next(), graph.len()));
            prop_assert_eq!(rebuilt.is_ordered(), graph.is_ordered());
            for account in (0..40).map(key) {
                for side in [Side::Out, Side::In] {
                    prop_assert_eq!(edges(&rebuilt, account, side), edges(&graph, account, side), "round {}", round);
                }
            }
            let oldest = graph.removal(graph.head());
            for graph in [&mut graph, &mut rebuilt] {
                let removal = graph.removal(graph.head());
                prop_assert_eq!(removal.is_some(), oldest.is_some());
                graph.remove_all(removal.as_slice(), None);
                add(graph, &[(key(1), key(0), 600), (key(77), key(77), 601)]);
            }
        }
    }
}
