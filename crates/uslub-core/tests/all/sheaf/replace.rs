//! Sheaves and barn against a model of the tables in `sheaf/replace.rs`.
//!
//! One thread moves between virtual CPUs. After every call the model says how many objects lie in
//! each CPU's main and spare, how many full and empty sheaves in the barn, and which
//! counters moved. Where neither sheaf holds an object it does not matter which of the two
//! is absent, so only objects are compared a slot, and sheaves in total.

use crate::support;
use crate::support::{Cache, Setup, Slots, Slub, on_cpu, sheaves_on};
use proptest::prelude::*;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::{STAT_ITEMS, StatItem};

const CPUS: usize = 3;

/// The counters that the model predicts.
const PREDICTED: [StatItem; 12] = [
    StatItem::AllocFastpath,
    StatItem::AllocSlowpath,
    StatItem::FreeFastpath,
    StatItem::FreeSlowpath,
    StatItem::BarnGet,
    StatItem::BarnGetFail,
    StatItem::BarnPut,
    StatItem::BarnPutFail,
    StatItem::SheafRefill,
    StatItem::SheafFlush,
    StatItem::SheafAlloc,
    StatItem::SheafFree,
];

/// The sheaves of one CPU: objects in each, or none.
#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    main: Option<usize>,
    spare: Option<usize>,
}

/// The model.
#[derive(Clone, Debug)]
struct Model {
    capacity: usize,
    max_full: usize,
    max_empty: usize,
    cpus: [Cpu; CPUS],
    full: usize,
    empty: usize,
    stats: [u64; PREDICTED.len()],
}

impl Model {
    fn count(&mut self, item: StatItem, n: usize) {
        let at = PREDICTED.iter().position(|&i| i == item).unwrap();
        self.stats[at] += n as u64;
    }

    fn stat(&self, item: StatItem) -> u64 {
        self.stats[PREDICTED.iter().position(|&i| i == item).unwrap()]
    }

    /// The barn's empty sheaf, or a new one.
    fn obtain_empty(&mut self) {
        if self.empty > 0 {
            self.empty -= 1;
        } else {
            self.count(StatItem::SheafAlloc, 1);
        }
    }

    /// Puts an empty sheaf away: into the spare slot, the barn, or out.
    fn put_away(&mut self, cpu: usize) {
        if self.cpus[cpu].spare.is_none() {
            self.cpus[cpu].spare = Some(0);
        } else if self.empty < self.max_empty {
            self.empty += 1;
        } else {
            self.count(StatItem::SheafFree, 1);
        }
    }

    fn alloc(&mut self, cpu: usize) {
        self.count(StatItem::AllocFastpath, 1);
        let Cpu { main, spare } = self.cpus[cpu];
        match (main, spare) {
            (Some(n @ 1..), _) => self.cpus[cpu].main = Some(n - 1),
            // Spare has objects: it becomes main, and the empty main spare.
            (_, Some(n @ 1..)) => {
                self.cpus[cpu] = Cpu {
                    main: Some(n - 1),
                    spare: main,
                };
            }
            // The barn has a full sheaf: it becomes main; the empty main is put away.
            _ if self.full > 0 => {
                self.full -= 1;
                self.count(StatItem::BarnGet, 1);
                self.cpus[cpu].main = Some(self.capacity - 1);
                if main.is_some() {
                    self.put_away(cpu);
                }
            }
            // None: an empty sheaf (spare, main, the barn's, a new one) is refilled and becomes
            // main.
            _ => {
                self.count(StatItem::BarnGetFail, 1);
                self.count(StatItem::SheafRefill, self.capacity);
                if main.is_none() && spare.is_none() {
                    self.obtain_empty();
                }
                self.cpus[cpu] = match (main, spare) {
                    (Some(_), Some(_)) => Cpu { main, spare },
                    _ => Cpu::default(),
                };
                self.cpus[cpu].main = Some(self.capacity - 1);
            }
        }
    }

