//! The thread for the page faults of one object.
//!
//! It lets the node serve them. If the node cannot, or ends, the thread serves them by requests.

use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::lazy::{FaultsHandover, ReadAhead};
use farrow_memory::{Length, Offset, Span, page_bytes};
use farrow_wire::{FaultDescriptors, ServeFaults};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::CHUNK_BYTES;
use super::object::PagedObject;

/// Stack of the thread, which runs nothing of users.
const STACK_BYTES: usize = 256 << 10;

/// Time limit for the message to the node.
const HANDOVER_MAX: Duration = Duration::from_secs(5);

/// Least time after which faults are passed on again. It costs a reader some round trips to the node.
const PASS_ON_AGAIN: Duration = Duration::from_secs(1);

/// Lets the node serve the faults of an object, of which the buffers end there. The end of the
/// returned socket is the end of this service. `None`: the node is not asked, or cannot be.
fn pass_on(object: &PagedObject, socket: UnixStream, ends: &[u64]) -> Option<UnixStream> {
    // The node could show anything to this process.
    let node = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    if node.uid != rustix::process::geteuid() {
        return None;
    }
    let send = || -> std::io::Result<()> {
        let FaultsHandover { faults, address, span } = object.map.handover()?;
        let chunks = object.shown_by_node()?;
        let (start, length) = (span.offset.0, span.length.0);
        let message = ServeFaults { address, start, length, ends: ends.to_vec() };
        let descriptors =
            FaultDescriptors { faults: faults.as_fd(), shown: chunks.as_file().as_fd() };
        message.send(&socket, &descriptors, HANDOVER_MAX)
    };
    match send() {
        Ok(()) => {}
        // A part of the message may be sent, so that only the end of the socket is sure.
        Err(error) => {
            tracing::debug!(object = %object.id(), %error, "page faults are not passed on");
            let _ = socket.shutdown(Shutdown::Write);
        }
    }
    Some(socket)
}

/// Waits until the node serves no faults any more. False: the object has no readers, and the node shows
/// no more pages, so that the object may be unmapped.
fn wait_for_node(node: &UnixStream, stop: &OwnedFd) -> bool {
    let mut is_stopped = false;
    loop {
        let of_node = PollFd::new(node, PollFlags::IN | PollFlags::RDHUP);
        let mut watched = [of_node, PollFd::new(stop, PollFlags::IN)];
        // Once stopped, only for the node.
        let watched = watched.get_mut(..if is_stopped { 1 } else { 2 }).unwrap_or_default();
        match poll(watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // As it cannot be known whether the node still shows pages, nothing may be unmapped.
            Err(error) => {
                tracing::error!(%error, "page faults of an object");
                std::thread::sleep(HANDOVER_MAX);
            }
        }
        let mut is_ready = watched.iter().map(|one| !one.revents().is_empty());
        if is_ready.next().unwrap_or_default() {
            return !is_stopped;
        }
        if is_ready.next().unwrap_or_default() {
            // The node closes its end when it shows no more pages.
            is_stopped = true;
            let _ = node.shutdown(Shutdown::Write);
        }
    }
}

/// Starts the thread. It ends once `stop` is readable: the object has no readers then. The buffers of
/// the object end at `ends`. `socket`: that by which the node serves faults, if it does.
pub(super) fn start(
    object: Arc<PagedObject>,
    ends: Vec<u64>,
    stop: OwnedFd,
    socket: Option<UnixStream>,
) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("farrow-pages".into()).stack_size(STACK_BYTES);
    // At once, so that no fault is taken by the wrong one.
    let node = socket.and_then(|socket| pass_on(&object, socket, &ends));
    thread.spawn(move || serve(&object, &ends, &stop, node)).map(drop)
}

fn serve(object: &PagedObject, ends: &[u64], stop: &OwnedFd, mut node: Option<UnixStream>) {
    let mut ahead = ReadAhead::new(ends.to_vec());
    let is_served = node.is_some();
    let mut passed_on = Instant::now();
    loop {
        if let Some(node) = node.take() {
            if !wait_for_node(&node, stop) {
                return;
            }
            tracing::debug!(object = %object.id(), "page faults are served here from now on");
            if let Err(error) = object.map.fault_again() {
                tracing::error!(object = %object.id(), %error, "readers may wait for ever");
            }
            passed_on = Instant::now();
        }
        match object.map.faults(stop.as_fd()) {
            Ok(Some(faults)) => {
                let is_brought = serve_some(object, &mut ahead, faults);
                if is_served && is_brought && passed_on.elapsed() >= PASS_ON_AGAIN {
                    passed_on = Instant::now();
                    let socket = object.faults_socket();
                    node = socket.and_then(|socket| pass_on(object, socket, ends));
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::error!(object = %object.id(), %error, "page faults cannot be served");
                return object.give_up(object.map.span());
            }
        }
    }
}

/// Several threads may wait for pages of one range. Returns whether the node has brought some, and all
/// that it was asked for.
fn serve_some(object: &PagedObject, ahead: &mut ReadAhead, faults: Vec<Offset>) -> bool {
    let mut served: Vec<Span> = Vec::new();
    let mut has_failed = false;
    for fault in faults {
        let page = Span::new(fault, Length(page_bytes()));
        if served.iter().any(|span| span.contains(page)) {
            continue;
        }
        if object.show_again(page) {
            continue;
        }
        let wanted = ahead.span_for(fault);
        let Some(span) = wanted.intersection(object.map.span()) else { continue };
        match object.bring(span) {
            Ok(()) => served.push(span),
            Err(error) => {
                has_failed = true;
                tracing::error!(
                    object = %object.id(), offset = fault.0, %error,
                    "a page cannot be brought: its reader gets SIGBUS"
                );
                let chunk = Span::new(wanted.offset, Length(CHUNK_BYTES.max(page_bytes())));
                object.give_up(chunk.intersection(object.map.span()).unwrap_or(page));
            }
        }
    }
    !served.is_empty() && !has_failed
}
