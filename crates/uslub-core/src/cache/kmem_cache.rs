//! A cache: its configuration, its share of each node, and its identity.
//!
//! The configuration is constant after the creation. The cache's slabs are at its nodes, its
//! sheaves in the per-CPU words of its identity. States of a record:
//!
//! | `users` | state |
//! |---|---|
//! | 1 or more | live; that many creators share the cache |
//! | 0 | destroyed; in quarantine, then reused for another cache |
//!
//! Callers: all layers read the configuration; `allocator` and `destroy` change `users`.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::args::{CacheArgs, CreateError, Ctor, Flags, NAME_MAX, ObjectLayout};
use crate::gfp::Gfp;
use crate::memory::{Arena, PageIndex};
use crate::percpu::sheaf::MAX_CAPACITY;
use crate::percpu::{CacheId, Counters, Slot};
use crate::platform::Platform;
use crate::policy::{
    BARN_FULL, BARN_NARROW, BARN_WIDE, BARN_WIDE_BYTES, CLASS_BARN_BYTES, COLD_CHECKS, FILL_SKEWS,
    INITIAL_CAPACITY_MAX, SHEAF_GROWN_BYTES,
};
use crate::sheaf::barn::Barn;
use crate::slab::address_range::AddressRange;
use crate::slab::deferred::Deferred;
use crate::slab::freelist::Links;
use crate::slab::node::Node;
use crate::slab::order::{self, Bounds, SlabGeometry};
use crate::slab::state::{Slab, State};
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use crate::tunables::Tuning;

/// What a cache has on one memory node.
pub(crate) struct CacheNode<P> {
    slabs: Node<P>,
    /// Sheaves between the node's CPUs.
    barn: Barn<P>,
}

impl<P: Platform> CacheNode<P> {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self {
            slabs: Node::new(),
            barn: Barn::new(),
        }
    }
}

/// A cache.
pub struct KmemCache<P: 'static> {
    /// Ends with a zero byte.
    name: [u8; NAME_MAX + 1],
    name_len: u8,
    /// The identity, which is also the index of its per-CPU words.
    pub id: CacheId,
    /// The slot for objects that surely came from this cache: its main word, or [`Slot::NO_CACHE`]
    /// with several nodes.
    pub(crate) own: Slot,
    /// The index of its counters.
    pub(crate) counters: Counters,
    /// Bytes of an object as requested; the largest request of all creators.
    object_size: AtomicU32,
    /// Bytes of a slot.
    pub size: u32,
    /// Alignment of every slot in bytes.
    pub align: u32,
    /// Size of a slab (pages and objects).
    pub geometry: SlabGeometry,
    /// 2^40 / size, rounded up: turns an offset into a slot number.
    reciprocal: u64,
    /// The way free objects are linked.
    pub links: Links,
    /// Constructs each object when it first leaves a fresh slab.
    pub ctor: Option<Ctor>,
    /// Properties of the cache.
    pub flags: Flags,
    /// What a plain free may do.
    pub free_gfp: Gfp,
    /// Tunables of the cache.
    pub tuning: Tuning,
    /// Slabs that the cache may have, at most.
    pub max_slabs: usize,
    /// Whether other creators may share it.
    pub(crate) mergeable: bool,
    /// Whether it is one of many caches that share the memory, and so keeps nothing unused.
    pub(crate) keeps_little: bool,
    /// Objects that a CPU's first sheaf lacks: the fill skew; see [`colour_of`].
    pub(crate) fill_skew: u8,
    /// Creators that share it; 0 after its destruction.
    pub(crate) users: AtomicU32,
    /// Whether sheaves of its objects may wait for a grace period.
    pub(crate) has_rcu_sheaves: AtomicBool,
    /// Sheaves that flushes have detached and not finished with.
    pub(crate) flushes_in_flight: AtomicUsize,
    /// Partial slabs of a node from which on empty ones are freed.
    pub min_partial: usize,
    /// Objects in a sheaf; with adaptive sheaves, the minimum.
    pub capacity: usize,
    /// Objects in a grown sheaf, at most (256 KiB of objects at most); equal to `capacity` or less
    /// if the capacity is fixed.
    pub capacity_max: usize,
    /// Full sheaves in a barn, at most, before the barn grows.
    pub max_full: usize,
    /// Full sheaves in a grown barn, at most.
    pub max_full_grown: usize,
    /// Empty sheaves in a barn, at most.
    pub max_empty: usize,
    /// Byte offsets of a slab's slots in random order; null for address order.
    random: *const u32,
    nodes: NonNull<CacheNode<P>>,
    nr_nodes: usize,
    /// The cache's address range.
    pub(crate) range: AddressRange,
    /// Objects freed in a context that may not wait.
    pub deferred: Deferred,
    /// Activity at the last check, and the number of checks since it changed.
    last_activity: AtomicU64,
    idle_looks: AtomicU32,
    /// The next record of a destroyed cache; under `slab_mutex`.
    next_dead: AtomicPtr<KmemCache<P>>,
}

