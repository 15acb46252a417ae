//! The thread with its files: which job waits for which, and what each leaves.

use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_store::{ObjectId, RegionUid};
use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use super::file::PIECE_BYTES;
use super::file::tests::{bucket, object, read_request};
use super::{SpillStore, SpillTarget, Worker};
use crate::protocol::{SpillDone, SpillJob, WriteFault};

/// Files of objects, each of which takes some time to be removed.
struct SlowFiles {
    files: Arc<ThrottledStore<InMemory>>,
    ids: Vec<ObjectId>,
    runtime: tokio::runtime::Runtime,
}

impl SlowFiles {
    fn new(count: u64) -> (Self, SpillStore) {
        let throttle = ThrottleConfig {
            wait_delete_per_call: Duration::from_millis(20),
            ..ThrottleConfig::default()
        };
        let files = Arc::new(ThrottledStore::new(InMemory::new(), throttle));
        let store = SpillStore { store: Arc::clone(&files) as _, ..bucket("http://none".into()) };
        let ids: Vec<ObjectId> = (0..count).map(|lo| ObjectId { hi: 1, lo: 100 + lo }).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for id in &ids {
                let file = PutPayload::from_static(b"file");
                files.put(&store.path((*id, 0)), file).await.unwrap();
            }
        });
        (Self { files, ids, runtime }, store)
    }

    fn left(&self) -> u64 {
        self.runtime.block_on(self.files.list(None).count()) as u64
    }
}

/// The results of the next jobs.
fn done_by(worker: &Worker, jobs: usize) -> Vec<SpillDone> {
    let (until, mut all) = (Instant::now() + Duration::from_secs(60), Vec::new());
    while all.len() < jobs {
        all.extend(worker.finished().0);
        assert!(Instant::now() < until, "{} of {jobs} jobs are done", all.len());
        std::thread::sleep(Duration::from_millis(1));
    }
    all
}

/// Deletes of thousands of spilled objects were before all reads, one after another.
#[test]
fn other_jobs_do_not_wait_for_the_removal_of_many_files() {
    const FILES: u64 = 2000;
    let (slow, store) = SlowFiles::new(FILES);
    let (region, head) = object(4 << 10);
    let worker = Worker::start(store, region, &slow.ids).unwrap();
    slow.ids.iter().for_each(|id| worker.push(SpillJob::Forget { id: *id }));
    let (id, parts) = (head.id, head.origins.clone());
    // Written after it was to be removed, it stays.
    worker.push(SpillJob::Forget { id });
    worker.push(SpillJob::Write { head, parts, spare_bytes: 0, is_copied: false });
    assert_eq!(done_by(&worker, 1), [SpillDone::Written { id, result: Ok(()) }]);
    assert!(slow.left() > FILES / 2, "{} are left", slow.left());
    let until = Instant::now() + Duration::from_secs(60);
    while slow.left() > 1 {
        assert!(Instant::now() < until, "{} are left", slow.left());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// They may be what it needs: their space would come too late.
#[test]
fn files_are_removed_before_a_write_to_a_full_folder() {
    let (slow, store) = SlowFiles::new(40);
    let folder = tempfile::tempdir().unwrap();
    let store = SpillStore { folder: Some(folder.path().to_owned()), ..store };
    let (region, head) = object(4 << 10);
    let worker = Worker::start(store, region, &slow.ids).unwrap();
    let (parts, spare_bytes) = (head.origins.clone(), u64::MAX);
    slow.ids.iter().for_each(|id| worker.push(SpillJob::Forget { id: *id }));
    worker.push(SpillJob::Write { head, parts, spare_bytes, is_copied: false });
    let done = done_by(&worker, 1);
    let is_full = |fault: &WriteFault| fault.is_full;
    assert!(
        matches!(&done[..], [SpillDone::Written { result: Err(fault), .. }] if is_full(fault)),
        "{done:?}"
    );
    assert_eq!(slow.left(), 0);
}

/// Files are removed now and then, also where other jobs always wait.
#[test]
fn jobs_that_never_end_do_not_keep_files_for_ever() {
    let (slow, store) = SlowFiles::new(40);
    let (region, head) = object(4 << 10);
    let worker = Worker::start(store, region, &slow.ids).unwrap();
    slow.ids.iter().for_each(|id| worker.push(SpillJob::Forget { id: *id }));
    for _ in 0..100 {
        let (head, parts) = (head.clone(), head.origins.clone());
        worker.push(SpillJob::Write { head, parts, spare_bytes: 0, is_copied: false });
    }
    done_by(&worker, 100);
    assert_eq!(slow.left(), 1, "the file that was written");
}

/// Regression test: the thread removed the files of an earlier life before its first job. A
/// bucket that was slow to list them stopped all restores, and the end of the node.
#[test]
fn a_job_does_not_wait_for_the_removal_of_old_files() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let silent = Arc::new(Mutex::new(Vec::new()));
    let of_server = Arc::clone(&silent);
    // It ends with the test.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            if read_request(&mut reader).starts_with("GET") {
                // The list, which never arrives.
                of_server.lock().unwrap().push(reader);
                continue;
            }
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: \"1\"";
            let _ = write!(reader.get_mut(), "{head}\r\nConnection: close\r\n\r\n");
        }
    });
    let (region, head) = object(PIECE_BYTES / 2);
    let worker = Worker::start(bucket(endpoint), region, &[]).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while silent.lock().unwrap().is_empty() {
        assert!(Instant::now() < until, "nothing is listed");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (id, parts) = (head.id, head.origins.clone());
    worker.push(SpillJob::Write { head, parts, spare_bytes: 0, is_copied: false });
    assert_eq!(done_by(&worker, 1), [SpillDone::Written { id, result: Ok(()) }]);
    // Nor does the end of the node.
    drop(worker);
}

