//! From which node the bytes of an object are fetched: small ones from their home, large ones from
//! the node that the home names.
//!
//! The object stays held at its home, whichever node sends it. If a sender fails in any way, or is too
//! slow to begin, the home sends the object.

use farrow_memory::{Offset, Span};
use farrow_net::frame::Opened;
use farrow_store::ObjectId;

use super::context::ReplicaContext;
use super::state::Replicas;
use super::transfers::{FetchSender, Fetching, SenderQuestion, release};
use crate::protocol::Action;
use crate::protocol::net::broadcast::{BROADCAST_BYTES_MIN, SenderAnswer, wait_max};
use crate::protocol::net::query::NetQuery;
use crate::protocol::net::{NetAction, NetFault};

/// Pause before the home is asked again for a sender.
const ASK_AGAIN_MS: u64 = 20;

/// A home that lets a reader wait for longer than its own limit, by this, is not asked again.
const LATE_MS: u64 = 2_000;

/// What a node answered to a question about a sender.
pub(super) struct SenderReply<'a> {
    pub(super) token: u64,
    pub(super) node: &'a str,
    pub(super) result: Result<(u64, Opened), NetFault>,
}

/// Bytes of an object.
fn bytes_of(loading: &Fetching) -> u64 {
    loading.opened.blocks.iter().map(|block| block.length.0).fold(0, u64::saturating_add)
}

/// Whether other nodes may send an object, or have it sent by this one.
fn is_broadcast(loading: &Fetching) -> bool {
    loading.import.is_none() && loading.part.is_none() && bytes_of(loading) >= BROADCAST_BYTES_MIN
}

impl Replicas {
    /// Begins the transfer of an object whose memory is taken.
    pub(super) fn begin_transfer(&mut self, origin: ObjectId, context: &mut ReplicaContext<'_>) {
        let Some(loading) = self.loading.get(&origin) else { return };
        if !is_broadcast(loading) {
            return self.transfer_from_home(origin, context);
        }
        let wait_ms = u64::try_from(wait_max(bytes_of(loading)).as_millis()).unwrap_or(u64::MAX);
        let until_ms = context.now_ms.saturating_add(wait_ms).saturating_add(LATE_MS);
        self.ask_for_sender(origin, until_ms, context);
    }

    fn transfer_from_home(&mut self, origin: ObjectId, context: &mut ReplicaContext<'_>) {
        let Some(loading) = self.loading.get_mut(&origin) else { return };
        loading.sender = FetchSender::Home;
        let (node, hold) = (loading.node.clone(), loading.hold);
        let pieces = pieces(&loading.opened.blocks, &loading.blocks);
        context.out.push(Action::Net(NetAction::Load { origin, node, hold, pieces }));
    }

    /// Asks the home which node sends an object. After `until_ms` it is not asked again.
    fn ask_for_sender(
        &mut self,
        origin: ObjectId,
        until_ms: u64,
        context: &mut ReplicaContext<'_>,
    ) {
        self.ask_home(origin, None, Some(until_ms), context);
    }

    /// Notifies the home that a node does not send an object. The home sends it then.
    fn fall_back(&mut self, origin: ObjectId, failed: String, context: &mut ReplicaContext<'_>) {
        self.ask_home(origin, Some(failed), None, context);
    }

    fn ask_home(
        &mut self,
        origin: ObjectId,
        failed: Option<String>,
        until_ms: Option<u64>,
        context: &mut ReplicaContext<'_>,
    ) {
        let token = self.token();
        let Some(loading) = self.loading.get_mut(&origin) else { return };
        loading.sender = FetchSender::Requested { token, until_ms };
        let (node, hold) = (loading.node.clone(), loading.hold);
        let want = NetQuery::Sender { hold, failed }.encode();
        self.senders.insert(token, SenderQuestion::Which(origin));
        context.out.push(Action::Net(NetAction::Open { token, node, want, part: None }));
    }

    /// Asks again for objects whose senders were all busy.
    pub(super) fn ask_for_senders_again(&mut self, context: &mut ReplicaContext<'_>) {
        let due = self.loading.iter().filter_map(|(origin, one)| match one.sender {
            FetchSender::Waiting { again_at_ms, until_ms } if again_at_ms <= context.now_ms => {
                Some((*origin, until_ms))
            }
            _ => None,
        });
        for (origin, until_ms) in due.collect::<Vec<_>>() {
            if self.is_given_up(origin, context) {
                continue;
            }
            match context.now_ms < until_ms {
                true => self.ask_for_sender(origin, until_ms, context),
                false => self.transfer_from_home(origin, context),
            }
        }
    }

    /// Ends the fetch of an object that was recalled while no byte was on its way.
    fn is_given_up(&mut self, origin: ObjectId, context: &mut ReplicaContext<'_>) -> bool {
        let is_invalidated = self.loading.get(&origin).is_none_or(|one| one.is_invalidated);
        if is_invalidated {
            context.abort_replica(origin);
            self.open_again(origin, context);
        }
        is_invalidated
    }