// SAFETY: the pointers lead to records that are never freed; locks and atomics protect them.
unsafe impl<P: Platform> Sync for KmemCache<P> {}

/// The fill skew of a cache: the first sheaf of a CPU has this many objects fewer.
///
/// Windows begin at page boundaries. If the first sheaves of two caches were equally full, a free
/// of one cache would store at the page offset at which an allocation of the other loads. A
/// processor takes the load for one of the store, and waits (4 KiB aliasing). With 13 skews, no two
/// powers of two up to 512 have the same.
const fn colour_of(id: CacheId) -> u8 {
    (id.index() % FILL_SKEWS) as u8
}

/// A tunable, or the default where it is 0.
fn set_or(tunable: u32, default: usize) -> usize {
    match tunable {
        0 => default,
        tunable => tunable as usize,
    }
}

/// The slabs of a cache with slots of `size` bytes: their geometry, and how many it may have.
fn slab_limits(
    args: &CacheArgs<'_>,
    tuning: &Tuning,
    min_objects: usize,
    size: usize,
) -> Result<(SlabGeometry, usize), CreateError> {
    let bounds = Bounds {
        min_order: tuning.slab_min_order,
        max_order: args
            .max_order
            .unwrap_or(tuning.slab_max_order)
            // No `clamp`: its panic message would need stack.
            .max(tuning.slab_min_order)
            .min(order::MAX_SLAB_ORDER),
        min_objects: args.min_objects.unwrap_or(min_objects),
    };
    let mut geometry = order::calculate_order(size, bounds).ok_or(CreateError::BadSize)?;
    if args.slab_multiple_sheaves {
        geometry.objects = order::round_to_sheaves(geometry.objects);
    }
    match args
        .limit
        .map_or(usize::MAX, |bytes| bytes / geometry.bytes())
    {
        0 => Err(CreateError::BadLimit),
        max_slabs => Ok((geometry, max_slabs)),
    }
}

/// Sizes of a cache's sheaves and barns.
struct SheafLimits {
    /// Objects of a sheaf at first.
    capacity: usize,
    /// Objects of a grown sheaf.
    capacity_max: usize,
    /// Full sheaves of a barn at first.
    max_full: usize,
    /// Full sheaves of a grown barn.
    max_full_grown: usize,
}

impl SheafLimits {
    /// Those of a cache with slots of `size` bytes, and slabs of `objects` objects.
    fn of(args: &CacheArgs<'_>, tuning: &Tuning, size: usize, objects: usize) -> Self {
        let rounded = |capacity: usize| match args.slab_multiple_sheaves {
            true => order::round_to_slabs(capacity, objects),
            false => capacity,
        };
        let wanted = args
            .sheaf_capacity
            .unwrap_or(set_or(tuning.sheaf_capacity, order::sheaf_capacity(size)));
        let capacity = rounded(wanted.clamp(1, MAX_CAPACITY));
        let capacity_max = rounded(
            (tuning.sheaf_capacity_max as usize)
                .min((SHEAF_GROWN_BYTES / size).clamp(1, MAX_CAPACITY)),
        );
        let is_adaptive = capacity_max > capacity;
        let max_full = set_or(
            tuning.max_full_sheaves,
            if args.kept_bytes.is_some() {
                (CLASS_BARN_BYTES / (capacity * size)).clamp(1, BARN_FULL)
            } else if is_adaptive {
                BARN_NARROW
            } else {
                BARN_FULL
            },
        );
        let max_full_grown = if is_adaptive && tuning.max_full_sheaves == 0 {
            // Fewer of larger sheaves.
            let most =
                (BARN_WIDE * INITIAL_CAPACITY_MAX).div_ceil(capacity_max.max(INITIAL_CAPACITY_MAX));
            (BARN_WIDE_BYTES / (capacity_max * size))
                .max(most)
                .min(2 * most)
        } else {
            max_full
        };
        Self {
            capacity,
            capacity_max,
            max_full,
            max_full_grown,
        }
    }
}

