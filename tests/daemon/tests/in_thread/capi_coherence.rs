//! Publish and refresh through C: they act on the cache lines of a range, and refuse other memory.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::node::TestNode;
use farrow::FabricStats;
use farrow_capi::{FarrowClient, FarrowStatus, FarrowWriter};

// The functions as `farrow.h` declares them. C does not look inside the handles.
#[allow(improper_ctypes)]
unsafe extern "C" {
    fn farrow_connect(
        socket: *const std::ffi::c_char,
        timeout_seconds: f64,
        client: *mut *mut FarrowClient,
    ) -> FarrowStatus;
    fn farrow_close(client: *mut FarrowClient);
    fn farrow_create(
        client: *const FarrowClient,
        size: u64,
        name: *const std::ffi::c_char,
        writer: *mut *mut FarrowWriter,
    ) -> FarrowStatus;
    fn farrow_writer_data(writer: *const FarrowWriter) -> *mut c_void;
    fn farrow_writer_abort(writer: *mut FarrowWriter) -> FarrowStatus;
    fn farrow_publish(client: *const FarrowClient, data: *const c_void, size: u64) -> FarrowStatus;
    fn farrow_refresh(client: *const FarrowClient, data: *const c_void, size: u64) -> FarrowStatus;
    fn farrow_last_error() -> *const std::ffi::c_char;
}

type MaintenanceFunction =
    unsafe extern "C" fn(*const FarrowClient, *const c_void, u64) -> FarrowStatus;

/// A client of C, and an object that it writes.
struct CoherenceCaller {
    client: *mut FarrowClient,
    writer: *mut FarrowWriter,
    /// Address of its first byte.
    data: usize,
}

const OBJECT_BYTES: u64 = 64 << 10;

impl CoherenceCaller {
    fn new(node: &TestNode) -> Self {
        let socket = CString::new(node.socket().as_os_str().as_bytes()).unwrap();
        let (mut client, mut writer) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the C string and the outputs live in this frame; the client is used only if there is one.
        unsafe {
            assert_eq!(farrow_connect(socket.as_ptr(), 30.0, &raw mut client), FarrowStatus::Ok);
            let created = farrow_create(client, OBJECT_BYTES, std::ptr::null(), &raw mut writer);
            assert_eq!(created, FarrowStatus::Ok);
            let data = farrow_writer_data(writer).addr();
            Self { client, writer, data }
        }
    }

    fn act(&self, act: MaintenanceFunction, address: usize, size: u64) -> FarrowStatus {
        // SAFETY: the client is open; the address is not dereferenced, wherever it points.
        unsafe { act(self.client, std::ptr::without_provenance(address), size) }
    }

    /// The statistics of this process.
    fn stats(&self) -> FabricStats {
        // SAFETY: the client is open.
        let client = unsafe { &*self.client }.get();
        client.stats().unwrap().fabrics.into_values().next().unwrap()
    }

    fn line_bytes(&self) -> u64 {
        // SAFETY: the client is open.
        unsafe { &*self.client }.get().region().line_bytes().into()
    }
}

impl Drop for CoherenceCaller {
    fn drop(&mut self) {
        // SAFETY: both are open, and not used afterwards.
        unsafe {
            farrow_writer_abort(self.writer);
            farrow_close(self.client);
        }
    }
}

/// Lines published and refreshed, and calls of both.
fn numbers(stats: &FabricStats) -> [u64; 4] {
    [stats.published_lines, stats.refreshed_lines, stats.publish_calls, stats.refresh_calls]
}

#[test]
fn each_line_around_a_range_is_counted_once() {
    let node = TestNode::start_node_local(16 << 20);
    let caller = CoherenceCaller::new(&node);
    let line = caller.line_bytes();
    for (first, size, lines) in [
        (0, 0, 0),
        (line + 5, 0, 0),
        (0, 1, 1),
        (0, line, 1),
        (0, line + 1, 2),
        (1, line - 1, 1),
        (1, line, 2),
        (line - 1, 1, 1),
        (line - 1, 2, 2),
        (line - 1, line + 2, 3),
        (7, 10 * line, 11),
        (3 * line, 10 * line, 10),
        (OBJECT_BYTES - 1, 1, 1),
        (0, OBJECT_BYTES, OBJECT_BYTES / line),
    ] {
        let address = caller.data + first as usize;
        let before = numbers(&caller.stats());
        assert_eq!(caller.act(farrow_publish, address, size), FarrowStatus::Ok);
        let published = numbers(&caller.stats());
        assert_eq!(caller.act(farrow_refresh, address, size), FarrowStatus::Ok);
        let refreshed = numbers(&caller.stats());
        let [lines_before, others, calls, other_calls] = before;
        let expected = [lines_before + lines, others, calls + 1, other_calls];
        assert_eq!(published, expected, "{size} B from {first}");
        let expected = [lines_before + lines, others + lines, calls + 1, other_calls + 1];
        assert_eq!(refreshed, expected, "{size} B from {first}");
    }
}

#[test]
fn a_coherent_fabric_has_no_line_to_act_on() {
    let node = TestNode::start(16 << 20);
    let caller = CoherenceCaller::new(&node);
    let [lines, others, calls, other_calls] = numbers(&caller.stats());
    for act in [farrow_publish as MaintenanceFunction, farrow_refresh] {
        assert_eq!(caller.act(act, caller.data + 1, 5000), FarrowStatus::Ok);
    }
    let expected = [lines, others, calls + 1, other_calls + 1];
    assert_eq!(numbers(&caller.stats()), expected);
}

#[test]
fn what_is_no_range_of_the_region_is_refused_with_its_numbers() {
    let node = TestNode::start_node_local(16 << 20);
    let caller = CoherenceCaller::new(&node);
    // SAFETY: the client is open.
    let region = unsafe { &*caller.client }.get().region();
    let (base, end) = (region.base().0, region.base().0 + region.length().as_usize());
    let on_the_stack = 7_u8;
    let before = numbers(&caller.stats());
    for (address, size) in [
        (base - 1, 1),
        (base - 1, 2),
        (base, region.length().0 + 1),
        (end - 1, 2),
        (end, 0),
        (end, 1),
        (caller.data, u64::MAX),
        (caller.data, u64::MAX - caller.data as u64 + 1),
        (base + 1, region.length().0),
        (usize::MAX, 1),
        (usize::MAX, u64::MAX),
        (0, 8),
        (std::ptr::from_ref(&on_the_stack).addr(), 1),
    ] {
        for act in [farrow_publish as MaintenanceFunction, farrow_refresh] {
            let status = caller.act(act, address, size);
            assert_eq!(status, FarrowStatus::InvalidArgument, "{size} B at {address:#x}");
            // SAFETY: valid until the next error of this thread.
            let text = unsafe { CStr::from_ptr(farrow_last_error()) }.to_str().unwrap();
            let expected = format!("{size} B at {address:#x} are not in the region");
            assert_eq!(text, expected);
        }
    }
    for act in [farrow_publish as MaintenanceFunction, farrow_refresh] {
        // SAFETY: NULL is an allowed argument, which the call refuses.
        let status = unsafe { act(std::ptr::null(), std::ptr::null(), 1) };
        assert_eq!(status, FarrowStatus::InvalidArgument);
    }
    assert_eq!(numbers(&caller.stats()), before, "nothing was done");
    // The first and the last byte are in the region.
    for (address, size) in [(base, 1), (end - 1, 1), (base, region.length().0)] {
        assert_eq!(caller.act(farrow_publish, address, size), FarrowStatus::Ok);
    }
}
