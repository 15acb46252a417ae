//! A process with several clients that make random calls and record their outcomes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::Duration;

use farrow::error::NodeUnreachable;
use farrow::{
    Client, ConnectOptions, Error, Metadata, ObjectBytes, ObjectId, ObjectKey, ObjectOptions,
    Value, Writer,
};
use farrow_memory::sync::{AtomicBool, Ordering};

use super::common::{SeededDice, this_test_again, wait_for};
use super::content::{content, version_of};
use super::record::{HistoryCall, HistoryOutcome, ObjectDraft, ReadObject, Recorder, now_ns};

/// Set in the environment of such a process: its [`Job`].
const JOB: &str = "FARROW_TEST_HISTORY";
/// Time that a client gives each message: less than the longest faults last.
const CALL: Duration = Duration::from_secs(1);
/// How long a client waits for a name or for flags.
const WAIT: Duration = Duration::from_millis(4);
const NOW: Duration = Duration::ZERO;
/// Pause after a call that was refused because a node is lost.
const REFUSED: Duration = Duration::from_millis(20);
/// Threads of one process, which share a client.
const THREADS: u64 = 2;
/// Objects that one thread knows by id, and views that it keeps to look at them again.
const KNOWN_MAX: usize = 12;
/// Small objects of one page, of several, and some that share huge pages.
const LENGTHS: [usize; 8] = [0, 1, 300, 700, 5_000, 9_000, 70_000, 200_000];
/// Kinds of names: all clients use this number at a time, for this number of milliseconds.
const KINDS: [(u64, u64); 3] = [(10, 500), (6, 3_000), (4, 10_000)];
/// Flags are few: there is one owner of each.
const FLAGS: u64 = 3;
const FLAGS_MS: u64 = 3_000;

/// The driver's end.
pub struct ClientProcess {
    child: Child,
    input: Option<ChildStdin>,
}

impl ClientProcess {
    /// This program again, at its test `worker`.
    pub fn start(socket: &Path, folder: &Path, number: u64, (seed, from_ns): (u64, i64)) -> Self {
        let job = [socket.to_str().unwrap(), folder.to_str().unwrap()].join("\n");
        let mut child = this_test_again("worker")
            .env(JOB, format!("{job}\n{number}\n{seed}\n{from_ns}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        Self { child, input }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill9(mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "clients ended by themselves: {ended:?}");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn end(mut self) {
        self.input = None;
        let ended = wait_for("clients that end", || self.child.try_wait().unwrap());
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What runs in the child; nothing where this process is none.
pub fn work() {
    let Ok(job) = std::env::var(JOB) else { return };
    let job: Vec<&str> = job.lines().collect();
    let [socket, folder, numbers @ ..] = &job[..] else { panic!("{job:?}") };
    let numbers: Vec<i64> = numbers.iter().map(|one| one.parse().unwrap()).collect();
    let [number, seed, from_ns] = numbers[..] else { panic!("three numbers") };
    let (number, seed) = (number as u64, seed as u64);
    let is_over = Arc::new(AtomicBool::new(false));
    let reported = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        reported.store(true, Ordering::Relaxed);
    });
    // Its daemon may be down just now.
    let options = ConnectOptions { timeout: CALL, ..ConnectOptions::at(PathBuf::from(socket)) };
    let client = wait_for("the daemon", || Client::connect(&options).ok()).expect("a daemon");
    let members = wait_for("the nodes", || client.members().ok()).expect("nodes");
    let own = client.node().unwrap().expect("a cluster");
    let nodes: Vec<String> = members.nodes.iter().map(|node| node.name.clone()).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client_number = number * THREADS + thread;
            let mut work = ClientWork {
                client: client.clone(),
                nodes: nodes.clone(),
                own: own.clone(),
                recorder: Recorder::create(Path::new(folder), client_number),
                dice: SeededDice(seed.wrapping_mul(client_number * 2 + 3) | 1),
                from_ns,
                next_version: client_number << 32,
                known: Vec::new(),
                nameless: VecDeque::new(),
                swept: [0; KINDS.len()],
                views: Vec::new(),
            };
            let is_over = Arc::clone(&is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    work.step();
                    work.sweep(client_number);
                }
            });
        }
    });
}

