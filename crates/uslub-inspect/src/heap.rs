//! The structures of one allocator, read from memory: caches, and the words of CPUs.
//!
//! Nothing that is read is trusted. A number that is out of bounds counts as damage and is left
//! out; every walk of a list ends after the length that the list has room for.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::fields::{Fields, PcpFields};
use crate::layout::Field;
use crate::memory::{Memory, PAGE};
use crate::root::Root;

/// Most memory nodes.
const NODES_MAX: u64 = 64;
/// Barns of a cache, at most: 64 groups of CPUs in each node.
const BARNS_MAX: u64 = 64 * NODES_MAX;
/// Most CPUs.
const CPUS_MAX: u64 = 8192;
/// Largest order of a slab.
const ORDER_MAX: u32 = 6;
/// Pages of an arena of which any part may be unmapped.
const SPARSE_PAGES: u64 = 1 << 18;
/// A larger arena has at most this many times its mapped pages.
const SPARSE_SHARE: u64 = 16;
/// First address that no program has, on machines with 48 bits.
const USER_END: u64 = 1 << 47;

/// The arena: one address range, and the arrays that describe its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Address of page 0.
    pub base: u64,
    /// Pages in use.
    pub pages: u64,
    /// Pages reserved.
    pub reserved: u64,
    /// The array from pages to caches.
    pub map: u64,
    /// The array of descriptors.
    pub descriptors: u64,
    /// The array of blocks.
    pub blocks: u64,
}

/// A cache.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// Its index, from 1.
    pub index: usize,
    /// Its identity in the page map.
    pub id: u16,
    /// Address of its record.
    pub at: u64,
    /// Its name, for people.
    pub name: String,
    /// Bytes of a slot.
    pub size: u32,
    /// Alignment of a slot in bytes.
    pub align: u32,
    /// Bytes of an object as requested.
    pub object_size: u32,
    /// log2 of the pages of a slab.
    pub order: u32,
    /// Slots of a slab.
    pub objects: u32,
    /// Creators that share it.
    pub users: u32,
    /// Objects of a sheaf, at least and at most.
    pub capacity: (usize, usize),
    /// Full sheaves of a barn, at most: at first, and grown.
    pub max_full: (usize, usize),
    /// Slabs, with those that have no descriptor yet.
    pub slabs: u64,
    /// Most slabs at once, noted when slabs are made; `None` if this version does not describe it.
    pub peak_slabs: Option<u64>,
    /// Slabs with free slots on the lists of its nodes.
    pub partial: u64,
    /// Slabs to come: first page and number, for each node.
    pub ahead: Vec<(u64, u64)>,
    /// Objects freed in a context that may not wait.
    pub deferred: u64,
    pub(crate) deferred_first: u64,
    /// Flushes under way.
    pub flushes: u64,
    /// Bytes from a slot's start to its object: the red zone of a debugged cache.
    pub left: u32,
    /// Bytes of a debugged cache's objects; 0 if it is not debugged.
    pub(crate) debug_object: u32,
    pub(crate) link_offset: u32,
    pub(crate) secret: u64,
    pub(crate) random: u64,
    pub(crate) barns: Vec<u64>,
    pub(crate) node_records: Vec<u64>,
}

impl Cache {
    /// Pages of a slab.
    pub fn slab_pages(&self) -> u64 {
        1 << self.order
    }

    /// Bytes of a slot that an object has: all of them, unless debugging keeps some.
    pub fn object_bytes(&self) -> u32 {
        match self.debug_object {
            0 => self.size,
            bytes => bytes,
        }
    }

    /// The address of the object in a slot of a slab that begins at `base`.
    pub(crate) fn object_at(&self, base: u64, slot: u32) -> u64 {
        let offset = u64::from(slot) * u64::from(self.size) + u64::from(self.left);
        base.wrapping_add(offset)
    }
}

/// What shows whether a cache changed between two looks.
pub(crate) type Trace = Vec<u64>;

/// One allocator in the memory of a process.
pub struct Heap<'m> {
    pub(crate) memory: &'m dyn Memory,
    pub(crate) root: Root,
    pub(crate) f: Fields,
    copy: Vec<u8>,
    /// CPU slots with a region: number and address.
    pub(crate) regions: Vec<(usize, u64)>,
    pub(crate) stopped: u64,
}

