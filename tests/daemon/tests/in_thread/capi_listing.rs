//! Labels, lists and waits through C, and the errors that a C program must distinguish.
//!
//! A C program could not label objects, find objects by label, or wait for several objects. An
//! exhausted quota looked like a full table of the node.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};

use crate::node::TestNode;
use farrow_capi::{
    FarrowClient, FarrowList, FarrowListed, FarrowMetadata, FarrowObject, FarrowObjectId,
    FarrowPair, FarrowPutOptions, FarrowStatus, FarrowTarget, FarrowWriter,
};

// The functions as `farrow.h` declares them. C does not look inside the handles.
#[allow(improper_ctypes)]
unsafe extern "C" {
    fn farrow_connect(socket: *const c_char, s: f64, out: *mut *mut FarrowClient) -> FarrowStatus;
    fn farrow_close(client: *mut FarrowClient);
    fn farrow_last_error() -> *const c_char;
    fn farrow_put_bytes_with(
        client: *const FarrowClient,
        data: *const c_void,
        size: u64,
        options: *const FarrowPutOptions,
        id: *mut FarrowObjectId,
    ) -> FarrowStatus;
    fn farrow_create_with(
        client: *const FarrowClient,
        size: u64,
        options: *const FarrowPutOptions,
        writer: *mut *mut FarrowWriter,
    ) -> FarrowStatus;
    fn farrow_writer_seal(writer: *mut FarrowWriter, id: *mut FarrowObjectId) -> FarrowStatus;
    fn farrow_get(
        client: *const FarrowClient,
        id: *const FarrowObjectId,
        name: *const c_char,
        timeout_seconds: f64,
        object: *mut *mut FarrowObject,
    ) -> FarrowStatus;
    fn farrow_metadata(
        client: *const FarrowClient,
        id: *const FarrowObjectId,
        name: *const c_char,
        metadata: *mut *mut FarrowMetadata,
    ) -> FarrowStatus;
    fn farrow_metadata_count(metadata: *const FarrowMetadata) -> usize;
    fn farrow_metadata_pair(
        metadata: *const FarrowMetadata,
        index: usize,
        pair: *mut FarrowPair,
    ) -> FarrowStatus;
    fn farrow_metadata_value(metadata: *const FarrowMetadata, key: *const c_char) -> *const c_char;
    fn farrow_metadata_free(metadata: *mut FarrowMetadata);
    fn farrow_wait(
        client: *const FarrowClient,
        targets: *const FarrowTarget,
        count: usize,
        enough: usize,
        timeout_seconds: f64,
        is_sealed: *mut c_int,
    ) -> FarrowStatus;
    fn farrow_list(
        client: *const FarrowClient,
        prefix: *const c_char,
        labels: *const FarrowPair,
        label_count: usize,
        list: *mut *mut FarrowList,
    ) -> FarrowStatus;
    fn farrow_list_count(list: *const FarrowList) -> usize;
    fn farrow_list_item(
        list: *const FarrowList,
        index: usize,
        listed: *mut FarrowListed,
    ) -> FarrowStatus;
    fn farrow_list_free(list: *mut FarrowList);
}

const MEMORY: u64 = 16 << 20;

fn last_error() -> String {
    // SAFETY: the text is never NULL and ends with a zero byte.
    unsafe { CStr::from_ptr(farrow_last_error()) }.to_str().unwrap().to_owned()
}

