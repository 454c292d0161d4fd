//! Huge objects: each has a mapping of its own, so it can grow without a copy.
//!
//! A hash table leads from a live object's address to its length; it lies in a mapping of its own.
//! `mapping_cache` keeps mappings of freed objects for a while. One lock protects the table and the
//! cache. Any thread may call; `find` also where waiting is forbidden.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::layout::Row;
use crate::memory::mapping_cache::{Mapping, MappingCache, NO_MAPPING};
use crate::platform::Platform;
use crate::policy::{MAPPING_CACHE_BYTES, MAPPING_STRETCH, MAPPINGS_MAX};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::time::age;
use crate::sync::{Guard, Lock, RawLock};

struct Inner {
    table: *mut Mapping,
    capacity: usize,
    len: usize,
    cache: MappingCache,
}

// SAFETY: the table is accessed under the lock only.
unsafe impl Send for Inner {}

/// All huge objects.
pub struct MappedObjects<P> {
    inner: Lock<P, Inner>,
    live: AtomicUsize,
    /// Live objects; written under the lock.
    count: AtomicUsize,
    kept: AtomicUsize,
    /// When the oldest cached mapping was freed, or an earlier time; written under the lock.
    oldest: AtomicU64,
    table: AtomicUsize,
}

impl<P: Platform> MappedObjects<P> {
    /// What a reader in another process needs: the bytes of all objects, and the table.
    pub(crate) const ROWS: &'static [Row] = {
        use core::mem::offset_of;
        let inner = offset_of!(Self, inner) + Lock::<P, Inner>::VALUE;
        let word = size_of::<usize>();
        &[
            Row::new("MappedObjects.live", offset_of!(Self, live), word),
            Row::new("MappedObjects.kept", offset_of!(Self, kept), word),
            Row::new(
                "MappedObjects.entries",
                inner + offset_of!(Inner, table),
                word,
            ),
            Row::new(
                "MappedObjects.capacity",
                inner + offset_of!(Inner, capacity),
                word,
            ),
            Row::constant("size_of.Mapping", size_of::<Mapping>()),
        ]
    };
}

/// What the table knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A live object of this many bytes begins here.
    Start(usize),
    /// Inside a live object.
    Inside,
    /// A recently freed object began here.
    Freed,
    /// None of our mappings.
    Nothing,
}

