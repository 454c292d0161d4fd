//! Who points to an object, or to one of several: a search of all words in writable memory.
//!
//! | place of a word | holds the object |
//! |---|---|
//! | live object: of a cache, large, huge | yes |
//! | memory that is not the allocator's: data of programs, stacks, other mappings | yes |
//! | free slot, free page | no: an old word that nobody reads |
//! | the allocator's records: sheaves, lists, descriptors | no |
//!
//! Words are those at multiples of 8 bytes. Pages that were never touched are not read, so a search
//! leaves the process as it was. The registers of threads are searched where they can be read: in
//! a core file.
//!
//! The search is bounded: by the memory that is mapped, and by a number of words that are told. It
//! reads in parts of 1 MiB; a part that cannot be read is read by pages.

use std::collections::HashMap;
use std::ops::Range;

use crate::heap::{Cache, Heap};
use crate::memory::{Map, Memory, PAGE, Register, map_of};
use crate::pages::{Slab, Span};
use crate::slots::{Cached, FreeSlots, State};

/// Bytes that are read at a time.
const PART: u64 = 1 << 20;

/// Where a word is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a slot of a cache: its name, the slot's address, and what the slot is doing.
    Slot(String, u64, State),
    /// In a live large object: its address and bytes.
    Large(u64, u64),
    /// In a live huge object: its address and bytes.
    Huge(u64, u64),
    /// In memory that is not the allocator's.
    NotOurs(Map),
    /// As [`NotOurs`](Self::NotOurs), in a mapping that the allocator's records share.
    Shared(Map),
    /// In the allocator's own records; the text says which.
    Record(&'static str),
    /// In pages of the allocator that no object has.
    FreePage,
}

impl Place {
    /// Whether a word here holds an object.
    pub fn holds(&self) -> bool {
        match self {
            Self::Slot(_, _, state) => *state == State::Live,
            Self::Large(..) | Self::Huge(..) | Self::NotOurs(_) | Self::Shared(_) => true,
            Self::Record(_) | Self::FreePage => false,
        }
    }
}

/// A word that points to the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its address.
    pub at: u64,
    /// What it points to.
    pub value: u64,
    /// Where it is.
    pub place: Place,
}

/// What a search found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The words, by address.
    pub words: Vec<Word>,
    /// The registers that point to an object.
    pub registers: Vec<Register>,
    /// Whether registers were searched.
    pub has_registers: bool,
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes that could not be read.
    pub unread: u64,
    /// Whether there are more words than were asked for.
    pub is_cut: bool,
}

