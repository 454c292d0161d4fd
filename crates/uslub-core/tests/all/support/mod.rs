//! A platform for tests: any number of virtual CPUs, memory that is watched, failures on demand.
//!
//! | what | how a test controls it |
//! |---|---|
//! | the CPU of a thread | [`on_cpu`], or [`hop`]: another one at every look |
//! | per-CPU slots | [`Slots`]: by lock bit, or as restartable sequences with a fence behave |
//! | disturbed slot operations | [`Virtual::disturb`] |
//! | fresh and purged pages | [`Fresh`]: zero, or a pattern that shows every write |
//! | failures of the page layer | [`Virtual::fail`] |
//! | failures inside the allocator | [`Virtual::faults`], by site or by probability |
//! | the system's page size | [`Setup::page`]: a call that is not aligned to it fails the test |
//! | time | [`Virtual::set_clock`] |
//! | waiting for locks | [`never_waiting`] makes it a failure |
//! | long waits | [`sleep::timed_out`] counts those that nobody ended |
//! | being stopped anywhere | [`torment::Torment`] |
//!
//! Memory really comes from the system, reserved ranges without access, so that a use of memory
//! that is not committed, or not mapped any more, ends the test. Memory that is unmapped or purged
//! but was not the allocator's fails the test by name. `fatal` panics with its message.

#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

pub mod calls;
pub mod case;
pub mod faults;
pub mod pattern;
pub mod platform;
pub mod ranges;
pub mod seen;
pub mod sleep;
pub mod system;
pub mod thread;
pub mod torment;

use std::sync::atomic::Ordering::SeqCst;

use uslub_core::args::CacheArgs;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::percpu::Region;
use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_core::stats::StatItem;
use uslub_core::tunables::Tunables;
use uslub_core::{Allocator, Gfp};

pub use platform::Virtual;
pub use thread::{Dice, hop, never_waiting, on_cpu};

/// An allocator over virtual CPUs.
pub type Slub = Allocator<Virtual>;
/// A cache of one.
pub type Cache = uslub_core::cache::KmemCache<Virtual>;

/// The byte that poisoned pages are made of.
pub const POISON: u8 = 0xa7;

/// What pages hold when they are committed or purged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// Zero, as promised.
    Zero,
    /// [`POISON`], but for the allocator's own tables. Only for tests that ask for no zeroed object.
    Poisoned,
}

/// How slots are guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// By the lock bit of each word.
    Locked,
    /// As by restartable sequences: whole operations of a CPU exclude each other, a fence waits
    /// until none is under way.
    Restartable,
    /// As before, but there is no fence.
    WithoutFence,
}

/// What an allocator for a test is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Virtual CPUs.
    pub cpus: usize,
    /// Memory nodes; the CPUs are dealt out to them in equal blocks.
    pub nodes: usize,
    /// Bit n is set when node n has memory.
    pub memory: u64,
    /// Tunables.
    pub tunables: Tunables,
    /// What pages hold.
    pub fresh: Fresh,
    /// How slots are guarded.
    pub slots: Slots,
    /// Bytes to reserve.
    pub reserve: usize,
    /// Bytes of a page of the system.
    pub page: usize,
    /// Whether the address space has a hole to reserve them in.
    pub hole: bool,
    /// Whether memory may be mapped beside a mapping, where nothing is.
    pub beside: bool,
    /// Whether a limit counts what is reserved.
    pub limited: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            cpus: 4,
            nodes: 1,
            memory: u64::MAX,
            tunables: Tunables::DEFAULT,
            fresh: Fresh::Zero,
            slots: Slots::Locked,
            reserve: 256 << 20,
            page: PAGE_SIZE,
            hole: false,
            beside: false,
            limited: false,
        }
    }
}

impl Setup {
    /// A setup with some tunables changed.
    pub fn with(settings: &[&str]) -> Self {
        let mut setup = Self::default();
        for setting in settings {
            setup.tunables.set(setting).unwrap();
        }
        setup
    }