    /// Handles the answer to a question about a sender.
    pub(super) fn sender_event(
        &mut self,
        question: SenderQuestion,
        reply: SenderReply<'_>,
        context: &mut ReplicaContext<'_>,
    ) {
        let SenderReply { token, node, result } = reply;
        match question {
            SenderQuestion::Complete { hold } => {
                release_opened(context.out, node, &result);
                release(context.out, node, hold);
            }
            SenderQuestion::Which(origin) => {
                // The query holds nothing.
                release_opened(context.out, node, &result);
                let until_ms = match self.loading.get(&origin).map(|one| &one.sender) {
                    Some(FetchSender::Requested { token: of, until_ms }) if *of == token => {
                        *until_ms
                    }
                    _ => return,
                };
                if !self.is_given_up(origin, context) {
                    let answer = result.ok().filter(|_| until_ms.is_some());
                    let named = answer
                        .and_then(|(_, opened)| postcard::from_bytes(&opened.entry).ok())
                        // Also of an earlier version, which rejects the question.
                        .unwrap_or(SenderAnswer::Home);
                    self.sender_named(origin, named, until_ms.unwrap_or(context.now_ms), context);
                }
            }
            SenderQuestion::Open(origin) => {
                let sender = self.loading.get(&origin).map(|one| &one.sender);
                if sender != Some(&FetchSender::Opening { token }) {
                    return release_opened(context.out, node, &result);
                }
                if self.loading.get(&origin).is_some_and(|one| one.is_invalidated) {
                    release_opened(context.out, node, &result);
                    self.is_given_up(origin, context);
                    return;
                }
                self.replica_opened(origin, node, result, context);
            }
        }
    }

    /// Handles the home's answer which node sends an object.
    fn sender_named(
        &mut self,
        origin: ObjectId,
        named: SenderAnswer,
        until_ms: u64,
        context: &mut ReplicaContext<'_>,
    ) {
        match named {
            SenderAnswer::Wait => {
                if let Some(loading) = self.loading.get_mut(&origin) {
                    let again_at_ms = context.now_ms.saturating_add(ASK_AGAIN_MS);
                    loading.sender = FetchSender::Waiting { again_at_ms, until_ms };
                }
            }
            // This node reaches it by no network.
            SenderAnswer::Member { name, .. } if context.cluster.net_region_of(&name).is_none() => {
                self.fall_back(origin, name, context);
            }
            SenderAnswer::Member { name, key } => {
                let token = self.token();
                self.senders.insert(token, SenderQuestion::Open(origin));
                if let Some(loading) = self.loading.get_mut(&origin) {
                    loading.sender = FetchSender::Opening { token };
                }
                let want = NetQuery::Replica { hi: origin.hi, lo: origin.lo, key }.encode();
                context.out.push(Action::Net(NetAction::Open {
                    token,
                    node: name,
                    want,
                    part: None,
                }));
            }
            SenderAnswer::Home => self.transfer_from_home(origin, context),
        }
    }

    /// Begins the transfer from a replica, if it is of the same object and has all of its blocks.
    fn replica_opened(
        &mut self,
        origin: ObjectId,
        node: &str,
        result: Result<(u64, Opened), NetFault>,
        context: &mut ReplicaContext<'_>,
    ) {
        let Some(loading) = self.loading.get_mut(&origin) else { return };
        let id = (origin.hi, origin.lo);
        let opened = result.as_ref().ok().filter(|(_, opened)| {
            postcard::from_bytes(&opened.entry) == Ok(id)
                && are_whole(&opened.blocks, &loading.blocks)
        });
        match opened {
            Some((hold, opened)) => {
                let (node, hold) = (node.to_owned(), *hold);
                loading.sender = FetchSender::Member { node: node.clone(), hold };
                let pieces = pieces(&opened.blocks, &loading.blocks);
                context.out.push(Action::Net(NetAction::Load { origin, node, hold, pieces }));
            }
            None => {
                tracing::debug!(%origin, node, "a replica is not sent");
                release_opened(context.out, node, &result);
                self.fall_back(origin, node.to_owned(), context);
            }
        }
    }

    /// Handles the end of a transfer from a third node. Returns whether the home is asked to send
    /// the object instead.
    pub(super) fn another_sender(
        &mut self,
        origin: ObjectId,
        has_failed: bool,
        context: &mut ReplicaContext<'_>,
    ) -> bool {
        let Some(loading) = self.loading.get_mut(&origin) else { return false };
        let FetchSender::Member { node, hold } = std::mem::take(&mut loading.sender) else {
            return false;
        };
        release(context.out, node.as_str(), hold);
        let is_again = has_failed && !loading.is_invalidated;
        if is_again {
            tracing::debug!(%origin, node, "a replica was not sent whole");
            self.fall_back(origin, node, context);
        }
        is_again
    }

    /// Lets other nodes read a new replica, and notifies its home. The hold at the home ends after
    /// that.
    pub(super) fn serve_to_peers(
        &mut self,
        origin: ObjectId,
        local: ObjectId,
        context: &mut ReplicaContext<'_>,
    ) {
        let token = self.token();
        let Some(loading) = self.loading.get_mut(&origin) else { return };
        let port = self.port.as_ref().filter(|_| is_broadcast(loading));
        let Some(key) = port.and_then(|port| port.readers.serve_replica(origin, local)) else {
            return;
        };
        loading.sender = FetchSender::Done;
        let (node, hold) = (loading.node.clone(), loading.hold);
        let want = NetQuery::Complete { hold, key }.encode();
        self.senders.insert(token, SenderQuestion::Complete { hold });
        context.out.push(Action::Net(NetAction::Open { token, node, want, part: None }));
    }
}

/// Source and destination of each block. A block of a replica may have more bytes behind those of
/// the object.
fn pieces(from: &[Span], to: &[Span]) -> Vec<(Span, Offset)> {
    let piece = |(from, to): (&Span, &Span)| (Span::new(from.offset, to.length), to.offset);
    from.iter().zip(to).map(piece).collect()
}

/// Whether a replica has all bytes of each block.
fn are_whole(from: &[Span], to: &[Span]) -> bool {
    from.len() == to.len() && from.iter().zip(to).all(|(from, to)| from.length >= to.length)
}

fn release_opened(out: &mut Vec<Action>, node: &str, result: &Result<(u64, Opened), NetFault>) {
    if let Ok((hold, _)) = result {
        release(out, node, *hold);
    }
}