    fn free(&mut self, cpu: usize) {
        self.count(StatItem::FreeFastpath, 1);
        let Cpu { main, spare } = self.cpus[cpu];
        let capacity = self.capacity;
        match (main, spare) {
            (Some(n), _) if n < capacity => self.cpus[cpu].main = Some(n + 1),
            // Spare has room: it becomes main, main spare.
            (_, Some(n)) if n < capacity => {
                self.cpus[cpu] = Cpu {
                    main: Some(n + 1),
                    spare: main,
                };
            }
            // No spare: an empty sheaf becomes main, main spare.
            (_, None) => {
                self.obtain_empty();
                self.cpus[cpu] = Cpu {
                    main: Some(1),
                    spare: main,
                };
            }
            // Spare full, the barn has room: main goes to the barn, an empty sheaf becomes main.
            _ if self.full < self.max_full => {
                self.obtain_empty();
                self.cpus[cpu].main = Some(1);
                self.full += 1;
                self.count(StatItem::BarnPut, 1);
            }
            // Both full: spare is flushed to slabs and becomes main, main spare.
            _ => {
                self.count(StatItem::BarnPutFail, 1);
                self.count(StatItem::SheafFlush, capacity);
                self.cpus[cpu] = Cpu {
                    main: Some(1),
                    spare: main,
                };
            }
        }
    }

    /// All sheaves are flushed and given up, but for the empty ones of a CPU that has no object.
    fn shrink(&mut self) {
        self.count(StatItem::SheafFlush, self.full * self.capacity);
        self.count(StatItem::SheafFree, self.full + self.empty);
        (self.full, self.empty) = (0, 0);
        for cpu in 0..CPUS {
            let Cpu { main, spare } = self.cpus[cpu];
            let objects = main.unwrap_or(0) + spare.unwrap_or(0);
            if objects > 0 {
                self.count(StatItem::SheafFlush, objects);
                let sheaves = usize::from(main.is_some()) + usize::from(spare.is_some());
                self.count(StatItem::SheafFree, sheaves);
                self.cpus[cpu] = Cpu::default();
            }
        }
    }

    fn cached(&self) -> usize {
        let objects = |c: &Cpu| c.main.unwrap_or(0) + c.spare.unwrap_or(0);
        self.cpus.iter().map(objects).sum::<usize>() + self.full * self.capacity
    }

    fn sheaves(&self) -> usize {
        let sheaves = |c: &Cpu| usize::from(c.main.is_some()) + usize::from(c.spare.is_some());
        self.cpus.iter().map(sheaves).sum::<usize>() + self.full + self.empty
    }
}

/// What is seen of the real ones, in the same terms.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    objects: Vec<(usize, usize)>,
    full: usize,
    empty: usize,
    cached: usize,
    sheaves: usize,
    stats: Vec<(&'static str, u64)>,
}

fn name(item: StatItem) -> &'static str {
    STAT_ITEMS.iter().find(|i| i.0 == item).unwrap().1
}

impl Seen {
    fn of_model(m: &Model) -> Self {
        Self {
            objects: (m.cpus.iter())
                .map(|c| (c.main.unwrap_or(0), c.spare.unwrap_or(0)))
                .collect(),
            full: m.full,
            empty: m.empty,
            cached: m.cached(),
            sheaves: m.sheaves(),
            stats: PREDICTED.map(|i| (name(i), m.stat(i))).to_vec(),
        }
    }

