//! Two nodes that were apart gave one name to two objects: one of them loses it, and stays.

use std::collections::BTreeSet;

use super::kills::killed;
use super::support::{TestClient, TestRegion, small};
use crate::Target;

#[test]
fn an_object_without_its_name_is_found_by_its_id_and_the_name_is_free() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let id = a.put(&mut home, b"bytes", Some("n")).unwrap();
    a.put(&mut home, b"bytes", Some("other")).unwrap();
    let held = a.reader.hold(&a.holds, Target::Name("n")).unwrap().unwrap();
    assert_eq!(home.own_names().unwrap(), ["n", "other"]);
    home.unname(id).unwrap();
    home.unname(id).unwrap();
    home.check().unwrap();
    assert!(!home.has_name("n").unwrap() && a.reader.find("n").unwrap().is_none());
    assert_eq!(home.own_names().unwrap(), ["other"]);
    // Its holder goes on, and holds it once more.
    assert_eq!(a.read(held.entry().payload()), b"bytes");
    let again = a.reader.hold(&a.holds, Target::Id(id)).unwrap().unwrap();
    assert!(again.entry().name.is_empty());
    let next = a.put(&mut home, b"next", Some("n")).unwrap();
    assert_eq!(a.reader.find("n").unwrap().unwrap().id, next);
    drop((held, again));
    home.delete(Target::Id(id)).unwrap();
    home.check().unwrap();
    assert_eq!(home.own_named("n").unwrap(), Some(next));
    assert_eq!(home.own_named("m").unwrap(), None);
}

/// The entry is rewritten in place: a kill in between may not cost the object.
pub(super) fn kill_while_unnaming() -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    for (is_spilled, is_held) in [(false, false), (false, true), (true, false)] {
        for kill in 0.. {
            let world = TestRegion::new(small());
            let mut home = world.create();
            let a = TestClient::join(&world, &mut home).unwrap();
            let id = a.put(&mut home, b"bytes", Some("n")).unwrap();
            let hold = is_held.then(|| a.reader.hold(&a.holds, Target::Id(id)).unwrap().unwrap());
            if is_spilled {
                home.begin_spill(id).unwrap().unwrap();
                home.finish_spill(id).unwrap().unwrap();
            }
            let name = killed(kill, || home.unname(id).unwrap());
            drop(home);
            let mut home = world.adopt();
            assert!(home.has(Target::Id(id)).unwrap(), "lost at {name:?}, spilled: {is_spilled}");
            assert!(name.is_some() || !home.has_name("n").unwrap());
            home.unname(id).unwrap();
            home.check().unwrap();
            assert!(!home.has_name("n").unwrap() && a.reader.find("n").unwrap().is_none());
            if let Some(hold) = hold {
                assert_eq!(a.read(hold.entry().payload()), b"bytes");
            }
            match name {
                Some(name) => seen.insert(name),
                None => break,
            };
        }
    }
    seen
}
