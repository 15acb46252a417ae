//! The steps of the home: its event loop, and the threads that open objects for readers.

use super::model::{ReplicaMutant, ReplicaProtocol};
use super::state::{
    BytesSender, Delete, EVERYTHING, GetTarget, IDS, Last, ModelObjectState, NameHolder, OBJECTS,
    OpenAnswer, READERS, ReplicaState, ServerThread, bit, object_of,
};

/// A step of the home. The event loop takes one at a time; an eviction and the end of a delete take
/// several, between which only threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HomeStep {
    Put(usize),
    PutAtSecond,
    DeleteAtSecond,
    /// The name authority hears where the name is (`Settle`).
    Settle(NameHolder),
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

impl HomeStep {
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
        out.extend([Self::Settle(NameHolder::Home), Self::Settle(NameHolder::Second)]);
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

impl ReplicaProtocol {
    pub fn at_home(&self, state: &mut ReplicaState, step: HomeStep) -> Option<()> {
        let is_deleting = matches!(state.home.delete, Delete::Ready { .. } | Delete::Done { .. });
        let is_between = state.home.victim.is_some() || is_deleting;
        let is_last = matches!(step, HomeStep::LookAgain | HomeStep::Reopen | HomeStep::Crash);
        let ends_it = is_last || matches!(step, HomeStep::Leave | HomeStep::Retire);
        if is_between && !ends_it && !step.is_of_thread() {
            return None;
        }
        match step {
            HomeStep::Put(_)
            | HomeStep::PutAtSecond
            | HomeStep::DeleteAtSecond
            | HomeStep::Settle(_) => self.names(state, step),
            HomeStep::Delete { .. }
            | HomeStep::FinishDelete
            | HomeStep::Retire
            | HomeStep::Reopen => self.delete(state, step),
            HomeStep::ChooseVictim(_)
            | HomeStep::Leave
            | HomeStep::LookAgain
            | HomeStep::TakeOver => self.evict(state, step),
            HomeStep::Spill(object) => self.spill(state, object),
            HomeStep::Lookup(_)
            | HomeStep::Open(_)
            | HomeStep::Release(..)
            | HomeStep::NoteComplete(..) => self.serve(state, step),
            _ => self.notices(state, step),
        }
    }

    /// Puts. The name authority grants a name that no node has.
    fn names(&self, state: &mut ReplicaState, step: HomeStep) -> Option<()> {
        let is_free = state.value(GetTarget::Name) & super::state::NONE != 0;
        match step {
            HomeStep::Put(object) => {
                let is_first = state.home.objects[object] == ModelObjectState::Unsealed;
                let is_next =
                    object == 0 || state.home.objects[object - 1] != ModelObjectState::Unsealed;
                let is_granted = (is_free || self.scope.is_large) && !state.home.is_new_life;
                (is_first && is_next && is_granted).then_some(())?;
                state.home.objects[object] = ModelObjectState::Sealed;
            }
            HomeStep::PutAtSecond => {
                let is_new =
                    self.scope.has_second_home && state.second == ModelObjectState::Unsealed;
                (is_free && is_new).then_some(())?;
                state.second = ModelObjectState::Sealed;
            }
            HomeStep::DeleteAtSecond => {
                (state.second == ModelObjectState::Sealed).then_some(())?;
                state.second = ModelObjectState::Removed;
            }
            HomeStep::Settle(node) => {
                let is_at_second = state.second == ModelObjectState::Sealed;
                let is_there = !is_free && is_at_second == (node == NameHolder::Second);
                let is_news = state.hint != Some(node);
                (self.scope.has_second_home && is_there && is_news).then_some(())?;
                state.hint = Some(node);
            }
            _ => return None,
        }
        Some(())
    }

