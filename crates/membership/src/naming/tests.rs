//! All nodes create the same names at once, on a network that loses, duplicates, delays and cuts.
//! Views change, daemons are killed, and some nodes cannot read the directories of others. A name
//! has one holder at a time.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

use super::home::UnreadFault;
use super::*;
use crate::NodeName;

mod alone;

const NAMES: u64 = 6;

/// Deadline of a request in milliseconds.
const ASK_MS: u64 = 700;

#[derive(Debug)]
enum NamingEvent {
    Message {
        from: (usize, u64),
        to: usize,
        message: NameMessage,
    },
    Tick {
        node: usize,
    },
    /// A node learns of the view at this position in the history.
    View {
        node: usize,
        place: usize,
    },
    /// The application on a node decides on a name that it was granted.
    Use {
        node: usize,
        process: u64,
        name: String,
    },
}

/// The sealed names, each with its node.
type SealedNames = Rc<RefCell<BTreeMap<String, usize>>>;

struct NamingNode {
    naming: Naming,
    life: u64,
    /// Session and process are the same here: one number for each start.
    process: u64,
    /// Position of its view in the history.
    place: Option<usize>,
    is_paused: bool,
    inbox: Vec<((usize, u64), NameMessage)>,
    /// Its messages, over all its lives.
    said: Vec<NameMessage>,
    /// The nodes that this process has seen in a view.
    known: Vec<bool>,
    /// Deadlines of the requests, by ticket.
    requested: BTreeMap<u64, (u64, Vec<String>)>,
}

struct NamingWorld {
    now_ms: u64,
    random: u64,
    nodes: Vec<NamingNode>,
    history: Vec<View>,
    sealed: SealedNames,
    /// The nodes with directories that each node can read.
    reads: Vec<Vec<bool>>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    waiting: BTreeMap<u64, NamingEvent>,
    next: u64,
    loss_percent: u64,
    delay_ms_max: u64,
    cuts: Vec<(usize, usize)>,
    /// Percentage of messages with which a node also repeats an earlier message, as its current
    /// life, to any node.
    replay_percent: u64,
    mutant: Option<NamingMutant>,
    granted: u64,
    messages: u64,
}

/// Faults that the tests must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamingMutant {
    /// An authority grants before it knows the names in flight.
    IsHasty,
    /// Messages of other epochs count.
    HearsOldEpochs,
    /// An authority misjudges directories that it cannot read.
    Unread(UnreadFault),
}

fn name_of(node: usize) -> NodeName {
    NodeName::new(format!("n{node}")).unwrap()
}

fn number(node: usize) -> NodeNumber {
    NodeNumber::new(node as u8).unwrap()
}

impl NamingWorld {
    fn new(count: usize, seed: u64, mutant: Option<NamingMutant>) -> Self {
        let mut world = Self {
            now_ms: 0,
            random: seed,
            nodes: Vec::new(),
            history: Vec::new(),
            sealed: SealedNames::default(),
            reads: vec![vec![true; count]; count],
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            next: 0,
            loss_percent: 0,
            delay_ms_max: 10,
            cuts: Vec::new(),
            // In every other run.
            replay_percent: seed % 2 * 30,
            mutant,
            granted: 0,
            messages: 0,
        };
        for node in 0..count {
            let node = NamingNode {
                naming: world.process(node, 1),
                life: 1,
                process: 1,
                place: None,
                is_paused: false,
                inbox: Vec::new(),
                said: Vec::new(),
                known: vec![false; count],
                requested: BTreeMap::new(),
            };
            world.nodes.push(node);
        }
        // In two of three runs.
        for node in 0..if seed.is_multiple_of(3) { 0 } else { count } {
            for other in (0..count).filter(|other| *other != node) {
                world.reads[node][other] = world.below(2) == 0;
            }
        }
        let everybody: Vec<usize> = (0..count).collect();
        world.history.push(world.view(&everybody));
        for node in 0..count {
            world.install(node, 0).unwrap();
        }
        world
    }

    fn process(&self, node: usize, session: u64) -> Naming {
        let mut naming = Naming::new(name_of(node), session, []);
        naming.authority.is_hasty = self.mutant == Some(NamingMutant::IsHasty);
        naming.hears_old_epochs = self.mutant == Some(NamingMutant::HearsOldEpochs);
        naming.unread_fault = match self.mutant {
            Some(NamingMutant::Unread(fault)) => Some(fault),
            _ => None,
        };
        naming
    }

