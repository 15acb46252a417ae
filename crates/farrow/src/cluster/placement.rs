//! The one rule that chooses a node for new objects where the caller names no node but a wish:
//! the nearest one, or the one with the most free memory.

use farrow_wire::{MOST_FREE, MemberInfo, NEAREST, Reach};

use crate::error::Error;

/// A wish in place of the name of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlacementRule {
    /// The client's own node, then mapped nodes, then nodes by network, the cheapest first.
    Nearest,
    /// The node with the most free bytes.
    MostFree,
}

/// What is to be placed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlacementNeed {
    /// Bytes of the objects.
    pub(crate) bytes: u64,
    /// Only nodes whose memory is mapped can take it.
    pub(crate) is_mapped: bool,
}

/// The nodes that may take an object, in the order of the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// Nodes that have room by the last measurement.
    pub(crate) with_room: Vec<String>,
    /// Nodes without enough free memory, which may evict or spill objects, and nodes whose room is
    /// not known.
    pub(crate) without_room: Vec<String>,
}

impl PlacementRule {
    /// The rule of a reserved name; `None`: the name of a node.
    pub(crate) fn parse(node: &str) -> Option<Self> {
        match node {
            NEAREST => Some(Self::Nearest),
            MOST_FREE => Some(Self::MostFree),
            _ => None,
        }
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Nearest => NEAREST,
            Self::MostFree => MOST_FREE,
        }
    }

    /// The nodes that can take an object of these bytes, best first. Nodes that are not live, whose
    /// memory is not reached, or that are too small are left out. Equal nodes are in the order of
    /// their names.
    pub(crate) fn candidates(self, nodes: &[MemberInfo], need: PlacementNeed) -> Candidates {
        let possible = |node: &&MemberInfo| excluded(node, need).is_none();
        let mut possible: Vec<&MemberInfo> = nodes.iter().filter(possible).collect();
        possible.sort_by_key(|node| (self.rank(node, need.bytes), node.name.clone()));
        let has_room = |node: &MemberInfo| node.cost.free.is_some_and(|free| free >= need.bytes);
        let (with_room, without_room): (Vec<_>, Vec<_>) =
            possible.into_iter().partition(|node| has_room(node));
        let names = |all: Vec<&MemberInfo>| all.into_iter().map(|one| one.name.clone()).collect();
        Candidates { with_room: names(with_room), without_room: names(without_room) }
    }

    /// Smaller is better.
    fn rank(self, node: &MemberInfo, bytes: u64) -> (u8, u64) {
        match self {
            Self::MostFree => match node.cost.free {
                Some(free) => (0, u64::MAX - free),
                None => (1, 0),
            },
            Self::Nearest if node.is_own => (0, 0),
            Self::Nearest => {
                let class = if node.is_by_net() { 3 } else { 1 };
                match cost_of(node, bytes) {
                    Some(cost) => (class, cost),
                    None => (class + 1, 0),
                }
            }
        }
    }
}

/// The measured cost of sending bytes to a node, as a power of two of microseconds. Costs that
/// differ by less than measurements do are equal, so the choice does not change with each of them.
fn cost_of(node: &MemberInfo, bytes: u64) -> Option<u64> {
    let latency = u128::from(node.cost.latency_us?);
    // Bytes are written to mapped memory by the client itself: its nodes differ in the messages.
    let rate = node.cost.bytes_per_second.filter(|_| node.is_by_net());
    let transfer = rate.map_or(0, |rate| u128::from(bytes) * 1_000_000 / u128::from(rate.max(1)));
    Some(u64::from(u128::BITS - (latency + transfer).leading_zeros()))
}

/// Why a node cannot take an object at all; `None`: it may.
fn excluded(node: &MemberInfo, need: PlacementNeed) -> Option<String> {
    if node.reach != Reach::Live {
        return Some(node.reach.as_str().to_owned());
    }
    if node.is_draining {
        return Some("draining".to_owned());
    }
    if !node.is_usable() && (need.is_mapped || !node.is_by_net()) {
        let why = if node.why_not.is_empty() { "its memory is not mapped" } else { &node.why_not };
        return Some(why.to_owned());
    }
    (node.capacity < need.bytes).then(|| format!("{} B in all", node.capacity))
}

