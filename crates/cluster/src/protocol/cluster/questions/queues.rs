//! Notifications that wait for other nodes. Each is repeated while its receiver is a member in the
//! same life.
//!
//! At the limit all that wait are replaced by one, which says that some are lost. The receiver then
//! asks for what it waits for.

use std::collections::{BTreeMap, VecDeque};

use super::message::Question;
use crate::protocol::cluster::peers::peer::PeerNode;
use crate::protocol::core::barriers::SyncQuestion;
use crate::protocol::identity::PeerLife;

/// Pause after an attempt that failed.
const AGAIN_MS: u64 = 100;

/// A notification that the receiver rejects is repeated for this time: longer than a member needs to
/// learn of another one, or of a view.
const REJECTED_MS_MAX: u64 = 30_000;

/// Limit of notifications under way to one node: below the limit of questions, of which other ones
/// have places then.
const UNDER_WAY_MAX: usize = 24;

/// Limit of notifications that wait for one node, some 200 B each.
pub(in crate::protocol) const WAITING_MAX: usize = 16_384;

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct PeerNotification {
    pub(in crate::protocol::cluster) question: Question,
    /// It was rejected, and is dropped if it is at this time.
    rejected_until_ms: Option<u64>,
}

/// Notifications for one node.
#[derive(Debug)]
struct PeerNotificationQueue {
    incarnation: u64,
    waiting: VecDeque<PeerNotification>,
    /// Those that were rejected, each with the time of the next attempt.
    rejected: VecDeque<(u64, PeerNotification)>,
    under_way: usize,
    /// The node could not be reached: time of the next attempt.
    again_at_ms: Option<u64>,
}

/// Whether nothing restores what a notification has. The barriers and flags of a node, and its lives,
/// limit their number.
fn has_state(question: &Question) -> bool {
    matches!(question, Question::Sync(SyncQuestion::Retained { .. }) | Question::Restarted { .. })
}

impl PeerNotificationQueue {
    fn new(incarnation: u64) -> Self {
        let (waiting, rejected) = (VecDeque::new(), VecDeque::new());
        Self { incarnation, waiting, rejected, under_way: 0, again_at_ms: None }
    }

    fn add(&mut self, question: Question) {
        if self.waiting.len() + self.rejected.len() >= WAITING_MAX && !has_state(&question) {
            self.waiting.retain(|notification| has_state(&notification.question));
            self.rejected.retain(|(_, notification)| has_state(&notification.question));
            self.waiting.push_back(Question::Missed.into());
        }
        self.waiting.push_back(question.into());
    }

    fn all(&self) -> impl Iterator<Item = &Question> {
        let rejected = self.rejected.iter().map(|(_, notification)| notification);
        self.waiting.iter().chain(rejected).map(|notification| &notification.question)
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        let rejected = self.rejected.front().map(|(at_ms, _)| *at_ms);
        [self.again_at_ms, rejected].into_iter().flatten().min()
    }
}

impl From<Question> for PeerNotification {
    fn from(question: Question) -> Self {
        Self { question, rejected_until_ms: None }
    }
}

/// Notifications that other nodes have not received, by node.
#[derive(Debug, Default)]
pub(in crate::protocol) struct PeerNotifications(BTreeMap<String, PeerNotificationQueue>);

impl PeerNotifications {
    pub(in crate::protocol::cluster) fn add(&mut self, to: PeerLife<'_>, question: Question) {
        let queue = self.0.entry(to.name.to_owned());
        let queue = queue.or_insert_with(|| PeerNotificationQueue::new(to.incarnation));
        if queue.incarnation != to.incarnation {
            *queue = PeerNotificationQueue::new(to.incarnation);
        }
        queue.add(question);
    }

    /// The next one to send to a node, and the incarnation of that one.
    pub(in crate::protocol::cluster) fn next(
        &mut self,
        node: &str,
    ) -> Option<(u64, PeerNotification)> {
        let queue = self.0.get_mut(node)?;
        if queue.under_way >= UNDER_WAY_MAX || queue.again_at_ms.is_some() {
            return None;
        }
        let next = queue.waiting.pop_front()?;
        queue.under_way += 1;
        Some((queue.incarnation, next))
    }

    /// An attempt has ended. `Ok`: the node rejected the notification, or received it (`None`). `Err`:
    /// it was not reached.
    pub(in crate::protocol::cluster) fn ended(
        &mut self,
        to: PeerLife<'_>,
        result: Result<Option<PeerNotification>, PeerNotification>,
        now_ms: u64,
    ) {
        let queue = self.0.get_mut(to.name).filter(|queue| queue.incarnation == to.incarnation);
        let Some(queue) = queue else { return };
        queue.under_way = queue.under_way.saturating_sub(1);
        let again_at_ms = now_ms.saturating_add(AGAIN_MS);
        match result {
            Ok(None) => {}
            Ok(Some(mut notification)) => {
                let until_ms = now_ms.saturating_add(REJECTED_MS_MAX);
                if now_ms < *notification.rejected_until_ms.get_or_insert(until_ms) {
                    queue.rejected.push_back((again_at_ms, notification));
                }
            }
            Err(notification) => {
                queue.waiting.push_front(notification);
                queue.again_at_ms = Some(again_at_ms);
            }
        }
    }

