//! A client in a separate process that runs commands of a test, so that it can be killed.
//!
//! One line for each command on standard input, one line for each answer on standard output:
//! `ok`, `ok ID`, or `err KIND` with the name of the error.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use farrow::{Client, Error, Metadata, ObjectBytes, ObjectKey, ObjectOptions, Value, Writer};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Address, Geometry, Length, Region, page_bytes};

use super::{PATIENCE, bytes_of, client_in, this_test_again};

/// Set in the environment of a scripted client; names the socket.
pub const SCRIPTED_CLIENT_SOCKET: &str = "FARROW_TEST_CLIENT_SOCKET";
/// Set too where something else is to lie at an address before the child connects.
const TAKEN: &str = "FARROW_TEST_CLIENT_TAKEN";
/// Set too where it is to be in another namespace than the default one.
const NAMESPACE: &str = "FARROW_TEST_CLIENT_NAMESPACE";

/// The driver's end of a scripted client.
pub struct ScriptedClient {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

/// What a scripted client answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptedAnswer {
    /// Done; the id where there is one.
    Done(String),
    /// Refused, by the name of the error.
    Refused(String),
}

impl ScriptedClient {
    /// Starts one: the test executable again, at the test `scripted_client` of the calling file.
    pub fn start(socket: &Path) -> Self {
        Self::start_as(socket, &[])
    }

    /// One whose process has something at this address already.
    pub fn start_beside(socket: &Path, address: u64) -> Self {
        Self::start_as(socket, &[(TAKEN, address.to_string())])
    }

    /// One in a namespace.
    pub fn start_in(socket: &Path, namespace: &str) -> Self {
        Self::start_as(socket, &[(NAMESPACE, namespace.to_owned())])
    }

    fn start_as(socket: &Path, more: &[(&str, String)]) -> Self {
        let mut child = this_test_again("scripted_client")
            .env(SCRIPTED_CLIENT_SOCKET, socket)
            .envs(more.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test harness has words of its own.
                if (line.starts_with("ok") || line.starts_with("err "))
                    && sender.send(line).is_err()
                {
                    return;
                }
            }
        });
        let mut scripted_client = Self { child, input, answers };
        assert_eq!(scripted_client.ask("hello"), ScriptedAnswer::Done(String::new()));
        scripted_client
    }

    /// One command, one answer.
    pub fn ask(&mut self, command: &str) -> ScriptedAnswer {
        self.begin(command);
        self.answer(command)
    }

    /// A command of which nobody knows yet what becomes of it.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// What became of it.
    pub fn answer(&mut self, command: &str) -> ScriptedAnswer {
        let answer = self
            .answers
            .recv_timeout(2 * PATIENCE)
            .unwrap_or_else(|error| panic!("no answer to {command:?}: {error}"));
        match answer.split_once(' ') {
            Some(("ok", rest)) => ScriptedAnswer::Done(rest.to_owned()),
            Some((_, kind)) => ScriptedAnswer::Refused(kind.to_owned()),
            None => ScriptedAnswer::Done(String::new()),
        }
    }

    pub fn kill9(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ScriptedClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Objects of a scripted client, by a number that the driver chose.
struct Hands {
    client: Client,
    holds: BTreeMap<u64, (ObjectBytes, u64)>,
    writers: BTreeMap<u64, (Writer, u64)>,
}

/// The main function of the child; returns in other processes.
pub fn play() {
    let Some(socket) = std::env::var_os(SCRIPTED_CLIENT_SOCKET) else {
        return;
    };
    let _taken = std::env::var(TAKEN).ok().map(|address| take(&address));
    let namespace = std::env::var(NAMESPACE).unwrap_or_default();
    let client = client_in(Path::new(&socket), &namespace);
    let mut hands = Hands { client, holds: BTreeMap::new(), writers: BTreeMap::new() };
    // A line of its own: the harness does not end its line before a test runs.
    println!();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match hands.obey(&words) {
            Ok(word) => println!("ok {word}"),
            Err(error) => {
                // Names that it reserved go back by a message without an answer, which has arrived
                // then.
                let _ = hands.client.stats();
                println!("err {}", kind(&error));
            }
        }
    }
}

/// A map that lies there as long as this process lives.
fn take(address: &str) -> Region {
    let one = Length(page_bytes());
    let fabric = ShmFabric::memfd("taken", Geometry { control: one, data: one }).unwrap();
    let wish = Address(number(address) as usize);
    let region = Region::map(Arc::new(fabric), Access::Client, Some(wish)).unwrap();
    assert!(region.is_at_wish(), "{address} was not free");
    region
}

/// The name of an error, without its numbers.
fn kind(error: &Error) -> String {
    let words = format!("{error:?}");
    words.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}

