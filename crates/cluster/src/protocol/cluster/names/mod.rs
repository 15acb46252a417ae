//! Names, unique in the cluster: requests that take names wait for the authorities of these.
//!
//! `parked` and `hint_table` are states; the other files handle events and requests.

pub(super) mod acquire;
pub(super) mod claims;
pub(super) mod hint_table;
pub(super) mod hints;
pub(super) mod joined;
pub(super) mod lookups;
pub(super) mod parked;
pub(super) mod unconfirmed;
