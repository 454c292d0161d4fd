//! One reserved range of addresses, and what is known of each page in it.
//!
//! ```text
//!   [ blocks | groups | page → cache | descriptors | pages …                         ]
//!     side ranges, committed as the pages are   base        limit  committed  reserved
//! ```
//!
//! Everything is found by shift and add: the page of an address, the cache of
//! a page, the descriptor of a page. An address outside [base, limit) is
//! not ours, known by one compare. The range grows at `limit`, a block at a time; the
//! system, which takes a microsecond or two each time, is asked for several at once,
//! and for the side ranges of 64 MiB of them. What is reserved, and when: `range`.

use core::ptr::{NonNull, null_mut};
use core::slice;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::memory::block::{BLOCK_PAGES, Block, Group};
use crate::memory::descriptor::Descriptor;
use crate::percpu::CacheId;
use crate::platform::{PAGE_SHIFT, PAGE_SIZE, Platform};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicUsize};

/// Bytes of a block, the unit in which the range grows.
pub const BLOCK_BYTES: usize = BLOCK_PAGES * PAGE_SIZE;
/// Blocks that are committed ahead of their use, at most; as long as there are few, an eighth of
/// those. Their side ranges are so many at a time.
pub(super) const MOST_AHEAD: usize = 32;
/// Bytes of the descriptors of a block.
pub(super) const DESCRIPTOR_BYTES: usize = BLOCK_PAGES * size_of::<Descriptor>();
/// Side ranges: of blocks, groups, the page map and descriptors.
pub(super) const SIDES: usize = 4;
/// A block's share of its group, in bytes.
pub(super) const GROUP_SHARE: usize = size_of::<Group>() / 64;

/// Number of a page, counted from the arena's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageIndex(pub u32);

/// The range.
#[repr(C, align(32))]
pub struct Arena {
    pub(super) base: AtomicUsize,
    /// Pages below this number are reserved.
    pub(super) reserved: AtomicUsize,
    /// Pages below this number are in use.
    pub(super) limit: AtomicUsize,
    /// Objects of pages below this number may lie in any CPU's sheaves.
    parkable: AtomicUsize,
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
    /// Whether the range lies in a hole of the address space, with room behind it.
    pub(super) in_hole: AtomicBool,
    /// Whether only what is needed now is reserved and committed: a limit counts the rest too.
    pub(super) lean: AtomicBool,
}

impl Arena {
    /// An arena without a range: it owns nothing.
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            parkable: AtomicUsize::new(0),
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

    /// Adds one more block at the limit and returns its number; `None` when the
    /// range is used up or the memory cannot be had. One thread at a time.
    #[inline(never)]
    pub fn grow<P: Platform>(&self, platform: &P) -> Option<u32> {
        // Relaxed: only we, one at a time, change the limit.
        let limit = self.limit.load(Relaxed);
        let block = limit / BLOCK_PAGES;
        // Relaxed: as the limit.
        if limit == self.committed.load(Relaxed) {
            // Acquire: pairs with `stretch`.
            if limit == self.reserved.load(Acquire) && !self.extend(platform) {
                return None;
            }
            // Relaxed: as the limit.
            let left = self.reserved.load(Relaxed) / BLOCK_PAGES - block;
            let several = match self.is_lean() {
                true => 1,
                false => (1 + block / 8).min(MOST_AHEAD).min(left),
            };
            // If the system refuses a batch, commit a single block.
            if !self.commit(platform, block, several)
                && (several == 1 || !self.commit(platform, block, 1))
            {
                return None;
            }
        }
        // Release: whoever sees the new limit sees the committed tables.
        self.limit.store(limit + BLOCK_PAGES, Release);
        if platform.nr_nodes() <= 1 {
            // Release: as above.
            self.parkable.store(limit + BLOCK_PAGES, Release);
        }
        Some(block as u32)
    }

    /// Commits `count` blocks (1 to [`MOST_AHEAD`]) from `block` on, those before which are;
    /// returns false when their memory cannot be had.
    #[inline(never)]
    fn commit<P: Platform>(&self, platform: &P, block: usize, count: usize) -> bool {
        // Relaxed: as the limit.
        let described = self.described.load(Relaxed);
        if block + count > described && !self.describe(platform, described + MOST_AHEAD) {
            return false;
        }
        let pages = self.address(PageIndex((block * BLOCK_PAGES) as u32));
        // SAFETY: inside our reservation.
        if !unsafe { platform.commit(pages, count * BLOCK_BYTES) } {
            return false;
        }
        // Relaxed: as the limit, which is published.
        self.committed.store((block + count) * BLOCK_PAGES, Relaxed);
        true
    }

