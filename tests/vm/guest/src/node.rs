//! One machine: its daemon, and a client of it.

use std::net::IpAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use farrow::{Client, ConnectOptions, Members, Metadata, Reach};

use crate::report::{Anything, PATIENCE, boot_id, same, until};
use crate::table::check_the_checks;

const SOCKET: &str = "/run/farrow.sock";
/// How long live nodes may fail to reach each other's memory before that is a failure.
const UNREACHED_PATIENCE: Duration = Duration::from_secs(10);
/// Long enough for a guest that gets no time for seconds on a busy host.
pub(crate) const LEASE_MS: u64 = 10_000;
pub(crate) const NODE_PORT: u16 = 7420;

pub(crate) struct Machine {
    pub(crate) name: &'static str,
    command: Command,
    pub(crate) daemon: Child,
    pub(crate) client: Client,
}

impl Machine {
    /// Starts a daemon with further arguments. Node b joins a.
    pub(crate) fn start(
        name: &str,
        (own, peer): (IpAddr, IpAddr),
        more: &[&str],
    ) -> Anything<Self> {
        check_the_checks()?;
        let name = if name == "a" { "a" } else { "b" };
        let mut command = Command::new("/bin/farrowd");
        command.args(["--unsupervised", "--socket", SOCKET, "--certs", "/certs", "--name", name]);
        command.args(["--listen", &format!("{own}:{NODE_PORT}")]);
        command.args(["--lease-ms", &LEASE_MS.to_string()]).args(more);
        if name == "b" {
            command.args(["--join", &format!("{peer}:{NODE_PORT}")]);
        }
        let (daemon, client) = (command.spawn()?, connect()?);
        Ok(Self { name, command, daemon, client })
    }

    /// Waits until both nodes live and each reaches the memory of the other.
    pub(crate) fn settle(&self) -> Anything<Members> {
        let (begin, mut unreached) = (Instant::now(), None);
        loop {
            let members = self.client.members()?;
            let live = members.nodes.iter().filter(|node| node.reach == Reach::Live).count();
            let bad = members.nodes.iter().find(|node| node.fabric.is_empty());
            match bad {
                None if live == 2 && members.has_lease => return Ok(members),
                Some(node) if live == 2 => {
                    let since = *unreached.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNREACHED_PATIENCE {
                        let (name, why) = (&node.name, &node.why_not);
                        return Err(format!("the memory of {name} is not mapped: {why}").into());
                    }
                }
                _ => unreached = None,
            }
            until(begin, || format!("the nodes do not see each other: {members:?}"))?;
        }
    }

    /// Another client of this node, whose calls end after this time.
    pub(crate) fn hasty_client(&self, timeout: Duration) -> Anything<Client> {
        let options = ConnectOptions { timeout, ..ConnectOptions::at(SOCKET) };
        Ok(Client::connect(&options)?)
    }

    pub(crate) fn kill_daemon(&mut self) -> Anything<String> {
        self.daemon.kill()?;
        self.daemon.wait()?;
        Ok("killed by signal 9".to_owned())
    }

    pub(crate) fn restart_daemon(&mut self) -> Anything {
        self.daemon = self.command.spawn()?;
        self.client = connect()?;
        Ok(())
    }
}

fn connect() -> Anything<Client> {
    let begin = Instant::now();
    loop {
        match Client::connect(&ConnectOptions { timeout: PATIENCE, ..ConnectOptions::at(SOCKET) }) {
            Ok(client) => return Ok(client),
            Err(error) => until(begin, || format!("farrowd does not serve: {error}"))?,
        }
    }
}

/// Says under which kernel an object is made.
pub(crate) fn made_here() -> Anything<Metadata> {
    Ok(Metadata::new([("kernel", boot_id())])?)
}

/// Sees that an object was made under this kernel, or under another one.
pub(crate) fn check_maker(client: &Client, name: &str, is_own: bool) -> Anything {
    let maker = client.metadata(&name.into())?;
    same("made under this kernel", maker.get("kernel") == Some(&*boot_id()), is_own)
}
