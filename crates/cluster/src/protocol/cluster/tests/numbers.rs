//! Numbers of members that are given to others.

use farrow_membership::{Former, Member, Output, Reachability, View};

use super::*;

/// Regression test: a node left, and its number was given to another one. The view forgot the node
/// that had left, and what was heard of the new one counted for both: the former was a member again,
/// and later a lost one whose names nobody knew, so that no new name was granted.
#[test]
fn a_node_that_left_stays_so_when_its_number_is_given_to_another_one() {
    let mut world = MappedCluster::new(false);
    world.nodes[0].mapped("b", Err("no such device".to_owned()));
    let view = world.nodes[0].cluster.0.as_ref().unwrap().membership.view().unwrap().clone();
    let (now_ms, mut out) = (world.now_ms, Vec::new());
    let b = view.members.iter().find(|one| one.name.as_str() == "b").unwrap().clone();
    let number = b.number;
    let mut without_b = View { epoch: view.epoch.next(), ..view };
    without_b.members.retain(|one| one.number != number);
    let since = without_b.epoch;
    let (name, address) = (b.name.clone(), b.address.clone());
    let (incarnation, has_left) = (b.incarnation, true);
    without_b.former.push(Former { number, name, incarnation, address, since, has_left });
    let mut with_q = View { epoch: without_b.epoch.next(), ..without_b.clone() };
    with_q.former.clear();
    with_q.members.push(Member { name: "q".parse().unwrap(), ..b.clone() });
    with_q.members.sort_by_key(|one| one.number);

    let a = &mut world.nodes[0];
    a.view_installed(without_b, now_ms, &mut out);
    a.view_installed(with_q.clone(), now_ms, &mut out);
    a.mapped("q", Err("no such device".to_owned()));
    for state in [Reachability::Live, Reachability::Suspect] {
        a.perform_output(Output::Reach { number, state }, now_ms, &mut out);
        let reach = |node: &str| a.members().find(node).unwrap().reach;
        let heard = if state == Reachability::Live { Reach::Live } else { Reach::Suspect };
        assert_eq!((reach("q"), reach("b")), (heard, Reach::Left));
        assert_eq!(a.cluster.lost_unread(), None, "a name waits for a node that left");
    }
    assert!(a.cluster.live_peers() == ["q"]);

    // It returns, and is lost this time.
    let mut with_b = View { epoch: with_q.epoch.next(), ..with_q };
    with_b.members.retain(|one| one.name.as_str() != "q");
    with_b.members.push(b);
    let mut lost = View { epoch: with_b.epoch.next(), ..with_b.clone() };
    lost.members.retain(|one| one.number != number);
    for view in [with_b, lost] {
        a.view_installed(view, now_ms, &mut out);
        a.mapped("b", Err("no such device".to_owned()));
    }
    assert!(a.cluster.lost_unread().is_some(), "its names are unknown");
}
