//! The thread that serves the page faults of one object.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farrow_memory::{Length, Offset, Span, page_bytes};

use super::CHUNK_BYTES;
use super::ahead::ReadAhead;
use super::object::PagedObject;

/// Stack of the thread, which runs nothing of users.
const STACK_BYTES: usize = 256 << 10;

/// Starts the thread. It ends once `stop` is readable: the object has no readers then.
pub(super) fn start(
    object: Arc<PagedObject>,
    ahead: ReadAhead,
    stop: OwnedFd,
) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("farrow-pages".into()).stack_size(STACK_BYTES);
    thread.spawn(move || serve(&object, ahead, &stop)).map(drop)
}

fn serve(object: &PagedObject, mut ahead: ReadAhead, stop: &OwnedFd) {
    loop {
        match object.map.faults(stop.as_fd()) {
            Ok(Some(faults)) => serve_some(object, &mut ahead, faults),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(object = %object.id(), %error, "page faults cannot be served");
                return object.give_up(object.map.span());
            }
        }
    }
}

/// Several threads may wait for pages of one range.
fn serve_some(object: &PagedObject, ahead: &mut ReadAhead, faults: Vec<Offset>) {
    let mut served: Vec<Span> = Vec::new();
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
                tracing::error!(
                    object = %object.id(), offset = fault.0, %error,
                    "a page cannot be brought: its reader gets SIGBUS"
                );
                let chunk = Span::new(wanted.offset, Length(CHUNK_BYTES.max(page_bytes())));
                object.give_up(chunk.intersection(object.map.span()).unwrap_or(page));
            }
        }
    }
}
