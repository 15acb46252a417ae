//! The steps of the home: its event loop, and the threads that open objects for readers.

use super::model::{Mutant, Protocol};
use super::state::{
    Answer, Delete, EVERYTHING, IDS, Last, Node, OBJECTS, Object, READERS, Sender, State, Target,
    Thread, bit, object_of,
};

/// A step of the home. The event loop takes one at a time; an eviction and the end of a delete take
/// several, between which only threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Put(usize),
    PutAtSecond,
    DeleteAtSecond,
    /// The name authority hears where the name is (`Settle`).
    Settle(Node),
    TakeOver,
    Delete {
        object: usize,
        is_replaced: bool,
    },
    FinishDelete,
    Retire,
    Reopen,
    ChooseVictim(usize),
    Spill(usize),
    Leave,
    LookAgain,
    Recall(usize),
    NotifyAgain(usize, usize),
    Acknowledged(usize, usize),
    /// A notice is taken for lost. It may still arrive.
    TimeOut(usize, usize),
    Crash,
    Rejoin,
    Exclude(usize),
    Lookup(usize),
    Open(usize),
    Release(usize, usize),
    NoteComplete(usize, usize),
}

impl Step {
    /// Whether it happens without a user, a fault or an eviction.
    pub fn is_internal(self) -> bool {
        match self {
            Self::Put(_)
            | Self::PutAtSecond
            | Self::DeleteAtSecond
            | Self::Settle(_)
            | Self::TakeOver
            | Self::Delete { .. }
            | Self::ChooseVictim(_)
            | Self::Spill(_)
            | Self::Recall(_)
            | Self::TimeOut(..)
            | Self::Crash => false,
            Self::FinishDelete
            | Self::Retire
            | Self::Reopen
            | Self::Leave
            | Self::LookAgain
            | Self::NotifyAgain(..)
            | Self::Acknowledged(..)
            | Self::Rejoin
            | Self::Exclude(_)
            | Self::Lookup(_)
            | Self::Open(_)
            | Self::Release(..)
            | Self::NoteComplete(..) => true,
        }
    }

    /// Whether a thread takes it, and not the event loop.
    fn is_of_thread(self) -> bool {
        matches!(self, Self::Lookup(_) | Self::Open(_) | Self::Release(..) | Self::NoteComplete(..))
    }

    pub fn all(readers: usize, out: &mut Vec<Self>) {
        out.extend([Self::PutAtSecond, Self::DeleteAtSecond, Self::TakeOver, Self::FinishDelete]);
        out.extend([Self::Settle(Node::Home), Self::Settle(Node::Second)]);
        out.extend([
            Self::Retire,
            Self::Reopen,
            Self::Leave,
            Self::LookAgain,
            Self::Crash,
            Self::Rejoin,
        ]);
        for object in 0..OBJECTS {
            out.extend([Self::Put(object), Self::ChooseVictim(object), Self::Spill(object)]);
            out.extend([false, true].map(|is_replaced| Self::Delete { object, is_replaced }));
        }
        out.extend((0..IDS).map(Self::Recall));
        for reader in 0..readers {
            out.extend([Self::Exclude(reader), Self::Lookup(reader), Self::Open(reader)]);
            for id in 0..IDS {
                out.extend([Self::Release(reader, id), Self::NoteComplete(reader, id)]);
            }
            for id in 0..=IDS {
                out.extend([Self::NotifyAgain(id, reader), Self::TimeOut(id, reader)]);
            }
            out.extend((0..4).map(|index| Self::Acknowledged(reader, index)));
        }
    }
}

/// Counts down; `None` at zero.
pub fn spend(left: &mut u8) -> Option<()> {
    *left = left.checked_sub(1)?;
    Some(())
}

impl Protocol {
    pub fn at_home(&self, state: &mut State, step: Step) -> Option<()> {
        let is_deleting = matches!(state.home.delete, Delete::Ready { .. } | Delete::Done { .. });
        let is_between = state.home.victim.is_some() || is_deleting;
        let is_last = matches!(step, Step::LookAgain | Step::Reopen | Step::Crash);
        let ends_it = is_last || matches!(step, Step::Leave | Step::Retire);
        if is_between && !ends_it && !step.is_of_thread() {
            return None;
        }
        match step {
            Step::Put(_) | Step::PutAtSecond | Step::DeleteAtSecond | Step::Settle(_) => {
                self.names(state, step)
            }
            Step::Delete { .. } | Step::FinishDelete | Step::Retire | Step::Reopen => {
                self.delete(state, step)
            }
            Step::ChooseVictim(_) | Step::Leave | Step::LookAgain | Step::TakeOver => {
                self.evict(state, step)
            }
            Step::Spill(object) => self.spill(state, object),
            Step::Lookup(_) | Step::Open(_) | Step::Release(..) | Step::NoteComplete(..) => {
                self.serve(state, step)
            }
            _ => self.notices(state, step),
        }
    }

