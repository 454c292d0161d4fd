//! A look at all caches: live objects, cached objects, free slots, slabs, pages.
//!
//! | look | reads | says |
//! |---|---|---|
//! | [light](Depth::Light) | records, sheaves, counters | slots and cached objects |
//! | [full](Depth::Full) | also the page map and the descriptors | everything |
//!
//! The process is not stopped. Words are never torn, but a set of words may be: objects move while
//! the look goes on. So the words of each CPU are read before and after the slabs. If those of a
//! cache changed, its row may be wrong, and the look is repeated, three times at most. A row that
//! changed in each look is marked: its `uncertain` says how many objects its sheaves may hold.
//! A thread that was stopped in the middle of a call may hold two sheaves that no word leads to.
//! So each thread that runs adds two sheaves to `uncertain`.

use std::time::{Duration, Instant};

use crate::blocks::Blocks;
use crate::error::Result;
use crate::heap::{Cache, Heap};
use crate::memory::PAGE;
use crate::pages::Span;
use crate::sheaves::Place;

/// Looks until all rows are exact, at most.
const LOOKS_MAX: usize = 3;

/// How much a look reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Records, sheaves and counters.
    Light,
    /// Also the page map and the descriptors.
    Full,
}

/// One cache in a look.
#[derive(Clone, Debug)]
pub struct Row {
    /// The cache.
    pub cache: Cache,
    /// Slots in all slabs.
    pub slots: u64,
    /// Slots in use by the program, in sheaves, or waiting; unknown in a light look.
    pub inuse: Option<u64>,
    /// Objects in the sheaves of CPUs and barns, in quarantine, and deferred ones.
    pub cached: u64,
    /// Those of them in quarantine.
    pub quarantined: u64,
    /// Objects that wait for a grace period in the sheaves of CPUs; they count as live.
    pub waiting: u64,
    /// Slabs, with those to come.
    pub slabs: u64,
    /// Slabs with a slot in use; unknown in a light look.
    pub active_slabs: Option<u64>,
    /// Objects allocated and freed so far; racy.
    pub calls: (u64, u64),
    /// Objects by which the row may be wrong, because the cache changed during the look; 0 for an
    /// exact row.
    pub uncertain: u64,
}

/// Objects of a cache that are free or wait, and are in no slab's freelist.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept {
    cached: u64,
    waiting: u64,
    quarantined: u64,
}

impl Row {
    /// Objects that the program holds; unknown in a light look.
    pub fn live(&self) -> Option<u64> {
        self.inuse.map(|inuse| inuse.saturating_sub(self.cached))
    }

    /// Bytes of the live objects' slots.
    pub fn live_bytes(&self) -> Option<u64> {
        self.live().map(|live| live * u64::from(self.cache.size))
    }

    /// Bytes of the cached objects' slots.
    pub fn cached_bytes(&self) -> u64 {
        self.cached * u64::from(self.cache.size)
    }

    /// Free slots; unknown in a light look.
    pub fn free(&self) -> Option<u64> {
        self.inuse.map(|inuse| self.slots.saturating_sub(inuse))
    }

    /// Bytes of all slabs.
    pub fn slab_bytes(&self) -> u64 {
        self.slabs * self.bytes_a_slab()
    }

    /// Most bytes of slabs at once; those of now if this version does not describe it.
    pub fn peak_bytes(&self) -> u64 {
        let most = self.cache.peak_slabs.unwrap_or(0).max(self.slabs);
        most.saturating_mul(self.bytes_a_slab())
    }

    fn bytes_a_slab(&self) -> u64 {
        4096 << self.cache.order
    }
}

/// The pages of the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Pages in use: all pages of the blocks that were added.
    pub all: u64,
    /// Pages of slabs with a descriptor.
    pub slabs: u64,
    /// Pages of live large objects.
    pub large: u64,
    /// Live large objects.
    pub large_objects: u64,
    /// Large objects in quarantine, and their pages; they are none of those above.
    pub quarantined: (u64, u64),
    /// Free pages that may hold memory.
    pub dirty: u64,
    /// Other pages.
    pub free: u64,
    /// Pages that were neither: being made or freed just now, or damaged.
    pub torn: u64,
}

/// A look at an allocator.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The caches that have a slab or a creator, by index.
    pub rows: Vec<Row>,
    /// The pages; only totals in a light look.
    pub pages: Pages,
    /// Bytes of huge objects, and of mappings kept; `None` if this version does not describe them.
    pub huge: Option<(u64, u64)>,
    /// Huge objects.
    pub huge_objects: u64,
    /// Large and huge objects in quarantine, and their bytes; they are not live. Large ones are
    /// live in a light look.
    pub quarantined_large: (u64, u64),
    /// Most bytes of large and huge objects at once; `None` if this version does not describe it.
    pub peak_large: Option<u64>,
    /// Allocations and frees of large and huge objects.
    pub large_calls: (u64, u64),
    /// Records of caches that are damaged.
    pub damaged: usize,
    /// How often the heap was read.
    pub looks: usize,
    /// How long it took.
    pub took: Duration,
}

