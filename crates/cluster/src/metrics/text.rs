//! The text exposition format of Prometheus, version 0.0.4.

use farrow_wire::{NamespaceReport, NodeStats};

use super::Latencies;
use super::cluster::{self, Traffic};
use super::limits::{self, Errors};
use super::lines::{escaped, head, line};
use crate::protocol::cluster::ClusterNumbers;

/// A family of one sample without labels: name, type, help, value.
type Single = (&'static str, &'static str, &'static str, f64);

/// What a scrape shows.
#[derive(Clone, Copy)]
pub(crate) struct Measured<'a> {
    pub(crate) stats: &'a NodeStats,
    pub(crate) namespaces: &'a [NamespaceReport],
    pub(crate) latencies: &'a Latencies,
    pub(crate) errors: &'a Errors,
    /// Whether `/readyz` answers 200.
    pub(crate) is_ready: bool,
    /// `None`: the node has no cluster.
    pub(crate) of_cluster: Option<(&'a ClusterNumbers, &'a Traffic)>,
}

/// Writes all metrics of a node, and of its cluster if it has one.
pub(crate) fn write(measured: Measured<'_>) -> String {
    let Measured { stats, namespaces, latencies, errors, is_ready, of_cluster } = measured;
    let mut out = String::with_capacity(16 << 10);
    for (name, kind, help, value) in singles(stats) {
        head(&mut out, name, kind, help);
        line(&mut out, name, "", value);
    }
    info(&mut out, stats);
    head(&mut out, "farrow_ready", "gauge", "Whether the node is ready, as /readyz answers.");
    line(&mut out, "farrow_ready", "", f64::from(u8::from(is_ready)));
    errors.write(&mut out);
    limits::write_namespaces(&mut out, namespaces);
    let name = "farrow_request_seconds";
    head(&mut out, name, "histogram", "Time of the event loop for a request, without waits.");
    for (kind, histogram) in latencies {
        for (end, count) in histogram.cumulative() {
            let labels = format!("{{kind=\"{kind}\",le=\"{end}\"}}");
            line(&mut out, "farrow_request_seconds_bucket", &labels, count as f64);
        }
        let labels = format!("{{kind=\"{kind}\",le=\"+Inf\"}}");
        let count = histogram.count() as f64;
        line(&mut out, "farrow_request_seconds_bucket", &labels, count);
        let labels = format!("{{kind=\"{kind}\"}}");
        line(&mut out, "farrow_request_seconds_sum", &labels, histogram.sum_seconds());
        line(&mut out, "farrow_request_seconds_count", &labels, count);
    }
    if let Some((numbers, traffic)) = of_cluster {
        cluster::write(&mut out, numbers, traffic);
    }
    out
}

