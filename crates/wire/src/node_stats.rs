//! Statistics of a node. Each is declared once, in the list below: the message to a client, the
//! metrics for Prometheus and the units follow from it.

use serde::{Deserialize, Serialize};

use crate::NodeSettings;

/// The unit of a statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// A number of things.
    Count,
    /// Milliseconds.
    Milliseconds,
    /// A number that identifies something.
    Identifier,
    /// A text.
    Text,
    /// A structure or a list.
    Structure,
}

impl Unit {
    /// Its name, in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Count => "count",
            Self::Milliseconds => "milliseconds",
            Self::Identifier => "identifier",
            Self::Text => "text",
            Self::Structure => "structure",
        }
    }
}

/// The metric that shows a statistic, by its name. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Metric {
    /// A value that rises and falls.
    Gauge(&'static str),
    /// A value that only rises while the daemon runs.
    Counter(&'static str),
}

impl Metric {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge(name) | Self::Counter(name) => name,
        }
    }

    /// Its type in Prometheus' text format.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Gauge(_) => "gauge",
            Self::Counter(_) => "counter",
        }
    }
}

/// A statistic.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StatField {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub help: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The metric that shows it; `None`: no metric does.
    pub metric: Option<Metric>,
}

/// The value of a statistic as a number, if it is one.
trait StatValue {
    fn number(&self) -> Option<f64> {
        None
    }
}

impl StatValue for u64 {
    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl StatValue for u32 {
    fn number(&self) -> Option<f64> {
        Some((*self).into())
    }
}

impl StatValue for String {}

impl StatValue for NodeSettings {}

impl StatValue for Vec<String> {}

/// Makes the message and its description of lines `name: type, unit[, metric];`, in the order of
/// the fields on the wire.
macro_rules! node_stats {
    (@metric) => { None };
    (@metric $metric:expr) => { Some($metric) };
    ($(
        #[doc = $help:literal]
        $name:ident: $type:ty, $unit:ident $(, $kind:ident($metric:literal))?;
    )*) => {
        /// Statistics of a node, in bytes unless stated otherwise.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct NodeStats {
            $(#[doc = $help] pub $name: $type,)*
        }

        impl NodeStats {
            /// All statistics, in the order of the fields.
            pub const FIELDS: &'static [StatField] = &[$(StatField {
                name: stringify!($name),
                help: $help.trim_ascii(),
                unit: Unit::$unit,
                metric: node_stats!(@metric $(Metric::$kind($metric))?),
            }),*];

            /// The values that are numbers.
            fn values(&self) -> [Option<f64>; Self::FIELDS.len()] {
                [$(self.$name.number()),*]
            }
        }
    };
}

