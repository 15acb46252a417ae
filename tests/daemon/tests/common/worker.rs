//! A client in a separate process that works by itself until it is ended or killed, and reports its
//! work and any faults on standard output.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farrow::{Client, ConnectOptions, Error, ObjectBytes, ObjectId, ObjectKey, Value, Writer};
use farrow_memory::sync::{AtomicBool, AtomicU64, Ordering};

use super::{SeededDice, bytes_of, client_at, this_test_again};

/// Set in the environment of a child that works: number, seed and [`WorkerLimits`].
const WORKER: &str = "FARROW_TEST_WORKER";
const SOCKET: &str = "FARROW_TEST_WORKER_SOCKET";
/// Time that a worker gives each message of a call: less than the longest faults, so that a call
/// that does not end by itself is seen.
pub const CALL: Duration = Duration::from_secs(1);
/// What a call may take beyond its deadline. Nodes and clients of a run are ten processes that
/// share two cores, with other tests beside: who is ready may wait for so long. Time in which the
/// process itself did not run does not count.
pub const SLACK: Duration = Duration::from_millis(1000);
/// How often a process looks whether it was paused.
const STEP: Duration = Duration::from_millis(20);
/// Calls are told of in such portions.
const CALLS_NOTIFIED: u64 = 16;
/// All clients that race take the same name within this time.
const RACE_MS: u64 = 300;
/// Names, ids and views that one worker keeps.
const RETAINED_MAX: usize = 25;
const LENGTHS: [usize; 6] = [0, 1, 700, 9_000, 70_000, 400_000];

/// The name of an object says what it has to contain.
pub fn name_of(worker: u64, seed: u64, length: usize) -> String {
    format!("w-{seed}-{length}-{worker}")
}

/// The fault in the bytes of an object with this name, if any.
pub fn fault_in(name: &str, bytes: &[u8]) -> Option<String> {
    let words: Vec<&str> = name.split('-').collect();
    let right = match words[..] {
        ["w", seed, length, _] => bytes_of(seed.parse().unwrap(), length.parse().unwrap()),
        _ => raced_bytes(seed_of_race(bytes).unwrap_or_default()),
    };
    if bytes == right {
        return None;
    }
    let at = bytes.iter().zip(&right).position(|(one, other)| one != other);
    Some(format!("{name}: {} B of {}, differs at {at:?}", bytes.len(), right.len()))
}

/// Of a raced name: the seed that its bytes begin with.
pub fn seed_of_race(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|head| u64::from_le_bytes(*head))
}

fn raced_bytes(seed: u64) -> Vec<u8> {
    [&seed.to_le_bytes()[..], &bytes_of(seed, 300)].concat()
}

/// By what the calls of a worker are measured.
#[derive(Debug, Clone, Copy)]
pub struct WorkerLimits {
    /// The deadline of each message that a call sends.
    pub call: Duration,
    /// What it may take beyond that.
    pub slack: Duration,
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self { call: CALL, slack: SLACK }
    }
}

/// The driver's end.
pub struct WorkerProcess {
    child: Child,
    input: Option<ChildStdin>,
    said: Arc<Mutex<Vec<String>>>,
    reader: std::thread::JoinHandle<()>,
}

impl WorkerProcess {
    /// The test executable again, at the test `worker` of the calling file.
    pub fn start(socket: &Path, number: u64, seed: u64) -> Self {
        Self::start_with(socket, number, seed, WorkerLimits::default())
    }

