//! One file, written and read in pieces, so that no object is in memory twice.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use farrow_memory::{Length, Offset, Region, Span};
use farrow_store::{ObjectId, SPILL_HEAD_BYTES_MIN, SpillFault, SpillHead};
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};

use super::change::delete;
use super::names::{FileChange, FileNumber, NUMBERS_MAX};
use super::worker::{Stop, fault};
use super::{SpillStore, make_folder};
use crate::protocol::WriteFault;

/// Bytes written or read at once. The private memory of the worker is a few of these.
pub(super) const PIECE_BYTES: u64 = 8 << 20;

/// The time that a bucket may take to drop the parts of a file that was not finished.
const ABORT_MAX: Duration = Duration::from_secs(5);

/// The content of a file to write.
struct FileContent<'a> {
    region: &'a Region,
    head: &'a SpillHead,
    parts: &'a [Span],
}

type Result<T> = std::result::Result<T, WriteFault>;

impl SpillStore {
    /// Checks that a folder has room for a file and some spare bytes. The space of a bucket is
    /// unknown.
    pub(super) fn check_space(&self, bytes: u64, spare_bytes: u64) -> Result<()> {
        let space = self.folder.as_ref().and_then(|folder| rustix::fs::statvfs(folder).ok());
        let Some(space) = space else {
            return Ok(());
        };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free >= bytes.saturating_add(spare_bytes) {
            return Ok(());
        }
        let what = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let reason = format!(
            "{what}: {free} B are left, of which {spare_bytes} B are for objects that come back"
        );
        Err(WriteFault { is_full: true, reason })
    }

    /// Whether the file of an object is there, as long as it was written. Costs one request.
    pub(super) async fn is_written(&self, head: &SpillHead, stop: &Stop) -> Result<bool> {
        let path = self.path((head.id, self.names.number(head.id).unwrap_or(0)));
        let look = async {
            match self.store.head(&path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(false),
                found => found.map(|found| found.size == head.file_bytes()),
            }
        };
        stop.step(look).await
    }

    /// Writes an object. The file exists completely or not at all, even after a failure.
    pub(super) async fn write(
        &self,
        region: &Region,
        head: &SpillHead,
        parts: &[Span],
        stop: &Stop,
    ) -> Result<()> {
        if let Some(folder) = &self.folder {
            // The library would make it with the modes of other folders.
            make_folder(folder).map_err(|error| fault(error.to_string()))?;
        }
        let mut upload = None;
        let file = (head.id, self.names.next(head.id)?);
        let content = FileContent { region, head, parts };
        let written = self.write_parts(file, content, &mut upload, stop).await;
        if written.is_ok() {
            self.names.set_number(file);
        }
        if let (Err(_), Some(mut upload)) = (&written, upload) {
            // A bucket retains uploaded parts until the upload is aborted. Not a step: those end
            // at once when the node shuts down.
            let aborted = tokio::time::timeout(ABORT_MAX, upload.abort()).await;
            if !matches!(aborted, Ok(Ok(()))) {
                tracing::warn!(id = %head.id, ?aborted, "parts of a spill file are left");
            }
        }
        written
    }

    /// `upload` becomes the upload, if the object is written in several parts.
    async fn write_parts(
        &self,
        file: FileNumber,
        content: FileContent<'_>,
        upload: &mut Option<Box<dyn MultipartUpload>>,
        stop: &Stop,
    ) -> Result<()> {
        let FileContent { region, head, parts } = content;
        let path = self.path(file);
        let mut buffer = head.encode();
        let mut checksums = Vec::with_capacity(parts.len());
        for part in parts {
            let mut checksum = 0;
            for piece in pieces(*part) {
                let start = buffer.len();
                buffer.resize(start + piece.length.0 as usize, 0);
                let bytes = buffer.get_mut(start..).unwrap_or_default();
                region
                    .read_by_call(piece.offset, bytes)
                    .map_err(|error| fault(error.to_string()))?;
                checksum = crc32c::crc32c_append(checksum, bytes);
                if buffer.len() as u64 >= PIECE_BYTES {
                    if upload.is_none() {
                        *upload = Some(stop.step(self.store.put_multipart(&path)).await?);
                    }
                    if let Some(upload) = upload {
                        let bytes = PutPayload::from(std::mem::take(&mut buffer));
                        stop.step(upload.put_part(bytes)).await?;
                    }
                }
            }
            checksums.push(checksum);
        }
        buffer.extend(head.encode_trailer(&checksums));
        let payload = PutPayload::from(buffer);
        if let Some(upload) = upload {
            stop.step(upload.put_part(payload.clone())).await?;
        }
        let (store, mut whole) = (Arc::clone(&self.store), upload.take());
        let step = async move {
            let Some(upload) = &mut whole else {
                return store.put(&path, payload).await.map(drop);
            };
            let completed = upload.complete().await.map(drop);
            if completed.is_err() {
                let _ = upload.abort().await;
            }
            completed
        };
        self.change(file, FileChange::Write, stop, step).await
    }