node_stats! {
    /// Heap bytes that the node lends.
    capacity: u64, Bytes, Gauge("farrow_capacity_bytes");
    /// Bytes of live objects, rounded up to cache lines.
    used: u64, Bytes, Gauge("farrow_used_bytes");
    /// Bytes that can be granted, or between objects.
    free: u64, Bytes, Gauge("farrow_free_bytes");
    /// Longest free run of whole pages.
    largest_free: u64, Bytes, Gauge("farrow_largest_free_bytes");
    /// Bytes granted to clients and not sealed.
    granted: u64, Bytes, Gauge("farrow_granted_bytes");
    /// Free bytes in pages that also hold objects.
    fragmented: u64, Bytes, Gauge("farrow_fragmented_bytes");
    /// Bytes that a client on another machine could write when it ended without cleanup.
    quarantine: u64, Bytes, Gauge("farrow_quarantine_bytes");
    /// Bytes of deleted objects that a client still holds.
    retiring: u64, Bytes, Gauge("farrow_retiring_bytes");
    /// Sealed objects.
    objects: u64, Count, Gauge("farrow_objects");
    /// Largest number of objects.
    objects_max: u64, Count, Gauge("farrow_objects_max");
    /// Deleted objects that a client still holds.
    objects_retiring: u64, Count, Gauge("farrow_objects_retiring");
    /// Clients with a slot.
    clients: u64, Count, Gauge("farrow_clients");
    /// Largest number of clients.
    clients_max: u64, Count, Gauge("farrow_clients_max");
    /// Objects held, summed over clients.
    holds: u64, Count, Gauge("farrow_holds");
    /// Uid of the region.
    region_uid: u64, Identifier;
    /// Process id of the daemon.
    pid: u32, Identifier;
    /// Time since the daemon started.
    uptime_ms: u64, Milliseconds, Gauge("farrow_uptime_seconds");
    /// Objects adopted at start from an earlier incarnation.
    adopted: u64, Count, Gauge("farrow_adopted_objects");
    /// Bytes of the heap with prepared pages.
    prepared: u64, Bytes, Gauge("farrow_prepared_bytes");
    /// `shm` or `device`.
    fabric: String, Text;
    /// `coherent` or `node-local`.
    coherence: String, Text;
    /// Path or name of the memory, for display.
    memory: String, Text;
    /// Size of the huge pages that the memory offers; 0: none.
    huge_page_bytes: u64, Bytes, Gauge("farrow_huge_page_bytes");
    /// Requests answered since start.
    requests: u64, Count, Counter("farrow_requests_total");
    /// Objects sealed since start.
    sealed_total: u64, Count, Counter("farrow_objects_sealed_total");
    /// Objects deleted since start.
    deleted_total: u64, Count, Counter("farrow_objects_deleted_total");
    /// Requests that wait for memory.
    waiting: u64, Count, Gauge("farrow_waiting_requests");
    /// Bytes that requests ask for while they wait for memory.
    waiting_bytes: u64, Bytes, Gauge("farrow_waiting_bytes");
    /// Wake-ups of the event loop since start; an idle loop does not wake.
    turns_total: u64, Count, Counter("farrow_event_loop_turns_total");
    /// Reaction to a shortage of memory: `lru`, `none` or `spill`.
    eviction: String, Text;
    /// Bytes of held sealed objects.
    held: u64, Bytes, Gauge("farrow_held_bytes");
    /// Bytes of pinned objects, held or not.
    pinned: u64, Bytes, Gauge("farrow_pinned_bytes");
    /// Pinned objects.
    objects_pinned: u64, Count, Gauge("farrow_objects_pinned");
    /// Bytes of objects that the node could evict or spill now; without eviction, of replicas alone.
    evictable: u64, Bytes, Gauge("farrow_evictable_bytes");
    /// Objects evicted since start.
    evicted_total: u64, Count, Counter("farrow_objects_evicted_total");
    /// Bytes freed by evictions since start.
    evicted_bytes_total: u64, Bytes, Counter("farrow_evicted_bytes_total");
    /// Bytes of the region's tables in use.
    records: u64, Bytes, Gauge("farrow_records_bytes");
    /// Objects that clients sealed by themselves, including deleted ones that are still held.
    client_objects: u64, Count, Gauge("farrow_client_objects");
    /// Largest number of objects that clients seal by themselves.
    client_objects_max: u64, Count, Gauge("farrow_client_objects_max");
    /// Spilled objects.
    objects_spilled: u64, Count, Gauge("farrow_spilled_objects");
    /// Bytes of the contents of spilled objects.
    spilled: u64, Bytes, Gauge("farrow_spilled_bytes");
    /// Objects written to files since start, including restored ones.
    spilled_total: u64, Count, Counter("farrow_objects_spilled_total");
    /// Objects restored since start.
    restored_total: u64, Count, Counter("farrow_objects_restored_total");
    /// Files that could not be written or read since start.
    spill_failures_total: u64, Count, Counter("farrow_spill_failures_total");
    /// Memory of the daemon in use for requests, replies and waits of clients and other nodes.
    buffers: u64, Bytes, Gauge("farrow_buffers_bytes");
    /// Limit of the memory for requests, replies and waits.
    buffers_max: u64, Bytes, Gauge("farrow_buffers_max_bytes");
    /// Heap bytes that the node can lend at most.
    capacity_max: u64, Bytes, Gauge("farrow_capacity_max_bytes");
    /// Settings that can be changed while the node serves.
    settings: NodeSettings, Structure;
    /// Names of the settings that differ from those at the start.
    settings_changed: Vec<String>, Structure;
    /// 1 while the node drains: its objects move to other nodes, and it takes no new ones.
    draining: u64, Count, Gauge("farrow_draining");
    /// Objects that moved to other nodes.
    moved_total: u64, Count, Counter("farrow_objects_moved_total");
    /// Bytes of objects that moved to other nodes.
    moved_bytes_total: u64, Bytes, Counter("farrow_moved_bytes_total");
}

