//! The arena: one reserved address range, and a record of each page in it.
//!
//! ```text
//!   [ blocks | groups | page → cache | descriptors | pages …                         ]
//!     side ranges, committed as the pages are   base        limit  committed  reserved
//! ```
//!
//! | pages | state |
//! |---|---|
//! | below `limit` | in use: the zone hands them out |
//! | from `limit` to `committed` | committed ahead of use |
//! | from `committed` to `reserved` | address space only |
//!
//! Shift and add find everything: the page of an address, the cache of a page, the descriptor of a
//! page. One compare tells that an address outside [base, limit) is not ours.
//!
//! The range grows at `limit`, one block at a time. The system takes 1 to 2 µs for each commit, so
//! the arena commits several blocks at once, and the side ranges of 16 MiB and then of 64 MiB.
//! `range` says what is reserved, and when.
//!
//! Callers: all layers read, without a lock. The zone grows the arena under its growth lock.

use core::ptr::{NonNull, null_mut};
use core::slice;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::block::{BLOCK_PAGES, Block, Group};
use crate::memory::descriptor::Descriptor;
use crate::percpu::CacheId;
use crate::platform::{PAGE_SHIFT, PAGE_SIZE, Platform};
use crate::policy::{COMMIT_AHEAD_BLOCKS, SIDES_FIRST_BLOCKS};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicUsize};

/// Bytes of a block, the unit in which the range grows.
pub const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Bytes of the descriptors of a block.
pub(super) const DESCRIPTOR_BYTES: usize = BLOCK_PAGES * size_of::<Descriptor>();
/// Side ranges: of blocks, groups, the page map and descriptors.
pub(super) const SIDES: usize = 4;
/// A block's share of its group, in bytes.
pub(super) const GROUP_SHARE: usize = size_of::<Group>() / 64;

/// Number of a page, counted from the arena's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageIndex(pub u32);

/// The address range; all page numbers count from its base.
#[repr(C, align(32))]
pub struct Arena {
    pub(super) base: AtomicUsize,
    /// Pages below this number are reserved.
    pub(super) reserved: AtomicUsize,
    /// Pages below this number are in use.
    pub(super) limit: AtomicUsize,
    /// Objects in pages below this number may be cached in any CPU's sheaves.
    cacheable_limit: AtomicUsize,
    pub(super) map: AtomicPtr<AtomicU16>,
    pub(super) descriptors: AtomicPtr<Descriptor>,
    pub(super) blocks: AtomicPtr<Block>,
    pub(super) groups: AtomicPtr<Group>,
    /// Pages below this number are committed.
    pub(super) committed: AtomicUsize,
    /// The side ranges of blocks below this number are committed.
    pub(super) described: AtomicUsize,
    /// The side ranges of blocks below this number are reserved.
    pub(super) sides_reserved: AtomicUsize,
    /// The side ranges have room for this many blocks.
    pub(super) planned: AtomicUsize,
    /// Whether the range lies in a hole of the address space and can be extended in place.
    pub(super) in_hole: AtomicBool,
    /// Whether nothing is reserved or committed ahead of use, because a limit counts it.
    pub(super) lean: AtomicBool,
}