    /// One whose calls are measured by other limits than those that they have.
    pub fn start_with(socket: &Path, number: u64, seed: u64, limits: WorkerLimits) -> Self {
        let limits = format!("{} {}", limits.call.as_millis(), limits.slack.as_millis());
        let mut child = this_test_again("worker")
            .env(SOCKET, socket)
            .env(WORKER, format!("{number} {seed} {limits}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, input, said, reader }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said since this was asked last.
    pub fn said(&self) -> Vec<String> {
        std::mem::take(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its last words.
    pub fn kill9(mut self) -> Vec<String> {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "a worker ended by itself: {ended:?} {:?}", self.said());
        self.child.kill().unwrap();
        self.last_words()
    }

    /// Tells it to end, and waits for that.
    pub fn end(mut self) -> Vec<String> {
        self.input = None;
        let until = Instant::now() + super::PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "a worker does not end: {:?}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.wait().unwrap();
        let words = self.last_words();
        assert!(status.success(), "{status}: {words:?}");
        words
    }

    fn last_words(mut self) -> Vec<String> {
        self.child.wait().unwrap();
        self.reader.join().unwrap();
        let mut words = std::mem::take(&mut *self.said.lock().unwrap());
        // The very last line may be cut off by a kill.
        if let Some(last) = words.pop()
            && last.ends_with(" .")
        {
            words.push(last);
        }
        words
    }
}

/// A whole line; its end shows that it is.
fn say(words: &str) {
    let _ = writeln!(std::io::stdout().lock(), "\n{words} .");
}

/// Sums up the time in which this process did not run.
fn watch_pauses() -> Arc<AtomicU64> {
    let paused_ms = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&paused_ms);
    std::thread::spawn(move || {
        loop {
            let begin = Instant::now();
            std::thread::sleep(STEP);
            let late = begin.elapsed().saturating_sub(2 * STEP);
            shared.fetch_add(late.as_millis() as u64, Ordering::Relaxed);
        }
    });
    paused_ms
}

/// Measures calls.
struct Clock {
    limits: WorkerLimits,
    paused_ms: Arc<AtomicU64>,
    calls: u64,
    /// Of the call that came nearest to its deadline, or was the latest: what it took beyond.
    latest_ms: i64,
}

impl Clock {
    /// A call that sends at most this number of messages one after the other, each with a deadline.
    fn time<T>(&mut self, what: &str, messages: u32, call: impl FnOnce() -> T) -> T {
        let (begin, paused) = (Instant::now(), self.paused_ms.load(Ordering::Relaxed));
        let answer = call();
        let took = begin.elapsed();
        let deadline = self.limits.call * messages;
        if took > deadline + self.limits.slack {
            // Who counts the pauses may wake up from one later than this thread.
            std::thread::sleep(4 * STEP);
        }
        let paused = self.paused_ms.load(Ordering::Relaxed) - paused;
        let took = took.saturating_sub(Duration::from_millis(paused));
        let (took_ms, deadline_ms) = (took.as_millis() as u64, deadline.as_millis() as u64);
        if took > deadline + self.limits.slack {
            say(&format!("late {what}: {took_ms} ms of {deadline_ms} ms"));
        }
        let beyond_ms = took_ms as i64 - deadline_ms as i64;
        if beyond_ms > self.latest_ms {
            self.latest_ms = beyond_ms;
            say(&format!("latest {beyond_ms} {what}: {took_ms} ms of {deadline_ms} ms"));
        }
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_NOTIFIED) {
            say(&format!("calls {CALLS_NOTIFIED}"));
        }
        answer
    }
}

struct WorkerState {
    client: Client,
    nodes: Vec<String>,
    /// Those at which it has a place.
    remote_sessions: BTreeSet<String>,
    number: u64,
    dice: SeededDice,
    next_seed: u64,
    names: Vec<String>,
    ids: Vec<(ObjectId, u64, usize)>,
    views: Vec<(ObjectBytes, String)>,
    writers: Vec<Writer>,
    last_race: u64,
    clock: Clock,
}

/// The main function of the child; returns in other processes.
pub fn work() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let numbers = std::env::var(WORKER).unwrap();
    let numbers: Vec<u64> = numbers.split(' ').map(|one| one.parse().unwrap()).collect();
    let [number, seed, call_ms, slack_ms] = numbers[..] else { panic!("four numbers") };
    let limits = WorkerLimits {
        call: Duration::from_millis(call_ms),
        slack: Duration::from_millis(slack_ms),
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let reported = Arc::clone(&is_over);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        reported.store(true, Ordering::Relaxed);
    });
    let options = ConnectOptions { timeout: CALL, ..ConnectOptions::at(Path::new(&socket)) };
    // Its daemon may be down just now.
    drop(client_at(Path::new(&socket)));
    let Some(client) = super::wait_for("the daemon", || Client::connect(&options).ok()) else {
        return say("odd no daemon");
    };
    let members = super::wait_for("the nodes", || client.members().ok());
    let nodes = members.unwrap().nodes;
    let own = nodes.iter().filter(|node| node.is_own).map(|node| node.name.clone()).collect();
    let nodes = nodes.into_iter().map(|node| node.name).collect();
    let mut work = WorkerState {
        client,
        nodes,
        remote_sessions: own,
        number,
        dice: SeededDice(seed | 1),
        next_seed: (number + 1) * 1_000_000,
        names: Vec::new(),
        ids: Vec::new(),
        views: Vec::new(),
        writers: Vec::new(),
        last_race: 0,
        clock: Clock { limits, paused_ms: watch_pauses(), calls: 0, latest_ms: i64::MIN },
    };
    let mut done = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        work.step();
        done += 1;
        std::thread::sleep(Duration::from_millis(work.dice.roll(12)));
    }
    work.views.drain(..).for_each(|(view, name)| look(&name, &view));
    work.report_lines();
    say(&format!("done {done}"));
}