// Destructured, so that the compiler rejects a forgotten metric.
fn singles(stats: &NodeStats) -> Vec<Single> {
    let NodeStats {
        capacity,
        used,
        free,
        largest_free,
        granted,
        fragmented,
        quarantine,
        retiring,
        objects,
        objects_max,
        objects_retiring,
        clients,
        clients_max,
        holds,
        region_uid: _,
        pid: _,
        uptime_ms,
        adopted,
        prepared,
        fabric: _,
        coherence: _,
        memory: _,
        huge_page_bytes,
        requests,
        sealed_total,
        deleted_total,
        waiting,
        waiting_bytes,
        turns_total,
        eviction: _,
        held,
        pinned,
        objects_pinned,
        evictable,
        evicted_total,
        evicted_bytes_total,
        records,
        client_objects,
        client_objects_max,
        objects_spilled,
        spilled,
        spilled_total,
        restored_total,
        spill_failures_total,
        buffers,
        buffers_max,
    } = stats;
    let gauge = |name, help, value: &u64| (name, "gauge", help, *value as f64);
    let counter = |name, help, value: &u64| (name, "counter", help, *value as f64);
    vec![
        gauge("farrow_capacity_bytes", "Heap bytes lent.", capacity),
        gauge("farrow_used_bytes", "Bytes of live objects.", used),
        gauge("farrow_free_bytes", "Bytes free.", free),
        gauge("farrow_largest_free_bytes", "Longest free run of whole pages.", largest_free),
        gauge("farrow_granted_bytes", "Bytes granted and not sealed.", granted),
        gauge("farrow_fragmented_bytes", "Free bytes in pages with objects.", fragmented),
        gauge(
            "farrow_quarantine_bytes",
            "Bytes that a dead client of another machine could write.",
            quarantine,
        ),
        gauge("farrow_retiring_bytes", "Bytes of deleted objects still held.", retiring),
        gauge("farrow_objects", "Sealed objects.", objects),
        gauge("farrow_objects_max", "Limit of objects.", objects_max),
        gauge(
            "farrow_client_objects",
            "Objects that clients sealed without a message.",
            client_objects,
        ),
        gauge("farrow_client_objects_max", "Limit of these objects.", client_objects_max),
        gauge("farrow_objects_retiring", "Deleted objects still held.", objects_retiring),
        gauge("farrow_clients", "Clients with a slot.", clients),
        gauge("farrow_clients_max", "Limit of clients.", clients_max),
        gauge("farrow_holds", "Objects held, summed over clients.", holds),
        (
            "farrow_uptime_seconds",
            "gauge",
            "Time since the daemon started.",
            *uptime_ms as f64 / 1e3,
        ),
        gauge("farrow_adopted_objects", "Objects adopted at start.", adopted),
        gauge("farrow_prepared_bytes", "Heap bytes whose pages are ready.", prepared),
        gauge("farrow_huge_page_bytes", "Huge page size of the memory; 0: none.", huge_page_bytes),
        gauge("farrow_waiting_requests", "Requests that wait for memory.", waiting),
        gauge("farrow_waiting_bytes", "Bytes of requests that wait for memory.", waiting_bytes),
        gauge("farrow_held_bytes", "Bytes of sealed objects that are held.", held),
        gauge("farrow_pinned_bytes", "Bytes of pinned objects.", pinned),
        gauge("farrow_objects_pinned", "Pinned objects.", objects_pinned),
        gauge("farrow_evictable_bytes", "Bytes that could be evicted now.", evictable),
        counter("farrow_objects_evicted_total", "Objects evicted.", evicted_total),
        counter("farrow_evicted_bytes_total", "Bytes freed by eviction.", evicted_bytes_total),
        gauge("farrow_records_bytes", "Bytes of the region's tables in use.", records),
        gauge("farrow_spilled_objects", "Spilled objects.", objects_spilled),
        gauge("farrow_spilled_bytes", "Bytes of spilled objects.", spilled),
        counter("farrow_objects_spilled_total", "Objects written to files.", spilled_total),
        counter("farrow_objects_restored_total", "Objects restored from files.", restored_total),
        counter(
            "farrow_spill_failures_total",
            "Failures to write or read spill files.",
            spill_failures_total,
        ),
        gauge("farrow_buffers_bytes", "Memory of requests, replies and waits.", buffers),
        gauge("farrow_buffers_max_bytes", "Limit of this memory.", buffers_max),
        counter("farrow_requests_total", "Requests answered.", requests),
        counter("farrow_objects_sealed_total", "Objects sealed.", sealed_total),
        counter("farrow_objects_deleted_total", "Objects deleted.", deleted_total),
        counter("farrow_event_loop_turns_total", "Wake-ups of the event loop.", turns_total),
    ]
}

/// Non-numeric values are labels of a metric that is always 1.
fn info(out: &mut String, stats: &NodeStats) {
    head(out, "farrow_node_info", "gauge", "Description of the node.");
    let labels = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("fabric", stats.fabric.clone()),
        ("coherence", stats.coherence.clone()),
        ("memory", stats.memory.clone()),
        ("region", format!("{:016x}", stats.region_uid)),
        ("pid", stats.pid.to_string()),
    ];
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    line(out, "farrow_node_info", &format!("{{{}}}", labels.join(",")), 1.0);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_family_is_announced_once_and_labels_are_escaped() {
        let memory = "a \"path\"\\ with\nlines".to_owned();
        let stats = NodeStats { capacity: 1 << 40, uptime_ms: 1500, memory, ..Default::default() };
        let mut latencies = Latencies::new();
        latencies.entry("seal").or_default().add(Duration::from_micros(3));
        let text = write(Measured {
            stats: &stats,
            namespaces: &[],
            latencies: &latencies,
            errors: &Errors::default(),
            is_ready: true,
            of_cluster: None,
        });
        assert!(text.ends_with('\n'));
        assert!(text.contains("\nfarrow_capacity_bytes 1099511627776\n"), "{text}");
        assert!(text.contains("\nfarrow_uptime_seconds 1.5\n"));
        assert!(text.contains("\nfarrow_ready 1\n"));
        assert!(text.contains(r#"memory="a \"path\"\\ with\nlines""#), "{text}");
        assert!(
            text.contains("\nfarrow_request_seconds_bucket{kind=\"seal\",le=\"0.0000025\"} 0\n")
        );
        assert!(
            text.contains("\nfarrow_request_seconds_bucket{kind=\"seal\",le=\"0.000005\"} 1\n")
        );
        assert!(text.contains("\nfarrow_request_seconds_bucket{kind=\"seal\",le=\"+Inf\"} 1\n"));
        let mut announced: Vec<&str> =
            text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let count = announced.len();
        announced.dedup();
        assert_eq!(count, announced.len());
        // Those of namespaces, and what the node is, whether it is ready, its times and its errors.
        assert_eq!(count, singles(&stats).len() + 5 + 4);
    }
}
