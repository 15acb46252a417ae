//! Opens that no thread waits for.
//!
//! The caller writes the request, if the socket takes it at once, and the receiving thread passes the
//! answer on. So no other thread of this node runs between an event loop and the peer.

use std::sync::Arc;
use std::time::Instant;

use super::{OPEN_ATTEMPTS, Pending, Small, SmallAnswer, SmallConnection, connection, release};
use crate::error::{ConnectionError, NetError};
use crate::frame::Op;
use crate::peer::shared::OpenedObject;
use crate::source::HoldId;

/// Unanswered requests of a connection with which no open is begun: it waits for its turn in a thread.
const BUSY_MIN: usize = 64;

/// What becomes of the answer, or of the error of the last attempt.
pub(in crate::peer) type OnOpened = Box<dyn FnOnce(Result<OpenedObject, NetError>) + Send>;

/// An open without an answer.
pub(super) struct BegunOpen {
    want: Vec<u8>,
    since: Instant,
    attempts: usize,
    on_end: OnOpened,
}

/// Begins an open. Returns false, and calls nothing, if that would wait: for a connection, another
/// sender or the socket.
pub(in crate::peer) fn begin(small: &Arc<Small>, want: &[u8], on_end: OnOpened) -> bool {
    let Some(live) = small.usable() else { return false };
    let Ok(mut writer) = live.writer.try_lock() else { return false };
    if !live.socket.is_writable() {
        return false;
    }
    let id = small.peer.number();
    let open = BegunOpen { want: want.to_vec(), since: Instant::now(), attempts: 0, on_end };
    {
        let mut table = live.table();
        if table.ended.is_some() || table.pending.len() >= BUSY_MIN {
            return false;
        }
        table.pending.insert(id, Pending::Begun(Box::new(open)));
    }
    let Err(error) = writer.write_bytes(Op::Open, id, id, want) else { return true };
    live.socket.cut(error.to_string());
    // Otherwise the receiving thread, which is ending, opens it again.
    let is_left = live.table().pending.remove(&id).is_some();
    if is_left {
        release(small, HoldId(id));
    }
    !is_left
}

/// Opens again what the end of a connection has left without an answer. The peer may or may not have
/// created the hold.
pub(super) fn again(
    small: &Arc<Small>,
    hold: HoldId,
    mut open: Box<BegunOpen>,
    mut error: NetError,
) {
    release(small, hold);
    loop {
        open.attempts += 1;
        if open.attempts >= OPEN_ATTEMPTS || small.peer.dialer.is_lost() {
            return (open.on_end)(Err(error));
        }
        match send(small, open) {
            None => return,
            Some((left, failed)) => {
                open = left;
                error = small.peer.dialer.error(&small.peer, failed);
            }
        }
    }
}

/// Sends an open once. Returns it if that failed and no other thread opens it again.
fn send(small: &Arc<Small>, mut open: Box<BegunOpen>) -> Option<(Box<BegunOpen>, ConnectionError)> {
    let live = match connection(small) {
        Ok(live) => live,
        Err(error) => return Some((open, error)),
    };
    let (id, want) = (small.peer.number(), open.want.clone());
    open.since = Instant::now();
    let (pending, error) = match super::begin(&live, id, Pending::Begun(open)) {
        Ok(()) => {
            let error = live.write(Op::Open, id, id, &want).err()?;
            live.socket.cut(error.to_string());
            let left = live.table().pending.remove(&id)?;
            release(small, HoldId(id));
            (left, error)
        }
        Err(refused) => refused,
    };
    match pending {
        Pending::Begun(open) => Some((open, error)),
        Pending::Open | Pending::Read(_) => None,
    }
}

/// Passes an answer on.
pub(super) fn end(small: &Small, open: BegunOpen, answer: SmallAnswer) {
    if matches!(answer, SmallAnswer::Opened(..)) {
        small.peer.link().on_round_trip(open.since.elapsed());
    }
    (open.on_end)(super::result_of(small, answer));
}

/// Ends a connection on which an open has waited too long, while other answers arrive. Looks at times
/// only: a look at all of them is long.
pub(super) fn check(live: &SmallConnection, looked: &mut Instant) -> Result<(), ConnectionError> {
    if looked.elapsed() < live.socket.stall() / 2 {
        return Ok(());
    }
    *looked = Instant::now();
    let waited = live.socket.frame_time();
    let is_late = |pending: &Pending| match pending {
        Pending::Begun(open) => open.since.elapsed() > waited,
        Pending::Open | Pending::Read(_) => false,
    };
    let is_late = live.table().pending.values().any(is_late);
    if is_late { Err(ConnectionError::Stalled { waited }) } else { Ok(()) }
}
