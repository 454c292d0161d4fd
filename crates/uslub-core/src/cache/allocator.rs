//! The allocator: a value that owns pages, caches and per-CPU slots.
//!
//! | state | meaning |
//! |---|---|
//! | new | owns nothing; fast paths return null or false |
//! | ready | [`init`](Base::init) has succeeded; all threads may call |
//!
//! `docs/architecture.md` states the lock order; `slab_mutex` (the list of caches) is outermost.

use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::args::{self, CacheArgs, CreateError, ObjectLayout};
use crate::cache::KmemCache;
use crate::cache::cache_list::CacheList;
use crate::cache::forks::Forks;
use crate::cache::kmem_cache::NodeRecords;
use crate::cache::quarantine::Quarantine;
use crate::cache::shrinker::Reclaim;
use crate::layout::{Row, rows};
use crate::percpu::{CacheId, MAX_CACHES, Table};
use crate::platform::Platform;
use crate::policy::QUARANTINE_CACHES;
use crate::size_class::NR_CLASSES;
use crate::slab::base::Base;
use crate::slab::order;
use crate::sync::Lock;
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::tunables::Tuning;

/// An allocator over a platform.
///
/// It is set up in place by [`init`](Base::init) and then shared by all threads.
#[repr(C)]
pub struct Allocator<P: Platform> {
    /// What all caches share.
    pub base: Base<P>,
    /// Caches from this index on do not exist.
    pub(crate) end: AtomicUsize,
    /// Time of the next check for cold caches, in milliseconds.
    pub(crate) next_cold: AtomicU64,
    /// Most bytes of large and huge objects at once, up to the last free of one.
    pub(crate) peak_large: AtomicUsize,
    /// The same, with what other CPUs kept.
    pub(crate) most_large: AtomicUsize,
    /// Searches for marked objects that found nothing.
    pub(crate) fruitless: AtomicUsize,
    /// Objects that the hardened mode keeps back.
    pub(crate) quarantine: Quarantine,
    /// The shrinkers, which free memory when it is short.
    pub(crate) reclaim: Reclaim<P>,
    /// The kernel's slab_mutex: creation and destruction of caches.
    pub(crate) slab_mutex: Lock<P, CacheList<P>>,
    /// Forks under way.
    pub(crate) forks: Forks<P>,
}

impl<P: Platform> Deref for Allocator<P> {
    type Target = Base<P>;

    #[inline]
    fn deref(&self) -> &Base<P> {
        &self.base
    }
}

impl<P: Platform> Allocator<P> {
    pub(crate) const ROWS: &'static [Row] =
        rows!("Allocator", Self, [base, end, peak_large, quarantine]);

    /// An allocator that is not set up: it owns nothing.
    pub const fn new(platform: P) -> Self {
        Self::with_table(platform, Table::at(&[]))
    }

    /// An allocator that is not set up, with a table that is not set up either.
    pub const fn with_table(platform: P, table: Table) -> Self {
        Self {
            base: Base::new(platform, table),
            end: AtomicUsize::new(1),
            next_cold: AtomicU64::new(0),
            peak_large: AtomicUsize::new(0),
            most_large: AtomicUsize::new(0),
            fruitless: AtomicUsize::new(0),
            quarantine: Quarantine::new(),
            reclaim: Reclaim::new(),
            slab_mutex: Lock::new(CacheList::new()),
            forks: Forks::new(),
        }
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
        // Acquire: pairs with `publish`. SAFETY: it stored the slabs of a whole record, which is
        // never freed.
        unsafe { KmemCache::of_slabs(self.base.caches[id.index()].load(Acquire)) }
    }

    /// All caches. No thread may destroy one during the iteration.
    pub fn caches(&self) -> impl Iterator<Item = &KmemCache<P>> {
        let known = |index| {
            let id = CacheId::from_index(index);
            // A debugged size class stands at two places, of which one is its own.
            self.cache(id).filter(|cache| cache.id.index() == index)
        };
        // Acquire: pairs with the creation of the last cache.
        (1..self.end.load(Acquire)).filter_map(known)
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
        self.reserve_twins(&mut list);
        args::check(args)?;
        let mut debugged = *args;
        debugged.debug = self.debug_flags_for(args);
        let args = &debugged;
        let layout = ObjectLayout::of(args)?;
        if args.is_mergeable()
            && self.tunables().slab_nomerge == 0
            && let Some(cache) = self
                .caches()
                .filter(|c| c.can_serve(&layout, args.debug))
                .last()
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
        self.create_next(&mut list, args)
    }

    /// Creates a cache with the next identity.
    pub(crate) fn create_next(
        &self,
        list: &mut CacheList<P>,
        args: &CacheArgs<'_>,
    ) -> Result<&KmemCache<P>, CreateError> {
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
        let mut list = self.slab_mutex.lock();
        if let Some(cache) = self.cache(id) {
            return Ok(cache);
        }
        if self.may_debug_classes() {
            return self.create_class_or_twin(&mut list, id, args);
        }
        self.create_locked(id, args, None)
    }

