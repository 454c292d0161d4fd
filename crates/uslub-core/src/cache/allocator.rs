//! The allocator: a value that owns pages, caches and per-CPU slots.

use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::args::{self, CacheArgs, CreateError, Layout};
use crate::cache::cache_list::CacheList;
use crate::cache::fork::Forks;
use crate::cache::reclaim::Reclaim;
use crate::cache::{CacheNode, KmemCache};
use crate::grace::GracePeriod;
use crate::memory::mapped::Huge;
use crate::memory::metadata::Meta;
use crate::memory::zone::Zone;
use crate::percpu::nodes::MAX_NODES;
use crate::percpu::{APART, CacheId, MAX_CACHES, Table};
use crate::platform::Platform;
use crate::slab::order;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use crate::tunables::{Tunables, Tuning};

/// Records of destroyed caches that wait a while, so that a use after the end is told from a use of
/// another cache.
const QUARANTINE: usize = 16;

/// An allocator over a platform.
///
/// It is set up in place by [`init`](Self::init) and then shared. Lock order, outermost first:
/// caches list, drain, barns, node lists, huge, page growth, page lists, records. Those of grace
/// period and shrinkers are held while nothing else is.
///
/// What fast paths look at comes first, and lies in its page where a region has the words of spare
/// sheaves, which they do not write: a processor takes a load for one of what was just stored at
/// the same place of another page, and waits. No second word of 32 bytes is among it, as such a one
/// they write in the thread's area, which may lie anywhere in its page.
#[repr(C, align(4096))]
pub struct Allocator<P: Platform> {
    _apart: [u8; APART],
    /// Per-CPU slots.
    pub table: Table,
    /// Number of memory nodes.
    pub(crate) nodes: AtomicUsize,
    /// The world below.
    pub platform: P,
    /// Pages.
    pub zone: Zone<P>,
    /// Records.
    pub meta: Meta<P>,
    /// Objects with mappings of their own.
    pub huge: Huge<P>,
    /// Pages of large objects.
    pub large_pages: AtomicUsize,
    /// Caches from this index on do not exist.
    pub(crate) end: AtomicUsize,
    /// When to look again for caches that nobody uses, in milliseconds.
    pub(crate) next_cold: AtomicU64,
    /// Whether an allocation that is under way took pages: its end looks for such caches.
    pub(crate) looks_for_cold: AtomicBool,
    /// Objects that were allocated without a cache, and freed.
    pub large_calls: [AtomicUsize; 2],
    pub(crate) caches: [AtomicPtr<KmemCache<P>>; MAX_CACHES],
    /// Bytes of objects that adaptive sheaves can hold.
    pub(crate) sheaf_bytes: AtomicUsize,
    /// How readers are waited for.
    pub(crate) grace: Lock<P, Option<&'static dyn GracePeriod>>,
    /// Who can free memory when it is short.
    pub(crate) reclaim: Reclaim<P>,
    /// The kernel's slab_mutex: creating and destroying caches and regions.
    pub(crate) slab_mutex: Lock<P, CacheList<P>>,
    /// Held while CPUs are drained, and by all who walk the caches while some may be destroyed.
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

