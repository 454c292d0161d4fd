//! What an address is.

use crate::blocks::Blocks;
use crate::heap::{Cache, Heap};
use crate::memory::{Map, PAGE, map_of};
use crate::slots::State;

/// A slot that an address lies in.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Its cache.
    pub cache: Cache,
    /// The address of its object: the slot's own, unless a red zone of debugging lies before it.
    pub at: u64,
    /// Bytes from the object's start to the address; 0 in front of it.
    pub offset: u64,
    /// Bytes from the address to the object's start; 0 unless the address is in front of it.
    pub in_front: u64,
    /// Its number in the slab.
    pub number: u32,
    /// What it is doing.
    pub state: State,
    /// First page of its slab.
    pub page: u64,
    /// Slots of the slab in use.
    pub inuse: u32,
    /// How often the slab started over.
    pub epoch: u16,
    /// The states of the slots before and behind it.
    pub neighbours: [Option<State>; 2],
}

/// What an address is.
#[derive(Clone, Debug)]
pub enum Meaning {
    /// In a slot of a cache.
    Slot(Box<Slot>),
    /// In a slab, behind its last slot.
    BehindSlots(Cache, u64),
    /// In pages of a cache's slabs to come.
    Ahead(Cache),
    /// In a large object: its address, and its bytes.
    Large(u64, u64),
    /// In a huge object: its address, and its bytes.
    Huge(u64, u64),
    /// In a large or huge object in quarantine: its address, and its bytes.
    Quarantined(u64, u64),
    /// In a free page: the number of the page, and whether it may still hold old bytes.
    FreePage(u64, bool),
    /// In a page that is being made or freed just now.
    Torn,
    /// In the arena, behind the pages in use.
    Reserved,
    /// In the allocator's own records; the text says which.
    Record(&'static str),
    /// In memory that is not the allocator's.
    NotOurs(Map),
    /// In no mapping.
    Unmapped,
    /// In the kernel's half of the address space, or in neither half.
    Kernel,
}

impl Heap<'_> {
    /// What an address is.
    pub fn explain(&self, at: u64) -> Meaning {
        if at >= 1 << 47 {
            return Meaning::Kernel;
        }
        let arena = self.arena();
        let page = at.wrapping_sub(arena.base) / PAGE;
        if at >= arena.base && page < arena.pages {
            return self.explain_page(at, page);
        }
        if at >= arena.base && page < arena.reserved {
            return Meaning::Reserved;
        }
        if let Some(what) = self.record_at(at) {
            return Meaning::Record(what);
        }
        let huge = self.huge_objects();
        let huge = huge
            .iter()
            .find(|&&(start, bytes)| (start..start + bytes).contains(&at));
        if let Some(&(start, bytes)) = huge {
            return match self.quarantined_large().has(start..start + bytes) {
                true => Meaning::Quarantined(start, bytes),
                false => Meaning::Huge(start, bytes),
            };
        }
        match map_of(self.memory.maps(), at) {
            Some(map) => Meaning::NotOurs(map.clone()),
            None => Meaning::Unmapped,
        }
    }

    fn explain_page(&self, at: u64, page: u64) -> Meaning {
        let (caches, _) = self.caches();
        let id = self.map_entry(page);
        if id == 0 {
            return self.explain_free(at, page, caches);
        }
        let Some(cache) = caches.into_iter().find(|cache| cache.id == id) else {
            return Meaning::Torn;
        };
        let first = page & !(cache.slab_pages() - 1);
        let Some(slab) = self.slab_at(first) else {
            return Meaning::Torn;
        };
        let (base, size) = (self.address(first), u64::from(cache.size));
        let number = (at - base) / size;
        if number >= u64::from(cache.objects) {
            let behind = at - base - size * u64::from(cache.objects);
            return Meaning::BehindSlots(cache, behind);
        }
        let (cached, free) = (self.cached_objects(&cache), self.free_slots(&cache, &slab));
        let state = |number: u32| {
            let free = free.get(&number).copied();
            let cached = || cached.state(cache.object_at(base, number));
            free.or_else(cached).unwrap_or(State::Live)
        };
        let number = number as u32;
        let behind = Some(number + 1).filter(|&n| n < cache.objects);
        let start = cache.object_at(base, number);
        Meaning::Slot(Box::new(Slot {
            at: start,
            offset: at.saturating_sub(start),
            in_front: start.saturating_sub(at),
            number,
            state: state(number),
            page: first,
            inuse: slab.inuse,
            epoch: slab.epoch,
            neighbours: [number.checked_sub(1).map(state), behind.map(state)],
            cache,
        }))
    }

