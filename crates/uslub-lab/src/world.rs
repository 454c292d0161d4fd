//! One machine with its allocator: made for an experiment, and gone with it.

use std::mem::ManuallyDrop;

use uslub_core_timed::args::{CacheArgs, Flags};
use uslub_core_timed::cache::KmemCache;
use uslub_core_timed::kmalloc::NR_CLASSES;
use uslub_core_timed::percpu::stats::StatItem;
use uslub_core_timed::tunables::Tunables;
use uslub_core_timed::{Allocator, Gfp};

use crate::costs::Costs;
use crate::engine::Running;
use crate::error::Failure;
use crate::grace::Periods;
use crate::platform::Timed;
use crate::policy::Policy;
use crate::range::Range;
use crate::topology::Topology;

/// Bytes that the allocator reserves.
const RESERVE: usize = 8 << 30;
/// Bytes that are free on each node when a load begins, and bytes of each run of these pages.
const FREE: usize = 64 << 20;
const RUN: usize = 128 << 10;
/// Bytes of the first object of each CPU.
const FIRST: usize = 8;

/// A machine and its allocator.
pub struct World {
    /// The engine; `None` only while the world is dropped.
    running: Running,
    grace: &'static Periods,
    slub: &'static Allocator<Timed>,
    /// Memory of the above: freed last.
    memory: ManuallyDrop<Box<Range>>,
    machine: ManuallyDrop<Box<Topology>>,
    periods: ManuallyDrop<Box<Periods>>,
}

/// What a user may change of an experiment's allocator.
pub struct Setup<'a> {
    /// The machine.
    pub machine: &'a Topology,
    /// The cost model.
    pub costs: &'a Costs,
    /// The tunables.
    pub tunables: Tunables,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Microseconds of a grace period.
    pub grace_us: u64,
    /// A policy of the user's own.
    pub policy: Option<Box<dyn Policy>>,
}

/// A reference that its owner keeps valid for longer than any use.
///
/// # Safety
///
/// The owner must live as long as the reference is used.
unsafe fn forever<T>(value: &T) -> &'static T {
    // SAFETY: the caller's promise.
    unsafe { &*std::ptr::from_ref(value) }
}

impl World {
    /// A new machine with an empty allocator.
    pub fn new(setup: Setup<'_>) -> Result<Self, Failure> {
        let memory = ManuallyDrop::new(Box::new(Range::new()?));
        let machine = ManuallyDrop::new(Box::new(setup.machine.clone()));
        let periods = ManuallyDrop::new(Box::new(Periods::new(
            machine.cpus,
            setup.grace_us * 1_000_000,
        )));
        let range = (memory.start(), memory.bytes());
        let running = Running::new(&machine, setup.costs, range, setup.policy)?;
        // SAFETY: the world frees the boxes last.
        let (of_memory, of_machine, grace) =
            unsafe { (forever(&**memory), forever(&**machine), forever(&**periods)) };
        let place = memory.take(size_of::<Allocator<Timed>>(), 4096);
        let place = place
            .ok_or(Failure::NoMemory(0))?
            .cast::<Allocator<Timed>>();
        let platform = Timed::new(of_machine, of_memory, setup.seed);
        // SAFETY: the place is large enough, aligned, and not in use.
        let slub: &'static Allocator<Timed> = unsafe {
            place.write(Allocator::new(platform));
            place.as_ref()
        };
        // SAFETY: no other user has the allocator yet.
        if !unsafe { slub.init(RESERVE, setup.tunables) } {
            return Err(Failure::NoMemory(RESERVE >> 20));
        }
        slub.keep_indices(NR_CLASSES + 1);
        slub.set_grace_period(grace);
        let mut world = Self {
            running,
            grace,
            slub,
            memory,
            machine,
            periods,
        };
        world.commit();
        Ok(world)
    }

    /// Makes free pages: a machine that has run for a while has some on each node, and so calls
    /// that may not ask the system find memory.
    fn commit(&mut self) {
        for node in 0..self.machine.nodes {
            let cpu = (0..self.machine.cpus).find(|&cpu| self.machine.node_of(cpu) == node);
            self.running.on(cpu.unwrap_or(0));
            let run = |_| self.slub.kmalloc(RUN, Gfp::KERNEL);
            let runs: Vec<_> = (0..FREE / RUN).map(run).collect();
            for run in runs {
                // SAFETY: the run came from kmalloc and is freed once.
                unsafe { self.slub.kfree(run) };
            }
        }
        // A CPU gets its words in its first call that may ask the system for memory.
        for cpu in 0..self.machine.cpus {
            self.running.on(cpu);
            let object = self.slub.kmalloc(FIRST, Gfp::KERNEL);
            // SAFETY: the object came from kmalloc and is freed once.
            unsafe { self.slub.kfree(object) };
        }
        self.running.on(0);
    }

    /// The allocator.
    pub fn slub(&self) -> &'static Allocator<Timed> {
        self.slub
    }

    /// The grace periods.
    pub fn grace(&self) -> &'static Periods {
        self.grace
    }

    /// The CPUs and nodes.
    pub fn machine(&self) -> &Topology {
        &self.machine
    }

    /// The engine.
    pub fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    /// A cache of objects of `size` bytes.
    pub fn cache(&self, size: usize) -> Result<&'static KmemCache<Timed>, Failure> {
        let mut args = CacheArgs::new("lab", size);
        args.flags |= Flags::NO_MERGE;
        self.slub
            .create(&args)
            .map_err(|why| Failure::Wrong(why.to_string()))
    }

    /// Address of new lines of shared memory.
    pub fn lines(&self, n: usize) -> usize {
        let lines = self.memory.take(64 * n, 64);
        lines.map_or(0, |lines| lines.as_ptr() as usize)
    }

    /// Sum of a counter over all caches.
    pub fn count(&self, item: StatItem) -> u64 {
        let mut sum = 0;
        self.slub
            .for_each_cache(|cache| sum += self.slub.stat(cache, item));
        sum
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: all three: no coroutine runs, and the allocator is not used any longer.
        unsafe {
            ManuallyDrop::drop(&mut self.periods);
            ManuallyDrop::drop(&mut self.machine);
            ManuallyDrop::drop(&mut self.memory);
        }
    }
}