struct ClientWork {
    client: Client,
    nodes: Vec<String>,
    own: String,
    recorder: Recorder,
    dice: SeededDice,
    /// When the run began.
    from_ns: i64,
    next_version: u64,
    known: Vec<(ObjectId, u64)>,
    /// Those that it made and has to delete, for nobody else finds them.
    nameless: VecDeque<(ObjectId, u64)>,
    /// Of each kind of names, the turn up to which nothing is left.
    swept: [u64; KINDS.len()],
    views: Vec<ObjectBytes>,
}

/// An error of a call that changes something, or of one that does not.
fn outcome_of(error: &Error) -> HistoryOutcome {
    let text = error.to_string();
    match error {
        Error::AlreadyExists { name } => HistoryOutcome::Taken { name: name.clone() },
        Error::OutOfMemory(_) | Error::TooMany { .. } | Error::CutOff { .. } => {
            HistoryOutcome::Refused(text)
        }
        // No name is granted or looked for while a lost node may have it.
        Error::NodeLost { reason, .. } if reason.contains("have is not known") => {
            // A history of refusals says nothing.
            std::thread::sleep(REFUSED);
            HistoryOutcome::Refused(text)
        }
        // Calls to a node that the cluster has excluded fail at once, and a history in which most
        // outcomes are unknown cannot be judged.
        Error::Disconnected { .. } => {
            std::thread::sleep(REFUSED);
            HistoryOutcome::Unknown(text)
        }
        Error::NodeLost { .. } | Error::Timeout { .. } => HistoryOutcome::Unknown(text),
        // Where objects are brought: a node that did not answer may have it, or may have done it.
        Error::NodeUnreachable(NodeUnreachable { reason, .. })
            if reason.contains("did not say") =>
        {
            HistoryOutcome::Unknown(text)
        }
        // Its place, when it comes back to a daemon that has not noticed yet that it went.
        Error::PermissionDenied(_) => HistoryOutcome::Unknown(text),
        _ => HistoryOutcome::Wrong(format!("{error:?}")),
    }
}

/// The memory of a node: mapped here, or of a node to which objects are sent.
enum PutTarget {
    Mapped(Client),
    ByNet,
}

impl PutTarget {
    /// An error of a put there. A node that is not reached may have received what was sent.
    fn outcome_of(&self, error: &Error) -> HistoryOutcome {
        match (self, error) {
            (Self::ByNet, Error::NodeUnreachable(_)) => HistoryOutcome::Unknown(error.to_string()),
            _ => outcome_of(error),
        }
    }
}

impl ClientWork {
    fn step(&mut self) {
        match self.dice.roll(100) {
            0..14 => self.put(false),
            14..18 => self.replace(),
            18..24 => self.put_nameless(),
            24..27 => self.put_many(),
            27..30 => self.put(true),
            30..46 => self.get(1),
            46..49 => self.get(3),
            49..56 => self.get_by_id(),
            56..66 => self.contains(),
            66..78 => self.delete(),
            78..83 => self.delete_by_id(),
            83..86 => self.wait(),
            86..90 => self.list(),
            90..95 => self.set_flags(),
            95..98 => self.wait_flags(),
            _ => self.look_again(),
        }
    }

    /// A name that all clients use at this time, of any kind; sometimes one of the time before,
    /// so that what is left of it is deleted and looked for.
    fn name(&mut self, is_to_delete: bool) -> String {
        let kind = [0, 0, 1, 2][self.dice.roll(4) as usize];
        let (count, _) = KINDS[kind];
        let is_earlier = self.dice.roll(10) < if is_to_delete { 5 } else { 1 };
        let prefix = self.prefix(kind, is_earlier);
        format!("{prefix}{}", self.dice.roll(count))
    }

    /// Names of a kind that all clients use at this time have this number.
    fn turn(&self, kind: usize) -> u64 {
        let now_ms = (now_ns() - self.from_ns) as u64 / 1_000_000;
        1 + now_ms / KINDS[kind].1
    }

    fn prefix(&self, kind: usize, is_earlier: bool) -> String {
        format!("{kind}-{}-", self.turn(kind) - u64::from(is_earlier))
    }

    fn flags(&mut self) -> String {
        let now_ms = (now_ns() - self.from_ns) as u64 / 1_000_000;
        format!("f-{}-{}", now_ms / FLAGS_MS, self.dice.roll(FLAGS))
    }

