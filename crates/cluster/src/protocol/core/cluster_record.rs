//! What the region keeps for the cluster: the membership state, the rules for other nodes, and
//! settings that were changed while the node served.

use farrow_store::{Home, StoreError};
use farrow_wire::WireError;

use super::drain::state::DrainRecord;
use super::settings::SettingsRecord;
use crate::protocol::convert::store_error;
use crate::protocol::rights::RightsTable;

/// The content of the record.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::protocol) struct ClusterRecord {
    /// The membership state, in its own encoding.
    pub(in crate::protocol) membership: Option<Vec<u8>>,
    pub(in crate::protocol) rules: RightsTable,
    pub(in crate::protocol) settings: Option<SettingsRecord>,
    pub(in crate::protocol) drain: Option<DrainRecord>,
    /// The first number of the requests of the last daemon; 0: there was none.
    pub(in crate::protocol) first_number: u64,
    /// The incarnation for which names were compared with those of the other members; 0: none.
    /// `None`: an earlier version compared none.
    pub(in crate::protocol) compared_for: Option<u64>,
}

/// The numbers of the record.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::protocol) struct RecordNumbers {
    /// See [`ClusterRecord::first_number`].
    pub(in crate::protocol) first_number: u64,
    /// See [`ClusterRecord::compared_for`].
    pub(in crate::protocol) compared_for: u64,
}

/// What the record has beside the membership state and the state of a drain.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct RecordParts<'a> {
    pub(in crate::protocol) rules: &'a RightsTable,
    pub(in crate::protocol) settings: Option<&'a SettingsRecord>,
    pub(in crate::protocol) numbers: RecordNumbers,
}

impl RecordParts<'_> {
    /// Stores all of this beside the membership state that is stored already, to survive a kill.
    ///
    /// # Errors
    ///
    /// The region cannot be read or written.
    pub(in crate::protocol) fn keep(
        &self,
        home: &mut Home,
        drain: &DrainRecord,
    ) -> Result<(), WireError> {
        let membership = retained_membership(home).map_err(store_error)?;
        self.keep_with(home, membership.as_deref(), drain).map_err(store_error)
    }

    /// As [`Self::keep`], with another membership state.
    ///
    /// # Errors
    ///
    /// The region cannot be written.
    pub(in crate::protocol) fn keep_with(
        &self,
        home: &mut Home,
        membership: Option<&[u8]>,
        drain: &DrainRecord,
    ) -> Result<(), StoreError> {
        let Self { rules, settings, numbers } = *self;
        home.keep_for_cluster(&encode(membership, rules, settings, drain.to_keep(), numbers))
    }
}

/// The membership state that an earlier incarnation stored.
///
/// # Errors
///
/// The region cannot be read.
pub(in crate::protocol) fn retained_membership(home: &Home) -> Result<Option<Vec<u8>>, StoreError> {
    let retained = home.retained_for_cluster()?;
    Ok(retained.and_then(|bytes| decode(&bytes)).and_then(|record| record.membership))
}

/// The changed settings that an earlier daemon stored.
///
/// # Errors
///
/// The region cannot be read.
pub(in crate::protocol) fn retained_settings(
    home: &Home,
) -> Result<Option<SettingsRecord>, StoreError> {
    let retained = home.retained_for_cluster()?;
    Ok(retained.and_then(|bytes| decode(&bytes)).and_then(|record| record.settings))
}

/// The rules that an earlier incarnation stored. If they cannot be read, no node has any right.
pub(in crate::protocol) fn retained_rules(home: &Home) -> RightsTable {
    let retained = home.retained_for_cluster();
    let rules = retained.map(|bytes| bytes.map(|bytes| decode(&bytes)));
    match rules {
        Ok(None) => RightsTable::default(),
        Ok(Some(Some(record))) => record.rules,
        Ok(Some(None)) | Err(_) => {
            tracing::error!("no node has any right: the rules cannot be read");
            RightsTable::closed()
        }
    }
}