/// Copies a text of the library.
fn text(pointer: *const c_char) -> String {
    assert!(!pointer.is_null());
    // SAFETY: the header guarantees the zero byte.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

struct ListingCaller(*mut FarrowClient);

impl ListingCaller {
    fn new(node: &TestNode) -> Self {
        let socket = CString::new(node.socket().as_os_str().as_bytes()).unwrap();
        let mut client = null_mut();
        // SAFETY: the C string and the output live in this frame.
        let connected = unsafe { farrow_connect(socket.as_ptr(), 30.0, &raw mut client) };
        assert_eq!(connected, FarrowStatus::Ok);
        Self(client)
    }

    /// Puts bytes with a name and labels.
    fn put(&self, name: &CStr, labels: &[(&CStr, &CStr)]) -> FarrowStatus {
        let pairs = pairs(labels);
        let options = options(name, &pairs);
        let data = b"hello".as_ptr().cast();
        // SAFETY: all arguments outlive the call.
        unsafe { farrow_put_bytes_with(self.0, data, 5, &raw const options, null_mut()) }
    }

    /// Names of the listed objects.
    fn names(&self, prefix: Option<&CStr>, labels: &[(&CStr, &CStr)]) -> Vec<Option<String>> {
        let pairs = pairs(labels);
        let mut list = null_mut();
        let prefix = prefix.map_or(null(), CStr::as_ptr);
        // SAFETY: all arguments outlive the calls, and the list is freed once.
        unsafe {
            let done = farrow_list(self.0, prefix, pairs.as_ptr(), pairs.len(), &raw mut list);
            assert_eq!(done, FarrowStatus::Ok, "{}", last_error());
            let all = 0..farrow_list_count(list);
            let names = all.map(|index| item(list, index).name);
            let names = names.map(|name| (!name.is_null()).then(|| text(name))).collect();
            farrow_list_free(list);
            names
        }
    }

    fn wait(&self, names: &[&CStr], enough: usize, seconds: f64) -> (FarrowStatus, Vec<c_int>) {
        let targets: Vec<_> =
            names.iter().map(|name| FarrowTarget { id: null(), name: name.as_ptr() }).collect();
        let mut sealed = vec![-1; names.len()];
        let (first, count) = (targets.as_ptr(), targets.len());
        // SAFETY: all arguments outlive the call, and there is room for each result.
        let done =
            unsafe { farrow_wait(self.0, first, count, enough, seconds, sealed.as_mut_ptr()) };
        (done, sealed)
    }
}

impl Drop for ListingCaller {
    fn drop(&mut self) {
        // SAFETY: the client is closed once.
        unsafe { farrow_close(self.0) };
    }
}

fn pairs(labels: &[(&CStr, &CStr)]) -> Vec<FarrowPair> {
    let pair =
        |(key, value): &(&CStr, &CStr)| FarrowPair { key: key.as_ptr(), value: value.as_ptr() };
    labels.iter().map(pair).collect()
}

fn options(name: &CStr, labels: &[FarrowPair]) -> FarrowPutOptions {
    let (metadata, metadata_count) = (labels.as_ptr(), labels.len());
    FarrowPutOptions {
        name: name.as_ptr(),
        metadata,
        metadata_count,
        wait_seconds: 0.0,
        replace: 0,
        statistics: 0,
    }
}

/// # Safety
/// `list` is a handle.
unsafe fn item(list: *const FarrowList, index: usize) -> FarrowListed {
    let mut listed = MaybeUninit::uninit();
    // SAFETY: guaranteed by the caller; the output lives in this frame and is written on success.
    unsafe {
        let done = farrow_list_item(list, index, listed.as_mut_ptr());
        assert_eq!(done, FarrowStatus::Ok, "{}", last_error());
        listed.assume_init()
    }
}

#[test]
fn labels_come_back_by_key_and_a_list_has_them() {
    let node = TestNode::start(MEMORY);
    let caller = ListingCaller::new(&node);
    assert_eq!(caller.put(c"a/1", &[(c"unit", c"m"), (c"day", c"monday")]), FarrowStatus::Ok);
    assert_eq!(caller.put(c"a/2", &[(c"unit", c"s")]), FarrowStatus::Ok);
    assert_eq!(caller.put(c"b", &[]), FarrowStatus::Ok);

    // SAFETY: the handles are valid until they are freed, once each; the outputs live in this
    // frame.
    unsafe {
        let mut metadata = null_mut();
        let found = farrow_metadata(caller.0, null(), c"a/1".as_ptr(), &raw mut metadata);
        assert_eq!(found, FarrowStatus::Ok);
        assert_eq!(farrow_metadata_count(metadata), 2);
        let mut pair = FarrowPair { key: null(), value: null() };
        assert_eq!(farrow_metadata_pair(metadata, 0, &raw mut pair), FarrowStatus::Ok);
        assert_eq!((text(pair.key), text(pair.value)), ("day".into(), "monday".into()));
        assert_eq!(text(farrow_metadata_value(metadata, c"unit".as_ptr())), "m");
        assert!(farrow_metadata_value(metadata, c"month".as_ptr()).is_null());
        let beyond = farrow_metadata_pair(metadata, 2, &raw mut pair);
        assert_eq!(beyond, FarrowStatus::InvalidArgument);
        assert_eq!(last_error(), "index 2 of 2 pairs");
        farrow_metadata_free(metadata);

        let missing = farrow_metadata(caller.0, null(), c"nowhere".as_ptr(), &raw mut metadata);
        assert_eq!((missing, metadata.is_null()), (FarrowStatus::NotFound, true));

        let mut list = null_mut();
        let listed = farrow_list(caller.0, c"a/".as_ptr(), null(), 0, &raw mut list);
        assert_eq!((listed, farrow_list_count(list)), (FarrowStatus::Ok, 2));
        let second = item(list, 1);
        assert_eq!((text(second.name), second.size, second.kind), ("a/2".into(), 5, 1));
        assert_eq!((second.is_pinned, second.is_spilled), (0, 0));
        assert_eq!(second.creator_pid, std::process::id());
        assert!(second.sealed_at_ns > 0);
        assert_eq!(text(farrow_metadata_value(second.metadata, c"unit".as_ptr())), "s");
        farrow_list_free(list);
    }
    let name = |text: &str| Some(text.to_owned());
    assert_eq!(caller.names(None, &[]), [name("a/1"), name("a/2"), name("b")]);
    assert_eq!(caller.names(None, &[(c"unit", c"m")]), [name("a/1")]);
    assert_eq!(caller.names(Some(c"a/"), &[(c"unit", c"kg")]), []);
}

#[test]
fn a_created_object_has_labels_too() {
    let node = TestNode::start(MEMORY);
    let caller = ListingCaller::new(&node);
    let labels = pairs(&[(c"unit", c"m")]);
    let options = options(c"made", &labels);
    let mut writer = null_mut();
    // SAFETY: all arguments outlive the calls, and the writer is consumed once.
    unsafe {
        let made = farrow_create_with(caller.0, 8, &raw const options, &raw mut writer);
        assert_eq!(made, FarrowStatus::Ok);
        assert_eq!(farrow_writer_seal(writer, null_mut()), FarrowStatus::Ok);
    }
    assert_eq!(caller.names(None, &[(c"unit", c"m")]), [Some("made".to_owned())]);
}

#[test]
fn a_wait_reports_which_are_sealed() {
    let node = TestNode::start(MEMORY);
    let caller = ListingCaller::new(&node);
    assert_eq!(caller.put(c"first", &[]), FarrowStatus::Ok);
    let names = [c"first", c"second"];
    assert_eq!(caller.wait(&names, 1, 3600.0), (FarrowStatus::Ok, vec![1, 0]));
    // The timeout elapsed, which is not an error.
    assert_eq!(caller.wait(&names, 2, 0.01), (FarrowStatus::Ok, vec![1, 0]));
    assert_eq!(caller.wait(&names, 3, 0.0).0, FarrowStatus::InvalidArgument);
    assert_eq!(last_error(), "3 of 2 targets");

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = ListingCaller::new(&node);
            assert_eq!(other.put(c"second", &[]), FarrowStatus::Ok);
        });
        assert_eq!(caller.wait(&names, 2, 30.0), (FarrowStatus::Ok, vec![1, 1]));
    });
}

