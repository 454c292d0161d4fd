//! The sheaves of an allocator: in the CPUs' slots, and in barns.

use std::collections::HashSet;

use crate::heap::{Cache, Heap, words};
use crate::layout::Field;

/// Most sheaves of a barn's list that are walked.
const BARN_SHEAVES_MAX: u64 = 1 << 14;

/// Where a sheaf is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The main sheaf of a CPU's slot.
    Main(usize),
    /// The spare sheaf of a CPU's slot.
    Spare(usize),
    /// The sheaf of a CPU's slot whose objects wait for a grace period.
    Rcu(usize),
    /// A full sheaf of a node's barn.
    Barn(usize),
}

/// A sheaf with its objects' place in memory.
#[derive(Clone, Copy, Debug)]
pub struct Sheaf {
    /// Index of its cache.
    pub cache: usize,
    /// Where it is.
    pub place: Place,
    /// Address of its window.
    pub window: u64,
    /// Objects that it can hold.
    pub capacity: usize,
    /// Objects in it.
    pub len: usize,
}

impl Heap<'_> {
    /// The sheaves in the CPUs' slots.
    pub(crate) fn slot_sheaves(&self, caches: &[Cache], regions: &[Vec<u64>]) -> Vec<Sheaf> {
        let (bytes, last) = (self.f.sheaf_bytes, self.f.sheaf_bytes - 8);
        let sentinels = self.root.sentinels;
        let mut tops = Vec::new();
        for cache in caches {
            let at = self.word_of(cache.index);
            let rcu = at + self.f.caches_a_page * self.f.cache_words;
            for (&(cpu, _), words) in self.regions.iter().zip(regions) {
                let places = [
                    (at, Place::Main(cpu)),
                    (at + 1, Place::Spare(cpu)),
                    (rcu, Place::Rcu(cpu)),
                ];
                for (word, place) in places {
                    let top = words.get(word).map_or(0, |word| word & !1);
                    let is_sentinel = top == sentinels.wrapping_add(last)
                        || top == sentinels.wrapping_add(bytes + last);
                    if top % 8 == 0 && top >= bytes && !is_sentinel {
                        tops.push((cache, place, top));
                    }
                }
            }
        }
        let field = self.f.window_capacity;
        let at: Vec<_> = tops
            .iter()
            .map(|&(.., top)| (top & !(bytes - 1)).wrapping_add(field.at as u64))
            .collect();
        let mut capacities = vec![0; 2 * at.len()];
        let done = self.memory.read_each(&at, 2, &mut capacities);
        let mut sheaves = Vec::new();
        let capacities = capacities.chunks_exact(2).zip(done);
        for (&(cache, place, top), (capacity, done)) in tops.iter().zip(capacities) {
            let capacity = usize::from(u16::from_le_bytes([capacity[0], capacity[1]]));
            let len = (top % bytes + 8 * capacity as u64).saturating_sub(last) / 8;
            if done && capacity <= self.f.max_capacity {
                sheaves.push(Sheaf {
                    cache: cache.index,
                    place,
                    window: top & !(bytes - 1),
                    capacity,
                    len: (len as usize).min(capacity),
                });
            }
        }
        sheaves
    }

    /// Calls `visit` with the window and the head of each sheaf in a list of a barn, until it
    /// returns false. The list's fields lie in a copy of the barn.
    fn for_each_window(
        &self,
        barn: &[u8],
        (first, len): (Field, Field),
        mut visit: impl FnMut(u64, &[u8]) -> bool,
    ) {
        let mut head = [0; 64];
        let mut window = first.of(barn);
        let mut seen = HashSet::new();
        for _ in 0..len.of(barn).min(BARN_SHEAVES_MAX) {
            let is_window = window != 0 && window.is_multiple_of(self.f.sheaf_bytes);
            // A window that comes again makes a circle: the list is being changed, or damaged.
            let goes_on = is_window
                && seen.insert(window)
                && self.memory.read(window, &mut head).is_ok()
                && visit(window, &head);
            if !goes_on {
                return;
            }
            window = self.f.window_link.of(&head);
        }
    }

    /// Calls `visit` with each barn that can be read: its cache, its node, and a copy of it.
    fn for_each_barn(&self, caches: &[Cache], mut visit: impl FnMut(&Cache, usize, &[u8])) {
        let barns = caches.iter().flat_map(|cache| {
            let groups = (cache.barns.len() / cache.node_records.len().max(1)).max(1);
            let barns = cache.barns.iter().enumerate();
            barns.map(move |(number, &at)| (cache, number / groups, at))
        });
        let barns: Vec<_> = barns.collect();
        let at: Vec<_> = barns.iter().map(|&(.., at)| at).collect();
        let bytes = self.f.barn_bytes;
        let mut copies = vec![0; at.len() * bytes];
        let done = self.memory.read_each(&at, bytes, &mut copies);
        let all = barns.iter().zip(copies.chunks_exact(bytes)).zip(done);
        for ((&(cache, node, _), copy), done) in all {
            if done {
                visit(cache, node, copy);
            }
        }
    }

    /// The full sheaves in the caches' barns.
    pub(crate) fn barn_sheaves(&self, caches: &[Cache]) -> Vec<Sheaf> {
        let mut sheaves = Vec::new();
        self.for_each_barn(caches, |cache, node, barn| {
            self.for_each_window(barn, self.f.barn_full, |window, head| {
                let capacity = self.f.window_capacity.of(head) as usize;
                let len = self.f.window_len.of(head) as usize;
                let owner = self.f.window_cache.of(head) as usize;
                let is_possible = capacity <= self.f.max_capacity && len <= capacity;
                if is_possible && owner == cache.index {
                    sheaves.push(Sheaf {
                        cache: cache.index,
                        place: Place::Barn(node),
                        window,
                        capacity,
                        len,
                    });
                }
                is_possible && owner == cache.index
            });
        });
        sheaves
    }

    /// The windows of the empty sheaves in the caches' barns.
    pub(crate) fn empty_windows(&self, caches: &[Cache]) -> Vec<u64> {
        let mut windows = Vec::new();
        self.for_each_barn(caches, |_, _, barn| {
            self.for_each_window(barn, self.f.barn_empty, |window, _| {
                windows.push(window);
                true
            });
        });
        windows
    }

    /// The objects of a sheaf, oldest first.
    pub(crate) fn objects_of(&self, sheaf: &Sheaf) -> Vec<u64> {
        let mut bytes = vec![0; sheaf.len * 8];
        let to_first = self.f.sheaf_bytes - 8 * sheaf.capacity as u64;
        let first = sheaf.window.wrapping_add(to_first);
        if self.memory.read(first, &mut bytes).is_err() {
            return Vec::new();
        }
        words(&bytes).collect()
    }
}