    /// Nodes to which there is something to send again.
    pub(in crate::protocol::cluster) fn due(&mut self, now_ms: u64) -> Vec<String> {
        let mut nodes = Vec::new();
        for (node, queue) in &mut self.0 {
            if queue.next_deadline_ms().is_none_or(|at_ms| at_ms > now_ms) {
                continue;
            }
            queue.again_at_ms = queue.again_at_ms.filter(|at_ms| *at_ms > now_ms);
            while queue.rejected.front().is_some_and(|(at_ms, _)| *at_ms <= now_ms)
                && let Some((_, next)) = queue.rejected.pop_front()
            {
                queue.waiting.push_back(next);
            }
            nodes.push(node.clone());
        }
        nodes
    }

    pub(in crate::protocol::cluster) fn next_deadline_ms(&self) -> Option<u64> {
        self.0.values().filter_map(PeerNotificationQueue::next_deadline_ms).min()
    }

    /// Forgets those for nodes whose lives have ended, and idle nodes.
    pub(in crate::protocol::cluster) fn forget_ended(
        &mut self,
        peers: &BTreeMap<String, PeerNode>,
    ) {
        self.0.retain(|node, queue| {
            let peer = peers.get(node).filter(|peer| !peer.is_lost());
            peer.is_some_and(|peer| peer.member.incarnation.0 == queue.incarnation)
        });
    }

    pub(in crate::protocol::cluster) fn waiting(&self) -> impl Iterator<Item = &Question> {
        self.0.values().flat_map(PeerNotificationQueue::all)
    }

    pub(super) fn waiting_for(&self, node: &str) -> impl Iterator<Item = &Question> {
        self.0.get(node).into_iter().flat_map(PeerNotificationQueue::all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(number: usize) -> Question {
        Question::Sealed { names: vec![number.to_string()] }
    }

    fn b() -> PeerLife<'static> {
        ("b", 5).into()
    }

    /// Sends what may be sent.
    fn send(notifications: &mut PeerNotifications) -> Vec<PeerNotification> {
        std::iter::from_fn(|| notifications.next("b")).map(|(_, next)| next).collect()
    }

    #[test]
    fn few_are_under_way_and_a_node_that_is_not_reached_gets_all_later() {
        let mut notifications = PeerNotifications::default();
        (0..100).for_each(|number| notifications.add(b(), sealed(number)));
        let sent = send(&mut notifications);
        assert_eq!(sent.len(), UNDER_WAY_MAX);
        for one in sent {
            notifications.ended(b(), Err(one), 0);
        }
        assert_eq!(send(&mut notifications), []);
        assert_eq!(notifications.next_deadline_ms(), Some(AGAIN_MS));
        assert_eq!(notifications.due(AGAIN_MS - 1), [""; 0]);
        assert_eq!(notifications.due(AGAIN_MS), ["b"]);
        let mut received = Vec::new();
        loop {
            let sent = send(&mut notifications);
            if sent.is_empty() {
                break;
            }
            sent.iter().for_each(|_| notifications.ended(b(), Ok(None), AGAIN_MS));
            received.extend(sent.into_iter().map(|one| one.question));
        }
        assert_eq!(received.len(), 100);
        assert!((0..100).all(|number| received.contains(&sealed(number))));
        assert_eq!(notifications.next_deadline_ms(), None);
    }

    #[test]
    fn one_that_is_rejected_delays_no_other_one_and_is_given_up() {
        let mut notifications = PeerNotifications::default();
        notifications.add(b(), sealed(0));
        let mut now_ms = 0;
        let mut attempts = 0;
        while let Some(one) = send(&mut notifications).pop() {
            attempts += 1;
            notifications.ended(b(), Ok(Some(one)), now_ms);
            notifications.add(b(), sealed(1));
            assert_eq!(send(&mut notifications), [sealed(1).into()]);
            notifications.ended(b(), Ok(None), now_ms);
            now_ms = notifications.next_deadline_ms().unwrap_or(now_ms);
            notifications.due(now_ms);
        }
        assert_eq!((now_ms, attempts), (REJECTED_MS_MAX, REJECTED_MS_MAX / AGAIN_MS + 1));
    }

    #[test]
    fn those_beyond_the_limit_are_replaced_by_one_except_for_state() {
        let mut notifications = PeerNotifications::default();
        let (name, retained) =
            ("f".to_owned(), crate::protocol::core::barriers::NameState::default());
        let epoch = farrow_membership::Epoch(1);
        let state = Question::Sync(SyncQuestion::Retained { number: 1, name, retained, epoch });
        notifications.add(b(), state.clone());
        (1..=WAITING_MAX).for_each(|number| notifications.add(b(), sealed(number)));
        let waiting = |notifications: &PeerNotifications| {
            notifications.waiting().cloned().collect::<Vec<Question>>()
        };
        assert_eq!(waiting(&notifications), [state, Question::Missed, sealed(WAITING_MAX)]);
        (0..5 * WAITING_MAX).for_each(|number| notifications.add(b(), sealed(number)));
        assert!(waiting(&notifications).len() <= WAITING_MAX + 1);
        notifications.add(("b", 6).into(), sealed(1));
        assert_eq!(waiting(&notifications), [sealed(1)], "the earlier life has ended");
    }
}