/// The error when no node can take an object: what is known of each, and why an attempt failed.
pub(crate) fn no_room(
    rule: PlacementRule,
    nodes: &[MemberInfo],
    need: PlacementNeed,
    failures: &[(String, Error)],
) -> Error {
    let reason = |node: &MemberInfo| {
        let failure = failures.iter().find(|(name, _)| *name == node.name);
        match (failure, excluded(node, need), node.cost.free) {
            (Some((_, error)), ..) => error.to_string(),
            (None, Some(why), _) => why,
            (None, None, Some(free)) => format!("{free} B free"),
            (None, None, None) => "its room is not known".to_owned(),
        }
    };
    // The error of an attempt is newer than the measurement.
    let free = |node: &MemberInfo| {
        let failure = failures.iter().find(|(name, _)| *name == node.name);
        match failure {
            Some((_, Error::OutOfMemory(full))) => Some(full.free),
            Some((_, Error::NotSpilled(full))) => Some(full.free),
            _ => node.cost.free,
        }
    };
    let members = nodes.iter().filter(|node| node.is_member());
    let free = members.filter_map(free).max().unwrap_or_default();
    let nodes: Vec<String> =
        nodes.iter().map(|node| format!("{}: {}", node.name, reason(node))).collect();
    Error::NoNodeHasRoom { rule: rule.as_str(), requested: need.bytes, free, nodes }
}

/// Whether an error of one node leaves the others to be tried.
pub(crate) fn is_of_one_node(error: &Error) -> bool {
    matches!(
        error,
        Error::OutOfMemory(_)
            | Error::NoRoom(_)
            | Error::NotSpilled(_)
            | Error::TooLarge(_)
            | Error::TooMany { .. }
            | Error::QuotaExceeded(_)
            | Error::NodeLost { .. }
            | Error::NodeUnreachable(_)
            | Error::NotPermitted(_)
            | Error::NodeDraining { .. }
    )
}

#[cfg(test)]
mod tests {
    use farrow_wire::NodeCost;

    use super::*;
    use crate::error::OutOfMemory;

    const MB: u64 = 1 << 20;

    fn node(name: &str, fabric: &str, free: Option<u64>, latency_us: Option<u64>) -> MemberInfo {
        MemberInfo {
            name: name.to_owned(),
            fabric: fabric.to_owned(),
            capacity: 64 * MB,
            cost: NodeCost { free, latency_us, bytes_per_second: None },
            ..MemberInfo::default()
        }
    }