fn target(word: &str) -> ObjectKey {
    match word.parse() {
        Ok(id) => ObjectKey::Id(id),
        Err(_) => ObjectKey::Name(word.to_owned()),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

/// `-` stands for no name.
fn name(word: &str) -> Option<&str> {
    (word != "-").then_some(word)
}

impl Hands {
    fn obey(&mut self, words: &[&str]) -> Result<String, Error> {
        let client = &self.client;
        match *words {
            // A round trip: what was told before has arrived, and a new daemon is found.
            ["hello"] => client.stats().map(|_| String::new()),
            ["at", node] => {
                self.client = client.at(node)?;
                Ok(String::new())
            }
            // Where the memory lies that this client puts in, and whether all are to have it there.
            ["where"] => {
                let stats = client.stats()?;
                Ok(format!("{} {}", stats.base, stats.is_at_agreed_address))
            }
            // Where a held object lies.
            ["address", key] => {
                let (view, _) = &self.holds[&number(key)];
                Ok((view.as_ptr() as usize).to_string())
            }
            ["put", label, seed, length] => {
                let bytes = bytes_of(number(seed), number(length) as usize);
                let metadata = Metadata::new([("seed", seed)]).unwrap();
                let options = ObjectOptions {
                    name: name(label),
                    metadata: Some(&metadata),
                    ..ObjectOptions::default()
                };
                let id = if number(seed).is_multiple_of(3) {
                    client.put_with(&Value::Bytes(&bytes), &options)?
                } else {
                    client.put(&Value::Bytes(&bytes), name(label))?
                };
                Ok(id.to_string())
            }
            ["put_many", seed, length, ref names @ ..] => {
                let bytes: Vec<Vec<u8>> = (0..names.len() as u64)
                    .map(|number_in| bytes_of(number(seed) + number_in, number(length) as usize))
                    .collect();
                let values: Vec<_> = bytes
                    .iter()
                    .zip(names)
                    .map(|(bytes, label)| (Value::Bytes(bytes), ObjectOptions::named(name(label))))
                    .collect();
                let ids = client.put_many(&values)?;
                Ok(ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
            ["create", key, label, length] => {
                let writer = client.create(number(length), name(label))?;
                self.writers.insert(number(key), (writer, number(length)));
                Ok(String::new())
            }
            // All or none, under numbers that count on.
            ["create_many", key, length, ref labels @ ..] => {
                let objects: Vec<_> = labels
                    .iter()
                    .map(|label| (number(length), ObjectOptions::named(name(label))))
                    .collect();
                for (place, writer) in (0..).zip(client.create_many(&objects)?) {
                    self.writers.insert(number(key) + place, (writer, number(length)));
                }
                Ok(String::new())
            }
            ["seal", key, seed] => {
                let (writer, length) = self.writers.remove(&number(key)).unwrap();
                writer.memory().write_at(0, &bytes_of(number(seed), length as usize))?;
                let sealed = writer.seal().map(|id| id.to_string());
                client.stats()?;
                sealed
            }
            ["abort", key] => {
                self.writers.remove(&number(key));
                client.stats().map(|_| String::new())
            }
            ["hold", key, what, seed, length] => {
                let view = client.get(&target(what), Duration::ZERO)?.view()?;
                assert_eq!(view.len() as u64, number(length), "{what}");
                self.holds.insert(number(key), (view, number(seed)));
                self.check(number(key));
                Ok(String::new())
            }
            // ID SEED, and so on.
            ["get_many", ref words @ ..] => {
                let targets: Vec<ObjectKey> =
                    words.iter().step_by(2).map(|id| target(id)).collect();
                let objects = client.get_many(&targets, Duration::ZERO)?;
                for (object, seed) in objects.iter().zip(words.iter().skip(1).step_by(2)) {
                    let view = object.view()?;
                    assert_eq!(&view[..], &bytes_of(number(seed), view.len())[..], "{words:?}");
                }
                Ok(String::new())
            }
            // Says which are there.
            ["wait", count, timeout_ms, ref words @ ..] => {
                let targets: Vec<ObjectKey> = words.iter().map(|word| target(word)).collect();
                let timeout = Duration::from_millis(number(timeout_ms));
                let ready = client.wait(&targets, number(count) as usize, timeout)?;
                let digit = |ready: &bool| if *ready { '1' } else { '0' };
                Ok(ready.iter().map(digit).collect())
            }
            ["pin", what] => client.pin(&[target(what)]).map(|()| String::new()),
            ["unpin", what] => client.unpin(&[target(what)]).map(|()| String::new()),
            ["check", key] => {
                self.check(number(key));
                Ok(String::new())
            }
            ["drop", key] => {
                self.check(number(key));
                self.holds.remove(&number(key));
                Ok(String::new())
            }
            ["delete", ref targets @ ..] => {
                let targets: Vec<ObjectKey> = targets.iter().map(|word| target(word)).collect();
                client.delete(&targets).map(|()| String::new())
            }
            _ => panic!("unknown command {words:?}"),
        }
    }

    /// What is held has not changed by a byte.
    fn check(&self, key: u64) {
        let (view, seed) = &self.holds[&key];
        assert_eq!(&view[..], &bytes_of(*seed, view.len())[..], "hold {key} has changed");
    }
}
