//! A cache: objects of one size, their slabs and their sheaves.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::deferred::Deferred;
use crate::freelist::Links;
use crate::node::Node;
use crate::order::{self, Bounds, Order};
use crate::page::Arena;
use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::sheaf::MAX_CAPACITY;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::tunables::Tunables;

/// Longest name of a cache, in bytes.
pub const NAME_MAX: usize = 31;
/// Largest object of a cache, in bytes.
pub const OBJECT_MAX: usize = 64 << 10;

/// What a cache is made of; see [`Allocator::create`](crate::Allocator::create).
#[derive(Clone, Copy, Debug)]
pub struct CacheArgs<'a> {
    /// Name, 1 to 31 bytes.
    pub name: &'a str,
    /// Bytes of an object, 1 to 65536.
    pub size: usize,
    /// Alignment of an object in bytes, a power of two up to 4096; 0 for the natural one.
    pub align: usize,
    /// Called once for each object when it first leaves a fresh slab.
    pub ctor: Option<unsafe fn(*mut u8)>,
    /// Largest slab order, instead of the tunable.
    pub max_order: Option<u32>,
    /// Objects wanted in a slab, instead of the tunable.
    pub min_objects: Option<usize>,
    /// Objects a sheaf holds, instead of the tunable; up to 252.
    pub sheaf_capacity: Option<usize>,
    /// Bytes of slabs that are kept on a node though they are empty, at most; instead of the kernel's count.
    pub kept_bytes: Option<usize>,
}

impl<'a> CacheArgs<'a> {
    /// A plain cache.
    pub const fn new(name: &'a str, size: usize) -> Self {
        Self {
            name,
            size,
            align: 0,
            ctor: None,
            max_order: None,
            min_objects: None,
            sheaf_capacity: None,
            kept_bytes: None,
        }
    }
}

/// Why a cache was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The name is empty or longer than 31 bytes.
    BadName,
    /// The size is 0 or above 65536 bytes.
    BadSize,
    /// The alignment is no power of two or above 4096 bytes.
    BadAlign,
    /// There are 2047 caches already.
    TooMany,
    /// There is no memory for the cache's records.
    NoMemory,
}

impl core::fmt::Display for CreateError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            CreateError::BadName => "a cache's name has 1 to 31 bytes",
            CreateError::BadSize => "an object has 1 to 65536 bytes",
            CreateError::BadAlign => "an alignment is a power of two up to 4096 bytes",
            CreateError::TooMany => "there are 2047 caches already",
            CreateError::NoMemory => "no memory for the cache's records",
        })
    }
}

impl core::error::Error for CreateError {}

/// A cache.
pub struct KmemCache<P: 'static> {
    name: [u8; NAME_MAX],
    name_len: u8,
    /// Identity, and the place of its per-CPU slots.
    pub id: CacheId,
    /// Bytes of an object as asked for.
    pub object_size: u32,
    /// Bytes of a slot.
    pub size: u32,
    /// Alignment of every slot in bytes.
    pub align: u32,
    /// Size of a slab.
    pub oo: Order,
    /// 2^40 / size, rounded up: turns an offset into a slot number.
    reciprocal: u64,
    /// How free objects are linked.
    pub links: Links,
    /// Called once for each object when it first leaves a fresh slab.
    pub ctor: Option<unsafe fn(*mut u8)>,
    /// Slabs kept per node before empty ones are given back.
    pub min_partial: usize,
    /// Objects a sheaf holds.
    pub capacity: usize,
    /// Full sheaves a barn holds.
    pub max_full: usize,
    /// Empty sheaves a barn holds.
    pub max_empty: usize,
    /// Byte offsets of a slab's slots in random order; null for address order.
    random: *const u32,
    nodes: NonNull<Node<P>>,
    nr_nodes: usize,
    /// Objects that were freed where nothing may be waited for.
    pub deferred: Deferred,
    /// Counters.
    pub stats: Stats,
    /// Activity at the last look, and the number of looks since it changed.
    last_activity: AtomicU64,
    idle_looks: AtomicU32,
    /// The next record of a destroyed cache; under the lock over the list of caches.
    next_dead: AtomicPtr<KmemCache<P>>,
}

// SAFETY: the pointers lead to records that live for ever and are shared by rule.
unsafe impl<P: Platform> Sync for KmemCache<P> {}

/// Bytes of full sheaves that a barn holds by default, at most.
const BARN_BYTES: usize = 32 << 10;

