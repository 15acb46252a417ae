//! What the region keeps for the cluster: the membership state, and the rules for other nodes.

use crate::protocol::rights::RightsTable;

/// The rules that an earlier incarnation stored. If they cannot be read, no node has any right.
pub(in crate::protocol) fn retained_rules(home: &farrow_store::Home) -> RightsTable {
    let retained = home.retained_for_cluster();
    let rules = retained.map(|bytes| bytes.map(|bytes| decode(&bytes)));
    match rules {
        Ok(None) => RightsTable::default(),
        Ok(Some(Some((_, rules)))) => rules,
        Ok(Some(None)) | Err(_) => {
            tracing::error!("no node has any right: the rules cannot be read");
            RightsTable::closed()
        }
    }
}

pub(in crate::protocol) fn encode(membership: Option<&[u8]>, rules: &RightsTable) -> Vec<u8> {
    // Serialization of these types into memory cannot fail.
    postcard::to_allocvec(&(membership, rules)).unwrap_or_default()
}

/// The membership state, in its own encoding, and the rules.
pub(in crate::protocol) fn decode(bytes: &[u8]) -> Option<(Option<Vec<u8>>, RightsTable)> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use farrow_store::CLUSTER_BYTES_MAX;

    use super::*;
    use crate::protocol::rights::RULES_MAX;
    use farrow_membership::{
        ADDRESS_BYTES_MAX, Ballot, ClusterId, Epoch, INFO_BYTES_MAX, Incarnation, MEMBERS_MAX,
        Member, NodeName, NodeNumber, PersistentState, View,
    };
    use farrow_wire::rights::{Rights, Rule};

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
        let bytes = encode(Some(&retained), &rules);
        assert!(bytes.len() as u64 <= CLUSTER_BYTES_MAX, "{} B", bytes.len());
        assert_eq!(decode(&bytes), Some((Some(retained), rules)));
        assert_eq!(decode(&bytes[1..]), None);
    }
}
