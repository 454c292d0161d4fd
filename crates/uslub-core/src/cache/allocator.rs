//! The allocator: a value that owns pages, caches and per-CPU slots.
//!
//! | state | meaning |
//! |---|---|
//! | new | owns nothing; fast paths return null or false |
//! | ready | [`init`](Allocator::init) has succeeded; all threads may call |
//!
//! Lock order, outermost first: `slab_mutex` (the list of caches), `drain`, barns, node lists, huge
//! objects, page growth, page lists, records. The locks of the grace period and of shrinkers are
//! taken with no other lock held.
//!
//! A destroyed cache's record and identity are reused, after a quarantine.

use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::args::{self, CacheArgs, CreateError, ObjectLayout};
use crate::cache::cache_list::CacheList;
use crate::cache::fork::Forks;
use crate::cache::reclaim::Reclaim;
use crate::cache::{CacheNode, KmemCache};
use crate::grace::GracePeriod;
use crate::memory::mapped::MappedObjects;
use crate::memory::metadata::MetadataStore;
use crate::memory::zone::Zone;
use crate::percpu::nodes::MAX_NODES;
use crate::percpu::{APART, CacheId, MAX_CACHES, Table};
use crate::platform::Platform;
use crate::policy::QUARANTINE_CACHES;
use crate::slab::order;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use crate::tunables::{Tunables, Tuning};

/// An allocator over a platform.
///
/// It is set up in place by [`init`](Self::init) and then shared by all threads.
///
/// The fields that fast paths read come first, at the page offset [`APART`], to avoid 4 KiB
/// aliasing with the words that fast paths write: a processor takes a load for one of a recent
/// store at the same page offset, and waits. None of these fields is the second word of a 32-byte
/// block, because fast paths write such a word in the thread's area, which may lie anywhere in its
/// page.
#[repr(C, align(4096))]
pub struct Allocator<P: Platform> {
    _apart: [u8; APART],
    /// Per-CPU slots.
    pub table: Table,
    /// Number of memory nodes.
    pub(crate) nodes: AtomicUsize,
    /// The system and CPUs below.
    pub platform: P,
    /// Pages.
    pub zone: Zone<P>,
    /// Memory of the allocator's own records.
    pub meta: MetadataStore<P>,
    /// Objects with mappings of their own.
    pub mapped: MappedObjects<P>,
    /// Pages of large objects.
    pub large_pages: AtomicUsize,
    /// Caches from this index on do not exist.
    pub(crate) end: AtomicUsize,
    /// Time of the next check for cold caches, in milliseconds.
    pub(crate) next_cold: AtomicU64,
    /// Whether a running allocation took pages: its end then checks for cold caches.
    pub(crate) looks_for_cold: AtomicBool,
    /// Calls without a cache: allocations (0) and frees (1).
    pub large_calls: [AtomicUsize; 2],
    pub(crate) caches: [AtomicPtr<KmemCache<P>>; MAX_CACHES],
    /// Bytes of objects that the sheaves of adaptive caches can hold.
    pub(crate) sheaf_bytes: AtomicUsize,
    /// The source of grace periods.
    pub(crate) grace: Lock<P, Option<&'static dyn GracePeriod>>,
    /// The shrinkers, which free memory when it is short.
    pub(crate) reclaim: Reclaim<P>,
    /// The kernel's slab_mutex: creation and destruction of caches, creation of regions.
    pub(crate) slab_mutex: Lock<P, CacheList<P>>,
    /// Held while CPUs are drained, and during every walk of the caches that may meet a
    /// destruction.
    pub(crate) drain: Lock<P, ()>,
    /// Forks under way.
    pub(crate) forks: Forks<P>,
    tunables: core::cell::UnsafeCell<Tunables>,
    ready: AtomicBool,
}

// SAFETY: the tunables are written before `ready` only.
unsafe impl<P: Platform> Sync for Allocator<P> {}

impl<P: Platform> Allocator<P> {
    /// An allocator that is not set up: it owns nothing.
    pub const fn new(platform: P) -> Self {
        Self::with_table(platform, Table::new())
    }

