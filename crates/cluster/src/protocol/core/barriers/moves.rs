//! Transfer of flags and members of barriers to the owner of a name by a new view.
//!
//! **Change of the view.** A node sets aside the state of names that another node owns by the view.
//! The new owner asks the other members for that state, page by page. It answers for no name before
//! each of them has reported the end. A member reports it only in the same epoch, and drops a page
//! only when the next one is requested. So when a node answers, no other node holds state of its
//! names or answers for them: a member without the view has not reported yet, and one that the view
//! excludes has lost the lease. The state at that one is lost. A member that is new in this very
//! view has no state and is not asked. After views that this node missed, all members are asked.
//!
//! **Leaving.** A node that leaves sends its state to the future owners. They hold it until the
//! view without that node, and then set it aside like their own.
//!
//! A message of another epoch is rejected, so a late or repeated one restores no old state.

use std::collections::{BTreeMap, BTreeSet};

use farrow_membership::{Epoch, View};
use farrow_wire::SyncAsk;

use super::barrier::Party;
use super::message::SyncQuestion;
#[cfg(test)]
use super::moving::MoveMutant;
use super::moving::{COST_BYTES, Moves};
use super::name_state::NameState;
use super::state::{BarrierContext, Barriers};
use super::table::NAMES_MAX;
use super::waits::{Outcomes, Waiter};
use crate::protocol::cluster::{Answer, OptionalCluster, PendingQuestion, Question};
use crate::protocol::limits::check_limit;

/// Pause before a member that is not in this epoch yet is asked again: some round trips.
const AGAIN_MS: u64 = 20;

/// Limit of the bytes of flags for the next daemon: a quarter of a message, whose other parts have
/// limits of their own.
const PASSED_BYTES_MAX: usize = 1 << 20;

impl Barriers {
    /// Whether this node answers for the names that it owns.
    ///
    /// # Errors
    ///
    /// The reason why not at this time.
    pub(super) fn check_answers(
        &self,
        ask: &SyncAsk,
        cluster: &OptionalCluster,
    ) -> Result<(), String> {
        self.check_stays(cluster)?;
        // Another view may move the flags to another node. A barrier is passed by its number of
        // parties on any owner.
        let is_for_flags = !matches!(ask, SyncAsk::Arrive { .. });
        #[cfg(test)]
        let is_for_flags = is_for_flags && self.moves.mutant != Some(MoveMutant::NeedsNoLease);
        if is_for_flags && !cluster.may_keep_flags() {
            return Err(format!("{:?} has no lease", cluster.own_name()));
        }
        #[cfg(test)]
        if self.moves.mutant == Some(MoveMutant::AnswersAtOnce) {
            return Ok(());
        }
        match self.moves.sources.keys().next() {
            Some(node) => Err(format!("{node:?} has not handed over its state")),
            None => Ok(()),
        }
    }

    /// Handles a new view, without the lost nodes.
    pub(in crate::protocol) fn view_installed(
        &mut self,
        view: &View,
        lost: &[String],
        context: &mut BarrierContext<'_>,
    ) {
        let own = context.cluster.own_name();
        self.announce_to(view, &own, context.now_ms);
        let moves = &mut self.moves;
        let was_in_none = moves.epoch.is_none();
        moves.begin(view, &own, context.now_ms);
        let set_aside = std::mem::take(&mut moves.set_aside).into_values().flatten();
        let (inherited, sent) =
            (std::mem::take(&mut moves.inherited), std::mem::take(&mut moves.sent));
        let names: BTreeSet<String> = self.table.names().map(str::to_owned).collect();
        let mut outcomes = Outcomes::new();
        for name in names {
            if context.cluster.authority_name(&name) != own {
                let retained = self.table.move_away(&name, &mut outcomes);
                // Outside of all views it owned barriers of its own clients, for itself.
                if !was_in_none {
                    self.bring(name, retained, context);
                }
            }
        }
        self.send_outcomes(outcomes, context);
        set_aside.chain(sent).for_each(|(name, retained)| self.bring(name, retained, context));
        for (name, (owner, retained)) in inherited {
            if context.cluster.authority_name(&name) == owner && !lost.contains(&owner) {
                self.moves.inherited.insert(name, (owner, retained));
            } else {
                self.bring(name, retained, context);
            }
        }
        if self.is_leaving {
            self.send_to_heirs(context);
            self.send_on(context);
        }
        self.ask_sources(context);
    }

    /// Adds state to the table, or sets it aside for the owner.
    fn bring(&mut self, name: String, retained: NameState, context: &mut BarrierContext<'_>) {
        let owner = context.cluster.authority_name(&name);
        if owner == context.cluster.own_name() {
            self.take_over(&name, retained, context);
        } else if !retained.is_empty() {
            let set_aside = self.moves.set_aside.entry(owner).or_default();
            // A repetition is equal: only the node that answers for a name changes its state.
            set_aside.entry(name).or_default().add(retained);
        }
    }

