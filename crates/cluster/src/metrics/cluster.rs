//! Metrics of a node's cluster: its members, the routes to them, and the traffic with them.

use std::collections::BTreeMap;

use farrow_wire::{MemberInfo, Reach};

use super::lines::{escaped, head, line};
use crate::protocol::cluster::ClusterStats;

/// Limit on nodes with traffic counts: the members of a view, and as many former ones.
const NODES_MAX: usize = 128;

/// The kind of a message between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerMessageKind {
    /// A message of the membership protocol.
    Message,
    /// A request between daemons.
    Question,
    /// A message of a client on a remote session.
    RemoteSession,
}

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    In,
    Out,
}

impl PeerMessageKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Question => "question",
            Self::RemoteSession => "session",
        }
    }
}

impl Direction {
    const fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

#[derive(Debug, Default, Clone)]
struct PeerCounts {
    /// Number of messages, and their bytes.
    sent: BTreeMap<(PeerMessageKind, Direction), (u64, u64)>,
    failures: u64,
}

/// Traffic between this node and each other node.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    nodes: BTreeMap<String, PeerCounts>,
}

impl Traffic {
    /// Counts a message of this length to or from a node of the cluster.
    pub(crate) fn add(&mut self, node: &str, kind: PeerMessageKind, way: Direction, bytes: usize) {
        self.with(node, |counts| {
            let (messages, sum) = counts.sent.entry((kind, way)).or_default();
            *messages += 1;
            *sum += bytes as u64;
        });
    }

    /// Counts a request without a response, or a broken remote session.
    pub(crate) fn fail(&mut self, node: &str) {
        self.with(node, |counts| counts.failures += 1);
    }

    fn with(&mut self, node: &str, change: impl FnOnce(&mut PeerCounts)) {
        if let Some(counts) = self.nodes.get_mut(node) {
            return change(counts);
        }
        if self.nodes.len() >= NODES_MAX {
            // The removed node is most likely a former one. Which one does not matter.
            self.nodes.pop_first();
        }
        change(self.nodes.entry(node.to_owned()).or_default());
    }
}

/// Writes all metrics of the cluster in the text format.
pub(crate) fn write(out: &mut String, stats: &ClusterStats, traffic: &Traffic) {
    let ClusterStats { members, lease_left_ms, lines, names_lost, fetched, served, packed } = stats;
    let mut single = |name, help, value: f64| {
        head(out, name, "gauge", help);
        line(out, name, "", value);
    };
    single(
        "farrow_cluster_view",
        "Number of the view of the cluster; 0: none.",
        members.epoch as f64,
    );
    let has_lease = f64::from(u8::from(members.has_lease));
    single(
        "farrow_cluster_has_lease",
        "Whether the node holds the lease of its cluster.",
        has_lease,
    );
    let left = *lease_left_ms as f64 / 1e3;
    single("farrow_cluster_lease_left_seconds", "Time left of its lease.", left);
    let peers = || members.nodes.iter().filter(|node| !node.is_own);
    head(out, "farrow_cluster_nodes", "gauge", "Other nodes, by reachability.");
    for reach in [Reach::Live, Reach::Suspect, Reach::Lost, Reach::Left] {
        let count = peers().filter(|node| node.reach == reach).count();
        let labels = format!("{{reach=\"{}\"}}", reach.as_str());
        line(out, "farrow_cluster_nodes", &labels, count as f64);
    }
    let name = "farrow_cluster_names_lost_total";
    let help = "Names that objects of this node lost to objects of other nodes.";
    head(out, name, "counter", help);
    line(out, name, "", *names_lost as f64);
    head(out, "farrow_cluster_node_info", "gauge", "How each other node is reached.");
    for node in peers() {
        line(out, "farrow_cluster_node_info", &labels_of(node), 1.0);
    }
    for (name, help, value) in [
        ("farrow_region_published_lines_total", "Cache lines written back.", 0),
        ("farrow_region_refreshed_lines_total", "Cache lines dropped before reading.", 1),
    ] {
        head(out, name, "counter", help);
        for (node, counts) in lines {
            let labels = format!("{{node=\"{}\"}}", escaped(node));
            line(out, name, &labels, counts[value] as f64);
        }
    }
    for (name, help, value) in [
        ("farrow_fetched_objects_total", "Objects fetched by network.", 0),
        ("farrow_fetched_bytes_total", "Bytes of fetched objects in memory.", 1),
    ] {
        head(out, name, "counter", help);
        line(out, name, "", fetched[value] as f64);
    }
    let name = "farrow_served_bytes_total";
    head(out, name, "counter", "Bytes sent to other nodes, of own objects and of replicas.");
    for (of, bytes) in ["own", "replica"].iter().zip(served) {
        line(out, name, &format!("{{of=\"{of}\"}}"), *bytes as f64);
    }
    let name = "farrow_net_compressed_bytes_total";
    head(out, name, "counter", "Bytes that were compressed on their way, before and after it.");
    for (way, counts) in ["out", "in"].iter().zip(packed) {
        for (form, bytes) in ["plain", "compressed"].iter().zip(counts) {
            line(out, name, &format!("{{way=\"{way}\",form=\"{form}\"}}"), *bytes as f64);
        }
    }
    write_traffic(out, peers().map(|node| node.name.as_str()), traffic);
}

