//! Blocks of the heap that objects are made of, how many objects share each, and the account that
//! is charged for it: that of the client that sealed it first, for the life of the block.

use std::collections::BTreeMap;

use farrow_memory::Length;

use crate::alloc::space::Run;
use crate::format::ids::NamespaceId;

/// One block. It is free when both counts are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) end: u64,
    /// Sealed objects it is part of.
    pub(crate) sealed: u32,
    /// Retiring objects it is part of.
    pub(crate) retiring: u32,
    /// Sealed objects whose primary block it is.
    pub(crate) objects: u32,
    /// The account that is charged for it.
    pub(crate) owner: ClientAccount,
}

impl Block {
    /// The number of objects that have it.
    pub(crate) fn sharers(&self) -> u32 {
        self.sealed.saturating_add(self.retiring)
    }

    /// Whether it is part of several objects.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharers() > 1
    }
}

/// The account of a client; a number is not reused in the life of a home. Ordered by namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct ClientAccount {
    pub(crate) namespace: NamespaceId,
    /// 0: all departed clients of the namespace.
    pub(crate) client: u32,
}

impl ClientAccount {
    /// The account of all departed clients of a namespace.
    pub(crate) const fn ended(namespace: NamespaceId) -> Self {
        Self { namespace, client: 0 }
    }

    /// Whether it is that of a client that has not ended.
    pub(crate) fn is_of_client(self) -> bool {
        self.client != 0
    }
}

/// Memory and objects of one account.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes: grants, and the blocks of objects that are sealed or still held.
    pub bytes: Length,
    /// Sealed objects.
    pub objects: u32,
}

impl Usage {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { bytes: Length(self.bytes.0 + other.bytes.0), objects: self.objects + other.objects }
    }
}

/// All blocks by their start, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    map: BTreeMap<u64, Block>,
    sealed_bytes: u64,
    retiring_bytes: u64,
    /// Blocks of more than one object.
    shared: usize,
    /// Usage of present clients, and of the departed ones of each namespace.
    usage: BTreeMap<ClientAccount, Usage>,
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
            blocks.shared += usize::from(block.is_shared());
            let usage = blocks.usage.entry(block.owner).or_default();
            usage.bytes.0 += bytes;
            usage.objects += block.objects;
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

    /// Whether any block is part of more than one object.
    pub(crate) fn has_shared(&self) -> bool {
        self.shared > 0
    }

    /// Whether exactly this range is a block.
    pub(crate) fn is_block(&self, run: Run) -> bool {
        self.map.get(&run.start).is_some_and(|block| block.end == run.end)
    }

    /// The block that is exactly this range.
    pub(crate) fn get(&self, run: Run) -> Option<Block> {
        self.map.get(&run.start).copied().filter(|block| block.end == run.end)
    }

    /// Count one more sealed object made of `run`. A new block is charged to `owner`.
    pub(crate) fn seal(&mut self, run: Run, part: BlockRole, owner: ClientAccount) {
        let is_new = !self.map.contains_key(&run.start);
        let fresh = Block { end: run.end, sealed: 0, retiring: 0, objects: 0, owner };
        let block = self.map.entry(run.start).or_insert(fresh);
        if block.sealed == 0 {
            self.sealed_bytes += run.len();
            if block.retiring > 0 {
                self.retiring_bytes -= run.len();
            }
        }
        block.sealed += 1;
        self.shared += usize::from(block.sharers() == 2);
        let objects = u32::from(part == BlockRole::Primary);
        block.objects += objects;
        let owner = block.owner;
        if is_new {
            self.usage.entry(owner).or_default().bytes.0 += run.len();
        }
        self.account(owner).objects += objects;
    }

    /// Move one object made of `run` from sealed to retiring.
    pub(crate) fn retire(&mut self, run: Run, part: BlockRole) -> Result<(), NoBlock> {
        let block = self.map.get_mut(&run.start).ok_or(NoBlock(run))?;
        block.sealed = block.sealed.checked_sub(1).ok_or(NoBlock(run))?;
        block.retiring += 1;
        let objects = u32::from(part == BlockRole::Primary);
        block.objects = block.objects.checked_sub(objects).ok_or(NoBlock(run))?;
        if block.sealed == 0 {
            self.sealed_bytes -= run.len();
            self.retiring_bytes += run.len();
        }
        let owner = block.owner;
        let usage = self.account(owner);
        usage.objects = usage.objects.saturating_sub(objects);
        Ok(())
    }

    /// Remove one retiring object made of `run`. True: the block is free.
    pub(crate) fn release(&mut self, run: Run) -> Result<bool, NoBlock> {
        let block = self.map.get_mut(&run.start).ok_or(NoBlock(run))?;
        block.retiring = block.retiring.checked_sub(1).ok_or(NoBlock(run))?;
        if block.sharers() > 0 {
            self.shared -= usize::from(block.sharers() == 1);
            return Ok(false);
        }
        let owner = block.owner;
        self.map.remove(&run.start);
        self.retiring_bytes -= run.len();
        let usage = self.account(owner);
        usage.bytes.0 = usage.bytes.0.saturating_sub(run.len());
        Ok(true)
    }

    /// A client left: its usage is added to that of the departed clients of its namespace.
    pub(crate) fn disown(&mut self, owner: ClientAccount) {
        if let Some(usage) = self.usage.remove(&owner) {
            let ended = self.usage.entry(ClientAccount::ended(owner.namespace)).or_default();
            ended.bytes.0 += usage.bytes.0;
            ended.objects += usage.objects;
        }
    }

    /// Usage of an account in blocks.
    pub(crate) fn usage(&self, owner: ClientAccount) -> Usage {
        self.usage.get(&owner).copied().unwrap_or_default()
    }

    /// The sum of all accounts.
    pub(crate) fn usage_of_all(&self) -> Usage {
        self.usage.values().copied().fold(Usage::default(), Usage::plus)
    }

    /// Usage of departed clients, of all namespaces.
    pub(crate) fn usage_of_ended(&self) -> Usage {
        let ended = self.usage.iter().filter(|(account, _)| account.client == 0);
        ended.map(|(_, usage)| *usage).fold(Usage::default(), Usage::plus)
    }

    /// The sum of the accounts of a namespace.
    pub(crate) fn usage_of_namespace(&self, namespace: NamespaceId) -> Usage {
        let last = ClientAccount { namespace, client: u32::MAX };
        let accounts = self.usage.range(ClientAccount::ended(namespace)..=last);
        accounts.map(|(_, usage)| *usage).fold(Usage::default(), Usage::plus)
    }

    /// The account of a block: that of its owner, or of departed clients.
    fn account(&mut self, owner: ClientAccount) -> &mut Usage {
        let ended = ClientAccount::ended(owner.namespace);
        let owner = if self.usage.contains_key(&owner) { owner } else { ended };
        self.usage.entry(owner).or_default()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Run, Block)> + '_ {
        self.map.iter().map(|(&start, &block)| (Run { start, end: block.end }, block))
    }
}