    /// The setup with another page size of the system.
    pub fn on_pages_of(self, page: usize) -> Self {
        Self { page, ..self }
    }

    /// The setup with memory beside its mappings.
    pub fn beside(self) -> Self {
        Self {
            beside: true,
            ..self
        }
    }

    /// An allocator that is not initialised.
    pub fn bare(self) -> Box<Slub> {
        on_cpu(0);
        Box::new(Allocator::new(Virtual::new(self)))
    }

    /// The allocator, ready, with this thread on CPU 0.
    pub fn build(self) -> Box<Slub> {
        let a = self.bare();
        // SAFETY: nobody else has it yet.
        assert!(unsafe { a.init(self.reserve, self.tunables) });
        a.keep_indices(NR_CLASSES + 1);
        a
    }
}

/// Page sizes that systems have.
pub const SYSTEM_PAGES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// An allocator over so many virtual CPUs.
pub fn allocator(cpus: usize) -> Box<Slub> {
    let setup = Setup {
        cpus,
        ..Setup::default()
    };
    setup.build()
}

/// An allocator with a cache that has sheaves of four, a full barn and slabs of all kinds, and some
/// objects of the cache.
pub fn used(settings: &[&str]) -> (Box<Slub>, Vec<*mut u8>) {
    let a = Setup::with(settings).build();
    let mut args = CacheArgs::new("test", 64);
    args.sheaf_capacity = Some(4);
    let cache = a.create(&args).unwrap();
    let held: Vec<_> = (0..400).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    for &object in held.iter().skip(1).step_by(2) {
        // SAFETY: live, freed once.
        unsafe { a.free(cache, object) };
    }
    (a, held.into_iter().step_by(2).collect())
}

/// Frees objects of a cache, one by one.
pub fn free_all(a: &Slub, cache: &Cache, objects: Vec<*mut u8>) {
    for object in objects.into_iter().filter(|o| !o.is_null()) {
        // SAFETY: live, freed once.
        unsafe { a.free(cache, object) };
    }
}

/// Fails the test unless the allocator, from which nobody holds an object any more, gives all back.
pub fn assert_all_is_given_back(a: &Slub) {
    assert_eq!(a.validate(), Ok(()), "before the trim");
    a.caches().for_each(|cache| assert_counters_agree(a, cache));
    a.trim();
    assert_eq!(a.validate(), Ok(()), "after the trim");
    for cache in a.caches() {
        let info = a.info(cache);
        let rest = (info.num_slabs, info.active_objs, info.cached_objs);
        assert_eq!(rest, (0, 0, 0), "cache {}", cache.name());
        assert_eq!(info.allocs, info.frees, "cache {}", cache.name());
        assert_counters_agree(a, cache);
    }
    let t = a.totals();
    assert_eq!(
        (t.live, t.cached, t.free, t.slabs, t.large, t.huge, t.dirty),
        (0, 0, 0, 0, 0, 0, 0)
    );
    assert_eq!(t.allocs, t.frees);
    a.platform.assert_pages_are_zero();
    assert_mappings_are_known(a);
}

/// Fails the test unless the counters of a cache that nobody uses agree with what there is.
pub fn assert_counters_agree(a: &Slub, cache: &Cache) {
    let info = a.info(cache);
    let stat = |item| a.stat(cache, item);
    let name = cache.name();
    let allocs = stat(StatItem::AllocFastpath) + stat(StatItem::AllocSlowpath);
    let frees = stat(StatItem::FreeFastpath) + stat(StatItem::FreeSlowpath);
    let live = info.active_objs - info.cached_objs;
    assert_eq!(allocs - frees, live as u64, "live objects of cache {name}");
    let slabs = stat(StatItem::AllocSlab) - stat(StatItem::FreeSlab);
    assert_eq!(slabs, info.num_slabs as u64, "slabs of cache {name}");
    let sheaves = stat(StatItem::SheafAlloc) - stat(StatItem::SheafFree);
    assert_eq!(
        sheaves,
        sheaves_alive(a, cache) as u64,
        "sheaves of cache {name}"
    );
}

