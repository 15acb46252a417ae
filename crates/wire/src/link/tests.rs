//! A daemon that neither reads nor answers in time, played by the other end of the socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicU64, Ordering};

use super::{Link, LinkError, Notification, Notified};
use crate::{Reply, ReplyBody, Request, RequestBody};

/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

fn linked() -> (Arc<Link>, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(LONG)).unwrap();
    (Arc::new(Link::over("test".into(), ours).unwrap()), theirs)
}

/// A request of a megabyte, each for another name.
fn large() -> RequestBody {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    RequestBody::Reserve { names: vec![format!("{number}{}", "x".repeat(1 << 20))] }
}

/// Sends requests that nobody reads, until the link takes no more.
fn fill(link: &Link) {
    for _ in 0..12 {
        let error = link.call(large(), Instant::now()).unwrap_err();
        assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    }
}

/// Reads requests until one fits.
fn read_until(daemon: &mut UnixStream, is_last: impl Fn(&RequestBody) -> bool) -> Vec<Request> {
    let (mut input, mut requests) = (Vec::new(), Vec::new());
    let mut bytes = vec![0; 1 << 16];
    loop {
        while let Some((request, used)) = crate::decode::<Request>(&input).unwrap() {
            input.drain(..used);
            let is_end = is_last(&request.body);
            requests.push(request);
            if is_end {
                return requests;
            }
        }
        let count = daemon.read(&mut bytes).unwrap();
        assert!(count > 0, "the link ended");
        input.extend_from_slice(&bytes[..count]);
    }
}

/// A range that went back while 8 MiB were unsent was dropped without a word, and its memory stayed
/// granted.
#[test]
fn notifications_beyond_the_limit_arrive_once_the_daemon_reads() {
    let (link, mut daemon) = linked();
    fill(&link);
    assert_eq!(link.notify(Notification::Release(vec![(4096, 4096)])), Notified::Queued);
    assert_eq!(link.notify(Notification::Release(vec![(8192, 4096)])), Notified::Queued);
    assert_eq!(link.notify(Notification::Reclaim), Notified::Queued);
    let background = {
        let attendance = link.attendance().unwrap();
        assert!(link.attendance().is_none(), "one thread at a time");
        std::thread::spawn(move || attendance.run(Instant::now() + LONG))
    };
    let requests = read_until(&mut daemon, |body| *body == RequestBody::Reclaim);
    let release = RequestBody::Release { spans: vec![(4096, 8192)] };
    assert_eq!(requests.iter().filter(|request| request.body == release).count(), 1);
    // Those names may be reserved by a late reply.
    let is_reserve = |body: &RequestBody| matches!(body, RequestBody::Reserve { .. });
    for request in requests.iter().filter(|request| is_reserve(&request.body)) {
        reply(&mut daemon, request.seq, ReplyBody::Ready(Vec::new()));
    }
    assert!(background.join().unwrap().is_none(), "nothing is left");
    assert!(link.attendance().is_none());
}

fn reply(daemon: &mut UnixStream, seq: u64, body: ReplyBody) {
    let mut bytes = Vec::new();
    crate::encode(&Reply { seq, body: Ok(body) }, &mut bytes).unwrap();
    daemon.write_all(&bytes).unwrap();
}

/// The grant of a call that had ended came back only when the client next read.
#[test]
fn a_late_grant_goes_back_without_another_call() {
    let (link, mut daemon) = linked();
    let body = RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 };
    assert!(matches!(link.call(body, Instant::now()), Err(LinkError::Timeout { .. })));
    let attendance = link.attendance().unwrap();
    // The right can be given up and taken again.
    drop(attendance.run(Instant::now()).unwrap());
    let attendance = link.attendance().unwrap();
    let background = std::thread::spawn(move || attendance.run(Instant::now() + LONG));
    let requested = read_until(&mut daemon, |_| true).pop().unwrap();
    reply(&mut daemon, requested.seq, ReplyBody::Granted((8192, 4096)));
    let returned = read_until(&mut daemon, |_| true).pop().unwrap();
    assert_eq!(returned.body, RequestBody::Release { spans: vec![(8192, 4096)] });
    assert!(background.join().unwrap().is_none());
}

