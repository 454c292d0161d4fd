//! The cache of freed mappings.
//!
//! | freed mapping | how it is left |
//! |---|---|
//! | cached | reused, evicted, or purged after `decay_ms` |
//! | unmapped (ghost) | forgotten |
//!
//! A fresh mapping soon after an unmapped one says that unmapping was wrong. As many bytes may stay
//! cached from then on, the *budget*. A purge of a cached mapping that nobody reused lowers the
//! budget by its bytes. A program that does not ask again thus keeps nothing. At most as many bytes
//! stay cached as are live, or [`MAPPING_CACHE_BYTES`](crate::policy::MAPPING_CACHE_BYTES).
//!
//! Cached mappings serve all sizes: a longer one is split, a shorter one is stretched if it has at
//! least a quarter of the requested length. Callers: `mapped`, under its lock.

use crate::platform::PAGE_SIZE;
use crate::policy::{MAPPING_DEMAND_MS, MAPPING_GHOSTS, MAPPING_PART_BYTES, MAPPING_STRETCH_TRIES};
use crate::sync::time::age;

/// A mapping of one object.
#[derive(Clone, Copy)]
pub(super) struct Mapping {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

pub(super) const NO_MAPPING: Mapping = Mapping {
    address: 0,
    bytes: 0,
};

/// The mapping of a freed object.
#[derive(Clone, Copy)]
struct Freed {
    mapping: Mapping,
    since: u64,
    cached: bool,
}

impl Freed {
    const NONE: Freed = Freed {
        mapping: NO_MAPPING,
        since: 0,
        cached: false,
    };

    /// Bytes cached by this entry; 0 for a ghost.
    fn bytes(&self) -> usize {
        if self.cached { self.mapping.bytes } else { 0 }
    }

    /// Takes the cached mapping. If more than an eighth of `bytes` would be wasted, only the first
    /// `bytes` bytes are taken and the rest stays cached.
    fn take(&mut self, bytes: usize) -> Mapping {
        let (address, all) = (self.mapping.address, self.mapping.bytes);
        if all - bytes <= bytes / 8 {
            return core::mem::replace(self, Freed::NONE).mapping;
        }
        self.mapping = Mapping {
            address: address + bytes,
            bytes: all - bytes,
        };
        Mapping { address, bytes }
    }
}

/// The last freed mappings, cached or not.
pub(super) struct MappingCache {
    freed: [Freed; MAPPING_GHOSTS],
    /// Bytes that may stay cached.
    budget: usize,
    /// Bytes that were unmapped lately.
    unmapped: usize,
    /// Time of the last unmapping in milliseconds.
    unmapped_since: u64,
}

impl MappingCache {
    pub(super) const EMPTY: Self = Self {
        freed: [Freed::NONE; MAPPING_GHOSTS],
        budget: 0,
        unmapped: 0,
        unmapped_since: 0,
    };

    /// Bytes of cached mappings.
    pub(super) fn bytes(&self) -> usize {
        self.freed.iter().map(Freed::bytes).sum()
    }

    /// When the oldest cached mapping was freed.
    pub(super) fn oldest(&self) -> u64 {
        let cached = self.freed.iter().filter(|freed| freed.cached);
        cached.map(|freed| freed.since).min().unwrap_or(u64::MAX)
    }

    /// Whether a recently freed mapping began at `address`, or a page of a cached one begins there.
    pub(super) fn contains(&self, address: usize) -> bool {
        let is_in = |freed: &Freed| {
            let offset = address.wrapping_sub(freed.mapping.address);
            offset == 0 || offset < freed.bytes() && offset.is_multiple_of(PAGE_SIZE)
        };
        address != 0 && self.freed.iter().any(is_in)
    }

    /// Forgets a ghost whose address is in use again.
    pub(super) fn forget(&mut self, address: usize) {
        if let Some(ghost) = (self.freed.iter_mut()).find(|f| f.mapping.address == address) {
            *ghost = Freed::NONE;
        }
    }

    /// Takes a cached mapping of this length and alignment.
    #[inline(never)]
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<Mapping> {
        let fits = |f: &&mut Freed| f.bytes() >= bytes && f.mapping.address.is_multiple_of(align);
        let fitting = self.freed.iter_mut().filter(fits);
        let best = fitting.min_by_key(|freed| freed.mapping.bytes)?;
        Some(best.take(bytes))
    }

    /// Records a fresh mapping of `bytes` bytes at the time `now` in milliseconds. The budget grows
    /// to `most` bytes at most.
    pub(super) fn on_miss(&mut self, bytes: usize, now: u64, most: usize) {
        if age(now, self.unmapped_since) < MAPPING_DEMAND_MS {
            let wrong = bytes.min(self.unmapped);
            self.unmapped -= wrong;
            self.raise(wrong, most);
        }
    }

    /// Raises the budget by `bytes` bytes, to `most` bytes at most. It is not lowered here.
    fn raise(&mut self, bytes: usize, most: usize) {
        self.budget = (self.budget + bytes).min(most.max(self.budget));
    }

    /// Records that `bytes` bytes are unmapped at the time `now` in milliseconds.
    fn on_unmapping(&mut self, bytes: usize, now: u64) {
        if age(now, self.unmapped_since) >= MAPPING_DEMAND_MS {
            self.unmapped = 0;
        }
        self.unmapped += bytes;
        self.unmapped_since = now;
    }

