//! Gives cached objects and empty slabs back, on request and by maintenance.
//!
//! | call | flushes | frees | drain lock |
//! |---|---|---|---|
//! | `flush` | one cache's sheaves and barns | – | waits |
//! | `shrink`, `shrink_all` | sheaves and barns | empty slabs | waits |
//! | `trim` | as `shrink_all` | empty slabs, dirty pages, cached mappings | waits |
//! | `tick` | – | surplus slabs, page batches, old pages and mappings | waits |
//! | `end_allocation` | cold caches, idle CPUs; at most every 10 ms | surplus slabs | tries |
//! | `release_unused` | as `shrink_all`, if nothing is unused | memory and address space | waits |
//!
//! Any thread may call. Slow paths of allocations call `end_allocation`.

use core::sync::atomic::Ordering::Relaxed;

use crate::args::Flags;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::drain::DrainScope;
use crate::gfp::Gfp;
use crate::percpu::{MAX_CACHES, Region};
use crate::platform::Platform;
use crate::policy::{COLD_CHECK_MS, RESERVE_FLOOR_SLABS, SHRINK_SORTED_FREE};
use crate::sheaf::barn::Barn;
use crate::slab::base::Base;
use crate::slab::node::{Node, SlabList};
use crate::sync::time::claim;

/// The radix sort's digits of a number of free slots less one, and bits of a digit.
const DIGITS: u32 = 2;
const DIGIT_BITS: u32 = 3;
const _: () = assert!(SHRINK_SORTED_FREE <= 1 << (DIGITS * DIGIT_BITS));

impl<P: Platform> Allocator<P> {
    /// Flushes all sheaves of a cache, including those in barns: their objects go back to their
    /// slabs.
    pub fn flush(&self, cache: &KmemCache<P>) {
        self.flush_all(cache, DrainScope::Used);
        self.drain_deferred(cache);
        cache.barns().for_each(|barn| self.flush_barn(cache, barn));
    }

    /// Flushes all sheaves of a cache and frees its empty slabs; sorts partial slabs so that the
    /// fullest are used first. Returns whether slabs remain.
    #[inline(never)]
    pub fn shrink(&self, cache: &KmemCache<P>) -> bool {
        self.flush_all(cache, DrainScope::Used);
        self.shrink_nodes(cache);
        cache.nr_slabs() > 0
    }

    /// As [`shrink`](Self::shrink), for all caches except those whose slabs must wait for a grace
    /// period.
    #[inline(never)]
    pub fn shrink_all(&self) {
        self.drain_pages(false);
        self.flush_cpus(&|_| true, DrainScope::Used);
        let at_once = |cache: &&KmemCache<P>| !cache.flags.contains(Flags::TYPESAFE_BY_RCU);
        self.while_draining(|| {
            let caches = self.caches().filter(at_once);
            caches.for_each(|cache| self.shrink_nodes(cache));
        });
    }

    /// Gives as much memory as possible back to the system; returns whether there was any.
    pub fn trim(&self) -> bool {
        self.shrink_all();
        let any = self.kept_bytes() > 0;
        self.zone.purge(&self.platform);
        self.meta.purge(&self.platform);
        self.memory
            .purge_mapped(&self.platform, self.platform.now_ms(), |_| true);
        any
    }

    #[inline(never)]
    pub(crate) fn shrink_nodes(&self, cache: &KmemCache<P>) {
        self.drain_deferred(cache);
        // All barns first: a barn may hold objects of another node.
        cache.barns().for_each(|barn| self.flush_barn(cache, barn));
        for node in cache.nodes() {
            self.discard_empty(cache, node);
        }
    }

    #[inline(never)]
    pub(crate) fn flush_barn(&self, cache: &KmemCache<P>, barn: &Barn<P>) {
        let (mut full, mut empty) = barn.take_all();
        while let Some(mut sheaf) = full.pop() {
            self.flush_sheaf(cache, &mut sheaf, Gfp::KERNEL);
            self.free_sheaf(cache, sheaf, Gfp::KERNEL);
        }
        while let Some(sheaf) = empty.pop() {
            self.free_sheaf(cache, sheaf, Gfp::KERNEL);
        }
    }

