//! The cache of freed mappings.
//!
//! | freed mapping | how it is left |
//! |---|---|
//! | cached | reused, evicted, or purged after `decay_ms` |
//! | unmapped (ghost) | forgotten, or hit |
//!
//! A ghost hit is a request that a just-unmapped mapping could have served. It turns caching on:
//! from then on freed mappings stay cached for a while. A purge of a cached mapping that nobody
//! reused turns caching off. Cached mappings serve all sizes: a longer one is split, a shorter one
//! is stretched if it has at least a quarter of the requested length. Callers: `mapped`, under its
//! lock.

use crate::policy::{MAPPING_GHOST_MS, MAPPING_GHOSTS};
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
        let Mapping {
            address,
            bytes: all,
        } = self.mapping;
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
    /// Whether caching is on.
    caching: bool,
}

/// Freed mappings to unmap.
pub(super) type Evicted = [Mapping; MAPPING_GHOSTS + 1];

impl MappingCache {
    pub(super) const EMPTY: Self = Self {
        freed: [Freed::NONE; MAPPING_GHOSTS],
        caching: false,
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

    /// Whether a recently freed mapping began at `address`.
    pub(super) fn contains(&self, address: usize) -> bool {
        (self.freed.iter()).any(|freed| freed.mapping.address == address && address != 0)
    }

    /// Forgets a ghost whose address is in use again.
    pub(super) fn forget(&mut self, address: usize) {
        if let Some(ghost) = (self.freed.iter_mut()).find(|f| f.mapping.address == address) {
            *ghost = Freed::NONE;
        }
    }

    /// Takes a cached mapping of this length and alignment. If only a ghost had them, turns caching
    /// on.
    pub(super) fn take(
        &mut self,
        bytes: usize,
        align: usize,
        now: impl FnOnce() -> u64,
    ) -> Option<Mapping> {
        let fits = |m: &Mapping| m.bytes >= bytes && m.address.is_multiple_of(align);
        let fitting = (self.freed.iter_mut()).filter(|freed| fits(&freed.mapping));
        let best = fitting.min_by_key(|freed| (!freed.cached, freed.mapping.bytes))?;
        if best.cached {
            return Some(best.take(bytes));
        }
        self.caching |= age(now(), best.since) < MAPPING_GHOST_MS;
        None
    }

    /// Takes the longest cached mapping, if it has at least `least` bytes.
    pub(super) fn take_longest(&mut self, least: usize) -> Option<Mapping> {
        let longest = (self.freed.iter_mut()).max_by_key(|freed| freed.bytes())?;
        (longest.bytes() >= least).then(|| longest.take(longest.mapping.bytes))
    }

    /// Adds a freed mapping. Caches it if caching is on, it has at most `limit` bytes, and older
    /// ones make room: no more than `limit` bytes stay cached.
    #[inline(never)]
    pub(super) fn add(&mut self, mapping: Mapping, now: u64, limit: usize, evicted: &mut Evicted) {
        let freed = Freed {
            mapping,
            since: now,
            cached: self.caching && mapping.bytes <= limit,
        };
        if freed.cached {
            for evicted in &mut evicted[..] {
                if self.bytes() + mapping.bytes <= limit {
                    break;
                }
                *evicted = self.evict_oldest(|_| true).unwrap_or(NO_MAPPING);
            }
        } else {
            evicted[0] = mapping;
        }
        // Replace the oldest ghost; without ghosts, the oldest cached mapping.
        if let Some(place) = (self.freed.iter_mut()).min_by_key(|old| (old.cached, old.since))
            && (freed.cached || !place.cached)
        {
            let old = core::mem::replace(place, freed);
            if old.cached {
                evicted[MAPPING_GHOSTS] = old.mapping;
            }
        }
    }

    /// Evicts the oldest cached mapping, if `may` accepts its time of free; it is a ghost then.
    fn evict_oldest(&mut self, may: impl Fn(u64) -> bool) -> Option<Mapping> {
        let cached = self.freed.iter_mut().filter(|freed| freed.cached);
        let oldest = cached.min_by_key(|freed| freed.since)?;
        oldest.cached = !may(oldest.since);
        (!oldest.cached).then_some(oldest.mapping)
    }

    /// As `evict_oldest`, and turns caching off: nobody reused the mapping.
    pub(super) fn purge_oldest(&mut self, may: impl Fn(u64) -> bool) -> Option<Mapping> {
        let purged = self.evict_oldest(may);
        self.caching &= purged.is_none();
        purged
    }
}
