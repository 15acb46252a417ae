//! Tokens by which the event loop knows the source of an event.

/// New connections.
pub(super) const LISTENER: u64 = 0;
pub(super) const WAKE: u64 = 1;
/// New connections of scrapers.
pub(super) const SCRAPE_LISTENER: u64 = 2;
pub(super) const SPILL: u64 = 3;
pub(super) const REMOTE_SESSIONS: u64 = 4;
pub(super) const NET: u64 = 5;
/// Tokens of sessions start here: twice the session number, plus one for its process.
pub(super) const SESSIONS: u64 = 1 << 8;
/// Tokens of processes watched for other nodes: this bit and a number.
pub(super) const WATCHED: u64 = 1 << 61;
/// Tokens of scrapers: this bit and a number.
pub(super) const SCRAPERS: u64 = 1 << 62;
/// Tokens of client processes of an earlier daemon: this bit and the slot.
pub(super) const ORPHANS: u64 = 1 << 63;