    /// Reads the head of an object's file, and checks the length of the file against it.
    pub(super) async fn look(&self, id: ObjectId, stop: &Stop) -> Result<SpillHead> {
        let found = self.find(id, stop).await?;
        if found < SPILL_HEAD_BYTES_MIN {
            return Err(short(found, SPILL_HEAD_BYTES_MIN));
        }
        let start = self.read(id, 0, SPILL_HEAD_BYTES_MIN, stop).await?;
        let length = SpillHead::length_of(&start).map_err(|wrong| fault(wrong.to_string()))?;
        if found < length {
            return Err(short(found, length));
        }
        let bytes = self.read(id, 0, length, stop).await?;
        let head = SpillHead::decode(&bytes).map_err(|wrong| fault(wrong.to_string()))?;
        if head.id != id {
            return Err(fault(format!("it is of object {}", head.id)));
        }
        if found != head.file_bytes() {
            return Err(short(found, head.file_bytes()));
        }
        Ok(head)
    }

    /// Reads an object into its blocks. Returns descriptor and metadata.
    pub(super) async fn load(
        &self,
        region: &Region,
        head: &SpillHead,
        blocks: &[Span],
        stop: &Stop,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let id = head.id;
        let trailer_at = head.file_bytes() - head.trailer_bytes();
        let trailer = self.read(id, trailer_at, head.trailer_bytes(), stop).await?;
        let stored = head.decode_trailer(&trailer).map_err(|wrong| fault(wrong.to_string()))?;
        let (mut own, mut found) = (Vec::new(), Vec::new());
        let before = head.part_bytes().map(|bytes| Span::new(Offset(0), Length(bytes))).take(2);
        let mut parts = PartReader::new(head.length()..trailer_at, async |range: Range<u64>| {
            self.read(id, range.start, range.end - range.start, stop).await
        });
        for (number, mut part) in before.chain(blocks.iter().copied()).enumerate() {
            let (mut checksum, mut collected) = (0, Vec::new());
            while !part.is_empty() {
                let bytes = parts.next(part.length.0).await?;
                checksum = crc32c::crc32c_append(checksum, bytes);
                if number < 2 {
                    collected.extend_from_slice(bytes);
                } else {
                    let written = region.write_by_call(part.offset, bytes);
                    written.map_err(|error| fault(error.to_string()))?;
                }
                let count = bytes.len() as u64;
                part = Span::new(Offset(part.offset.0 + count), Length(part.length.0 - count));
            }
            if number < 2 {
                own.push(collected);
            }
            found.push(checksum);
        }
        for (stored, computed) in stored.into_iter().zip(found) {
            if stored != computed {
                let what = "its bytes";
                let wrong = SpillFault::Checksum { what, stored, computed };
                return Err(fault(wrong.to_string()));
            }
        }
        let metadata = own.pop().unwrap_or_default();
        Ok((own.pop().unwrap_or_default(), metadata))
    }

