//! Requests whose replies no caller needs, and the queue of those that are not sent yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::{BATCH_ITEMS_MAX, ImportStep, RequestBody, WireObjectId, WireSpan, WireTarget};

/// A request that is sent without waiting, and whose reply is dropped.
///
/// A notification is not lost while the connection lives. If the connection ends first, its
/// successor covers the notification: the records of grants, names and reservations are compared,
/// and the next daemon looks at all holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// See [`RequestBody::Release`].
    Release(Vec<WireSpan>),
    /// See [`RequestBody::Unreserve`].
    Unreserve(Vec<String>),
    /// See [`RequestBody::UnreserveObjects`].
    UnreserveObjects(u32),
    /// See [`RequestBody::ReservedObjects`]. The first notification about reservations of a
    /// connection.
    ReservedObjects(u32),
    /// See [`RequestBody::Confirm`]: the ids.
    Confirm(Vec<WireObjectId>),
    /// See [`RequestBody::ConfirmEarlier`].
    ConfirmEarlier,
    /// See [`RequestBody::EndLeases`]: the ids. The client repeats it to the next daemon.
    EndLeases(Vec<WireObjectId>),
    /// See [`ImportStep::Abandon`]: the origin's id.
    AbandonImport(WireObjectId),
    /// See [`RequestBody::Delete`]: the ids.
    Delete(Vec<WireObjectId>),
    /// See [`RequestBody::Reclaim`].
    Reclaim,
    /// See [`RequestBody::Cancel`]: the number of the request.
    Cancel(u64),
    /// See [`RequestBody::Goodbye`].
    Goodbye,
}

/// How far a notification got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notified {
    /// It is written to the connection.
    Written,
    /// The daemon does not read at present. The notification follows with the next request, or
    /// with an [`Attendance`](super::Attendance).
    Queued,
    /// The connection is closed.
    Closed,
}

/// Unsent notifications, merged by kind. So their number is limited by what the client has: its
/// ranges, names, reservations, objects and open requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NotificationQueue {
    reserved_objects: Option<u32>,
    cancelled: BTreeSet<u64>,
    confirmed: BTreeSet<WireObjectId>,
    has_confirmed_earlier: bool,
    /// From start to end; adjacent ranges are one.
    released: BTreeMap<u64, u64>,
    unreserved: BTreeSet<String>,
    unreserved_objects: u32,
    abandoned_imports: BTreeSet<WireObjectId>,
    deleted: BTreeSet<WireObjectId>,
    ended_leases: BTreeSet<WireObjectId>,
    is_reclaim_due: bool,
    is_goodbye_due: bool,
}

impl NotificationQueue {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn add(&mut self, notification: Notification) {
        match notification {
            Notification::Release(spans) => {
                spans.into_iter().for_each(|(offset, length)| self.add_released(offset, length));
            }
            Notification::Unreserve(names) => self.unreserved.extend(names),
            Notification::UnreserveObjects(objects) => {
                self.unreserved_objects = self.unreserved_objects.saturating_add(objects);
            }
            Notification::ReservedObjects(objects) => self.reserved_objects = Some(objects),
            Notification::Confirm(ids) => self.confirmed.extend(ids),
            Notification::ConfirmEarlier => self.has_confirmed_earlier = true,
            Notification::EndLeases(ids) => self.ended_leases.extend(ids),
            Notification::AbandonImport(origin) => {
                self.abandoned_imports.insert(origin);
            }
            Notification::Delete(ids) => self.deleted.extend(ids),
            Notification::Reclaim => self.is_reclaim_due = true,
            Notification::Cancel(seq) => {
                self.cancelled.insert(seq);
            }
            Notification::Goodbye => self.is_goodbye_due = true,
        }
    }

