//! Waiting calls from C, and how they are interrupted.
//!
//! They waited until their timeout, whatever signals arrived. A thread now chooses how its calls
//! end: by a check, or, like EINTR, by any signal whose handler runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

#[path = "in_thread/node.rs"]
mod common;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};
use std::sync::mpsc;
use std::time::Duration;

use common::TestNode;
use farrow_capi::{FarrowClient, FarrowObject, FarrowObjectId, FarrowStatus};
use farrow_memory::sync::{AtomicBool, AtomicU32, Ordering};

type CheckFunction = unsafe extern "C" fn(*mut c_void) -> c_int;

// The functions as `farrow.h` declares them. C does not look inside the handles.
#[allow(improper_ctypes)]
unsafe extern "C" {
    fn farrow_connect(socket: *const c_char, s: f64, out: *mut *mut FarrowClient) -> FarrowStatus;
    fn farrow_close(client: *mut FarrowClient);
    fn farrow_get(
        client: *const FarrowClient,
        id: *const FarrowObjectId,
        name: *const c_char,
        timeout_seconds: f64,
        object: *mut *mut FarrowObject,
    ) -> FarrowStatus;
    fn farrow_object_release(object: *mut FarrowObject);
    fn farrow_put_bytes(
        client: *const FarrowClient,
        data: *const c_void,
        size: u64,
        name: *const c_char,
        id: *mut FarrowObjectId,
    ) -> FarrowStatus;
    fn farrow_set_interrupt(
        check: Option<CheckFunction>,
        data: *mut c_void,
        on: c_int,
    ) -> FarrowStatus;
    fn farrow_last_error() -> *const c_char;
}

/// Longest wait for anything that should be quick.
const LIMIT: Duration = Duration::from_secs(30);

static ASKED: AtomicU32 = AtomicU32::new(0);
static HANDLED: AtomicU32 = AtomicU32::new(0);
static THREADS: AtomicU32 = AtomicU32::new(0);

/// The check of a program whose signal handler sets a flag.
unsafe extern "C" fn is_set(flag: *mut c_void) -> c_int {
    ASKED.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the test passes an `AtomicBool` that outlives the call.
    c_int::from(unsafe { &*flag.cast::<AtomicBool>() }.load(Ordering::SeqCst))
}

/// How often the check below runs inside itself at the moment, at most, and how many of its own
/// waits had all their time.
static DEPTH: AtomicU32 = AtomicU32::new(0);
static DEEPEST: AtomicU32 = AtomicU32::new(0);
static WAITED: AtomicU32 = AtomicU32::new(0);

/// A check that waits for an object itself, twice.
unsafe extern "C" fn waits(client: *mut c_void) -> c_int {
    let depth = DEPTH.fetch_add(1, Ordering::SeqCst) + 1;
    DEEPEST.fetch_max(depth, Ordering::SeqCst);
    // A deeper one would end with the stack.
    if depth < 3 {
        let mut object = null_mut();
        let name = c"a stop flag".as_ptr();
        // SAFETY: the test passes an open client; the output lives in this frame.
        let got = unsafe {
            farrow_get(client.cast::<FarrowClient>(), null(), name, 0.2, &raw mut object)
        };
        WAITED.fetch_add(u32::from(got == FarrowStatus::Timeout), Ordering::SeqCst);
    }
    DEPTH.fetch_sub(1, Ordering::SeqCst);
    c_int::from(depth == 1 && WAITED.load(Ordering::SeqCst) >= 2)
}