impl<'m> Heap<'m> {
    /// The allocator of a root.
    ///
    /// # Errors
    ///
    /// If its version differs, it is not set up yet, or it cannot be read.
    pub fn open(memory: &'m dyn Memory, root: Root) -> Result<Self> {
        // The loader has not written the pointers of the program yet.
        if root.allocator == 0 {
            return Err(Error::NotReady);
        }
        let f = Fields::of(&root.layout)?;
        let mut heap = Self {
            memory,
            copy: vec![0; f.allocator_bytes],
            root,
            f,
            regions: Vec::new(),
            stopped: 0,
        };
        heap.refresh()?;
        if heap.number(f.ready) == 0 {
            return Err(Error::NotReady);
        }
        let arena = heap.arena();
        let end = arena
            .pages
            .checked_mul(PAGE)
            .and_then(|bytes| bytes.checked_add(arena.base));
        if end.is_none_or(|end| end > USER_END) || arena.pages > u64::from(u32::MAX) {
            return Err(Error::Damaged(
                "the arena lies outside of the address space",
            ));
        }
        // Blocks may be unmapped while they are free, but not nearly all of them.
        let mapped = pages_in(memory, arena.base..end.unwrap_or(arena.base));
        if arena.pages > SPARSE_PAGES.max(mapped.saturating_mul(SPARSE_SHARE)) {
            return Err(Error::Damaged("the arena is not mapped"));
        }
        Ok(heap)
    }