    /// Puts. The name authority grants a name that no node has.
    fn names(&self, state: &mut State, step: Step) -> Option<()> {
        let is_free = state.value(Target::Name) & super::state::NONE != 0;
        match step {
            Step::Put(object) => {
                let is_first = state.home.objects[object] == Object::Unsealed;
                let is_next = object == 0 || state.home.objects[object - 1] != Object::Unsealed;
                let is_granted = (is_free || self.scope.is_large) && !state.home.is_new_life;
                (is_first && is_next && is_granted).then_some(())?;
                state.home.objects[object] = Object::Sealed;
            }
            Step::PutAtSecond => {
                let is_new = self.scope.has_second_home && state.second == Object::Unsealed;
                (is_free && is_new).then_some(())?;
                state.second = Object::Sealed;
            }
            Step::DeleteAtSecond => {
                (state.second == Object::Sealed).then_some(())?;
                state.second = Object::Gone;
            }
            Step::Settle(node) => {
                let is_at_second = state.second == Object::Sealed;
                let is_there = !is_free && is_at_second == (node == Node::Second);
                let is_news = state.hint != Some(node);
                (self.scope.has_second_home && is_there && is_news).then_some(())?;
                state.hint = Some(node);
            }
            _ => return None,
        }
        Some(())
    }

    /// `invalidate_at_member`.
    fn notify(&self, state: &mut State, id: usize, reader: usize) {
        if !state.readers[reader].is_member {
            state.home.last[id][reader] = Last::None;
            return;
        }
        state.home.numbers[reader] += 1;
        let number = state.home.numbers[reader];
        state.links[reader].notices.push((id, number));
        state.home.last[id][reader] = Last::Sent { number };
    }

    /// `NetReaders::take`: the readers that are noted are told to drop their replicas.
    fn recall(&self, state: &mut State, id: usize) {
        state.home.complete[id] = 0;
        let noted = std::mem::take(&mut state.home.notes[id]);
        (0..READERS).filter(|reader| noted & bit(*reader) != 0).for_each(|reader| {
            self.notify(state, id, reader);
        });
    }

    /// `withdraw_elsewhere`: whether no reader has a replica.
    fn withdraw(&self, state: &mut State, object: usize) -> bool {
        for id in state.ids_of(object) {
            if !self.is(Mutant::OpensDuringDelete) {
                state.home.closed |= bit(id);
            }
            self.recall(state, id);
        }
        let is_dropped = |id: usize| state.home.last[id].iter().all(|last| *last == Last::None);
        let is_new_life = state.home.is_new_life || !is_dropped(EVERYTHING);
        state.ids_of(object).all(is_dropped) && (!is_new_life || self.is(Mutant::NewLifeForgotten))
    }

    /// `go_on_to_delete` and `withdrawn_to_replace`.
    fn delete(&self, state: &mut State, step: Step) -> Option<()> {
        match (step, state.home.delete) {
            (Step::Delete { object, is_replaced }, Delete::None) => {
                let is_sealed = state.home.objects[object] == Object::Sealed;
                let has_next = state.home.objects.get(object + 1) == Some(&Object::Unsealed);
                let is_possible = !is_replaced || has_next && !self.scope.is_large;
                (is_sealed && is_possible).then_some(())?;
                spend(&mut state.left.deletes)?;
                self.withdraw(state, object);
                state.home.delete = Delete::Waits { object, is_replaced };
            }
            (Step::FinishDelete, Delete::Waits { object, is_replaced }) => {
                // Members that opened it by another id since are told now.
                let is_there = state.home.objects[object] == Object::Sealed;
                let is_ready = !is_there || self.withdraw(state, object);
                if is_ready || self.is(Mutant::DeleteBeforeAcknowledged) {
                    state.home.delete = Delete::Ready { object, is_replaced };
                }
            }
            (Step::Retire, Delete::Ready { object, is_replaced }) => {
                state.home.objects[object] = Object::Gone;
                if is_replaced && state.home.objects[object + 1] == Object::Unsealed {
                    state.home.objects[object + 1] = Object::Sealed;
                }
                state.home.delete = Delete::Done { object };
            }
            (Step::Reopen, Delete::Done { object }) => {
                for id in state.ids_of(object) {
                    state.home.closed &= !bit(id);
                }
                state.home.delete = Delete::None;
            }
            _ => return None,
        }
        Some(())
    }