impl Arena {
    /// An arena without a range: it owns nothing.
    pub(crate) const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            cacheable_limit: AtomicUsize::new(0),
            map: AtomicPtr::new(null_mut()),
            descriptors: AtomicPtr::new(null_mut()),
            blocks: AtomicPtr::new(null_mut()),
            groups: AtomicPtr::new(null_mut()),
            committed: AtomicUsize::new(0),
            described: AtomicUsize::new(0),
            sides_reserved: AtomicUsize::new(0),
            planned: AtomicUsize::new(0),
            in_hole: AtomicBool::new(false),
            lean: AtomicBool::new(false),
        }
    }

    /// Adds one more block at the limit and returns its number; `None` if the range is used up or
    /// the system refuses memory. One thread at a time.
    #[inline(never)]
    pub fn grow<P: Platform>(&self, platform: &P) -> Option<u32> {
        // Relaxed: only one thread at a time changes the limit, now this one.
        let limit = self.limit.load(Relaxed);
        let block = limit / BLOCK_PAGES;
        // Relaxed: as for the limit.
        if limit == self.committed.load(Relaxed) {
            // Acquire: pairs with `stretch` and `init`.
            if limit == self.reserved.load(Acquire) && !self.extend(platform) {
                return None;
            }
            // Relaxed: as for the limit.
            let left = self.reserved.load(Relaxed) / BLOCK_PAGES - block;
            let several = match self.is_lean() {
                true => 1,
                false => (1 + block / 8).min(COMMIT_AHEAD_BLOCKS).min(left),
            };
            // If the system refuses a batch, commit a single block.
            if !self.commit(platform, block, several)
                && (several == 1 || !self.commit(platform, block, 1))
            {
                return None;
            }
        }
        // Release: a thread that reads the new limit sees the committed side ranges.
        self.limit.store(limit + BLOCK_PAGES, Release);
        if platform.nr_nodes() <= 1 {
            // Release: as above.
            self.cacheable_limit.store(limit + BLOCK_PAGES, Release);
        }
        Some(block as u32)
    }

    /// Commits `count` blocks (1 to [`COMMIT_AHEAD_BLOCKS`]) from `block` on; all blocks before are
    /// committed. Returns false if the system refuses.
    #[inline(never)]
    fn commit<P: Platform>(&self, platform: &P, block: usize, count: usize) -> bool {
        // Relaxed: as for the limit.
        let described = self.described.load(Relaxed);
        // Few at first: where all memory is locked, they count.
        let ahead = match described {
            0 => SIDES_FIRST_BLOCKS,
            _ => COMMIT_AHEAD_BLOCKS,
        };
        if block + count > described && !self.describe(platform, described + ahead) {
            return false;
        }
        let pages = self.address(PageIndex((block * BLOCK_PAGES) as u32));
        // SAFETY: inside our reservation.
        if !unsafe { platform.commit(pages, count * BLOCK_BYTES) } {
            return false;
        }
        // Relaxed: published by the limit.
        self.committed.store((block + count) * BLOCK_PAGES, Relaxed);
        true
    }

    /// Commits the side ranges up to block `end`, or to the end of their reservation.
    fn describe<P: Platform>(&self, platform: &P, end: usize) -> bool {
        // Relaxed, both: as in `grow`.
        let begin = self.described.load(Relaxed);
        let end = end.min(self.sides_reserved.load(Relaxed));
        let done = (0..SIDES).map(|side| self.side(side)).all(|(start, unit)| {
            let from = platform.whole_pages(start + begin * unit);
            let to = platform.whole_pages(start + end * unit);
            // SAFETY: inside our reservation; page-aligned, as `start` is.
            to <= from
                || unsafe { platform.commit(NonNull::new_unchecked(from as *mut u8), to - from) }
        });
        if done {
            // Relaxed: published by the limit.
            self.described.store(end, Relaxed);
        }
        done
    }

    /// A side range, one of [`SIDES`]: its start, and its bytes per block.
    pub(super) fn side(&self, number: usize) -> (usize, usize) {
        // Relaxed: the addresses were published with `reserved`.
        match number {
            0 => (self.blocks.load(Relaxed) as usize, size_of::<Block>()),
            1 => (self.groups.load(Relaxed) as usize, GROUP_SHARE),
            2 => (self.map.load(Relaxed) as usize, 2 * BLOCK_PAGES),
            _ => (self.descriptors.load(Relaxed) as usize, DESCRIPTOR_BYTES),
        }
    }

    /// Bytes reserved for pages behind the pages of a block.
    pub fn reserved_behind(&self, number: u32) -> usize {
        self.reserved_bytes() - (number as usize + 1) * BLOCK_BYTES
    }

    /// Bytes reserved for pages.
    pub fn reserved_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.reserved.load(Relaxed) * PAGE_SIZE
    }

    /// Pages in use: all pages of the blocks that were added.
    #[inline]
    pub fn limit(&self) -> usize {
        // Acquire: pairs with `grow`.
        self.limit.load(Acquire)
    }

    /// Objects in pages below this number may be cached in any CPU's sheaves: all pages in use with
    /// one memory node, none with several.
    #[inline]
    pub fn cacheable_limit(&self) -> usize {
        // Acquire: pairs with `grow`.
        self.cacheable_limit.load(Acquire)
    }

    /// Address of page 0.
    #[inline]
    pub fn base(&self) -> usize {
        // Relaxed: set once; every user has read a limit before.
        self.base.load(Relaxed)
    }

    /// Start of the page → cache array.
    #[inline]
    pub fn map(&self) -> *mut AtomicU16 {
        // Relaxed: set once; every user has read a limit before.
        self.map.load(Relaxed)
    }

    /// The page that an address lies in; `None` if the address is not ours.
    #[inline]
    pub fn page_of(&self, address: usize) -> Option<PageIndex> {
        let limit = self.limit();
        let page = address.wrapping_sub(self.base()) >> PAGE_SHIFT;
        (page < limit).then_some(PageIndex(page as u32))
    }

    /// The address of a page.
    #[inline]
    pub fn address(&self, page: PageIndex) -> NonNull<u8> {
        let address = self.base() + ((page.0 as usize) << PAGE_SHIFT);
        // SAFETY: the base is not 0.
        unsafe { NonNull::new_unchecked(address as *mut u8) }
    }

    #[inline]
    fn map_entry(&self, page: PageIndex) -> &AtomicU16 {
        debug_assert!((page.0 as usize) < self.limit());
        // SAFETY: pages below the limit have a committed entry.
        unsafe { &*self.map().add(page.0 as usize) }
    }

    /// The cache whose slab a page belongs to.
    #[inline]
    pub fn cache_of(&self, page: PageIndex) -> Option<CacheId> {
        // Relaxed: the entry is constant while the caller holds an object of the page; any other
        // answer only serves a diagnosis.
        CacheId::from_raw(self.map_entry(page).load(Relaxed))
    }

    /// The cache whose slab an address lies in, if any CPU may cache the slab's objects in its
    /// sheaves; with several memory nodes, none may.
    #[inline]
    pub fn cacheable_in(&self, address: usize) -> Option<CacheId> {
        self.cacheable_entry(address).and_then(CacheId::from_raw)
    }

    /// Whether [`cacheable_in`](Self::cacheable_in) is the cache `id`.
    #[inline]
    pub fn is_cacheable_in(&self, address: usize, id: CacheId) -> bool {
        self.cacheable_entry(address) == Some(id.raw())
    }

    #[inline]
    fn cacheable_entry(&self, address: usize) -> Option<u16> {
        let page = address.wrapping_sub(self.base()) >> PAGE_SHIFT;
        // SAFETY: pages below that number have a committed entry. Relaxed: as in `cache_of`.
        (page < self.cacheable_limit()).then(|| unsafe { (*self.map().add(page)).load(Relaxed) })
    }

    /// Whether all addresses lie in slabs of a cache, each of `bytes` bytes (a power of two).
    #[inline]
    pub fn all_of(&self, addresses: &[*mut u8], id: CacheId, bytes: usize) -> bool {
        // Neighbouring addresses often lie in one slab: one compare checks eight of them against an
        // address `known` to be in a slab of the cache. The initial value differs from the first
        // address in every bit, so it matches nothing.
        let mut known = addresses.first().map_or(0, |&first| !(first as usize));
        let (eights, rest) = addresses.as_chunks::<8>();
        eights.iter().all(|eight| {
            let differ = eight.iter().fold(0, |all, &a| all | (a as usize ^ known));
            differ < bytes || self.each_of(eight, id, bytes, &mut known)
        }) && (rest.is_empty() || self.each_of(rest, id, bytes, &mut known))
    }

    /// As [`all_of`](Self::all_of), one address at a time. `known` lies in a slab of the cache, or
    /// matches nothing; it becomes the start of the last address's slab.
    #[inline(never)]
    fn each_of(&self, addresses: &[*mut u8], id: CacheId, bytes: usize, known: &mut usize) -> bool {
        let (base, limit, map) = (self.base(), self.limit(), self.map());
        addresses.iter().all(|&address| {
            let address = address as usize;
            if address ^ *known < bytes {
                return true;
            }
            *known = address & !(bytes - 1);
            let page = address.wrapping_sub(base) >> PAGE_SHIFT;
            // SAFETY: pages below the limit have a committed entry. Relaxed: as in `cache_of`.
            page < limit && unsafe { (*map.add(page)).load(Relaxed) } == id.raw()
        })
    }

    /// Records that `count` pages from `page` belong to slabs of a cache, or to none.
    pub fn set_cache(&self, page: PageIndex, count: u32, id: Option<CacheId>) {
        let raw = id.map_or(0, CacheId::raw);
        debug_assert!((page.0 + count) as usize <= self.limit());
        // SAFETY: pages below the limit have a committed entry.
        let entries = unsafe { slice::from_raw_parts(self.map_entry(page), count as usize) };
        // Relaxed: the objects reach other threads through synchronised operations.
        let set = |entry: &AtomicU16| entry.store(raw, Relaxed);
        match entries {
            // Most slabs have 1, 2 or 4 pages: these need no loop.
            [one] => set(one),
            [one, two] => {
                set(one);
                set(two);
            }
            [one, two, three, four] => {
                set(one);
                set(two);
                set(three);
                set(four);
            }
            all => all.iter().for_each(set),
        }
    }

    /// The descriptor of a page.
    #[inline]
    pub fn slab(&self, page: PageIndex) -> &Descriptor {
        debug_assert!((page.0 as usize) < self.limit());
        // Relaxed: set once; every user has read a limit before.
        let descriptors = self.descriptors.load(Relaxed);
        // SAFETY: a page below the limit has a committed descriptor; a zeroed one is valid.
        unsafe { &*descriptors.add(page.0 as usize) }
    }

    /// The page that a descriptor belongs to.
    #[inline]
    pub fn page_of_slab(&self, slab: &Descriptor) -> PageIndex {
        // Relaxed: set once.
        let descriptors = self.descriptors.load(Relaxed) as usize;
        PageIndex(
            ((slab as *const Descriptor as usize - descriptors) / size_of::<Descriptor>()) as u32,
        )
    }

    /// Gives back the memory of a block's descriptors; the caller has taken all pages of the block.
    /// The descriptors then read zero: nothing begins at these pages. They stay if they share a
    /// system page with another block's descriptors.
    pub fn purge_descriptors<P: Platform>(&self, platform: &P, number: u32) {
        const { assert!(DESCRIPTOR_BYTES.is_multiple_of(PAGE_SIZE)) };
        if !DESCRIPTOR_BYTES.is_multiple_of(platform.system_page()) {
            return;
        }
        let start = NonNull::from(self.slab(PageIndex(number * BLOCK_PAGES as u32)));
        // SAFETY: committed and page-aligned; no slab or large object is in the block.
        unsafe { platform.purge(start.cast(), DESCRIPTOR_BYTES) };
    }

    /// A block's record.
    ///
    /// # Safety
    ///
    /// The caller holds the page lock, and no other reference to this record lives.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn block(&self, number: u32) -> &mut Block {
        debug_assert!((number as usize) < self.limit() / BLOCK_PAGES);
        // Relaxed: set once. SAFETY: committed; unique by the caller's promise.
        unsafe { &mut *self.blocks.load(Relaxed).add(number as usize) }
    }

    /// The record of the 64 blocks from number 64 · `number` on.
    ///
    /// # Safety
    ///
    /// As for [`block`](Self::block).
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn group(&self, number: u32) -> &mut Group {
        // Relaxed: set once. SAFETY: committed with the group's first block; unique by the caller's
        // promise.
        unsafe { &mut *self.groups.load(Relaxed).add(number as usize) }
    }

    /// Bytes of the side ranges for the pages in use, an upper bound.
    pub fn side_bytes(&self) -> usize {
        let pages = self.limit();
        pages * (2 + size_of::<Descriptor>()) + pages / BLOCK_PAGES * size_of::<Block>()
    }
}
