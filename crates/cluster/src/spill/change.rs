//! Changes of files that may take longer than their jobs.

use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::task::JoinHandle;

use super::SpillStore;
use super::names::{FileChange, FileNames, FileNumber};
use super::worker::Stop;
use crate::protocol::WriteFault;

impl SpillStore {
    pub(super) fn path(&self, (id, number): FileNumber) -> Path {
        let name = if number == 0 { id.to_string() } else { format!("{id}.{number}") };
        self.prefix.clone().join(name)
    }

    /// Changes a file. If the change times out or is dropped, it continues without the job: a file
    /// that it writes is removed once it has ended, and until then no other change has its name.
    pub(super) async fn change(
        &self,
        file: FileNumber,
        change: FileChange,
        stop: &Stop,
        step: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), WriteFault> {
        let mut begun = BegunChange { store: self, file, change, task: Some(tokio::spawn(step)) };
        let ended = async {
            match &mut begun.task {
                Some(task) => task.await.unwrap_or_else(|lost| Err(lost.into())),
                None => Ok(()),
            }
        };
        stop.step(ended).await
    }

    /// Removes a file that no object has, if it is there.
    pub(super) async fn remove_old(&self, path: Path, stop: &Stop) -> Result<(), WriteFault> {
        let named = path.filename().and_then(FileNames::parse);
        let named = named.filter(|file| self.path(*file) == path);
        let store = Arc::clone(&self.store);
        let step = async move { delete(&*store, &path).await };
        match named {
            Some(file) => self.change(file, FileChange::Delete, stop, step).await,
            // No object has such a name, so no later file does.
            None => stop.step(step).await,
        }
    }
}

/// A change under way. It goes on when this is dropped.
struct BegunChange<'a> {
    store: &'a SpillStore,
    file: FileNumber,
    change: FileChange,
    task: Option<JoinHandle<Result<(), Error>>>,
}

impl Drop for BegunChange<'_> {
    fn drop(&mut self) {
        let Some(task) = self.task.take().filter(|task| !task.is_finished()) else {
            return;
        };
        let Self { store: SpillStore { names, store, .. }, file, change, .. } = *self;
        let (names, store, path) = (names.clone(), store.clone(), self.store.path(file));
        names.begin_late(file);
        tokio::spawn(async move {
            let _ = task.await;
            if change == FileChange::Write {
                remove(&*store, &path).await;
            }
            names.end_late(file);
        });
    }
}

/// Deletes a file, if it is there. A folder reports a missing file, a bucket does not.
pub(super) async fn delete(store: &dyn ObjectStore, path: &Path) -> Result<(), Error> {
    match store.delete(path).await {
        Err(Error::NotFound { .. }) => Ok(()),
        deleted => deleted,
    }
}