    /// Takes a cached mapping of at least `least` bytes that `stretch` can stretch; returns what
    /// became of it. Tries the longest first. More may stay cached then, `most` bytes at most: it
    /// was too short.
    #[inline(never)]
    pub(super) fn take_stretched(
        &mut self,
        least: usize,
        most: usize,
        stretch: impl Fn(Mapping) -> Option<Mapping>,
    ) -> Option<Mapping> {
        let mut shorter_than = usize::MAX;
        for _ in 0..MAPPING_STRETCH_TRIES {
            let shorter = (self.freed.iter_mut()).filter(|freed| freed.bytes() < shorter_than);
            let longest = shorter.max_by_key(|freed| freed.bytes())?;
            shorter_than = longest.bytes();
            if shorter_than < least {
                return None;
            }
            if let Some(long) = stretch(longest.mapping) {
                *longest = Freed::NONE;
                let more = long.bytes - shorter_than;
                self.raise(more, most);
                return Some(long);
            }
        }
        None
    }

    /// Takes exactly `bytes` bytes at an address out of a cached mapping that begins there; returns
    /// whether there was one.
    pub(super) fn take_at(&mut self, address: usize, bytes: usize) -> bool {
        let fits = |f: &&mut Freed| f.mapping.address == address && f.bytes() >= bytes;
        let Some(freed) = self.freed.iter_mut().find(fits) else {
            return false;
        };
        freed.mapping.address += bytes;
        freed.mapping.bytes -= bytes;
        if freed.mapping.bytes == 0 {
            *freed = Freed::NONE;
        }
        true
    }

    /// Adds a freed mapping at the time `now` in milliseconds; with `joins`, as one with cached
    /// neighbours. Returns a mapping to unmap: this one if it does not fit into the budget, or the
    /// oldest if there are too many.
    #[inline(never)]
    pub(super) fn add(
        &mut self,
        mapping: Mapping,
        now: u64,
        may_cache: bool,
        joins: bool,
    ) -> Option<Mapping> {
        let cached = may_cache && mapping.bytes <= self.budget;
        let mapping = if cached && joins {
            self.join(mapping)
        } else {
            mapping
        };
        let displaced = self.put(Freed {
            mapping,
            since: now,
            cached,
        });
        let left = if cached { displaced } else { Some(mapping) };
        if let Some(left) = left {
            self.on_unmapping(left.bytes, now);
        }
        left
    }

    /// Takes cached neighbours of a mapping out, and returns one range of all.
    fn join(&mut self, mut mapping: Mapping) -> Mapping {
        for freed in self.freed.iter_mut().filter(|freed| freed.cached) {
            let other = freed.mapping;
            let is_below = other.address + other.bytes == mapping.address;
            if is_below || mapping.address + mapping.bytes == other.address {
                mapping.address = mapping.address.min(other.address);
                mapping.bytes += other.bytes;
                *freed = Freed::NONE;
            }
        }
        mapping
    }

    /// Remembers a freed mapping in the place of the oldest ghost. Without ghosts, a cached mapping
    /// takes the place of the oldest cached one, which is returned.
    fn put(&mut self, freed: Freed) -> Option<Mapping> {
        let place = (self.freed.iter_mut()).min_by_key(|old| (old.cached, old.since))?;
        if place.cached && !freed.cached {
            return None;
        }
        let old = core::mem::replace(place, freed);
        old.cached.then_some(old.mapping)
    }

    /// As [`evict_oldest`](Self::evict_oldest), as far as more than the budget, or than `most`
    /// bytes, is cached.
    pub(super) fn evict_surplus(&mut self, now: u64, most: usize) -> Option<Mapping> {
        let surplus = self.bytes().saturating_sub(self.budget.min(most));
        (surplus > 0)
            .then(|| self.evict_oldest(surplus, now, |_| true))
            .flatten()
    }

    /// Evicts about `most` bytes of the mapping that was cached first, or all of it if it is
    /// shorter, if `may` accepts its age in milliseconds at the time `now`.
    pub(super) fn evict_oldest(
        &mut self,
        most: usize,
        now: u64,
        may: impl Fn(u64) -> bool,
    ) -> Option<Mapping> {
        let evicted = self.take_oldest(most, now, may)?;
        self.on_unmapping(evicted.bytes, now);
        Some(evicted)
    }

    /// Takes the mapping that was cached first, if `may` accepts its age, and lowers the budget:
    /// nobody reused it.
    pub(super) fn purge_oldest(&mut self, now: u64, may: impl Fn(u64) -> bool) -> Option<Mapping> {
        let purged = self.take_oldest(usize::MAX, now, may)?;
        self.budget = self.budget.saturating_sub(purged.bytes);
        Some(purged)
    }

    /// About `most` bytes of the mapping that was cached first, from its end, or all of it. `None`
    /// for no bytes: a mapping without bytes would begin where other memory may lie.
    #[inline(never)]
    fn take_oldest(&mut self, most: usize, now: u64, may: impl Fn(u64) -> bool) -> Option<Mapping> {
        if most == 0 {
            return None;
        }
        let cached = self.freed.iter_mut().filter(|freed| freed.cached);
        let oldest = cached.min_by_key(|freed| freed.since)?;
        if !may(age(now, oldest.since)) {
            return None;
        }
        let Mapping { address, bytes } = oldest.mapping;
        let most = most.checked_next_multiple_of(MAPPING_PART_BYTES);
        match most.and_then(|most| bytes.checked_sub(most)) {
            None | Some(0) => {
                oldest.cached = false;
                Some(oldest.mapping)
            }
            Some(rest) => {
                oldest.mapping.bytes = rest;
                Some(Mapping {
                    address: address + rest,
                    bytes: bytes - rest,
                })
            }
        }
    }
}