    /// An allocator that is not set up, with a table that is not either.
    pub const fn with_table(platform: P, table: Table) -> Self {
        Self {
            _apart: [0; APART],
            table,
            platform,
            zone: Zone::new(),
            meta: Meta::new(),
            huge: Huge::new(),
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

    /// Sets the allocator up with `reserve` bytes of address space (less if refused);
    /// returns false when even the smallest is not to be had.
    ///
    /// # Safety
    ///
    /// Once, before anyone else uses the allocator.
    pub unsafe fn init(&self, reserve: usize, tunables: Tunables) -> bool {
        // SAFETY: nobody else uses the allocator.
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

    /// Objects wanted in a slab.
    fn min_objects(&self, tuning: &Tuning) -> usize {
        match tuning.slab_min_objects {
            0 => order::default_min_objects(self.platform.nr_cpus()),
            n => n as usize,
        }
    }

    /// The cache with an identity.
    #[inline]
    pub fn cache(&self, id: CacheId) -> Option<&KmemCache<P>> {
        // Acquire: pairs with `create`. SAFETY: records of caches live for ever.
        unsafe { self.caches[id.index()].load(Acquire).as_ref() }
    }

    /// All caches. Nobody may destroy one while it is looked at.
    pub fn caches(&self) -> impl Iterator<Item = &KmemCache<P>> {
        // Acquire: pairs with the creation of the last.
        (1..self.end.load(Acquire)).filter_map(|index| self.cache(CacheId::from_index(index)))
    }

    /// Calls `visit` with all caches while none can be created or destroyed; it must not allocate
    /// or free.
    pub fn for_each_cache(&self, visit: impl FnMut(&KmemCache<P>)) {
        self.while_draining(|| self.caches().for_each(visit));
    }

    /// Keeps the identities below `index` for caches that [`create_at`](Self::create_at) makes.
    pub fn keep_indices(&self, index: usize) {
        let mut list = self.slab_mutex.lock();
        list.next = list.next.max(index);
    }

    /// Creates a cache, or shares one whose slabs fit.
    ///
    /// A cache may share if its arguments do not forbid it and it has no constructor, no limit and
    /// no sheaf capacity of its own: the other's slots are then at most a word larger, and aligned
    /// alike.
    ///
    /// # Errors
    ///
    /// When an argument is out of bounds, there are too many caches or no memory.
    pub fn create(&self, args: &CacheArgs<'_>) -> Result<&KmemCache<P>, CreateError> {
        let mut list = self.slab_mutex.lock();
        args::check(args)?;
        let layout = Layout::of(args)?;
        if args.is_mergeable()
            && self.tunables().slab_nomerge == 0
            && let Some(cache) = self.caches().filter(|c| c.can_serve(&layout)).last()
        {
            cache.share(args.size);
            return Ok(cache);
        }
        // SAFETY: a record in the list is ours.
        if let Some(dead) = unsafe { list.dead.as_ref() }
            && (list.nr_dead > QUARANTINE || list.next >= MAX_CACHES)
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

    /// The cache with a kept identity; creates it when it is not there yet.
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

    /// Makes a cache; in the memory of a dead one, if there is one.
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
        // What fails leaves the dead one as it was.
        let mut cache = MaybeUninit::<KmemCache<P>>::uninit();
        let record = NonNull::from(&mut cache).cast();
        self.create_in(NonNull::from(dead), record, id, args, Some(dead))
    }

    #[inline(never)]
    fn record(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, CreateError> {
        let record = self.meta.record(&self.platform, bytes, align);
        record.ok_or(CreateError::NoMemory)
    }

    /// Makes a cache in `memory`, whose record is first written to `record`: there, or elsewhere.
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
        // SAFETY: the record is ours.
        let place = unsafe { record.cast().as_mut() };
        KmemCache::write_to(place, args, id, tuning, min_objects, random, nodes_of)?;
        // SAFETY: just written.
        let cache = unsafe { place.assume_init_mut() };
        if tuning.slab_freelist_random == 1 && cache.oo.objects >= 2 {
            self.set_random_order(cache, dead)?;
        }
        self.publish(memory, record, id, nodes_of);
        // SAFETY: records live for ever.
        Ok(unsafe { memory.as_ref() })
    }

    /// Chooses the order in which the fresh slots of a cache's slabs leave.
    #[inline(never)]
    fn set_random_order(
        &self,
        cache: &mut KmemCache<P>,
        dead: Option<&KmemCache<P>>,
    ) -> Result<(), CreateError> {
        let objects = cache.oo.objects as usize;
        let offsets = match dead.and_then(|dead| dead.random_room(objects)) {
            Some(room) => room,
            None => self.record(2 * objects * 4, 4)?.cast::<u32>(),
        };
        // SAFETY: room for so many numbers.
        let slice = unsafe { core::slice::from_raw_parts_mut(offsets.as_ptr(), 2 * objects) };
        shuffle(&mut slice[..objects], cache.size, || self.platform.random());
        slice.copy_within(..objects, objects);
        cache.set_random(offsets);
        Ok(())
    }

    /// Lets others find a cache, whose record may have to be copied to its `memory` first.
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
        // Nobody walks the caches meanwhile.
        self.while_draining(|| {
            for nid in 0..nr_nodes {
                // SAFETY: within the nodes' record, which is ours.
                unsafe { nodes.add(nid).write(CacheNode::new()) };
            }
            if memory != record {
                // SAFETY: both are ours, and not the same.
                unsafe { memory.copy_from_nonoverlapping(record, 1) };
            }
            // Release: whoever finds the cache sees its record and its slots.
            self.caches[id.index()].store(memory.as_ptr(), Release);
            self.end.fetch_max(id.index() + 1, Release);
        });
    }

    /// Takes a cache out of the list, so that its identity and record can serve another.
    pub(crate) fn forget(&self, cache: &KmemCache<P>) {
        let mut list = self.slab_mutex.lock();
        self.while_draining(|| {
            // Release: after all that was done with the cache.
            self.caches[cache.id.index()].store(null_mut(), Release);
        });
        cache.set_next_dead(null_mut());
        let record = core::ptr::from_ref(cache).cast_mut();
        // SAFETY: a record in the list is ours.
        match unsafe { list.youngest.as_ref() } {
            Some(youngest) if list.nr_dead > 0 => youngest.set_next_dead(record),
            _ => list.dead = record,
        }
        list.youngest = record;
        list.nr_dead += 1;
    }

    /// Counts one creator of a cache less; returns whether it was the last.
    pub(crate) fn leave(&self, cache: &KmemCache<P>) -> bool {
        let _list = self.slab_mutex.lock();
        // Relaxed: under the lock.
        cache.users.fetch_sub(1, Relaxed) == 1
    }

    /// Counts a creator again: the cache could not be destroyed.
    pub(crate) fn keep(&self, cache: &KmemCache<P>) {
        let _list = self.slab_mutex.lock();
        // Relaxed: under the lock.
        cache.users.fetch_add(1, Relaxed);
    }

    /// Makes the rcu slots of a cache usable.
    pub(crate) fn prepare_rcu_slots(&self, id: CacheId) {
        let _next = self.slab_mutex.lock();
        self.table.prepare_rcu(id);
    }

    /// Gives this CPU its region; returns false when memory cannot be had.
    #[cold]
    pub(crate) fn make_region(&self) -> bool {
        let cpu = self.platform.cpu();
        let _next = self.slab_mutex.lock();
        // A drain that found the region before its CPU has it would stop a CPU that goes on then.
        self.while_draining(|| self.table.make(&self.platform, cpu))
    }

    /// Runs `work` while nobody else drains CPUs.
    pub(crate) fn while_draining<T>(&self, work: impl FnOnce() -> T) -> T {
        let _drain = self.drain.lock();
        work()
    }

    /// Runs `work` while nobody else drains CPUs; not at all while somebody does.
    pub(crate) fn try_while_draining<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _drain = self.drain.try_lock()?;
        Some(work())
    }

    /// Whether somebody drains CPUs or walks the caches, at a glance.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_held()
    }

    /// Bytes of the allocator's own records in use.
    pub fn metadata_bytes(&self) -> usize {
        self.meta.bytes()
            + self.table.bytes()
            + self.zone.arena.side_bytes()
            + self.huge.table_bytes()
    }

    /// Counts an allocation (0) or a free (1) that went by no cache.
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
