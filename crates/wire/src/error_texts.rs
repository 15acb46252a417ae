//! The texts that an error of the daemon and the client's error for it have in common.

/// Text of an object or rule that does not exist. `what`: its kind, and its id or name.
#[must_use]
pub fn not_found(what: &str) -> String {
    format!("no {what}")
}

/// Text of a name that is in use.
#[must_use]
pub fn name_taken(name: &str) -> String {
    format!("the name {name:?} is taken: delete the object, or replace it (replace=True)")
}

/// Text of a table that is full.
#[must_use]
pub fn too_many(what: &str, max: u64) -> String {
    format!("too many {what}: the limit is {max}")
}

/// Text of a node that cannot be reached.
#[must_use]
pub fn node_lost(node: &str, reason: &str) -> String {
    format!("node {node:?} is lost: {reason}")
}

/// Text of a node that does not reach most of its cluster.
#[must_use]
pub fn cut_off(node: &str, reason: &str) -> String {
    format!("node {node:?} is cut off from the cluster: {reason}")
}

/// Text of a node that is about to leave.
#[must_use]
pub fn draining(node: &str) -> String {
    format!(
        "node {node:?} is draining and takes no new objects: put at another node \
         (node=\"nearest\"), or end the drain by `farrow node drain --cancel`"
    )
}

/// Text of an object that another attempt may move.
#[must_use]
pub fn not_moved(reason: &str) -> String {
    format!("the object cannot move now: {reason}")
}