    fn view(&self, nodes: &[usize]) -> View {
        let members = nodes.iter().map(|node| Member {
            number: number(*node),
            name: name_of(*node),
            incarnation: Incarnation(self.nodes[*node].life),
            address: format!("{node}"),
            info: Vec::new(),
        });
        View {
            cluster: ClusterId(1),
            epoch: Epoch(1 + self.history.len() as u64),
            members: members.collect(),
            former: Vec::new(),
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random) % limit.max(1)
    }

    fn at(&mut self, after_ms: u64, event: NamingEvent) {
        self.next += 1;
        self.events.push(Reverse((self.now_ms + after_ms, self.next)));
        self.waiting.insert(self.next, event);
    }

    /// Runs a call on a node, and handles its outputs.
    fn call(
        &mut self,
        node: usize,
        what: impl FnOnce(&mut Naming, u64, &dyn Fn(&str) -> bool, &mut Vec<NameOutput>),
    ) -> Result<(), String> {
        let (sealed, mut out) = (self.sealed.clone(), Vec::new());
        let known = &self.nodes[node].known;
        let reads: Vec<bool> =
            self.reads[node].iter().zip(known).map(|(reads, known)| *reads && *known).collect();
        let exists = move |name: &str| {
            sealed.borrow().get(name).is_some_and(|owner| *owner == node || reads[*owner])
        };
        let unread = self.unread_of(node);
        self.nodes[node].naming.set_unread(unread);
        what(&mut self.nodes[node].naming, self.now_ms, &exists, &mut out);
        for output in out {
            match output {
                NameOutput::Send { to, message } => self.send(node, to, message),
                NameOutput::Answer { ticket, results } => self.answered(node, ticket, &results)?,
            }
        }
        let due_ms = self.nodes[node].naming.next_deadline_ms();
        if due_ms != u64::MAX {
            self.at(due_ms.saturating_sub(self.now_ms).max(1), NamingEvent::Tick { node });
        }
        Ok(())
    }

    /// The nodes with directories that a node cannot read, by its current view.
    fn unread_of(&self, node: usize) -> Unread {
        let Some(place) = self.nodes[node].place else { return Unread::default() };
        let view = &self.history[place];
        let others = (0..self.nodes.len()).filter(|other| *other != node);
        let (members, lost): (Vec<usize>, Vec<usize>) =
            others.partition(|other| view.named(&name_of(*other)).is_some());
        let is_read = |other: &usize| self.reads[node][*other];
        let is_known = |other: &usize| self.nodes[node].known[*other];
        let asks_all = !lost.iter().all(is_known);
        let requested = members.into_iter().filter(|other| asks_all || !is_read(other));
        Unread {
            members: requested.map(number).collect(),
            lost: lost.into_iter().find(|other| is_known(other) && !is_read(other)).map(number),
            // Another round of queries changes no decision while no object moves.
            movers: node % 2,
        }
    }

    fn send(&mut self, from: usize, to: NodeNumber, message: NameMessage) {
        self.messages += 1;
        let to = usize::from(to.get());
        self.nodes[from].said.push(message.clone());
        if self.replay_percent > 0 && self.below(100) < self.replay_percent {
            self.replay(from);
        }
        if self.cuts.contains(&(from, to)) || self.below(100) < self.loss_percent {
            return;
        }
        let sender = (from, self.nodes[from].life);
        for _ in 0..1 + u64::from(self.below(10) == 0) {
            let delay_ms = 1 + self.below(self.delay_ms_max);
            self.at(delay_ms, NamingEvent::Message { from: sender, to, message: message.clone() });
        }
    }

    fn replay(&mut self, from: usize) {
        let (at, to) = (self.below(self.nodes[from].said.len() as u64), self.nodes.len() as u64);
        let (message, to) = (self.nodes[from].said[at as usize].clone(), self.below(to) as usize);
        if to != from && !self.cuts.contains(&(from, to)) {
            let from = (from, self.nodes[from].life);
            self.at(1, NamingEvent::Message { from, to, message });
        }
    }