    /// Reads the allocator's own words again.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn refresh(&mut self) -> Result<()> {
        let at = self.root.allocator;
        let ready = at.wrapping_add(self.f.ready.at as u64);
        if self.memory.read(ready, &mut [0]).is_err() {
            return Err(Error::Fault {
                at,
                bytes: self.copy.len(),
                what: "the allocator",
            });
        }
        self.memory.read_sparse(at, &mut self.copy);
        self.stopped = self.number(self.f.table_stopped);
        let cpus = self.number(self.f.table_end).min(CPUS_MAX) as usize;
        let mut entries = vec![0; cpus * 8];
        self.memory
            .read_sparse(self.number(self.f.table_regions), &mut entries);
        let regions = words(&entries).enumerate();
        self.regions = regions.filter(|&(_, at)| at != 0).collect();
        Ok(())
    }

    pub(crate) fn number(&self, field: Field) -> u64 {
        field.of(&self.copy)
    }

    /// The root that led here.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The memory.
    pub fn memory(&self) -> &'m dyn Memory {
        self.memory
    }

    /// The arena.
    pub fn arena(&self) -> Arena {
        Arena {
            base: self.number(self.f.arena_base),
            pages: self.number(self.f.arena_limit),
            reserved: self.number(self.f.arena_reserved),
            map: self.number(self.f.arena_map),
            descriptors: self.number(self.f.arena_descriptors),
            blocks: self.number(self.f.arena_blocks),
        }
    }

    /// Pages of large objects, as the allocator counts them.
    pub fn large_pages(&self) -> u64 {
        let taken = self.number(self.f.large_pages).min(self.arena().pages);
        let kept = self
            .f
            .pcp
            .map_or(0, |pcp| self.sum_of_lists(&pcp, &[pcp.pages], 0));
        taken.saturating_sub(kept)
    }

    /// Allocations and frees without a cache; none if this version does not describe them.
    pub fn large_calls(&self) -> (u64, u64) {
        let Some(pcp) = &self.f.pcp else {
            return (0, 0);
        };
        let sum = |at| {
            let without = Field {
                at: pcp.without.at + at,
                bytes: 8,
            };
            let calls = self.sum_of_lists(pcp, &[pcp.calls, pcp.others], at);
            calls.wrapping_add(self.number(without))
        };
        (sum(0), sum(8))
    }

    /// The sum of the words that lie `at` bytes into these fields, of all CPUs' lists of pages.
    fn sum_of_lists(&self, pcp: &PcpFields, fields: &[Field], at: usize) -> u64 {
        let lists = self.number(pcp.nr_lists).min(1 << 12) as usize;
        let mut bytes = vec![0; lists * pcp.bytes];
        self.memory.read_sparse(self.number(pcp.lists), &mut bytes);
        let numbers = bytes.chunks_exact(pcp.bytes).flat_map(|list| {
            fields.iter().map(move |field| {
                let word = Field {
                    at: field.at + at,
                    bytes: 8,
                };
                word.of(list)
            })
        });
        numbers.fold(0, u64::wrapping_add)
    }

    /// Bytes of huge objects, and of mappings kept after their frees; `None` if this version does
    /// not describe them.
    pub fn huge_bytes(&self) -> Option<(u64, u64)> {
        let huge = self.f.huge?;
        let kept = huge.kept.map_or(0, |kept| self.number(kept));
        Some((self.number(huge.live), kept))
    }

    /// The table of huge objects: address and bytes.
    pub(crate) fn huge_table(&self) -> Option<(u64, u64)> {
        let huge = self.f.huge?;
        let entries = self.number(huge.capacity).min(1 << 22);
        Some((self.number(huge.table), entries * huge.entry_bytes as u64))
    }

    /// The huge objects: address and bytes.
    pub fn huge_objects(&self) -> Vec<(u64, u64)> {
        let (Some(huge), Some((table, length))) = (self.f.huge, self.huge_table()) else {
            return Vec::new();
        };
        let mut bytes = vec![0; length as usize];
        self.memory.read_sparse(table, &mut bytes);
        let entry = |entry: &[u8]| {
            let mut words = words(&entry[..16]);
            (words.next().unwrap_or(0), words.next().unwrap_or(0))
        };
        let all = bytes.chunks_exact(huge.entry_bytes).map(entry);
        all.filter(|&(at, bytes)| at != 0 && at.checked_add(bytes).is_some())
            .collect()
    }

    /// Bytes of records, windows and scratch memory in use; `None` if this version does not
    /// describe them.
    pub fn store_bytes(&self) -> Option<u64> {
        self.f.store.map(|used| self.number(used))
    }

    /// Number of CPU slots with sheaves.
    pub fn nr_regions(&self) -> usize {
        self.regions.len()
    }

    /// All caches, by index, and how many records could not be read or are impossible.
    pub fn caches(&self) -> (Vec<Cache>, usize) {
        let end = (self.number(self.f.end) as usize).min(self.f.max_caches);
        let from = self.f.caches.at;
        let entries = self.copy.get(from..from + 8 * end).unwrap_or(&[]);
        let mut places: Vec<_> = words(entries)
            .enumerate()
            .filter(|&(_, at)| at != 0)
            .collect();
        // Two indices lead to the record of a debugged class: the larger one is its own.
        let own: HashMap<_, _> = places.iter().map(|&(index, at)| (at, index)).collect();
        places.retain(|(index, at)| own.get(at) == Some(index));
        let at: Vec<_> = places.iter().map(|&(_, at)| at).collect();
        let bytes = self.f.cache.bytes;
        let mut records = vec![0; at.len() * bytes];
        let done = self.memory.read_each(&at, bytes, &mut records);
        let all = places.iter().zip(records.chunks_exact(bytes)).zip(done);
        let good = all.filter_map(|((&(index, at), record), done)| {
            done.then(|| self.cache(index, at, record)).flatten()
        });
        let mut good: Vec<_> = good.collect();
        // One batch for the records of all nodes.
        let bytes = self.f.node_bytes;
        let at: Vec<_> = (good.iter())
            .flat_map(|cache| cache.node_records.iter().copied())
            .collect();
        let mut nodes = vec![0; at.len() * bytes];
        let done = self.memory.read_each(&at, bytes, &mut nodes);
        let mut first = 0;
        good.retain_mut(|cache| {
            let end = first + cache.node_records.len();
            let (nodes, done) = (&nodes[first * bytes..end * bytes], &done[first..end]);
            first = end;
            self.add_nodes(cache, nodes, done)
        });
        let damaged = places.len() - good.len();
        (good, damaged)
    }

    fn cache(&self, index: usize, at: u64, record: &[u8]) -> Option<Cache> {
        let f = &self.f.cache;
        let name = record.get(f.name.at..f.name.at + f.name.bytes)?;
        let name = &name[..(f.name_len.of(record) as usize).min(name.len())];
        let nodes = f.nr_nodes.of(record);
        if nodes == 0 || nodes > NODES_MAX {
            return None;
        }
        let barns = f.nr_barns.of(record);
        if barns < nodes || barns > BARNS_MAX || !barns.is_multiple_of(nodes) {
            return None;
        }
        let array = |start: u64, nr: u64, bytes: usize| {
            let place = |n| start.wrapping_add(n * bytes as u64);
            (0..nr).map(place).collect::<Vec<_>>()
        };
        let pair = |a: Field, b: Field| (a.of(record) as usize, b.of(record) as usize);
        let cache = Cache {
            index,
            id: f.id.of(record) as u16,
            at,
            name: crate::root::printable(name),
            size: f.size.of(record) as u32,
            align: f.align.of(record) as u32,
            object_size: f.object_size.of(record) as u32,
            order: f.order.of(record) as u32,
            objects: f.objects.of(record) as u32,
            users: f.users.of(record) as u32,
            capacity: pair(f.capacity, f.capacity_max),
            max_full: pair(f.max_full, f.max_full_grown),
            slabs: 0,
            peak_slabs: f.peak_slabs.map(|peak| peak.of(record)),
            partial: 0,
            ahead: Vec::new(),
            deferred: f.deferred_len.of(record),
            deferred_first: f.deferred_first.of(record),
            flushes: f.flushes.of(record),
            left: f.debug_left.map_or(0, |left| left.of(record) as u32),
            debug_object: f.debug_object.map_or(0, |object| object.of(record) as u32),
            link_offset: f.link_offset.of(record) as u32,
            secret: f.secret.of(record),
            random: f.random.of(record),
            barns: array(f.barns.of(record), barns, self.f.barn_bytes),
            node_records: array(f.nodes.of(record), nodes, self.f.node_bytes),
        };
        let slots = u64::from(cache.size) * u64::from(cache.objects);
        let is_possible = usize::from(cache.id) == self.word_of(index)
            && cache.order <= ORDER_MAX
            && cache.size > 0
            && u64::from(cache.left) + u64::from(cache.debug_object) <= u64::from(cache.size)
            && cache.objects > 0
            && slots <= PAGE << cache.order;
        if !is_possible {
            return None;
        }
        Some(cache)
    }

    /// Adds what the records of the nodes say; false if one cannot be read or is impossible.
    fn add_nodes(&self, cache: &mut Cache, nodes: &[u8], done: &[bool]) -> bool {
        let limit = self.arena().pages;
        for node in nodes.chunks_exact(self.f.node_bytes) {
            let ahead = self.f.node_ahead.of(node);
            let (first, slabs) = (ahead & 0xffff_ffff, ahead >> 32);
            cache.slabs = cache.slabs.saturating_add(self.f.node_slabs.of(node));
            cache.partial = cache.partial.saturating_add(self.f.node_partial.of(node));
            if slabs > 0 && first.saturating_add(slabs << cache.order) <= limit {
                cache.ahead.push((first, slabs));
            }
        }
        let slots = cache.slabs.saturating_mul(cache.objects.into());
        cache.deferred = cache.deferred.min(slots);
        cache.slabs <= limit && done.iter().all(|&done| done)
    }

    /// Index of the main word of the cache with this index, in a region.
    pub(crate) fn word_of(&self, index: usize) -> usize {
        let page = 2 * self.f.caches_a_page * self.f.cache_words;
        index / self.f.caches_a_page * page + index % self.f.caches_a_page * self.f.cache_words
    }

    /// The words of a region from its start, up to those of the last cache.
    pub(crate) fn words_of(&self, region: u64, caches: &[Cache]) -> Vec<u64> {
        let last = caches.iter().map(|cache| self.word_of(cache.index)).max();
        let rcu = self.f.caches_a_page * self.f.cache_words;
        let count = last.map_or(0, |last| last + rcu + self.f.cache_words);
        let mut bytes = vec![0; (count * 8).min(self.f.region_bytes)];
        self.memory.read_sparse(region, &mut bytes);
        words(&bytes).collect()
    }

    /// The words of all regions.
    pub(crate) fn region_words(&self, caches: &[Cache]) -> Vec<Vec<u64>> {
        let regions = self.regions.iter();
        regions.map(|&(_, at)| self.words_of(at, caches)).collect()
    }

    /// What would change if a cache's objects moved: its words and counts on each CPU.
    pub(crate) fn trace(&self, cache: &Cache, regions: &[Vec<u64>]) -> Trace {
        let at = self.word_of(cache.index);
        let rcu = at + self.f.caches_a_page * self.f.cache_words;
        let parts = regions.iter().flat_map(|words| {
            let main = words.get(at..at + 4).unwrap_or(&[]);
            main.iter().chain(words.get(rcu..=rcu).unwrap_or(&[]))
        });
        parts.copied().collect()
    }
}

/// Mapped pages in a range.
fn pages_in(memory: &dyn Memory, range: std::ops::Range<u64>) -> u64 {
    let overlap = |map: &std::ops::Range<u64>| {
        let (start, end) = (map.start.max(range.start), map.end.min(range.end));
        end.saturating_sub(start) / PAGE
    };
    memory.maps().iter().map(|map| overlap(&map.range)).sum()
}

/// The numbers of 8 bytes in a copy of memory.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}