    /// Ends an allocation: evicts pages for the ones it took, and maintains caches at most every
    /// [`COLD_CHECK_MS`] milliseconds. It comes last, since in its middle an allocation has little
    /// stack left. For callers that may take the page layer's locks.
    ///
    /// The maintenance flushes the surplus of barns and all sheaves of cold caches (not used for
    /// two periods), since a few cached objects pin whole slabs. Cold caches that [keep
    /// little](crate::cache::args::CacheArgs::kept_bytes) also free their empty slabs.
    #[inline]
    pub(crate) fn end_allocation(&self, gfp: Gfp) {
        if gfp.may_map() {
            self.zone.make_room_for_taken(&self.platform);
            self.decay_mapped();
        }
        // Relaxed, both: a hint.
        if gfp.contains(Gfp::KERNEL)
            && self.looks_for_cold.load(Relaxed)
            && self.looks_for_cold.swap(false, Relaxed)
        {
            self.maintain_if_due();
        }
    }

    /// Maintains caches if it is time. No allocation waits for this: it is skipped while another
    /// thread drains CPUs or forks.
    #[inline(never)]
    pub(crate) fn maintain_if_due(&self) {
        let now = self.platform.now_ms();
        if !claim(&self.next_cold, now, COLD_CHECK_MS) {
            return;
        }
        // Each in a function of its own: all need much stack.
        let Some(any) = self.look_for_cold() else {
            return;
        };
        self.drain_idle_pages(now);
        self.flush_idle_cpus();
        if any {
            self.try_flush_cpus(&|cache| cache.is_cold());
            self.flush_cold_nodes();
        }
    }

    /// Trims reserves and barns, and checks which caches are cold. Returns whether a cold cache has
    /// something to flush; `None` if another thread drains CPUs.
    #[inline(never)]
    pub(crate) fn look_for_cold(&self) -> Option<bool> {
        self.try_while_draining(|| {
            self.trim_reserves();
            let mut any = false;
            for cache in self.caches() {
                if cache.is_adaptive() || cache.keeps_little {
                    self.trim_barns(cache);
                }
                let cold = cache.record_activity(self.activity_of(cache));
                let idle_slabs = cache.keeps_little && cache.is_just_cold() && cache.nr_slabs() > 0;
                any |= cold && (idle_slabs || self.is_cached(cache));
            }
            any
        })
    }

    /// Flushes the barns of cold caches, and frees the slabs that they do not keep; does nothing if
    /// another thread drains CPUs.
    #[inline(never)]
    pub(crate) fn flush_cold_nodes(&self) {
        self.try_while_draining(|| {
            for cache in self.caches().filter(|cache| cache.is_cold()) {
                cache.barns().for_each(|barn| self.flush_barn(cache, barn));
                if cache.keeps_little && cache.is_just_cold() {
                    (cache.nodes()).for_each(|node| self.discard_empty(cache, node));
                }
            }
        });
    }

    /// Flushes the sheaves of CPUs that do not use an adaptive cache.
    #[inline(never)]
    pub(crate) fn flush_idle_cpus(&self) {
        let mut at = 1;
        // One cache at a time, since each has other idle CPUs.
        while at < MAX_CACHES {
            let next = self.try_while_draining(|| {
                (self.caches().filter(|cache| cache.is_adaptive()))
                    .find(|cache| cache.id.index() >= at && self.mark_idle_cpus(cache))
                    .map(|cache| cache.id)
            });
            let Some(id) = next.flatten() else {
                return;
            };
            let idle = |region: &Region| {
                self.cache(id)
                    .is_some_and(|cache| Base::is_idle_on(cache, region))
            };
            self.try_flush(&idle, &|cache| cache.id == id);
            at = id.index() + 1;
        }
    }

    /// Gives back all memory and address space without an object; returns whether there was any.
    /// From then on nothing is reserved or committed ahead of use.
    ///
    /// A limit may count memory that the allocator holds but does not use: cached mappings, memory
    /// reserved or committed ahead of use, free blocks. Without any, the allocator flushes sheaves
    /// and empty slabs, which may free more blocks. For callers that may wait and call the system.
    #[inline(never)]
    pub fn release_unused(&self) -> bool {
        let ahead = self.give_back_ahead();
        self.memory.release_idle(&self.platform) || ahead || {
            // The zone has them then, for the next try.
            let kept = self.memory.pcp.bytes() > 0;
            self.shrink_all();
            self.memory.release_idle(&self.platform) || kept
        }
    }