    /// Finds the file of an object. Returns its length.
    async fn find(&self, id: ObjectId, stop: &Stop) -> Result<u64> {
        let known = self.names.number(id).unwrap_or(0);
        // An earlier daemon may have written another number.
        let numbers = (0..NUMBERS_MAX).filter(|number| *number != known);
        for number in std::iter::once(known).chain(numbers) {
            let path = self.path((id, number));
            let look = async {
                match self.store.head(&path).await {
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    found => found.map(|found| Some(found.size)),
                }
            };
            if let Some(bytes) = stop.step(look).await? {
                self.names.set_number((id, number));
                return Ok(bytes);
            }
        }
        stop.step(self.store.head(&self.path((id, known)))).await.map(|found| found.size)
    }

    pub(super) async fn forget(&self, id: ObjectId, stop: &Stop) -> Result<()> {
        let mut forgotten = Ok(());
        for file in self.names.take(id) {
            let (store, path) = (Arc::clone(&self.store), self.path(file));
            // Not each number has a file.
            let step = async move { delete(&*store, &path).await };
            // A file that cannot be removed leaves no other one.
            forgotten = forgotten.and(self.change(file, FileChange::Delete, stop, step).await);
        }
        forgotten
    }

    async fn read(&self, id: ObjectId, at: u64, length: u64, stop: &Stop) -> Result<Vec<u8>> {
        let path = self.path((id, self.names.number(id).unwrap_or(0)));
        let bytes = stop.step(self.store.get_range(&path, at..at + length)).await?;
        if bytes.len() as u64 != length {
            return Err(short(at + bytes.len() as u64, at + length));
        }
        Ok(bytes.into())
    }
}

/// The parts of a file, which follow one another, read in pieces of [`PIECE_BYTES`] that may hold
/// many of them: an object may have thousands of short blocks, and a bucket takes some 30 ms for
/// each read.
struct PartReader<F> {
    /// What has not been read.
    rest: Range<u64>,
    fetch: F,
    piece: Vec<u8>,
    /// Bytes of the piece that were returned.
    used: usize,
}

impl<F: AsyncFnMut(Range<u64>) -> Result<Vec<u8>>> PartReader<F> {
    fn new(rest: Range<u64>, fetch: F) -> Self {
        Self { rest, fetch, piece: Vec::new(), used: 0 }
    }

    /// The next 1 to `most` bytes.
    async fn next(&mut self, most: u64) -> Result<&[u8]> {
        if self.used == self.piece.len() {
            let Range { start, end } = self.rest;
            let until = start.saturating_add(PIECE_BYTES).min(end);
            if start >= until {
                return Err(short(end, end.saturating_add(most)));
            }
            self.piece = (self.fetch)(start..until).await?;
            (self.rest, self.used) = (until..end, 0);
        }
        let from = self.used;
        self.used = self.piece.len().min(from.saturating_add(most as usize));
        Ok(self.piece.get(from..self.used).unwrap_or_default())
    }
}

fn short(found: u64, needed: u64) -> WriteFault {
    fault(SpillFault::Short { found, needed }.to_string())
}