#[test]
fn a_quota_is_distinguished_from_a_full_table() {
    let node = TestNode::start_with_objects_max(MEMORY, 1);
    let caller = ListingCaller::new(&node);
    assert_eq!(caller.put(c"first", &[]), FarrowStatus::Ok);
    assert_eq!(caller.put(c"second", &[]), FarrowStatus::QuotaExceeded);
    assert!(last_error().contains("1 of 1 in use"), "{}", last_error());
}

#[test]
fn an_object_whose_file_is_lost_is_distinguished_from_one_that_is_not_there() {
    let node = TestNode::start_spilling(MEMORY);
    let caller = ListingCaller::new(&node);
    assert_eq!(caller.put(c"cold", &[]), FarrowStatus::Ok);
    assert_eq!(node.client().evict(MEMORY).unwrap().objects, 1);
    for file in files(&node.spill_folder()) {
        std::fs::remove_file(file).unwrap();
    }
    let mut object = null_mut();
    // SAFETY: the C string and the output live in this frame.
    let got = unsafe { farrow_get(caller.0, null(), c"cold".as_ptr(), 0.0, &raw mut object) };
    assert_eq!((got, object.is_null()), (FarrowStatus::NotRestored, true), "{}", last_error());
}

/// Files in a directory and below it; at least one.
fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    assert!(!found.is_empty());
    found
}

#[test]
fn bad_labels_are_refused_with_numbers() {
    let node = TestNode::start(MEMORY);
    let caller = ListingCaller::new(&node);
    let long = CString::new(vec![b'v'; 5000]).unwrap();
    assert_eq!(caller.put(c"x", &[(c"k", &long)]), FarrowStatus::InvalidArgument);
    assert!(last_error().contains("at most 4096 B"), "{}", last_error());
    assert_eq!(caller.put(c"x", &[(c"", c"v")]), FarrowStatus::InvalidArgument);

    let put = |metadata: *const FarrowPair, metadata_count| {
        let options = FarrowPutOptions {
            name: null(),
            metadata,
            metadata_count,
            wait_seconds: f64::NAN,
            replace: 0,
            statistics: 0,
        };
        // SAFETY: the bytes are static, and no call reads beyond a live pair.
        unsafe {
            let data = b"hello".as_ptr().cast();
            farrow_put_bytes_with(caller.0, data, 5, &raw const options, null_mut())
        }
    };
    assert_eq!(put(null(), 1), FarrowStatus::InvalidArgument);
    assert_eq!(last_error(), "metadata is NULL");
    assert_eq!(put(null(), usize::MAX), FarrowStatus::InvalidArgument);
    assert!(last_error().contains("4096 at most"), "{}", last_error());
    assert_eq!(put(null(), 0), FarrowStatus::InvalidArgument);
    assert_eq!(last_error(), "a timeout of NaN s");
    let half = FarrowPair { key: c"k".as_ptr(), value: null() };
    assert_eq!(put(&raw const half, 1), FarrowStatus::InvalidArgument);
    assert_eq!(last_error(), "value is NULL");
    assert!(caller.names(None, &[]).is_empty());
}