impl NodeStats {
    /// The metrics with their descriptions and values.
    pub fn metrics(&self) -> impl Iterator<Item = (Metric, &'static str, f64)> {
        Self::FIELDS.iter().zip(self.values()).filter_map(|(field, number)| {
            let value = match field.unit {
                Unit::Milliseconds => number? / 1e3,
                _ => number?,
            };
            Some((field.metric?, field.help, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts, dashboards and alert rules use these names, and the order is that of the bytes.
    const GOLDEN: &str = "\
capacity gauge farrow_capacity_bytes
used gauge farrow_used_bytes
free gauge farrow_free_bytes
largest_free gauge farrow_largest_free_bytes
granted gauge farrow_granted_bytes
fragmented gauge farrow_fragmented_bytes
quarantine gauge farrow_quarantine_bytes
retiring gauge farrow_retiring_bytes
objects gauge farrow_objects
objects_max gauge farrow_objects_max
objects_retiring gauge farrow_objects_retiring
clients gauge farrow_clients
clients_max gauge farrow_clients_max
holds gauge farrow_holds
region_uid
pid
uptime_ms gauge farrow_uptime_seconds
adopted gauge farrow_adopted_objects
prepared gauge farrow_prepared_bytes
fabric
coherence
memory
huge_page_bytes gauge farrow_huge_page_bytes
requests counter farrow_requests_total
sealed_total counter farrow_objects_sealed_total
deleted_total counter farrow_objects_deleted_total
waiting gauge farrow_waiting_requests
waiting_bytes gauge farrow_waiting_bytes
turns_total counter farrow_event_loop_turns_total
eviction
held gauge farrow_held_bytes
pinned gauge farrow_pinned_bytes
objects_pinned gauge farrow_objects_pinned
evictable gauge farrow_evictable_bytes
evicted_total counter farrow_objects_evicted_total
evicted_bytes_total counter farrow_evicted_bytes_total
records gauge farrow_records_bytes
client_objects gauge farrow_client_objects
client_objects_max gauge farrow_client_objects_max
objects_spilled gauge farrow_spilled_objects
spilled gauge farrow_spilled_bytes
spilled_total counter farrow_objects_spilled_total
restored_total counter farrow_objects_restored_total
spill_failures_total counter farrow_spill_failures_total
buffers gauge farrow_buffers_bytes
buffers_max gauge farrow_buffers_max_bytes
capacity_max gauge farrow_capacity_max_bytes
settings
settings_changed
draining gauge farrow_draining
moved_total counter farrow_objects_moved_total
moved_bytes_total counter farrow_moved_bytes_total
";

    /// Numbers from 1 on, of one byte each; a text is its length and its bytes.
    #[rustfmt::skip]
    const BYTES: &[u8] = &[
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
        15, 16, 17, 18, 19, 1, b'f', 1, b'c', 1, b'm', 23, 24, 25, 26, 27, 28,
        29, 1, b'e', 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42,
        43, 44, 45, 46, 47, 0, 0, 0, 0, 0, 0, 0,
        50, 51, 52,
    ];

    #[test]
    fn names_and_metrics_are_those_that_users_know() {
        let mut lines = String::new();
        for StatField { name, metric, .. } in NodeStats::FIELDS {
            lines += name;
            if let Some(metric) = metric {
                lines += &format!(" {} {}", metric.kind(), metric.name());
            }
            lines += "\n";
        }
        assert_eq!(lines, GOLDEN);
    }

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        let stats: NodeStats = postcard::from_bytes(BYTES).unwrap();
        assert_eq!(postcard::to_io(&stats, Vec::new()).unwrap(), BYTES);
        let expected = (1..).zip(NodeStats::FIELDS).map(|(number, field)| match field.unit {
            Unit::Text | Unit::Structure => None,
            _ => Some(f64::from(number)),
        });
        assert!(stats.values().into_iter().eq(expected), "{stats:?}");
        assert_eq!(
            [stats.fabric, stats.coherence, stats.memory, stats.eviction],
            ["f", "c", "m", "e"]
        );
    }

    #[test]
    fn a_statistic_has_the_unit_of_its_metric() {
        for field in NodeStats::FIELDS {
            let Some(name) = field.metric.map(Metric::name) else {
                continue;
            };
            assert_eq!(name.contains("bytes"), field.unit == Unit::Bytes, "{field:?}");
            assert_eq!(name.contains("seconds"), field.unit == Unit::Milliseconds, "{field:?}");
        }
    }
}
