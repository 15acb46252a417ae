//! Metrics of a node for Prometheus, and the address where they are served.
//!
//! This module uses no sockets: `http` parses requests and builds responses, `text` writes the
//! metrics, and `Latencies` counts. The event loop in `server/` does the rest.

pub(crate) mod cluster;
mod credentials;
pub(crate) mod http;
pub(crate) mod limits;
mod lines;
pub(crate) mod text;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a node serves its metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A Unix socket next to that of the node.
    Beside,
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port of this machine.
    Tcp(SocketAddr),
}

impl MetricsAddress {
    /// Parses `unix:PATH`, `127.0.0.1:9464`, `[::1]:9464`, `localhost:9464` or `9464`. An empty
    /// text is a Unix socket next to the node's. Readers are not authenticated, so addresses other
    /// than loopback are refused.
    ///
    /// # Errors
    ///
    /// A message that quotes the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::Beside);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(format!("{text:?} names no path"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let home = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = text.strip_prefix("localhost:").unwrap_or(text);
        let address = match port.parse::<u16>() {
            Ok(port) => SocketAddr::new(home, port),
            Err(_) => text.parse().map_err(|_| {
                format!("{text:?} is no address: use unix:PATH, 127.0.0.1:PORT or PORT")
            })?,
        };
        if !address.ip().is_loopback() {
            return Err(format!(
                "{text:?} can be reached by other machines: use a loopback address or unix:PATH"
            ));
        }
        Ok(Self::Tcp(address))
    }

    /// The path of the Unix socket for the node at `socket`.
    pub(crate) fn path(&self, socket: &Path) -> Option<PathBuf> {
        match self {
            Self::Beside => {
                let mut path = socket.as_os_str().to_owned();
                path.push(".metrics");
                Some(path.into())
            }
            Self::Unix(path) => Some(path.clone()),
            Self::Tcp(_) => None,
        }
    }
}

/// Upper bounds of the buckets in nanoseconds: a request takes from 1 us (a grant) to seconds (a
/// batch of 8192 on a busy machine).
const BUCKETS_NS: [u64; 19] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// A histogram of durations.
#[derive(Debug, Default, Clone)]
pub(crate) struct Histogram {
    /// One count per bucket, and one for longer durations.
    counts: [u64; BUCKETS_NS.len() + 1],
    sum_ns: u64,
}

impl Histogram {
    pub(crate) fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_NS.partition_point(|end| *end < ns);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// For each bucket but the last: its upper bound in seconds, and the number of durations up to
    /// it.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        BUCKETS_NS.iter().zip(&self.counts).scan(0, |sum, (end, count)| {
            *sum += count;
            Some((*end as f64 / 1e9, *sum))
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }
}

/// The time the event loop spends on each kind of request, without waits for other processes.
pub(crate) type Latencies = BTreeMap<&'static str, Histogram>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_the_open_ones_refused() {
        let tcp = |text: &str| MetricsAddress::Tcp(text.parse().unwrap());
        for (text, address) in [
            ("", MetricsAddress::Beside),
            ("unix:/run/m", MetricsAddress::Unix("/run/m".into())),
            ("9464", tcp("127.0.0.1:9464")),
            ("localhost:0", tcp("127.0.0.1:0")),
            ("127.0.0.7:1", tcp("127.0.0.7:1")),
            ("[::1]:80", tcp("[::1]:80")),
        ] {
            assert_eq!(MetricsAddress::parse(text), Ok(address), "{text}");
        }
        for text in ["0.0.0.0:9464", "[::]:1", "192.168.0.1:1", "unix:", "host:1", "99999", ":1"] {
            assert!(MetricsAddress::parse(text).is_err(), "{text}");
        }
        let beside = MetricsAddress::Beside.path(Path::new("/run/n.sock"));
        assert_eq!(beside, Some("/run/n.sock.metrics".into()));
    }

    #[test]
    fn a_histogram_counts_each_time_in_one_bucket_and_all_behind() {
        let mut histogram = Histogram::default();
        for ns in [0, 1_000, 1_001, 30_000, 60_000_000_000] {
            histogram.add(Duration::from_nanos(ns));
        }
        let counts: Vec<u64> = histogram.cumulative().map(|(_, count)| count).collect();
        assert_eq!(counts[..6], [2, 3, 3, 3, 3, 4]);
        assert_eq!((counts[18], histogram.count()), (4, 5), "one is longer than all buckets");
        assert!((histogram.sum_seconds() - 60.000_032_001).abs() < 1e-9);
    }
}
