//! Options of a connection, which may start a node, and of an object.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use farrow_store::Metadata;
use farrow_wire::paths;

/// Default time limit for connecting. It includes the start of a private node, which allocates all
/// of its memory.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Socket of the node; `None`: `$FARROW_SOCKET`, else the default of this user.
    pub socket: Option<PathBuf>,
    /// Time for connecting, and for each later call to the node.
    pub timeout: Duration,
    /// How to start a node when none is running; only used if neither `socket` nor `$FARROW_SOCKET`
    /// names one.
    pub spawn: Option<SpawnCommand>,
    /// The namespace to use; empty: the default one.
    pub namespace: String,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { socket: None, timeout: CONNECT_TIMEOUT, spawn: None, namespace: String::new() }
    }
}

impl ConnectOptions {
    /// Connects to the node at `socket`, with the default time limit.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self { socket: Some(socket.into()), ..Self::default() }
    }

    /// The socket to use, and whether a node may be started there.
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

/// Options of a new object.
#[derive(Debug, Clone, Copy, Default)]
pub struct ObjectOptions<'a> {
    /// Its name: 1 to 255 bytes of UTF-8 without NUL, including the name of its namespace and a
    /// separator. `None`: it has only an id.
    pub name: Option<&'a str>,
    /// Key-value pairs that are listed with the object.
    pub metadata: Option<&'a Metadata>,
    /// How long the node may take to make room. Waiting requests are served in the order of their
    /// arrival.
    pub wait: Duration,
    /// The object takes the place of the one that has its name on the same node, if there is one. The
    /// name leads to the old object until it leads to the new one, and the old one stays if the new one
    /// cannot be sealed. There must be room for both.
    pub replace: bool,
    /// Whether to count statistics of a table or record batch, by which readers skip rows. They are
    /// stored in its metadata, and left out if the other pairs leave no room. Buffers that stay in
    /// place are read for that.
    pub statistics: bool,
}

impl<'a> ObjectOptions<'a> {
    /// Options with a name, if any, and nothing else.
    pub fn named(name: Option<&'a str>) -> Self {
        Self { name, ..Self::default() }
    }

    /// The name to reserve before the object is written. One that another object may have is not.
    pub(crate) fn name_to_reserve(&self) -> Option<String> {
        self.name.filter(|_| !self.replace).map(str::to_owned)
    }

    /// The metadata as encoded in the region; empty for none.
    pub(crate) fn encoded_metadata(&self) -> Vec<u8> {
        self.metadata.map(Metadata::encode).unwrap_or_default()
    }
}

/// The command that starts a daemon.
#[derive(Debug, Clone)]
pub struct SpawnCommand {
    /// The program to run.
    pub program: PathBuf,
    /// Arguments before those of the daemon.
    pub arguments: Vec<OsString>,
    /// Memory of the node in bytes; `None`: `$FARROW_MEMORY`, else the daemon's default.
    pub memory: Option<u64>,
    /// How long the node keeps named objects after its last client; `None`: `$FARROW_LINGER`
    /// in seconds, else [`LINGER`].
    pub linger: Option<Duration>,
}

/// How long a private node keeps named objects after its last client: long enough to start the
/// next program by hand.
pub const LINGER: Duration = Duration::from_secs(600);

/// The program of the daemon.
const DAEMON: &str = "farrowd";

impl SpawnCommand {
    /// The `farrowd` at this path.
    pub fn daemon(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new(), memory: None, linger: None }
    }

    /// The first `farrowd` in `folders`, else in the folders of `$PATH`; `None` if there is none.
    /// Relative folders are left out: another user may write in the current folder.
    pub fn installed(folders: impl IntoIterator<Item = PathBuf>) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_program = |file: &PathBuf| {
            std::fs::metadata(file)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        folders
            .into_iter()
            .chain(std::env::split_paths(&path))
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(DAEMON))
            .find(is_program)
            .map(Self::daemon)
    }

    /// Starts a private node at `socket`; its standard error is written to `log`.
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
        let linger = match self.linger {
            Some(linger) => OsString::from(linger.as_secs().to_string()),
            None => std::env::var_os(paths::LINGER_VARIABLE)
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| OsString::from(LINGER.as_secs().to_string())),
        };
        command.arg("--linger").arg(linger);
        // A process group of its own: Ctrl-C in the client's terminal should not end the node.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()
    }
}
