//! A real etcd of this machine, on loopback, with its own data.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait_for;

/// Makes a machine without etcd a failure.
const REQUIRE: &str = "FARROW_ETCD";

pub struct EtcdServers {
    dir: tempfile::TempDir,
    more: Vec<String>,
    members: Vec<EtcdMember>,
}

struct EtcdMember {
    /// For clients, and for the other members.
    ports: [u16; 2],
    child: Option<Child>,
}

impl EtcdServers {
    /// `None`, with a message, if there is no etcd and none is required.
    pub fn start() -> Option<Self> {
        Self::start_with(1, &[])
    }

    /// Starts `count` members, with more options.
    pub fn start_with(count: usize, more: &[&str]) -> Option<Self> {
        let is_there = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if is_there.is_err() {
            let is_required = std::env::var(REQUIRE).is_ok_and(|word| word == "require");
            assert!(!is_required, "no etcd on this machine: apt-get install etcd-server");
            eprintln!("skipped: no etcd on this machine; {REQUIRE}=require makes it a failure");
            return None;
        }
        // Between choosing a port and using it another one may take it.
        for _ in 0..5 {
            let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm");
            let more = more.iter().map(|word| (*word).to_owned()).collect();
            let mut etcd = Self { dir: dir.unwrap(), more, members: Vec::new() };
            for pair in super::free_ports(2 * count).chunks_exact(2) {
                etcd.members.push(EtcdMember { ports: [pair[0], pair[1]], child: None });
            }
            (0..count).for_each(|member| etcd.spawn(member));
            if (0..count).all(|member| etcd.is_serving(member)) {
                return Some(etcd);
            }
        }
        panic!("etcd does not start");
    }

    pub fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }

    fn is_tls(&self) -> bool {
        self.more.iter().any(|word| word == "--cert-file")
    }

    fn spawn(&mut self, member: usize) {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let peer = |member: &EtcdMember| format!("http://127.0.0.1:{}", member.ports[1]);
        let all = self.members.iter().enumerate();
        let all: Vec<String> = all.map(|(n, one)| format!("m{n}={}", peer(one))).collect();
        let (client, peer) = {
            let own = &self.members[member];
            (format!("{scheme}://127.0.0.1:{}", own.ports[0]), peer(own))
        };
        let name = format!("m{member}");
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(self.dir.path().join(&name))
            .args(["--name", &name, "--initial-cluster", &all.join(",")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = super::spawn(&mut command);
        self.members[member].child = Some(child.unwrap());
    }

    /// Waits until it answers; false when it ended instead.
    fn is_serving(&mut self, member: usize) -> bool {
        let is_tls = self.is_tls();
        let EtcdMember { ports: [port, _], child } = &mut self.members[member];
        let (port, child) = (*port, child.as_mut().unwrap());
        wait_for("an etcd that serves", || {
            if child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            std::thread::sleep(Duration::from_millis(20));
            let is_up = match is_tls {
                // It listens when it serves.
                true => TcpStream::connect(("127.0.0.1", port)).is_ok(),
                false => http(port, "GET", "/health", "").is_some_and(|one| one.contains("true")),
            };
            is_up.then_some(true)
        })
        .unwrap_or(false)
    }

    /// Where the first member serves.
    pub fn port(&self) -> u16 {
        self.members[0].ports[0]
    }

    /// As an option of nodes.
    pub fn place(&self, prefix: &str) -> String {
        let scheme = if self.is_tls() { "etcds" } else { "etcd" };
        let hosts = self.members.iter().map(|one| format!("127.0.0.1:{}", one.ports[0]));
        format!("{scheme}://{}{prefix}", hosts.collect::<Vec<_>>().join(","))
    }

    /// A call of its JSON gateway.
    pub fn post(&self, path: &str, body: &str) -> String {
        let answer = http(self.port(), "POST", path, body).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        answer
    }

    pub fn signal(&self, member: usize, signal: Signal) {
        let pid = self.members[member].child.as_ref().unwrap().id();
        kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    }

    pub fn kill9(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// With the data that it had.
    pub fn restart(&mut self, member: usize) {
        self.spawn(member);
        assert!(self.is_serving(member), "etcd does not start again");
    }
}

impl Drop for EtcdServers {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill9(member));
    }
}

fn http(port: u16, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