impl<P: Platform> KmemCache<P> {
    /// Computes the record of a cache; `nodes` is set up, `random` null or a permutation's offsets.
    pub(crate) fn new(
        args: &CacheArgs<'_>,
        id: CacheId,
        tunables: &Tunables,
        min_objects: usize,
        secret: u64,
        nodes: (NonNull<Node<P>>, usize),
    ) -> Result<Self, CreateError> {
        let layout = Layout::of(args)?;
        let bounds = Bounds {
            min_order: tunables.slab_min_order,
            max_order: args
                .max_order
                .unwrap_or(tunables.slab_max_order)
                .clamp(tunables.slab_min_order, order::MAX_SLAB_ORDER),
            min_objects: args.min_objects.unwrap_or(min_objects),
        };
        let oo = order::calculate_order(layout.size, bounds).ok_or(CreateError::BadSize)?;
        let or = |tunable: u32, default: usize| {
            if tunable == 0 {
                default
            } else {
                tunable as usize
            }
        };
        let capacity = args
            .sheaf_capacity
            .unwrap_or(or(
                tunables.sheaf_capacity,
                order::sheaf_capacity(layout.size),
            ))
            .clamp(1, MAX_CAPACITY);
        let mut name = [0; NAME_MAX];
        name[..args.name.len()].copy_from_slice(args.name.as_bytes());
        Ok(Self {
            name,
            name_len: args.name.len() as u8,
            id,
            object_size: args.size as u32,
            size: layout.size as u32,
            align: layout.align as u32,
            oo,
            reciprocal: (1u64 << 40).div_ceil(layout.size as u64),
            links: Links {
                offset: layout.link as u32,
                random: if tunables.slab_freelist_hardened == 1 {
                    secret | 1
                } else {
                    0
                },
            },
            ctor: args.ctor,
            min_partial: or(
                tunables.min_partial,
                order::min_partial(layout.size).min(
                    args.kept_bytes
                        .map_or(usize::MAX, |bytes| bytes / oo.bytes()),
                ),
            ),
            capacity,
            max_full: or(
                tunables.max_full_sheaves,
                (BARN_BYTES / (capacity * layout.size)).clamp(1, 10),
            ),
            max_empty: tunables.max_empty_sheaves as usize,
            random: core::ptr::null(),
            nodes: nodes.0,
            nr_nodes: nodes.1,
            deferred: Deferred::new(),
            stats: Stats::new(),
            last_activity: AtomicU64::new(0),
            idle_looks: AtomicU32::new(0),
            next_dead: AtomicPtr::new(core::ptr::null_mut()),
        })
    }

    pub(crate) fn set_random(&mut self, offsets: NonNull<u32>) {
        self.random = offsets.as_ptr();
    }

    /// The next record of a destroyed cache.
    pub(crate) fn next_dead(&self) -> *mut Self {
        // Relaxed: under the lock over the list of caches.
        self.next_dead.load(Relaxed)
    }

    /// Links the record of a destroyed cache.
    pub(crate) fn set_next_dead(&self, next: *mut Self) {
        // Relaxed: as above.
        self.next_dead.store(next, Relaxed);
    }

    /// The memory of the nodes' records.
    pub(crate) fn node_records(&self) -> NonNull<Node<P>> {
        self.nodes
    }

    /// The memory of the random order, if it has room for `objects` offsets.
    pub(crate) fn random_room(&self, objects: usize) -> Option<NonNull<u32>> {
        NonNull::new(self.random.cast_mut()).filter(|_| self.oo.objects as usize >= objects)
    }

    /// Name of the cache.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..usize::from(self.name_len)]).unwrap_or("?")
    }

    /// The share of a node.
    #[inline]
    pub fn node(&self, nid: usize) -> &Node<P> {
        debug_assert!(nid < self.nr_nodes);
        // SAFETY: within the array of nodes, which lives for ever.
        unsafe { self.nodes.add(nid).as_ref() }
    }

    /// The shares of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node<P>> {
        (0..self.nr_nodes).map(|nid| self.node(nid))
    }

    /// Notes how active the cache has been so far; returns whether nobody has used it for two looks.
    pub(crate) fn note_activity(&self, activity: u64) -> bool {
        // Relaxed, here and below: one thread looks at a time; others read a hint.
        if self.last_activity.swap(activity, Relaxed) == activity {
            self.idle_looks.fetch_add(1, Relaxed);
        } else {
            self.idle_looks.store(0, Relaxed);
        }
        self.is_cold()
    }

    /// Whether nobody has used the cache for two looks.
    pub(crate) fn is_cold(&self) -> bool {
        // Relaxed: a hint.
        self.idle_looks.load(Relaxed) >= 2
    }

    /// Slabs on all nodes.
    pub fn nr_slabs(&self) -> usize {
        // Relaxed: a figure.
        self.nodes().map(|node| node.nr_slabs.load(Relaxed)).sum()
    }

    /// The slab that an address inside one of this cache's slabs lies in.
    #[inline]
    pub fn slab_of<'a>(&self, arena: &'a Arena, page: crate::page::PageIndex) -> &'a Slab {
        let head = page.0 & !((1u32 << self.oo.order) - 1);
        arena.slab(crate::page::PageIndex(head))
    }

    /// How the free objects of a slab are linked.
    #[inline]
    pub fn links_of(&self, slab: &Slab) -> Links {
        self.links.in_epoch(slab.epoch())
    }

    /// Whether `offset` bytes into a slab a slot begins.
    #[inline]
    pub fn is_slot(&self, offset: usize) -> bool {
        let index = self.slot_at(offset);
        index < self.oo.objects as usize && index * self.size as usize == offset
    }

    /// Number of the slot that holds the byte at `offset` of a slab.
    #[inline]
    pub fn slot_at(&self, offset: usize) -> usize {
        ((offset as u64 * self.reciprocal) >> 40) as usize
    }

    /// Byte offset of the slot that the iterator of a slab visits at `position`,
    /// having begun at `start`.
    #[inline]
    pub fn offset_at(&self, start: usize, position: usize) -> usize {
        if self.random.is_null() {
            return position * self.size as usize;
        }
        let objects = self.oo.objects as usize;
        let mut at = start + position;
        if at >= objects {
            at -= objects;
        }
        // SAFETY: the permutation has an entry for each slot.
        unsafe { *self.random.add(at) as usize }
    }

    /// Whether fresh slabs hand out their objects in random order.
    pub fn is_random(&self) -> bool {
        !self.random.is_null()
    }
}