fn encode(
    membership: Option<&[u8]>,
    rules: &RightsTable,
    settings: Option<&SettingsRecord>,
    drain: Option<&DrainRecord>,
    numbers: RecordNumbers,
) -> Vec<u8> {
    let RecordNumbers { first_number, compared_for } = numbers;
    // Serialization of these types into memory cannot fail. Earlier versions ignore what follows
    // the rules, the settings, the drain, or the first number.
    let all = (membership, rules, settings, drain, first_number, compared_for);
    postcard::to_allocvec(&all).unwrap_or_default()
}

pub(in crate::protocol) fn decode(bytes: &[u8]) -> Option<ClusterRecord> {
    let ((membership, rules), rest) = postcard::take_from_bytes(bytes).ok()?;
    // Earlier versions stored no settings, or nothing behind them. Damaged ones are no reason to
    // lose the rules.
    let (settings, rest) = postcard::take_from_bytes(rest).unwrap_or_default();
    let (drain, rest) = match postcard::take_from_bytes(rest) {
        Ok((drain, rest)) => (drain, rest),
        Err(error) => {
            if !rest.is_empty() {
                tracing::error!(%error, "what was stored of drains cannot be read: drain again");
            }
            (None, &[][..])
        }
    };
    let (first_number, rest) = postcard::take_from_bytes(rest).unwrap_or_default();
    let compared_for = postcard::from_bytes(rest).ok();
    Some(ClusterRecord { membership, rules, settings, drain, first_number, compared_for })
}