    fn ask_sources(&mut self, context: &mut BarrierContext<'_>) {
        let Some(epoch) = self.moves.epoch else {
            return;
        };
        let sources = self.moves.sources.iter_mut();
        let due =
            sources.filter(|(_, source)| source.again_at_ms.is_some_and(|at| at <= context.now_ms));
        let due: Vec<(String, Option<String>)> = due
            .map(|(node, source)| {
                source.again_at_ms = None;
                (node.clone(), source.after.clone())
            })
            .collect();
        for (node, after) in due {
            let question = Question::Sync(SyncQuestion::HandOver { epoch, after });
            let about = PendingQuestion::HandOver { node: node.clone(), epoch };
            if !context.ask_within_lease(&node, &question, about) {
                self.ask_source_later(&node, context.now_ms);
            }
        }
    }

    fn ask_source_later(&mut self, node: &str, now_ms: u64) {
        if let Some(source) = self.moves.sources.get_mut(node) {
            source.again_at_ms = Some(now_ms.saturating_add(AGAIN_MS));
        }
    }

    pub(super) fn tick_moves(&mut self, context: &mut BarrierContext<'_>) {
        self.ask_sources(context);
    }

    /// Handles a node's request for the state of its names.
    pub(super) fn hand_over(
        &mut self,
        from: &str,
        epoch: Epoch,
        after: Option<&String>,
    ) -> Result<Answer, String> {
        self.moves.check_epoch(epoch)?;
        Ok(Answer::HandedOver(self.moves.page(from, after)))
    }

    /// Handles the state from a member that was asked in that epoch.
    pub(in crate::protocol) fn on_handover_response(
        &mut self,
        (node, epoch): (&str, Epoch),
        answer: Result<Answer, String>,
        context: &mut BarrierContext<'_>,
    ) {
        let moves = &mut self.moves;
        let Some(source) = moves.sources.get_mut(node).filter(|_| moves.epoch == Some(epoch))
        else {
            return;
        };
        let Ok(Answer::HandedOver(names)) = answer else {
            // It did not answer, or is in another epoch.
            return self.ask_source_later(node, context.now_ms);
        };
        let Some((last, _)) = names.last() else {
            moves.sources.remove(node);
            return self.ask_refused_again(context);
        };
        if source.after.as_ref().is_some_and(|after| last <= after) {
            tracing::warn!(node, "a node repeats state that it handed over before");
            return self.ask_source_later(node, context.now_ms);
        }
        source.after = Some(last.clone());
        source.again_at_ms = Some(context.now_ms);
        for (name, retained) in names {
            if context.may_hand_over(node, &name)
                && self.check_retained(&name, context.cluster).is_ok()
            {
                self.take_over(&name, retained, context);
            }
        }
        if self.is_leaving {
            self.send_to_heirs(context);
        }
        self.ask_sources(context);
    }

    /// After all state has arrived: retries the refused requests of this node with the next tick.
    fn ask_refused_again(&mut self, context: &BarrierContext<'_>) {
        if !self.moves.sources.is_empty() {
            return;
        }
        let own = context.cluster.own_name();
        for wait in self.waits.values_mut() {
            if wait.owner == own && wait.again_at_ms.is_some() {
                wait.again_at_ms = Some(context.now_ms);
            }
        }
    }

    /// Handles state from a leaving node, for names that this node will own.
    pub(super) fn inherit(
        &mut self,
        waiter: Waiter,
        name: String,
        retained: NameState,
        context: &BarrierContext<'_>,
    ) -> Result<(), String> {
        let Waiter { node: from, number } = waiter;
        let owner = context.cluster.authority_name(&name);
        if owner == context.cluster.own_name() {
            return Err(format!("{name:?} is owned by {owner:?}, which was asked"));
        }
        retained.check()?;
        let inherited = self.moves.inherited.len();
        check_limit("names that other nodes hand over", inherited + 1, NAMES_MAX)
            .map_err(|error| error.to_string())?;
        if context.may_hand_over(&from, &name) && !self.received.has(&from, number) {
            let Moves { inherited, inherited_budget, .. } = &mut self.moves;
            inherited_budget.add(retained.members.len(), || {
                inherited.values().map(|(_, retained)| retained.members.len()).sum()
            })?;
            inherited.insert(name, (owner, retained));
            self.received.add(&from, number);
        }
        Ok(())
    }

    /// Ends all waits, since another daemon of this node follows: the waiters ask that one again.
    /// Requests that arrive until then are refused.
    pub(in crate::protocol) fn stop(&mut self, context: &mut BarrierContext<'_>) {
        self.is_leaving = true;
        // The next daemon does not know these clients.
        self.report_ended(context);
        let names: BTreeSet<String> = self.table.names().map(str::to_owned).collect();
        let mut outcomes = Outcomes::new();
        for name in names {
            let retained = self.table.move_away(&name, &mut outcomes);
            self.moves.sent.insert(name, retained);
        }
        self.send_outcomes(outcomes, context);
    }

