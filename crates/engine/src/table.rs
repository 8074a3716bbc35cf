//! The storage of allocations: a slab in pages, names with a generation, and the index by 5-tuple.
//!
//! The invariant: an occupied slot is in the index under its client's 5-tuple, and nothing else is. A page never moves, so the
//! table grows without copying what is in it.

use core::hash::Hasher as _;
use core::net::SocketAddr;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::id::{AllocationId, ClientTuple};
use crate::random::{Random, random_u64};

const PAGE_BITS: u32 = 5;
const PAGE: usize = 1 << PAGE_BITS;

/// Something that belongs to a client.
pub(crate) trait HasClient {
    /// Returns the client; the same as long as this is in a table, but for [`Table::move_to`].
    fn client(&self) -> &ClientTuple;
}

/// A slab of `T`, indexed by 5-tuple.
#[derive(Debug)]
pub(crate) struct Table<T> {
    pages: Pages<T>,
    free: Vec<u32>,
    index: HashTable<u32>,
    seeds: Seeds,
}

#[derive(Debug)]
struct Pages<T>(Vec<Box<[Slot<T>; PAGE]>>);

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Seeds of the hash, so that nobody can choose addresses that collide (V-53).
#[derive(Clone, Debug)]
pub(crate) struct Seeds {
    shared: SharedSeed,
    own: u64,
}

impl<T: HasClient> Table<T> {
    pub(crate) fn new(random: &mut impl Random) -> Self {
        Self {
            pages: Pages(Vec::new()),
            free: Vec::new(),
            index: HashTable::new(),
            seeds: Seeds::new(random),
        }
    }

    /// Returns the seeds, for another table of the same engine.
    pub(crate) fn seeds(&self) -> &Seeds {
        &self.seeds
    }

    /// Returns how many slots are occupied.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns how many slots there are, occupied or not: every index is below.
    pub(crate) fn slot_count(&self) -> u32 {
        u32::try_from(self.pages.0.len() * PAGE).unwrap_or(u32::MAX)
    }

    /// Returns the name of what belongs to a client, by the one hash lookup of a received message.
    #[inline]
    pub(crate) fn find(&self, client: &ClientTuple) -> Option<AllocationId> {
        let pages = &self.pages;
        // mutant: found-by-hash-alone
        let index = self.index.find(self.seeds.hash(client), |&index| {
            pages.client(index) == Some(client)
        })?;
        Some(AllocationId {
            index: *index,
            generation: pages.slot(*index)?.generation,
        })
    }

    #[inline]
    pub(crate) fn at(&self, id: AllocationId) -> Option<&T> {
        let slot = self.pages.slot(id.index)?;
        // mutant: stale-name-reaches
        if slot.generation == id.generation {
            slot.value.as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: AllocationId) -> Option<&mut T> {
        let slot = self.pages.slot_mut(id.index)?;
        if slot.generation == id.generation {
            slot.value.as_mut()
        } else {
            None
        }
    }

    /// Returns the name of whatever is in a slot.
    pub(crate) fn id_at(&self, index: u32) -> Option<AllocationId> {
        let slot = self.pages.slot(index)?;
        slot.value.as_ref().map(|_| AllocationId {
            index,
            generation: slot.generation,
        })
    }

    /// Returns the name the next [`Table::insert`] gives.
    pub(crate) fn next_id(&mut self) -> AllocationId {
        if self.free.is_empty() {
            self.add_page();
        }
        let index = *self.free.last().expect("a page has just been added");
        let generation = self.pages.slot(index).map_or(0, |slot| slot.generation);
        AllocationId { index, generation }
    }

    /// Puts `value` into a free slot. The client must not have one already.
    pub(crate) fn insert(&mut self, value: T) -> AllocationId {
        let id = self.next_id();
        self.free.pop();
        self.fill(id, value);
        id
    }

    /// Puts `value` into the slot that `id` names, which must be free. For rebuilding.
    pub(crate) fn insert_at(&mut self, id: AllocationId, value: T) -> bool {
        self.reach(id.index);
        // Where the places of a new page are, of which the first ones come last.
        let free = self.free.iter().rposition(|&index| index == id.index);
        let Some(position) = free.filter(|_| self.find(value.client()).is_none()) else {
            return false;
        };
        self.free.swap_remove(position);
        self.fill(id, value);
        true
    }

    /// Makes sure that no later allocation is named `id`. For rebuilding.
    pub(crate) fn retire(&mut self, id: AllocationId) {
        self.reach(id.index);
        if let Some(slot) = self.pages.slot_mut(id.index)
            && slot.value.is_none()
        {
            // mutant: name-given-twice-after-rebuild
            slot.generation = slot.generation.max(id.generation.wrapping_add(1));
        }
    }

    /// Takes a value out and keeps its place: [`Table::put_back`] or [`Table::vacate`] has to follow before anything else.
    pub(crate) fn take(&mut self, id: AllocationId) -> Option<T> {
        let slot = self.pages.slot_mut(id.index)?;
        if slot.generation == id.generation {
            slot.value.take()
        } else {
            None
        }
    }

    /// Puts a value of the same client where one was taken out.
    pub(crate) fn put_back(&mut self, id: AllocationId, value: T) {
        if let Some(slot) = self.pages.slot_mut(id.index) {
            slot.value = Some(value);
        }
    }

    /// Frees the place of a value of `client` that was taken out.
    pub(crate) fn vacate(&mut self, id: AllocationId, client: &ClientTuple) {
        let hash = self.seeds.hash(client);
        if let Ok(entry) = self.index.find_entry(hash, |&index| index == id.index) {
            entry.remove();
        }
        if let Some(slot) = self.pages.slot_mut(id.index) {
            // mutant: name-given-twice
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index);
        }
    }

