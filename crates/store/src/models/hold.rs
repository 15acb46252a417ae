//! A reader that holds and a home that deletes: held bytes are not overwritten.

use std::convert::Infallible;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::{check, must_break};
use crate::hazard::{self, Claim, ClaimRequest, Claims};

const SEALED: u64 = 10;
const RETIRING: u64 = 11;
const CLAIM: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldMutant {
    None,
    ReaderWithoutFence,
    HomeWithoutFence,
    ClaimAfterLook,
    RelaxedRelease,
}

struct HoldModel {
    mutant: HoldMutant,
    life: AtomicU64,
    claim: AtomicU64,
    /// Its uses by a reader and by the next owner must not race.
    payload: UnsafeCell<()>,
}

impl Claim for HoldModel {
    type Error = Infallible;

    fn store(&self, claim: u64) -> Result<(), Infallible> {
        if self.mutant != HoldMutant::ClaimAfterLook {
            self.claim.store(claim, Ordering::Release);
        }
        Ok(())
    }

    fn life(&self) -> Result<u64, Infallible> {
        let life = self.life.load(Ordering::Acquire);
        if self.mutant == HoldMutant::ClaimAfterLook {
            self.claim.store(CLAIM, Ordering::Release);
        }
        Ok(life)
    }

    fn fence(&self) {
        if self.mutant != HoldMutant::ReaderWithoutFence {
            fence(Ordering::SeqCst);
        }
    }
}

impl Claim for &HoldModel {
    type Error = Infallible;

    fn store(&self, claim: u64) -> Result<(), Infallible> {
        Claim::store(*self, claim)
    }

    fn life(&self) -> Result<u64, Infallible> {
        Claim::life(*self)
    }

    fn fence(&self) {
        Claim::fence(*self);
    }
}

impl Claims for HoldModel {
    type Error = Infallible;
    type Found = bool;

    fn scan(&self) -> Result<bool, Infallible> {
        Ok(self.claim.load(Ordering::Acquire) == CLAIM)
    }

    fn fence(&self) {
        if self.mutant != HoldMutant::HomeWithoutFence {
            fence(Ordering::SeqCst);
        }
    }
}

fn read(shared: &HoldModel) {
    let Ok(is_held) = hazard::claim(shared, CLAIM, SEALED);
    if is_held {
        use_and_let_go(shared);
    }
}

/// Holds two objects with one fence.
fn read_both(both: [&HoldModel; 2]) {
    let wish = |reader| ClaimRequest { reader, claim: CLAIM, expected: SEALED, is_there: false };
    let mut wishes = both.map(wish);
    let Ok(()) = hazard::claim_many(&mut wishes);
    wishes.iter().filter(|wish| wish.is_there).for_each(|wish| use_and_let_go(wish.reader));
}

fn use_and_let_go(shared: &HoldModel) {
    shared.payload.with(|_| ());
    let order = match shared.mutant {
        HoldMutant::RelaxedRelease => Ordering::Relaxed,
        _ => Ordering::Release,
    };
    shared.claim.store(0, order);
}

/// Deletes, and frees at the first or second scan that finds no claim.
fn delete(shared: &HoldModel) {
    shared.life.store(RETIRING, Ordering::Release);
    for _ in 0..2 {
        let Ok(is_claimed) = hazard::claims_left(shared);
        if !is_claimed {
            shared.payload.with_mut(|_| ());
            return;
        }
    }
}

fn sealed(mutant: HoldMutant) -> Arc<HoldModel> {
    Arc::new(HoldModel {
        mutant,
        life: AtomicU64::new(SEALED),
        claim: AtomicU64::new(0),
        payload: UnsafeCell::new(()),
    })
}

fn model(mutant: HoldMutant) {
    let shared = sealed(mutant);
    let reader = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || read(&shared))
    };
    delete(&shared);
    reader.join().expect("the reader");
    // A scan from now on frees it: no claim is left behind.
    if shared.mutant == HoldMutant::None {
        let Ok(is_claimed) = hazard::claims_left(&*shared);
        assert!(!is_claimed, "a claim leaks");
    }
}

/// The home deletes the second of two objects that are held together.
fn model_of_two(mutant: HoldMutant) {
    let both = [sealed(mutant), sealed(mutant)];
    let reader = {
        let both = both.clone();
        thread::spawn(move || read_both([&both[0], &both[1]]))
    };
    delete(&both[1]);
    reader.join().expect("the reader");
    if mutant == HoldMutant::None {
        let are_claimed = both.map(|one| matches!(hazard::claims_left(&*one), Ok(true)));
        assert_eq!(are_claimed, [false, false], "a claim leaks");
    }
}

#[test]
fn what_is_held_is_not_freed() {
    check(|| model(HoldMutant::None));
}

#[test]
fn what_is_held_together_is_not_freed() {
    check(|| model_of_two(HoldMutant::None));
}

#[test]
fn readers_of_several_without_their_fence_are_caught() {
    must_break("no fence between claims and looks", || {
        model_of_two(HoldMutant::ReaderWithoutFence)
    });
}

#[test]
fn a_reader_without_its_fence_is_caught() {
    must_break("no fence between claim and look", || model(HoldMutant::ReaderWithoutFence));
}

#[test]
fn a_home_without_its_fence_is_caught() {
    must_break("no fence between retiring and scan", || model(HoldMutant::HomeWithoutFence));
}

#[test]
fn a_claim_after_the_look_is_caught() {
    must_break("look, then claim", || model(HoldMutant::ClaimAfterLook));
}

#[test]
fn a_hold_that_is_let_go_early_is_caught() {
    must_break("reads behind the release", || model(HoldMutant::RelaxedRelease));
}