impl Snapshot {
    /// Bytes of all live objects that are known: slots, large and huge objects.
    pub fn live_bytes(&self) -> u64 {
        let slots: u64 = self.rows.iter().filter_map(Row::live_bytes).sum();
        let huge = self.huge.map_or(0, |(live, _)| live);
        (slots + self.pages.large * 4096).saturating_add(huge)
    }

    /// Bytes of all cached objects.
    pub fn cached_bytes(&self) -> u64 {
        let slots: u64 = self.rows.iter().map(Row::cached_bytes).sum();
        slots.saturating_add(self.quarantined_large.1)
    }

    /// Objects in quarantine, and their bytes.
    pub fn quarantined(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), row: &Row| {
            let bytes = row.quarantined * u64::from(row.cache.size);
            (sum.0 + row.quarantined, sum.1 + bytes)
        };
        self.rows.iter().fold(self.quarantined_large, add)
    }

    /// Bytes of all free slots.
    pub fn free_bytes(&self) -> u64 {
        let free = |row: &Row| row.free().map(|free| free * u64::from(row.cache.size));
        self.rows.iter().filter_map(free).sum()
    }
}

impl Heap<'_> {
    /// Looks at all caches.
    ///
    /// # Errors
    ///
    /// If the allocator's own words can no longer be read.
    pub fn look(&mut self, depth: Depth) -> Result<Snapshot> {
        let begin = Instant::now();
        let mut best: Option<Snapshot> = None;
        for looks in 1..=LOOKS_MAX {
            self.refresh()?;
            let mut now = self.look_once(depth);
            now.looks = looks;
            if let Some(before) = best.take() {
                keep_exact(&mut now, before);
            }
            let is_exact = now.rows.iter().all(|row| row.uncertain == 0);
            best = Some(now);
            if is_exact {
                break;
            }
        }
        let mut snapshot = best.unwrap_or_else(|| self.look_once(depth));
        // A running thread may hold two sheaves of a cache that no word leads to.
        let in_hand = 2 * self.memory.running();
        for row in snapshot.rows.iter_mut().filter(|row| row.calls.0 > 0) {
            let capacity = row.cache.capacity.0.max(row.cache.capacity.1) as u64;
            row.uncertain = row
                .uncertain
                .saturating_add(in_hand.saturating_mul(capacity));
        }
        snapshot.took = begin.elapsed();
        Ok(snapshot)
    }

    fn look_once(&self, depth: Depth) -> Snapshot {
        let (caches, damaged) = self.caches();
        let words = self.region_words(&caches);
        let cached = self.cached(&caches, &words);
        let mut rows: Vec<_> = caches.iter().map(|cache| row(cache, depth)).collect();
        for (row, kept) in rows.iter_mut().zip(&cached) {
            (row.cached, row.waiting, row.quarantined) =
                (kept.cached, kept.waiting, kept.quarantined);
        }
        let pages = self.count_pages(&caches, depth, &mut rows);
        let (after, _) = self.caches();
        let words_after = self.region_words(&caches);
        let cached_after = self.cached(&caches, &words_after);
        let calls = self.calls(&caches, &words_after);
        for (i, row) in rows.iter_mut().enumerate() {
            row.calls = calls[i];
            let cache = &caches[i];
            let other = after.iter().find(|other| other.index == cache.index);
            let is_same = self.trace(cache, &words) == self.trace(cache, &words_after)
                && cached[i] == cached_after[i]
                && cache.flushes == 0
                && other.is_some_and(|other| {
                    (other.flushes, other.slabs, other.deferred, &other.ahead)
                        == (0, cache.slabs, cache.deferred, &cache.ahead)
                });
            if !is_same {
                row.uncertain = self.most_in_sheaves(cache);
            }
        }
        rows.retain(|row| row.slabs > 0 || row.cache.users > 0);
        let quarantine = self.quarantined_large();
        let (kept, huge): (Vec<_>, Vec<_>) = self
            .huge_objects()
            .into_iter()
            .partition(|&(at, bytes)| quarantine.has(at..at + bytes));
        let kept_bytes = kept.iter().map(|&(_, bytes)| bytes).sum();
        let live = |(live, kept): (u64, u64)| (live.saturating_sub(kept_bytes), kept);
        Snapshot {
            rows,
            quarantined_large: (
                pages.quarantined.0 + kept.len() as u64,
                (pages.quarantined.1 * PAGE).saturating_add(kept_bytes),
            ),
            pages,
            huge: self.huge_bytes().map(live),
            huge_objects: huge.len() as u64,
            peak_large: self.f.peak_large.map(|peak| self.number(peak)),
            large_calls: self.large_calls(),
            damaged,
            looks: 1,
            took: Duration::ZERO,
        }
    }

    /// The objects of each cache that are in no slab's freelist although they are free.
    fn cached(&self, caches: &[Cache], words: &[Vec<u64>]) -> Vec<Kept> {
        let quarantine = self.quarantined();
        let kept = |cache: &Cache| {
            let quarantined = quarantine.get(&cache.id).map_or(0, Vec::len) as u64;
            Kept {
                cached: cache.deferred + quarantined,
                waiting: 0,
                quarantined,
            }
        };
        let mut all: Vec<_> = caches.iter().map(kept).collect();
        let in_slots = self.slot_sheaves(caches, words);
        let in_barns = self.barn_sheaves(caches);
        let place_of = |index| caches.binary_search_by_key(&index, |cache| cache.index);
        for sheaf in in_slots.into_iter().chain(in_barns) {
            if let Ok(place) = place_of(sheaf.cache) {
                match sheaf.place {
                    Place::Rcu(_) => all[place].waiting += sheaf.len as u64,
                    _ => all[place].cached += sheaf.len as u64,
                }
            }
        }
        all
    }

    /// Walks the pages; adds slots and slabs to the rows.
    fn count_pages(&self, caches: &[Cache], depth: Depth, rows: &mut [Row]) -> Pages {
        let mut pages = Pages {
            all: self.arena().pages,
            ..Pages::default()
        };
        if depth == Depth::Light {
            for row in rows.iter_mut() {
                row.slabs = row.cache.slabs;
                row.slots = row.slabs * u64::from(row.cache.objects);
            }
            pages.large = self.large_pages();
            return pages;
        }
        let mut blocks = Blocks::new(self);
        let quarantine = self.quarantined_large();
        self.walk(caches, |span| match span {
            Span::Slab(place, slab) => {
                let row = &mut rows[place];
                row.slabs += 1;
                row.inuse = row.inuse.map(|inuse| inuse + u64::from(slab.inuse));
                row.active_slabs = row.active_slabs.map(|n| n + u64::from(slab.inuse > 0));
                pages.slabs += row.cache.slab_pages();
            }
            Span::Large(first, n)
                if quarantine.has(self.address(first)..self.address(first + n)) =>
            {
                pages.quarantined.0 += 1;
                pages.quarantined.1 += n;
            }
            Span::Large(_, n) => {
                pages.large += n;
                pages.large_objects += 1;
            }
            Span::Kept(_, n) => pages.dirty += n,
            Span::Free(first, n) => {
                let dirty = blocks.dirty(first, n);
                pages.dirty += dirty;
                pages.free += n - dirty;
            }
            Span::Torn(_) => pages.torn += 1,
        });
        for row in rows {
            row.slabs += row.cache.ahead.iter().map(|&(_, slabs)| slabs).sum::<u64>();
            row.slots = row.slabs * u64::from(row.cache.objects);
        }
        pages
    }

    /// Objects that all sheaves of a cache may hold together.
    fn most_in_sheaves(&self, cache: &Cache) -> u64 {
        let capacity = cache.capacity.0.max(cache.capacity.1).max(1) as u64;
        let full = cache.max_full.0.max(cache.max_full.1) as u64;
        let sheaves = 4 * self.regions.len() as u64 + full * cache.barns.len() as u64;
        capacity.saturating_mul(sheaves).min(1 << 32)
    }
}

fn row(cache: &Cache, depth: Depth) -> Row {
    let known = (depth == Depth::Full).then_some(0);
    Row {
        cache: cache.clone(),
        slots: 0,
        inuse: known,
        cached: 0,
        quarantined: 0,
        waiting: 0,
        slabs: 0,
        active_slabs: known,
        calls: (0, 0),
        uncertain: 0,
    }
}

/// Replaces rows of a look by exact rows of the look before.
fn keep_exact(now: &mut Snapshot, before: Snapshot) {
    for old in before.rows.into_iter().filter(|row| row.uncertain == 0) {
        let place = now
            .rows
            .iter_mut()
            .find(|row| row.cache.index == old.cache.index);
        if let Some(row) = place.filter(|row| row.uncertain > 0) {
            *row = old;
        }
    }
}