/// Regression test: the sweep of a new region removed its folder, which only its owner could
/// read. The first file made it again for all users.
#[test]
fn the_folder_of_a_region_is_for_its_owner_alone_also_when_it_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let target = SpillTarget::Folder(dir.path().to_owned());
    let folder = dir.path().join(format!("{:016x}", 1));
    let (region, head) = object(4 << 10);
    let worker =
        Worker::start(SpillStore::open(&target, RegionUid(1)).unwrap(), region, &[]).unwrap();
    let (id, parts) = (head.id, head.origins.clone());
    let job = SpillJob::Write { head, parts, spare_bytes: 0, is_copied: true };
    let write = || {
        worker.push(job.clone());
        assert_eq!(done_by(&worker, 1), [SpillDone::Written { id, result: Ok(()) }]);
        assert!(folder.join(id.to_string()).exists());
        fs::metadata(&folder).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(write(), 0o700);
    // A cleaner of temporary files has removed the copy with the folder.
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(write(), 0o700);
    assert_eq!(write(), 0o700);
    drop(worker);
    SpillStore::open(&target, RegionUid(1)).unwrap().purge().unwrap();
    assert!(!folder.exists());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// Regression test: a URL `file:` was a bucket, whose files other users could read, and without
/// a check of the free space.
#[test]
fn a_url_of_a_folder_is_the_folder() {
    let folder = |text| SpillTarget::parse(text).unwrap();
    assert_eq!(folder("file:///a%20b/c"), SpillTarget::Folder("/a b/c".into()));
    assert_eq!(folder("file://localhost/a"), SpillTarget::Folder("/a".into()));
    assert_eq!(folder("a/b"), SpillTarget::Folder("a/b".into()));
    assert!(SpillTarget::parse("file://other/a").is_err());
    assert!(matches!(folder("memory:///"), SpillTarget::Url(_)));
}

#[test]
fn the_folder_of_a_region_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let target = SpillTarget::Folder(dir.path().to_owned());
    let folder = dir.path().join(format!("{:016x}", 7));
    SpillStore::open(&target, RegionUid(7)).unwrap();
    assert_eq!((mode(&folder), mode(dir.path())), (0o700, 0o755));
    // As an earlier version left it.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    SpillStore::open(&target, RegionUid(7)).unwrap();
    assert_eq!((mode(&folder), mode(dir.path())), (0o700, 0o755));
}
