//! Hold against free: the hazard-pointer protocol, shared by readers and the home.
//!
//! A reader claims, fences, and checks that the object is still there. The home marks the object as
//! leaving, fences, and scans for claims. All these fences have one total order: if the reader's is
//! first, the home sees the claim; if the home's is first, the reader sees the mark. If both see
//! each other, the reader gives up.
//!
//! Generic over two small traits, so that a model checker can replace mapped memory.

use farrow_memory::sync::{Ordering, fence};

/// A reader's view of one claim word and one life word.
pub(crate) trait Claim {
    type Error;
    /// Store the claim, or 0 for none.
    fn store(&self, claim: u64) -> Result<(), Self::Error>;
    /// Load the word that shows whether the object is there (acquire).
    fn life(&self) -> Result<u64, Self::Error>;
    /// A sequentially consistent fence.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    /// Called after claims are stored, for memory where the home sees them only once published.
    fn bring_out(_: &[ClaimRequest<Self>]) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }
    /// Called after the fence and before the loads, for memory where a load must bypass the cache.
    fn bring_in(_: &[ClaimRequest<Self>]) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// Claim an object whose word is `expected`. If the word differs, returns false and leaves no
/// claim.
pub(crate) fn claim<C: Claim>(reader: C, claim: u64, expected: u64) -> Result<bool, C::Error> {
    let mut wish = [ClaimRequest { reader, claim, expected, is_there: false }];
    claim_many(&mut wish)?;
    let [ClaimRequest { is_there, .. }] = wish;
    Ok(is_there)
}

/// One of several claims.
pub(crate) struct ClaimRequest<C> {
    pub(crate) reader: C,
    /// The claim to store.
    pub(crate) claim: u64,
    /// The expected word of the object.
    pub(crate) expected: u64,
    /// Whether the object was there. If not, there is no claim.
    pub(crate) is_there: bool,
}

/// Like [`claim`] for several objects: one fence, after all claims and before all loads.
pub(crate) fn claim_many<C: Claim>(wishes: &mut [ClaimRequest<C>]) -> Result<(), C::Error> {
    let Some(first) = wishes.first() else {
        return Ok(());
    };
    for wish in &*wishes {
        wish.reader.store(wish.claim)?;
    }
    C::bring_out(wishes)?;
    first.reader.fence();
    C::bring_in(wishes)?;
    for wish in wishes {
        wish.is_there = wish.reader.life()? == wish.expected;
        if !wish.is_there {
            wish.reader.store(0)?;
            C::bring_out(std::slice::from_ref(wish))?;
        }
    }
    Ok(())
}

/// The home's view of the claims, once an object is marked as leaving.
pub(crate) trait Claims {
    type Error;
    /// The result of a scan.
    type Found;
    /// Load the claims of all readers (acquire).
    fn scan(&self) -> Result<Self::Found, Self::Error>;
    /// A sequentially consistent fence.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The claims that prevent freeing the objects that were marked before this call.
pub(crate) fn claims_left<C: Claims>(home: &C) -> Result<C::Found, C::Error> {
    home.fence();
    home.scan()
}

/// A [`Claims`] made from a function.
pub(crate) struct Scan<F>(pub(crate) F);

impl<T, E, F: Fn() -> Result<T, E>> Claims for Scan<F> {
    type Error = E;
    type Found = T;

    fn scan(&self) -> Result<T, E> {
        (self.0)()
    }
}