    fn of(a: &Slub, cache: &Cache) -> Self {
        let on: Vec<_> = (0..CPUS).map(|cpu| sheaves_on(a, cache, cpu)).collect();
        let sheaves = |s: &(Option<_>, Option<_>)| s.0.iter().count() + s.1.iter().count();
        let barn = cache.barn(0);
        Self {
            objects: (on.iter())
                .map(|s| (s.0.unwrap_or(0), s.1.unwrap_or(0)))
                .collect(),
            full: barn.nr_full(),
            empty: barn.nr_empty(),
            cached: a.info(cache).cached_objs,
            sheaves: on.iter().map(sheaves).sum::<usize>() + barn.nr_full() + barn.nr_empty(),
            stats: PREDICTED.map(|i| (name(i), a.stat(cache, i))).to_vec(),
        }
    }
}

/// What a test does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Allocates so many objects on a CPU.
    Alloc(usize, usize),
    /// Frees so many of those that are held, from a place on, on a CPU.
    Free(usize, usize, usize),
    /// Shrinks the cache.
    Shrink,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..CPUS, 1usize..14).prop_map(|(cpu, n)| Step::Alloc(cpu, n)),
        8 => (0..CPUS, 1usize..14, any::<usize>()).prop_map(|(cpu, n, at)| Step::Free(cpu, n, at)),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..80)
}

fn slots() -> impl Strategy<Value = Slots> {
    prop_oneof![Just(Slots::Locked), Just(Slots::Restartable)]
}

/// An allocator with a cache of small sheaves and a small barn, and its model.
fn both(slots: Slots, capacity: usize, full: usize, empty: usize) -> (Box<Slub>, Model) {
    let mut setup = Setup::with(&[
        &format!("max_full_sheaves={full}"),
        &format!("max_empty_sheaves={empty}"),
    ]);
    setup.cpus = CPUS;
    setup.slots = slots;
    let a = setup.build();
    let mut args = CacheArgs::new("test", 64);
    args.sheaf_capacity = Some(capacity);
    a.create(&args).unwrap();
    let model = Model {
        capacity,
        max_full: full,
        max_empty: empty,
        cpus: [Cpu::default(); CPUS],
        full: 0,
        empty: 0,
        stats: [0; PREDICTED.len()],
    };
    (a, model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn sheaves_and_barn_follow_their_tables(
        steps in steps(),
        slots in slots(),
        capacity in 2usize..=4,
        full in 1usize..=2,
        empty in 0usize..=2,
    ) {
        let (a, mut model) = both(slots, capacity, full, empty);
        let cache = a.caches().next().unwrap();
        let mut held: Vec<*mut u8> = Vec::new();
        let mut shrunk = false;
        for step in steps {
            let (calls, cpu) = match step {
                Step::Alloc(cpu, n) => (n, cpu),
                Step::Free(cpu, n, _) => (n.min(held.len()), cpu),
                Step::Shrink => (1, 0),
            };
            on_cpu(cpu);
            for _ in 0..calls {
                match step {
                    Step::Alloc(..) => {
                        held.push(a.alloc(cache, Gfp::KERNEL));
                        model.alloc(cpu);
                    }
                    Step::Free(_, _, at) => {
                        let object = held.swap_remove(at % held.len());
                        // SAFETY: the test's object, freed once.
                        unsafe { a.free(cache, object) };
                        model.free(cpu);
                    }
                    Step::Shrink => {
                        a.shrink(cache);
                        model.shrink();
                        shrunk = true;
                    }
                }
                let (mut expected, mut seen) = (Seen::of_model(&model), Seen::of(&a, cache));
                if shrunk {
                    // Shrinks have a test of their own for this.
                    expected.stats.retain(|s| s.0 != "sheaf_free");
                    seen.stats.retain(|s| s.0 != "sheaf_free");
                }
                prop_assert_eq!(seen, expected, "after {:?} on {}", step, cpu);
                prop_assert_eq!(a.info(cache).live_objs(), held.len());
            }
        }
        prop_assert_eq!(a.validate(), Ok(()));
        for object in held {
            // SAFETY: the test's object, freed once.
            unsafe { a.free(cache, object) };
        }
        support::assert_all_is_given_back(&a);
    }
}

#[test]
fn a_shrink_counts_every_sheaf_that_it_gives_up() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let (a, mut model) = both(slots, 4, 2, 2);
        let cache = a.caches().next().unwrap();
        // Main has three objects, spare none: an empty sheaf is given up too.
        let held: Vec<_> = (0..9).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        (0..9).for_each(|_| model.alloc(0));
        for &object in &held[..6] {
            // SAFETY: the test's object, freed once.
            unsafe { a.free(cache, object) };
            model.free(0);
        }
        for _ in 0..6 {
            a.alloc(cache, Gfp::KERNEL);
            model.alloc(0);
        }
        assert_eq!(Seen::of(&a, cache), Seen::of_model(&model));
        let (main, spare) = sheaves_on(&a, cache, 0);
        assert!(main.zip(spare).is_some_and(|(m, s)| m > 0 && s == 0));
        a.shrink(cache);
        model.shrink();
        assert_eq!(Seen::of(&a, cache), Seen::of_model(&model));
        assert_eq!(
            a.stat(cache, StatItem::SheafAlloc) - a.stat(cache, StatItem::SheafFree),
            model.sheaves() as u64,
            "sheaves made less sheaves given up are the sheaves there are"
        );
    }
}

