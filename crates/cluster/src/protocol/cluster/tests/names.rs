//! Names of a cluster of two nodes: reserved at their authorities, cancelled, and looked up where
//! they are.

use farrow_membership::naming;
use farrow_wire::{Rights, Rule};

use super::*;

/// Two objects were sealed at once while a third had the name of the first. When the other node
/// granted the second name, the third object was deleted. The first was sealed under a name that
/// was never requested: two nodes could have objects of one name.
#[test]
fn a_name_that_was_not_asked_for_is_not_given_when_it_comes_free() {
    for is_reserved_first in [false, true] {
        let mut world = MappedCluster::new(false);
        let view = world.nodes[0].cluster.0.as_ref().unwrap().membership.view().unwrap().clone();
        let mut of_b = (0..).map(|number| format!("y{number}")).filter(|name| {
            let authority = naming::authority_of(&view, name);
            authority.and_then(|one| view.member(one)).is_some_and(|one| one.name.as_str() == "b")
        });
        let (x, y) = (of_b.next().unwrap(), of_b.next().unwrap());
        let named = |world: &mut MappedCluster, name: &str| {
            let span = world.grant(world.local, HELD).unwrap();
            SealItem { name: Some(name.to_owned()), ..SealItem::bytes(span, HELD) }
        };
        let third = named(&mut world, &x);
        world.ask(world.local, RequestBody::Seal { items: vec![third] }).unwrap();
        world.go_on(SOON_MS);
        assert!(world.nodes[0].home().has_name(&x).unwrap());

        let both = match is_reserved_first {
            false => {
                RequestBody::Seal { items: vec![named(&mut world, &x), named(&mut world, &y)] }
            }
            true => RequestBody::Reserve { names: vec![x.clone(), y.clone()] },
        };
        world.ask(world.local, both).unwrap();
        let targets = vec![WireTarget::Name(x.clone())];
        world.ask(world.local, RequestBody::Delete { targets }).unwrap();
        assert!(!world.nodes[0].home().has_name(&x).unwrap(), "it is deleted");
        world.go_on(SOON_MS);
        let home = world.nodes[0].home();
        for name in [&x, &y] {
            assert!(!home.has_name(name).unwrap() && !home.is_reserved(name), "all or none");
        }
        assert!(!world.nodes[0].cluster.0.as_ref().unwrap().naming.holds(&y), "it is given back");
    }
}

#[test]
fn a_request_for_a_name_that_is_cancelled_is_answered_at_once_and_the_name_is_free() {
    let mut world = MappedCluster::new(false);
    let view = world.nodes[0].cluster.0.as_ref().unwrap().membership.view().unwrap().clone();
    let of_b = (0..).map(|number| format!("y{number}")).find(|name| {
        let authority = naming::authority_of(&view, name);
        authority.and_then(|one| view.member(one)).is_some_and(|one| one.name.as_str() == "b")
    });
    let name = of_b.unwrap();
    let reserve = RequestBody::Reserve { names: vec![name.clone()] };
    let cancel = RequestBody::Cancel { seq: 7 };
    world.ask(world.local, reserve.clone()).unwrap();
    assert_eq!(world.ask(world.local, cancel.clone()), Err(WireError::Cancelled));
    assert_eq!(world.ask(world.local, cancel.clone()), Ok(ReplyBody::Done), "it waits no more");
    world.go_on(SOON_MS);
    assert!(!world.nodes[0].home().is_reserved(&name));
    assert!(!world.nodes[0].cluster.0.as_ref().unwrap().naming.holds(&name), "it is given back");
    world.ask(world.local, reserve).unwrap();
    world.go_on(SOON_MS);
    assert!(world.nodes[0].home().is_reserved(&name));
}

#[test]
fn a_lookup_on_another_node_that_is_cancelled_is_answered_at_once() {
    let mut world = MappedCluster::new(false);
    world.nodes[0].mapped("b", Err("no such device".to_owned()));
    world.ask(world.local, RequestBody::FindLost { name: "x".to_owned() }).unwrap();
    let cancel = RequestBody::Cancel { seq: 7 };
    assert_eq!(world.ask(world.local, cancel.clone()), Err(WireError::Cancelled));
    world.go_on(SOON_MS);
    assert_eq!(world.ask(world.local, cancel), Ok(ReplyBody::Done), "it waits no more");
}