    fn draft(&mut self, name: Option<String>) -> (ObjectDraft, Vec<u8>) {
        self.next_version += 1;
        let draft = ObjectDraft { name, version: self.next_version };
        let more = LENGTHS[self.dice.roll(LENGTHS.len() as u64) as usize];
        let bytes = content(&draft, more);
        (draft, bytes)
    }

    /// The memory of a node, of its own one more often.
    fn somewhere(&mut self) -> Option<(PutTarget, String)> {
        let at = self.dice.roll(2 * self.nodes.len() as u64) as usize;
        let node = self.nodes.get(at).unwrap_or(&self.own).clone();
        match self.client.at(&node) {
            Ok(client) => Some((PutTarget::Mapped(client), node)),
            Err(Error::NodeUnreachable(_)) => Some((PutTarget::ByNet, node)),
            Err(_) => None,
        }
    }

    fn know(&mut self, id: ObjectId, version: u64) {
        if self.known.len() == KNOWN_MAX {
            let at = self.dice.roll(KNOWN_MAX as u64) as usize;
            self.known.swap_remove(at);
        }
        self.known.push((id, version));
    }

    fn pick_known(&mut self) -> Option<(ObjectId, u64)> {
        let count = self.known.len() as u64;
        (count > 0).then(|| self.known[self.dice.roll(count) as usize])
    }

    fn put(&mut self, is_created: bool) {
        let name = self.name(false);
        let (draft, bytes) = self.draft(Some(name));
        self.put_one(draft, &bytes, is_created);
    }

    /// In the memory of its own node, where alone objects are replaced.
    fn replace(&mut self) {
        let name = self.name(false);
        let (draft, bytes) = self.draft(Some(name));
        let (client, node, version) = (self.client.clone(), self.own.clone(), draft.version);
        let name = draft.name.clone();
        let mut made = None;
        self.recorder.call(HistoryCall::Replace { draft, node }, || {
            let options = ObjectOptions { replace: true, ..ObjectOptions::named(name.as_deref()) };
            match client.put_with(&Value::Bytes(&bytes), &options) {
                Ok(id) => {
                    made = Some(id);
                    HistoryOutcome::Put { ids: vec![id.to_string()] }
                }
                Err(error) => outcome_of(&error),
            }
        });
        if let Some(id) = made {
            self.know(id, version);
        }
    }

    fn put_nameless(&mut self) {
        let (draft, bytes) = self.draft(None);
        let version = draft.version;
        if let Some(id) = self.put_one(draft, &bytes, false) {
            self.nameless.push_back((id, version));
        }
        if self.nameless.len() > KNOWN_MAX
            && let Some((id, version)) = self.nameless.pop_front()
        {
            self.delete_now(HistoryCall::DeleteById { version }, id.into());
        }
    }

    /// Deletes what nobody uses any more, so that no run is full of it. Each client does a part.
    fn sweep(&mut self, client_number: u64) {
        for (kind, (count, _)) in KINDS.into_iter().enumerate() {
            let turn = self.turn(kind).saturating_sub(2);
            if turn <= self.swept[kind] {
                continue;
            }
            self.swept[kind] = turn;
            for number in (0..count).filter(|one| (one + client_number).is_multiple_of(3)) {
                let name = format!("{kind}-{turn}-{number}");
                let target = name.as_str().into();
                self.delete_now(HistoryCall::Delete { name }, target);
            }
        }
    }

    fn put_one(&mut self, draft: ObjectDraft, bytes: &[u8], is_created: bool) -> Option<ObjectId> {
        let (place, node) = self.somewhere()?;
        let version = draft.version;
        let name = draft.name.clone();
        let mut made = None;
        let (own, at) = (self.client.clone(), node.clone());
        self.recorder.call(HistoryCall::Put { drafts: vec![draft], node }, || {
            let options = ObjectOptions::named(name.as_deref());
            let put = match (&place, is_created) {
                (PutTarget::Mapped(client), true) => {
                    written(client.create(bytes.len() as u64, name.as_deref()), bytes)
                }
                (PutTarget::Mapped(client), false) => {
                    client.put_with(&Value::Bytes(bytes), &options)
                }
                (PutTarget::ByNet, true) => {
                    written(own.create_on(&at, bytes.len() as u64, &options), bytes)
                }
                (PutTarget::ByNet, false) => own.put_on(&at, &Value::Bytes(bytes), &options),
            };
            match put {
                Ok(id) => {
                    made = Some(id);
                    HistoryOutcome::Put { ids: vec![id.to_string()] }
                }
                // Sealed, and deleted before its creator held it.
                Err(error @ Error::NotFound { .. }) if is_created => {
                    HistoryOutcome::Unknown(error.to_string())
                }
                Err(error) => place.outcome_of(&error),
            }
        });
        if let Some(id) = made {
            self.know(id, version);
        }
        made
    }