/// Splits a span into pieces of at most [`PIECE_BYTES`].
fn pieces(span: Span) -> impl Iterator<Item = Span> {
    let count = span.length.0.div_ceil(PIECE_BYTES);
    (0..count).map(move |number| {
        let start = number * PIECE_BYTES;
        let length = PIECE_BYTES.min(span.length.0 - start);
        Span::new(Offset(span.offset.0 + start), Length(length))
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Mutex;

    use farrow_memory::shm::ShmFabric;
    use farrow_memory::{Access, Geometry};
    use farrow_store::{ObjectKind, RegionUid};
    use object_store::aws::AmazonS3Builder;

    use super::super::names::FileNames;
    use super::*;

    /// Reads one request, and returns its first line.
    pub(in crate::spill) fn read_request(reader: &mut BufReader<TcpStream>) -> String {
        let (mut first, mut bytes) = (String::new(), 0);
        reader.read_line(&mut first).unwrap();
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 2 {
            let (key, value) = line.split_once(':').unwrap();
            if key.eq_ignore_ascii_case("content-length") {
                bytes = value.trim().parse().unwrap();
            }
            line.clear();
        }
        std::io::copy(&mut reader.take(bytes), &mut std::io::sink()).unwrap();
        first
    }

    /// Answers one request as a bucket that begins an upload and takes none of its parts.
    fn serve(stream: TcpStream, seen: &Mutex<Vec<String>>) {
        let mut reader = BufReader::new(stream);
        let first = read_request(&mut reader);
        let method = first.split(' ').next().unwrap().to_owned();
        let (status, body) = match &*method {
            "POST" => (
                "200 OK",
                "<InitiateMultipartUploadResult><UploadId>7</UploadId>\
                 </InitiateMultipartUploadResult>",
            ),
            "DELETE" => ("204 No Content", ""),
            _ => ("400 Bad Request", ""),
        };
        seen.lock().unwrap().push(first);
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close");
        write!(reader.get_mut(), "{head}\r\n\r\n{body}").unwrap();
    }

    pub(in crate::spill) fn bucket(endpoint: String) -> SpillStore {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let bucket = AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_allow_http(true)
            .with_bucket_name("bucket")
            .with_region("us-east-1")
            .with_access_key_id("key")
            .with_secret_access_key("secret")
            .build()
            .unwrap();
        SpillStore {
            store: Arc::new(bucket),
            prefix: object_store::path::Path::from("region"),
            folder: None,
            uid: RegionUid(1),
            label: "label".to_owned(),
            names: FileNames::default(),
        }
    }

    /// A region that is one object, whose blocks are at its origins.
    pub(in crate::spill) fn object(bytes: u64) -> (Arc<Region>, SpillHead) {
        let data = Length(bytes);
        let geometry = Geometry { control: Length(64 << 10), data };
        let fabric = Arc::new(ShmFabric::memfd("spill-test", geometry).unwrap());
        let region = Region::map(fabric, Access::Home, None).unwrap();
        let head = SpillHead {
            id: ObjectId { hi: 1, lo: 2 },
            kind: ObjectKind::Bytes,
            size: data,
            descriptor_bytes: 0,
            metadata_bytes: 0,
            origins: vec![Span::new(Offset(geometry.control.0), data)],
        };
        (Arc::new(region), head)
    }

    /// A table of thousands of blocks took a request for each.
    #[test]
    fn short_parts_are_read_together_and_long_ones_in_pieces() {
        let file: Vec<u8> = (0..2 * PIECE_BYTES + 1000).map(|at| (at % 251) as u8).collect();
        let first = 40;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut fetched = Vec::new();
        let mut found = Vec::new();
        runtime.block_on(async {
            let mut reader =
                PartReader::new(first..file.len() as u64, async |range: Range<u64>| {
                    fetched.push(range.clone());
                    Ok(file[range.start as usize..range.end as usize].to_vec())
                });
            let mut lengths = vec![128; 1000];
            lengths.push(file.len() as u64 - first - 128_000);
            for mut left in lengths {
                while left > 0 {
                    let bytes = reader.next(left).await.unwrap();
                    assert!(!bytes.is_empty());
                    left -= bytes.len() as u64;
                    found.extend_from_slice(bytes);
                }
            }
            assert!(reader.next(1).await.is_err(), "the file ends");
        });
        assert!(found == file[first as usize..]);
        let ends = [first, first + PIECE_BYTES, first + 2 * PIECE_BYTES, file.len() as u64];
        let expected: Vec<Range<u64>> = ends.windows(2).map(|pair| pair[0]..pair[1]).collect();
        assert_eq!(fetched, expected);
    }

    #[test]
    fn a_file_that_cannot_be_finished_leaves_no_parts_in_a_bucket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let of_server = Arc::clone(&seen);
        // It ends with the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(stream.unwrap(), &of_server);
            }
        });
        let store = bucket(endpoint);
        let (region, head) = object(2 * PIECE_BYTES);
        let parts = head.origins.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let written = runtime.block_on(store.write(&region, &head, &parts, &Stop::default()));
        assert!(written.is_err());
        let seen = seen.lock().unwrap();
        let last = seen.last().unwrap();
        assert!(last.starts_with("DELETE") && last.contains("uploadId=7"), "{seen:?}");
    }
}