async fn remove(store: &dyn ObjectStore, path: &Path) {
    match store.delete(path).await {
        Ok(()) => tracing::info!(%path, "removed a spill file that was written late"),
        Err(Error::NotFound { .. }) => {}
        Err(error) => tracing::warn!(%path, %error, "a spill file that was written late is left"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use farrow_memory::sync::{AtomicBool, AtomicU64, Ordering};
    use farrow_memory::{Length, Offset, Span};
    use farrow_store::{ObjectId, SpillHead};
    use futures_util::stream::BoxStream;
    use futures_util::{StreamExt, TryStreamExt};
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::{
        CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
        ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    };

    use super::super::file::tests::object;
    use super::super::names::NUMBERS_MAX;
    use super::*;
    use crate::spill::sweep::Sweep;

    /// Writes and deletes go on when their callers have given up, as those of a file system. They
    /// wait while it hangs.
    #[derive(Debug, Clone, Default)]
    struct HangingStore {
        files: Arc<InMemory>,
        hangs: Arc<AtomicBool>,
        /// Requests to delete files.
        deletes: Arc<AtomicU64>,
    }

    impl HangingStore {
        async fn go_on<T: Send + 'static>(
            &self,
            change: impl Future<Output = T> + Send + 'static,
        ) -> T {
            let hangs = self.hangs.load(Ordering::SeqCst).then(|| Arc::clone(&self.hangs));
            let (sender, receiver) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                while hangs.as_ref().is_some_and(|hangs| hangs.load(Ordering::SeqCst)) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let _ = sender.send(runtime.block_on(change));
            });
            receiver.await.unwrap()
        }

        async fn names(&self) -> Vec<String> {
            let all: Vec<ObjectMeta> = self.files.list(None).try_collect().await.unwrap();
            all.iter().map(|file| file.location.filename().unwrap().to_owned()).collect()
        }
    }

    impl std::fmt::Display for HangingStore {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("hanging")
        }
    }

    #[async_trait::async_trait]
    impl ObjectStore for HangingStore {
        async fn put_opts(
            &self,
            path: &Path,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult> {
            let (files, path) = (Arc::clone(&self.files), path.clone());
            self.go_on(async move { files.put_opts(&path, payload, options).await }).await
        }

        async fn put_multipart_opts(
            &self,
            path: &Path,
            options: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.files.put_multipart_opts(path, options).await
        }

        async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
            self.files.get_opts(path, options).await
        }

        fn delete_stream(
            &self,
            paths: BoxStream<'static, Result<Path>>,
        ) -> BoxStream<'static, Result<Path>> {
            let store = self.clone();
            self.deletes.fetch_add(1, Ordering::SeqCst);
            paths
                .and_then(move |path| {
                    let store = store.clone();
                    async move {
                        let (files, deleted) = (Arc::clone(&store.files), path.clone());
                        // As a folder, and unlike memory and buckets, it reports a missing file.
                        let delete = async move {
                            files.head(&path).await?;
                            files.delete(&path).await
                        };
                        store.go_on(delete).await?;
                        Ok(deleted)
                    }
                })
                .boxed()
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.files.list(prefix)
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            self.files.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.files.copy_opts(from, to, options).await
        }
    }

    fn opened(files: &HangingStore) -> SpillStore {
        SpillStore {
            store: Arc::new(files.clone()),
            prefix: Path::from("region"),
            folder: None,
            uid: farrow_store::RegionUid(1),
            label: "label".to_owned(),
            names: FileNames::default(),
        }
    }

    /// Descriptor and metadata, which are empty, and the blocks.
    fn parts(head: &SpillHead) -> Vec<Span> {
        let none = Span::new(Offset(0), Length(0));
        [vec![none; 2], head.origins.clone()].concat()
    }

    /// Waits until no change of a file is late.
    async fn settle(store: &SpillStore) {
        let until = Instant::now() + Duration::from_secs(60);
        while store.names.is_any_late() {
            assert!(Instant::now() < until, "a change does not end");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    const ID: ObjectId = ObjectId { hi: 1, lo: 2 };

    fn impatient() -> Stop {
        let mut stop = Stop::default();
        stop.step_max = Duration::from_millis(50);
        stop
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
    }

    /// The file stayed until the node was started again.
    #[test]
    fn a_file_that_is_written_after_its_write_timed_out_is_removed() {
        let (files, (region, head)) = (HangingStore::default(), object(4 << 10));
        let (store, stop) = (opened(&files), Stop::default());
        run(async {
            files.hangs.store(true, Ordering::SeqCst);
            assert!(store.write(&region, &head, &parts(&head), &impatient()).await.is_err());
            // As for each write that failed.
            store.forget(ID, &impatient()).await.unwrap();
            files.hangs.store(false, Ordering::SeqCst);
            settle(&store).await;
            assert_eq!(files.names().await, [""; 0]);
            store.write(&region, &head, &parts(&head), &stop).await.unwrap();
            assert_eq!(files.names().await, [ID.to_string()]);
        });
    }

    /// It removed the file of the same object that had been spilled again.
    #[test]
    fn a_delete_that_timed_out_removes_no_later_file() {
        let (files, (region, head)) = (HangingStore::default(), object(4 << 10));
        let (store, stop) = (opened(&files), Stop::default());
        run(async {
            store.write(&region, &head, &parts(&head), &stop).await.unwrap();
            files.hangs.store(true, Ordering::SeqCst);
            assert!(store.forget(ID, &impatient()).await.is_err());
            let again = store.write(&region, &head, &parts(&head), &impatient()).await;
            assert!(again.is_err(), "its write hangs too");
            for _ in 2..NUMBERS_MAX {
                let hangs = store.write(&region, &head, &parts(&head), &impatient()).await;
                assert!(hangs.unwrap_err().reason.contains("timed out"));
            }
            let full = store.write(&region, &head, &parts(&head), &impatient()).await;
            assert!(full.unwrap_err().reason.starts_with("8 writes or deletes"));
            files.hangs.store(false, Ordering::SeqCst);
            settle(&store).await;
            // The delete still waits while the object is written again.
            store.write(&region, &head, &parts(&head), &stop).await.unwrap();
            files.hangs.store(true, Ordering::SeqCst);
            assert!(store.forget(ID, &impatient()).await.is_err());
            let unhung = HangingStore { files: Arc::clone(&files.files), ..Default::default() };
            let writer = SpillStore { store: Arc::new(unhung), ..store.clone() };
            writer.write(&region, &head, &parts(&head), &stop).await.unwrap();
            files.hangs.store(false, Ordering::SeqCst);
            settle(&store).await;
            assert_eq!(store.look(ID, &stop).await.unwrap(), head);
            assert_eq!(files.names().await, [format!("{ID}.1")]);
            let blocks = head.origins.clone();
            store.load(&region, &head, &blocks, &stop).await.unwrap();
            // The next daemon finds it, and removes it with the object.
            let next = opened(&files);
            assert_eq!(next.look(ID, &stop).await.unwrap(), head);
            next.forget(ID, &stop).await.unwrap();
            assert_eq!(files.names().await, [""; 0]);
        });
    }

    /// Regression test: the sweep of old files had found the copy of an object when the object was
    /// spilled again. It then removed the new file of the same name.
    #[test]
    fn a_sweep_removes_no_file_that_was_written_meanwhile() {
        let (files, (region, head)) = (HangingStore::default(), object(4 << 10));
        let (store, stop, none) = (opened(&files), Stop::default(), BTreeSet::new());
        let retained = BTreeSet::from([ID.to_string()]);
        run(async {
            // The file was found, and is to be removed next.
            store.write(&region, &head, &parts(&head), &stop).await.unwrap();
            let mut sweep = Sweep::new(&store).unwrap();
            assert!(sweep.step(&store, &none, &stop).await.unwrap());
            store.write(&region, &head, &parts(&head), &stop).await.unwrap();
            while sweep.step(&store, &retained, &stop).await.unwrap() {}
            assert_eq!(store.look(ID, &stop).await.unwrap(), head);

            // A job comes while its removal is under way.
            let mut sweep = Sweep::new(&store).unwrap();
            assert!(sweep.step(&store, &none, &stop).await.unwrap());
            files.hangs.store(true, Ordering::SeqCst);
            let step = sweep.step(&store, &none, &stop);
            assert!(tokio::time::timeout(Duration::from_millis(50), step).await.is_err());
            let unhung = HangingStore { files: Arc::clone(&files.files), ..Default::default() };
            let writer = SpillStore { store: Arc::new(unhung), ..store.clone() };
            writer.write(&region, &head, &parts(&head), &stop).await.unwrap();
            files.hangs.store(false, Ordering::SeqCst);
            while sweep.step(&store, &retained, &stop).await.unwrap() {}
            settle(&store).await;
            assert_eq!(files.names().await, [format!("{ID}.1")]);
            assert_eq!(store.look(ID, &stop).await.unwrap(), head);
        });
    }

    /// Regression test: each file took a request. A node that ended had ten seconds for all, and
    /// left the rest for ever.
    #[test]
    fn the_files_of_a_region_are_removed_from_a_bucket_together() {
        let files = HangingStore::default();
        let store = opened(&files);
        run(async {
            for lo in 0..50 {
                let path = store.path((ObjectId { hi: 1, lo }, 0));
                store.store.put(&path, PutPayload::from_static(b"file")).await.unwrap();
            }
            let other = PutPayload::from_static(b"of another region");
            store.store.put(&Path::from("regions"), other).await.unwrap();
        });
        store.purge().unwrap();
        run(async { assert_eq!(files.names().await, ["regions"]) });
        assert_eq!(files.deletes.load(Ordering::SeqCst), 1);
    }

    /// Regression test: an object with a copy left memory although its copy was removed, or cut off.
    #[test]
    fn a_copy_counts_only_if_it_is_there_as_it_was_written() {
        let (files, (region, head)) = (HangingStore::default(), object(4 << 10));
        let (store, stop) = (opened(&files), Stop::default());
        run(async {
            assert!(!store.is_written(&head, &stop).await.unwrap());
            store.write(&region, &head, &parts(&head), &stop).await.unwrap();
            assert!(store.is_written(&head, &stop).await.unwrap());
            let cut = PutPayload::from_static(b"cut off");
            store.store.put(&store.path((ID, 0)), cut).await.unwrap();
            assert!(!store.is_written(&head, &stop).await.unwrap());
        });
    }

    #[test]
    fn files_of_all_numbers_are_retained_and_removed_with_their_object() {
        let (files, (_, head)) = (HangingStore::default(), object(4 << 10));
        let (store, stop) = (opened(&files), Stop::default());
        let other = ObjectId { hi: 1, lo: 3 };
        run(async {
            let names = [(head.id, 0), (head.id, 3), (other, 0), (other, 2), (head.id, 77)];
            for file in names {
                let bytes = PutPayload::from_static(b"file");
                store.store.put(&store.path(file), bytes).await.unwrap();
            }
            let retained = BTreeSet::from([head.id.to_string()]);
            let mut sweep = Sweep::new(&store).unwrap();
            while sweep.step(&store, &retained, &stop).await.unwrap() {}
            assert_eq!(files.names().await, [head.id.to_string(), format!("{}.3", head.id)]);
            store.forget(head.id, &stop).await.unwrap();
            assert_eq!(files.names().await, [""; 0]);
            // Its only file has a number.
            let bytes = PutPayload::from_static(b"file");
            store.store.put(&store.path((head.id, 3)), bytes).await.unwrap();
            let mut sweep = Sweep::new(&store).unwrap();
            while sweep.step(&store, &retained, &stop).await.unwrap() {}
            store.forget(head.id, &stop).await.unwrap();
            assert_eq!(files.names().await, [""; 0]);
        });
    }
}