    /// Flags for the next daemon of this node, which continues this incarnation.
    pub(in crate::protocol) fn flags_to_pass_on(&self) -> Vec<(String, u64)> {
        let moves = &self.moves;
        let away = moves.set_aside.values().flatten().chain(&moves.sent);
        let away = away.map(|(name, retained)| (name.as_str(), retained.flags));
        let all: BTreeMap<&str, u64> = self.table.flags().chain(away).collect();
        let (mut bytes, mut passed) = (0, Vec::new());
        for (name, flags) in all.iter().filter(|(_, flags)| **flags != 0) {
            bytes += name.len() + COST_BYTES;
            if bytes > PASSED_BYTES_MAX {
                tracing::error!(passed = passed.len(), "flags of further names are lost");
                break;
            }
            passed.push(((*name).to_owned(), *flags));
        }
        passed
    }

    /// Resumes the flags of the previous daemon, after this one has joined its cluster. Those of
    /// another incarnation may be out of date.
    pub(in crate::protocol) fn inherit_flags(
        &mut self,
        (incarnation, flags): (u64, Vec<(String, u64)>),
        context: &mut BarrierContext<'_>,
    ) {
        if incarnation != context.cluster.own_incarnation() {
            if !flags.is_empty() {
                tracing::warn!(names = flags.len(), "flags of an earlier incarnation are lost");
            }
            return;
        }
        self.has_flags = true;
        for (name, flags) in flags {
            self.bring(name, NameState { flags, members: Vec::new() }, context);
        }
    }

    /// Hands over the state of this node, which is about to leave, and takes no more.
    pub(in crate::protocol) fn hand_over_all(&mut self, context: &mut BarrierContext<'_>) {
        self.is_leaving = true;
        self.send_to_heirs(context);
        self.send_on(context);
    }

    /// Sends the state of this node to the future owners.
    fn send_to_heirs(&mut self, context: &mut BarrierContext<'_>) {
        let names: BTreeSet<String> = self.table.names().map(str::to_owned).collect();
        let mut outcomes = Outcomes::new();
        for name in names {
            let Some(heir) =
                context.cluster.authority_without(&[&context.cluster.own_name()], &name)
            else {
                continue;
            };
            let retained = self.table.move_away(&name, &mut outcomes);
            self.moves.sent.insert(name.clone(), retained.clone());
            self.send_retained(&heir, name, retained, context);
        }
        self.send_outcomes(outcomes, context);
    }

    /// Forwards state received from other leaving nodes.
    fn send_on(&mut self, context: &mut BarrierContext<'_>) {
        for (name, (owner, retained)) in self.moves.inherited.clone() {
            if let Some(heir) =
                context.cluster.authority_without(&[&context.cluster.own_name(), &owner], &name)
            {
                self.send_retained(&heir, name, retained, context);
            }
        }
    }

    fn send_retained(
        &mut self,
        heir: &str,
        name: String,
        retained: NameState,
        context: &mut BarrierContext<'_>,
    ) {
        let Some(epoch) = self.moves.epoch.filter(|_| !retained.is_empty()) else {
            return;
        };
        let number = self.fresh_number();
        let question = Question::Sync(SyncQuestion::Retained { number, name, retained, epoch });
        context.notify(heir, question);
    }

    /// Whether a message is of a past epoch: its state was sent again in this one.
    pub(in crate::protocol) fn is_of_old_epoch(&self, question: &Question) -> bool {
        let Question::Sync(SyncQuestion::Retained { epoch, .. }) = question else {
            return false;
        };
        self.moves.epoch != Some(*epoch)
    }

    /// Whether no other node has yet to ask this one for state.
    pub(in crate::protocol) fn has_nothing_set_aside(&self) -> bool {
        self.moves.set_aside.is_empty()
    }

    /// Takes over state from another node.
    fn take_over(&mut self, name: &str, retained: NameState, context: &mut BarrierContext<'_>) {
        let mut outcomes = Outcomes::new();
        if let Err(error) = self.table.take_over(name, retained, &mut outcomes) {
            tracing::warn!(name, error, "state from another node is rejected");
        }
        self.send_outcomes(outcomes, context);
        // The end of a client during the move was reported to the old owner, or to none.
        let own = context.cluster.own_name();
        let has_left = |party: &&Party| {
            if party.node == own {
                return self.has_ended(party.client);
            }
            let mut ended = self.ended_elsewhere.iter();
            ended.any(|(node, client)| (node, *client) == (&party.node, party.client))
                || !context.cluster.is_peer(&party.node)
        };
        let members = self.table.members(name);
        let left: BTreeSet<Party> = members.filter(has_left).cloned().collect();
        if !left.is_empty() {
            self.break_for(|party| left.contains(party), "it ended", context);
        }
    }
}