    fn put_many(&mut self) {
        let mut all: BTreeMap<String, (ObjectDraft, Vec<u8>)> = BTreeMap::new();
        for _ in 0..2 {
            let name = self.name(false);
            all.insert(name.clone(), self.draft(Some(name)));
        }
        let Some((place, node)) = self.somewhere() else { return };
        let drafts: Vec<ObjectDraft> = all.values().map(|(draft, _)| draft.clone()).collect();
        let values: Vec<(Value<'_>, ObjectOptions<'_>)> = all
            .iter()
            .map(|(name, (_, bytes))| (Value::Bytes(bytes), ObjectOptions::named(Some(name))))
            .collect();
        let (own, at) = (self.client.clone(), node.clone());
        self.recorder.call(HistoryCall::Put { drafts, node }, || {
            let put = match &place {
                PutTarget::Mapped(client) => client.put_many(&values),
                PutTarget::ByNet => own.put_many_on(&at, &values),
            };
            match put {
                Ok(ids) => {
                    HistoryOutcome::Put { ids: ids.iter().map(ToString::to_string).collect() }
                }
                Err(error) => place.outcome_of(&error),
            }
        });
    }

    fn get(&mut self, count: u64) {
        let mut names: Vec<String> = (0..count).map(|_| self.name(false)).collect();
        names.sort();
        names.dedup();
        let client = self.client.clone();
        let mut views = Vec::new();
        self.recorder.call(HistoryCall::Get { names: names.clone() }, || {
            let targets: Vec<ObjectKey> = names.iter().map(|name| name.as_str().into()).collect();
            let found = match &targets[..] {
                [one] => client.get(one, NOW).map(|object| vec![object]),
                _ => client.get_many(&targets, NOW),
            };
            let found = found.and_then(|objects| {
                objects.into_iter().map(|object| object.into_view()).collect::<Result<Vec<_>, _>>()
            });
            match found {
                Ok(found) => {
                    views = found;
                    seen(&views, &names)
                }
                Err(Error::NotFound { what }) => {
                    HistoryOutcome::NotFound { name: Some(what.trim_matches('"').to_owned()) }
                }
                Err(error) => outcome_of(&error),
            }
        });
        for view in views {
            if let Ok(version) = version_of(&view, None) {
                self.know(view.id(), version);
            }
            self.views.push(view);
        }
    }

    fn get_by_id(&mut self) {
        let Some((id, version)) = self.pick_known() else { return };
        let client = self.client.clone();
        let mut view = None;
        self.recorder.call(HistoryCall::GetById { version }, || {
            match client.get(&id.into(), NOW).and_then(|object| object.into_view()) {
                Ok(found) => match version_of(&found, None) {
                    Ok(same) if same == version => {
                        view = Some(found);
                        HistoryOutcome::Got {
                            objects: vec![ReadObject { id: id.to_string(), version }],
                        }
                    }
                    Ok(other) => {
                        HistoryOutcome::Wrong(format!("{id} is {other:#x}, not {version:#x}"))
                    }
                    Err(wrong) => HistoryOutcome::Wrong(wrong),
                },
                Err(Error::NotFound { .. }) => HistoryOutcome::NotFound { name: None },
                Err(error) => outcome_of(&error),
            }
        });
        self.views.extend(view);
    }

    fn contains(&mut self) {
        let name = self.name(false);
        let client = self.client.clone();
        self.recorder.call(HistoryCall::Contains { name: name.clone() }, || {
            match client.contains(&name.as_str().into()) {
                Ok(is_there) => HistoryOutcome::Is(is_there),
                Err(error) => outcome_of(&error),
            }
        });
    }

