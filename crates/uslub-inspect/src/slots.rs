//! The state of every slot of a cache's slabs.
//!
//! | state | found in |
//! |---|---|
//! | in a sheaf | the sheaves of CPUs and barns |
//! | in quarantine | the rings of freed objects of the hardened mode |
//! | deferred | the stack of objects freed where waiting is forbidden |
//! | on the freelist | the links in the free objects themselves, with the cache's secret |
//! | fresh | the slab's position in its order: never handed out since the slab was last empty |
//! | live | in use, and in none of the above |

use std::collections::HashMap;

use crate::heap::{Cache, Heap};
use crate::memory::PAGE;
use crate::pages::{Slab, Span};
use crate::sheaves::{Place, Sheaf};

/// What a slot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The program holds it.
    Live,
    /// Free, in a sheaf: where, how many were put on top of it, and how many the sheaf has.
    InSheaf {
        /// Where the sheaf is.
        place: Place,
        /// 0 for the object that leaves next.
        from_top: usize,
        /// Objects in the sheaf.
        len: usize,
    },
    /// Freed in the hardened mode, and waits before it can be handed out again.
    Quarantined,
    /// Freed where waiting is forbidden; not in its slab yet.
    Deferred,
    /// Free, on its slab's freelist: how many leave before it.
    OnFreelist(usize),
    /// Never handed out since its slab was last empty.
    Fresh,
}

impl State {
    /// The state in one word.
    pub fn name(self) -> &'static str {
        match self {
            State::Live => "live",
            State::InSheaf {
                place: Place::Rcu(_),
                ..
            } => "waiting",
            State::InSheaf { .. } => "cached",
            State::Quarantined => "quarantined",
            State::Deferred => "deferred",
            State::OnFreelist(_) => "free",
            State::Fresh => "fresh",
        }
    }
}

/// Objects of a cache that are in no slab's freelist although they are free.
#[derive(Debug, Default)]
pub struct Cached {
    states: HashMap<u64, State>,
}

/// The free slots of one slab, by slot number.
pub type FreeSlots = HashMap<u32, State>;

