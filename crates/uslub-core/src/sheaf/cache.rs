//! The part of a cache that its sheaves and barns are made by.
//!
//! The sizes are constant after the creation. A cache's sheaves are in the per-CPU words of its
//! identity, and in the barns of each node. Callers: `cache` makes it, slow paths read it.

use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::args::CacheArgs;
use crate::layout::{Row, rows};
use crate::percpu::sheaf::MAX_CAPACITY;
use crate::percpu::{CacheId, Slot};
use crate::platform::Platform;
use crate::policy::{
    BARN_FULL, BARN_NARROW, BARN_WIDE, BARN_WIDE_BYTES, CLASS_BARN_BYTES, COLD_CHECKS, FILL_SKEWS,
    INITIAL_CAPACITY_MAX, SHEAF_GROWN_BYTES,
};
use crate::sheaf::barn::Barn;
use crate::slab::cache::SlabCache;
use crate::slab::order::{self, set_or};
use crate::slab::shape::Shape;
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use crate::tunables::Tuning;

/// What sheaves know of a cache.
#[repr(C)]
pub struct SheafCache<P: 'static> {
    slabs: SlabCache<P>,
    /// Where slots begin, for a free of one object. No pointer passes if 32 bits cannot tell, or if
    /// the cache is debugged.
    pub(crate) shape: Shape,
    /// Bytes from an object's start to its mark (`cache::mark`).
    pub(crate) mark_at: u32,
    /// The slot for objects that surely came from this cache: its main word, or [`Slot::NO_CACHE`]
    /// with several nodes.
    pub(crate) own: Slot,
    /// Objects that a CPU's first sheaf lacks: the fill skew; see [`fill_skew_of`].
    pub(crate) fill_skew: u8,
    /// Sheaves that flushes have detached and not finished with.
    pub(crate) flushes_in_flight: AtomicUsize,
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
    barns: NonNull<Barn<P>>,
    /// Groups of CPUs, of all nodes.
    nr_barns: usize,
    /// Activity at the last check, and the number of checks since it changed.
    last_activity: AtomicU64,
    idle_looks: AtomicU32,
}

impl<P> Deref for SheafCache<P> {
    type Target = SlabCache<P>;

    #[inline]
    fn deref(&self) -> &SlabCache<P> {
        &self.slabs
    }
}

/// The fill skew of a cache: the first sheaf of a CPU has this many objects fewer.
///
/// Windows begin at page boundaries. If the first sheaves of two caches were equally full, a free
/// of one cache would store at the page offset at which an allocation of the other loads. A
/// processor takes the load for one of the store, and waits (4 KiB aliasing). With 13 skews, no two
/// powers of two up to 512 have the same.
const fn fill_skew_of(id: CacheId) -> u8 {
    (id.index() % FILL_SKEWS) as u8
}

/// Sizes of a cache's sheaves and barns, as the fields of [`SheafCache`].
struct SheafLimits {
    capacity: usize,
    capacity_max: usize,
    max_full: usize,
    max_full_grown: usize,
}

impl SheafLimits {
    /// Those of a cache with slots of `size` bytes, and slabs of `objects` objects.
    #[inline(never)]
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

impl<P: Platform> SheafCache<P> {
    /// The place of the slabs' part in the place of a record.
    pub(crate) fn slabs_in(place: &mut MaybeUninit<Self>) -> &mut MaybeUninit<SlabCache<P>> {
        // SAFETY: within the place, and as uninitialized as it.
        unsafe { &mut *(&raw mut (*place.as_mut_ptr()).slabs).cast() }
    }

    /// Writes the rest of a record whose slabs' part is written. The caller sets up the barns.
    ///
    /// # Safety
    ///
    /// The [slabs' part](Self::slabs_in) is written.
    #[inline(never)]
    pub(crate) unsafe fn write_rest(
        place: &mut MaybeUninit<Self>,
        args: &CacheArgs<'_>,
        (barns, nr_barns): (NonNull<Barn<P>>, usize),
    ) {
        let at = place.as_mut_ptr();
        // SAFETY: within the place; by the caller's promise the slabs' part is written.
        let slabs = unsafe { &(*at).slabs };
        let (id, objects) = (slabs.id, slabs.geometry.objects as usize);
        let shape = match Shape::new(slabs.geometry.bytes(), slabs.size as usize) {
            Some(shape) if !slabs.is_debugged() => shape,
            _ => Shape::NONE,
        };
        // An object that keeps its bytes while free has its link behind them.
        let mark_at = match slabs.links.offset {
            link if link as usize >= args.size => link,
            _ => 0,
        };
        let own = match slabs.nr_nodes() {
            1 => id.main(),
            _ => Slot::NO_CACHE,
        };
        let fill_skew = match args.slab_multiple_sheaves {
            true => fill_skew_of(id),
            false => 0,
        };
        let max_empty = slabs.tuning.max_empty_sheaves as usize;
        let limits = SheafLimits::of(args, &slabs.tuning, slabs.size as usize, objects);
        // SAFETY: all other fields, each once.
        unsafe {
            (&raw mut (*at).shape).write(shape);
            (&raw mut (*at).mark_at).write(mark_at);
            (&raw mut (*at).own).write(own);
            (&raw mut (*at).fill_skew).write(fill_skew);
            (&raw mut (*at).flushes_in_flight).write(AtomicUsize::new(0));
            (&raw mut (*at).capacity).write(limits.capacity);
            (&raw mut (*at).capacity_max).write(limits.capacity_max);
            (&raw mut (*at).max_full).write(limits.max_full);
            (&raw mut (*at).max_full_grown).write(limits.max_full_grown);
            (&raw mut (*at).max_empty).write(max_empty);
            (&raw mut (*at).barns).write(barns);
            (&raw mut (*at).nr_barns).write(nr_barns);
            (&raw mut (*at).last_activity).write(AtomicU64::new(0));
            (&raw mut (*at).idle_looks).write(AtomicU32::new(0));
        }
    }

    pub(crate) const ROWS: &'static [Row] = rows!(
        "SheafCache",
        Self,
        [
            slabs,
            flushes_in_flight,
            capacity,
            capacity_max,
            max_full,
            max_full_grown,
            max_empty,
            barns,
            nr_barns,
        ]
    );

    /// The slabs' part, for the creation.
    pub(crate) fn slabs_mut(&mut self) -> &mut SlabCache<P> {
        &mut self.slabs
    }

    /// The memory of the barns' records.
    pub(crate) fn barn_records(&self) -> NonNull<Barn<P>> {
        self.barns
    }

    /// Number of barns: one for each group of CPUs of each node.
    pub fn nr_barns(&self) -> usize {
        self.nr_barns
    }

    /// A barn: those of a node's groups are neighbours, node after node.
    #[inline]
    pub fn barn(&self, number: usize) -> &Barn<P> {
        debug_assert!(number < self.nr_barns);
        // SAFETY: within the array of barns, which is never freed.
        unsafe { self.barns.add(number).as_ref() }
    }

    /// The barns of all nodes and groups.
    pub fn barns(&self) -> impl Iterator<Item = &Barn<P>> {
        (0..self.nr_barns).map(|number| self.barn(number))
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

    /// Whether the capacity of sheaves adapts to misses.
    #[inline]
    pub fn is_adaptive(&self) -> bool {
        self.capacity_max > self.capacity
    }
}
