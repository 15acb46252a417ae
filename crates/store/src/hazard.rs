//! Hold against free: the order of hazard pointers, once for readers and once for the home.
//!
//! A reader claims, fences, and looks whether the object is still there. The home says that it
//! goes, fences, and looks for claims. All such fences have one order: if the reader's is first,
//! the home sees the claim; if the home's is first, the reader sees the object going. Both may see
//! the other: then the reader gives up.
//!
//! Written over two small traits, so that a model checker can stand in for mapped memory.

use farrow_memory::sync::{Ordering, fence};

/// A reader's words.
pub(crate) trait Claim {
    type Error;
    /// Store the claim, or 0 for none.
    fn store(&self, claim: u64) -> Result<(), Self::Error>;
    /// The word that says whether the object is there (acquire).
    fn life(&self) -> Result<u64, Self::Error>;
    /// Sequentially consistent.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    /// After claims were stored: where the home sees them only once they are published.
    fn bring_out(_: &[ClaimRequest<Self>]) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }
    /// Before looks, and after the fence: where a look has to be at memory.
    fn bring_in(_: &[ClaimRequest<Self>]) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}

/// Claim what is there while its word is `expected`. False: it is not, and there is no claim.
pub(crate) fn claim<C: Claim>(reader: C, claim: u64, expected: u64) -> Result<bool, C::Error> {
    let mut wish = [ClaimRequest { reader, claim, expected, is_there: false }];
    claim_many(&mut wish)?;
    let [ClaimRequest { is_there, .. }] = wish;
    Ok(is_there)
}

/// One of several claims.
pub(crate) struct ClaimRequest<C> {
    pub(crate) reader: C,
    /// What is stored.
    pub(crate) claim: u64,
    /// The word of what is there.
    pub(crate) expected: u64,
    /// Whether it was there: else there is no claim.
    pub(crate) is_there: bool,
}

/// As [`claim`] for several: one fence, after all claims and before all looks.
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

/// What the home looks at, once it has said that an object goes.
pub(crate) trait Claims {
    type Error;
    /// What is claimed.
    type Found;
    /// Look at the claims of all readers (acquire).
    fn scan(&self) -> Result<Self::Found, Self::Error>;
    /// Sequentially consistent.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The claims that count against freeing what was said to go before this call.
pub(crate) fn claims_left<C: Claims>(home: &C) -> Result<C::Found, C::Error> {
    home.fence();
    home.scan()
}

/// A look at the claims, as a function.
pub(crate) struct Scan<F>(pub(crate) F);

impl<T, E, F: Fn() -> Result<T, E>> Claims for Scan<F> {
    type Error = E;
    type Found = T;

    fn scan(&self) -> Result<T, E> {
        (self.0)()
    }
}