/// Searches for words that point into `object`, and says where they are; at most `most` words.
///
/// The heaps are all allocators in the memory.
pub fn find(memory: &dyn Memory, heaps: &[Heap<'_>], object: Range<u64>, most: usize) -> Found {
    find_any(memory, heaps, &[object], most)
}

/// As [`find`], for several objects in one search. They are in the order of addresses, and do not
/// overlap.
pub fn find_any(
    memory: &dyn Memory,
    heaps: &[Heap<'_>],
    objects: &[Range<u64>],
    most: usize,
) -> Found {
    let mut found = Found::default();
    let mut places = Vec::new();
    // Address space that an arena reserved and does not use has no words.
    let unused: Vec<_> = heaps
        .iter()
        .map(|heap| {
            let arena = heap.arena();
            let page = |n: u64| arena.base.saturating_add(n.saturating_mul(PAGE));
            page(arena.pages)..page(arena.reserved)
        })
        .collect();
    let maps = memory.maps().iter().filter(|map| map.writable);
    for map in maps {
        let parts = unused.iter().fold(vec![map.range.clone()], |parts, skip| {
            parts.into_iter().flat_map(|p| without(p, skip)).collect()
        });
        for part in parts {
            search(memory, part, objects, most, &mut found, &mut places);
        }
    }
    let mut owners: Vec<_> = heaps.iter().map(Owners::new).collect();
    let words = places.into_iter().map(|(at, value)| Word {
        at,
        value,
        place: place(memory, &mut owners, at),
    });
    found.words = words.collect();
    found.registers = memory.registers();
    found.has_registers = !found.registers.is_empty();
    (found.registers).retain(|register| object_of(objects, register.value).is_some());
    found
}

/// The place of the object that an address lies in, among objects in the order of addresses.
pub fn object_of(objects: &[Range<u64>], at: u64) -> Option<usize> {
    let place = objects.partition_point(|object| object.end <= at);
    objects.get(place)?.contains(&at).then_some(place)
}

/// A range without another one.
fn without(range: Range<u64>, other: &Range<u64>) -> Vec<Range<u64>> {
    let before = range.start..range.end.min(other.start);
    let behind = range.start.max(other.end)..range.end;
    if other.is_empty() || other.end <= range.start || other.start >= range.end {
        return vec![range];
    }
    let parts = [before, behind];
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

/// Adds the words of a range that point into one of the objects.
fn search(
    memory: &dyn Memory,
    range: Range<u64>,
    objects: &[Range<u64>],
    most: usize,
    found: &mut Found,
    places: &mut Vec<(u64, u64)>,
) {
    // Most words are no pointers to any object, so one comparison of both ends sorts them out.
    let (Some(first), Some(last)) = (objects.first(), objects.last()) else {
        return;
    };
    let all = first.start..last.end;
    let mut buffer = vec![0; (range.end - range.start).min(PART) as usize];
    let mut next = range.start;
    while let Some(touched) = memory.present(next..range.end) {
        if touched.start < next || touched.end <= touched.start || touched.end > range.end {
            return;
        }
        next = touched.end.min(touched.start.saturating_add(PART));
        let bytes = &mut buffer[..(next - touched.start) as usize];
        if memory.read(touched.start, bytes).is_err() {
            found.unread += read_pages(memory, touched.start, bytes);
        }
        found.bytes += bytes.len() as u64;
        for (i, word) in crate::heap::words(bytes).enumerate() {
            if all.contains(&word) && object_of(objects, word).is_some() {
                if places.len() == most {
                    found.is_cut = true;
                    return;
                }
                places.push((touched.start + 8 * i as u64, word));
            }
        }
    }
}

/// Reads page by page; what cannot be read is zero. Returns its bytes.
fn read_pages(memory: &dyn Memory, at: u64, to: &mut [u8]) -> u64 {
    let mut unread = 0;
    for (i, page) in to.chunks_mut(PAGE as usize).enumerate() {
        if memory.read(at + i as u64 * PAGE, page).is_err() {
            page.fill(0);
            unread += page.len() as u64;
        }
    }
    unread
}

fn place(memory: &dyn Memory, owners: &mut [Owners<'_, '_>], at: u64) -> Place {
    if let Some(place) = owners.iter_mut().find_map(|owner| owner.place(at)) {
        return place;
    }
    let Some(map) = map_of(memory.maps(), at) else {
        return Place::FreePage;
    };
    let mut records = owners.iter().flat_map(|owner| &owner.records);
    let is_shared =
        map.name.is_empty() && records.any(|(range, _)| map.range.contains(&range.start));
    match is_shared {
        true => Place::Shared(map.clone()),
        false => Place::NotOurs(map.clone()),
    }
}

/// What the memory of one allocator is, remembered from word to word.
struct Owners<'h, 'm> {
    heap: &'h Heap<'m>,
    caches: Vec<Cache>,
    cached: HashMap<usize, Cached>,
    slabs: HashMap<u64, Option<(Slab, FreeSlots)>>,
    large: Vec<(u64, u64)>,
    huge: Vec<(u64, u64)>,
    records: Vec<(Range<u64>, &'static str)>,
}

impl<'h, 'm> Owners<'h, 'm> {
    fn new(heap: &'h Heap<'m>) -> Self {
        let (caches, _) = heap.caches();
        let mut large = Vec::new();
        heap.walk(&[], |span| {
            if let Span::Large(first, pages) = span {
                large.push((heap.address(first), pages * PAGE));
            }
        });
        let quarantine = heap.quarantined_large();
        let waits = |&(at, bytes): &(u64, u64)| quarantine.has(at..at + bytes);
        large.retain(|object| !waits(object));
        let (kept, huge): (Vec<_>, Vec<_>) = heap.huge_objects().into_iter().partition(waits);
        let mut records = heap.records(&caches);
        let kept = kept.into_iter().map(|(at, bytes)| at..at + bytes);
        records.extend(kept.map(|range| (range, "an object in quarantine")));
        Self {
            records,
            huge,
            cached: HashMap::new(),
            slabs: HashMap::new(),
            heap,
            caches,
            large,
        }
    }

    /// What an address is; `None` if it is not this allocator's.
    fn place(&mut self, at: u64) -> Option<Place> {
        let inside = |&&(start, bytes): &&(u64, u64)| at >= start && at - start < bytes;
        let arena = self.heap.arena();
        let page = at.wrapping_sub(arena.base) / PAGE;
        if at >= arena.base && page < arena.pages {
            if let Some(&(start, bytes)) = self.large.iter().find(inside) {
                return Some(Place::Large(start, bytes));
            }
            return Some(self.slot(at, page).unwrap_or(Place::FreePage));
        }
        if let Some(&(start, bytes)) = self.huge.iter().find(inside) {
            return Some(Place::Huge(start, bytes));
        }
        let record = self.records.iter().find(|(range, _)| range.contains(&at));
        record.map(|&(_, what)| Place::Record(what))
    }

    /// The slot at an address of the arena; `None` where no slot is.
    fn slot(&mut self, at: u64, page: u64) -> Option<Place> {
        let (heap, id) = (self.heap, self.heap.map_entry(page));
        let cache = self.caches.iter().find(|cache| id != 0 && cache.id == id)?;
        let first = page & !(cache.slab_pages() - 1);
        let slab = self.slabs.entry(first).or_insert_with(|| {
            let slab = heap.slab_at(first)?;
            Some((slab, heap.free_slots(cache, &slab)))
        });
        let (_, free) = slab.as_ref()?;
        let (base, size) = (heap.address(first), u64::from(cache.size));
        let number = (at - base) / size;
        if number >= u64::from(cache.objects) {
            return None;
        }
        let start = cache.object_at(base, number as u32);
        let is_object = at >= start && at - start < u64::from(cache.object_bytes());
        if !is_object {
            return Some(Place::Record("what debugging keeps beside an object"));
        }
        let state = free.get(&(number as u32)).copied().or_else(|| {
            let cached = self.cached.entry(cache.index);
            let cached = cached.or_insert_with(|| heap.cached_objects(cache));
            cached.state(start)
        });
        let state = state.unwrap_or(State::Live);
        Some(Place::Slot(cache.name.clone(), start, state))
    }
}

impl Heap<'_> {
    /// The data of the allocator's library; nothing if a program has the allocator within itself.
    fn library_data(&self) -> Vec<(u64, u64)> {
        let file = &self.root.file;
        let name = file.rsplit('/').next().unwrap_or("");
        let first = (self.memory.maps().iter()).find(|map| !file.is_empty() && map.name == *file);
        match first.filter(|_| name.starts_with("libuslub")) {
            Some(map) => crate::root::data(self.memory, map.range.start),
            None => Vec::new(),
        }
    }

    /// The allocator's own records that can be found, with what they are.
    fn records(&self, caches: &[Cache]) -> Vec<(Range<u64>, &'static str)> {
        let (arena, f) = (self.arena(), &self.f);
        let descriptors = arena.pages * f.descriptor.bytes as u64;
        let blocks = arena.pages / f.block_pages as u64 * f.block_bytes as u64;
        let region = f.region_bytes as u64;
        let mut all = vec![
            (arena.map, 2 * arena.pages, "the map from pages to caches"),
            (arena.descriptors, descriptors, "the descriptors of pages"),
            (arena.blocks, blocks, "the sets of free pages"),
            (
                self.root.allocator,
                f.allocator_bytes as u64,
                "the allocator itself",
            ),
            (self.stopped, region, "the region of stopped CPUs"),
        ];
        let regions = self.regions.iter();
        all.extend(regions.map(|&(_, at)| (at, region, "the words and counters of a CPU")));
        if let Some((table, bytes)) = self.huge_table() {
            all.push((table, bytes, "the table of huge objects"));
        }
        for cache in caches {
            all.push((cache.at, f.cache.bytes as u64, "the record of a cache"));
            let barns = cache.barns.iter();
            all.extend(barns.map(|&at| (at, f.barn_bytes as u64, "a barn")));
            let nodes = cache.node_records.iter();
            all.extend(nodes.map(|&at| (at, f.node_bytes as u64, "lists of slabs")));
            let order = 8 * u64::from(cache.objects);
            all.push((cache.random, order, "the order of a cache's slots"));
        }
        let words = self.region_words(caches);
        let sheaves = self.slot_sheaves(caches, &words).into_iter();
        let sheaves = sheaves.chain(self.barn_sheaves(caches));
        let windows = sheaves.map(|sheaf| sheaf.window);
        let windows = windows.chain(self.empty_windows(caches));
        all.extend(windows.map(|at| (at, f.sheaf_bytes, "a sheaf")));
        let data = self.library_data().into_iter();
        all.extend(data.map(|(at, bytes)| (at, bytes, "the library's data")));
        let all = all
            .into_iter()
            .filter(|&(at, bytes, _)| at != 0 && bytes > 0);
        all.map(|(at, bytes, what)| (at..at.saturating_add(bytes), what))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_loses_the_part_that_it_shares_with_another() {
        let parts = |other: Range<u64>| -> Vec<_> {
            let parts = without(10..20, &other).into_iter();
            parts.map(|part| (part.start, part.end)).collect()
        };
        assert_eq!(parts(30..40), [(10, 20)]);
        assert_eq!(parts(15..15), [(10, 20)]);
        assert_eq!(parts(12..15), [(10, 12), (15, 20)]);
        assert_eq!(parts(5..15), [(15, 20)]);
        assert_eq!(parts(15..99), [(10, 15)]);
        assert!(parts(10..20).is_empty());
    }

    #[test]
    fn an_address_is_found_in_the_one_object_that_has_it() {
        let objects = [10..20, 20..30, 40..41];
        let found = |at| object_of(&objects, at);
        assert_eq!(
            [9, 10, 19, 20, 29].map(found),
            [None, Some(0), Some(0), Some(1), Some(1)]
        );
        assert_eq!([30, 39, 40, 41].map(found), [None, None, Some(2), None]);
        assert_eq!(object_of(&[], 10), None);
    }
}
