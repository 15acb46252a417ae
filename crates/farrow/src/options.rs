//! How a client finds its node, and starts one when there is none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use farrow_store::Metadata;
use farrow_wire::paths;

/// Time that connecting may take where nothing else is said; the start of a private node, which
/// lays claim to all its memory, included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Socket of the node; `None`: `$FARROW_SOCKET`, else this user's default.
    pub socket: Option<PathBuf>,
    /// Time for connecting, and for each later call to the node.
    pub timeout: Duration,
    /// How to start a node when none serves; only used where neither `socket` nor
    /// `$FARROW_SOCKET` names one.
    pub spawn: Option<SpawnCommand>,
    /// The namespace to be in; empty: the default one.
    pub namespace: String,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { socket: None, timeout: CONNECT_TIMEOUT, spawn: None, namespace: String::new() }
    }
}

impl ConnectOptions {
    /// Connects to the node at `socket`, with the usual time limit.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: Some(socket.into()), ..Self::default() }
    }

    /// The socket meant, and whether a node may be started there.
    pub(crate) fn place(&self) -> (PathBuf, bool) {
        match &self.socket {
            Some(socket) => (socket.clone(), false),
            None => {
                let is_named =
                    std::env::var_os(paths::SOCKET_VARIABLE).is_some_and(|path| !path.is_empty());
                (paths::default_socket(), !is_named)
            }
        }
    }
}

/// What an object is to have besides its bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectOptions<'a> {
    /// Its name: 1 to 255 bytes of UTF-8 without NUL, the name of its namespace and one byte
    /// included. `None`: it is known by its id only.
    pub name: Option<&'a str>,
    /// Key-value pairs that are listed with it.
    pub metadata: Option<&'a Metadata>,
    /// How long the node may take to find room where there is none: requests that wait are served
    /// in the order in which they came.
    pub wait: Duration,
}

impl<'a> ObjectOptions<'a> {
    /// A name, if any, and nothing else.
    pub fn named(name: Option<&'a str>) -> Self {
        Self { name, ..Self::default() }
    }

    /// The metadata as it lies in the region; empty for none.
    pub(crate) fn encoded_metadata(&self) -> Vec<u8> {
        self.metadata.map(Metadata::encode).unwrap_or_default()
    }
}

/// The program that is the daemon.
#[derive(Debug, Clone)]
pub struct SpawnCommand {
    /// What to run.
    pub program: PathBuf,
    /// Arguments before those of the daemon itself.
    pub arguments: Vec<OsString>,
    /// Memory of the node in bytes; `None`: `$FARROW_MEMORY`, else the daemon's own choice.
    pub memory: Option<u64>,
}

impl SpawnCommand {
    /// A `farrowd` at this path.
    pub fn daemon(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), memory: None }
    }

    /// Starts a private node at `socket`; its words go to `log`.
    pub(crate) fn start(&self, socket: &Path, log: Stdio) -> std::io::Result<std::process::Child> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg("--private").arg("--socket").arg(socket);
        let memory = match self.memory {
            Some(bytes) => Some(OsString::from(bytes.to_string())),
            None => std::env::var_os(paths::MEMORY_VARIABLE).filter(|text| !text.is_empty()),
        };
        if let Some(memory) = memory {
            command.arg("--memory").arg(memory);
        }
        // A group of its own: Ctrl-C in the client's terminal is not for the node.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()
    }
}