    fn add_released(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset.saturating_add(length));
        if let Some((before, stop)) = self.released.range(..start).next_back()
            && *stop == start
        {
            start = *before;
        }
        if let Some(stop) = self.released.remove(&end) {
            end = stop;
        }
        let stop = self.released.entry(start).or_insert(end);
        *stop = end.max(*stop);
    }

    /// Removes the next request: at most [`BATCH_ITEMS_MAX`] items of one kind.
    pub(super) fn pop(&mut self) -> Option<RequestBody> {
        if let Some(objects) = self.reserved_objects.take() {
            return Some(RequestBody::ReservedObjects { objects });
        }
        if let Some(seq) = self.cancelled.pop_first() {
            return Some(RequestBody::Cancel { seq });
        }
        if let Some(ids) = batch_of(|| self.confirmed.pop_first()) {
            return Some(RequestBody::Confirm { ids });
        }
        if std::mem::take(&mut self.has_confirmed_earlier) {
            return Some(RequestBody::ConfirmEarlier);
        }
        if let Some(runs) = batch_of(|| self.released.pop_first()) {
            let spans = runs.into_iter().map(|(start, end)| (start, end - start)).collect();
            return Some(RequestBody::Release { spans });
        }
        if let Some(names) = batch_of(|| self.unreserved.pop_first()) {
            return Some(RequestBody::Unreserve { names });
        }
        if self.unreserved_objects > 0 {
            let objects = std::mem::take(&mut self.unreserved_objects);
            return Some(RequestBody::UnreserveObjects { objects });
        }
        if let Some(origin) = self.abandoned_imports.pop_first() {
            return Some(RequestBody::Import { origin, step: ImportStep::Abandon, wait_ms: 0 });
        }
        if let Some(ids) = batch_of(|| self.deleted.pop_first()) {
            let targets = ids.into_iter().map(WireTarget::Id).collect();
            return Some(RequestBody::Delete { targets });
        }
        if let Some(ids) = batch_of(|| self.ended_leases.pop_first()) {
            return Some(RequestBody::EndLeases { ids });
        }
        if std::mem::take(&mut self.is_reclaim_due) {
            return Some(RequestBody::Reclaim);
        }
        std::mem::take(&mut self.is_goodbye_due).then_some(RequestBody::Goodbye)
    }
}

fn batch_of<T>(next: impl FnMut() -> Option<T>) -> Option<Vec<T>> {
    let batch: Vec<T> = std::iter::from_fn(next).take(BATCH_ITEMS_MAX).collect();
    (!batch.is_empty()).then_some(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut queue: NotificationQueue) -> Vec<RequestBody> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn notifications_of_a_kind_are_one_request() {
        let mut queue = NotificationQueue::default();
        for notification in [
            Notification::Reclaim,
            Notification::Release(vec![(100, 50), (300, 10)]),
            Notification::UnreserveObjects(2),
            Notification::Release(vec![(150, 50), (290, 10)]),
            Notification::Reclaim,
            Notification::Unreserve(vec!["b".into(), "a".into()]),
            Notification::UnreserveObjects(3),
            Notification::Cancel(7),
        ] {
            queue.add(notification);
        }
        assert_eq!(
            all(queue),
            [
                RequestBody::Cancel { seq: 7 },
                RequestBody::Release { spans: vec![(100, 100), (290, 20)] },
                RequestBody::Unreserve { names: vec!["a".into(), "b".into()] },
                RequestBody::UnreserveObjects { objects: 5 },
                RequestBody::Reclaim,
            ]
        );
    }

    #[test]
    fn a_request_has_no_more_items_than_the_daemon_accepts() {
        let mut queue = NotificationQueue::default();
        let spans = (0..=BATCH_ITEMS_MAX as u64).map(|number| (number * 20, 10)).collect();
        queue.add(Notification::Release(spans));
        let lengths: Vec<usize> = all(queue)
            .iter()
            .map(|body| match body {
                RequestBody::Release { spans } => spans.len(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lengths, [BATCH_ITEMS_MAX, 1]);
    }

    #[test]
    fn an_emptied_queue_is_empty() {
        let mut queue = NotificationQueue::default();
        assert!(queue.is_empty());
        queue.add(Notification::Goodbye);
        assert!(!queue.is_empty());
        assert_eq!(queue.pop(), Some(RequestBody::Goodbye));
        assert!(queue.is_empty() && queue.pop().is_none());
    }
}