fn hash(address: usize) -> usize {
    (address >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// Inserts an entry into a table with free slots, whose length is a power of two.
fn put(entries: &mut [Mapping], entry: Mapping) {
    let mask = entries.len() - 1;
    let mut at = hash(entry.address) & mask;
    while entries[at].address != 0 {
        at = (at + 1) & mask;
    }
    entries[at] = entry;
}

impl Inner {
    fn entries(&mut self) -> &mut [Mapping] {
        if self.capacity == 0 {
            return &mut [];
        }
        // SAFETY: the table has `capacity` entries and is ours.
        unsafe { core::slice::from_raw_parts_mut(self.table, self.capacity) }
    }

    /// The entries of a table that no thread changes.
    fn former_entries(&self) -> &[Mapping] {
        if self.capacity == 0 {
            return &[];
        }
        // SAFETY: the table has `capacity` entries.
        unsafe { core::slice::from_raw_parts(self.table, self.capacity) }
    }

    fn position(&mut self, address: usize) -> Option<usize> {
        let mask = self.capacity.wrapping_sub(1);
        let entries = self.entries();
        let mut at = hash(address) & mask;
        while let Some(entry) = entries.get(at) {
            if entry.address == address {
                return Some(at);
            }
            if entry.address == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
        None
    }

    fn insert_unchecked(&mut self, entry: Mapping) {
        self.cache.forget(entry.address);
        put(self.entries(), entry);
        self.len += 1;
    }

    /// Makes room for one more entry; false without memory.
    fn reserve<P: Platform>(&mut self, platform: &P) -> bool {
        if self.len * 2 < self.capacity {
            return true;
        }
        let capacity = (self.capacity * 2).max(platform.system_page() / size_of::<Mapping>());
        let Some(table) = platform.map(capacity * size_of::<Mapping>()) else {
            return false;
        };
        let table = table.cast::<Mapping>();
        let (old, old_capacity) = (self.table, self.capacity);
        for entry in self.former_entries() {
            if entry.address != 0 {
                // SAFETY: the new table has `capacity` entries, and is ours.
                let entries = unsafe { core::slice::from_raw_parts_mut(table.as_ptr(), capacity) };
                put(entries, *entry);
            }
        }
        // Store the pointer before the capacity: a child forked between the two stores sees only
        // the first part of the new table.
        self.table = table.as_ptr();
        // Release: a compiler fence is enough, this thread's child sees its stores in order.
        core::sync::atomic::compiler_fence(Release);
        self.capacity = capacity;
        if let Some(old) = NonNull::new(old) {
            // SAFETY: the old table is a mapping of its own and no longer used.
            unsafe { platform.unmap(old.cast(), old_capacity * size_of::<Mapping>()) };
        }
        true
    }

    fn remove(&mut self, address: usize) -> Option<usize> {
        let mut hole = self.position(address)?;
        let mask = self.capacity - 1;
        let entries = self.entries();
        let bytes = entries[hole].bytes;
        let mut at = (hole + 1) & mask;
        // Close the hole: move back each entry that a search would no longer reach.
        while entries[at].address != 0 {
            let home = hash(entries[at].address) & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                entries[hole] = entries[at];
                hole = at;
            }
            at = (at + 1) & mask;
        }
        entries[hole] = NO_MAPPING;
        self.len -= 1;
        Some(bytes)
    }
}

impl<P: Platform> MappedObjects<P> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self {
            inner: Lock::new(Inner {
                table: core::ptr::null_mut(),
                capacity: 0,
                len: 0,
                cache: MappingCache::EMPTY,
            }),
            live: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            oldest: AtomicU64::new(u64::MAX),
            table: AtomicUsize::new(0),
        }
    }

    /// Bytes of live huge objects.
    pub fn live_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.live.load(Relaxed)
    }

    /// Whether there are [`MAPPINGS_MAX`] live mappings.
    pub fn is_full(&self) -> bool {
        // Relaxed: a peek, may be stale.
        self.count.load(Relaxed) >= MAPPINGS_MAX
    }

    /// Bytes of cached mappings.
    pub fn kept_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.kept.load(Relaxed)
    }

    /// Bytes of mappings that may be cached, at most.
    fn most_cached(&self) -> usize {
        self.live_bytes().max(MAPPING_CACHE_BYTES)
    }

    /// Bytes of the table.
    pub fn table_bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.table.load(Relaxed)
    }

    /// A mapping of at least `bytes` bytes, aligned to `align` bytes (a power of two), and whether
    /// all of it is zero. With `zeroed`, no cached mapping is stretched: a fresh mapping reads zero
    /// when touched, a stretched one would have to be cleared.
    pub fn alloc(
        &self,
        platform: &P,
        bytes: usize,
        align: usize,
        zeroed: bool,
    ) -> Option<(NonNull<u8>, bool)> {
        let page = platform.system_page();
        let bytes = bytes.max(1).checked_add(page - 1)? & !(page - 1);
        let stretch = if zeroed || align > page {
            1
        } else {
            MAPPING_STRETCH
        };
        if let Some(entry) = self.reuse(platform, bytes, align, stretch) {
            return Some((self.enter(platform, entry)?, false));
        }
        let extra = if align > page { align } else { 0 };
        let start = platform.map(bytes.checked_add(extra)?)?;
        let address = (start.as_ptr() as usize).next_multiple_of(align.max(1));
        if extra != 0 {
            let before = address - start.as_ptr() as usize;
            // SAFETY: the ends of the new mapping, which nobody uses.
            unsafe {
                if before > 0 {
                    platform.unmap(start, before);
                }
                if extra > before {
                    platform.unmap(start.add(before + bytes), extra - before);
                }
            }
        }
        Some((self.enter(platform, Mapping { address, bytes })?, true))
    }

    /// Inserts an object into the table; unmaps it if the table cannot grow.
    fn enter(&self, platform: &P, entry: Mapping) -> Option<NonNull<u8>> {
        let mut inner = self.inner.lock();
        let start = NonNull::new(entry.address as *mut u8)?;
        if !inner.reserve(platform) {
            drop(inner);
            self.unmap(platform, entry);
            return None;
        }
        inner.insert_unchecked(entry);
        // Relaxed: statistics; `count` is read as a hint only.
        let bytes = inner.capacity * size_of::<Mapping>();
        self.table.store(bytes, Relaxed);
        self.live.fetch_add(entry.bytes, Relaxed);
        self.count.store(inner.len, Relaxed);
        Some(start)
    }

    /// Takes a cached mapping with the requested length; stretches one by at most `stretch` times.
    fn reuse(&self, platform: &P, bytes: usize, align: usize, stretch: usize) -> Option<Mapping> {
        let mut inner = self.inner.lock();
        if let Some(mapping) = inner.cache.take(bytes, align) {
            self.update_cached(&inner.cache);
            return Some(mapping);
        }
        // The lock is held so that a mapping that cannot be stretched stays cached.
        let stretched = (stretch > 1).then(|| {
            (inner.cache).take_stretched(bytes / stretch, self.most_cached(), |short| {
                self.stretch(platform, short, bytes)
            })
        });
        let long = stretched.flatten();
        if long.is_none() {
            (inner.cache).on_miss(bytes, platform.now_ms(), self.most_cached());
        }
        self.update_cached(&inner.cache);
        long
    }

    /// Stretches a mapping to `bytes` bytes: downwards or upwards if nothing is mapped there,
    /// otherwise it moves.
    #[inline(never)]
    fn stretch(&self, platform: &P, short: Mapping, bytes: usize) -> Option<Mapping> {
        let more = bytes - short.bytes;
        for (start, address) in [
            (short.address.checked_sub(more)?, short.address - more),
            (short.address + short.bytes, short.address),
        ] {
            if platform.map_at(start, more) {
                return Some(Mapping { address, bytes });
            }
        }
        let start = NonNull::new(short.address as *mut u8)?;
        if !platform.may_remap_kept() {
            return None;
        }
        // SAFETY: the mapping is in no table any longer.
        let moved = unsafe { platform.remap(start, short.bytes, bytes)? };
        let address = moved.as_ptr() as usize;
        Some(Mapping { address, bytes })
    }

    /// Looks an address up; `None` if `spin` is false and the lock is taken.
    pub fn find(&self, address: usize, spin: bool) -> Option<Lookup> {
        let mut inner = self.inner.lock_if(spin)?;
        if let Some(at) = inner.position(address) {
            return Some(Lookup::Start(inner.entries()[at].bytes));
        }
        if inner.cache.contains(address) {
            return Some(Lookup::Freed);
        }
        let inside = |e: &Mapping| address.wrapping_sub(e.address) < e.bytes;
        Some(if inner.entries().iter().any(inside) {
            Lookup::Inside
        } else {
            Lookup::Nothing
        })
    }

    /// Frees the object that begins at `address`; false if there is none. Its mapping may stay
    /// cached, if `may_cache` and as far as requests ask for such mappings again.
    pub fn free(&self, platform: &P, address: usize, may_cache: bool) -> bool {
        let now = platform.now_ms();
        let mut inner = self.inner.lock();
        let Some(bytes) = inner.remove(address) else {
            return false;
        };
        // Relaxed: a statistic.
        self.live.fetch_sub(bytes, Relaxed);
        // Relaxed: read as a hint only.
        self.count.store(inner.len, Relaxed);
        let freed = (inner.cache).add(
            Mapping { address, bytes },
            now,
            may_cache,
            P::JOINS_MAPPINGS,
        );
        self.unmap_freed(platform, inner, freed, now);
        true
    }

    /// Unmaps what an addition to the cache left over, and what is too much in it.
    #[inline(never)]
    fn unmap_freed(
        &self,
        platform: &P,
        mut inner: Guard<'_, P, Inner>,
        freed: Option<Mapping>,
        now: u64,
    ) {
        let most = self.most_cached();
        let mut freed = freed.or_else(|| inner.cache.evict_surplus(now, most));
        self.update_cached(&inner.cache);
        drop(inner);
        while let Some(mapping) = freed {
            self.unmap(platform, mapping);
            freed = self.evict_with(|cache| cache.evict_surplus(now, most));
        }
    }

    /// Takes a mapping out of the cache that is to be unmapped.
    #[inline(never)]
    fn evict_with(&self, evict: impl Fn(&mut MappingCache) -> Option<Mapping>) -> Option<Mapping> {
        let mut inner = self.inner.lock();
        let evicted = evict(&mut inner.cache);
        self.update_cached(&inner.cache);
        evicted
    }

    /// Unmaps about `most` bytes of the cached mapping that was freed first, if that was at least
    /// `age_ms` milliseconds ago; returns whether it was. Demand for it may come back.
    #[inline(never)]
    pub fn evict(&self, platform: &P, most: usize, age_ms: u64) -> bool {
        // Relaxed: a hint, checked again under the lock.
        if self.kept.load(Relaxed) == 0 {
            return false;
        }
        let now = platform.now_ms();
        let evicted = self.evict_with(|cache| cache.evict_oldest(most, now, |age| age >= age_ms));
        evicted
            .map(|mapping| self.unmap(platform, mapping))
            .is_some()
    }

    /// Updates the copies for lock-free readers, under the lock.
    fn update_cached(&self, cache: &MappingCache) {
        // Relaxed: a statistic, and a hint to `purge`.
        self.kept.store(cache.bytes(), Relaxed);
        self.oldest.store(cache.oldest(), Relaxed);
    }

    fn unmap(&self, platform: &P, entry: Mapping) {
        if let Some(start) = NonNull::new(entry.address as *mut u8) {
            // SAFETY: the mapping is in no table any longer.
            unsafe { platform.unmap(start, entry.bytes) };
        }
    }

    /// Grows or shrinks the object at `address` without a copy; `None` if that is impossible, with
    /// nothing changed. With `zeroed`, the grown part reads zero. The end of a mapping that shrinks
    /// is freed as [`free`](Self::free) does.
    pub fn resize(
        &self,
        platform: &P,
        address: usize,
        bytes: usize,
        zeroed: bool,
        may_cache: bool,
    ) -> Option<NonNull<u8>> {
        let last = platform.system_page() - 1;
        let bytes = bytes.checked_add(last)? & !last;
        let now = platform.now_ms();
        let mut inner = self.inner.lock();
        let at = inner.position(address)?;
        let old = inner.entries()[at].bytes;
        let start = NonNull::new(address as *mut u8)?;
        let mut freed = None;
        let moved = if bytes <= old {
            let end = Mapping {
                address: address + bytes,
                bytes: old - bytes,
            };
            if end.bytes > 0 {
                freed = (inner.cache).add(end, now, may_cache, P::JOINS_MAPPINGS);
            }
            start
        } else if P::JOINS_MAPPINGS && !zeroed && inner.cache.take_at(address + old, bytes - old) {
            start
        } else {
            // SAFETY: a mapping of ours, or a part of one. The lock is held so that nobody inserts
            // the new address before the old one is out of the table.
            let moved = unsafe { platform.remap(start, old, bytes) }?;
            (inner.cache).on_miss(bytes - old, now, self.most_cached());
            moved
        };
        inner.remove(address);
        inner.insert_unchecked(Mapping {
            address: moved.as_ptr() as usize,
            bytes,
        });
        // Relaxed: statistics.
        self.live.fetch_add(bytes, Relaxed);
        self.live.fetch_sub(old, Relaxed);
        self.unmap_freed(platform, inner, freed, now);
        Some(moved)
    }

    /// Unmaps the cached mappings whose age in milliseconds `old_enough` accepts; `now` is the time
    /// in milliseconds. So many bytes fewer may stay cached. Returns whether there was one.
    pub fn purge(&self, platform: &P, now: u64, old_enough: impl Fn(u64) -> bool) -> bool {
        // Relaxed: hints, checked again under the lock.
        if self.kept.load(Relaxed) == 0 || !old_enough(age(now, self.oldest.load(Relaxed))) {
            return false;
        }
        let mut any = false;
        while let Some(mapping) = self.evict_with(|cache| cache.purge_oldest(now, &old_enough)) {
            self.unmap(platform, mapping);
            any = true;
        }
        any
    }

    /// The lock without the table, for a fork.
    pub fn raw_lock(&self) -> &RawLock<P> {
        self.inner.raw()
    }

    /// Bytes of the object that began at `address` when the child of a fork gave up the table. The
    /// thread that held the lock at the fork may have been in the middle of a change, so an entry
    /// may lie where a search by hash does not find it: all entries are read.
    ///
    /// # Safety
    ///
    /// No thread changes the table any longer.
    pub(crate) unsafe fn former_bytes(&self, address: usize) -> Option<usize> {
        // SAFETY: by the caller's promise; any number of readers is fine.
        let entries = unsafe { self.inner.unguarded().former_entries() };
        let entry = entries.iter().find(|entry| entry.address == address)?;
        Some(entry.bytes)
    }
}