/// A drop that gave a range back waited for another thread's call, whose request the daemon did not
/// read.
#[test]
fn a_notification_waits_for_no_call() {
    let (link, daemon) = linked();
    let call = {
        let link = Arc::clone(&link);
        std::thread::spawn(move || link.call(large(), Instant::now() + LONG))
    };
    // The call has queued its request.
    while link.attendance().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(link.notify(Notification::Reclaim), Notified::Queued);
    assert!(!call.is_finished());
    drop(daemon);
    assert!(matches!(call.join().unwrap(), Err(LinkError::Unsent { .. })));
    assert_eq!(link.notify(Notification::Reclaim), Notified::Closed);
    assert!(link.attendance().is_none(), "a closed link has no work");
}

/// A daemon that is replaced takes no more requests, and answers those that it has. The first thread
/// that could not send once ended all other calls, although their answers were on the way.
#[test]
fn an_answer_is_awaited_after_another_thread_could_not_send() {
    let (link, mut daemon) = linked();
    let call = {
        let link = Arc::clone(&link);
        std::thread::spawn(move || link.call(RequestBody::Stats, Instant::now() + LONG))
    };
    let requested = read_until(&mut daemon, |_| true).pop().unwrap();
    daemon.shutdown(std::net::Shutdown::Read).unwrap();
    let unsent = link.call(RequestBody::Reclaim, Instant::now() + LONG);
    assert!(matches!(unsent, Err(LinkError::Unsent { .. })), "{unsent:?}");
    assert!(link.is_dead() && !call.is_finished());
    reply(&mut daemon, requested.seq, ReplyBody::Done);
    assert_eq!(call.join().unwrap().unwrap(), ReplyBody::Done);
    drop(daemon);
    assert!(matches!(link.call(large(), Instant::now() + LONG), Err(LinkError::Unsent { .. })));
}

/// Regression: a name whose reservation timed out was requested again at once. The node served both
/// requests in turn, and refused the second because of the first.
#[test]
fn a_name_is_requested_again_after_its_late_reservation_is_undone() {
    let (link, mut daemon) = linked();
    let reserve = || RequestBody::Reserve { names: vec!["n".into()] };
    let error = link.call(reserve(), Instant::now() + Duration::from_millis(10)).unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    let again = {
        let link = Arc::clone(&link);
        std::thread::spawn(move || link.call(reserve(), Instant::now() + LONG))
    };
    let first = read_until(&mut daemon, |body| matches!(body, RequestBody::Reserve { .. }));
    assert_eq!(first.len(), 1);
    reply(&mut daemon, first[0].seq, ReplyBody::Done);
    let next = read_until(&mut daemon, |body| matches!(body, RequestBody::Reserve { .. }));
    assert!(matches!(next[0].body, RequestBody::Unreserve { .. }), "{next:?}");
    assert_eq!(next.len(), 2, "{next:?}");
    reply(&mut daemon, next[1].seq, ReplyBody::Done);
    assert_eq!(again.join().unwrap().unwrap(), ReplyBody::Done);
    // Reservations of other names do not wait.
    let error = link.call(reserve(), Instant::now()).unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    let other = RequestBody::Reserve { names: vec!["other".into()] };
    let error = link.call(other, Instant::now()).unwrap_err();
    assert!(matches!(error, LinkError::Timeout { .. }), "{error:?}");
    let sent = read_until(
        &mut daemon,
        |body| matches!(body, RequestBody::Reserve { names } if names[0] == "other"),
    );
    assert_eq!(sent.len(), 2, "{sent:?}");
}