    /// `RemoteReplicas::is_elsewhere`.
    fn is_elsewhere(&self, state: &State, object: usize) -> bool {
        let home = &state.home;
        let is_told = |id: usize| home.last[id].iter().any(|last| *last != Last::None);
        let now = state.id_now(object);
        let by_one_id = self.is(Mutant::EvictionByLastId);
        let mut ids = state.ids_of(object).filter(|id| !by_one_id || *id == now);
        let may_have = ids.any(|id| home.notes[id] != 0 || is_told(id))
            || is_told(EVERYTHING)
            || home.is_new_life && !self.is(Mutant::EvictionBeforeRejoin);
        may_have && !self.is(Mutant::EvictionWithoutRecall)
    }

    /// An eviction: `victims`, `begin_leave`, and the last look at the members that are noted.
    fn evict(&self, state: &mut State, step: Step) -> Option<()> {
        match (step, state.home.victim) {
            (Step::TakeOver, None) => {
                let may = self.scope.takes_over && !state.home.is_taken_over;
                (may && state.home.objects[0] == Object::Sealed).then_some(())?;
                state.home.is_taken_over = true;
            }
            (Step::ChooseVictim(object), None) => {
                let is_sealed = state.home.objects[object] == Object::Sealed;
                (is_sealed && !self.is_elsewhere(state, object)).then_some(())?;
                spend(&mut state.left.evictions)?;
                state.home.victim = Some(object);
            }
            (Step::Leave, Some(object)) if state.home.objects[object] == Object::Sealed => {
                let is_held = |id: usize| state.home.holds.iter().any(|of| of[id] > 0);
                match state.ids_of(object).any(is_held) {
                    true => state.home.victim = None,
                    false => state.home.objects[object] = Object::Leaving,
                }
            }
            (Step::LookAgain, Some(object)) if state.home.objects[object] == Object::Leaving => {
                let stays =
                    self.is_elsewhere(state, object) && !self.is(Mutant::EvictionWithoutSecondLook);
                state.home.objects[object] = if stays { Object::Sealed } else { Object::Gone };
                state.home.victim = None;
            }
            _ => return None,
        }
        Some(())
    }

    /// An object that nothing holds leaves memory for a file, and comes back at another place. It
    /// has its name and its replicas meanwhile.
    fn spill(&self, state: &mut State, object: usize) -> Option<()> {
        (state.home.objects[object] == Object::Sealed).then_some(())?;
        let is_held = |id: usize| state.home.holds.iter().any(|of| of[id] > 0);
        (!state.ids_of(object).any(is_held)).then_some(())?;
        spend(&mut state.left.spills)?;
        for id in state.ids_of(object) {
            let fetching = state.readers.iter_mut().filter_map(|it| it.fetching[id].as_mut());
            fetching.filter(|it| it.sender == Sender::Home).for_each(|it| {
                it.sender = Sender::Overwritten;
            });
        }
        Some(())
    }

