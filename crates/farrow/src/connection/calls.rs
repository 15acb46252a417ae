//! Requests to the daemon, and the search for its successor when it has ended.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farrow_memory::Span;
use farrow_store::ObjectId;
use farrow_wire::link::{Link, LinkError, NoReply, Notification, PendingReply};
use farrow_wire::{Hello, PROTOCOL_VERSION, ReplyBody, RequestBody, WireError, span, wire_span};

use crate::clock::deadline_after;
use crate::connection::connect::{ConnectTarget, Connected, connect};
use crate::connection::replaced::is_served;
use crate::connection::session::{Connection, Identity, Session};
use crate::error::Error;
use crate::interrupt::{self, may_interrupt};
use crate::lock::lock;
use crate::memory::extents::difference;
use crate::memory::node::{LostReply, Unanswered};

/// How long an ending client waits for a daemon that has just replaced another.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(500);

impl Session {
    /// Sends a request to the daemon, with the default timeout.
    pub(crate) fn call(&self, body: RequestBody) -> Result<ReplyBody, Error> {
        self.call_until(body, deadline_after(self.timeout))
    }

    /// As [`Self::call`], until this deadline.
    pub(crate) fn call_until(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<ReplyBody, Error> {
        Ok(self.call_numbered(body, deadline)?.0)
    }

    /// Sends a request to the daemon. If the daemon has ended, finds its successor and sends the
    /// request again if it was not sent or may be repeated. Also returns the number of the
    /// connection that answered.
    pub(crate) fn call_numbered(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(ReplyBody, u64), Unanswered> {
        self.check_process().map_err(Unanswered::unsent)?;
        // Other calls may run under a lock, or would have an unknown outcome if interrupted.
        let _quiet = (!may_interrupt(&body)).then(interrupt::suspend);
        let interrupt = interrupt::current();
        let mut body = body;
        let mut connection = self.connection();
        loop {
            if connection.link.is_dead() {
                // The request was not sent yet, so any request may be sent again. A call that waits
                // long for something else waits for a daemon no longer than any other.
                let until = deadline.min(deadline_after(self.timeout));
                connection = self.reconnect(&connection, until).map_err(Unanswered::unsent)?;
            }
            let again = may_repeat(&body).then(|| body.clone());
            let is_reply_retained = matches!(
                body,
                RequestBody::Seal { .. } | RequestBody::HoldBlock | RequestBody::EntryPages { .. }
            );
            let answer = match is_reply_retained {
                true => connection.link.call_to_keep(body, deadline),
                false => {
                    let answer = connection.link.call_unless(interrupt.as_ref(), body, deadline);
                    answer.map_err(NoReply::from)
                }
            };
            let NoReply { error, pending } = match answer {
                Ok(reply) => return Ok((reply, connection.number)),
                Err(no_reply) => no_reply,
            };
            // Its reply may still come, and bring what has to be given back.
            self.late.attend(&connection.link);
            let sent_on = connection.number;
            body = match (error, again) {
                (LinkError::Unsent { body, .. }, _) => *body,
                (LinkError::Closed { .. }, Some(body)) => body,
                (LinkError::Closed { reason, .. }, None) if self.is_peer_closed() => {
                    let reason = format!("it went away before it answered: {reason}");
                    let error = Error::NodeLost { node: self.node.clone(), reason };
                    let lost = Some(Box::new(LostReply { sent_on, pending: None }));
                    return Err(Unanswered { error, lost });
                }
                (error, _) => {
                    let is_unsent = match error {
                        LinkError::Frame(_) => true,
                        LinkError::Timeout { .. } => is_reply_retained && pending.is_none(),
                        _ => false,
                    };
                    let lost = (!is_unsent).then(|| Box::new(LostReply { sent_on, pending }));
                    return Err(Unanswered { error: self.error_of(error), lost });
                }
            };
        }
    }

    /// The reply to the last request of this kind if it is `late`, since the node serves that one
    /// too, or else to a new one. A reply that may still come is in `late` afterwards.
    pub(crate) fn call_after_late(
        &self,
        late: &mut Option<PendingReply>,
        late_deadline: Instant,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<ReplyBody, Error> {
        if let Some(last) = late.take() {
            match last.receive(late_deadline) {
                // The next daemon names the pages if the last one assigned them.
                Err(LinkError::Closed { .. }) => {}
                Err(error @ LinkError::Timeout { .. }) => {
                    *late = Some(last);
                    return Err(self.error_of(error));
                }
                reply => return reply.map_err(|error| self.error_of(error)),
            }
        }
        let answer = self.call_numbered(body, deadline);
        answer.map(|(reply, _)| reply).map_err(|Unanswered { error, lost }| {
            *late = lost.and_then(|lost| lost.pending);
            error
        })
    }

    /// The error of a call; of a timeout, with the name of the node and why it may be silent.
    pub(super) fn error_of(&self, error: LinkError) -> Error {
        match (error, self.members()) {
            (LinkError::Timeout { waited_ms, .. }, Some(members)) => {
                let own = members.nodes.iter().find(|node| node.is_own);
                let name = own.map_or(self.node.as_str(), |own| own.name.as_str());
                let is_cut_off = members.cluster != 0 && !members.has_lease;
                let why = if is_cut_off { ", which is cut off from its cluster" } else { "" };
                Error::Timeout { what: format!("an answer of node {name:?}{why}"), waited_ms }
            }
            (error, _) => self.with_own_name(error.into()),
        }
    }

    /// Whether a lost connection to another node failed at that node: the client's own daemon,
    /// which proxied it, still accepts connections.
    fn is_peer_closed(&self) -> bool {
        self.is_elsewhere() && is_served(&self.socket)
    }

    /// Sends a request whose reply is not needed, without waiting. False if the daemon has ended.
    pub(crate) fn notify(&self, notification: Notification) -> bool {
        self.is_own_process() && self.late.notify(&lock(&self.link).link, notification)
    }

    /// Returns unused ranges to the node, if `connection` is still the current one. Otherwise a
    /// later comparison of the records has already returned them, and they may have been granted
    /// again.
    pub(crate) fn give_back(&self, spans: &[Span], connection: u64) {
        if !self.clean(spans) {
            return;
        }
        let current = lock(&self.link);
        if current.number == connection {
            let spans = spans.iter().copied().map(wire_span).collect();
            self.late.notify(&current.link, Notification::Release(spans));
        }
    }

    /// On memory that is not coherent between machines, cleans the caches of this one before ranges
    /// are returned. False: the ranges remain this client's.
    fn clean(&self, spans: &[Span]) -> bool {
        if !self.region.is_node_local() {
            return true;
        }
        farrow_store::clean(&self.region, spans)
            .inspect_err(|error| tracing::error!(%error, "ranges are not given back"))
            .is_ok()
    }

    /// Ends the session. If the daemon has ended, looks once for its successor.
    pub(super) fn say_goodbye(&self) {
        if !self.is_own_process() {
            return;
        }
        let _quiet = interrupt::suspend();
        let deadline = deadline_after(self.timeout.min(GOODBYE_PATIENCE));
        // A daemon that is killed before it reads this leaves the session to its successor, which
        // then retains objects for a client that does not return.
        let link = lock(&self.link).link.clone();
        // One that only does not answer has no successor.
        let has_ended = |error: &LinkError| {
            matches!(
                error,
                LinkError::Closed { .. }
                    | LinkError::Unsent { .. }
                    | LinkError::Refused(WireError::Closing)
            )
        };
        if link.call(RequestBody::Goodbye, deadline).err().is_none_or(|error| !has_ended(&error)) {
            return;
        }
        match Link::connect(&self.socket, self.return_hello(), deadline) {
            Ok((link, ..)) => drop(link.call(RequestBody::Goodbye, deadline)),
            Err(error) => tracing::debug!(%error, "no daemon to say goodbye to"),
        }
    }

    fn return_hello(&self) -> Hello {
        let Identity { region_uid, slot, nonce } = self.identity;
        Hello {
            version: PROTOCOL_VERSION,
            resume: Some((region_uid, slot, nonce)),
            namespace: String::new(),
            node: self.node.clone(),
            maps_memory: true,
        }
    }

    pub(super) fn reconnect(
        &self,
        old: &Connection,
        deadline: Instant,
    ) -> Result<Connection, Error> {
        let _one = self.reconnecting.enter(&self.socket, deadline)?;
        let current = lock(&self.link).clone();
        if current.number != old.number && !current.link.is_dead() {
            return Ok(current);
        }
        let hello = self.return_hello();
        // A restarted daemon is waited for; if none appears, the caller waits no longer than its
        // own deadline.
        let to = ConnectTarget {
            socket: &self.socket,
            spawn: self.spawn.as_ref(),
            excluded: &|| self.excluded(),
            patience: self.timeout,
        };
        let connected = connect(&to, &hello, deadline);
        let Connected { link, welcome, .. } = connected
            .inspect_err(|error| self.note_replaced(error))
            .map_err(|error| self.with_own_name(error))?;
        let link = Arc::new(link);
        let pages: Vec<Span> = welcome.entry_pages.iter().copied().map(span).collect();
        self.local.add(&pages)?;
        // One of them may be that of a lost answer.
        for block in welcome.hold_blocks.iter().copied().map(span) {
            self.holds.add_block(block)?;
        }
        let theirs: Vec<Span> = welcome.grants.iter().copied().map(span).collect();
        let go_over = || self.go_over(Arc::clone(&link), &theirs);
        let connection = self.reservations.renew(&link, deadline, || {
            self.reserved_objects.renew(&link, welcome.are_objects_limited, go_over)
        });
        self.extents.reconciled(self);
        self.pool.extents().reconciled(self);
        if self.note_successor() {
            link.notify(Notification::ConfirmEarlier);
        }
        self.repeat_ended_leases(&link);
        self.late.attend(&link);
        tracing::info!(socket = %self.socket.display(), "connected again");
        Ok(connection)
    }

    /// Compares the records with the node's list of grants, and switches to the new connection,
    /// under one lock. So each change of the records is either sent to this connection or seen
    /// here. Grants of lost answers are returned. A caller that receives such an answer later sees
    /// by its number that it is void.
    fn go_over(&self, link: Arc<Link>, theirs: &[Span]) -> Connection {
        let mut current = lock(&self.link);
        let number = current.number + 1;
        let mut ours = self.extents.reconcile(number, theirs);
        ours.extend(self.pool.extents().reconcile(number, theirs));
        let lost = difference(theirs, &ours);
        if self.clean(&lost.iter().copied().map(span).collect::<Vec<_>>()) {
            link.notify(Notification::Release(lost));
        }
        *current = Connection { link, number };
        current.clone()
    }

    /// Ends a lease of this client. Does not wait: while there is no daemon, one thread waits for
    /// the next one, which learns of all ends.
    pub(crate) fn end_lease(&self, id: ObjectId, lease: Duration) {
        if !self.is_own_process() {
            return;
        }
        let is_there = |id| !matches!(self.reader.is_there(id), Ok(false));
        self.ended_leases.note(id, lease, is_there);
        let connection = self.connection();
        if self.notify(Notification::EndLeases(vec![id.into()])) || !self.ended_leases.begin_wait()
        {
            return;
        }
        let session = Weak::clone(&self.this);
        let wait = move || {
            let _quiet = interrupt::suspend();
            if let Some(session) = session.upgrade() {
                let deadline = deadline_after(session.timeout);
                if let Err(error) = session.reconnect(&connection, deadline) {
                    tracing::debug!(%error, "leases last until the next connection");
                }
                session.ended_leases.waited();
            }
        };
        let thread = std::thread::Builder::new().name("farrow-lease".into()).stack_size(256 << 10);
        if let Err(error) = thread.spawn(wait) {
            tracing::debug!(%error, "leases last until the next connection");
            self.ended_leases.waited();
        }
    }

    /// Repeats the ends of leases to a daemon, over the connection that is the current one now.
    fn repeat_ended_leases(&self, link: &Arc<Link>) {
        let ids = self.ended_leases.ids();
        if !ids.is_empty() {
            self.late.notify(link, Notification::EndLeases(ids));
        }
    }
}

/// Whether a request may be sent twice: a repetition changes nothing, the next daemon takes back the
/// grants of the lost answer, or it names the page of holds of it.
fn may_repeat(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::HoldBlock
            | RequestBody::ReserveObjects { .. }
            | RequestBody::Wait { .. }
            | RequestBody::Confirm { .. }
            | RequestBody::ConfirmEarlier
            | RequestBody::EndLeases { .. }
            | RequestBody::Reclaim
            | RequestBody::Stats
            | RequestBody::Namespaces
            | RequestBody::Rules
            | RequestBody::SetRule(_)
            | RequestBody::Set(_)
            | RequestBody::Nodes
            | RequestBody::FindLost { .. }
            | RequestBody::Fetch { .. }
            | RequestBody::ListAt { .. }
            | RequestBody::FindAt { .. }
            | RequestBody::Import { .. }
            | RequestBody::Pin { .. }
            | RequestBody::Restore { .. }
            | RequestBody::Overview { .. }
    )
}