    fn own(free: u64) -> MemberInfo {
        MemberInfo { is_own: true, ..node("own", "shm", Some(free), None) }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn order(rule: PlacementRule, nodes: &[MemberInfo], bytes: u64) -> (Vec<String>, Vec<String>) {
        let need = PlacementNeed { bytes, is_mapped: false };
        let Candidates { with_room, without_room } = rule.candidates(nodes, need);
        (with_room, without_room)
    }

    #[test]
    fn the_own_node_is_nearest_then_mapped_memory_then_the_network() {
        let nodes = [
            node("fast-net", "net", Some(9 * MB), Some(50)),
            node("slow-mapped", "device", Some(9 * MB), Some(5_000)),
            node("mapped", "shm", Some(9 * MB), Some(300)),
            node("unmeasured", "shm", Some(9 * MB), None),
            own(9 * MB),
        ];
        let (with_room, without_room) = order(PlacementRule::Nearest, &nodes, MB);
        assert_eq!(with_room, ["own", "mapped", "slow-mapped", "unmeasured", "fast-net"]);
        assert!(without_room.is_empty());
        let full = [own(MB - 1), nodes[0].clone(), nodes[2].clone()];
        let (with_room, without_room) = order(PlacementRule::Nearest, &full, MB);
        assert_eq!((with_room, without_room), (names(&["mapped", "fast-net"]), names(&["own"])));
    }

    #[test]
    fn the_time_of_the_transfer_counts_by_network() {
        let mut near = node("near", "net", Some(9 * MB), Some(100));
        let mut wide = node("wide", "net+TLS", Some(9 * MB), Some(2_000));
        near.cost.bytes_per_second = Some(10 * MB);
        wide.cost.bytes_per_second = Some(1_000 * MB);
        let nodes = [near, wide];
        assert_eq!(order(PlacementRule::Nearest, &nodes, 100).0, ["near", "wide"]);
        assert_eq!(order(PlacementRule::Nearest, &nodes, 8 * MB).0, ["wide", "near"]);
    }

    #[test]
    fn equal_nodes_are_in_the_order_of_their_names_and_noise_changes_nothing() {
        let nodes = [node("c", "shm", Some(5), Some(300)), node("b", "shm", Some(5), Some(290))];
        let swapped = [node("c", "shm", Some(5), Some(290)), node("b", "shm", Some(5), Some(300))];
        for rule in [PlacementRule::Nearest, PlacementRule::MostFree] {
            assert_eq!(order(rule, &nodes, 1).0, ["b", "c"]);
            assert_eq!(order(rule, &swapped, 1).0, ["b", "c"]);
        }
    }

    #[test]
    fn the_most_free_bytes_win_and_unknown_room_is_last() {
        let nodes = [
            own(3 * MB),
            node("old", "net", None, Some(1)),
            node("most", "net", Some(8 * MB), Some(90_000)),
            node("less", "shm", Some(7 * MB), Some(100)),
        ];
        let (with_room, without_room) = order(PlacementRule::MostFree, &nodes, 4 * MB);
        assert_eq!(with_room, ["most", "less"]);
        assert_eq!(without_room, ["own", "old"]);
    }

    #[test]
    fn unreachable_and_small_nodes_are_no_candidates_and_the_error_says_why() {
        let lost = MemberInfo { reach: Reach::Lost, ..node("lost", "", None, None) };
        let suspect = MemberInfo { reach: Reach::Suspect, ..node("s", "shm", Some(9 * MB), None) };
        let unmapped =
            MemberInfo { why_not: "another machine".into(), ..node("far", "", None, None) };
        let small = MemberInfo { capacity: MB, ..node("small", "shm", Some(MB), None) };
        let by_net = node("net", "net", Some(9 * MB), Some(1));
        let leaving = MemberInfo { is_draining: true, ..node("d", "shm", Some(9 * MB), Some(1)) };
        let nodes = [lost, suspect, unmapped, small, by_net.clone(), leaving];
        let need = PlacementNeed { bytes: 2 * MB, is_mapped: true };
        let rule = PlacementRule::Nearest;
        let none = Candidates { with_room: Vec::new(), without_room: Vec::new() };
        assert_eq!(rule.candidates(&nodes, need), none);
        let text = no_room(rule, &nodes, need, &[]).to_string();
        for part in [
            "2097152",
            "nearest",
            "lost: lost",
            "s: suspect",
            "far: another machine",
            "d: draining",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("small: 1048576 B in all"), "{text}");
        let need = PlacementNeed { is_mapped: false, ..need };
        assert_eq!(rule.candidates(&nodes, need).with_room, ["net"]);
        let full = Error::OutOfMemory(OutOfMemory {
            requested: 1,
            free: 5,
            largest: 5,
            waiting: 0,
            waited_ms: 0,
        });
        let error = no_room(rule, std::slice::from_ref(&by_net), need, &[("net".into(), full)]);
        assert!(matches!(error, Error::NoNodeHasRoom { free: 5, .. }), "{error}");
        let refused = Error::NodeLost { node: "net".into(), reason: "it ended".into() };
        let text = no_room(rule, &nodes, need, &[("net".into(), refused)]).to_string();
        assert!(text.contains("it ended"), "{text}");
    }

    #[test]
    fn only_the_reserved_names_are_rules() {
        for name in farrow_wire::RESERVED_NODE_NAMES {
            assert_eq!(PlacementRule::parse(name).map(PlacementRule::as_str), Some(name));
        }
        for name in ["", "a", "Nearest", "most_free", "nearest "] {
            assert_eq!(PlacementRule::parse(name), None, "{name:?}");
        }
    }
}
