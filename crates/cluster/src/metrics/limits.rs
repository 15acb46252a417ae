//! Metrics of namespaces and their limits, and of requests answered with an error.

use std::collections::BTreeMap;

use farrow_wire::{NamespaceReport, WireError};

use super::lines::{escaped, head, line};

/// Number of error replies by kind of error.
#[derive(Debug, Default)]
pub(crate) struct Errors(BTreeMap<&'static str, u64>);

impl Errors {
    /// The kinds that alert rules use: they have a sample from the start, since a rate needs the
    /// value before the first error.
    const ALWAYS: [&'static str; 11] = [
        "closing",
        "cut_off",
        "denied",
        "no_room",
        "not_permitted",
        "not_restored",
        "not_spilled",
        "out_of_memory",
        "quota_exceeded",
        "too_many",
        "version",
    ];

    pub(crate) fn add(&mut self, error: &WireError) {
        *self.0.entry(error.kind()).or_default() += 1;
    }

    /// Writes one sample for each kind.
    pub(super) fn write(&self, out: &mut String) {
        let name = "farrow_request_errors_total";
        head(out, name, "counter", "Requests, or items of them, answered with an error.");
        let mut counts: BTreeMap<&str, u64> = Self::ALWAYS.map(|kind| (kind, 0)).into();
        counts.extend(self.0.iter());
        for (kind, count) in counts {
            line(out, name, &format!("{{error=\"{kind}\"}}"), count as f64);
        }
    }
}

/// Writes the use of each namespace, and its limits where it has some.
pub(super) fn write_namespaces(out: &mut String, namespaces: &[NamespaceReport]) {
    type LimitOf = fn(&NamespaceReport) -> Option<u64>;
    let families: [(&str, &str, LimitOf); 5] = [
        ("farrow_namespace_used_bytes", "Bytes of its objects and grants.", |one| Some(one.bytes)),
        ("farrow_namespace_bytes_max", "Most of them; absent: no limit.", |one| one.bytes_max),
        ("farrow_namespace_objects", "Sealed objects in it.", |one| Some(one.objects)),
        ("farrow_namespace_objects_max", "Most of them; absent: no limit.", |one| one.objects_max),
        ("farrow_namespace_clients", "Clients in it.", |one| Some(one.clients)),
    ];
    for (name, help, value) in families {
        head(out, name, "gauge", help);
        for one in namespaces {
            if let Some(value) = value(one) {
                let labels = format!("{{namespace=\"{}\"}}", escaped(&one.name));
                line(out, name, &labels, value as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farrow_wire::{Reply, ReplyBody, WireObjectId};

    #[test]
    fn errors_of_items_count_as_those_of_requests() {
        let denied = || WireError::Denied("no".to_owned());
        let counted = |body| Reply { seq: 1, body }.errors().count();
        assert_eq!(counted(Err(denied())), 1);
        assert_eq!(counted(Ok(ReplyBody::Done)), 0);
        assert_eq!(
            counted(Ok(ReplyBody::Sealed(vec![Ok(WireObjectId { hi: 1, lo: 2 }), Err(denied())]))),
            1
        );
        assert_eq!(counted(Ok(ReplyBody::Deleted(vec![Err(denied()), Err(denied())]))), 2);
        assert_eq!(counted(Ok(ReplyBody::Pinned(vec![Ok(()), Err(denied())]))), 1);
    }

    #[test]
    fn errors_are_counted_by_kind_and_limits_are_left_out_where_there_are_none() {
        let mut errors = Errors::default();
        errors.add(&WireError::Denied("no".to_owned()));
        errors.add(&WireError::Denied("no".to_owned()));
        errors.add(&WireError::Cancelled);
        let limited = NamespaceReport {
            name: "a\"b".to_owned(),
            bytes: 7,
            bytes_max: Some(10),
            ..NamespaceReport::default()
        };
        let mut text = String::new();
        errors.write(&mut text);
        write_namespaces(&mut text, &[NamespaceReport::default(), limited]);
        for sample in [
            "farrow_request_errors_total{error=\"denied\"} 2",
            "farrow_request_errors_total{error=\"cancelled\"} 1",
            "farrow_request_errors_total{error=\"out_of_memory\"} 0",
            "farrow_namespace_used_bytes{namespace=\"\"} 0",
            "farrow_namespace_used_bytes{namespace=\"a\\\"b\"} 7",
            "farrow_namespace_bytes_max{namespace=\"a\\\"b\"} 10",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} in {text}");
        }
        assert!(!text.contains("bytes_max{namespace=\"\"}"), "{text}");
    }
}
