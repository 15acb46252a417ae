//! Blocks of the heap that objects are made of, with how many objects each is part of.

use std::collections::BTreeMap;

use crate::space::Run;

/// One block. It is free again when both counts are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) end: u64,
    /// Sealed objects it is part of.
    pub(crate) sealed: u32,
    /// Retiring objects it is part of.
    pub(crate) retiring: u32,
}

/// All blocks by their start, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    map: BTreeMap<u64, Block>,
    sealed_bytes: u64,
    retiring_bytes: u64,
}

impl Blocks {
    /// From disjoint blocks in order.
    pub(crate) fn from_sorted(sorted: Vec<(u64, Block)>) -> Self {
        let mut blocks = Self::default();
        for (start, block) in &sorted {
            let bytes = block.end - start;
            if block.sealed > 0 {
                blocks.sealed_bytes += bytes;
            } else {
                blocks.retiring_bytes += bytes;
            }
        }
        blocks.map = sorted.into_iter().collect();
        blocks
    }

    /// Bytes that are part of a sealed object.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        self.sealed_bytes
    }

    /// Bytes that are part of retiring objects only.
    pub(crate) fn retiring_bytes(&self) -> u64 {
        self.retiring_bytes
    }

    /// Whether exactly this range is a block.
    pub(crate) fn is_block(&self, run: Run) -> bool {
        self.map.get(&run.start).is_some_and(|block| block.end == run.end)
    }

    /// The block that is exactly this range.
    pub(crate) fn get(&self, run: Run) -> Option<Block> {
        self.map.get(&run.start).copied().filter(|block| block.end == run.end)
    }

    /// One sealed object more is made of `run`.
    pub(crate) fn seal(&mut self, run: Run) {
        let block =
            self.map.entry(run.start).or_insert(Block { end: run.end, sealed: 0, retiring: 0 });
        if block.sealed == 0 {
            self.sealed_bytes += run.len();
            if block.retiring > 0 {
                self.retiring_bytes -= run.len();
            }
        }
        block.sealed += 1;
    }

    /// One object made of `run` is no longer sealed, but retiring.
    pub(crate) fn retire(&mut self, run: Run) -> Result<(), NoBlock> {
        let block = self.map.get_mut(&run.start).ok_or(NoBlock(run))?;
        block.sealed = block.sealed.checked_sub(1).ok_or(NoBlock(run))?;
        block.retiring += 1;
        if block.sealed == 0 {
            self.sealed_bytes -= run.len();
            self.retiring_bytes += run.len();
        }
        Ok(())
    }

    /// One retiring object made of `run` is gone. True: so is the block.
    pub(crate) fn release(&mut self, run: Run) -> Result<bool, NoBlock> {
        let block = self.map.get_mut(&run.start).ok_or(NoBlock(run))?;
        block.retiring = block.retiring.checked_sub(1).ok_or(NoBlock(run))?;
        if block.sealed > 0 || block.retiring > 0 {
            return Ok(false);
        }
        self.map.remove(&run.start);
        self.retiring_bytes -= run.len();
        Ok(true)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Run, Block)> + '_ {
        self.map.iter().map(|(&start, &block)| (Run { start, end: block.end }, block))
    }
}

/// The books do not know this block in the state it should be in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoBlock(pub(crate) Run);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lives_as_long_as_an_object_needs_it() {
        let run = Run { start: 128, end: 512 };
        let mut blocks = Blocks::default();
        blocks.seal(run);
        blocks.seal(run);
        assert!(blocks.is_block(run) && !blocks.is_block(Run { start: 128, end: 256 }));
        blocks.retire(run).unwrap();
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (384, 0));
        blocks.retire(run).unwrap();
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (0, 384));
        assert!(blocks.retire(run).is_err());
        blocks.seal(run);
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (384, 0));
        blocks.retire(run).unwrap();
        assert_eq!(blocks.release(run), Ok(false));
        assert_eq!(blocks.release(run), Ok(false));
        assert_eq!(blocks.release(run), Ok(true));
        assert!(blocks.release(run).is_err());
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (0, 0));
    }
}
