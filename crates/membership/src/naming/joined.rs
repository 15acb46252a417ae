//! Names of a node that joins in a new life with objects.
//!
//! While it was away, or while it was a cluster of its own, another member may have created an
//! object of the same name: the others had forgotten the node, or believed that it keeps nothing.
//! So a node asks each member which of the names of its objects are names there. Until all have
//! answered, the names are *doubtful*. For a name that a member has, the object here loses it.
//!
//! **Which object has the name.** The one of a member for which the name is not doubtful. If it is
//! doubtful at both, the one of the lower number: each asks the other one, and both decide alike.
//! So exactly one object has each name afterwards, and the names that a cluster knows stay.
//!
//! **Why that is enough.** Each authority sees the names of all members of its view, or asks for
//! them. So a name that was granted in the view of the new life, or later, is not one of the node's.
//! One that was granted before is held or sealed at its home when that has the view and answers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{MESSAGE_BYTES_MAX, MESSAGE_NAMES_MAX, NumberedLife};
use crate::NodeNumber;

/// Pause before a member that did not answer is asked again: it may not have the view yet.
const AGAIN_MS: u64 = 100;

/// How far a member has been asked.
#[derive(Debug, Clone, Default)]
struct Progress {
    /// The last name that it answered for.
    after: Option<String>,
    is_waiting: bool,
    is_done: bool,
    again_at_ms: u64,
}

/// A question to a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedQuestion {
    /// The member.
    pub to: NumberedLife,
    /// Names of objects of the asking node.
    pub names: Vec<String>,
}

/// The names that a node brought into its current life. See the module.
#[derive(Debug, Default)]
pub struct JoinedNames {
    doubtful: BTreeSet<String>,
    members: BTreeMap<NumberedLife, Progress>,
    /// Number of times that all members are asked once more.
    rounds: usize,
}

impl JoinedNames {
    /// The full names of all objects of a node that joins.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { doubtful: names.into_iter().collect(), ..Self::default() }
    }

    /// Whether a member may have another object of this name.
    #[must_use]
    pub fn is_doubtful(&self, name: &str) -> bool {
        self.doubtful.contains(name)
    }

    /// Whether an object of this node keeps its name, if that of a joining node has it too.
    #[must_use]
    pub fn outranks(&self, name: &str, own: NodeNumber, joining: NodeNumber) -> bool {
        !self.is_doubtful(name) || own < joining
    }

    /// The name was granted to this node in its current life, or is settled in another way.
    pub fn settle(&mut self, name: &str) {
        self.doubtful.remove(name);
    }

    /// Sets the other members of the view.
    pub fn set_members(&mut self, members: impl IntoIterator<Item = NumberedLife>) {
        let mut known = std::mem::take(&mut self.members);
        let progress = |life: NumberedLife| (life, known.remove(&life).unwrap_or_default());
        self.members = members.into_iter().map(progress).collect();
    }

    /// The questions that are due. Each is to be answered by [`Self::on_response`],
    /// [`Self::on_no_response`] or [`Self::excuse`].
    pub fn due(&mut self, now_ms: u64) -> Vec<JoinedQuestion> {
        let mut due = Vec::new();
        for (life, member) in &mut self.members {
            if member.is_done || member.is_waiting || member.again_at_ms > now_ms {
                continue;
            }
            let names = names_after(&self.doubtful, member.after.as_deref());
            member.is_done = names.is_empty();
            if !member.is_done {
                member.is_waiting = true;
                due.push(JoinedQuestion { to: *life, names });
            }
        }
        due
    }

    /// Handles the answer of a member: for each name of the question whether it has it. Returns the
    /// names that objects of this node lose.
    pub fn on_response(&mut self, question: &JoinedQuestion, has: &[bool]) -> Vec<String> {
        let Some(member) = self.members.get_mut(&question.to) else { return Vec::new() };
        if has.len() != question.names.len() {
            (member.is_waiting, member.is_done) = (false, true);
            return Vec::new();
        }
        (member.is_waiting, member.again_at_ms) = (false, 0);
        member.after = question.names.last().cloned().or(member.after.take());
        let lost = question.names.iter().zip(has).filter(|(_, has)| **has);
        lost.filter_map(|(name, _)| self.doubtful.take(name)).collect()
    }

    /// A member did not answer, or does not have the view yet.
    pub fn on_no_response(&mut self, from: NumberedLife, now_ms: u64) {
        if let Some(member) = self.members.get_mut(&from) {
            (member.is_waiting, member.again_at_ms) = (false, now_ms.saturating_add(AGAIN_MS));
        }
    }

    /// A member cannot answer: it is of an earlier version.
    pub fn excuse(&mut self, from: NumberedLife) {
        if let Some(member) = self.members.get_mut(&from) {
            (member.is_waiting, member.is_done) = (false, true);
        }
    }

    /// Whether all members have answered for all names. `movers` is the number of members with
    /// objects that move: a name may leave a member before it is asked for one that was asked
    /// earlier, so all are asked once more for each of them.
    pub fn is_over(&mut self, movers: usize) -> bool {
        if !self.members.values().all(|member| member.is_done) {
            return false;
        }
        if self.rounds >= movers || self.doubtful.is_empty() || self.members.is_empty() {
            return true;
        }
        self.rounds += 1;
        self.members.values_mut().for_each(|member| *member = Progress::default());
        false
    }

    /// When [`Self::due`] has something next; `None`: answers are awaited.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let open = self.members.values().filter(|member| !member.is_done && !member.is_waiting);
        open.map(|member| member.again_at_ms).min()
    }
}

