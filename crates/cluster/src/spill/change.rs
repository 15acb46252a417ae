//! Changes of files that may take longer than their jobs.

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};

use super::SpillStore;
use super::names::{FileChange, FileNumber};
use super::worker::Stop;
use crate::protocol::WriteFault;

impl SpillStore {
    pub(super) fn path(&self, (id, number): FileNumber) -> Path {
        let name = if number == 0 { id.to_string() } else { format!("{id}.{number}") };
        self.prefix.clone().join(name)
    }

    /// Changes a file. If the change times out, it continues without the job: a file that it writes
    /// is removed once it has ended, and until then no other change has its name.
    pub(super) async fn change(
        &self,
        file: FileNumber,
        change: FileChange,
        stop: &Stop,
        step: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> Result<(), WriteFault> {
        let mut task = tokio::spawn(step);
        let ended = stop.step(async { (&mut task).await.unwrap_or_else(|lost| Err(lost.into())) });
        let ended = ended.await;
        if ended.is_err() && !task.is_finished() {
            let (names, store, path) = (self.names.clone(), self.store.clone(), self.path(file));
            names.begin_late(file);
            tokio::spawn(async move {
                let _ = task.await;
                if change == FileChange::Write {
                    remove(&*store, &path).await;
                }
                names.end_late(file);
            });
        }
        ended
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

    use farrow_memory::sync::{AtomicBool, Ordering};
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
    use super::super::names::{FileNames, NUMBERS_MAX};
    use super::*;
    use crate::spill::sweep::Sweep;

    /// Writes and deletes go on when their callers have given up, as those of a file system. They
    /// wait while it hangs.
    #[derive(Debug, Clone, Default)]
    struct HangingStore {
        files: Arc<InMemory>,
        hangs: Arc<AtomicBool>,
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
