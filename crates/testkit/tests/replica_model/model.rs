//! The protocol by which objects are read by network, in a small scope, with every order of its
//! steps.
//!
//! A home puts, deletes, replaces and evicts objects, one after the other under one name. Readers
//! open them, keep replicas, and get the name from these by loads. Messages may be lost and
//! overtake each other, both daemons may be killed, and a reader may be paused until its lease ends
//! and it is excluded. Each step names what it stands for in `crates/cluster/src/net` and
//! `crates/cluster/src/protocol/replicas`.

use stateright::{Model, Property};

use super::home;
use super::reader;
use super::state::{
    CheckScope, Delete, Get, IDS, Last, ModelObjectState, READERS, ReplicaState, bit, object_of,
};

/// A mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaMutant {
    HoldBeforeNote,
    OpensDuringDelete,
    OpenWithoutHold,
    ReleaseBeforeLoaded,
    DeleteBeforeAcknowledged,
    /// The answer to an earlier notice counts for the last one.
    AnyAnswerCounts,
    NoticeDuringOpenIgnored,
    NoticeDuringTransferIgnored,
    ReplicasWithoutLease,
    ExcludedWithLease,
    ReplicasOfEarlierDaemon,
    /// A home that started again deletes before its members have dropped what they had.
    NewLifeForgotten,
    AnswerOfEarlierLife,
    EvictionWithoutRecall,
    /// Members are looked for before the object leaves memory, and not again.
    EvictionWithoutSecondLook,
    /// Members are looked for by the id that the object has now.
    EvictionByLastId,
    EvictionBeforeRejoin,
    HintIsComplete,
    OldAnswerForLaterClient,
    KeyOfAnyReplica,
    CompleteWithoutNote,
    NoteOfRemovedObject,
    LostHoldStays,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaAction {
    Home(home::HomeStep),
    Reader(usize, reader::ReaderStep),
}

/// The protocol, or one with a mistake.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaProtocol {
    pub scope: CheckScope,
    pub mutant: Option<ReplicaMutant>,
}

impl ReplicaProtocol {
    pub fn is(&self, mutant: ReplicaMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether nothing happens any more without a user or a fault.
    fn is_quiet(&self, state: &ReplicaState) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let is_internal = |action: &ReplicaAction| match action {
            ReplicaAction::Home(step) => step.is_internal(),
            ReplicaAction::Reader(_, step) => step.is_internal(),
        };
        let mut internal = actions.into_iter().filter(is_internal);
        !internal.any(|action| self.next_state(state, action).is_some())
    }

    /// Whether every request has its answer, and notes, notices, holds and trees have ended with
    /// their objects.
    fn is_settled(state: &ReplicaState) -> bool {
        let home = &state.home;
        let is_over = |id: usize| {
            state.is_there(object_of(id)) || home.notes[id] == 0 && home.complete[id] == 0
        };
        let is_reader_settled = |reader: usize| {
            let it = &state.readers[reader];
            let is_idle = it.opening.is_none() && it.fetching == [None; IDS];
            it.client.get == Get::Idle && is_idle && home.holds[reader] == [0; IDS]
        };
        home.delete == Delete::None
            && home.closed == 0
            && home.last.iter().flatten().all(|last| *last == Last::None)
            && (0..IDS).all(is_over)
            && (0..READERS).all(is_reader_settled)
    }

    /// Whether what a client of a reader finds is the object of that name.
    fn is_one_object(state: &ReplicaState) -> bool {
        let readers = state.readers.iter().filter(|reader| reader.has_lease);
        let mut found =
            readers.flat_map(|reader| (0..IDS).filter(|id| reader.replicas[*id].is_some()));
        found.all(|id| state.is_there(object_of(id)))
    }
}

impl Model for ReplicaProtocol {
    type State = ReplicaState;
    type Action = ReplicaAction;

    fn init_states(&self) -> Vec<ReplicaState> {
        vec![ReplicaState::new(&self.scope)]
    }

    fn actions(&self, _: &ReplicaState, out: &mut Vec<ReplicaAction>) {
        let mut home = Vec::new();
        home::HomeStep::all(self.scope.readers, &mut home);
        out.extend(home.into_iter().map(ReplicaAction::Home));
        let mut steps = Vec::new();
        reader::ReaderStep::all(&mut steps);
        for number in 0..self.scope.readers {
            out.extend(steps.iter().map(|step| ReplicaAction::Reader(number, *step)));
        }
    }

    fn next_state(&self, last: &ReplicaState, action: ReplicaAction) -> Option<ReplicaState> {
        let mut state = last.clone();
        match action {
            ReplicaAction::Home(step) => self.at_home(&mut state, step)?,
            ReplicaAction::Reader(number, step) => self.at_reader(&mut state, number, step)?,
        }
        for number in 0..READERS {
            let target = state.readers[number].client.target;
            let value = state.value(target);
            let client = &mut state.readers[number].client;
            if client.get != Get::Idle {
                client.allowed |= value;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(super::GETS, |_, state: &ReplicaState| state.wrong.is_none()),
            Property::always(super::NAMES, |_, state: &ReplicaState| Self::is_one_object(state)),
            Property::always(super::ENDS, |model: &Self, state: &ReplicaState| {
                Self::is_settled(state) || !model.is_quiet(state)
            }),
            Property::sometimes("a noted object is deleted", |_, state: &ReplicaState| {
                let is_removed = state.home.objects.contains(&ModelObjectState::Removed);
                let is_notified = state.home.numbers.iter().any(|number| *number > 0);
                is_removed && is_notified
            }),
            Property::sometimes("a replica is found", |_, state: &ReplicaState| {
                let found = |reader: &super::state::ModelReader| {
                    let is_known = reader.replicas.iter().any(Option::is_some);
                    is_known && reader.client.allowed & !bit(0) != 0
                };
                state.readers.iter().any(found)
            }),
        ]
    }
}