    /// Unmaps the regions that were mapped ahead; returns whether there were any.
    #[inline(never)]
    pub(crate) fn give_back_ahead(&self) -> bool {
        // `try_lock`: an allocation under the drain lock may lack memory.
        let drain = self.drain.try_lock();
        drain.is_some_and(|_drain| self.table.give_back_ahead(&self.platform))
    }

    /// Whether a sheaf of the cache has objects; may be stale.
    pub(crate) fn is_cached(&self, cache: &KmemCache<P>) -> bool {
        let mut cached = cache.barns().any(|barn| barn.nr_full() > 0);
        self.for_each_top(cache, |top| cached |= !top.is_empty());
        cached
    }

    #[inline(never)]
    pub(crate) fn discard_empty(&self, cache: &KmemCache<P>, node: &Node<P>) {
        self.discard_ahead(cache, node);
        let empty = self.take_empty(cache, node);
        self.discard_list(cache, empty);
    }

    /// Takes the empty slabs of a node off its lists, and sorts the partial ones.
    #[inline(never)]
    pub(crate) fn take_empty(&self, cache: &KmemCache<P>, node: &Node<P>) -> SlabList {
        let arena = &self.zone.arena;
        let mut empty = SlabList::new();
        {
            let mut lists = node.lists.lock();
            node.drain_all_pending(arena, &mut lists, cache.has_reserve());
            for slab in lists.empty.drain(arena) {
                slab.set_partial(false);
                empty.push_back(arena, slab);
            }
            let list = &mut lists.partial;
            let mut sorted = SlabList::new();
            for slab in list.iter(arena) {
                let inuse = slab.state().inuse();
                if inuse == 0 {
                    list.remove(arena, slab);
                    slab.set_partial(false);
                    empty.push_back(arena, slab);
                } else if cache.geometry.objects - inuse <= SHRINK_SORTED_FREE {
                    list.remove(arena, slab);
                    sorted.push_back(arena, slab);
                }
            }
            // Radix sort by the number of free slots, lowest digit first: it needs few lists.
            for digit in 0..DIGITS {
                let mut buckets = [const { SlabList::new() }; 1 << DIGIT_BITS];
                for slab in sorted.drain(arena) {
                    // At least one slot is free.
                    let free = cache.geometry.objects - slab.state().inuse() - 1;
                    let bucket = free >> (digit * DIGIT_BITS) & ((1 << DIGIT_BITS) - 1);
                    buckets[bucket as usize].push_back(arena, slab);
                }
                for bucket in &mut buckets {
                    sorted.append(arena, bucket);
                }
            }
            sorted.append(arena, list);
            *list = sorted;
            node.update_counts(&lists);
        }
        empty
    }

    /// Gives back memory that has been idle for the decay time, and the pages of unused windows, at
    /// the time `now` in milliseconds. For a background helper.
    pub fn tick(&self, now: u64) {
        let decay = u64::from(self.tunables().decay_ms);
        self.while_draining(|| {
            self.trim_reserves();
            for cache in self.caches() {
                (cache.nodes()).for_each(|node| self.discard_ahead(cache, node));
            }
        });
        self.drain_idle_pages(now);
        self.zone.decay(&self.platform, now, decay);
        self.meta.purge(&self.platform);
        self.memory
            .purge_mapped(&self.platform, now, |age| age >= decay);
    }

    /// Shrinks the reserves of all caches whose windows have ended. No thread may destroy a cache
    /// meanwhile.
    #[inline(never)]
    pub(crate) fn trim_reserves(&self) {
        let waits = |cache: &&KmemCache<P>| cache.flags.contains(Flags::TYPESAFE_BY_RCU);
        for cache in self.caches().filter(|c| c.has_reserve() && !waits(c)) {
            for node in cache.nodes() {
                let mut before = usize::MAX;
                // In batches; at most one window ends.
                while node.nr_empty() > RESERVE_FLOOR_SLABS && node.nr_empty() < before {
                    before = node.nr_empty();
                    let mut gone = SlabList::new();
                    let now = self.platform.now_ms();
                    self.take_surplus(cache, node, node.lists.lock(), now, &mut gone);
                    self.discard_list(cache, gone);
                }
            }
        }
    }
}
