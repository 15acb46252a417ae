//! The client at a node that is chosen by a rule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::cluster::placement::{
    Candidates, PlacementNeed, PlacementRule, is_of_one_node, no_room,
};
use crate::error::Error;
use crate::interrupt;

/// How long a name that a node gave back may be on its way to its authority.
const RELEASE_MAX: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(2);
const RELEASE_PAUSE_MAX: Duration = Duration::from_millis(100);

/// One attempt to place an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacementAttempt<'a> {
    /// The node; `None`: the client's own, which is in no cluster.
    pub(crate) node: Option<&'a str>,
    /// How long the node may take to make room.
    pub(crate) wait: Duration,
}

impl Client {
    /// Calls `place` for the nodes in the order of a rule until one takes the object: first for nodes
    /// with free memory, then for those that may evict or spill. Only after all of them refused,
    /// the first one is given the time `wait` to make room.
    pub(crate) fn place_by<T>(
        &self,
        rule: PlacementRule,
        need: PlacementNeed,
        wait: Duration,
        mut place: impl FnMut(PlacementAttempt<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let nodes = self.members()?.nodes;
        if nodes.is_empty() {
            return place(PlacementAttempt { node: None, wait });
        }
        let Candidates { with_room, without_room } = rule.candidates(&nodes, need);
        let all: Vec<&str> = with_room.iter().chain(&without_room).map(String::as_str).collect();
        let mut failures = Vec::new();
        for (number, node) in all.iter().enumerate() {
            // A single node has no alternative to wait for.
            let wait = if number == 0 && all.len() == 1 { wait } else { Duration::ZERO };
            let attempt = || place(PlacementAttempt { node: Some(node), wait });
            match once_released(!failures.is_empty(), attempt) {
                Err(error) if is_of_one_node(&error) => failures.push(((*node).to_owned(), error)),
                done => return done,
            }
        }
        if let Some(&first) = all.first().filter(|_| all.len() > 1 && !wait.is_zero()) {
            let attempt = || place(PlacementAttempt { node: Some(first), wait });
            match once_released(true, attempt) {
                Err(error) if is_of_one_node(&error) => {
                    failures.insert(0, (first.to_owned(), error))
                }
                done => return done,
            }
        }
        Err(no_room(rule, &nodes, need, &failures))
    }

    /// The name of the first node of a rule, by the last measurements; `None` without a cluster.
    pub(crate) fn first_by(
        &self,
        rule: PlacementRule,
        need: PlacementNeed,
    ) -> Result<Option<String>, Error> {
        let nodes = self.members()?.nodes;
        if nodes.is_empty() {
            return Ok(None);
        }
        let Candidates { with_room, without_room } = rule.candidates(&nodes, need);
        let mut all = with_room.into_iter().chain(without_room);
        all.next().map(Some).ok_or_else(|| no_room(rule, &nodes, need, &[]))
    }

    /// The same client at its own node.
    pub(crate) fn at_own(&self) -> Self {
        Self::new(Arc::clone(self.nodes().own()), Arc::clone(self.nodes()))
    }
}

/// Calls `place` again for a moment while the name is taken, if another node has just refused the
/// object: that node gives back the name, of which the name's authority hears a little later.
fn once_released<T>(
    has_refusal: bool,
    mut place: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let deadline = deadline_after(RELEASE_MAX);
    let mut rest = RELEASE_PAUSE;
    loop {
        match place() {
            Err(Error::AlreadyExists { .. }) if has_refusal && Instant::now() < deadline => {
                interrupt::pause(rest)?;
                rest = (2 * rest).min(RELEASE_PAUSE_MAX);
            }
            done => return done,
        }
    }
}