    fn answered(
        &mut self,
        node: usize,
        ticket: u64,
        results: &[Result<(), NameRefusal>],
    ) -> Result<(), String> {
        let Some((deadline_ms, names)) = self.nodes[node].requested.remove(&ticket) else {
            return Err(format!("node {node} answers {ticket} twice"));
        };
        if names.len() != results.len() {
            return Err(format!("{} results for {} names", results.len(), names.len()));
        }
        if self.now_ms > deadline_ms + 1 && !self.nodes[node].is_paused {
            return Err(format!("an answer {} ms late", self.now_ms - deadline_ms));
        }
        for (name, result) in names.into_iter().zip(results) {
            if result.is_ok() {
                self.granted += 1;
                self.check_name(node, &name)?;
                let (after_ms, process) = (self.below(400), self.nodes[node].process);
                self.at(after_ms, NamingEvent::Use { node, process, name });
            }
        }
        Ok(())
    }

    /// Checks that no other node holds a name just granted, and that no object has it.
    fn check_name(&self, node: usize, name: &str) -> Result<(), String> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
        for (other, place) in others {
            if place.naming.holds(name) {
                return Err(format!("{name}: held by {node} and {other} at {} ms", self.now_ms));
            }
        }
        match self.sealed.borrow().get(name) {
            Some(other) => Err(format!("{name}: granted to {node}, sealed by {other}")),
            None => Ok(()),
        }
    }

    fn used(&mut self, node: usize, process: u64, name: String) -> Result<(), String> {
        if self.nodes[node].process != process {
            return Ok(());
        }
        let is_sealed = self.below(2) == 0;
        if is_sealed && self.nodes[node].naming.holds(&name) {
            self.check_name(node, &name)?;
            self.sealed.borrow_mut().insert(name.clone(), node);
        }
        self.call(node, |naming, _, _, _| naming.settle([name.as_str()]))
    }

    fn ask(&mut self, node: usize, names: Vec<String>) -> Result<(), String> {
        // A home checks its own directory before it asks.
        let is_new = |name: &String| self.sealed.borrow().get(name) != Some(&node);
        let names: Vec<String> = names.into_iter().filter(is_new).collect();
        self.next += 1;
        let (ticket, deadline_ms) = (self.next, self.now_ms + ASK_MS);
        self.nodes[node].requested.insert(ticket, (deadline_ms, names.clone()));
        self.call(node, |naming, now_ms, exists, out| {
            naming.ask(NameRequest { ticket, names, deadline_ms }, now_ms, exists, out);
        })
    }

    fn install(&mut self, node: usize, place: usize) -> Result<(), String> {
        let view = self.history[place].clone();
        let is_in_it = view.number_of(&name_of(node), Incarnation(self.nodes[node].life)).is_some();
        if self.nodes[node].place.is_some_and(|old| old >= place) {
            return Ok(());
        }
        self.nodes[node].place = is_in_it.then_some(place);
        for member in &view.members {
            self.nodes[node].known[usize::from(member.number.get())] |= is_in_it;
        }
        self.forget_unknown(&view);
        // A node outside the last view has no lease, whatever its current view is.
        let life = Incarnation(self.nodes[node].life);
        let last = self.history.last().unwrap();
        let has_lease = last.number_of(&name_of(node), life).is_some();
        self.call(node, |naming, now_ms, _, out| {
            if is_in_it {
                naming.view_installed(&view, now_ms, out);
                naming.lease(has_lease, out);
            } else {
                naming.outcast(out);
            }
        })
    }

    /// Names of a lost node count as long as a member of a view without it remembers it.
    fn forget_unknown(&mut self, view: &View) {
        let members = || view.members.iter().map(|member| usize::from(member.number.get()));
        let is_known = |owner: usize| {
            let mut members = members();
            members.any(|member| member == owner || self.nodes[member].known[owner])
        };
        self.sealed.borrow_mut().retain(|_, owner| is_known(*owner));
    }

    /// Changes to the next view. Membership ensures that an excluded node has no lease before any
    /// node has the view; the excluded node learns of it late. A returning node has a new life.
    fn change_view(&mut self) -> Result<(), String> {
        let count = self.nodes.len();
        let old = self.history.last().unwrap().clone();
        let changed = self.below(count as u64) as usize;
        let is_member = old.named(&name_of(changed)).is_some();
        let mut nodes: Vec<usize> =
            (0..count).filter(|node| old.named(&name_of(*node)).is_some()).collect();
        if is_member && nodes.len() > 1 && self.below(4) > 0 {
            nodes.retain(|node| *node != changed);
            self.call(changed, |naming, _, _, out| naming.lease(false, out))?;
        } else if !is_member {
            // It restarts, whether or not it knew that it was excluded.
            self.call(changed, |naming, _, _, out| naming.outcast(out))?;
            self.nodes[changed].life += 1;
            self.restart(changed)?;
            nodes.push(changed);
            nodes.sort_unstable();
        }
        self.history.push(self.view(&nodes));
        let place = self.history.len() - 1;
        for node in 0..count {
            let after_ms = self.below(300);
            self.at(after_ms, NamingEvent::View { node, place });
        }
        Ok(())
    }

    /// Starts another process, of the same life unless that was changed. It knows only the view.
    fn restart(&mut self, node: usize) -> Result<(), String> {
        self.nodes[node].known.fill(false);
        let process = self.nodes[node].process + 1;
        let naming = self.process(node, process);
        let place = self.nodes[node].place.take();
        let old = &mut self.nodes[node];
        (old.naming, old.process) = (naming, process);
        old.requested.clear();
        old.inbox.clear();
        let is_in = place.is_some_and(|place| {
            let last = self.history.last().unwrap();
            let life = Incarnation(self.nodes[node].life);
            let is_in = |view: &View| view.number_of(&name_of(node), life).is_some();
            is_in(&self.history[place]) && is_in(last)
        });
        match place.filter(|_| is_in) {
            Some(place) => self.install(node, place),
            None => Ok(()),
        }
    }

    fn run_until(&mut self, end_ms: u64) -> Result<(), String> {
        while let Some(Reverse((at_ms, id))) = self.events.peek().copied() {
            if at_ms > end_ms {
                break;
            }
            self.events.pop();
            self.now_ms = at_ms;
            match self.waiting.remove(&id) {
                Some(NamingEvent::Message { from, to, message }) => {
                    if self.nodes[to].is_paused {
                        self.nodes[to].inbox.push((from, message));
                    } else {
                        self.deliver(from, to, message)?;
                    }
                }
                Some(NamingEvent::Tick { node }) => {
                    let naming = &self.nodes[node].naming;
                    if naming.next_deadline_ms() <= self.now_ms && !self.nodes[node].is_paused {
                        self.tick(node)?;
                    }
                }
                Some(NamingEvent::View { node, place }) => self.install(node, place)?,
                Some(NamingEvent::Use { node, process, name }) => self.used(node, process, name)?,
                None => {}
            }
        }
        self.now_ms = end_ms;
        Ok(())
    }

    fn tick(&mut self, node: usize) -> Result<(), String> {
        self.call(node, |naming, now_ms, exists, out| naming.tick(now_ms, exists, out))
    }

    fn deliver(
        &mut self,
        from: (usize, u64),
        to: usize,
        message: NameMessage,
    ) -> Result<(), String> {
        let from = NumberedLife { number: number(from.0), incarnation: Incarnation(from.1) };
        self.call(to, |naming, now_ms, exists, out| {
            naming.handle(from, message, NameChecks { exists, may_name: &|_| true }, now_ms, out);
        })
    }

    fn resume(&mut self, node: usize) -> Result<(), String> {
        for (from, message) in std::mem::take(&mut self.nodes[node].inbox) {
            self.deliver(from, node, message)?;
        }
        self.tick(node)?;
        self.nodes[node].is_paused = false;
        Ok(())
    }

    fn some_fault(&mut self) -> Result<(), String> {
        let count = self.nodes.len() as u64;
        let (node, to) = (self.below(count) as usize, self.below(count) as usize);
        match self.below(11) {
            10 if self.reads.iter().flatten().any(|reads| !reads) => {
                self.reads[node][to] = node == to || self.below(2) == 0;
            }
            0 => self.loss_percent = self.below(40),
            1 => self.delay_ms_max = [2, 10, 60, 300][self.below(4) as usize],
            2 => self.cuts.push((node, to)),
            3 => self.cuts.clear(),
            4 => self.nodes[node].is_paused = true,
            5 => self.resume(node)?,
            6 => self.restart(node)?,
            7 | 8 => self.change_view()?,
            _ => {
                let name = format!("name{}", self.below(NAMES));
                self.sealed.borrow_mut().remove(&name);
            }
        }
        Ok(())
    }

    /// Gives all members the last view, and a lease.
    fn heal(&mut self) -> Result<(), String> {
        (self.loss_percent, self.delay_ms_max) = (0, 10);
        self.cuts.clear();
        for node in 0..self.nodes.len() {
            self.resume(node)?;
        }
        let place = self.history.len() - 1;
        for node in 0..self.nodes.len() {
            self.install(node, place)?;
        }
        self.run_until(self.now_ms + 2000)
    }
}

