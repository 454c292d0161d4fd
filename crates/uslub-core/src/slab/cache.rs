//! The part of a cache that slabs are made by: sizes, geometry, links, order, and the lists of each
//! node.
//!
//! All of it is constant after the creation but for the lists, the address range and the deferred
//! objects, which have protocols of their own. Callers: `cache` makes it, all slab code reads it.

use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

use crate::args::{CacheArgs, CreateError, Ctor, Flags, NAME_MAX, ObjectLayout, debug_layout};
use crate::debug::DebugSwitch;
use crate::debug::layout::DebugLayout;
use crate::gfp::Gfp;
use crate::layout::{Row, rows};
use crate::memory::{Arena, PageIndex};
use crate::percpu::{CacheId, Counters};
use crate::platform::Platform;
use crate::slab::address_range::AddressRange;
use crate::slab::deferred::Deferred;
use crate::slab::freelist::Links;
use crate::slab::node::Node;
use crate::slab::order::{self, Bounds, SlabGeometry, set_or};
use crate::slab::state::{Slab, State};
use crate::tunables::Tuning;

/// What slabs know of a cache.
pub struct SlabCache<P: 'static> {
    /// Ends with a zero byte.
    name: [u8; NAME_MAX + 1],
    name_len: u8,
    /// The identity, which is also the index of its per-CPU words.
    pub id: CacheId,
    /// The index of its counters.
    pub(crate) counters: Counters,
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
    /// Most slabs that the cache had at once.
    peak_slabs: AtomicUsize,
    /// Partial slabs of a node from which on empty ones are freed.
    pub min_partial: usize,
    /// Byte offsets of a slab's slots in random order; null for address order.
    random: *const u32,
    nodes: NonNull<Node<P>>,
    nr_nodes: usize,
    /// The cache's address range.
    pub(crate) range: AddressRange,
    /// Objects freed in a context that may not wait.
    pub deferred: Deferred,
    /// What is debugged.
    pub debug: DebugSwitch,
    /// Reports and repairs of its objects and slabs so far.
    reports: AtomicU32,
    /// The parts of a debugged slot; all 0 if the cache is not debugged.
    pub layout: DebugLayout,
    /// Whether the cache is debugged: it has no sheaves.
    is_debugged: bool,
}

/// The geometry of the slabs of a cache with slots of `size` bytes, and how many it may have.
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