    /// An allocator that is not set up, with a table that is not set up either.
    pub const fn with_table(platform: P, table: Table) -> Self {
        Self {
            _apart: [0; APART],
            table,
            platform,
            zone: Zone::new(),
            meta: MetadataStore::new(),
            mapped: MappedObjects::new(),
            large_pages: AtomicUsize::new(0),
            end: AtomicUsize::new(1),
            next_cold: AtomicU64::new(0),
            looks_for_cold: AtomicBool::new(false),
            large_calls: [const { AtomicUsize::new(0) }; 2],
            caches: [const { AtomicPtr::new(null_mut()) }; MAX_CACHES],
            slab_mutex: Lock::new(CacheList::new()),
            sheaf_bytes: AtomicUsize::new(0),
            nodes: AtomicUsize::new(1),
            grace: Lock::new(None),
            reclaim: Reclaim::new(),
            drain: Lock::new(()),
            forks: Forks::new(),
            tunables: core::cell::UnsafeCell::new(Tunables::DEFAULT),
            ready: AtomicBool::new(false),
        }
    }

    /// Sets the allocator up with `reserve` bytes of address space, or less if the system refuses.
    /// Returns false if the system refuses the smallest reservation.
    ///
    /// # Safety
    ///
    /// Once, before any other thread uses the allocator.
    pub unsafe fn init(&self, reserve: usize, tunables: Tunables) -> bool {
        // SAFETY: no other thread uses the allocator.
        unsafe { *self.tunables.get() = tunables };
        let nodes = self.platform.nr_nodes().clamp(1, MAX_NODES);
        // Relaxed: published with `ready`.
        self.nodes.store(nodes, Relaxed);
        self.zone.set_huge_from(tunables.huge_pages_mb);
        let mut done = self.table.init(&self.platform);
        if done && !self.zone.arena.init(&self.platform, reserve) {
            self.table.undo(&self.platform);
            done = false;
        }
        // Release: pairs with `ready`.
        self.ready.store(done, Release);
        if done {
            self.platform.slots_are_ready();
        }
        done
    }

    /// Whether [`init`](Self::init) has succeeded.
    #[inline]
    pub fn ready(&self) -> bool {
        // Acquire: pairs with `init`.
        self.ready.load(Acquire)
    }

    /// The tunables in force.
    pub fn tunables(&self) -> &Tunables {
        // SAFETY: written before `ready` only.
        unsafe { &*self.tunables.get() }
    }

    /// Least number of objects in a slab.
    fn min_objects(&self, tuning: &Tuning) -> usize {
        match tuning.slab_min_objects {
            0 => order::default_min_objects(self.platform.nr_cpus()),
            n => n as usize,
        }
    }

    /// The cache with an identity.
    #[inline]
    pub fn cache(&self, id: CacheId) -> Option<&KmemCache<P>> {
        // Acquire: pairs with `create`. SAFETY: records of caches are never freed.
        unsafe { self.caches[id.index()].load(Acquire).as_ref() }
    }

    /// All caches. No thread may destroy one during the iteration.
    pub fn caches(&self) -> impl Iterator<Item = &KmemCache<P>> {
        // Acquire: pairs with the creation of the last cache.
        (1..self.end.load(Acquire)).filter_map(|index| self.cache(CacheId::from_index(index)))
    }

    /// Calls `visit` with each cache; no cache can be created or destroyed meanwhile. `visit` must
    /// not allocate or free.
    pub fn for_each_cache(&self, visit: impl FnMut(&KmemCache<P>)) {
        self.while_draining(|| self.caches().for_each(visit));
    }

    /// Reserves the identities below `index` for [`create_at`](Self::create_at).
    pub fn keep_indices(&self, index: usize) {
        let mut list = self.slab_mutex.lock();
        list.next = list.next.max(index);
    }

    /// Creates a cache, or shares one with fitting slabs.
    ///
    /// A cache may share if its arguments do not forbid it and it has no constructor, limit or
    /// sheaf capacity. The other cache's slots are then at most a word larger, and have the same
    /// alignment.
    ///
    /// # Errors
    ///
    /// If an argument is out of bounds, or there are too many caches, or there is no memory.
    pub fn create(&self, args: &CacheArgs<'_>) -> Result<&KmemCache<P>, CreateError> {
        let mut list = self.slab_mutex.lock();
        args::check(args)?;
        let layout = ObjectLayout::of(args)?;
        if args.is_mergeable()
            && self.tunables().slab_nomerge == 0
            && let Some(cache) = self.caches().filter(|c| c.can_serve(&layout)).last()
        {
            cache.share(args.size);
            return Ok(cache);
        }
        // SAFETY: we own a record in the list.
        if let Some(dead) = unsafe { list.dead.as_ref() }
            && (list.nr_dead > QUARANTINE_CACHES || list.next >= MAX_CACHES)
        {
            let (id, next) = (dead.id, dead.next_dead());
            let cache = self.create_locked(id, args, Some(dead))?;
            list.dead = next;
            list.nr_dead -= 1;
            return Ok(cache);
        }
        if list.next >= MAX_CACHES {
            return Err(CreateError::TooMany);
        }
        let cache = self.create_locked(CacheId::from_index(list.next), args, None)?;
        list.next += 1;
        Ok(cache)
    }

