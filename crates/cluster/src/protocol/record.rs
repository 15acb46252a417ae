//! The record that the region keeps for the cluster: the node's membership state, and beside it the
//! rules, the changed settings, the state of a drain, and numbers.

use farrow_store::StoreError;
use farrow_wire::WireError;

use super::convert::store_error;
use super::core::cluster_record::{RecordNumbers, decode, encode};
use super::requests::settings::SettingsRecord;
use super::rights::RightsTable;
use super::state::NodeState;

/// More requests than one daemon makes: a thousand a second for 35 years. In nanoseconds it is 18
/// minutes.
const REQUESTS_MAX: u64 = 1 << 40;

impl NodeState {
    /// What the region keeps for the cluster.
    fn record_with(&self, membership: Option<&[u8]>, rules: &RightsTable) -> Vec<u8> {
        let (settings, drain) = (self.settings.record(), self.drain.record.to_keep());
        let first_number = self.barriers.first_number();
        let compared_for = self.joined.compared_for.unwrap_or_default();
        let numbers = RecordNumbers { first_number, compared_for };
        encode(membership, rules, settings, drain, numbers)
    }

    /// The first number of the requests of this daemon to other nodes, above all of earlier ones of
    /// this region: members ignore lower ones. `now` is the wall clock, in nanoseconds.
    ///
    /// # Errors
    ///
    /// The region cannot be read or written.
    pub(super) fn begin_numbers(&mut self, now: u64) -> Result<u64, StoreError> {
        let earlier = self.barriers.first_number();
        if now <= earlier {
            tracing::warn!(now, earlier, "the wall clock is behind the last number of requests");
        }
        let first = if now > earlier { now } else { earlier.saturating_add(REQUESTS_MAX) };
        self.barriers.number_from(first);
        let retained = self.retained_membership()?;
        let bytes = self.record_with(retained.as_deref(), &self.rules);
        self.home.keep_for_cluster(&bytes)?;
        Ok(first)
    }

    /// Stores the membership state beside the rules, to survive a kill.
    pub(super) fn keep_membership(&mut self, retained: &[u8]) -> Result<(), StoreError> {
        let bytes = self.record_with(Some(retained), &self.rules);
        self.home.keep_for_cluster(&bytes)
    }

    /// The membership state that an earlier incarnation stored.
    pub(super) fn retained_membership(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let retained = self.home.retained_for_cluster()?;
        Ok(retained.and_then(|bytes| decode(&bytes)).and_then(|record| record.membership))
    }

    /// Stores another table of rules beside the rest.
    pub(super) fn keep_rules(&mut self, rules: &RightsTable) -> Result<(), WireError> {
        let membership = self.retained_membership().map_err(store_error)?;
        let bytes = self.record_with(membership.as_deref(), rules);
        self.home.keep_for_cluster(&bytes).map_err(store_error)
    }

    /// The changed settings that an earlier daemon stored.
    pub(super) fn retained_settings(&self) -> Result<Option<SettingsRecord>, StoreError> {
        let retained = self.home.retained_for_cluster()?;
        Ok(retained.and_then(|bytes| decode(&bytes)).and_then(|record| record.settings))
    }

    /// Stores the changed settings and the state of a drain beside the rules, to survive a kill.
    pub(super) fn keep_settings(&mut self) -> Result<(), WireError> {
        let membership = self.retained_membership().map_err(store_error)?;
        let bytes = self.record_with(membership.as_deref(), &self.rules);
        self.home.keep_for_cluster(&bytes).map_err(store_error)
    }
}