    /// Has `change` give the value at `id`, until now of `old`, to another client, who must not have one.
    pub(crate) fn move_to(
        &mut self,
        id: AllocationId,
        old: &ClientTuple,
        change: impl FnOnce(&mut T),
    ) {
        let Some(mut value) = self.take(id) else {
            return;
        };
        let hash = self.seeds.hash(old);
        if let Ok(entry) = self.index.find_entry(hash, |&index| index == id.index) {
            entry.remove();
        }
        change(&mut value);
        self.fill(id, value);
    }

    fn fill(&mut self, id: AllocationId, value: T) {
        let hash = self.seeds.hash(value.client());
        if let Some(slot) = self.pages.slot_mut(id.index) {
            slot.generation = id.generation;
            slot.value = Some(value);
        }
        let (pages, seeds) = (&self.pages, &self.seeds);
        let rehash = |&index: &u32| pages.client(index).map_or(0, |client| seeds.hash(client));
        match self.index.entry(hash, |&index| index == id.index, rehash) {
            Entry::Vacant(entry) => drop(entry.insert(id.index)),
            Entry::Occupied(_) => {}
        }
    }

    fn reach(&mut self, index: u32) {
        while self.pages.slot(index).is_none() {
            self.add_page();
        }
    }

    fn add_page(&mut self) {
        let first = u32::try_from(self.pages.0.len() * PAGE)
            .expect("allocations are limited far below 2^31");
        let page = core::array::from_fn(|_| Slot {
            generation: 0,
            value: None,
        });
        self.pages.0.push(Box::new(page));
        // lowest index on top, so that full pages come before empty ones
        self.free.extend((first..first + (1 << PAGE_BITS)).rev());
    }
}

impl<T> Pages<T> {
    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.0
            .get((index >> PAGE_BITS) as usize)
            .map(|page| &page[index as usize % PAGE])
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.0
            .get_mut((index >> PAGE_BITS) as usize)
            .map(|page| &mut page[index as usize % PAGE])
    }
}

impl<T: HasClient> Pages<T> {
    #[inline]
    fn client(&self, index: u32) -> Option<&ClientTuple> {
        self.slot(index)?.value.as_ref().map(HasClient::client)
    }
}

impl Seeds {
    pub(crate) fn new(random: &mut impl Random) -> Self {
        Self {
            // guard: V-53-table.shared
            shared: SharedSeed::from_u64(random_u64(random)),
            // guard: V-53-table.own
            own: random_u64(random),
        }
    }

    /// Hashes address, port and listener in two or three words; the rest of an IPv6 address is left to the comparison.
    #[inline]
    fn hash(&self, client: &ClientTuple) -> u64 {
        self.hash_address(client.remote, client.listener.0)
    }

