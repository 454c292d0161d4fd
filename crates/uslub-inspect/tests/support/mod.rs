//! An allocator on a simulated machine in this process, and operations on it with a shadow model.

// Each test file uses its part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;

use uslub_core::args::{CacheArgs, Flags};
use uslub_core::cache::KmemCache;
use uslub_core::root::Root;
use uslub_core::tunables::Tunables;
use uslub_core::{Allocator, Gfp};
use uslub_inspect::{Heap, Process, root};
use uslub_sim::{Clock, Machine, Sim, cpu};

/// A random number generator (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % below as u64) as usize
    }
}

/// An allocator with named caches, and every live object of them.
pub struct World {
    pub slub: &'static Allocator<Sim>,
    pub caches: Vec<&'static KmemCache<Sim>>,
    /// Live objects: the index of their cache in `caches`.
    pub live: BTreeMap<u64, usize>,
    /// Live large objects.
    pub large: Vec<u64>,
    pub dice: Dice,
    root: &'static Root,
}

/// CPUs of the simulated machine.
pub const CPUS: usize = 4;

impl World {
    pub fn new(seed: u64, nodes: &[usize]) -> Self {
        Self::with(seed, nodes, Default::default())
    }

    pub fn with(seed: u64, nodes: &[usize], tunables: Tunables) -> Self {
        let machine = Machine::new(CPUS, nodes.len()).with_memory_on(nodes);
        let slub = uslub_sim::allocator(Sim::new(machine, Clock::real()), tunables);
        let slub: &'static Allocator<Sim> = Box::leak(slub);
        let sizes = [("a", 24), ("b", 64), ("c", 200), ("d", 1000), ("e", 3000)];
        let create = |(name, size)| {
            let args = CacheArgs {
                flags: Flags::NO_MERGE,
                ..CacheArgs::new(name, size)
            };
            slub.create(&args).expect("a cache")
        };
        Self {
            slub,
            caches: sizes.into_iter().map(create).collect(),
            live: BTreeMap::new(),
            large: Vec::new(),
            dice: Dice(seed),
            root: Box::leak(Box::new(Root::of(slub, "rust"))),
        }
    }

    pub fn root_address(&self) -> u64 {
        &raw const *self.root as u64
    }

    /// A reader of this process.
    pub fn process() -> Process {
        Process::open(std::process::id() as i32).expect("a process may read itself")
    }

    /// The allocator as a reader sees it.
    pub fn heap<'m>(&self, memory: &'m dyn uslub_inspect::Memory) -> Heap<'m> {
        let root = root::at(memory, self.root_address()).expect("a root");
        Heap::open(memory, root).expect("a heap")
    }

    /// One random operation on a random CPU.
    pub fn step(&mut self) {
        cpu::on(self.dice.roll(CPUS));
        let kind = self.dice.roll(100);
        match kind {
            0..45 => self.alloc(1),
            45..50 => {
                let n = 1 + self.dice.roll(300);
                self.alloc(n);
            }
            50..90 => self.free(1),
            90..95 => {
                let n = 1 + self.dice.roll(300);
                self.free(n);
            }
            95..98 => {
                let bytes = 8192 + self.dice.roll(200_000);
                let object = self.slub.kmalloc(bytes, Gfp::KERNEL);
                assert!(!object.is_null());
                self.large.push(object as u64);
            }
            98 if !self.large.is_empty() => {
                let at = self.dice.roll(self.large.len());
                let object = self.large.swap_remove(at);
                // SAFETY: live until now.
                unsafe { self.slub.kfree(object as *mut u8) };
            }
            _ => {
                let cache = self.caches[self.dice.roll(self.caches.len())];
                self.slub.shrink(cache);
            }
        }
    }

    fn alloc(&mut self, n: usize) {
        let which = self.dice.roll(self.caches.len());
        self.alloc_of(which, n);
    }

    /// Allocates objects of one cache.
    pub fn alloc_of(&mut self, which: usize, n: usize) {
        for _ in 0..n {
            let object = self.slub.alloc(self.caches[which], Gfp::KERNEL);
            assert!(!object.is_null());
            assert!(self.live.insert(object as u64, which).is_none());
        }
    }

    /// Frees objects at random.
    pub fn free(&mut self, n: usize) {
        for _ in 0..n {
            let Some(&first) = self.live.keys().next() else {
                return;
            };
            let (low, high) = (first, *self.live.keys().next_back().unwrap_or(&first));
            let pivot = low + self.dice.roll((high - low) as usize + 1) as u64;
            let Some((&object, &which)) = self.live.range(pivot..).next() else {
                return;
            };
            self.live.remove(&object);
            // SAFETY: live until now, of this cache.
            unsafe { self.slub.free(self.caches[which], object as *mut u8) };
        }
    }
}
