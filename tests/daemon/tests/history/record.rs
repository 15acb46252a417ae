//! The history of a run: the calls of each client and their outcomes, as lines of JSON.
//!
//! A call is a line when it begins and a line when it ends, each written by one system call, so a
//! client that is killed leaves a whole history. Times are those of the monotonic clock, which all
//! processes of a machine share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A line of a history.
#[derive(Debug, Serialize, Deserialize)]
pub struct HistoryLine {
    /// The client: a thread of a process.
    pub client: u64,
    /// The number of the call of that client.
    pub number: u64,
    pub time_ns: i64,
    pub event: HistoryEvent,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum HistoryEvent {
    Begin(HistoryCall),
    End(HistoryOutcome),
}

/// An object that is to be: its version is in its bytes and in those of no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectDraft {
    /// `None`: an object without a name.
    pub name: Option<String>,
    pub version: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryCall {
    /// All or none, in the memory of a node; one, but for `put_many`.
    Put {
        drafts: Vec<ObjectDraft>,
        node: String,
    },
    /// One, with a name that another object of the node may have.
    Replace {
        draft: ObjectDraft,
        node: String,
    },
    /// All, or an error; one, but for `get_many`.
    Get {
        names: Vec<String>,
    },
    GetById {
        version: u64,
    },
    Contains {
        name: String,
    },
    Delete {
        name: String,
    },
    DeleteById {
        version: u64,
    },
    Wait {
        name: String,
    },
    /// Of the names of one prefix, those whose objects are in the memory of a node.
    List {
        names: Vec<String>,
        node: String,
    },
    SetFlags {
        name: String,
        set: u64,
        clear: u64,
    },
    WaitFlags {
        name: String,
        mask: u64,
    },
}

impl HistoryCall {
    /// What is to be made, and in the memory of which node.
    pub fn drafts(&self) -> Option<(&[ObjectDraft], &String)> {
        match self {
            Self::Put { drafts, node } => Some((drafts, node)),
            Self::Replace { draft, node } => Some((std::slice::from_ref(draft), node)),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryOutcome {
    /// The ids, in the order of the drafts.
    Put {
        ids: Vec<String>,
    },
    Taken {
        name: String,
    },
    Got {
        objects: Vec<ReadObject>,
    },
    /// `name`: which of several; `None` where an id was asked for.
    NotFound {
        name: Option<String>,
    },
    Is(bool),
    Deleted,
    /// Ids by name.
    Listed(BTreeMap<String, String>),
    Flags(u64),
    /// The time of a wait for flags was over.
    NotSet,
    /// An error that says that nothing was done.
    Refused(String),
    /// An error that leaves it open whether it was done.
    Unknown(String),
    /// An outcome that no call may have.
    Wrong(String),
}

/// An object that was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadObject {
    pub id: String,
    pub version: u64,
}

/// The file of one client.
pub struct Recorder {
    file: File,
    client: u64,
    number: u64,
}

impl Recorder {
    pub fn create(folder: &Path, client: u64) -> Self {
        let path = folder.join(format!("{client}.jsonl"));
        let file = OpenOptions::new().append(true).create_new(true).open(path).unwrap();
        Self { file, client, number: 0 }
    }

    /// Makes a call between its two lines.
    pub fn call(
        &mut self,
        call: HistoryCall,
        make: impl FnOnce() -> HistoryOutcome,
    ) -> HistoryOutcome {
        self.number += 1;
        self.write(HistoryEvent::Begin(call));
        let outcome = make();
        self.write(HistoryEvent::End(outcome.clone()));
        outcome
    }

    fn write(&mut self, event: HistoryEvent) {
        let (client, number) = (self.client, self.number);
        // Of a begin, a time before the call; of an end, one behind it: what is between took
        // longer.
        let line = HistoryLine { client, number, time_ns: now_ns(), event };
        let mut bytes = serde_json::to_vec(&line).unwrap();
        bytes.push(b'\n');
        self.file.write_all(&bytes).unwrap();
    }
}

pub fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// A call with its times. Without an end, its client was killed.
#[derive(Debug)]
pub struct Recorded {
    pub begin_ns: i64,
    pub call: HistoryCall,
    pub end: Option<(i64, HistoryOutcome)>,
}

/// What all clients recorded in a folder.
pub fn read(folder: &Path) -> Vec<Recorded> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let file = BufReader::new(File::open(file.unwrap().path()).unwrap());
        for line in file.lines() {
            // The last line of a client that was killed may be cut off.
            let Ok(line) = serde_json::from_str::<HistoryLine>(&line.unwrap()) else { continue };
            match line.event {
                HistoryEvent::Begin(call) => {
                    all.push(Recorded { begin_ns: line.time_ns, call, end: None });
                }
                HistoryEvent::End(outcome) => {
                    all.last_mut().expect("a begin").end = Some((line.time_ns, outcome));
                }
            }
        }
    }
    all
}

/// Keeps what all clients recorded in a folder.
pub fn copy(folder: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