impl<P: Platform> KmemCache<P> {
    /// Writes the record of a cache to `memory`; nothing on an error. The nodes must be set up by
    /// the caller, and there is no random order yet.
    #[inline(never)]
    pub(crate) fn write_to(
        memory: &mut MaybeUninit<Self>,
        args: &CacheArgs<'_>,
        id: CacheId,
        tuning: &Tuning,
        min_objects: usize,
        secret: u64,
        nodes: (NonNull<CacheNode<P>>, usize),
    ) -> Result<(), CreateError> {
        let layout = ObjectLayout::of(args)?;
        let (geometry, max_slabs) = slab_limits(args, tuning, min_objects, layout.size)?;
        let sheaves = SheafLimits::of(args, tuning, layout.size, geometry.objects as usize);
        let record = Self {
            name: [0; NAME_MAX + 1],
            name_len: args.name.len() as u8,
            id,
            own: if nodes.1 == 1 {
                id.main()
            } else {
                Slot::NO_CACHE
            },
            counters: Counters::of(id),
            object_size: AtomicU32::new(args.size as u32),
            size: layout.size as u32,
            align: layout.align as u32,
            geometry,
            reciprocal: (1u64 << 40).div_ceil(layout.size as u64),
            links: Links {
                offset: layout.link as u32,
                random: if tuning.slab_freelist_hardened == 1 {
                    secret | 1
                } else {
                    0
                },
            },
            ctor: args.ctor,
            flags: args.flags,
            free_gfp: args.free_gfp,
            tuning: *tuning,
            max_slabs,
            mergeable: args.is_mergeable(),
            keeps_little: args.kept_bytes.is_some(),
            fill_skew: if args.slab_multiple_sheaves {
                colour_of(id)
            } else {
                0
            },
            users: AtomicU32::new(1),
            has_rcu_sheaves: AtomicBool::new(false),
            flushes_in_flight: AtomicUsize::new(0),
            min_partial: set_or(
                tuning.min_partial,
                order::min_partial(layout.size).min(
                    args.kept_bytes
                        .map_or(usize::MAX, |bytes| bytes / geometry.bytes()),
                ),
            ),
            capacity: sheaves.capacity,
            capacity_max: sheaves.capacity_max,
            max_full: sheaves.max_full,
            max_full_grown: sheaves.max_full_grown,
            max_empty: tuning.max_empty_sheaves as usize,
            random: core::ptr::null(),
            nodes: nodes.0,
            nr_nodes: nodes.1,
            range: AddressRange::new(),
            deferred: Deferred::new(),
            last_activity: AtomicU64::new(0),
            idle_looks: AtomicU32::new(0),
            next_dead: AtomicPtr::new(core::ptr::null_mut()),
        };
        let record = memory.write(record);
        record.name[..args.name.len()].copy_from_slice(args.name.as_bytes());
        Ok(())
    }

    pub(crate) fn set_random(&mut self, offsets: NonNull<u32>) {
        self.random = offsets.as_ptr();
    }

    /// The next record of a destroyed cache.
    pub(crate) fn next_dead(&self) -> *mut Self {
        // Relaxed: under `slab_mutex`.
        self.next_dead.load(Relaxed)
    }