    /// `invalidate_at_member`.
    fn notify(&self, state: &mut ReplicaState, id: usize, reader: usize) {
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
    fn recall(&self, state: &mut ReplicaState, id: usize) {
        state.home.complete[id] = 0;
        let noted = std::mem::take(&mut state.home.notes[id]);
        (0..READERS).filter(|reader| noted & bit(*reader) != 0).for_each(|reader| {
            self.notify(state, id, reader);
        });
    }

    /// `withdraw_elsewhere`: whether no reader has a replica.
    fn withdraw(&self, state: &mut ReplicaState, object: usize) -> bool {
        for id in state.ids_of(object) {
            if !self.is(ReplicaMutant::OpensDuringDelete) {
                state.home.closed |= bit(id);
            }
            self.recall(state, id);
        }
        let is_dropped = |id: usize| state.home.last[id].iter().all(|last| *last == Last::None);
        let is_new_life = state.home.is_new_life || !is_dropped(EVERYTHING);
        state.ids_of(object).all(is_dropped)
            && (!is_new_life || self.is(ReplicaMutant::NewLifeForgotten))
    }

    /// `go_on_to_delete` and `withdrawn_to_replace`.
    fn delete(&self, state: &mut ReplicaState, step: HomeStep) -> Option<()> {
        match (step, state.home.delete) {
            (HomeStep::Delete { object, is_replaced }, Delete::None) => {
                let is_sealed = state.home.objects[object] == ModelObjectState::Sealed;
                let has_next =
                    state.home.objects.get(object + 1) == Some(&ModelObjectState::Unsealed);
                let is_possible = !is_replaced || has_next && !self.scope.is_large;
                (is_sealed && is_possible).then_some(())?;
                spend(&mut state.left.deletes)?;
                self.withdraw(state, object);
                state.home.delete = Delete::Waits { object, is_replaced };
            }
            (HomeStep::FinishDelete, Delete::Waits { object, is_replaced }) => {
                // Members that opened it by another id since are told now.
                let is_there = state.home.objects[object] == ModelObjectState::Sealed;
                let is_ready = !is_there || self.withdraw(state, object);
                if is_ready || self.is(ReplicaMutant::DeleteBeforeAcknowledged) {
                    state.home.delete = Delete::Ready { object, is_replaced };
                }
            }
            (HomeStep::Retire, Delete::Ready { object, is_replaced }) => {
                state.home.objects[object] = ModelObjectState::Removed;
                if is_replaced && state.home.objects[object + 1] == ModelObjectState::Unsealed {
                    state.home.objects[object + 1] = ModelObjectState::Sealed;
                }
                state.home.delete = Delete::Done { object };
            }
            (HomeStep::Reopen, Delete::Done { object }) => {
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
    fn is_elsewhere(&self, state: &ReplicaState, object: usize) -> bool {
        let home = &state.home;
        let is_notified = |id: usize| home.last[id].iter().any(|last| *last != Last::None);
        let now = state.id_now(object);
        let by_one_id = self.is(ReplicaMutant::EvictionByLastId);
        let mut ids = state.ids_of(object).filter(|id| !by_one_id || *id == now);
        let may_have = ids.any(|id| home.notes[id] != 0 || is_notified(id))
            || is_notified(EVERYTHING)
            || home.is_new_life && !self.is(ReplicaMutant::EvictionBeforeRejoin);
        may_have && !self.is(ReplicaMutant::EvictionWithoutRecall)
    }

    /// An eviction: `victims`, `begin_leave`, and the last look at the members that are noted.
    fn evict(&self, state: &mut ReplicaState, step: HomeStep) -> Option<()> {
        match (step, state.home.victim) {
            (HomeStep::TakeOver, None) => {
                let may = self.scope.takes_over && !state.home.is_taken_over;
                (may && state.home.objects[0] == ModelObjectState::Sealed).then_some(())?;
                state.home.is_taken_over = true;
            }
            (HomeStep::ChooseVictim(object), None) => {
                let is_sealed = state.home.objects[object] == ModelObjectState::Sealed;
                (is_sealed && !self.is_elsewhere(state, object)).then_some(())?;
                spend(&mut state.left.evictions)?;
                state.home.victim = Some(object);
            }
            (HomeStep::Leave, Some(object))
                if state.home.objects[object] == ModelObjectState::Sealed =>
            {
                let is_held = |id: usize| state.home.holds.iter().any(|of| of[id] > 0);
                match state.ids_of(object).any(is_held) {
                    true => state.home.victim = None,
                    false => state.home.objects[object] = ModelObjectState::Leaving,
                }
            }
            (HomeStep::LookAgain, Some(object))
                if state.home.objects[object] == ModelObjectState::Leaving =>
            {
                let stays = self.is_elsewhere(state, object)
                    && !self.is(ReplicaMutant::EvictionWithoutSecondLook);
                state.home.objects[object] =
                    if stays { ModelObjectState::Sealed } else { ModelObjectState::Removed };
                state.home.victim = None;
            }
            _ => return None,
        }
        Some(())
    }

    /// An object that nothing holds leaves memory for a file, and comes back at another place. It
    /// has its name and its replicas meanwhile.
    fn spill(&self, state: &mut ReplicaState, object: usize) -> Option<()> {
        (state.home.objects[object] == ModelObjectState::Sealed).then_some(())?;
        let is_held = |id: usize| state.home.holds.iter().any(|of| of[id] > 0);
        (!state.ids_of(object).any(is_held)).then_some(())?;
        spend(&mut state.left.spills)?;
        for id in state.ids_of(object) {
            let fetching = state.readers.iter_mut().filter_map(|it| it.fetching[id].as_mut());
            fetching.filter(|it| it.sender == BytesSender::Home).for_each(|it| {
                it.sender = BytesSender::Overwritten;
            });
        }
        Some(())
    }

    fn notices(&self, state: &mut ReplicaState, step: HomeStep) -> Option<()> {
        match step {
            HomeStep::Recall(id) => {
                (state.home.notes[id] != 0).then_some(())?;
                spend(&mut state.left.recalls)?;
                self.recall(state, id);
            }
            HomeStep::TimeOut(id, reader) => {
                let Last::Sent { number } = state.home.last[id][reader] else { return None };
                spend(&mut state.left.losses)?;
                state.home.last[id][reader] = Last::Failed { number };
            }
            HomeStep::NotifyAgain(id, reader) => {
                let is_due = matches!(state.home.last[id][reader], Last::Failed { .. });
                is_due.then(|| self.notify(state, id, reader))?;
            }
            HomeStep::Acknowledged(reader, index) => {
                let acks = &mut state.links[reader].acks;
                let (id, number) = (index < acks.len()).then(|| acks.remove(index))?;
                let is_last = match state.home.last[id][reader] {
                    Last::Sent { number: last } | Last::Failed { number: last } => last == number,
                    Last::None => false,
                };
                if is_last || self.is(ReplicaMutant::AnyAnswerCounts) {
                    state.home.last[id][reader] = Last::None;
                }
            }
            HomeStep::Crash => {
                spend(&mut state.left.home_crashes)?;
                self.crash(state);
            }
            HomeStep::Rejoin => {
                state.home.is_new_life.then_some(())?;
                state.home.is_new_life = false;
                (0..self.scope.readers).for_each(|reader| self.notify(state, EVERYTHING, reader));
            }
            HomeStep::Exclude(reader) => {
                let it = &state.readers[reader];
                let is_early = self.is(ReplicaMutant::ExcludedWithLease) && state.left.pauses > 0;
                (it.is_member && (!it.has_lease || is_early)).then_some(())?;
                self.exclude(state, reader);
            }
            _ => return None,
        }
        Some(())
    }

    /// The daemon is killed and starts again over its memory.
    fn crash(&self, state: &mut ReplicaState) {
        let fresh = ReplicaState::new(&self.scope).home;
        let objects = state.home.objects.map(|object| match object {
            ModelObjectState::Leaving => ModelObjectState::Sealed,
            other => other,
        });
        let (is_taken_over, numbers) = (state.home.is_taken_over, state.home.numbers);
        state.home =
            super::state::ModelHome { objects, is_taken_over, numbers, is_new_life: true, ..fresh };
        for link in &mut state.links {
            // Answers that have arrived, and notices, may still be in the queues of the readers.
            (link.open, link.releases, link.complete) = (false, [0; IDS], 0);
            link.acks.clear();
        }
    }

    /// `member_has_ended`, after `Server::cut` and `RegionSource::forget`.
    pub fn exclude(&self, state: &mut ReplicaState, reader: usize) {
        state.readers[reader].is_member = false;
        let home = &mut state.home;
        home.last.iter_mut().for_each(|last| last[reader] = Last::None);
        home.notes.iter_mut().for_each(|notes| *notes &= !bit(reader));
        home.complete.iter_mut().for_each(|complete| *complete &= !bit(reader));
        home.holds[reader] = [0; IDS];
        home.threads[reader] = ServerThread::Idle;
        let link = &mut state.links[reader];
        (link.open, link.releases, link.complete) = (false, [0; IDS], 0);
    }

    /// Threads of the data server.
    fn serve(&self, state: &mut ReplicaState, step: HomeStep) -> Option<()> {
        match step {
            HomeStep::Lookup(reader) => {
                let link = &state.links[reader];
                let is_next = link.open && link.answer.is_none();
                let is_free = state.home.threads[reader] == ServerThread::Idle;
                (is_next && is_free && link.releases == [0; IDS]).then_some(())?;
                let target = state.readers[reader].opening.map_or(GetTarget::Name, |it| it.target);
                let object = (0..OBJECTS).find(|it| target.is(*it) && state.is_there(*it));
                let link = &mut state.links[reader];
                link.open = false;
                match object {
                    None => link.answer = Some(OpenAnswer::NotFound),
                    Some(object) if state.home.objects[object] == ModelObjectState::Leaving => {
                        link.answer = Some(OpenAnswer::Busy);
                    }
                    Some(object) => {
                        state.home.threads[reader] = ServerThread::Found(state.id_now(object));
                    }
                }
            }
            HomeStep::Open(reader) => {
                let (next, answer) = match state.home.threads[reader] {
                    ServerThread::Idle => return None,
                    ServerThread::Found(id) => self.first_half(state, reader, id),
                    ServerThread::Half(id) => {
                        (ServerThread::Idle, Some(self.second_half(state, reader, id)))
                    }
                };
                state.home.threads[reader] = next;
                state.links[reader].answer = answer;
            }
            HomeStep::Release(reader, id) => {
                (state.links[reader].complete & bit(id) == 0).then_some(())?;
                spend(&mut state.links[reader].releases[id])?;
                let holds = &mut state.home.holds[reader][id];
                *holds = holds.saturating_sub(1);
            }
            HomeStep::NoteComplete(reader, id) => {
                (state.links[reader].complete & bit(id) != 0).then_some(())?;
                state.links[reader].complete &= !bit(id);
                let is_noted = state.home.notes[id] & bit(reader) != 0;
                let is_held = state.home.holds[reader][id] > 0;
                if is_held && (is_noted || self.is(ReplicaMutant::CompleteWithoutNote)) {
                    state.home.complete[id] |= bit(reader);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// `RegionSource::note`, then the hold.
    fn first_half(
        &self,
        state: &mut ReplicaState,
        reader: usize,
        id: usize,
    ) -> (ServerThread, Option<OpenAnswer>) {
        let is_done = match self.is(ReplicaMutant::HoldBeforeNote) {
            true => self.hold(state, reader, id),
            false => self.note(state, reader, id),
        };
        if is_done {
            (ServerThread::Half(id), None)
        } else {
            (ServerThread::Idle, Some(OpenAnswer::Busy))
        }
    }

    fn second_half(&self, state: &mut ReplicaState, reader: usize, id: usize) -> OpenAnswer {
        if self.is(ReplicaMutant::HoldBeforeNote) {
            let is_noted = self.note(state, reader, id);
            return if is_noted { OpenAnswer::Found(id) } else { OpenAnswer::Busy };
        }
        if self.hold(state, reader, id) {
            return OpenAnswer::Found(id);
        }
        if !state.is_there(object_of(id)) && !self.is(ReplicaMutant::NoteOfRemovedObject) {
            state.home.notes[id] &= !bit(reader);
        }
        OpenAnswer::Busy
    }

    fn note(&self, state: &mut ReplicaState, reader: usize, id: usize) -> bool {
        let is_open = state.home.closed & bit(id) == 0;
        if is_open {
            state.home.notes[id] |= bit(reader);
        }
        is_open
    }

    fn hold(&self, state: &mut ReplicaState, reader: usize, id: usize) -> bool {
        let object = object_of(id);
        let is_it =
            state.home.objects[object] == ModelObjectState::Sealed && state.id_now(object) == id;
        if is_it && !self.is(ReplicaMutant::OpenWithoutHold) {
            state.home.holds[reader][id] += 1;
        }
        is_it
    }
}