fn look(name: &str, bytes: &[u8]) {
    if let Some(fault) = fault_in(name, bytes) {
        say(&format!("wrong {fault}"));
    }
}

impl WorkerState {
    fn step(&mut self) {
        let what = ["put", "create", "nameless", "get", "by id", "delete", "race", "look"]
            [[0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 5, 6, 6, 7][self.dice.roll(14) as usize]];
        let result = match what {
            "put" => self.put(),
            "create" => self.create(),
            "nameless" => self.put_nameless(),
            "get" => self.get(),
            "by id" => self.get_by_id(),
            "delete" => self.delete(),
            "race" => self.race(),
            _ => {
                self.views.iter().for_each(|(view, name)| look(name, view));
                Ok(())
            }
        };
        match result {
            Ok(())
            | Err(
                Error::NotFound { .. }
                | Error::AlreadyExists { .. }
                | Error::OutOfMemory(_)
                | Error::NodeLost { .. }
                // For the moment in which a node that came back is mapped.
                | Error::NodeUnreachable(_)
                | Error::CutOff { .. }
                | Error::Timeout { .. }
                | Error::Disconnected { .. },
            ) => {}
            Err(error) => say(&format!("odd {what}: {error:?}")),
        }
        if self.views.len() > RETAINED_MAX {
            self.views.drain(..RETAINED_MAX / 2).for_each(|(view, name)| look(&name, &view));
        }
        self.writers.truncate(2);
        self.ids.truncate(RETAINED_MAX);
    }

    /// What its calls published and refreshed in all memory that it has a place at.
    fn report_lines(&mut self) {
        let mut lines = [0; 2];
        for client in self.remote_sessions.iter().filter_map(|node| self.client.at(node).ok()) {
            let fabrics = client.stats().map(|stats| stats.fabrics).unwrap_or_default();
            for fabric in fabrics.values() {
                lines[0] += fabric.published_lines;
                lines[1] += fabric.refreshed_lines;
            }
        }
        say(&format!("lines {} {}", lines[0], lines[1]));
    }

    /// In the memory of any node.
    fn somewhere(&mut self) -> Result<Client, Error> {
        let at = self.dice.roll(self.nodes.len() as u64) as usize;
        let node = &self.nodes[at];
        let client = self.clock.time("at", 1, || self.client.at(node))?;
        self.remote_sessions.insert(node.clone());
        Ok(client)
    }

    /// Messages of looking for an object: one for each node without a place at it, and one whether
    /// what it has is there; and of the call itself.
    fn messages_of_search(&self) -> u32 {
        2 + 2 * (self.nodes.len() - self.remote_sessions.len()) as u32
    }

    fn content(&mut self) -> (u64, usize, Vec<u8>) {
        self.next_seed += 1;
        let length = LENGTHS[self.dice.roll(LENGTHS.len() as u64) as usize];
        (self.next_seed, length, bytes_of(self.next_seed, length))
    }

    fn sealed(&mut self, name: String) {
        say(&format!("sealed {name}"));
        self.names.push(name);
    }