    /// Commits the side ranges up to block `end`, or as far as the reservation goes.
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
            // Relaxed: as the limit, which is published.
            self.described.store(end, Relaxed);
        }
        done
    }

    /// A side range, one of [`SIDES`]: where it begins, and its bytes a block.
    pub(super) fn side(&self, number: usize) -> (usize, usize) {
        // Relaxed: the addresses were published with `reserved`.
        match number {
            0 => (self.blocks.load(Relaxed) as usize, size_of::<Block>()),
            1 => (self.groups.load(Relaxed) as usize, GROUP_SHARE),
            2 => (self.map.load(Relaxed) as usize, 2 * BLOCK_PAGES),
            _ => (self.descriptors.load(Relaxed) as usize, DESCRIPTOR_BYTES),
        }
    }

    /// Bytes reserved for pages behind those of a block.
    pub fn reserved_behind(&self, number: u32) -> usize {
        self.reserved_bytes() - (number as usize + 1) * BLOCK_BYTES
    }

    /// Bytes reserved for pages.
    pub fn reserved_bytes(&self) -> usize {
        // Relaxed: a figure.
        self.reserved.load(Relaxed) * PAGE_SIZE
    }

    /// Pages in use: those of the blocks that were added.
    #[inline]
    pub fn limit(&self) -> usize {
        // Acquire: pairs with `grow`.
        self.limit.load(Acquire)
    }

    /// Pages whose objects any CPU may keep in its sheaves: those committed, or none where there
    /// are several memory nodes.
    #[inline]
    pub fn parkable(&self) -> usize {
        // Acquire: pairs with `grow`.
        self.parkable.load(Acquire)
    }

    /// Address of page 0.
    #[inline]
    pub fn base(&self) -> usize {
        // Relaxed: set once; those who use it saw a limit.
        self.base.load(Relaxed)
    }

    /// Start of the page → cache array.
    #[inline]
    pub fn map(&self) -> *mut AtomicU16 {
        // Relaxed: set once; those who use it saw a limit.
        self.map.load(Relaxed)
    }

    /// The page that an address lies in; `None` when it is not ours.
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
        // Relaxed: a page of an object that the caller holds does not change;
        // any other answer is only for a diagnosis.
        CacheId::from_raw(self.map_entry(page).load(Relaxed))
    }

    /// The cache in whose slab an address lies, if any CPU may keep the slab's objects in its
    /// sheaves: with several memory nodes, none may.
    #[inline]
    pub fn parkable_cache(&self, address: usize) -> Option<CacheId> {
        self.parkable_entry(address).and_then(CacheId::from_raw)
    }

    /// Whether that is this cache.
    #[inline]
    pub fn is_parkable_in(&self, address: usize, id: CacheId) -> bool {
        self.parkable_entry(address) == Some(id.raw())
    }

    #[inline]
    fn parkable_entry(&self, address: usize) -> Option<u16> {
        let page = address.wrapping_sub(self.base()) >> PAGE_SHIFT;
        // SAFETY: pages below that number have a committed entry. Relaxed: as in `cache_of`.
        (page < self.parkable()).then(|| unsafe { (*self.map().add(page)).load(Relaxed) })
    }

    /// Whether all addresses lie in slabs of a cache, which are of `bytes` bytes (a power of two).
    #[inline]
    pub fn all_of(&self, addresses: &[*mut u8], id: CacheId, bytes: usize) -> bool {
        // Neighbours often lie in one slab: what is known of one holds for eight. At first nothing
        // is: as far from the first address as can be.
        let mut known = addresses.first().map_or(0, |&first| !(first as usize));
        let (eights, rest) = addresses.as_chunks::<8>();
        eights.iter().all(|eight| {
            let differ = eight.iter().fold(0, |all, &a| all | (a as usize ^ known));
            differ < bytes || self.each_of(eight, id, bytes, &mut known)
        }) && (rest.is_empty() || self.each_of(rest, id, bytes, &mut known))
    }

    /// As [`all_of`](Self::all_of), one by one; `known` lies in a slab of the cache, or far from
    /// the first; it becomes where the last one's begins.
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

    /// Says that `count` pages from `page` belong to slabs of a cache, or to none.
    pub fn set_cache(&self, page: PageIndex, count: u32, id: Option<CacheId>) {
        let raw = id.map_or(0, CacheId::raw);
        debug_assert!((page.0 + count) as usize <= self.limit());
        // SAFETY: pages below the limit have a committed entry.
        let entries = unsafe { slice::from_raw_parts(self.map_entry(page), count as usize) };
        // Relaxed: the objects reach other threads by synchronised ways.
        let set = |entry: &AtomicU16| entry.store(raw, Relaxed);
        match entries {
            // No loop where slabs are so small, as most are.
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
        // Relaxed: set once; those who use it saw a limit.
        let descriptors = self.descriptors.load(Relaxed);
        // SAFETY: pages below the limit have a committed descriptor, zeroed at first, which is
        // valid.
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

    /// Gives back the memory of the descriptors of a block whose pages are all taken out; they read
    /// zero then, which says that nothing begins there. They stay where other blocks' share a page
    /// of the system.
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

    /// The record of the 64 blocks from 64 · `number`.
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

    /// Bytes of the side ranges in use for what is committed, an upper bound.
    pub fn side_bytes(&self) -> usize {
        let pages = self.limit();
        pages * (2 + size_of::<Descriptor>()) + pages / BLOCK_PAGES * size_of::<Block>()
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}
