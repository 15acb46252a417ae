//! The text exposition format of Prometheus, version 0.0.4.

use farrow_wire::{NamespaceReport, NodeStats};

use super::Latencies;
use super::cluster::{self, Traffic};
use super::credentials;
use super::limits::{self, Errors};
use super::lines::{escaped, head, line};
use crate::peers::CredentialStatus;
use crate::protocol::cluster::ClusterStats;

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
    pub(crate) of_cluster: Option<(&'a ClusterStats, &'a Traffic)>,
    /// `None`: the node has no cluster.
    pub(crate) credentials: Option<&'a CredentialStatus>,
    /// Lines of the audit log that were written and dropped.
    pub(crate) audited: (u64, u64),
}

/// Writes all metrics of a node, and of its cluster if it has one.
pub(crate) fn write(measured: Measured<'_>) -> String {
    let Measured { stats, namespaces, latencies, errors, is_ready, of_cluster, .. } = measured;
    let Measured { credentials, audited: (written, dropped), .. } = measured;
    let mut out = String::with_capacity(16 << 10);
    for (metric, help, value) in stats.metrics() {
        head(&mut out, metric.name(), metric.kind(), help);
        line(&mut out, metric.name(), "", value);
    }
    info(&mut out, stats);
    head(&mut out, "farrow_ready", "gauge", "Whether the node is ready, as /readyz answers.");
    line(&mut out, "farrow_ready", "", f64::from(u8::from(is_ready)));
    errors.write(&mut out);
    for (name, help, value) in [
        ("farrow_audit_lines_total", "Lines written to the audit log.", written),
        ("farrow_audit_dropped_total", "Lines that are missing in it.", dropped),
    ] {
        head(&mut out, name, "counter", help);
        line(&mut out, name, "", value as f64);
    }
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
    if let Some((stats, traffic)) = of_cluster {
        cluster::write(&mut out, stats, traffic);
    }
    if let Some(status) = credentials {
        credentials::write(&mut out, status);
    }
    out
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
            credentials: None,
            audited: (0, 0),
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
        // Those of namespaces and of the audit log, and what the node is, whether it is ready, its
        // times and its errors.
        assert_eq!(count, stats.metrics().count() + 5 + 2 + 4);
    }
}