    /// As [`create_at`](Self::create_at), for a size class that may be debugged.
    ///
    /// A debugged class has a twin: its objects belong to an identity of their own, so that no fast
    /// path and no shortcut for size classes takes them for plain ones. The class's words stay
    /// empty.
    #[cold]
    #[inline(never)]
    fn create_class_or_twin(
        &self,
        list: &mut CacheList<P>,
        id: CacheId,
        args: &CacheArgs<'_>,
    ) -> Result<&KmemCache<P>, CreateError> {
        self.reserve_twins(list);
        let mut debugged = *args;
        debugged.debug = self.debug_flags_for(args);
        if !debugged.debug.is_slow() {
            return self.create_locked(id, args, None);
        }
        let twin = self.create_locked(twin_of(id), &debugged, None)?;
        self.while_draining(|| {
            let record = core::ptr::from_ref(twin).cast_mut();
            // Release: as in `publish`.
            self.base.caches[id.index()].store(record.cast(), Release);
        });
        Ok(twin)
    }

    /// Reserves the identities of size classes that are debugged from the start of the process, if
    /// there may be any, so that no other cache takes them.
    pub(crate) fn reserve_twins(&self, list: &mut CacheList<P>) {
        if self.may_debug_classes() {
            list.next = list
                .next
                .max(twin_of(CacheId::of_class(NR_CLASSES as u8)).index() + 1);
        }
    }

    /// Creates a cache; in the memory of a destroyed one, if given.
    pub(crate) fn create_locked(
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
        let on_nodes = match dead {
            Some(dead) => dead.node_records(),
            None => {
                let (nodes, barns) = (self.nr_nodes(), self.nr_nodes() * self.nr_groups());
                let (bytes, align) = NodeRecords::<P>::layout(nodes, barns);
                NodeRecords::of(self.record(bytes, align)?, nodes, barns)
            }
        };
        let tuning = args.tuning.as_ref().unwrap_or(&self.tunables().tuning);
        let min_objects = self.min_objects(tuning);
        let random = self.platform.random();
        // SAFETY: we own the record.
        let place = unsafe { record.cast().as_mut() };
        KmemCache::write_to(place, args, id, tuning, min_objects, random, &on_nodes)?;
        // SAFETY: just written.
        let cache = unsafe { place.assume_init_mut() };
        if cache.tuning.slab_freelist_random == 1 && cache.geometry.objects >= 2 {
            self.set_random_order(cache, dead)?;
        }
        // A size class that was debugged from the start of the process: its twin stays in use.
        if let Some(twin) = self.cache(id) {
            cache.add_twin(twin);
            cache.serve_by(Some(twin));
        }
        self.publish(memory, record, id, &on_nodes);
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
        cache.slabs_mut().set_random(offsets);
        Ok(())
    }

    /// Publishes a cache; copies its record to `memory` first if necessary.
    #[inline(never)]
    fn publish(
        &self,
        memory: NonNull<KmemCache<P>>,
        record: NonNull<KmemCache<P>>,
        id: CacheId,
        on_nodes: &NodeRecords<P>,
    ) {
        // No thread walks the caches meanwhile.
        self.while_draining(|| {
            self.table.prepare(id);
            self.table.reset_counts(id);
            // SAFETY: the caller owns the records.
            unsafe { on_nodes.reset() };
            if memory != record {
                // SAFETY: we own both, and they differ.
                unsafe { memory.copy_from_nonoverlapping(record, 1) };
            }
            // Release: a thread that finds the cache sees its record and its slots.
            self.base.caches[id.index()].store(memory.as_ptr().cast(), Release);
            self.end.fetch_max(id.index() + 1, Release);
        });
    }

    /// Removes a cache from the list, so that its identity and record can be reused.
    pub(crate) fn release_id(&self, cache: &KmemCache<P>) {
        let mut list = self.slab_mutex.lock();
        self.while_draining(|| {
            // Release: after all operations on the cache.
            self.base.caches[cache.id.index()].store(null_mut(), Release);
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

    /// Counts an allocation (0) or a free (1) without a cache.
    pub(crate) fn count_large(&self, which: usize) {
        self.memory.pcp.count(self.platform.cpu(), which);
    }
}

/// The last identity of the caches that an allocator makes by itself: the size classes, a twin of
/// each that is debugged from the start of the process, and at most eight that a switch makes.
pub const LAST_OWN_CACHE: CacheId = CacheId::from_index(10 * NR_CLASSES);

const _: () = assert!(LAST_OWN_CACHE.index() < MAX_CACHES);

/// The identity of a size class's objects if the class is debugged from the start of the process.
const fn twin_of(class: CacheId) -> CacheId {
    CacheId::from_index(class.index() + NR_CLASSES)
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
