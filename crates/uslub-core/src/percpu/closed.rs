//! Closed caches: size classes that have no sheaves for a while, because another cache serves them.
//!
//! | a word of a closed cache | in every region, present and future |
//! |---|---|
//! | main, spare | [`stopped`](sheaf::stopped): each call takes its slow path |
//! | rcu | as in any cache |
//!
//! No thread can put a sheaf into such a word: it would expect a sheaf, `bootstrap` or 0 there. The
//! compare-and-swap of a thread that peeked before the closing fails. So nobody need ask whether a
//! cache is closed, and open caches pay nothing.
//!
//! Only caches of the first region page can be closed. Callers: `cache::drain` closes and opens,
//! under the drain lock. Slow paths of bulks, and frees after a grace period, ask: a full sheaf
//! would wait in a barn for nobody. A thread in the middle of a call may still leave one there,
//! until the cache is cold.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::region::{CACHES_A_PAGE, CacheId, Region};
use crate::percpu::sheaf;

/// Words of a set.
const WORDS: usize = CACHES_A_PAGE / 64;

/// A set of caches of the first region page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheSet([u64; WORDS]);

impl CacheSet {
    /// No cache.
    pub(crate) const EMPTY: Self = Self([0; WORDS]);

    /// Adds a cache.
    pub(crate) fn insert(&mut self, id: CacheId) {
        self.0[id.index() / 64] |= 1 << (id.index() % 64);
    }

    /// The caches, in the order of their indices.
    pub(crate) fn iter(self) -> impl Iterator<Item = CacheId> {
        (1..CACHES_A_PAGE)
            .filter(move |index| self.0[index / 64] >> (index % 64) & 1 == 1)
            .map(CacheId::from_index)
    }
}

/// The closed caches of an allocator.
pub(crate) struct ClosedCaches([AtomicU64; WORDS]);

impl ClosedCaches {
    /// No cache is closed.
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Whether a cache is closed; may be stale without the drain lock.
    #[inline]
    pub(crate) fn contains(&self, id: CacheId) -> bool {
        let index = id.index();
        // Relaxed: changed under the drain lock; others take it for a hint.
        index < CACHES_A_PAGE && self.0[index / 64].load(Relaxed) >> (index % 64) & 1 == 1
    }

    /// Adds caches; returns those that were not closed. The caller holds the drain lock.
    pub(crate) fn insert(&self, set: CacheSet) -> CacheSet {
        let mut fresh = set;
        for (word, fresh) in self.0.iter().zip(&mut fresh.0) {
            // Relaxed: as in `contains`.
            *fresh &= !word.fetch_or(*fresh, Relaxed);
        }
        fresh
    }

    /// Removes caches; returns those that were closed. The caller holds the drain lock.
    pub(crate) fn remove(&self, set: CacheSet) -> CacheSet {
        let mut gone = set;
        for (word, gone) in self.0.iter().zip(&mut gone.0) {
            // Relaxed: as in `contains`.
            *gone &= word.fetch_and(!*gone, Relaxed);
        }
        gone
    }

    /// Removes all caches, in a child that begins with new regions.
    pub(crate) fn clear(&self) {
        // Relaxed: the child has one thread.
        self.0.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Closes the words of a region that no thread knows yet.
    pub(super) fn close_in(&self, region: &Region) {
        // Relaxed: under the drain lock.
        let set = CacheSet(core::array::from_fn(|at| self.0[at].load(Relaxed)));
        for id in set.iter() {
            for slot in [id.main(), id.spare()] {
                // Relaxed: published with the region.
                region.word(slot).store(sheaf::stopped(), Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_tells_which_caches_are_new_and_which_are_gone() {
        let closed = ClosedCaches::new();
        let set = |indices: &[usize]| {
            let mut set = CacheSet::EMPTY;
            indices
                .iter()
                .for_each(|&index| set.insert(CacheId::from_index(index)));
            set
        };
        assert_eq!(closed.insert(set(&[1, 63, 64])), set(&[1, 63, 64]));
        assert_eq!(closed.insert(set(&[1, 2, 64, 127])), set(&[2, 127]));
        assert!(closed.contains(CacheId::from_index(127)));
        assert!(!closed.contains(CacheId::from_index(65)));
        assert!(!closed.contains(CacheId::from_index(CACHES_A_PAGE + 1)));
        assert_eq!(closed.remove(set(&[2, 3])), set(&[2]));
        assert!(
            set(&[127, 64, 1])
                .iter()
                .map(CacheId::index)
                .eq([1, 64, 127])
        );
        closed.clear();
        assert_eq!(closed.remove(set(&[1])), CacheSet::EMPTY);
    }
}