impl Heap<'_> {
    /// The caches with a name, by index: several may have it.
    pub fn caches_named(&self, name: &str) -> Vec<Cache> {
        let (mut caches, _) = self.caches();
        caches.retain(|cache| cache.name == name);
        caches
    }

    /// The objects of a cache in sheaves, in quarantine and on the stack of deferred frees.
    pub fn cached_objects(&self, cache: &Cache) -> Cached {
        let mut cached = Cached::default();
        let quarantined = self.quarantined_of(cache).into_iter();
        let states = quarantined.map(|at| (at, State::Quarantined));
        cached.states.extend(states);
        let one = std::slice::from_ref(cache);
        let words = self.region_words(one);
        let sheaves = self.slot_sheaves(one, &words);
        for sheaf in sheaves.iter().chain(&self.barn_sheaves(one)) {
            self.add_sheaf(sheaf, &mut cached);
        }
        let mut next = cache.deferred_first;
        for _ in 0..cache.deferred.min(1 << 20) {
            if next == 0 || cached.states.insert(next, State::Deferred).is_some() {
                break;
            }
            let mut link = [0; 8];
            let at = next.wrapping_add(u64::from(cache.link_offset));
            if self.memory.read(at, &mut link).is_err() {
                break;
            }
            next = u64::from_le_bytes(link);
        }
        cached
    }

    fn add_sheaf(&self, sheaf: &Sheaf, cached: &mut Cached) {
        let objects = self.objects_of(sheaf);
        for (from_top, object) in objects.into_iter().rev().enumerate() {
            let state = State::InSheaf {
                place: sheaf.place,
                from_top,
                len: sheaf.len,
            };
            cached.states.insert(object, state);
        }
    }

    /// The free slots of a slab: on its freelist, and fresh ones.
    pub fn free_slots(&self, cache: &Cache, slab: &Slab) -> FreeSlots {
        let mut free = FreeSlots::new();
        let (base, bytes) = (self.address(slab.page), PAGE << cache.order);
        let size = u64::from(cache.size);
        // A freelist has the addresses of objects; those of a debugged cache lie behind a red zone.
        let left = u64::from(cache.left);
        let slot_of = |offset: u64| {
            let slot = offset / size;
            (offset.is_multiple_of(size) && slot < u64::from(cache.objects)).then_some(slot as u32)
        };
        let fresh = |position: u32| match self.offset_at(cache, slab.start, position) {
            Some(offset) => slot_of(offset),
            None => None,
        };
        if slab.inuse == 0 {
            // The freelist of an empty slab may be an old one.
            free.extend((0..cache.objects).map(|slot| (slot, State::Fresh)));
            return free;
        }
        let mut next = slab.head;
        let mut nth = 0;
        let slot_at = |at: u64| at.checked_sub(left).and_then(slot_of);
        while let Some(slot) = next.filter(|&at| at < bytes).and_then(slot_at) {
            if free.insert(slot, State::OnFreelist(nth)).is_some() {
                break;
            }
            nth += 1;
            next = self
                .link_of(cache, slab, cache.object_at(base, slot))
                .map(|object| object.wrapping_sub(base));
        }
        for slot in (slab.position..cache.objects).filter_map(fresh) {
            free.entry(slot).or_insert(State::Fresh);
        }
        free
    }

    /// The object behind a free object on its freelist; `None` at the end, or if it is unreadable.
    fn link_of(&self, cache: &Cache, slab: &Slab, object: u64) -> Option<u64> {
        let at = object.wrapping_add(u64::from(cache.link_offset));
        let mut word = [0; 8];
        self.memory.read(at, &mut word).ok()?;
        let stored = u64::from_le_bytes(word);
        let next = match cache.secret {
            0 => stored,
            secret => {
                let mix = u64::from(slab.epoch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                stored ^ secret ^ (mix & !1) ^ at.swap_bytes()
            }
        };
        (next != 0).then_some(next)
    }

    /// Byte offset of the slot at a position of a slab's order.
    fn offset_at(&self, cache: &Cache, start: u32, position: u32) -> Option<u64> {
        if cache.random == 0 {
            return Some(u64::from(position) * u64::from(cache.size));
        }
        if start >= cache.objects {
            return None;
        }
        let mut offset = [0; 4];
        let at = cache
            .random
            .wrapping_add(4 * (u64::from(start) + u64::from(position)));
        self.memory.read(at, &mut offset).ok()?;
        Some(u64::from(u32::from_le_bytes(offset)))
    }

    /// The address of a page of the arena.
    pub fn address(&self, page: u64) -> u64 {
        self.arena().base.wrapping_add(page * PAGE)
    }

    /// Calls `visit` with each slab of a cache that has a descriptor.
    pub fn for_each_slab(&self, cache: &Cache, mut visit: impl FnMut(&Slab)) {
        self.walk(std::slice::from_ref(cache), |span| {
            if let Span::Slab(_, slab) = span {
                visit(&slab);
            }
        });
    }

    /// Memory nodes that a cache has lists for.
    pub fn nr_nodes(&self, cache: &Cache) -> usize {
        cache.node_records.len()
    }

    /// Calls `each` with the object's address and the state of each slot of a cache, until it
    /// returns false.
    pub fn for_each_slot(&self, cache: &Cache, mut each: impl FnMut(u64, State) -> bool) {
        let cached = self.cached_objects(cache);
        let mut goes_on = true;
        self.walk(std::slice::from_ref(cache), |span| {
            let Span::Slab(_, slab) = span else {
                return;
            };
            if !goes_on {
                return;
            }
            let free = self.free_slots(cache, &slab);
            for slot in 0..cache.objects {
                let at = cache.object_at(self.address(slab.page), slot);
                let state = free.get(&slot).copied();
                let state = state.or_else(|| cached.state(at)).unwrap_or(State::Live);
                goes_on = goes_on && each(at, state);
            }
        });
    }
}

impl Cached {
    /// The state of an object, if it is cached.
    pub fn state(&self, object: u64) -> Option<State> {
        self.states.get(&object).copied()
    }

    /// All cached objects: address and state.
    pub fn all(&self) -> impl Iterator<Item = (u64, State)> {
        self.states.iter().map(|(&at, &state)| (at, state))
    }

    /// Number of cached objects.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether none is cached.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }
}
