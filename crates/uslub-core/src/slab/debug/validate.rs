//! All slabs of a debugged cache: validation, objects that are left, groups of tracks.
//!
//! Validation repairs what it can, counts errors, and never ends the process. Callers:
//! `cache::debug`, `destroy`.

use core::sync::atomic::Ordering::Relaxed;

use crate::debug::DebugFlags;
use crate::platform::{Platform, Watch};
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::debug::check::Use;
use crate::slab::debug::freelist::Walk;
use crate::slab::debug::track::{Track, Which};
use crate::slab::node::NodeLists;
use crate::slab::state::Slab;

/// Slots of a set.
const SET: usize = 2048;

/// Free slots among [`SET`] slots of a slab, one bit each.
struct FreeSet([u64; SET / 64]);

impl FreeSet {
    fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }
}

/// Groups of a summary, at most.
pub const GROUPS_MAX: usize = 32;

/// Objects in use with the same track.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrackGroup {
    /// Caller's return address.
    pub caller: usize,
    /// Handle of the stack.
    pub stack: u32,
    /// Objects.
    pub count: usize,
    /// Bytes of objects that nobody asked for.
    pub waste: usize,
    /// Youngest and oldest object's age, and the sum of all, in milliseconds.
    pub age: (u32, u32, u64),
    /// Lowest and highest thread.
    pub tids: (u32, u32),
    /// Whether there is a track.
    pub is_known: bool,
}

impl<P: Platform> Base<P> {
    /// Calls `visit` with each object of a slab, and whether it is free.
    fn for_each_slot(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        visit: &mut dyn FnMut(*mut u8, Use) -> bool,
    ) {
        let (base, objects) = (self.slab_base(slab), cache.geometry.objects as usize);
        for first in (0..objects).step_by(SET) {
            let free = self.free_set(cache, slab, first);
            for index in first..objects.min(first + SET) {
                let how = if free.contains(index - first) {
                    Use::Free
                } else {
                    Use::InUse
                };
                if !visit(cache.debug_object(base, index), how) {
                    return;
                }
            }
        }
    }

    /// Free slots from slot `first` on.
    #[inline(never)]
    fn free_set(&self, cache: &SlabCache<P>, slab: &Slab, first: usize) -> FreeSet {
        let mut set = FreeSet([0; SET / 64]);
        let (base, links) = (self.slab_base(slab), cache.links_of(slab));
        let mut at = self.debug_head(slab);
        for _ in 0..cache.geometry.objects {
            if !cache.is_debug_slot(base, at) {
                break;
            }
            let offset = at as usize - base as usize - cache.layout.left as usize;
            let index = cache.slot_at(offset).wrapping_sub(first);
            if index < SET {
                set.0[index / 64] |= 1 << (index % 64);
            }
            // SAFETY: a slot of the slab.
            at = unsafe { links.get(at) };
        }
        set
    }

    /// Validates all listed slabs of a debugged cache; returns how many.
    pub(crate) fn validate_debugged(&self, cache: &SlabCache<P>) -> usize {
        let arena = &self.zone.arena;
        let mut slabs = 0;
        self.watch(cache, Watch::Enter);
        for node in cache.nodes() {
            let mut lists = node.lists.lock();
            node.drain_pending(arena, &mut lists, false);
            for slab in lists.partial.iter(arena).chain(lists.full.iter(arena)) {
                self.validate_debug_slab(cache, slab);
                slabs += 1;
            }
            self.relist_debugged(cache, &mut lists);
            let (partial, counter) = (lists.partial.iter(arena).count(), lists.partial.len());
            if partial != counter {
                self.count_report(cache);
                let name = cache.name();
                (self.platform).report(format_args!(
                    "SLUB {name}: {partial} partial slabs counted but counter={counter}"
                ));
            }
            node.update_counts(&lists);
        }
        self.watch(cache, Watch::Leave);
        slabs
    }

    /// Moves slabs whose count a repair has changed to the list that they belong to.
    fn relist_debugged(&self, cache: &SlabCache<P>, lists: &mut NodeLists) {
        let arena = &self.zone.arena;
        for slab in lists.partial.iter(arena) {
            if slab.state().head().is_none() || slab.state().inuse() == cache.geometry.objects {
                lists.partial.remove(arena, slab);
                slab.set_partial(false);
                lists.full.push_back(arena, slab);
            }
        }
        for slab in lists.full.iter(arena) {
            if slab.state().head().is_some() && slab.state().inuse() < cache.geometry.objects {
                lists.full.remove(arena, slab);
                slab.set_partial(true);
                lists.partial.push_back(arena, slab);
            }
        }
    }

