//! Lists whose length is limited while they are decoded. A list of four million empty strings fits
//! into one frame: it must not cost the daemon their memory and time.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Most items for which room is made before they are read.
const ROOM_ITEMS_MAX: usize = 1024;

/// A list of at most `MAX` items.
struct Bounded<T, const MAX: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Items::<T, MAX>(PhantomData)).map(Self)
    }
}

struct Items<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let announced = items.size_hint().unwrap_or(0);
        if announced > MAX {
            return Err(A::Error::invalid_length(announced, &self));
        }
        let mut list = Vec::with_capacity(announced.min(ROOM_ITEMS_MAX));
        while let Some(item) = items.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            list.push(item);
        }
        Ok(list)
    }
}

/// For `deserialize_with`: a list of at most `MAX` items.
pub(crate) fn list<'de, D, T, const MAX: usize>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Bounded::<T, MAX>::deserialize(from).map(|list| list.0)
}

/// As [`list()`], if there is one.
pub(crate) fn some_list<'de, D, T, const MAX: usize>(from: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<Bounded<T, MAX>>::deserialize(from).map(|list| list.map(|list| list.0))
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::request::LIST_ITEMS_MAX;
    use crate::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct BoundedLists {
        #[serde(deserialize_with = "list::<_, _, 3>")]
        all: Vec<u16>,
        #[serde(deserialize_with = "some_list::<_, _, 3>")]
        some: Option<Vec<String>>,
    }

    #[test]
    fn a_list_has_at_most_its_limit_of_items() {
        for (all, some) in [(0, None), (3, Some(3)), (4, None), (0, Some(4))] {
            let strings = |count| vec![String::new(); count];
            let lists = BoundedLists { all: vec![500; all], some: some.map(strings) };
            let bytes = postcard::to_stdvec(&lists).unwrap();
            let back = postcard::from_bytes::<BoundedLists>(&bytes).ok();
            let is_short = all <= 3 && some.unwrap_or(0) <= 3;
            assert_eq!(back, is_short.then_some(lists), "{all} {some:?}");
        }
    }

    /// Regression: they were decoded as a whole before their number was checked. A frame of 4 MiB
    /// took 0.3 s in the event loop.
    #[test]
    fn no_list_of_a_request_is_longer_than_its_limit() {
        let many = LIST_ITEMS_MAX + 1;
        let names = || vec![String::new(); many];
        let id = WireObjectId::default();
        let ids = || vec![id; many];
        let targets = || vec![WireTarget::Id(id); many];
        let spans = || vec![(0, 0); many];
        let item = SealItem::bytes((0, 0), 0);
        let long_item = SealItem { extra: vec![(0, 0); 2 * EXTRA_BLOCKS_MAX + 1], ..item.clone() };
        let part = PartSpec { columns: Some(names()), ..PartSpec::default() };
        let target = WireTarget::Id(id);
        let purpose = Purpose { objects: 0, names: vec![0; many] };
        let step = ImportStep::Seal { name: None, metadata: Some(vec![0; many]), is_pinned: false };
        let long = [
            RequestBody::Release { spans: spans() },
            RequestBody::Reserve { names: names() },
            RequestBody::Unreserve { names: names() },
            RequestBody::Renew { names: names(), are_all: true },
            RequestBody::Seal { items: vec![item; many] },
            RequestBody::Seal { items: vec![long_item] },
            RequestBody::Confirm { ids: ids() },
            RequestBody::EndLeases { ids: ids() },
            RequestBody::Delete { targets: targets() },
            RequestBody::Wait { targets: targets(), count: 1, timeout_ms: 0 },
            RequestBody::Pin { targets: targets(), is_pinned: true },
            RequestBody::FindAt { node: String::new(), targets: targets() },
            RequestBody::Set(vec![Setting::IsEvicting(true); many]),
            RequestBody::Room(RoomAsk { sizes: vec![0; many], ..RoomAsk::default() }),
            RequestBody::Room(RoomAsk { purpose: Some(purpose), ..RoomAsk::default() }),
            RequestBody::Fetch { target, extent: Extent::Part(part), wait_ms: 0 },
            RequestBody::Import { origin: id, step, wait_ms: 0 },
            RequestBody::CreateNamespace(NamespaceSpec {
                writers: Some(vec![0; many]),
                ..NamespaceSpec::default()
            }),
        ];
        for body in long {
            let kind = body.kind();
            let mut frame = Vec::new();
            encode(&Request { seq: 1, body }, &mut frame).unwrap();
            let decoded = decode::<Request>(&frame);
            assert!(matches!(decoded, Err(MessageError::Garbled { .. })), "{kind}");
        }
        // A request that has too many items gets a reply.
        let mut frame = Vec::new();
        let body = RequestBody::Delete {
            targets: vec![WireTarget::Id(WireObjectId::default()); LIST_ITEMS_MAX],
        };
        encode(&Request { seq: 1, body }, &mut frame).unwrap();
        assert!(decode::<Request>(&frame).unwrap().is_some());
    }
}
