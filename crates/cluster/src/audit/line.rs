//! Records as lines of JSON.

use serde::Serialize;

use super::{AuditItem, AuditRecord};
use crate::line_queue::utc;

/// A line. Fields without a value are left out.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    action: &'a str,
    result: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Appends the lines of a record.
pub(super) fn append(out: &mut Vec<u8>, record: &AuditRecord) {
    let AuditRecord { wall_ns, action, actor, items } = record;
    for item in items {
        let AuditItem { name, id, bytes, count, error } = item;
        let line = Line {
            time: utc(*wall_ns),
            action,
            result: error.as_ref().map_or("ok", |(kind, _)| *kind),
            pid: actor.as_ref().map(|actor| actor.pid),
            uid: actor.as_ref().map(|actor| actor.uid),
            node: actor.as_ref().and_then(|actor| actor.node.as_deref()),
            namespace: actor.as_ref().map(|actor| actor.namespace.as_str()),
            name: name.as_deref(),
            id: id.map(|id| id.to_string()),
            bytes: *bytes,
            count: *count,
            reason: error.as_ref().map(|(_, text)| text.as_str()),
        };
        // Serialization of this type into memory cannot fail.
        let _ = serde_json::to_writer(&mut *out, &line);
        out.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use farrow_store::ObjectId;

    use super::super::Actor;
    use super::*;

    #[test]
    fn a_line_is_one_line_of_json_whatever_a_name_has_in_it() {
        let name = "a \"quoted\"\nname\u{0}\u{2028}".to_owned();
        let actor = Actor { pid: 7, uid: 1000, node: Some("b".into()), namespace: "team".into() };
        let error = Some(("denied", "user 1000 may not".to_owned()));
        let items = vec![
            AuditItem {
                name: Some(name.clone()),
                id: Some(ObjectId { hi: 1, lo: 2 }),
                bytes: Some(3),
                ..Default::default()
            },
            AuditItem { error, ..Default::default() },
        ];
        let wall_ns = 1_767_323_045_000_006_999;
        let mut out = Vec::new();
        append(&mut out, &AuditRecord { wall_ns, action: "create", actor: Some(actor), items });
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["time"], "2026-01-02T03:04:05.000006Z");
        assert_eq!(lines[0]["name"], name);
        assert_eq!(lines[0]["id"], "00000000000000010000000000000002");
        assert_eq!((&lines[0]["result"], &lines[0]["bytes"]), (&"ok".into(), &3.into()));
        assert_eq!((&lines[1]["result"], &lines[1]["node"]), (&"denied".into(), &"b".into()));
        assert!(lines[1].get("bytes").is_none() && lines[0].get("reason").is_none());
    }
}