    fn validate_debug_slab(&self, cache: &SlabCache<P>, slab: &Slab) {
        let sound = self.check_slab(cache, slab)
            && self.walk_freelist(cache, slab, core::ptr::null_mut()) == Walk::NotFound;
        if sound {
            self.for_each_slot(cache, slab, &mut |object, how| {
                self.check_object(cache, slab, object, how)
            });
        }
    }

    /// Calls `visit` with each object in use of the listed slabs.
    pub(crate) fn for_each_debug_object(
        &self,
        cache: &SlabCache<P>,
        visit: &mut dyn FnMut(&Slab, *mut u8),
    ) {
        let arena = &self.zone.arena;
        self.watch(cache, Watch::Enter);
        for node in cache.nodes() {
            let lists = node.lists.lock();
            for slab in lists.partial.iter(arena).chain(lists.full.iter(arena)) {
                self.for_each_slot(cache, slab, &mut |object, how| {
                    if how == Use::InUse {
                        visit(slab, object);
                    }
                    true
                });
            }
        }
        self.watch(cache, Watch::Leave);
    }

    /// Reports the objects that are left when a cache is destroyed, with their tracks.
    pub(crate) fn report_remaining(&self, cache: &SlabCache<P>) {
        let mut last = core::ptr::null();
        self.for_each_debug_object(cache, &mut |slab, object| {
            if !core::ptr::eq(last, slab) {
                last = core::ptr::from_ref(slab);
                let text = "Objects remaining on __kmem_cache_shutdown()";
                self.report_slab(cache, slab, format_args!("{text}"));
            }
            let offset = object as usize - self.slab_base(slab) as usize;
            (self.platform).report(format_args!("Object {object:p} @offset={offset}"));
            self.say_tracks(cache, object);
        });
        if !last.is_null() {
            self.count_report(cache);
            let name = cache.name();
            (self.platform).report(format_args!(
                "kmem_cache_destroy {name}: Slab cache still has objects"
            ));
        }
    }

    /// Groups the objects in use by their track, the largest group first; returns how many groups
    /// there are. Groups that find no room are left out.
    pub(crate) fn group_tracks(
        &self,
        cache: &SlabCache<P>,
        which: Which,
        groups: &mut [TrackGroup],
    ) -> usize {
        let now = self.platform.now_ms() as u32;
        let size = cache.layout.object as usize;
        let mut used = 0;
        self.for_each_debug_object(cache, &mut |_, object| {
            let track = cache.track(object, which);
            let Track { caller, stack, .. } = track.unwrap_or_default();
            let Track { tid, time, .. } = track.unwrap_or_default();
            let waste = match which {
                Which::Alloc => size - cache.asked_for(object),
                Which::Free => 0,
            };
            let same = |g: &TrackGroup| {
                let each = g.waste / g.count.max(1);
                (g.caller, g.stack, g.is_known, each) == (caller, stack, track.is_some(), waste)
            };
            let age = now.wrapping_sub(time);
            let at = match groups[..used].iter().position(same) {
                Some(at) => at,
                None if used < groups.len() => {
                    groups[used] = TrackGroup {
                        caller,
                        stack,
                        is_known: track.is_some(),
                        age: (age, age, 0),
                        tids: (tid, tid),
                        ..TrackGroup::default()
                    };
                    used += 1;
                    used - 1
                }
                None => return,
            };
            let group = &mut groups[at];
            group.count += 1;
            group.waste += waste;
            group.age = (
                group.age.0.min(age),
                group.age.1.max(age),
                group.age.2 + u64::from(age),
            );
            group.tids = (group.tids.0.min(tid), group.tids.1.max(tid));
        });
        groups[..used].sort_unstable_by_key(|group| core::cmp::Reverse(group.count));
        used
    }

    /// Slabs that are on a list; the others of a debugged cache are frozen.
    pub(crate) fn listed_debug_slabs(&self, cache: &SlabCache<P>) -> usize {
        let listed = |lists: &NodeLists| lists.partial.len() + lists.full.len();
        cache.nodes().map(|node| listed(&node.lists.lock())).sum()
    }

    /// Whether the counters of a debugged cache's slabs agree: every slab is listed, waits for its
    /// readers or is frozen.
    pub(crate) fn counts_agree(&self, cache: &SlabCache<P>) -> bool {
        // Relaxed: the allocator is idle.
        let slabs: usize = (cache.nodes().map(|node| node.nr_slabs.load(Relaxed))).sum();
        let ahead: usize = cache.nodes().map(|node| node.ahead.slabs()).sum();
        let waiting = cache.nr_waiting();
        let frozen_only = cache.debug.get().contains(DebugFlags::CONSISTENCY_CHECKS);
        let listed = self.listed_debug_slabs(cache);
        slabs - ahead == listed + waiting || (frozen_only && listed < slabs)
    }
}