/// Sheaves in the CPUs' slots and in barns.
fn sheaves_alive(a: &Slub, cache: &Cache) -> usize {
    let barns = cache
        .barns()
        .map(|barn| barn.nr_full() + barn.nr_empty() + barn.nr_spilled());
    let slots = [cache.id.main(), cache.id.spare(), cache.id.rcu()];
    let in_slots = |region: &Region| {
        // SeqCst: nothing here is measured.
        let tops = slots.map(|slot| region.word(slot).load(SeqCst));
        let is_sheaf = |&top: &usize| top != 0 && !uslub_core::percpu::sheaf::is_sentinel(top);
        tops.iter().filter(|top| is_sheaf(top)).count()
    };
    let regions = a.table.regions().map(|(_, region)| in_slots(region));
    barns.sum::<usize>() + regions.sum::<usize>()
}

/// Fails the test unless what is mapped is the allocator's records and nothing else.
pub fn assert_mappings_are_known(a: &Slub) {
    const CHUNK: usize = 64 << 10;
    let table = a
        .platform
        .whole_pages((16 * a.table.nr()).next_multiple_of(PAGE_SIZE));
    let region = a.platform.whole_pages(size_of::<Region>());
    let regions = (1 + a.table.regions().count() + a.table.regions_ahead()) * region;
    let huge = a.mapped.table_bytes() + a.mapped.live_bytes() + a.mapped.kept_bytes();
    let mapped = a.platform.mapped_bytes();
    let records = mapped.checked_sub(table + regions + huge);
    let known = a.meta.bytes()..=a.meta.bytes() + 4 * CHUNK;
    assert!(
        records.is_some_and(|records| known.contains(&records)),
        "{mapped} bytes are mapped, of which {table} for the table, {regions} for regions, \
         {huge} huge, {} for records",
        a.meta.bytes()
    );
}

/// The words of a slot, per cache and CPU: objects in the main sheaf and in the spare; `None` where
/// there is no sheaf.
pub fn sheaves_on(a: &Slub, cache: &Cache, cpu: usize) -> (Option<usize>, Option<usize>) {
    let Some(region) = a.table.region(cpu) else {
        return (None, None);
    };
    let objects = |slot| {
        // SeqCst: nothing here is measured.
        let top = region.word(slot).load(SeqCst);
        if top == 0 || uslub_core::percpu::sheaf::is_sentinel(top) {
            return None;
        }
        // SAFETY: nobody else runs; the sheaf stays in its slot, as dropping does nothing.
        Some(unsafe { uslub_core::percpu::sheaf::Sheaf::from_top(top) }.len())
    };
    (objects(cache.id.main()), objects(cache.id.spare()))
}

/// Capacities of the sheaves in a CPU's slots; 0 where there is none.
pub fn capacities_on(a: &Slub, cache: &Cache, cpu: usize) -> (usize, usize) {
    let Some(region) = a.table.region(cpu) else {
        return (0, 0);
    };
    let capacity = |slot| {
        // SeqCst: nothing here is measured.
        let top = region.word(slot).load(SeqCst);
        if top == 0 || uslub_core::percpu::sheaf::is_sentinel(top) {
            return 0;
        }
        // SAFETY: nobody else runs; the sheaf stays in its slot, as dropping does nothing.
        unsafe { uslub_core::percpu::sheaf::Sheaf::from_top(top) }.capacity()
    };
    (capacity(cache.id.main()), capacity(cache.id.spare()))
}

/// Allocates `n` objects on a CPU.
pub fn take(a: &Slub, cache: &Cache, cpu: usize, n: usize) -> Vec<*mut u8> {
    on_cpu(cpu);
    let objects: Vec<_> = (0..n).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert!(objects.iter().all(|object| !object.is_null()));
    objects
}

/// Frees objects on a CPU.
pub fn give(a: &Slub, cache: &Cache, cpu: usize, objects: &[*mut u8]) {
    on_cpu(cpu);
    for &object in objects {
        // SAFETY: the caller's objects, freed once.
        unsafe { a.free(cache, object) };
    }
}
