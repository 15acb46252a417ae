//! Tickets for the connections of peers: a thread waits, and the event loop delivers.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farrow_net::peer::DaemonControl;
use farrow_net::ticket::Ticket;

use super::event_sender::EventSender;
use super::source::lock;
use crate::protocol::net::NetEvent;

/// Time limit for a ticket, which the peer issues on request.
const TICKET_MAX: Duration = Duration::from_secs(3);

/// Requests that the threads of a peer make to the daemon.
pub(super) struct PeerControl {
    pub(super) node: String,
    pub(super) event_sender: EventSender,
    pub(super) tickets: Arc<TicketWaits>,
}

/// Delivers a ticket, or the reason for its absence, to the waiting thread.
type TicketSender = SyncSender<Result<Ticket, String>>;

/// Threads that wait for tickets, by request number, and the last number.
#[derive(Default)]
pub(super) struct TicketWaits {
    next: Mutex<(u64, BTreeMap<u64, TicketSender>)>,
}

impl TicketWaits {
    /// Wakes the thread that waits for this request.
    pub(super) fn deliver(&self, number: u64, result: Result<Ticket, String>) {
        let mut next = lock(&self.next);
        if let Some(waiting) = next.1.remove(&number) {
            let _ = waiting.try_send(result);
        }
    }
}

impl DaemonControl for PeerControl {
    fn ticket(&self) -> Result<Ticket, String> {
        let (sender, receiver) = sync_channel(1);
        let number = {
            let mut next = lock(&self.tickets.next);
            next.0 += 1;
            let number = next.0;
            next.1.insert(number, sender);
            number
        };
        self.event_sender.send(NetEvent::TicketWanted { node: self.node.clone(), number });
        let ticket = receiver.recv_timeout(TICKET_MAX);
        let mut next = lock(&self.tickets.next);
        next.1.remove(&number);
        ticket.unwrap_or_else(|_| Err(format!("no ticket within {} ms", TICKET_MAX.as_millis())))
    }

    fn on_invalidate(&self, notice: u64, object: u64) {
        // Daemons send such notices over their control channel instead.
        tracing::debug!(node = self.node, notice, object, "an unexpected notice is ignored");
    }
}