/// The role of a block in an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockRole {
    /// The block named in the entry: each object has one.
    Primary,
    /// A block of its list.
    Extra,
}

/// The block is unknown, or its counts do not allow the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoBlock(pub(crate) Run);

#[cfg(test)]
mod tests {
    use super::*;

    fn account(client: u32) -> ClientAccount {
        ClientAccount { namespace: NamespaceId(7), client }
    }

    #[test]
    fn a_block_lives_as_long_as_an_object_needs_it() {
        let run = Run { start: 128, end: 512 };
        let mut blocks = Blocks::default();
        blocks.seal(run, BlockRole::Primary, account(3));
        blocks.seal(run, BlockRole::Primary, account(3));
        assert!(blocks.is_block(run) && !blocks.is_block(Run { start: 128, end: 256 }));
        blocks.retire(run, BlockRole::Primary).unwrap();
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (384, 0));
        blocks.retire(run, BlockRole::Primary).unwrap();
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (0, 384));
        assert!(blocks.retire(run, BlockRole::Primary).is_err());
        blocks.seal(run, BlockRole::Primary, account(3));
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (384, 0));
        blocks.retire(run, BlockRole::Primary).unwrap();
        assert_eq!(blocks.release(run), Ok(false));
        assert_eq!(blocks.release(run), Ok(false));
        assert_eq!(blocks.release(run), Ok(true));
        assert!(blocks.release(run).is_err());
        assert_eq!((blocks.sealed_bytes(), blocks.retiring_bytes()), (0, 0));
    }

    #[test]
    fn accounts_follow_blocks_and_go_to_removed_ones() {
        let (run, other) = (Run { start: 128, end: 512 }, Run { start: 512, end: 640 });
        let (first, second) = (account(1), account(2));
        let usage = |bytes, objects| Usage { bytes: Length(bytes), objects };
        let mut blocks = Blocks::default();
        blocks.seal(run, BlockRole::Primary, first);
        blocks.seal(run, BlockRole::Extra, second);
        blocks.seal(other, BlockRole::Primary, second);
        assert_eq!(blocks.usage(first), usage(384, 1));
        assert_eq!(blocks.usage(second), usage(128, 1));
        blocks.disown(first);
        assert_eq!(
            (blocks.usage(first), blocks.usage(ClientAccount::ended(NamespaceId(7)))),
            (usage(0, 0), usage(384, 1))
        );
        blocks.retire(run, BlockRole::Primary).unwrap();
        assert_eq!(blocks.usage(ClientAccount::ended(NamespaceId(7))), usage(384, 0));
        blocks.retire(run, BlockRole::Extra).unwrap();
        assert_eq!(blocks.release(run), Ok(false));
        assert_eq!(blocks.release(run), Ok(true));
        assert_eq!(blocks.usage_of_namespace(NamespaceId(7)), blocks.usage_of_all());
        assert_eq!(blocks.usage_of_namespace(NamespaceId(6)), usage(0, 0));
        assert_eq!(
            (blocks.usage(ClientAccount::ended(NamespaceId(7))), blocks.usage_of_all()),
            (usage(0, 0), usage(128, 1))
        );
    }
}