fn run(count: usize, seed: u64, mutant: Option<NamingMutant>) -> Result<u64, String> {
    let mut world = NamingWorld::new(count, seed, mutant);
    for _ in 0..60 {
        world.some_fault()?;
        let several = 1 + world.below(3);
        let first = world.below(NAMES);
        for node in 0..count {
            if !world.nodes[node].is_paused {
                let names = (0..several).map(|n| format!("name{}", (first + n) % NAMES));
                world.ask(node, names.collect())?;
            }
        }
        let wait_ms = world.below(150);
        world.run_until(world.now_ms + wait_ms)?;
    }
    world.heal()?;
    // Nothing stays in flight: each name can be created again, from any node.
    let open: usize = world.nodes.iter().map(|node| node.requested.len()).sum();
    if open > 0 {
        return Err(format!("{open} asks outlived their deadlines"));
    }
    let members = world.history.last().unwrap().members.clone();
    for lost in (0..count).filter(|n| members.iter().all(|one| one.name != name_of(*n))) {
        // No node is granted a name that the lost node may have.
        world.reads.iter_mut().for_each(|of| of[lost] = true);
    }
    for n in 0..NAMES {
        world.sealed.borrow_mut().clear();
        let name = format!("name{n}");
        let node = members[world.below(members.len() as u64) as usize].number.get().into();
        let before = world.granted;
        world.ask(node, vec![name.clone()])?;
        world.run_until(world.now_ms + 2000)?;
        if world.granted != before + 1 {
            return Err(format!("{name} cannot be created again on {node}"));
        }
    }
    Ok(world.granted)
}

