//! The steps of a reading node: its daemon (`protocol/replicas`), and a client that gets by loads.

use super::home::spend;
use super::model::{ReplicaMutant, ReplicaProtocol};
use super::state::{
    BytesSender, EVERYTHING, GARBAGE, Get, GetTarget, IDS, ModelFetching, ModelObjectState,
    ModelOpening, NONE, NameHolder, OBJECTS, OF_SECOND_HOME, OpenAnswer, OpeningStage, READERS,
    ReplicaState, Wrong, bit, found, object_of,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReaderStep {
    Get(GetTarget),
    Look,
    TakeAnswer,
    GiveUp,
    Answer,
    AskSecond,
    AskAgain,
    /// The connection broke, or the home's daemon ended.
    Broken,
    Fail,
    ChooseSender(usize, Option<usize>),
    Loaded(usize),
    NotLoaded(usize),
    Notice(usize),
    EvictReplica(usize),
    LoseOpen,
    LoseAnswer,
    LoseLease,
    RenewLease,
    Rejoin,
    Crash,
    Restart,
}

impl ReaderStep {
    pub fn is_internal(self) -> bool {
        !matches!(
            self,
            Self::Get(_)
                | Self::GiveUp
                | Self::EvictReplica(_)
                | Self::LoseOpen
                | Self::LoseAnswer
                | Self::LoseLease
                | Self::Crash
        )
    }

    pub fn all(out: &mut Vec<Self>) {
        out.extend([Self::Look, Self::TakeAnswer, Self::GiveUp, Self::Answer, Self::AskSecond]);
        out.extend([Self::AskAgain, Self::Broken, Self::Fail, Self::LoseOpen, Self::LoseAnswer]);
        out.extend([Self::LoseLease, Self::RenewLease, Self::Rejoin, Self::Crash, Self::Restart]);
        out.push(Self::Get(GetTarget::Name));
        out.extend((0..OBJECTS).map(|object| Self::Get(GetTarget::Object(object))));
        for id in 0..IDS {
            out.extend([Self::Loaded(id), Self::NotLoaded(id), Self::EvictReplica(id)]);
            out.push(Self::ChooseSender(id, None));
            out.extend((0..READERS).map(|from| Self::ChooseSender(id, Some(from))));
        }
        out.extend((0..4).map(Self::Notice));
    }
}

impl ReplicaProtocol {
    pub fn at_reader(
        &self,
        state: &mut ReplicaState,
        reader: usize,
        step: ReaderStep,
    ) -> Option<()> {
        match step {
            ReaderStep::Get(_)
            | ReaderStep::Look
            | ReaderStep::TakeAnswer
            | ReaderStep::GiveUp
            | ReaderStep::Fail => self.client(state, reader, step),
            ReaderStep::Answer
            | ReaderStep::AskSecond
            | ReaderStep::AskAgain
            | ReaderStep::Broken => {
                state.readers[reader].is_up.then_some(())?;
                self.search(state, reader, step)
            }
            ReaderStep::ChooseSender(..) | ReaderStep::Loaded(_) | ReaderStep::NotLoaded(_) => {
                state.readers[reader].is_up.then_some(())?;
                self.transfer(state, reader, step)
            }
            _ => self.events(state, reader, step),
        }
    }

    /// Ends a get. `None`: with an error.
    fn finish(&self, state: &mut ReplicaState, reader: usize, result: Option<u8>) {
        let client = &mut state.readers[reader].client;
        client.get = Get::Idle;
        let is_right = result.is_none_or(|result| result & client.allowed != 0);
        client.allowed = 0;
        client.target = GetTarget::Name;
        if !is_right {
            state.wrong.get_or_insert(Wrong::Result);
        }
    }

    /// A client has found a replica by loads.
    fn finish_with(&self, state: &mut ReplicaState, reader: usize, id: usize) {
        let bytes = state.readers[reader].replicas[id];
        if bytes != Some(object_of(id) as u8) {
            state.wrong.get_or_insert(Wrong::Bytes);
        }
        self.finish(state, reader, Some(found(object_of(id))));
    }

    fn client(&self, state: &mut ReplicaState, reader: usize, step: ReaderStep) -> Option<()> {
        let it = &state.readers[reader];
        let may_use = it.has_lease || self.is(ReplicaMutant::ReplicasWithoutLease);
        match (step, it.client.get) {
            (ReaderStep::Get(target), Get::Idle) => {
                (self.scope.is_large == (target != GetTarget::Name)).then_some(())?;
                let client = &mut state.readers[reader].client;
                spend(&mut client.left)?;
                (client.get, client.target) = (Get::Looks, target);
            }
            (ReaderStep::Look, Get::Looks) => {
                let target = it.client.target;
                let known = (0..IDS).rev();
                let known = known.filter(|id| target.is(object_of(*id)));
                match known.into_iter().find(|id| it.replicas[*id].is_some()) {
                    Some(id) if may_use => self.finish_with(state, reader, id),
                    _ if !it.is_up => self.finish(state, reader, None),
                    _ => {
                        state.readers[reader].client.get = Get::Waits;
                        self.begin_opening(state, reader)?;
                    }
                }
            }
            (ReaderStep::TakeAnswer, Get::Answered(id)) => {
                if it.replicas[id].is_some() && may_use {
                    self.finish_with(state, reader, id);
                } else {
                    state.readers[reader].client.get = Get::Looks;
                }
            }
            (ReaderStep::GiveUp, Get::Waits) if it.client.left > 0 => {
                self.finish(state, reader, None)
            }
            // The peer is not reached for so long that it may be lost.
            (ReaderStep::Fail, _) => {
                let is_again =
                    it.opening.is_some_and(|it| matches!(it.stage, OpeningStage::Again(_)));
                (is_again && !it.is_member).then_some(())?;
                state.readers[reader].opening = None;
                if it_waits(state, reader) {
                    self.finish(state, reader, None);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// `begin_opening`, or the search that is under way.
    fn begin_opening(&self, state: &mut ReplicaState, reader: usize) -> Option<()> {
        let hint = state.hint;
        let it = &mut state.readers[reader];
        let target = it.client.target;
        match &mut it.opening {
            Some(opening) if opening.target == target => {
                opening.is_late = !self.is(ReplicaMutant::OldAnswerForLaterClient);
            }
            Some(_) => return None,
            None => {
                let first = hint.filter(|_| self.scope.has_second_home).unwrap_or(NameHolder::Home);
                let second = match first {
                    NameHolder::Home => NameHolder::Second,
                    NameHolder::Second => NameHolder::Home,
                };
                let is_all = hint.is_some() && self.is(ReplicaMutant::HintIsComplete);
                let rest = (self.scope.has_second_home && !is_all).then_some(second);
                let (removed, is_outdated, is_late) = (0, false, false);
                // Asked at once where it may be.
                let stage = OpeningStage::Again(first);
                it.opening =
                    Some(ModelOpening { stage, rest, target, removed, is_outdated, is_late });
            }
        }
        Some(())
    }

    fn search(&self, state: &mut ReplicaState, reader: usize, step: ReaderStep) -> Option<()> {
        let mut opening = state.readers[reader].opening?;
        match (step, opening.stage) {
            (ReaderStep::AskAgain, OpeningStage::Again(node)) => {
                (node == NameHolder::Second || state.readers[reader].is_member).then_some(())?;
                let link = &mut state.links[reader];
                link.open = node == NameHolder::Home;
                link.answer = None;
                opening.stage = OpeningStage::Asked(node);
            }
            (ReaderStep::Broken, OpeningStage::Asked(NameHolder::Home)) => {
                let link = &state.links[reader];
                let is_idle = state.home.threads[reader] == super::state::ServerThread::Idle;
                (is_idle && !link.open && link.answer.is_none()).then_some(())?;
                opening.is_outdated = false;
                opening.stage = OpeningStage::Again(NameHolder::Home);
            }
            (ReaderStep::AskSecond, OpeningStage::Asked(NameHolder::Second)) => {
                if state.second == ModelObjectState::Sealed {
                    state.readers[reader].opening = None;
                    if it_waits(state, reader) {
                        self.finish(state, reader, Some(found(OF_SECOND_HOME)));
                    }
                    return Some(());
                }
                return self.not_found(state, reader, opening);
            }
            (ReaderStep::Answer, OpeningStage::Asked(NameHolder::Home)) => {
                let answer = state.links[reader].answer.take()?;
                return self.opened(state, reader, (opening, answer));
            }
            _ => return None,
        }
        state.readers[reader].opening = Some(opening);
        Some(())
    }

    /// `settle_opening` of a node that does not have the object.
    fn not_found(
        &self,
        state: &mut ReplicaState,
        reader: usize,
        mut opening: ModelOpening,
    ) -> Option<()> {
        if let Some(next) = opening.rest.take() {
            (opening.stage, opening.is_outdated) = (OpeningStage::Again(next), false);
            state.readers[reader].opening = Some(opening);
            return Some(());
        }
        state.readers[reader].opening = None;
        if !it_waits(state, reader) {
            return Some(());
        }
        match opening.is_late {
            true => self.begin_opening(state, reader),
            false => {
                self.finish(state, reader, Some(NONE));
                Some(())
            }
        }
    }

    /// `opened_elsewhere` and `begin_load`.
    fn opened(
        &self,
        state: &mut ReplicaState,
        reader: usize,
        (mut opening, answer): (ModelOpening, OpenAnswer),
    ) -> Option<()> {
        let is_outdated = std::mem::take(&mut opening.is_outdated);
        match answer {
            OpenAnswer::NotFound => return self.not_found(state, reader, opening),
            OpenAnswer::Busy => opening.stage = OpeningStage::Again(NameHolder::Home),
            OpenAnswer::Found(id) if is_outdated || opening.removed & bit(id) != 0 => {
                if !is_outdated {
                    opening.removed &= !bit(id);
                }
                state.links[reader].releases[id] += 1;
                opening.stage = OpeningStage::Again(NameHolder::Home);
            }
            OpenAnswer::Found(id) => {
                let it = &mut state.readers[reader];
                it.opening = None;
                let is_known = it.replicas[id].is_some();
                if is_known || it.fetching[id].is_some() {
                    state.links[reader].releases[id] += 1;
                    if is_known {
                        self.answer(state, reader, id);
                    }
                    return Some(());
                }
                let sender =
                    if self.scope.is_large { BytesSender::Unknown } else { BytesSender::Home };
                it.fetching[id] = Some(ModelFetching { sender, is_removed: false });
                if self.is(ReplicaMutant::ReleaseBeforeLoaded) {
                    state.links[reader].releases[id] += 1;
                }
                return Some(());
            }
        }
        state.readers[reader].opening = Some(opening);
        Some(())
    }

    /// Answers the client that waits for this object.
    fn answer(&self, state: &mut ReplicaState, reader: usize, id: usize) {
        let client = &mut state.readers[reader].client;
        if client.get == Get::Waits && client.target.is(object_of(id)) {
            client.get = Get::Answered(id);
        }
    }

    fn transfer(&self, state: &mut ReplicaState, reader: usize, step: ReaderStep) -> Option<()> {
        match step {
            ReaderStep::ChooseSender(id, from) => {
                let it = state.readers[reader].fetching[id]?;
                (it.sender == BytesSender::Unknown).then_some(())?;
                let sender = match from {
                    None => BytesSender::Home,
                    Some(from) => self.sender(state, reader, (id, from))?,
                };
                state.readers[reader].fetching[id] = Some(ModelFetching { sender, ..it });
            }
            ReaderStep::Loaded(id) => {
                let it = state.readers[reader].fetching[id]?;
                let object = object_of(id);
                let is_retained = state.is_there(object) || state.home.holds[reader][id] > 0;
                let bytes = match it.sender {
                    BytesSender::Unknown => return None,
                    BytesSender::Home if is_retained => object as u8,
                    BytesSender::Home | BytesSender::Overwritten => GARBAGE,
                    BytesSender::Reader { bytes, .. } => bytes,
                };
                self.loaded(state, reader, (id, it, bytes));
            }
            ReaderStep::NotLoaded(id) => {
                let it = state.readers[reader].fetching[id]?;
                match it.sender {
                    // The home ended the hold: its daemon, or this member, has ended.
                    BytesSender::Unknown | BytesSender::Home | BytesSender::Overwritten => {
                        (state.home.holds[reader][id] == 0).then_some(())?;
                        self.open_again(state, reader, id);
                    }
                    BytesSender::Reader { reader: from, .. } => {
                        (!state.readers[from].is_up).then_some(())?;
                        let it = ModelFetching { sender: BytesSender::Home, ..it };
                        state.readers[reader].fetching[id] = Some(it);
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// The home names a reader with a complete replica, which checks key and id.
    fn sender(
        &self,
        state: &ReplicaState,
        reader: usize,
        (id, from): (usize, usize),
    ) -> Option<BytesSender> {
        let is_held = state.home.holds[reader][id] > 0;
        let is_named = state.home.complete[id] & bit(from) != 0 && from != reader;
        let it = &state.readers[from];
        (is_held && is_named && it.is_up).then_some(())?;
        let its = match self.is(ReplicaMutant::KeyOfAnyReplica) {
            false => (it.served & bit(id) != 0).then_some(it.replicas[id]).flatten(),
            true => it.replicas.iter().rev().find_map(|bytes| *bytes),
        };
        its.map(|bytes| BytesSender::Reader { reader: from, bytes })
    }

    /// `loaded` and `seal_replica`.
    fn loaded(
        &self,
        state: &mut ReplicaState,
        reader: usize,
        (id, it, bytes): (usize, ModelFetching, u8),
    ) {
        let reads = &mut state.readers[reader];
        let is_removed = it.is_removed && !self.is(ReplicaMutant::NoticeDuringTransferIgnored);
        if is_removed || !reads.has_lease {
            return self.open_again(state, reader, id);
        }
        reads.fetching[id] = None;
        if !self.scope.is_large {
            // Of an earlier object of this name, or by its other id.
            reads.replicas = [None; IDS];
        }
        reads.replicas[id] = Some(bytes);
        if self.scope.is_large {
            reads.served |= bit(id);
            state.links[reader].complete |= bit(id);
        }
        if !self.is(ReplicaMutant::ReleaseBeforeLoaded) {
            state.links[reader].releases[id] += 1;
        }
        self.answer(state, reader, id);
    }

    fn open_again(&self, state: &mut ReplicaState, reader: usize, id: usize) {
        state.readers[reader].fetching[id] = None;
        if !self.is(ReplicaMutant::ReleaseBeforeLoaded) {
            state.links[reader].releases[id] += 1;
        }
        let client = &state.readers[reader].client;
        if it_waits(state, reader) && client.target.is(object_of(id)) {
            // Another search is for the same client.
            let _ = self.begin_opening(state, reader);
        }
    }

    fn events(&self, state: &mut ReplicaState, reader: usize, step: ReaderStep) -> Option<()> {
        match step {
            ReaderStep::Notice(index) => {
                state.readers[reader].is_up.then_some(())?;
                let notices = &mut state.links[reader].notices;
                let (id, number) = (index < notices.len()).then(|| notices.remove(index))?;
                self.on_invalidation(state, reader, id);
                state.links[reader].acks.push((id, number));
            }
            ReaderStep::EvictReplica(id) => {
                state.readers[reader].replicas[id].take()?;
                spend(&mut state.left.evictions)?;
            }
            ReaderStep::LoseOpen => {
                (state.links[reader].open).then_some(())?;
                spend(&mut state.left.losses)?;
                state.links[reader].open = false;
            }
            ReaderStep::LoseAnswer => {
                let answer = state.links[reader].answer.take()?;
                spend(&mut state.left.losses)?;
                // The next connection releases the number of the hold.
                if let OpenAnswer::Found(id) = answer
                    && !self.is(ReplicaMutant::LostHoldStays)
                {
                    state.links[reader].releases[id] += 1;
                }
            }
            ReaderStep::LoseLease => {
                let it = &mut state.readers[reader];
                it.has_lease.then_some(())?;
                it.has_lease = false;
                spend(&mut state.left.pauses)?;
            }
            ReaderStep::RenewLease => {
                let it = &mut state.readers[reader];
                (it.is_member && it.is_up && !it.has_lease).then_some(())?;
                it.has_lease = true;
            }
            ReaderStep::Rejoin => {
                (state.readers[reader].is_up && !state.readers[reader].is_member).then_some(())?;
                self.on_invalidation(state, reader, EVERYTHING);
                let it = &mut state.readers[reader];
                (it.has_lease, it.is_member) = (true, true);
            }
            ReaderStep::Crash => {
                state.readers[reader].is_up.then_some(())?;
                spend(&mut state.left.reader_crashes)?;
                let it = &mut state.readers[reader];
                (it.is_up, it.opening, it.fetching) = (false, None, [None; IDS]);
                it.served = 0;
                (state.links[reader].open, state.links[reader].answer) = (false, None);
                if it_waits(state, reader) {
                    self.finish(state, reader, None);
                }
            }
            ReaderStep::Restart => {
                (!state.readers[reader].is_up).then_some(())?;
                let it = &mut state.readers[reader];
                it.is_up = true;
                it.has_lease = false;
                if !self.is(ReplicaMutant::ReplicasOfEarlierDaemon) {
                    it.replicas = [None; IDS];
                }
                state.links[reader].answer = None;
                self.exclude(state, reader);
            }
            _ => return None,
        }
        Some(())
    }

    /// `on_invalidation`, and `drop_replicas_of` for all objects of the home.
    fn on_invalidation(&self, state: &mut ReplicaState, reader: usize, id: usize) {
        let ids = if id == EVERYTHING { 0..IDS } else { id..id + 1 };
        let it = &mut state.readers[reader];
        if let Some(opening) = &mut it.opening {
            if id != EVERYTHING && !self.is(ReplicaMutant::NoticeDuringOpenIgnored) {
                opening.removed |= bit(id);
            }
            let is_queried = opening.stage == OpeningStage::Asked(NameHolder::Home);
            if id == EVERYTHING && is_queried && !self.is(ReplicaMutant::AnswerOfEarlierLife) {
                opening.is_outdated = true;
            }
        }
        for id in ids {
            if let Some(fetching) = &mut it.fetching[id] {
                fetching.is_removed = true;
            }
            if !self.is(ReplicaMutant::ReplicasOfEarlierDaemon) || it.has_lease {
                it.replicas[id] = None;
            }
            it.served &= !bit(id);
        }
    }
}

fn it_waits(state: &ReplicaState, reader: usize) -> bool {
    state.readers[reader].client.get == Get::Waits
}