fn write_traffic<'a>(
    out: &mut String,
    nodes: impl Iterator<Item = &'a str> + Clone,
    traffic: &Traffic,
) {
    let known = nodes.filter_map(|node| Some((node, traffic.nodes.get(node)?)));
    for (name, help, is_bytes) in [
        ("farrow_peer_messages_total", "Messages to and from each other node.", false),
        ("farrow_peer_bytes_total", "Bytes of messages to and from each other node.", true),
    ] {
        head(out, name, "counter", help);
        for (node, counts) in known.clone() {
            for ((kind, way), (messages, bytes)) in &counts.sent {
                let (kind, way) = (kind.as_str(), way.as_str());
                let node = escaped(node);
                let labels = format!("{{node=\"{node}\",kind=\"{kind}\",way=\"{way}\"}}");
                let value = if is_bytes { bytes } else { messages };
                line(out, name, &labels, *value as f64);
            }
        }
    }
    let name = "farrow_peer_failures_total";
    head(out, name, "counter", "Requests without an answer, and remote sessions that failed.");
    for (node, counts) in known {
        line(out, name, &format!("{{node=\"{}\"}}", escaped(node)), counts.failures as f64);
    }
}

fn labels_of(node: &MemberInfo) -> String {
    let labels = [
        ("node", node.name.as_str()),
        ("address", &node.address),
        ("reach", node.reach.as_str()),
        ("fabric", &node.fabric),
        ("coherence", &node.coherence),
    ];
    let labels = labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", labels.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farrow_wire::Members;

    #[test]
    fn each_node_and_each_way_has_a_line_and_strangers_have_none() {
        let node = |name: &str, is_own| MemberInfo {
            name: name.to_owned(),
            is_own,
            fabric: "shm".to_owned(),
            ..MemberInfo::default()
        };
        let nodes = vec![node("a", true), node("b", false)];
        let members = Members { epoch: 7, has_lease: true, nodes, ..Members::default() };
        let lines = vec![("b".to_owned(), [3, 4])];
        let (fetched, served) = ([5, 600], [7, 800]);
        let packed = [[90, 30], [80, 20]];
        let stats = ClusterStats {
            members,
            lease_left_ms: 1500,
            lines,
            names_lost: 9,
            fetched,
            served,
            packed,
        };
        let mut traffic = Traffic::default();
        traffic.add("b", PeerMessageKind::Question, Direction::Out, 10);
        traffic.add("b", PeerMessageKind::Question, Direction::Out, 20);
        traffic.add("stranger", PeerMessageKind::Message, Direction::In, 5);
        traffic.fail("b");
        let mut text = String::new();
        write(&mut text, &stats, &traffic);
        for sample in [
            "farrow_cluster_view 7",
            "farrow_cluster_has_lease 1",
            "farrow_cluster_lease_left_seconds 1.5",
            "farrow_cluster_nodes{reach=\"live\"} 1",
            "farrow_cluster_names_lost_total 9",
            "farrow_region_refreshed_lines_total{node=\"b\"} 4",
            "farrow_fetched_objects_total 5",
            "farrow_fetched_bytes_total 600",
            "farrow_served_bytes_total{of=\"own\"} 7",
            "farrow_served_bytes_total{of=\"replica\"} 800",
            "farrow_net_compressed_bytes_total{way=\"out\",form=\"plain\"} 90",
            "farrow_net_compressed_bytes_total{way=\"out\",form=\"compressed\"} 30",
            "farrow_net_compressed_bytes_total{way=\"in\",form=\"compressed\"} 20",
            "farrow_peer_messages_total{node=\"b\",kind=\"question\",way=\"out\"} 2",
            "farrow_peer_bytes_total{node=\"b\",kind=\"question\",way=\"out\"} 30",
            "farrow_peer_failures_total{node=\"b\"} 1",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} in {text}");
        }
        assert!(!text.contains("stranger") && !text.contains("node=\"a\""), "{text}");
    }

    #[test]
    fn names_that_come_and_go_take_no_more_than_their_room() {
        let mut traffic = Traffic::default();
        (0..1000).for_each(|n| {
            traffic.add(&format!("n{n}"), PeerMessageKind::Message, Direction::In, 1)
        });
        assert_eq!(traffic.nodes.len(), NODES_MAX);
    }
}
