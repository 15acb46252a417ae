//! The session with one node: its mapped region, its socket, and what outlives a daemon.
//!
//! * `session`: the session itself; `calls`, its requests; `holds` and `hold_request`, its objects.
//! * `connect` reaches or starts a daemon, `start_log` has the messages of one that is started;
//!   `mapping` maps its region.
//! * `registry`, `turn`: the sessions of a process; one thread at a time reconnects.
//! * `replaced`: whether another node serves the socket, with other memory; `excluded`: whether the
//!   cluster goes on without the node.
//! * `reserved_names`, `reserved_objects`: reservations, which are renewed at the next daemon.
//! * `sealing`, `pending_holds`: seals whose objects this client does not hold yet.
//! * `ended_leases`: ends of leases, which are repeated to the next daemon.
//! * `late_queue`: requests whose answers are awaited after their calls, in a thread.
//! * `local_entries`: pages in which this client writes entries of objects itself.
//! * `inherited`: memory that forked children may read.

mod calls;
pub(crate) mod connect;
mod ended_leases;
mod excluded;
mod hold_request;
mod holds;
mod inherited;
pub(crate) mod late_queue;
pub(crate) mod local_entries;
mod mapping;
pub(crate) mod pending_holds;
mod registry;
pub(crate) mod replaced;
pub(crate) mod reserved_names;
pub(crate) mod reserved_objects;
pub(crate) mod sealing;
pub(crate) mod session;
mod start_log;
pub(crate) mod turn;
