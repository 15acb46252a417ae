//! Objects that are sealed only to be brought to another node. They were known to the home's private
//! memory alone: after a kill nobody deleted those of a client that did not come back.

use farrow_memory::{Access, Length};

use super::support::{TestClient, TestRegion, small};
use crate::{Home, ObjectId, SealRequest, Target};

fn stage(home: &mut Home, client: &TestClient) -> ObjectId {
    let block = home.grant(client.slot, Length(128), Length(128)).unwrap();
    let request = SealRequest { is_staged: true, ..SealRequest::bytes(block, Length(9), None) };
    home.seal(client.slot, &request, 1).unwrap()
}

#[test]
fn a_home_after_a_kill_finds_staged_objects_and_their_creators() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let ordinary = client.put(&mut home, b"stays", None).unwrap();
    let (staged, deleted) = (stage(&mut home, &client), stage(&mut home, &client));
    home.delete(Target::Id(deleted)).unwrap();
    drop(home);
    let (home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    assert_eq!(report.staged, [(client.slot, staged)]);
    assert!(home.find(Target::Id(staged)).unwrap().is_staged);
    assert!(!home.find(Target::Id(ordinary)).unwrap().is_staged);
    home.check().unwrap();
}

/// It is on its way: the list of a node that drains would name it as an obstacle.
#[test]
fn a_staged_object_is_in_no_list() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let ordinary = client.put(&mut home, b"stays", None).unwrap();
    let staged = stage(&mut home, &client);
    let listed = client.reader.list("").unwrap();
    assert_eq!(listed.iter().map(|one| one.entry.id).collect::<Vec<_>>(), [ordinary]);
    assert!(home.find(Target::Id(staged)).is_ok());
}

/// A kill between the end of a client and the delete of what it had staged.
#[test]
fn a_staged_object_without_its_creator_is_deleted() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let ordinary = client.put(&mut home, b"stays", None).unwrap();
    let staged = stage(&mut home, &client);
    home.client_leave(client.slot).unwrap();
    drop(home);
    let (home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    assert_eq!(report.staged, []);
    assert!(home.find(Target::Id(staged)).is_err());
    assert!(home.find(Target::Id(ordinary)).is_ok());
    home.check().unwrap();
}