/// A name was looked for at every node whose memory is not mapped. Now the authority is asked, which
/// knows the home from the message with which each home reports that it has used a name.
#[test]
fn a_name_is_looked_for_where_its_authority_says() {
    let mut world = MappedCluster::new(false);
    let view = world.nodes[0].cluster.0.as_ref().unwrap().membership.view().unwrap().clone();
    let name_of = |node: &str| {
        let is_its = |name: &String| {
            let authority = naming::authority_of(&view, name);
            authority.and_then(|one| view.member(one)).is_some_and(|one| one.name.as_str() == node)
        };
        (0..).map(|number| format!("y{number}")).find(is_its).unwrap()
    };
    let (of_a, of_b) = (name_of("a"), name_of("b"));
    let nodes = ["b", "c", "d"].map(str::to_owned);
    let first = |node: &mut NodeState, full: &str, nodes: &[String], out: &mut Vec<Action>| {
        let search = NameSearch { full, nodes, by: HintFor::Lookup(9) };
        node.cluster.ask_first(&node.home, search, out)
    };
    let mut out = Vec::new();
    let a = &mut world.nodes[0];
    // Of few nodes all are asked at once.
    assert_eq!(first(a, &of_b, &nodes[..2], &mut out), AskFirst::All);
    assert_eq!(first(a, &of_a, &nodes, &mut out), AskFirst::All, "nothing is known");
    assert!(out.is_empty());
    let settled = naming::NameMessageBody::Settle { names: vec![of_a.clone()] };
    a.cluster.note_hints("c", &settled);
    assert_eq!(first(a, &of_a, &nodes, &mut out), AskFirst::Node("c".to_owned()));
    assert_eq!(where_is(a, "b", &of_a), Answer::Where(Some("c".to_owned())));
    // The hinted node is none of those that may have it.
    a.cluster.note_hints("e", &settled);
    assert_eq!(first(a, &of_a, &nodes, &mut out), AskFirst::All);
    assert!(out.is_empty());
    // One question to the authority, instead of one to each node.
    assert_eq!(first(a, &of_b, &nodes, &mut out), AskFirst::Authority);
    let [Action::Peer(PeerAction::Ask { node, body, .. })] = &out[..] else { panic!("{out:?}") };
    assert_eq!(node, "b");
    let question: Question = postcard::from_bytes(body).unwrap();
    assert_eq!(question, Question::Where { name: of_b });
    // Nothing is told to a node that may not read.
    let rule = Rule { namespace: String::new(), node: "b".to_owned(), rights: Rights::NONE };
    a.set_rules(vec![rule]).unwrap();
    assert_eq!(where_is(a, "b", &of_a), Answer::Where(None));
}

fn where_is(node: &NodeState, from: &str, full: &str) -> Answer {
    node.cluster.where_is(&node.home, &node.rules, from, full)
}

/// An object of a name was reported by its home, and its authority, itself not the home, knows it.
#[test]
fn an_authority_hears_where_a_name_was_used() {
    let mut world = MappedCluster::new(false);
    let view = world.nodes[0].cluster.0.as_ref().unwrap().membership.view().unwrap().clone();
    let mut names = (0..).map(|number| format!("y{number}"));
    let name = names.find(|name| {
        let authority = naming::authority_of(&view, name);
        authority.and_then(|one| view.member(one)).is_some_and(|one| one.name.as_str() == "b")
    });
    let name = name.unwrap();
    assert_eq!(where_is(&world.nodes[1], "a", &name), Answer::Where(None));
    let span = world.grant(world.local, HELD).unwrap();
    let item = SealItem { name: Some(name.clone()), ..SealItem::bytes(span, HELD) };
    world.ask(world.local, RequestBody::Seal { items: vec![item] }).unwrap();
    world.go_on(SOON_MS);
    assert!(world.nodes[0].home().has_name(&name).unwrap());
    assert_eq!(where_is(&world.nodes[1], "a", &name), Answer::Where(Some("a".to_owned())));
}