    /// Stores the next record of a destroyed cache.
    pub(crate) fn set_next_dead(&self, next: *mut Self) {
        // Relaxed: under `slab_mutex`.
        self.next_dead.store(next, Relaxed);
    }

    /// The memory of the nodes' records.
    pub(crate) fn node_records(&self) -> NonNull<CacheNode<P>> {
        self.nodes
    }

    /// The memory of the random order, if it has room for `objects` offsets.
    pub(crate) fn random_room(&self, objects: usize) -> Option<NonNull<u32>> {
        NonNull::new(self.random.cast_mut()).filter(|_| self.geometry.objects as usize >= objects)
    }

    /// Name of the cache.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..usize::from(self.name_len)]).unwrap_or("?")
    }

    /// Name of the cache for C.
    pub fn name_c(&self) -> &core::ffi::CStr {
        core::ffi::CStr::from_bytes_until_nul(&self.name).unwrap_or(c"?")
    }

    /// Bytes of an object as requested; the largest request of all creators.
    #[inline]
    pub fn object_size(&self) -> usize {
        // Relaxed: only grows, and before the creator that needs more has the cache.
        self.object_size.load(Relaxed) as usize
    }

    /// Whether objects of this layout fit into the slots.
    pub(crate) fn can_serve(&self, layout: &ObjectLayout) -> bool {
        let size = self.size as usize;
        self.mergeable
            && size >= layout.size
            && size - layout.size < size_of::<usize>()
            && size.is_multiple_of(layout.align)
            && self.align as usize >= layout.align
    }

    /// Adds a creator with objects of `bytes` bytes.
    pub(crate) fn share(&self, bytes: usize) {
        // Relaxed: under `slab_mutex`; the size as in `object_size`.
        self.object_size.fetch_max(bytes as u32, Relaxed);
        self.users.fetch_add(1, Relaxed);
    }

    /// Number of names of the cache beyond the first.
    pub fn aliases(&self) -> usize {
        // Relaxed: a statistic.
        (self.users.load(Relaxed) as usize).saturating_sub(1)
    }

    /// Whether the cache was destroyed; may be stale.
    #[inline]
    pub fn is_destroyed(&self) -> bool {
        // Relaxed: a peek, for messages.
        self.users.load(Relaxed) == 0
    }

    #[inline]
    fn cache_node(&self, nid: usize) -> &CacheNode<P> {
        debug_assert!(nid < self.nr_nodes);
        // SAFETY: within the array of nodes, which is never freed.
        unsafe { self.nodes.add(nid).as_ref() }
    }

    /// The slabs of a node.
    #[inline]
    pub fn node(&self, nid: usize) -> &Node<P> {
        &self.cache_node(nid).slabs
    }

    /// The slabs of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node<P>> {
        (0..self.nr_nodes).map(|nid| self.node(nid))
    }

    /// The barn of a node.
    #[inline]
    pub fn barn(&self, nid: usize) -> &Barn<P> {
        &self.cache_node(nid).barn
    }

    /// The barns of all nodes.
    pub fn barns(&self) -> impl Iterator<Item = &Barn<P>> {
        (0..self.nr_nodes).map(|nid| self.barn(nid))
    }

    /// Records the activity so far; returns whether the cache is cold.
    pub(crate) fn record_activity(&self, activity: u64) -> bool {
        // Relaxed, here and below: one thread checks at a time; others read a hint.
        if self.last_activity.swap(activity, Relaxed) == activity {
            self.idle_looks.fetch_add(1, Relaxed);
        } else {
            self.idle_looks.store(0, Relaxed);
        }
        self.is_cold()
    }

    /// Whether no thread has used the cache for two checks.
    pub(crate) fn is_cold(&self) -> bool {
        // Relaxed: a hint.
        self.idle_looks.load(Relaxed) >= COLD_CHECKS
    }

    /// Whether the last check found the cache cold for the first time.
    pub(crate) fn is_just_cold(&self) -> bool {
        // Relaxed: a hint.
        self.idle_looks.load(Relaxed) == COLD_CHECKS
    }

    /// Slabs on all nodes.
    pub fn nr_slabs(&self) -> usize {
        // Relaxed: a statistic.
        self.nodes().map(|node| node.nr_slabs.load(Relaxed)).sum()
    }

    /// The slab that an address inside one of this cache's slabs lies in.
    #[inline]
    pub fn slab_of<'a>(&self, arena: &'a Arena, page: crate::memory::PageIndex) -> &'a Slab {
        let head = page.0 & !((1u32 << self.geometry.order) - 1);
        arena.slab(crate::memory::PageIndex(head))
    }

    /// Changes the state of a slab if it is still `old`, in the way that the cache's tunables
    /// choose.
    #[inline]
    pub(crate) fn compare_exchange_state(
        &self,
        slab: &Slab,
        old: State,
        new: State,
    ) -> Result<(), State> {
        if self.tuning.slab_state_lockfree == 1 {
            slab.compare_exchange(old, new)
        } else {
            slab.compare_exchange_locked(old, new)
        }
    }

    /// Whether a state can be changed in a context that may not wait.
    #[inline]
    pub(crate) fn never_waits(&self) -> bool {
        self.tuning.slab_state_lockfree == 1
    }

    /// Whether all objects of an empty slab may be handed out without reading them.
    #[inline]
    pub(crate) fn can_alloc_entire(&self) -> bool {
        self.ctor.is_none() && self.tuning.freelist_deferred == 1
    }

    /// Whether the capacity of sheaves adapts to misses.
    #[inline]
    pub fn is_adaptive(&self) -> bool {
        self.capacity_max > self.capacity
    }

    /// Whether empty slabs have a list of their own.
    #[inline]
    pub(crate) fn has_reserve(&self) -> bool {
        self.tuning.empty_reserve == 1
    }

    /// The way free objects of a slab are linked, in the slab's epoch.
    #[inline]
    pub fn links_of(&self, slab: &Slab) -> Links {
        self.links.in_epoch(slab.epoch())
    }

    /// Whether a slot begins `offset` bytes into a slab.
    #[inline]
    pub fn is_slot(&self, offset: usize) -> bool {
        let index = self.slot_at(offset);
        index < self.geometry.objects as usize && index * self.size as usize == offset
    }

    /// Number of the slot that holds the byte at `offset` of a slab.
    #[inline]
    pub fn slot_at(&self, offset: usize) -> usize {
        ((offset as u64 * self.reciprocal) >> 40) as usize
    }

    /// Byte offset of the slot at `position` of a slab's iterator that began at `start`.
    #[inline]
    pub fn offset_at(&self, start: usize, position: usize) -> usize {
        match self.random_order() {
            Some(offsets) => offsets[start + position] as usize,
            None => position * self.size as usize,
        }
    }

    /// Byte offsets of a slab's slots in random order, twice, so that all slots follow from any
    /// start; `None` for address order.
    #[inline]
    pub(crate) fn random_order(&self) -> Option<&[u32]> {
        let first = NonNull::new(self.random.cast_mut())?;
        // SAFETY: the permutation has two entries for each slot and is never freed.
        Some(unsafe {
            core::slice::from_raw_parts(first.as_ptr(), 2 * self.geometry.objects as usize)
        })
    }

    /// Start of a new slab's iterator in the random order: different for each page, and for each
    /// number of slabs. (The platform's random numbers are shared by all threads, which costs more
    /// than this hash.)
    pub(crate) fn start_for(&self, nid: usize, page: PageIndex) -> u16 {
        let slabs = self.node(nid).nr_slabs() as u64;
        let dice = self.links.random ^ u64::from(page.0) ^ slabs << 32;
        let dice = dice.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let dice = (dice ^ dice >> 31).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((dice >> 32) * u64::from(self.geometry.objects)) >> 32) as u16
    }

    /// Whether empty slabs keep their freelist, since their objects are constructed or linked
    /// beforehand (`freelist_deferred=0`).
    pub(crate) fn keeps_its_freelist(&self) -> bool {
        self.ctor.is_some() || self.tuning.freelist_deferred == 0
    }

    /// Whether fresh slabs hand out their objects in random order.
    #[inline]
    pub fn is_random(&self) -> bool {
        !self.random.is_null()
    }
}