/// Checks arguments before anything is made for them.
pub(crate) fn check(args: &CacheArgs<'_>) -> Result<(), CreateError> {
    Layout::of(args).map(drop)
}

struct Layout {
    size: usize,
    align: usize,
    link: usize,
}

impl Layout {
    fn of(args: &CacheArgs<'_>) -> Result<Self, CreateError> {
        if args.name.is_empty() || args.name.len() > NAME_MAX {
            return Err(CreateError::BadName);
        }
        if args.size == 0 || args.size > OBJECT_MAX {
            return Err(CreateError::BadSize);
        }
        if args.align != 0 && (!args.align.is_power_of_two() || args.align > 4096) {
            return Err(CreateError::BadAlign);
        }
        let word = size_of::<usize>();
        let align = args.align.max(word);
        let object = args.size.next_multiple_of(word);
        // A constructed object must keep its bytes while free, so its link lies behind it;
        // otherwise in the middle, away from both neighbours' overflows.
        let (link, end) = match args.ctor {
            Some(_) => (object, object + word),
            None => (object / 2 / word * word, object),
        };
        Ok(Self {
            size: end.next_multiple_of(align),
            align,
            link,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(size: usize, align: usize, ctor: bool) -> Result<Layout, CreateError> {
        unsafe fn nothing(_: *mut u8) {}
        let mut args = CacheArgs::new("test", size);
        args.align = align;
        args.ctor = ctor.then_some(nothing as unsafe fn(*mut u8));
        Layout::of(&args)
    }

    #[test]
    fn the_free_pointer_is_in_the_middle_or_behind_a_constructed_object() {
        let l = layout(64, 0, false).unwrap();
        assert_eq!((l.size, l.link, l.align), (64, 32, 8));
        let l = layout(64, 0, true).unwrap();
        assert_eq!((l.size, l.link), (72, 64));
        let l = layout(60, 64, true).unwrap();
        assert_eq!((l.size, l.link), (128, 64));
        let l = layout(1, 0, false).unwrap();
        assert_eq!((l.size, l.link), (8, 0));
    }

    proptest! {
        #[test]
        fn a_link_always_fits_its_slot(size in 1usize..70_000, shift in 0u32..14, ctor: bool) {
            let align = if shift == 0 { 0 } else { 1usize << shift };
            match layout(size, align, ctor) {
                Ok(l) => {
                    prop_assert!(size <= OBJECT_MAX && align <= 4096);
                    prop_assert!(l.link + 8 <= l.size && l.link % 8 == 0);
                    prop_assert!(l.size >= size && l.size % l.align == 0);
                    prop_assert!(!ctor || l.link >= size);
                }
                Err(CreateError::BadSize) => prop_assert!(size > OBJECT_MAX),
                Err(CreateError::BadAlign) => prop_assert!(align > 4096),
                Err(_) => prop_assert!(false),
            }
        }

        #[test]
        fn slot_numbers_are_exact(size in (1usize..8192).prop_map(|n| n * 8), offset in 0usize..1 << 18) {
            let reciprocal = (1u64 << 40).div_ceil(size as u64);
            prop_assert_eq!(((offset as u64 * reciprocal) >> 40) as usize, offset / size);
        }
    }

    #[test]
    fn bad_arguments_are_refused() {
        let mut args = CacheArgs::new("", 8);
        assert_eq!(Layout::of(&args).err(), Some(CreateError::BadName));
        args.name = "a name that is far too long for us";
        assert_eq!(Layout::of(&args).err(), Some(CreateError::BadName));
        assert_eq!(layout(0, 0, false).err(), Some(CreateError::BadSize));
        assert_eq!(layout(8, 24, false).err(), Some(CreateError::BadAlign));
    }
}
