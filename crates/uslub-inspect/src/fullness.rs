//! How full the slabs of each cache are: one count for each number of live objects.
//!
//! A descriptor counts objects in sheaves as in use, because their slab may not take them back.
//! Here they count as free: the objects of each sheaf are subtracted from the slab that they are
//! in. Objects that wait for a grace period count as live, as in a [look](crate::snapshot).

use std::collections::HashMap;

use crate::heap::{Cache, Heap};
use crate::memory::PAGE;
use crate::pages::Span;
use crate::sheaves::{Place, Sheaf};
use crate::slots::State;

/// Live slots, in per cent, up to which a slab is sparse: three such slabs fit into one.
pub const SPARSE_PERCENT: u64 = 25;

/// The slabs of one cache by fullness.
#[derive(Clone, Debug)]
pub struct Fullness {
    /// The cache.
    pub cache: Cache,
    /// Slabs with each number of live objects: none, one, and so on to all.
    pub slabs: Vec<u64>,
}

impl Fullness {
    /// Slots of a slab.
    fn slots(&self) -> u64 {
        u64::from(self.cache.objects).max(1)
    }

    /// Bytes of a slab.
    pub fn slab_bytes(&self) -> u64 {
        self.cache.slab_pages() * PAGE
    }

    /// All slabs that have a descriptor.
    pub fn total(&self) -> u64 {
        self.slabs.iter().sum()
    }

    /// Live objects.
    pub fn live(&self) -> u64 {
        self.slabs.iter().zip(0..).map(|(n, live)| n * live).sum()
    }

    /// Slabs that the live objects would fill.
    pub fn needed(&self) -> u64 {
        self.live().div_ceil(self.slots())
    }

    /// Bytes of slabs beyond those that the live objects would fill.
    pub fn excess_bytes(&self) -> u64 {
        self.total().saturating_sub(self.needed()) * self.slab_bytes()
    }

    /// Slabs of which at most this share of the slots, in per cent, is live.
    pub fn at_most(&self, percent: u64) -> u64 {
        let limit = self.slots() * percent;
        let sparse = self.slabs.iter().zip(0_u64..);
        sparse
            .filter(|&(_, live)| live * 100 <= limit)
            .map(|(n, _)| n)
            .sum()
    }

    /// Slabs that one live object keeps, of several slots.
    pub fn pinned_by_one(&self) -> u64 {
        match self.slots() {
            1 => 0,
            _ => self.slabs.get(1).copied().unwrap_or(0),
        }
    }

    /// Slabs without a live object, then in ten parts: above 0 to 10 per cent, up to 100.
    pub fn tenths(&self) -> [u64; 11] {
        let mut parts = [0; 11];
        for (n, live) in self.slabs.iter().zip(0_u64..) {
            let part = (live * 10).div_ceil(self.slots()).min(10);
            parts[part as usize] += n;
        }
        parts
    }
}

impl Heap<'_> {
    /// How full the slabs are: of each cache, or of those with a name.
    pub fn fullness(&self, name: Option<&str>) -> Vec<Fullness> {
        let (mut caches, _) = self.caches();
        caches.retain(|cache| name.is_none_or(|name| cache.name == name));
        let mut cached: Vec<_> = caches.iter().map(|cache| self.cached_in(cache)).collect();
        let empty = |cache: &Cache| Fullness {
            slabs: vec![0; cache.objects as usize + 1],
            cache: cache.clone(),
        };
        let mut all: Vec<_> = caches.iter().map(empty).collect();
        self.walk(&caches, |span| {
            if let Span::Slab(place, slab) = span {
                let cached = cached[place].remove(&slab.page).unwrap_or(0);
                let live = slab.inuse.saturating_sub(cached) as usize;
                if let Some(count) = all[place].slabs.get_mut(live) {
                    *count += 1;
                }
            }
        });
        all
    }

    /// Objects of a cache in sheaves, by the first page of their slab.
    fn cached_in(&self, cache: &Cache) -> HashMap<u64, u32> {
        let base = self.arena().base;
        let mut slabs = HashMap::new();
        for (at, state) in self.cached_objects(cache).all() {
            let waits = matches!(
                state,
                State::InSheaf {
                    place: Place::Rcu(_),
                    ..
                }
            );
            if let Some(offset) = at.checked_sub(base).filter(|_| !waits) {
                let page = (offset / PAGE) & !(cache.slab_pages() - 1);
                *slabs.entry(page).or_insert(0) += 1;
            }
        }
        slabs
    }

    /// The sheaves of a cache: in the slots of CPUs, then the full ones in barns.
    pub fn sheaves_of(&self, cache: &Cache) -> Vec<Sheaf> {
        let one = std::slice::from_ref(cache);
        let words = self.region_words(one);
        let mut sheaves = self.slot_sheaves(one, &words);
        sheaves.extend(self.barn_sheaves(one));
        sheaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fullness(slabs: &[u64]) -> Fullness {
        let cache = Cache {
            name: "apples".to_owned(),
            size: 400,
            objects: slabs.len() as u32 - 1,
            ..Cache::default()
        };
        Fullness {
            cache,
            slabs: slabs.to_vec(),
        }
    }

    #[test]
    fn sparse_slabs_are_counted_with_their_bytes() {
        // 10 slots a slab; 3 slabs with none live, 5 with one, 2 with three, 1 that is full.
        let apples = fullness(&[3, 5, 0, 2, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!((apples.total(), apples.live()), (11, 21));
        assert_eq!((apples.needed(), apples.excess_bytes()), (3, 8 * 4096));
        assert_eq!(
            (apples.at_most(0), apples.at_most(25), apples.at_most(30)),
            (3, 8, 10)
        );
        assert_eq!(apples.at_most(100), 11);
        assert_eq!(apples.pinned_by_one(), 5);
        assert_eq!(apples.tenths(), [3, 5, 0, 2, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_slab_of_one_slot_is_never_pinned() {
        let pears = fullness(&[2, 7]);
        assert_eq!((pears.pinned_by_one(), pears.needed()), (0, 7));
        assert_eq!(pears.tenths(), [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn tenths_are_rounded_up() {
        // Of three slots one is 34 per cent, two are 67 per cent.
        assert_eq!(
            fullness(&[0, 1, 1, 1]).tenths(),
            [0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1]
        );
    }
}