/// The names of the next question.
fn names_after(names: &BTreeSet<String>, after: Option<&str>) -> Vec<String> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let mut bytes = 0;
    let names = names.range::<str, _>((from, Bound::Unbounded)).take(MESSAGE_NAMES_MAX);
    let fits = |name: &&String| {
        bytes += name.len();
        bytes <= MESSAGE_BYTES_MAX
    };
    names.take_while(fits).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;
    use crate::state::mix;

    /// One node: its objects by name, and its life.
    #[derive(Default)]
    struct JoinedNode {
        life: u64,
        /// The members of its view, of which it is one. Empty: it is away.
        view: BTreeSet<usize>,
        names: BTreeSet<String>,
        /// Names that it had when its check was over, or was granted since then.
        known: BTreeSet<String>,
        check: Option<JoinedNames>,
    }

    struct JoinedWorld {
        random: u64,
        now_ms: u64,
        nodes: Vec<JoinedNode>,
        /// The members of the last view, with their lives.
        view: BTreeSet<usize>,
        questions: Vec<(usize, JoinedQuestion)>,
        answers: Vec<(usize, JoinedQuestion, Option<Vec<bool>>)>,
        is_rule_broken: bool,
    }

    const NAMES: u64 = 4;

    fn number(node: usize) -> NodeNumber {
        NodeNumber::new(node as u8).unwrap()
    }

    impl JoinedWorld {
        fn new(count: usize, seed: u64) -> Self {
            let nodes = (0..count).map(|_| JoinedNode::default()).collect();
            let (view, questions, answers) = Default::default();
            Self { random: seed, now_ms: 0, nodes, view, questions, answers, is_rule_broken: false }
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(self.random) % limit.max(1)
        }

        fn life_of(&self, node: usize) -> NumberedLife {
            NumberedLife { number: number(node), incarnation: Incarnation(self.nodes[node].life) }
        }

        /// A node is excluded, keeps its objects, and gets some by itself while it is away.
        fn exclude(&mut self, node: usize) {
            self.view.remove(&node);
            let apart: Vec<String> = (0..self.below(3)).map(|_| self.name()).collect();
            let node = &mut self.nodes[node];
            (node.check, node.view) = (None, BTreeSet::new());
            node.known.clear();
            node.names.extend(apart);
        }

        fn name(&mut self) -> String {
            format!("n{}", self.below(NAMES))
        }

        fn join(&mut self, node: usize) {
            self.view.insert(node);
            self.nodes[node].life += 1;
            self.nodes[node].check = Some(JoinedNames::new(self.nodes[node].names.clone()));
            self.install(node);
        }

        /// The node learns of the last view.
        fn install(&mut self, node: usize) {
            if !self.view.contains(&node) {
                return;
            }
            let view = self.view.clone();
            let peers = view.iter().filter(|other| **other != node);
            let peers: Vec<NumberedLife> = peers.map(|other| self.life_of(*other)).collect();
            let node = &mut self.nodes[node];
            node.view = view;
            if let Some(check) = &mut node.check {
                check.set_members(peers);
            }
        }

        /// The authority grants names that no member of the last view has, to nodes with that view.
        fn grant(&mut self, node: usize) {
            let name = self.name();
            let is_free = self.view.iter().all(|other| !self.nodes[*other].names.contains(&name));
            if is_free && self.view.contains(&node) && self.nodes[node].view == self.view {
                let node = &mut self.nodes[node];
                node.names.insert(name.clone());
                node.known.insert(name.clone());
                if let Some(check) = &mut node.check {
                    check.settle(&name);
                }
            }
        }

        fn tick(&mut self, node: usize) {
            let now_ms = self.now_ms;
            let Some(check) = &mut self.nodes[node].check else { return };
            let due = check.due(now_ms);
            if check.is_over(0) {
                self.nodes[node].check = None;
                self.nodes[node].known = self.nodes[node].names.clone();
            }
            self.questions.extend(due.into_iter().map(|question| (node, question)));
        }

        /// A member answers a node that its view has; otherwise the node asks again.
        fn ask(&mut self, from: usize, question: JoinedQuestion) {
            let to = usize::from(question.to.number.get());
            let has_view = self.life_of(to) == question.to && self.nodes[to].view.contains(&from);
            let is_rule_broken = self.is_rule_broken;
            let node = &self.nodes[to];
            let has = |name: &String| {
                let check = node.check.as_ref().filter(|_| !is_rule_broken);
                node.names.contains(name)
                    && check.is_none_or(|check| check.outranks(name, number(to), number(from)))
            };
            let has = has_view.then(|| question.names.iter().map(has).collect());
            self.answers.push((from, question, has));
        }

        fn answer(&mut self, to: usize, question: &JoinedQuestion, has: Option<Vec<bool>>) {
            let now_ms = self.now_ms;
            let Some(check) = &mut self.nodes[to].check else { return };
            let Some(has) = has else { return check.on_no_response(question.to, now_ms) };
            for name in check.on_response(question, &has) {
                self.nodes[to].names.remove(&name);
            }
        }

        fn step(&mut self, is_calm: bool) {
            self.now_ms += self.below(60);
            let node = self.below(self.nodes.len() as u64) as usize;
            match self.below(if is_calm { 5 } else { 9 }) {
                0 => self.install(node),
                1 | 2 if !self.questions.is_empty() => {
                    let at = self.below(self.questions.len() as u64) as usize;
                    let (from, question) = self.questions.swap_remove(at);
                    self.ask(from, question);
                }
                3 if !self.answers.is_empty() => {
                    let at = self.below(self.answers.len() as u64) as usize;
                    let (to, question, has) = self.answers.swap_remove(at);
                    let has = has.filter(|_| is_calm || self.below(5) > 0);
                    self.answer(to, &question, has);
                }
                4 => self.tick(node),
                5 if self.view.contains(&node) => self.exclude(node),
                6 if !self.view.contains(&node) => self.join(node),
                7 => self.grant(node),
                8 => drop(self.nodes[node].names.pop_first()),
                _ => {}
            }
        }
    }

    fn run(count: usize, seed: u64, is_rule_broken: bool) -> Result<usize, String> {
        let mut world = JoinedWorld { is_rule_broken, ..JoinedWorld::new(count, seed) };
        let mut conflicts = 0;
        for _ in 0..30 {
            for _ in 0..40 {
                world.step(false);
            }
            (0..count).for_each(|node| world.install(node));
            let all = |world: &JoinedWorld| {
                let names = world.view.iter().flat_map(|node| world.nodes[*node].names.iter());
                names.cloned().collect::<Vec<String>>()
            };
            let before: BTreeSet<String> = all(&world).into_iter().collect();
            conflicts += all(&world).len() - before.len();
            let known: Vec<BTreeSet<String>> = world
                .nodes
                .iter()
                .map(|node| node.known.intersection(&node.names).cloned().collect())
                .collect();
            for _ in 0..3000 {
                world.step(true);
                let is_open = |node: &usize| world.nodes[*node].check.is_some();
                if !world.view.iter().any(is_open) {
                    break;
                }
            }
            let after = all(&world);
            let unique: BTreeSet<String> = after.iter().cloned().collect();
            if after.len() != unique.len() {
                return Err(format!("two objects of one name: {after:?}"));
            }
            if unique != before {
                return Err(format!("{before:?} became {unique:?}: a name was lost at all nodes"));
            }
            for (node, known) in known.iter().enumerate().filter(|(n, _)| world.view.contains(n)) {
                if !known.is_subset(&world.nodes[node].names) {
                    return Err(format!("node {node} lost a name that the cluster knew"));
                }
            }
        }
        Ok(conflicts)
    }

    /// Nodes that were apart join in any order, also several at once. Afterwards each name has one
    /// object, and no name is lost at all nodes.
    #[test]
    fn each_name_has_one_object_after_a_reunion() {
        let mut conflicts = 0;
        for (count, seeds) in [(2, 30), (3, 60), (5, 30)] {
            for seed in 0..seeds {
                match run(count, seed, false) {
                    Ok(of_run) => conflicts += of_run,
                    Err(error) => panic!("{count} nodes, seed {seed}: {error}"),
                }
            }
        }
        assert!(conflicts > 300, "only {conflicts} conflicts");
    }

    /// If a doubtful name counts as one that a member has, both objects lose it.
    #[test]
    fn canary_two_joining_nodes_that_yield_to_each_other() {
        let error = (0..200).find_map(|seed| run(3, seed, true).err());
        assert!(error.is_some_and(|error| error.contains("at all nodes")));
    }

    #[test]
    fn a_node_without_names_or_without_members_has_nothing_to_ask() {
        let life = NumberedLife { number: number(1), incarnation: Incarnation(1) };
        let mut joined = JoinedNames::new([]);
        joined.set_members([life]);
        assert!(joined.due(0).is_empty() && joined.is_over(3));
        let mut joined = JoinedNames::new(["x".to_owned()]);
        joined.set_members([]);
        assert!(joined.due(0).is_empty() && joined.is_over(3));
    }

    /// While objects move, all members are asked again: the name was at the second while the first
    /// was asked, and at the first when the second was.
    #[test]
    fn a_member_that_drains_has_all_asked_again() {
        let life = NumberedLife { number: number(1), incarnation: Incarnation(1) };
        let mut joined = JoinedNames::new(["x".to_owned()]);
        joined.set_members([life]);
        for round in 0..2 {
            let question = joined.due(round).pop().unwrap();
            assert!(joined.on_response(&question, &[false]).is_empty());
            assert!(joined.due(round).is_empty());
            assert_eq!(joined.is_over(1), round == 1);
        }
    }

    #[test]
    fn names_are_asked_in_parts() {
        let names = (0..2 * MESSAGE_NAMES_MAX + 1).map(|n| format!("{n:08}"));
        let mut joined = JoinedNames::new(names);
        let life = NumberedLife { number: number(1), incarnation: Incarnation(1) };
        joined.set_members([life]);
        let mut sizes = Vec::new();
        while let Some(question) = joined.due(0).pop() {
            assert!(joined.due(0).is_empty(), "one question at a time");
            sizes.push(question.names.len());
            joined.on_response(&question, &vec![false; question.names.len()]);
        }
        assert_eq!(sizes, [MESSAGE_NAMES_MAX, MESSAGE_NAMES_MAX, 1]);
        let long = (0..5).map(|n| n.to_string().repeat(MESSAGE_BYTES_MAX / 2));
        let joined = JoinedNames::new(long);
        assert_eq!(names_after(&joined.doubtful, None).len(), 2);
        // A late answer to a question of another life changes nothing.
        let mut joined = JoinedNames::new(["x".to_owned()]);
        joined.set_members([life]);
        let question = joined.due(0).pop().unwrap();
        joined.set_members([]);
        assert!(joined.on_response(&question, &[true]).is_empty());
    }
}