#[test]
fn a_name_has_one_holder_at_a_time() {
    let mut granted = 0;
    let times = crate::simulation::seeds_times();
    for (count, seeds) in [(1, 50), (2, 200), (3, 300), (5, 150)] {
        for seed in 0..seeds * times {
            match run(count, seed, None) {
                Ok(of_run) => granted += of_run,
                Err(error) => panic!("{count} nodes, seed {seed}: {error}"),
            }
        }
    }
    assert!(granted > 700 * 10, "only {granted} grants");
}

/// An authority that grants before it knows the names in flight gives one name to two homes.
#[test]
fn canary_an_authority_that_does_not_wait() {
    let error = (0..200).find_map(|seed| run(3, seed, Some(NamingMutant::IsHasty)).err());
    assert!(error.is_some_and(|error| error.contains("held by") || error.contains("sealed by")));
}

/// Claims, settlements and grants of an earlier epoch are delivered again in a later one.
#[test]
fn canary_a_message_of_another_epoch() {
    let is_seen = |error: &String| error.contains("held by") || error.contains("sealed by");
    let run = |seed| run(3, seed, Some(NamingMutant::HearsOldEpochs)).err().filter(is_seen);
    assert!((0..300).find_map(run).is_some());
}

/// A name is granted although an object has it where the authority cannot read; one reply of two
/// counts for both; another home is granted a name during the queries.
#[test]
fn canary_an_authority_that_does_not_ask_all_whom_it_cannot_read() {
    let is_seen = |error: &String| error.contains("held by") || error.contains("sealed by");
    for fault in [UnreadFault::AsksNone, UnreadFault::AsksOne, UnreadFault::AdmitsWaiting] {
        let run = |seed| run(4, seed, Some(NamingMutant::Unread(fault))).err().filter(is_seen);
        assert!((0..300).find_map(run).is_some(), "{fault:?}");
    }
}