    fn notices(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Recall(id) => {
                (state.home.notes[id] != 0).then_some(())?;
                spend(&mut state.left.recalls)?;
                self.recall(state, id);
            }
            Step::TimeOut(id, reader) => {
                let Last::Sent { number } = state.home.last[id][reader] else { return None };
                spend(&mut state.left.losses)?;
                state.home.last[id][reader] = Last::Failed { number };
            }
            Step::NotifyAgain(id, reader) => {
                let is_due = matches!(state.home.last[id][reader], Last::Failed { .. });
                is_due.then(|| self.notify(state, id, reader))?;
            }
            Step::Acknowledged(reader, index) => {
                let acks = &mut state.links[reader].acks;
                let (id, number) = (index < acks.len()).then(|| acks.remove(index))?;
                let is_last = match state.home.last[id][reader] {
                    Last::Sent { number: last } | Last::Failed { number: last } => last == number,
                    Last::None => false,
                };
                if is_last || self.is(Mutant::AnyAnswerCounts) {
                    state.home.last[id][reader] = Last::None;
                }
            }
            Step::Crash => {
                spend(&mut state.left.home_crashes)?;
                self.crash(state);
            }
            Step::Rejoin => {
                state.home.is_new_life.then_some(())?;
                state.home.is_new_life = false;
                (0..self.scope.readers).for_each(|reader| self.notify(state, EVERYTHING, reader));
            }
            Step::Exclude(reader) => {
                let it = &state.readers[reader];
                let is_early = self.is(Mutant::ExcludedWithLease) && state.left.pauses > 0;
                (it.is_member && (!it.has_lease || is_early)).then_some(())?;
                self.exclude(state, reader);
            }
            _ => return None,
        }
        Some(())
    }

    /// The daemon is killed and starts again over its memory.
    fn crash(&self, state: &mut State) {
        let fresh = State::new(&self.scope).home;
        let objects = state.home.objects.map(|object| match object {
            Object::Leaving => Object::Sealed,
            other => other,
        });
        let (is_taken_over, numbers) = (state.home.is_taken_over, state.home.numbers);
        state.home =
            super::state::Home { objects, is_taken_over, numbers, is_new_life: true, ..fresh };
        for link in &mut state.links {
            // Answers that have arrived, and notices, may still be in the queues of the readers.
            (link.open, link.releases, link.complete) = (false, [0; IDS], 0);
            link.acks.clear();
        }
    }

    /// `member_has_ended`, after `Server::cut` and `RegionSource::forget`.
    pub fn exclude(&self, state: &mut State, reader: usize) {
        state.readers[reader].is_member = false;
        let home = &mut state.home;
        home.last.iter_mut().for_each(|last| last[reader] = Last::None);
        home.notes.iter_mut().for_each(|notes| *notes &= !bit(reader));
        home.complete.iter_mut().for_each(|complete| *complete &= !bit(reader));
        home.holds[reader] = [0; IDS];
        home.threads[reader] = Thread::Idle;
        let link = &mut state.links[reader];
        (link.open, link.releases, link.complete) = (false, [0; IDS], 0);
    }

    /// Threads of the data server.
    fn serve(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Lookup(reader) => {
                let link = &state.links[reader];
                let is_next = link.open && link.answer.is_none();
                let is_free = state.home.threads[reader] == Thread::Idle;
                (is_next && is_free && link.releases == [0; IDS]).then_some(())?;
                let target = state.readers[reader].opening.map_or(Target::Name, |it| it.target);
                let object = (0..OBJECTS).find(|it| target.is(*it) && state.is_there(*it));
                let link = &mut state.links[reader];
                link.open = false;
                match object {
                    None => link.answer = Some(Answer::NotFound),
                    Some(object) if state.home.objects[object] == Object::Leaving => {
                        link.answer = Some(Answer::Busy);
                    }
                    Some(object) => {
                        state.home.threads[reader] = Thread::Found(state.id_now(object));
                    }
                }
            }
            Step::Open(reader) => {
                let (next, answer) = match state.home.threads[reader] {
                    Thread::Idle => return None,
                    Thread::Found(id) => self.first_half(state, reader, id),
                    Thread::Half(id) => (Thread::Idle, Some(self.second_half(state, reader, id))),
                };
                state.home.threads[reader] = next;
                state.links[reader].answer = answer;
            }
            Step::Release(reader, id) => {
                (state.links[reader].complete & bit(id) == 0).then_some(())?;
                spend(&mut state.links[reader].releases[id])?;
                let holds = &mut state.home.holds[reader][id];
                *holds = holds.saturating_sub(1);
            }
            Step::NoteComplete(reader, id) => {
                (state.links[reader].complete & bit(id) != 0).then_some(())?;
                state.links[reader].complete &= !bit(id);
                let is_noted = state.home.notes[id] & bit(reader) != 0;
                let is_held = state.home.holds[reader][id] > 0;
                if is_held && (is_noted || self.is(Mutant::CompleteWithoutNote)) {
                    state.home.complete[id] |= bit(reader);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// `RegionSource::note`, then the hold.
    fn first_half(&self, state: &mut State, reader: usize, id: usize) -> (Thread, Option<Answer>) {
        let is_done = match self.is(Mutant::HoldBeforeNote) {
            true => self.hold(state, reader, id),
            false => self.note(state, reader, id),
        };
        if is_done { (Thread::Half(id), None) } else { (Thread::Idle, Some(Answer::Busy)) }
    }

    fn second_half(&self, state: &mut State, reader: usize, id: usize) -> Answer {
        if self.is(Mutant::HoldBeforeNote) {
            let is_noted = self.note(state, reader, id);
            return if is_noted { Answer::Found(id) } else { Answer::Busy };
        }
        if self.hold(state, reader, id) {
            return Answer::Found(id);
        }
        if !state.is_there(object_of(id)) && !self.is(Mutant::NoteOfGoneObject) {
            state.home.notes[id] &= !bit(reader);
        }
        Answer::Busy
    }

    fn note(&self, state: &mut State, reader: usize, id: usize) -> bool {
        let is_open = state.home.closed & bit(id) == 0;
        if is_open {
            state.home.notes[id] |= bit(reader);
        }
        is_open
    }

    fn hold(&self, state: &mut State, reader: usize, id: usize) -> bool {
        let object = object_of(id);
        let is_it = state.home.objects[object] == Object::Sealed && state.id_now(object) == id;
        if is_it && !self.is(Mutant::OpenWithoutHold) {
            state.home.holds[reader][id] += 1;
        }
        is_it
    }
}
