//! `etcd://HOST:PORT[,HOST:PORT...][/prefix]`.

use std::fmt;
use std::str::FromStr;

use crate::peers::address::PeerAddress;

/// The default prefix of keys.
const PREFIX_DEFAULT: &str = "/farrow";

/// Limit on the prefix, so that keys stay short compared to values of a kilobyte.
const PREFIX_BYTES_MAX: usize = 255;

/// Limit on endpoints. An etcd has seven members at most.
const ENDPOINTS_MAX: usize = 16;

/// Where etcd stores the membership of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdPlace {
    pub(super) endpoints: Vec<PeerAddress>,
    pub(super) is_tls: bool,
    pub(super) prefix: String,
}

/// A text that is not a location in etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no place in an etcd, etcd[s]://HOST:PORT[,HOST:PORT...][/prefix]: {reason}")]
pub struct EtcdPlaceError {
    text: String,
    reason: &'static str,
}

impl EtcdPlace {
    /// Whether the connection uses TLS.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }
}

impl FromStr for EtcdPlace {
    type Err = EtcdPlaceError;

    fn from_str(text: &str) -> Result<Self, EtcdPlaceError> {
        parse(text).map_err(|reason| {
            let text = text.chars().take(300).collect();
            EtcdPlaceError { text, reason }
        })
    }
}

fn parse(text: &str) -> Result<EtcdPlace, &'static str> {
    let (is_tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err("it begins neither with etcd:// nor with etcds://"),
    };
    let (hosts, prefix) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, PREFIX_DEFAULT),
    };
    let prefix = if prefix == "/" { PREFIX_DEFAULT } else { prefix };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if !prefix.chars().all(is_plain) || prefix.contains("//") || prefix.ends_with('/') {
        return Err("a prefix is of letters, digits, and . _ - between single slashes");
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err("a prefix has at most 255 bytes");
    }
    let endpoints: Vec<PeerAddress> = hosts
        .split(',')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| "an endpoint is HOST:PORT")?;
    if endpoints.iter().any(|endpoint| endpoint.name.is_some()) {
        return Err("a user is an option of its own");
    }
    if endpoints.len() > ENDPOINTS_MAX {
        return Err("there are at most 16 endpoints");
    }
    Ok(EtcdPlace { endpoints, is_tls, prefix: prefix.to_owned() })
}

impl fmt::Display for EtcdPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_tls { "etcds://" } else { "etcd://" })?;
        for (place, endpoint) in self.endpoints.iter().enumerate() {
            write!(f, "{}{endpoint}", if place == 0 { "" } else { "," })?;
        }
        f.write_str(&self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written_the_same() {
        for text in [
            "etcd://127.0.0.1:2379/farrow",
            "etcds://a.example:2379,[::1]:2379,10.0.0.3:1/teams/blue_1.x-y",
        ] {
            assert_eq!(text.parse::<EtcdPlace>().unwrap().to_string(), text);
        }
        for text in ["etcd://h:1", "etcd://h:1/"] {
            assert_eq!(text.parse::<EtcdPlace>().unwrap().to_string(), "etcd://h:1/farrow");
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_reason() {
        let long = format!("etcd://h:1/{}", "x".repeat(255));
        let many = format!("etcd://{}", vec!["h:1"; 17].join(","));
        for (text, words) in [
            ("http://h:1", "begins neither"),
            ("h:1", "begins neither"),
            ("etcd://", "HOST:PORT"),
            ("etcd://h", "HOST:PORT"),
            ("etcd://h:1,", "HOST:PORT"),
            ("etcd://h:0", "HOST:PORT"),
            ("etcd://root@h:1", "user"),
            ("etcd://h:1//x", "single slashes"),
            ("etcd://h:1/x/", "single slashes"),
            ("etcd://h:1/x y", "letters"),
            ("etcd://h:1/\u{e4}", "letters"),
            (long.as_str(), "255"),
            (many.as_str(), "16"),
        ] {
            let error = text.parse::<EtcdPlace>().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