#[test]
fn without_a_fence_a_shrink_flushes_at_least_this_cpu_and_the_barn() {
    let (a, _) = both(Slots::WithoutFence, 4, 2, 2);
    let cache = a.caches().next().unwrap();
    for cpu in 0..CPUS {
        on_cpu(cpu);
        let held: Vec<_> = (0..20).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        for object in held {
            // SAFETY: the test's object, freed once.
            unsafe { a.free(cache, object) };
        }
    }
    on_cpu(1);
    a.shrink(cache);
    assert_eq!(sheaves_on(&a, cache, 1), (None, None));
    assert_eq!(cache.barn(0).nr_full(), 0);
    assert!(sheaves_on(&a, cache, 0).0.is_some(), "another CPU's stay");
    assert_eq!(a.validate(), Ok(()));
    // And nothing is stopped for good.
    for cpu in 0..CPUS {
        on_cpu(cpu);
        let before = a.stat(cache, StatItem::AllocSlowpath);
        a.alloc(cache, Gfp::KERNEL);
        assert_eq!(a.stat(cache, StatItem::AllocSlowpath), before);
    }
}

#[test]
fn objects_move_between_cpus_through_the_barn_in_whole_sheaves() {
    let (a, _) = both(Slots::Locked, 4, 2, 2);
    let cache = a.caches().next().unwrap();
    on_cpu(0);
    let held: Vec<_> = (0..16).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    on_cpu(1);
    for &object in &held {
        // SAFETY: the test's object, freed once.
        unsafe { a.free(cache, object) };
    }
    assert_eq!(cache.barn(0).nr_full(), 2);
    on_cpu(2);
    let slabs = a.stat(cache, StatItem::SheafRefill);
    let again: Vec<_> = (0..8).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    assert_eq!(
        a.stat(cache, StatItem::SheafRefill),
        slabs,
        "no slab was touched"
    );
    assert_eq!(a.stat(cache, StatItem::BarnGet), 2);
    assert!(again.iter().all(|o| held.contains(o)));
}

#[test]
fn the_memory_of_sheaves_that_were_given_up_is_used_again() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let (a, _) = both(slots, 4, 2, 2);
        let cache = a.caches().next().unwrap();
        let mut metadata = 0;
        for round in 0..500 {
            on_cpu(round % CPUS);
            // As many as fill main, spare and the barn.
            let held: Vec<_> = (0..20).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
            for object in held {
                // SAFETY: the test's object, freed once.
                unsafe { a.free(cache, object) };
            }
            a.shrink_all();
            if round == CPUS {
                metadata = a.metadata_bytes();
            }
        }
        assert_eq!(a.metadata_bytes(), metadata);
    }
}