    /// Hashes an address with its port and one more number.
    #[inline]
    pub(crate) fn hash_address(&self, address: SocketAddr, number: u32) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.own, &self.shared);
        let tail = (u64::from(address.port()) << 32) | u64::from(number);
        match address {
            SocketAddr::V4(remote) => hasher.write_u64(u64::from(remote.ip().to_bits())),
            SocketAddr::V6(remote) => hasher.write_u128(remote.ip().to_bits()),
        }
        hasher.write_u64(tail);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Endpoint;
    use crate::random::seeded::Seeded;

    struct Zeros;

    impl Random for Zeros {
        fn fill(&mut self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    #[derive(Debug, PartialEq)]
    struct Value(ClientTuple, u32);

    impl HasClient for Value {
        fn client(&self) -> &ClientTuple {
            &self.0
        }
    }

    fn client(number: u32) -> ClientTuple {
        let remote = if number.is_multiple_of(2) {
            SocketAddr::from(([10, 0, 0, 1], 1_000 + u16::try_from(number).unwrap()))
        } else {
            SocketAddr::from((
                [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::try_from(number).unwrap()],
                9,
            ))
        };
        ClientTuple::udp(Endpoint(1), remote)
    }

    fn remove(table: &mut Table<Value>, id: AllocationId) -> Option<Value> {
        let value = table.take(id)?;
        table.vacate(id, value.client());
        Some(value)
    }

    //= V-53
    #[test]
    fn the_same_clients_lie_elsewhere_in_another_table() {
        let [one, other] = [1, 2].map(|seed| Table::<Value>::new(&mut Seeded(seed)).seeds);
        let low_bits = |seeds: &Seeds, number| seeds.hash(&client(number)) & 0xFF;
        // Those that would meet in one bucket of the first table.
        let meeting: Vec<u32> = (0..20_000)
            .filter(|&number| low_bits(&one, number) == low_bits(&one, 0))
            .collect();
        assert!(meeting.len() > 20, "{} meet", meeting.len());
        let still = meeting
            .iter()
            .filter(|&&number| low_bits(&other, number) == low_bits(&other, 0));
        assert!(still.count() < meeting.len() / 4);
    }

    #[test]
    fn finds_what_was_inserted_and_nothing_that_was_removed() {
        let mut table = Table::new(&mut Zeros);
        let ids: Vec<_> = (0..1_000)
            .map(|n| table.insert(Value(client(n), n)))
            .collect();
        for (n, id) in (0..).zip(&ids) {
            assert_eq!(table.find(&client(n)), Some(*id));
            assert_eq!(table.at(*id).unwrap().1, n);
        }
        assert_eq!(
            table.find(&ClientTuple {
                listener: Endpoint(2),
                ..client(0)
            }),
            None
        );
        for id in ids.iter().step_by(2) {
            remove(&mut table, *id);
        }
        assert_eq!(table.len(), 500);
        for (n, id) in (0..).zip(&ids) {
            assert_eq!(table.find(&client(n)).is_some(), n % 2 == 1);
            assert_eq!(table.at(*id).is_some(), n % 2 == 1);
        }
    }

    #[test]
    fn a_name_does_not_reach_the_next_one_in_the_same_slot() {
        let mut table = Table::new(&mut Zeros);
        let first = table.insert(Value(client(1), 1));
        remove(&mut table, first);
        let second = table.insert(Value(client(1), 2));
        assert_eq!(first.index, second.index);
        assert_eq!(table.at(first), None);
        assert_eq!(remove(&mut table, first), None);
        assert_eq!(table.at(second).unwrap().1, 2);
    }

    #[test]
    fn a_name_can_be_chosen_when_its_slot_is_free() {
        let mut table = Table::new(&mut Zeros);
        let id = AllocationId {
            index: 70,
            generation: 9,
        };
        assert!(table.insert_at(id, Value(client(1), 1)));
        assert!(!table.insert_at(id, Value(client(2), 2)), "taken");
        let other = AllocationId {
            index: 71,
            generation: 0,
        };
        assert!(
            !table.insert_at(other, Value(client(1), 3)),
            "the client has one"
        );
        assert_eq!(table.find(&client(1)), Some(id));
        table.retire(AllocationId {
            index: 0,
            generation: 4,
        });
        let mut names: Vec<_> = (10..105)
            .map(|n| table.insert(Value(client(n), n)))
            .collect();
        names.sort_unstable();
        assert_eq!(
            names[0],
            AllocationId {
                index: 0,
                generation: 5
            }
        );
        assert!(names.iter().all(|name| name.index != 70));
    }
}