    fn delete(&mut self) {
        let name = self.name(true);
        let target = name.as_str().into();
        self.delete_now(HistoryCall::Delete { name: name.clone() }, target);
    }

    fn delete_by_id(&mut self) {
        let Some((id, version)) = self.pick_known() else { return };
        self.delete_now(HistoryCall::DeleteById { version }, id.into());
    }

    fn delete_now(&mut self, call: HistoryCall, target: ObjectKey) {
        let client = self.client.clone();
        self.recorder.call(call, || {
            // A delete that does not know where the object is says no other error than one that
            // was sent and not answered; what is known of neither would be much.
            if let Err(error) = client.contains(&target) {
                return HistoryOutcome::Refused(error.to_string());
            }
            match client.delete(&[target]) {
                Ok(()) => HistoryOutcome::Deleted,
                Err(Error::NotFound { .. }) => HistoryOutcome::NotFound { name: None },
                Err(error) => outcome_of(&error),
            }
        });
    }

    fn wait(&mut self) {
        let name = self.name(false);
        let client = self.client.clone();
        self.recorder.call(HistoryCall::Wait { name: name.clone() }, || {
            match client.wait(&[name.as_str().into()], 1, WAIT) {
                Ok(ready) => HistoryOutcome::Is(ready == [true]),
                Err(error) => outcome_of(&error),
            }
        });
    }

    fn list(&mut self) {
        let kind = self.dice.roll(KINDS.len() as u64) as usize;
        let prefix = self.prefix(kind, false);
        let Some((place, node)) = self.somewhere() else { return };
        let (own, at) = (self.client.clone(), node.clone());
        let names = (0..KINDS[kind].0).map(|number| format!("{prefix}{number}")).collect();
        self.recorder.call(HistoryCall::List { names, node }, || {
            let listed = match &place {
                PutTarget::Mapped(client) => client.list(&prefix),
                PutTarget::ByNet => own.list_on(&at, &prefix, &Metadata::default()),
            };
            match listed {
                Ok(listed) => HistoryOutcome::Listed(
                    listed
                        .into_iter()
                        .filter_map(|one| Some((one.name?, one.id.to_string())))
                        .collect(),
                ),
                Err(error) => place.outcome_of(&error),
            }
        });
    }

    fn set_flags(&mut self) {
        let (name, set, clear) = (self.flags(), 1 << self.dice.roll(8), 1 << self.dice.roll(8));
        let client = self.client.clone();
        self.recorder.call(
            HistoryCall::SetFlags { name: name.clone(), set, clear },
            || match client.set_flags(&name, set, clear) {
                Ok(flags) => HistoryOutcome::Flags(flags),
                Err(error) => outcome_of(&error),
            },
        );
    }

    fn wait_flags(&mut self) {
        let (name, mask) = (self.flags(), (1 << self.dice.roll(8)) | (1 << self.dice.roll(8)));
        let client = self.client.clone();
        self.recorder.call(HistoryCall::WaitFlags { name: name.clone(), mask }, || {
            match client.wait_flags(&name, mask, WAIT) {
                Ok(flags) => HistoryOutcome::Flags(flags),
                Err(Error::Timeout { what, .. }) if what.starts_with("flags") => {
                    HistoryOutcome::NotSet
                }
                Err(error) => outcome_of(&error),
            }
        });
    }

    /// What is held is what it was, whatever became of the object.
    fn look_again(&mut self) {
        for view in self.views.drain(..) {
            if let Err(wrong) = version_of(&view, None) {
                let version = 0;
                self.recorder
                    .call(HistoryCall::GetById { version }, || HistoryOutcome::Wrong(wrong));
            }
        }
    }
}

fn written(writer: Result<Writer, Error>, bytes: &[u8]) -> Result<ObjectId, Error> {
    let writer = writer?;
    writer.memory().write_at(0, bytes)?;
    writer.seal()
}

fn seen(views: &[ObjectBytes], names: &[String]) -> HistoryOutcome {
    let one = |(view, name): (&ObjectBytes, &String)| {
        version_of(view, Some(name))
            .map(|version| ReadObject { id: view.id().to_string(), version })
    };
    match views.iter().zip(names).map(one).collect() {
        Ok(objects) => HistoryOutcome::Got { objects },
        Err(wrong) => HistoryOutcome::Wrong(wrong),
    }
}
