//! What the fast paths look at, and whether it lets them in.
//!
//! | state | bounds |
//! |---|---|
//! | closed | 0: each call goes to its slow function |
//! | open | the largest class, the pages of the arena |
//!
//! The gate is closed before the set-up, without restartable sequences, while a child shares our
//! memory, and in the hardened mode.
//!
//! A slow call extends the bound of `free` to pages that the arena gained, and opens the gate again
//! when the last child that shared our memory has ended.

use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, AtomicUsize};

use uslub_core::cache::allocator::LAST_OWN_CACHE;
use uslub_core::kmalloc::{CLASS_MAX, CLASS_TABLE};
use uslub_core::percpu::{APART, CACHE_WORDS, CacheId, Region};
use uslub_core::platform::PAGE_SIZE;
#[cfg(not(target_arch = "riscv64"))]
use uslub_core::slab::shape::Shape;
use uslub_rseq::Index;

use crate::ALLOCATOR;

/// CPUs for which there is room. On machines with more, the fast paths stay closed.
const CPUS: usize = 2048;

/// What a `malloc` and a `free` read.
///
/// Both also write to the second word of the thread's area. The area is aligned to 32 bytes and
/// lies anywhere in its page. So the second word of every 32 bytes here is unused: a load from it
/// could wait for such a store.
#[repr(C, align(64))]
pub(crate) struct Line {
    /// Address of the arena's page 0.
    pub(crate) base: AtomicUsize,
    _written: usize,
    /// Address of the page → cache array.
    pub(crate) map: AtomicUsize,
    /// Sizes in bytes below it have a class; 0 closes `malloc`.
    pub(crate) limit: AtomicUsize,
    /// Offset of the thread's area from the thread pointer, in bytes.
    pub(crate) offset: AtomicUsize,
    _written_too: usize,
    /// Number of pages that `map` covers; 0 closes `free`.
    pub(crate) pages: AtomicUsize,
}

impl Line {
    const fn closed() -> Self {
        Self {
            base: AtomicUsize::new(0),
            _written: 0,
            map: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            offset: AtomicUsize::new(0),
            _written_too: 0,
            pages: AtomicUsize::new(0),
        }
    }

    fn open(&self, offset: isize) {
        let arena = &ALLOCATOR.zone.arena;
        // Relaxed: the two stores that follow publish them.
        self.base.store(arena.base(), Relaxed);
        self.map.store(arena.map() as usize, Relaxed);
        self.offset.store(offset as usize, Relaxed);
        // Release: publishes the words above. With several memory nodes this is 0, because a free
        // must check to which node its object belongs.
        self.pages.store(arena.cacheable_limit(), Release);
        // Release: as above.
        self.limit.store(CLASS_MAX + 1, Release);
    }

    fn close(&self) {
        // Relaxed: only the child must not get through, and it is born later, on this thread.
        self.pages.store(0, Relaxed);
        self.limit.store(0, Relaxed);
    }

    fn follow(&self, limit: usize) {
        // Acquire: a line that is closed stays closed.
        let pages = self.pages.load(Acquire);
        if pages != 0 && pages < limit {
            // Release: publishes the map of the new pages. If `close` comes in between, the
            // compare-and-swap fails.
            let _ = self.pages.compare_exchange(pages, limit, Release, Relaxed);
        }
    }
}

/// What the fast paths read, at offset [`APART`] of a page: a cache line for each of the two pairs
/// of functions, the table of classes, and the table of regions. All are zero at first, so the
/// library's file does not contain them.
#[repr(C, align(4096))]
pub(crate) struct Front {
    _before: [u8; APART],
    pub(crate) by_id: Line,
    pub(crate) by_number: Line,
    /// Identity of a class's cache, by size in words of 8 bytes. The entries for sizes above 3.5
    /// KiB lie in the next page, below [`APART`].
    pub(crate) classes: [AtomicU16; CLASS_MAX / 8 + 1],
    _between: [u8; PAGE_SIZE - 2 * size_of::<Line>() - 2 * (CLASS_MAX / 8 + 1)],
    /// Regions by index.
    pub(crate) regions: [AtomicPtr<Region>; CPUS],
    /// Where slots begin, by the identity of a cache, one for each group of its words: see
    /// [`Shape`](uslub_core::slab::shape::Shape). 0, which no pointer passes, until a free has
    /// asked, and for what is no class. This library has no other caches than the classes and
    /// their twins.
    pub(crate) shapes: [AtomicU64; SHAPES],
}

/// Entries of [`Front::shapes`].
const SHAPES: usize = LAST_OWN_CACHE.raw() as usize / CACHE_WORDS + 1;

const _: () = assert!(offset_of!(Front, regions) % PAGE_SIZE == APART);
const _: () = assert!(offset_of!(Front, shapes) % PAGE_SIZE == APART);

pub(crate) static FRONT: Front = Front {
    _before: [0; APART],
    by_id: Line::closed(),
    by_number: Line::closed(),
    classes: [const { AtomicU16::new(0) }; CLASS_MAX / 8 + 1],
    _between: [0; PAGE_SIZE - 2 * size_of::<Line>() - 2 * (CLASS_MAX / 8 + 1)],
    regions: [const { AtomicPtr::new(null_mut()) }; CPUS],
    shapes: [const { AtomicU64::new(0) }; SHAPES],
};

impl Front {
    /// The table in which the allocator lists its regions.
    pub(crate) const fn regions(&self) -> &[AtomicPtr<Region>] {
        &self.regions
    }

    /// Fills the table of classes. Call it before the fast paths open for the first time.
    pub(crate) fn set_up(&self) {
        for (place, class) in self.classes.iter().zip(CLASS_TABLE) {
            // Relaxed: published by the bounds.
            place.store(CacheId::of_class(class).raw(), Relaxed);
        }
    }

    /// Lets pointers to slots of a class's cache through.
    #[cfg(not(target_arch = "riscv64"))]
    pub(crate) fn learn(&self, id: CacheId, shape: Option<Shape>) {
        let place = &self.shapes[usize::from(id.raw()) / CACHE_WORDS];
        let word = shape.map_or(0, Shape::word);
        // aarch64 shifts an operand of the mask's instruction at no cost, but none of the factor's.
        let word = if cfg!(target_arch = "aarch64") {
            word.rotate_left(32)
        } else {
            word
        };
        // Relaxed: a word of constants, the same from every thread.
        place.store(word, Relaxed);
    }

    /// Opens the fast paths if there are restartable sequences and no child shares our memory.
    pub(crate) fn open(&self) {
        let Some(area) = ALLOCATOR.platform.area() else {
            return;
        };
        if ALLOCATOR.is_hardened() {
            return;
        }
        let has_place = core::ptr::eq(ALLOCATOR.table.active(), self.regions.as_ptr());
        if !has_place {
            return;
        }
        let open = || match area.index {
            Index::MmCid => self.by_id.open(area.offset),
            Index::CpuId => self.by_number.open(area.offset),
        };
        ALLOCATOR.platform.reopen(open, || self.close());
    }

    /// Closes the fast paths for calls that begin later.
    pub(crate) fn close(&self) {
        self.by_id.close();
        self.by_number.close();
    }

    /// Extends `free` to pages that the arena gained since. Opens the fast paths if the last child
    /// that had closed them has ended.
    #[inline]
    pub(crate) fn follow(&self) {
        let limit = ALLOCATOR.zone.arena.cacheable_limit();
        self.by_id.follow(limit);
        self.by_number.follow(limit);
        if ALLOCATOR.platform.is_watching() && ALLOCATOR.platform.reap() {
            self.open();
        }
    }
}