    /// Asks for memory, for a page of entries if the object has no name, and for the seal.
    fn put_at(&mut self, what: &str, bytes: &[u8], name: Option<&str>) -> Result<ObjectId, Error> {
        let client = self.somewhere()?;
        let messages = if name.is_some() { 2 } else { 3 };
        self.clock.time(what, messages, || client.put(&Value::Bytes(bytes), name))
    }

    fn put(&mut self) -> Result<(), Error> {
        let (seed, length, bytes) = self.content();
        let name = name_of(self.number, seed, length);
        self.put_at("put", &bytes, Some(&name))?;
        self.sealed(name);
        Ok(())
    }

    fn create(&mut self) -> Result<(), Error> {
        let (seed, length, bytes) = self.content();
        let name = name_of(self.number, seed, length);
        let client = self.somewhere()?;
        // Memory and the name.
        let writer = self.clock.time("create", 2, || client.create(length as u64, Some(&name)))?;
        self.clock.time("write", 1, || writer.memory().write_at(0, &bytes))?;
        if self.dice.roll(3) == 0 {
            self.writers.push(writer);
            return Ok(());
        }
        // The seal, a page of holds, and the word that it is held.
        self.clock.time("seal", 3, || writer.seal())?;
        self.sealed(name);
        Ok(())
    }

    fn put_nameless(&mut self) -> Result<(), Error> {
        let (seed, length, bytes) = self.content();
        let id = self.put_at("put nameless", &bytes, None)?;
        self.ids.insert(0, (id, seed, length));
        Ok(())
    }

    fn view(&mut self, what: &str, target: &ObjectKey) -> Result<ObjectBytes, Error> {
        let messages = self.messages_of_search();
        let get = || self.client.get(target, Duration::ZERO)?.view();
        self.clock.time(what, messages, get)
    }

    fn delete_now(&mut self, what: &str, target: ObjectKey) -> Result<(), Error> {
        let messages = self.messages_of_search();
        self.clock.time(what, messages, || self.client.delete(&[target]))
    }

    /// An object of anybody, held for a while.
    fn get(&mut self) -> Result<(), Error> {
        let client = self.somewhere()?;
        let listed = self.clock.time("list", 1, || client.list(""))?;
        let named: Vec<String> = listed.into_iter().filter_map(|one| one.name).collect();
        if named.is_empty() {
            return Ok(());
        }
        let name = named[self.dice.roll(named.len() as u64) as usize].clone();
        let view = self.view("get", &name.as_str().into())?;
        look(&name, &view);
        self.views.push((view, name));
        Ok(())
    }

    fn get_by_id(&mut self) -> Result<(), Error> {
        if self.ids.is_empty() {
            return Ok(());
        }
        let at = self.dice.roll(self.ids.len() as u64) as usize;
        let (id, seed, length) = self.ids[at];
        let found = self.view("get by id", &id.into());
        if let Err(Error::NotFound { .. }) = &found {
            say(&format!("wrong {id} of seed {seed} is lost"));
        }
        let (view, name) = (found?, name_of(self.number, seed, length));
        look(&name, &view);
        self.views.push((view, name));
        if self.dice.roll(3) == 0 {
            self.ids.swap_remove(at);
            self.delete_now("delete by id", id.into())?;
        }
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Error> {
        if self.names.len() < RETAINED_MAX / 2 {
            return Ok(());
        }
        let at = self.dice.roll(self.names.len() as u64) as usize;
        let name = self.names.swap_remove(at);
        say(&format!("deleting {name}"));
        self.delete_now("delete", name.as_str().into())?;
        say(&format!("deleted {name}"));
        Ok(())
    }

    /// The same name as all others at this time.
    fn race(&mut self) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let race = now.as_millis() as u64 / RACE_MS;
        if race <= self.last_race {
            return Ok(());
        }
        self.last_race = race;
        self.next_seed += 1;
        let bytes = raced_bytes(self.next_seed);
        let name = format!("race-{race}");
        self.put_at("race", &bytes, Some(&name))?;
        say(&format!("won {name} {}", self.next_seed));
        Ok(())
    }
}
