//! The end of a node's lease, as clients of this build and of earlier ones read it.

use super::support::{TestClient, TestRegion, small};
use crate::format::header::{REPLICAS_UNTIL, REPLICAS_UNTIL_AWAKE};

#[test]
fn clients_of_each_build_find_the_end_of_a_lease_by_their_own_clock() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let until = || client.reader.replicas_until().unwrap();
    assert_eq!(until(), 0, "no lease yet");
    home.set_replicas_until(5_000, 300).unwrap();
    assert_eq!(until(), 5_000);
    assert_eq!(client.reader.word(REPLICAS_UNTIL_AWAKE).unwrap(), 300, "what earlier builds read");
    home.set_replicas_until(0, 0).unwrap();
    assert_eq!(until(), 0);
    // A daemon of an earlier build writes this word only. Its clock is behind: the end is early.
    home.control.store(REPLICAS_UNTIL_AWAKE, 300).unwrap();
    assert_eq!((until(), client.reader.word(REPLICAS_UNTIL).unwrap()), (300, 0));
    // It follows one of this build.
    home.control.store(REPLICAS_UNTIL, 200).unwrap();
    assert_eq!(until(), 300);
}