impl<P: Platform> SlabCache<P> {
    pub(crate) const ROWS: &'static [Row] = rows!(
        "SlabCache",
        Self,
        [
            name, name_len, id, size, align, geometry, links, random, nodes, nr_nodes, deferred,
            peak_slabs,
        ]
    );

    /// The parts of a debugged slot that a reader needs.
    pub(crate) const DEBUG_ROWS: &'static [Row] = &[
        Row::new("SlabCache.debug_left", offset_of!(Self, layout.left), 4),
        Row::new("SlabCache.debug_object", offset_of!(Self, layout.object), 4),
    ];

    /// Writes the slabs' part of a cache to `place`; nothing on an error. There is no random order
    /// yet, and the caller sets up the nodes. Free objects are linked with `secret`.
    #[inline(never)]
    pub(crate) fn write_to<'a>(
        place: &'a mut MaybeUninit<Self>,
        args: &CacheArgs<'_>,
        id: CacheId,
        tuning: &Tuning,
        min_objects: usize,
        secret: u64,
        (nodes, nr_nodes): (NonNull<Node<P>>, usize),
    ) -> Result<&'a mut Self, CreateError> {
        let layout = ObjectLayout::of(args)?;
        let (geometry, max_slabs) = slab_limits(args, tuning, min_objects, layout.size)?;
        let slabs = place.write(Self {
            name: [0; NAME_MAX + 1],
            name_len: args.name.len() as u8,
            id,
            counters: Counters::of(id),
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
            peak_slabs: AtomicUsize::new(0),
            min_partial: set_or(
                tuning.min_partial,
                order::min_partial(layout.size).min(
                    args.kept_bytes
                        .map_or(usize::MAX, |bytes| bytes / geometry.bytes()),
                ),
            ),
            random: core::ptr::null(),
            nodes,
            nr_nodes,
            range: AddressRange::new(),
            deferred: Deferred::new(),
            debug: DebugSwitch::new(args.debug),
            reports: AtomicU32::new(0),
            layout: DebugLayout::default(),
            is_debugged: args.debug.is_slow(),
        });
        if args.debug.is_slow() {
            slabs.begin_debugged(args);
        }
        slabs.name[..args.name.len()].copy_from_slice(args.name.as_bytes());
        Ok(slabs)
    }

    /// Sets what only a debugged cache needs.
    #[cold]
    #[inline(never)]
    fn begin_debugged(&mut self, args: &CacheArgs<'_>) {
        self.layout = debug_layout(args, self.align as usize);
        // Checks need one meaning of a free slot: linked, and initialised.
        self.tuning.empty_reserve = 0;
        self.tuning.freelist_deferred = 1;
        self.tuning.slab_freelist_random = 0;
    }

    pub(crate) fn set_random(&mut self, offsets: NonNull<u32>) {
        self.random = offsets.as_ptr();
    }

    /// The memory of the nodes' records.
    pub(crate) fn node_records(&self) -> NonNull<Node<P>> {
        self.nodes
    }

    /// Name of the cache.
    pub fn name(&self) -> &str {
        core::str::from_utf8(&self.name[..usize::from(self.name_len)]).unwrap_or("?")
    }

    /// Name of the cache for C.
    pub fn name_c(&self) -> &core::ffi::CStr {
        core::ffi::CStr::from_bytes_until_nul(&self.name).unwrap_or(c"?")
    }

    /// Number of memory nodes.
    #[inline]
    pub(crate) fn nr_nodes(&self) -> usize {
        self.nr_nodes
    }

    /// The memory of the random order, if it has room for `objects` offsets.
    pub(crate) fn random_room(&self, objects: usize) -> Option<NonNull<u32>> {
        NonNull::new(self.random.cast_mut()).filter(|_| self.geometry.objects as usize >= objects)
    }

    /// The slabs of a node.
    #[inline]
    pub fn node(&self, nid: usize) -> &Node<P> {
        debug_assert!(nid < self.nr_nodes);
        // SAFETY: within the array of nodes, which is never freed.
        unsafe { self.nodes.add(nid).as_ref() }
    }

    /// The slabs of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node<P>> {
        (0..self.nr_nodes).map(|nid| self.node(nid))
    }

    /// Slabs on all nodes.
    pub fn nr_slabs(&self) -> usize {
        // Relaxed: a statistic.
        self.nodes().map(|node| node.nr_slabs.load(Relaxed)).sum()
    }

    /// Empty slabs on all nodes whose pages wait for their readers.
    pub(crate) fn nr_waiting(&self) -> usize {
        // Relaxed: a statistic.
        self.nodes().map(|node| node.nr_waiting.load(Relaxed)).sum()
    }

    /// Most slabs on all nodes at once, with those of page batches.
    pub fn peak_slabs(&self) -> usize {
        // Relaxed: a statistic.
        self.peak_slabs.load(Relaxed)
    }

    /// Records the number of slabs after it grew.
    #[inline]
    pub(crate) fn note_peak(&self) {
        let slabs = self.nr_slabs();
        // Relaxed, both: a statistic. The load spares most calls the atomic instruction.
        if slabs > self.peak_slabs.load(Relaxed) {
            self.peak_slabs.fetch_max(slabs, Relaxed);
        }
    }

    /// The slab that an address inside one of this cache's slabs lies in.
    #[inline]
    pub fn slab_of<'a>(&self, arena: &'a Arena, page: PageIndex) -> &'a Slab {
        let head = page.0 & !((1u32 << self.geometry.order) - 1);
        arena.slab(PageIndex(head))
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

    /// Reports and repairs of its objects and slabs so far.
    pub(crate) fn reports(&self) -> u32 {
        // Relaxed: a thread compares it with what it read before.
        self.reports.load(Relaxed)
    }

    pub(crate) fn count_report(&self) {
        // Relaxed: as above.
        self.reports.fetch_add(1, Relaxed);
    }

    /// Whether the cache is debugged: it has no sheaves, and each call takes the list lock.
    #[inline]
    pub fn is_debugged(&self) -> bool {
        self.is_debugged
    }

    /// Whether a free object keeps its bytes for readers.
    pub(crate) fn keeps_freed(&self) -> bool {
        self.flags.contains(Flags::TYPESAFE_BY_RCU)
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
