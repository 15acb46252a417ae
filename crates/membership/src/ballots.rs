//! What a proposal asks of the voters, and what its proposer keeps meanwhile.

use super::message::{Ballot, Sender};
use super::types::{Epoch, Incarnation, NodeName, NodeNumber, NodeSet};
use super::view::View;

/// Highest round of a ballot that a voter follows, so that a higher one always exists.
pub(super) const ROUND_MAX: u64 = u64::MAX / 2;

/// What both steps of a proposal ask of a voter.
#[derive(Debug)]
pub(super) struct VoteRequest {
    /// The proposer.
    pub(super) from: Sender,
    /// Its epoch.
    pub(super) epoch: Epoch,
    pub(super) ballot: Ballot,
    /// As in [`Body::Prepare`].
    pub(super) electorate: u64,
}

impl VoteRequest {
    /// Whether the proposer may use the ballot.
    pub(super) fn is_own(&self) -> bool {
        self.ballot.name == self.from.name && self.ballot.round <= ROUND_MAX
    }
}

/// A proposal of this node that is in progress.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) ballot: Ballot,
    /// The view to propose, unless a voter accepted another one.
    pub(super) value: View,
    pub(super) is_adopted: bool,
    pub(super) is_accepting: bool,
    /// Voters that promised, then voters that accepted.
    pub(super) votes: NodeSet,
    /// Identity of each voter, for the time before the first view.
    pub(super) voters: Vec<(NodeNumber, NodeName, Incarnation)>,
    /// Voters that refused the proposal.
    pub(super) refused: NodeSet,
    pub(super) best: Option<(Ballot, View)>,
    pub(super) deadline_ms: u64,
}

/// A change that this node would make.
pub(super) struct ProposedChange {
    pub(super) value: View,
    pub(super) without: NodeSet,
    /// This node accepted the value already, and does not know whether it was decided.
    pub(super) is_unfinished: bool,
}