/// What an earlier incarnation stored, but for the rules.
pub(in crate::protocol) fn retained_state(home: &Home) -> ClusterRecord {
    match home.retained_for_cluster() {
        Ok(retained) => retained.and_then(|bytes| decode(&bytes)).unwrap_or_default(),
        Err(error) => {
            tracing::error!(%error, "a drain and changed settings cannot be resumed");
            ClusterRecord::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use farrow_store::CLUSTER_BYTES_MAX;

    use super::*;
    use crate::protocol::core::drain::state::{
        DRAINING_MAX, INCOMING_MAX, IncomingMove, OutgoingMove, UNDONE_MAX,
    };
    use crate::protocol::rights::RULES_MAX;
    use farrow_membership::{
        ADDRESS_BYTES_MAX, Ballot, ClusterId, Epoch, INFO_BYTES_MAX, Incarnation, MEMBERS_MAX,
        Member, NodeName, NodeNumber, PersistentState, View,
    };
    use farrow_wire::rights::{Rights, Rule};
    use farrow_wire::{LOG_FILTER_BYTES_MAX, NodeSettings, WireObjectId};

    #[test]
    fn a_full_table_fits_beside_the_two_largest_views() {
        let name = |number: usize| NodeName::new(format!("{number:a>63}")).unwrap();
        let address = || "x".repeat(ADDRESS_BYTES_MAX);
        let info = || vec![7; INFO_BYTES_MAX];
        let incarnation = Incarnation(u64::MAX);
        let member = |number: NodeNumber| Member {
            number,
            name: name(number.get().into()),
            incarnation,
            address: address(),
            info: info(),
        };
        let view = View {
            cluster: ClusterId(u64::MAX),
            epoch: Epoch(u64::MAX),
            members: NodeNumber::all().map(member).collect(),
            former: Vec::new(),
        };
        assert_eq!(view.members.len(), MEMBERS_MAX);
        let ballot = Ballot { round: u64::MAX, name: name(0) };
        let retained = PersistentState {
            name: name(0),
            incarnation,
            address: address(),
            info: info(),
            is_leaving: true,
            is_over: true,
            electorate: u64::MAX,
            view: Some(view.clone()),
            promised: Some(ballot.clone()),
            accepted: Some((ballot, view)),
        };
        let mut rules = RightsTable::default();
        for number in 0..RULES_MAX {
            let (namespace, node) = (format!("{number:n>63}"), name(number).to_string());
            rules.set(Rule { namespace, node, rights: Rights::ALL }).unwrap();
        }
        let retained = postcard::to_allocvec(&retained).unwrap();
        let settings = SettingsRecord {
            started: largest_settings(),
            current: NodeSettings { cache: None, ..largest_settings() },
        };
        let drain = largest_drain();
        let (first_number, compared_for) = (u64::MAX, u64::MAX);
        let numbers = RecordNumbers { first_number, compared_for };
        let bytes = encode(Some(&retained), &rules, Some(&settings), Some(&drain), numbers);
        assert!(bytes.len() as u64 <= CLUSTER_BYTES_MAX, "{} B", bytes.len());
        let settings = Some(settings);
        let drain = Some(drain);
        let membership = Some(retained);
        let compared_for = Some(compared_for);
        let whole =
            ClusterRecord { membership, rules, settings, drain, first_number, compared_for };
        assert_eq!(decode(&bytes), Some(whole));
        assert_eq!(decode(&bytes[1..]), None);
    }

    fn largest_drain() -> DrainRecord {
        let outgoing = OutgoingMove {
            object: u64::MAX,
            node: "n".repeat(63),
            number: u64::MAX,
            staged: Some(u64::MAX),
        };
        let incoming = IncomingMove {
            origin: WireObjectId { hi: u64::MAX, lo: u64::MAX },
            from: "n".repeat(63),
            name: "x".repeat(farrow_membership::naming::NAME_BYTES_MAX),
            id: Some(WireObjectId { hi: u64::MAX, lo: u64::MAX }),
            number: u64::MAX,
        };
        DrainRecord {
            is_draining: true,
            is_cancelled: true,
            outgoing: Some(outgoing.clone()),
            undone: vec![outgoing; UNDONE_MAX],
            incoming: vec![incoming; INCOMING_MAX],
            draining: vec![(u8::MAX, u64::MAX); DRAINING_MAX],
        }
    }

    fn largest_settings() -> NodeSettings {
        NodeSettings {
            client_bytes: Some(u64::MAX),
            client_objects: Some(u32::MAX),
            cache: Some(u64::MAX),
            is_evicting: true,
            log: "x".repeat(LOG_FILTER_BYTES_MAX),
            memory: u64::MAX,
        }
    }

    #[test]
    fn records_of_versions_without_settings_are_read_and_they_read_ours() {
        let mut rules = RightsTable::default();
        rules.set("team:b:read".parse().unwrap()).unwrap();
        let membership = Some(vec![1, 2, 3]);
        let earlier = postcard::to_allocvec(&(&membership, &rules)).unwrap();
        let read = ClusterRecord { membership, rules, ..ClusterRecord::default() };
        assert_eq!(decode(&earlier).as_ref(), Some(&read));
        let settings = SettingsRecord { current: largest_settings(), ..Default::default() };
        let of_settings =
            postcard::to_allocvec(&(&read.membership, &read.rules, Some(&settings))).unwrap();
        assert_eq!(decode(&of_settings).unwrap().settings.as_ref(), Some(&settings));
        let drain = largest_drain();
        let of_drains =
            postcard::to_allocvec(&(&read.membership, &read.rules, Some(&settings), Some(&drain)));
        let decoded = decode(&of_drains.unwrap()).unwrap();
        assert_eq!((decoded.drain.as_ref(), decoded.first_number), (Some(&drain), 0));
        let of_numbers = postcard::to_allocvec(&(
            &read.membership,
            &read.rules,
            Some(&settings),
            Some(&drain),
            7_u64,
        ));
        let decoded = decode(&of_numbers.unwrap()).unwrap();
        assert_eq!((decoded.first_number, decoded.compared_for), (7, None));
        let numbers = RecordNumbers { first_number: 7, compared_for: 8 };
        let membership = read.membership.as_deref();
        let bytes = encode(membership, &read.rules, Some(&settings), Some(&drain), numbers);
        assert_eq!(decode(&bytes).unwrap().compared_for, Some(8));
        let by_them: (Option<Vec<u8>>, RightsTable) = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(by_them, (read.membership, read.rules));
    }
}
