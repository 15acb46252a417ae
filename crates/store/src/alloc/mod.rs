//! Allocation of the heap: free space, blocks of objects, and the choice of objects to evict. In
//! private memory of the home, except that blocks are rebuilt from the tables at adoption.

pub(crate) mod blocks;
pub(crate) mod eviction;
pub(crate) mod space;
pub(crate) mod victim_order;