    /// What a page without a cache is.
    fn explain_free(&self, at: u64, page: u64, caches: Vec<Cache>) -> Meaning {
        let is_ahead = |cache: &Cache| {
            let mut ahead = cache.ahead.iter();
            ahead.any(|&(first, slabs)| (first..first + (slabs << cache.order)).contains(&page))
        };
        if let Some(cache) = caches.into_iter().find(is_ahead) {
            return Meaning::Ahead(cache);
        }
        let mut large = None;
        let (mut is_free, mut is_kept) = (false, false);
        // Large objects may be long, so the descriptor that counts may be far before the page.
        self.walk(&[], |span| match span {
            crate::pages::Span::Large(first, pages) if (first..first + pages).contains(&page) => {
                large = Some((first, pages));
            }
            crate::pages::Span::Kept(first, pages) if (first..first + pages).contains(&page) => {
                is_kept = true;
            }
            crate::pages::Span::Free(first, pages) if (first..first + pages).contains(&page) => {
                is_free = true;
            }
            _ => {}
        });
        if let Some((first, pages)) = large {
            let (start, bytes) = (self.address(first), pages * PAGE);
            return match self.quarantined_large().has(start..start + bytes) {
                true => Meaning::Quarantined(start, bytes),
                false => Meaning::Large(start, bytes),
            };
        }
        debug_assert!(is_free || is_kept || at >= self.arena().base);
        Meaning::FreePage(page, is_kept || Blocks::new(self).is_dirty(page))
    }

    /// Which of the allocator's records an address lies in.
    fn record_at(&self, at: u64) -> Option<&'static str> {
        let arena = self.arena();
        let descriptors = arena.pages * self.f.descriptor.bytes as u64;
        let blocks = arena.pages / self.f.block_pages as u64 * self.f.block_bytes as u64;
        let known = [
            (arena.map, 2 * arena.pages, "the map from pages to caches"),
            (arena.descriptors, descriptors, "the descriptors of pages"),
            (arena.blocks, blocks, "the sets of free pages"),
            (
                self.root.allocator,
                self.f.allocator_bytes as u64,
                "the allocator itself",
            ),
            (
                self.stopped,
                self.f.region_bytes as u64,
                "the region of stopped CPUs",
            ),
        ];
        let inside = |start: u64, bytes: u64| at >= start && at - start < bytes;
        if let Some(&(.., what)) = known
            .iter()
            .find(|&&(start, bytes, _)| inside(start, bytes))
        {
            return Some(what);
        }
        let region = self.f.region_bytes as u64;
        if self.regions.iter().any(|&(_, start)| inside(start, region)) {
            return Some("the words and counters of a CPU");
        }
        let (caches, _) = self.caches();
        let record = self.f.cache.bytes as u64;
        if caches.iter().any(|cache| inside(cache.at, record)) {
            return Some("the record of a cache");
        }
        let words = self.region_words(&caches);
        let slots = self.slot_sheaves(&caches, &words);
        let barns = self.barn_sheaves(&caches);
        let mut windows = slots.into_iter().chain(barns).map(|sheaf| sheaf.window);
        windows
            .any(|window| inside(window, self.f.sheaf_bytes))
            .then_some("a sheaf")
    }
}