    /// The cache with a reserved identity; creates it if necessary.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    #[cold]
    pub fn create_at(
        &self,
        id: CacheId,
        args: &CacheArgs<'_>,
    ) -> Result<&KmemCache<P>, CreateError> {
        let _next = self.slab_mutex.lock();
        match self.cache(id) {
            Some(cache) => Ok(cache),
            None => self.create_locked(id, args, None),
        }
    }

    /// Creates a cache; in the memory of a destroyed one, if given.
    fn create_locked(
        &self,
        id: CacheId,
        args: &CacheArgs<'_>,
        dead: Option<&KmemCache<P>>,
    ) -> Result<&KmemCache<P>, CreateError> {
        args::check(args)?;
        let Some(dead) = dead else {
            let memory = self.record(size_of::<KmemCache<P>>(), 64)?.cast();
            return self.create_in(memory, memory, id, args, None);
        };
        // On failure the destroyed cache's record stays unchanged.
        let mut cache = MaybeUninit::<KmemCache<P>>::uninit();
        let record = NonNull::from(&mut cache).cast();
        self.create_in(NonNull::from(dead), record, id, args, Some(dead))
    }

    #[inline(never)]
    fn record(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, CreateError> {
        let record = self.meta.record(&self.platform, bytes, align);
        record.ok_or(CreateError::NoMemory)
    }

    /// Creates a cache in `memory`. Its record is first written to `record`, which may be
    /// elsewhere.
    fn create_in(
        &self,
        memory: NonNull<KmemCache<P>>,
        record: NonNull<KmemCache<P>>,
        id: CacheId,
        args: &CacheArgs<'_>,
        dead: Option<&KmemCache<P>>,
    ) -> Result<&KmemCache<P>, CreateError> {
        let nr_nodes = self.nr_nodes();
        let nodes = match dead {
            Some(dead) => dead.node_records(),
            None => self
                .record(
                    nr_nodes * size_of::<CacheNode<P>>(),
                    align_of::<CacheNode<P>>(),
                )?
                .cast(),
        };
        let tuning = args.tuning.as_ref().unwrap_or(&self.tunables().tuning);
        let min_objects = self.min_objects(tuning);
        let (random, nodes_of) = (self.platform.random(), (nodes, nr_nodes));
        // SAFETY: we own the record.
        let place = unsafe { record.cast().as_mut() };
        KmemCache::write_to(place, args, id, tuning, min_objects, random, nodes_of)?;
        // SAFETY: just written.
        let cache = unsafe { place.assume_init_mut() };
        if tuning.slab_freelist_random == 1 && cache.geometry.objects >= 2 {
            self.set_random_order(cache, dead)?;
        }
        self.publish(memory, record, id, nodes_of);
        // SAFETY: records are never freed.
        Ok(unsafe { memory.as_ref() })
    }

    /// Chooses the random order in which fresh slots are handed out.
    #[inline(never)]
    fn set_random_order(
        &self,
        cache: &mut KmemCache<P>,
        dead: Option<&KmemCache<P>>,
    ) -> Result<(), CreateError> {
        let objects = cache.geometry.objects as usize;
        let offsets = match dead.and_then(|dead| dead.random_room(objects)) {
            Some(room) => room,
            None => self.record(2 * objects * 4, 4)?.cast::<u32>(),
        };
        // SAFETY: room for `2 * objects` numbers.
        let slice = unsafe { core::slice::from_raw_parts_mut(offsets.as_ptr(), 2 * objects) };
        shuffle(&mut slice[..objects], cache.size, || self.platform.random());
        slice.copy_within(..objects, objects);
        cache.set_random(offsets);
        Ok(())
    }

    /// Publishes a cache; copies its record to `memory` first if necessary.
    #[inline(never)]
    fn publish(
        &self,
        memory: NonNull<KmemCache<P>>,
        record: NonNull<KmemCache<P>>,
        id: CacheId,
        (nodes, nr_nodes): (NonNull<CacheNode<P>>, usize),
    ) {
        self.table.prepare(id);
        self.table.reset_counts(id);
        // No thread walks the caches meanwhile.
        self.while_draining(|| {
            for nid in 0..nr_nodes {
                // SAFETY: within the nodes' record, which we own.
                unsafe { nodes.add(nid).write(CacheNode::new()) };
            }
            if memory != record {
                // SAFETY: we own both, and they differ.
                unsafe { memory.copy_from_nonoverlapping(record, 1) };
            }
            // Release: a thread that finds the cache sees its record and its slots.
            self.caches[id.index()].store(memory.as_ptr(), Release);
            self.end.fetch_max(id.index() + 1, Release);
        });
    }

    /// Removes a cache from the list, so that its identity and record can be reused.
    pub(crate) fn release_id(&self, cache: &KmemCache<P>) {
        let mut list = self.slab_mutex.lock();
        self.while_draining(|| {
            // Release: after all operations on the cache.
            self.caches[cache.id.index()].store(null_mut(), Release);
        });
        cache.set_next_dead(null_mut());
        let record = core::ptr::from_ref(cache).cast_mut();
        // SAFETY: we own a record in the list.
        match unsafe { list.youngest.as_ref() } {
            Some(youngest) if list.nr_dead > 0 => youngest.set_next_dead(record),
            _ => list.dead = record,
        }
        list.youngest = record;
        list.nr_dead += 1;
    }

    /// Counts one creator less; returns whether it was the last.
    pub(crate) fn drop_user(&self, cache: &KmemCache<P>) -> bool {
        let _list = self.slab_mutex.lock();
        // Relaxed: under the lock.
        cache.users.fetch_sub(1, Relaxed) == 1
    }

    /// Counts the creator again, since the cache could not be destroyed.
    pub(crate) fn add_user(&self, cache: &KmemCache<P>) {
        let _list = self.slab_mutex.lock();
        // Relaxed: under the lock.
        cache.users.fetch_add(1, Relaxed);
    }

    /// Makes the rcu words of a cache usable.
    pub(crate) fn prepare_rcu_slots(&self, id: CacheId) {
        let _next = self.slab_mutex.lock();
        self.table.prepare_rcu(id);
    }

    /// Gives this CPU its region; returns false without memory.
    #[cold]
    pub(crate) fn make_region(&self) -> bool {
        let cpu = self.platform.cpu();
        let _next = self.slab_mutex.lock();
        // Under the drain lock: otherwise a drain could own the region when its CPU begins to use
        // it.
        self.while_draining(|| self.table.make(&self.platform, cpu))
    }

    /// Runs `work` under the drain lock.
    pub(crate) fn while_draining<T>(&self, work: impl FnOnce() -> T) -> T {
        let _drain = self.drain.lock();
        work()
    }

    /// Runs `work` under the drain lock; does nothing if another thread holds it.
    pub(crate) fn try_while_draining<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _drain = self.drain.try_lock()?;
        Some(work())
    }

