//! Reaching a node: connecting to its daemon, and starting a private one if there is none.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use farrow_wire::link::{Link, LinkError};
use farrow_wire::{ALREADY_SERVING_CODE, Hello, Welcome, WireError, paths};

use crate::connection::start_log::StartLog;
use crate::error::Error;
use crate::interrupt;
use crate::options::SpawnCommand;

/// The first pause between two attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(1);

/// The longest pause.
const RETRY_MAX: Duration = Duration::from_millis(25);

/// A connection to a node.
pub(crate) struct Connected {
    pub(crate) link: Link,
    pub(crate) welcome: Welcome,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// A private node was started for it.
    pub(crate) has_started_node: bool,
}

/// Where a node is expected, and how long it is waited for.
pub(crate) struct ConnectTarget<'a> {
    pub(crate) socket: &'a Path,
    /// How a private node is started if none is there.
    pub(crate) spawn: Option<&'a SpawnCommand>,
    /// Why no successor of a daemon that has ended is waited for.
    pub(crate) excluded: &'a dyn Fn() -> Option<String>,
    /// The whole wait, for errors.
    pub(crate) patience: Duration,
}

/// Connects, and starts a node if none is running and one may be started.
pub(crate) fn connect(
    to: &ConnectTarget<'_>,
    hello: &Hello,
    deadline: Instant,
) -> Result<Connected, Error> {
    let ConnectTarget { socket, spawn, excluded, patience } = *to;
    let mut pause = RETRY_FIRST;
    let mut child: Option<(Child, Option<StartLog>)> = None;
    let is_return = hello.resume.is_some();
    loop {
        let mut was_there = false;
        let mut silent = None;
        let mut given_up = None;
        let failure = match Link::connect(socket, hello.clone(), deadline) {
            Ok((link, welcome, descriptors)) => {
                let has_started_node = child.is_some();
                if let Some((child, _)) = child {
                    reap_in_background(child);
                }
                return Ok(Connected { link, welcome, descriptors, has_started_node });
            }
            Err(LinkError::Closed { reason, .. }) => {
                // Not even a supervisor has the socket.
                given_up = is_return.then(excluded).flatten();
                reason
            }
            // The socket exists: another daemon may follow at once.
            Err(LinkError::Unwelcome { reason, .. }) => {
                was_there = true;
                reason
            }
            // The client's own node received the hello; the other node did not answer it.
            Err(LinkError::Timeout { waited_ms, .. }) if !hello.node.is_empty() => {
                let reason = format!("it did not answer within {waited_ms} ms");
                return Err(Error::NodeLost { node: hello.node.clone(), reason });
            }
            Err(LinkError::Refused(WireError::Closing)) => "it is shutting down".to_owned(),
            // The client's own node answers, and will report when the other node is lost. Or the
            // session's node has not noticed yet that the last connection has ended.
            Err(LinkError::Refused(WireError::NoRemoteSession { node, reason })) => {
                was_there = true;
                silent = (!hello.node.is_empty()).then_some(node);
                reason
            }
            Err(LinkError::Refused(WireError::OtherRegion { old, new })) => {
                return Err(Error::NodeReplaced { socket: socket.to_owned(), old, new });
            }
            Err(error) => return Err(error.into()),
        };
        if spawn.is_none() && !is_return && !was_there {
            let reason = failure + &how_to_start(socket);
            return Err(Error::Disconnected { socket: socket.to_owned(), reason });
        }
        if let Some(why) = given_up {
            let reason = format!("{failure}; {why}");
            return Err(Error::Disconnected { socket: socket.to_owned(), reason });
        }
        if Instant::now() + pause >= deadline {
            if let Some(node) = silent {
                return Err(Error::NodeLost { node, reason: failure });
            }
            let waited = format!("{failure} (for {} ms)", patience.as_millis());
            return Err(Error::Disconnected { socket: socket.to_owned(), reason: waited });
        }
        if let Some(command) = spawn {
            child = start_or_check(command, socket, child)?;
        }
        if let Err(error) = interrupt::pause(pause) {
            child.into_iter().for_each(|(child, _)| reap_in_background(child));
            return Err(error);
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// What to do about a socket that is not there; empty if the failure has another cause.
fn how_to_start(socket: &Path) -> String {
    let found = std::fs::symlink_metadata(socket);
    let is_absent = found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    match is_absent && socket.as_os_str().len() <= paths::SOCKET_PATH_BYTES_MAX {
        true => format!("; farrow node --socket {} starts one", socket.display()),
        false => String::new(),
    }
}

/// Starts a private node, or checks that the one started before still runs.
fn start_or_check(
    command: &SpawnCommand,
    socket: &Path,
    child: Option<(Child, Option<StartLog>)>,
) -> Result<Option<(Child, Option<StartLog>)>, Error> {
    let system = |what: &'static str| {
        move |error: std::io::Error| Error::System { what, reason: error.to_string() }
    };
    let Some((mut child, log)) = child else {
        paths::prepare_socket_dir(socket).map_err(system("the folder of the socket"))?;
        let log = StartLog::new().ok();
        let stdio = log.as_ref().and_then(|log| log.stdio().ok()).unwrap_or_else(Stdio::null);
        let child = command.start(socket, stdio).map_err(system("start a private node"))?;
        return Ok(Some((child, log)));
    };
    match child.try_wait().map_err(system("wait for a private node"))? {
        None => Ok(Some((child, log))),
        Some(status) => {
            // Another process may have started one at the same time: connect to that.
            if status.code() == Some(ALREADY_SERVING_CODE) {
                return Ok(None);
            }
            let words = log.map(StartLog::last_words).unwrap_or_default();
            let words = words.trim();
            let reason = format!("the private node ended with {status}: {words}");
            Err(Error::Disconnected { socket: socket.to_owned(), reason })
        }
    }
}

/// The node outlives this call. If it ends before this process, its exit status must be collected.
fn reap_in_background(mut child: Child) {
    let _ = std::thread::Builder::new()
        .name("farrow-reap".into())
        .stack_size(64 << 10)
        .spawn(move || child.wait());
}
