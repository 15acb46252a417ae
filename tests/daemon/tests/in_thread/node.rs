//! A node in a thread of the test, over memory that goes with it.
#![allow(dead_code)] // each test file uses a part

use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrow::{Client, ConnectOptions};
use farrow_cluster::node::{EvictionKind, MemorySource, Node, NodeOptions, SpillTarget, Stopper};
use farrow_memory::{CoherenceClass, Length};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct TestNode {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    options: NodeOptions,
    _dir: tempfile::TempDir,
}

impl TestNode {
    pub fn start(memory: u64) -> Self {
        Self::start_with(memory, |_, _| {})
    }

    /// One whose clients may have this many objects.
    pub fn start_with_objects_max(memory: u64, objects: u32) -> Self {
        Self::start_with(memory, |options, _| options.quotas.client_objects_max = Some(objects))
    }

    /// One that spills to a folder beside its memory.
    pub fn start_spilling(memory: u64) -> Self {
        Self::start_with(memory, |options, dir| {
            options.spill = Some(SpillTarget::Folder(dir.join("spill")));
        })
    }

    /// One whose memory is a file that stands for a device, coherent inside a machine only.
    pub fn start_node_local(memory: u64) -> Self {
        Self::start_with(memory, |options, dir| {
            let path = dir.join("device");
            std::fs::File::create(&path).unwrap().set_len(2 * memory).unwrap();
            let coherence = CoherenceClass::NodeLocal;
            options.source = MemorySource::Device { path, file_offset: 0, coherence };
        })
    }

    fn start_with(memory: u64, change: impl Fn(&mut NodeOptions, &Path)) -> Self {
        let dir = tempfile::Builder::new().prefix("farrow-test-").tempdir_in("/dev/shm").unwrap();
        let mut options = NodeOptions::new(dir.path().join("n.sock"));
        options.memory = Some(Length(memory));
        options.source = MemorySource::Shm { dir: dir.path().to_owned() };
        options.is_preparing = false;
        // What does not fit is to be an error.
        options.eviction = EvictionKind::None;
        change(&mut options, dir.path());
        let node = Node::open(options.clone()).unwrap();
        let stopper = node.stopper().unwrap();
        let thread = Some(std::thread::spawn(move || node.run().unwrap()));
        Self { stopper, thread, options, _dir: dir }
    }

    pub fn socket(&self) -> &Path {
        &self.options.socket
    }

    /// Where one that spills puts the files.
    pub fn spill_folder(&self) -> std::path::PathBuf {
        self._dir.path().join("spill")
    }

    pub fn client(&self) -> Client {
        let options =
            ConnectOptions { timeout: PATIENCE, ..ConnectOptions::at(&self.options.socket) };
        Client::connect(&options).unwrap()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn free_bytes(client: &Client) -> u64 {
    client.stats().unwrap().node.free
}