extern "C" fn handler(_: c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

struct InterruptCaller(*mut FarrowClient);

impl InterruptCaller {
    fn new(node: &TestNode) -> Self {
        let socket = CString::new(node.socket().as_os_str().as_bytes()).unwrap();
        let mut client = null_mut();
        // SAFETY: the C string and the output live in this frame.
        let connected = unsafe { farrow_connect(socket.as_ptr(), 30.0, &raw mut client) };
        assert_eq!(connected, FarrowStatus::Ok);
        Self(client)
    }

    fn get(&self, name: &CStr) -> FarrowStatus {
        let mut object = null_mut();
        // SAFETY: the client is open; the output lives in this frame, and the object is released.
        unsafe {
            let got = farrow_get(self.0, null(), name.as_ptr(), 3600.0, &raw mut object);
            farrow_object_release(object);
            got
        }
    }

    fn put(&self, name: &CStr) {
        // SAFETY: the client is open, the bytes are static.
        let put =
            unsafe { farrow_put_bytes(self.0, b"x".as_ptr().cast(), 1, name.as_ptr(), null_mut()) };
        assert_eq!(put, FarrowStatus::Ok);
    }
}

impl Drop for InterruptCaller {
    fn drop(&mut self) {
        // SAFETY: the client is no longer in use.
        unsafe { farrow_close(self.0) };
    }
}

/// A thread that waits for an object, with a handle to send it signals.
struct WaitingThread {
    thread: libc::pthread_t,
    ended: mpsc::Receiver<(FarrowStatus, String)>,
}

impl WaitingThread {
    fn new(
        node: &TestNode,
        check: Option<CheckFunction>,
        flag: &'static AtomicBool,
        on: c_int,
    ) -> Self {
        let caller = InterruptCaller::new(node);
        let client = caller.0 as usize;
        std::mem::forget(caller);
        let (ready, is_ready) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let caller = InterruptCaller(client as *mut FarrowClient);
            let data = std::ptr::from_ref(flag).cast_mut().cast();
            // SAFETY: the flag is static; a thread may query its own id.
            unsafe {
                assert_eq!(farrow_set_interrupt(check, data, on), FarrowStatus::Ok);
                ready.send(libc::pthread_self()).unwrap();
            }
            let name = [c"two", c"three", c"four"][THREADS.fetch_add(1, Ordering::SeqCst) as usize];
            let status = caller.get(c"later");
            // SAFETY: the text is never NULL.
            let text = unsafe { CStr::from_ptr(farrow_last_error()) }.to_string_lossy();
            // The same client still works.
            caller.put(name);
            end.send((status, text.into_owned())).unwrap();
        });
        Self { thread: is_ready.recv_timeout(LIMIT).unwrap(), ended }
    }

    fn signal(&self) {
        // SAFETY: the thread runs until it has sent its result, which was not received yet.
        assert_eq!(unsafe { libc::pthread_kill(self.thread, libc::SIGUSR1) }, 0);
    }
}

/// A handler set with SA_RESTART, as most programs do.
fn set_handler() {
    // SAFETY: a zeroed action is valid; the handler only counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()), 0);
    }
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LIMIT;
    while !is_there() {
        assert!(std::time::Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_check_ends_a_wait_and_signals_do_if_the_thread_wants_it() {
    set_handler();
    let node = TestNode::start(64 << 20);
    static FLAG: AtomicBool = AtomicBool::new(false);

    // The check runs while the call waits, and ends it.
    let one = WaitingThread::new(&node, Some(is_set), &FLAG, 0);
    wait_for("the check is asked", || ASKED.load(Ordering::SeqCst) > 2);
    FLAG.store(true, Ordering::SeqCst);
    let (status, text) = one.ended.recv_timeout(LIMIT).unwrap();
    assert_eq!(status, FarrowStatus::Interrupted);
    assert!(text.contains("interrupted"), "{text}");

    // As with EINTR, a signal just before the wait does not count, so several may be necessary.
    let two = WaitingThread::new(&node, None, &FLAG, 1);
    let ended = (0..600).find_map(|_| {
        two.signal();
        two.ended.recv_timeout(Duration::from_millis(50)).ok()
    });
    assert_eq!(ended.unwrap().0, FarrowStatus::Interrupted);

    // Without a setting, handlers run and the wait continues.
    let three = WaitingThread::new(&node, None, &FLAG, 0);
    let before = HANDLED.load(Ordering::SeqCst);
    for count in 1..=3 {
        three.signal();
        wait_for("the handler ran", || HANDLED.load(Ordering::SeqCst) >= before + count);
    }
    let caller = InterruptCaller::new(&node);
    caller.put(c"later");
    assert_eq!(three.ended.recv_timeout(LIMIT).unwrap().0, FarrowStatus::Ok);
}

/// The check interrupted the calls of the check: it ran inside itself, until the stack was full.
#[test]
fn a_check_that_waits_itself_is_not_run_meanwhile() {
    let node = TestNode::start(64 << 20);
    let caller = InterruptCaller::new(&node);
    // SAFETY: the client is open until the setting is removed.
    unsafe {
        assert_eq!(farrow_set_interrupt(Some(waits), caller.0.cast(), 0), FarrowStatus::Ok);
        assert_eq!(caller.get(c"never"), FarrowStatus::Interrupted);
        assert_eq!(farrow_set_interrupt(None, null_mut(), 0), FarrowStatus::Ok);
    }
    assert_eq!(DEEPEST.load(Ordering::SeqCst), 1);
}
