//! A real etcd of this machine, on loopback, with data of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::wait_for;

/// Says that a machine without etcd is a failure.
const REQUIRE: &str = "FARROW_ETCD";

pub struct Etcd {
    dir: tempfile::TempDir,
    ports: [u16; 2],
    more: Vec<String>,
    child: Option<Child>,
}

impl Etcd {
    /// `None`, with a word, where there is no etcd and none is required.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// With more options. `DIR` in them is its folder.
    pub fn start_with(more: &[&str]) -> Option<Self> {
        let is_there = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if is_there.is_err() {
            let is_required = std::env::var(REQUIRE).is_ok_and(|word| word == "require");
            assert!(!is_required, "no etcd on this machine: apt-get install etcd-server");
            eprintln!("skipped: no etcd on this machine; {REQUIRE}=require makes it a failure");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
        let more = more.iter().map(|word| word.replace("DIR", dir.path().to_str().unwrap()));
        let mut etcd = Self { more: more.collect(), dir, ports: [0; 2], child: None };
        // Between choosing a port and using it another one may take it.
        for _ in 0..5 {
            let held = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
            etcd.ports = held.each_ref().map(|one| one.local_addr().unwrap().port());
            drop(held);
            etcd.spawn();
            if etcd.is_serving() {
                return Some(etcd);
            }
            etcd.kill9();
        }
        panic!("etcd does not start");
    }

    pub fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }

    fn is_tls(&self) -> bool {
        self.more.iter().any(|word| word == "--cert-file")
    }

    fn spawn(&mut self) {
        let [client, peer] = self.ports;
        let scheme = if self.is_tls() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(["--name", "only", "--initial-cluster", &format!("only={peer}")])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(&self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Waits until it answers; false when it ended instead.
    fn is_serving(&mut self) -> bool {
        let is_tls = self.is_tls();
        let port = self.ports[0];
        let child = self.child.as_mut().unwrap();
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

    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// As an option of nodes.
    pub fn place(&self, prefix: &str) -> String {
        let scheme = if self.is_tls() { "etcds" } else { "etcd" };
        format!("{scheme}://127.0.0.1:{}{prefix}", self.port())
    }

    /// A call of its JSON gateway.
    pub fn post(&self, path: &str, body: &str) -> String {
        let answer = http(self.port(), "POST", path, body).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        answer
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.as_ref().unwrap().id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// With the data that it had.
    pub fn restart(&mut self) {
        self.spawn();
        assert!(self.is_serving(), "etcd does not start again");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill9();
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