    /// Whether the drain lock is taken; may be stale.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_held()
    }

    /// Bytes in use of the allocator's own records.
    pub fn metadata_bytes(&self) -> usize {
        self.meta.bytes()
            + self.table.bytes()
            + self.zone.arena.side_bytes()
            + self.mapped.table_bytes()
    }

    /// Counts an allocation (0) or a free (1) without a cache.
    pub(crate) fn count_large(&self, which: usize) {
        // Relaxed: statistics.
        self.large_calls[which].fetch_add(1, Relaxed);
    }
}

/// Fills `offsets` with the byte offsets of slots of `size` bytes in random order (Fisher-Yates).
fn shuffle(offsets: &mut [u32], size: u32, mut random: impl FnMut() -> u64) {
    for (i, offset) in offsets.iter_mut().enumerate() {
        *offset = i as u32 * size;
    }
    for i in (1..offsets.len()).rev() {
        offsets.swap(i, (random() % (i as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_offset() {
        let mut offsets = [0u32; 100];
        let mut state = 1u64;
        shuffle(&mut offsets, 24, || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            state >> 20
        });
        assert!(offsets.iter().enumerate().any(|(i, &o)| o != i as u32 * 24));
        let mut sorted = offsets;
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(i, &o)| o == i as u32 * 24));
    }
}
