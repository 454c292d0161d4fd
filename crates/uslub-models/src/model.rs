//! A model: an allocator that is set up once, and what is tried with it in every order.
//!
//! Each run starts from the same memory. A thread that is given an object says so, and uses those
//! of its words that the allocator uses; so an object with two owners, or one whose last owner's writes are not ordered before
//! the next one's, fails the run. After each run the allocator's invariants must hold, and
//! as many objects must be in use as threads kept.

use std::cell::RefCell;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uslub_core::Allocator;
use uslub_core::Gfp;
use uslub_core::cache::KmemCache;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::modelled::{self, Unknown};
use uslub_core::tunables::Tunables;

use crate::machine::{self, Machine, Slots};
use crate::memory::Memory;

/// An allocator on a modelled machine.
pub type Slub = Allocator<Machine>;
/// A cache of one.
pub type Cache = KmemCache<Machine>;

/// Words of stack of a modelled thread.
const STACK: usize = 32 << 10;

/// Seconds after which a run is taken for one that does not end; most take less than a millisecond.
const PATIENCE: u32 = 30;
/// Stands for a model that is done, in the number of its runs.
const DONE: usize = usize::MAX - 1;

std::thread_local! {
    /// Objects that the threads of the model hold.
    static HELD: RefCell<HashSet<usize>> = RefCell::default();
}

/// A model that is being set up.
pub struct Model {
    /// The allocator.
    pub slub: &'static Slub,
    memory: &'static Memory,
}

impl Model {
    /// An allocator on a machine of `cpus` CPUs whose per-CPU slots are guarded so; `None` keeps all threads off them.
    pub fn new(cpus: usize, slots: Option<Slots>, tunables: Tunables) -> Self {
        // Both live as long as the process: each test has a few.
        let memory: &'static Memory = Box::leak(Box::default());
        let at = memory
            .take(size_of::<Slub>(), 4096)
            .expect("room for an allocator");
        let machine = Machine::new(
            memory,
            cpus,
            slots.unwrap_or(Slots::Locked),
            slots.is_some(),
        );
        let at = at as *mut Slub;
        // SAFETY: fresh memory of this size and alignment.
        let slub = unsafe {
            at.write(Slub::new(machine));
            &*at
        };
        // SAFETY: nobody else has it.
        assert!(unsafe { slub.init(16 << 20, tunables) });
        slub.keep_indices(NR_CLASSES + 1);
        Self { slub, memory }
    }

    /// Makes the atomics of the slab that an object is of part of the model.
    pub fn watch_slab_of(&self, cache: &Cache, object: *mut u8) {
        let page = self.slub.zone.arena.page_of(object as usize);
        let slab = cache.slab_of(&self.slub.zone.arena, page.expect("an object of ours"));
        modelled::watch(std::ptr::from_ref(slab) as usize, size_of_val(slab));
    }

    /// Makes the lists and the barn of a cache part of the model.
    pub fn watch_node_of(&self, cache: &Cache) {
        let node = cache.node(0);
        modelled::watch(std::ptr::from_ref(node) as usize, size_of_val(node));
    }

    /// Makes the record of a cache part of the model.
    pub fn watch_cache(&self, cache: &Cache) {
        modelled::watch(std::ptr::from_ref(cache) as usize, size_of_val(cache));
    }

    /// Makes the allocator's own words part of the model: locks, lists, the table of CPUs.
    pub fn watch_allocator(&self) {
        modelled::watch(std::ptr::from_ref(self.slub) as usize, size_of::<Slub>());
    }

    /// Zeroed bytes of the memory of the model, for ever.
    pub fn place_bytes(&self, bytes: usize, align: usize) -> usize {
        self.memory.take(bytes, align).expect("room")
    }

    /// A value that lies in the memory of the model.
    pub fn place<T>(&self, value: T) -> &'static T {
        let at = self.place_bytes(size_of::<T>(), align_of::<T>().max(64)) as *mut T;
        // SAFETY: fresh memory of this size and alignment, for ever.
        unsafe {
            at.write(value);
            &*at
        }
    }

    /// Makes the words of a cache's sheaves on all CPUs, and the way to them, part of the model.
    pub fn watch_slots_of(&self, cache: &Cache) {
        for (cpu, region) in self.slub.table.regions() {
            for slot in [cache.id.main(), cache.id.spare(), cache.id.rcu()] {
                modelled::watch(std::ptr::from_ref(region.word(slot)) as usize, 8);
            }
            modelled::watch(self.slub.table.active().wrapping_add(cpu) as usize, 8);
        }
    }

    /// Tries `run` in every order of its threads with at most so many preemptions (see [`preemptions`]). `run` joins all threads that it begins, and returns the objects that stay in use.
    pub fn check(
        self,
        name: &str,
        preemptions: usize,
        run: impl Fn(&'static Slub) -> Vec<Object> + Send + Sync + 'static,
    ) {
        let Self { slub, memory } = self;
        memory.seal();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        let runs: &'static AtomicUsize = Box::leak(Box::default());
        keep_restarts_quiet();
        let memory = memory as *const Memory as usize;
        let run = std::sync::Arc::new(move || {
            // SAFETY: it lives as long as the process, and the threads of a model run one at a time.
            let memory = unsafe { &*(memory as *const Memory) };
            memory.restore();
            HELD.with_borrow_mut(HashSet::clear);
            slub.platform.begin();
            modelled::begin();
            let left = run(slub);
            modelled::end();
            slub.platform.end();
            // What was set aside goes home first: it is in no place that the invariants know.
            slub.caches().for_each(|cache| slub.flush(cache));
            assert_eq!(slub.validate(), Ok(()));
            let in_use: usize = slub.caches().map(|c| slub.info(c).live_objs()).sum();
            assert_eq!(in_use, left.len(), "objects in use");
            // Relaxed: a figure.
            runs.fetch_add(1, Relaxed);
        });
        watch_over(name, runs);
        loop {
            // Relaxed: a figure.
            runs.store(0, Relaxed);
            let run = run.clone();
            let done = catch_unwind(AssertUnwindSafe(|| builder.check(move || run())));
            match done {
                Ok(()) => break,
                Err(_) if modelled::has_news() => modelled::abandon(),
                Err(why) => resume_unwind(why),
            }
        }
        // Relaxed: as above.
        let runs = runs.swap(DONE, Relaxed);
        println!("model {name}: {runs} runs, at most {preemptions} preemptions");
    }
}

/// Ends the process when a run does not end: a bug may close a list to a ring, in which no checker sees that nothing happens.
fn watch_over(name: &str, runs: &'static AtomicUsize) {
    let name = name.to_owned();
    std::thread::spawn(move || {
        let (mut before, mut idle) = (usize::MAX, 0);
        while before != DONE {
            std::thread::sleep(Duration::from_secs(1));
            // Relaxed: a figure.
            let now = runs.load(Relaxed);
            idle = if now == before { idle + 1 } else { 0 };
            before = now;
            if idle == PATIENCE {
                eprintln!("model {name}: a run does not end");
                std::process::exit(1);
            }
        }
    });
}

/// A model that begins anew is no failure to tell of.
fn keep_restarts_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |why| {
            if !why.payload().is::<Unknown>() {
                tell(why);
            }
        }));
    });
}

/// The bound on preemptions: `short`, or what `USLUB_PREEMPTIONS` adds to it.
pub fn preemptions(short: usize) -> usize {
    let more = std::env::var("USLUB_PREEMPTIONS").map_or(0, |more| more.parse().expect("a number"));
    short + more
}

/// A thread of a model.
pub type Thread<T> = loom::thread::JoinHandle<T>;

/// Begins a thread on a CPU.
pub fn spawn<T: Send + 'static>(
    cpu: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Thread<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK);
    let work = move || {
        machine::on_cpu(cpu);
        work()
    };
    builder.spawn(work).expect("a thread")
}

/// An object that a thread holds.
#[derive(Debug)]
pub struct Object {
    address: usize,
    link: usize,
}

impl Object {
    /// Takes an object over that came from outside of the run.
    pub fn of(object: *mut u8, cache: &Cache) -> Self {
        let object = Self {
            address: object as usize,
            link: cache.links.offset as usize,
        };
        object.begin();
        object
    }

    /// As [`of`](Self::of), before the other threads of the run begin; others may look at the object.
    pub fn before(object: *mut u8, cache: &Cache) -> Self {
        let address = object as usize;
        HELD.with_borrow_mut(|held| held.insert(address));
        Self {
            address,
            link: cache.links.offset as usize,
        }
    }

    fn begin(&self) {
        let first = HELD.with_borrow_mut(|held| held.insert(self.address));
        assert!(first, "object {:#x} has two owners", self.address);
        machine::use_words(self.address, self.address + self.link);
    }

    fn end(self) -> *mut u8 {
        machine::use_words(self.address, self.address + self.link);
        HELD.with_borrow_mut(|held| held.remove(&self.address));
        self.address as *mut u8
    }
}

/// Allocates an object, which must be there.
pub fn alloc(slub: &Slub, cache: &Cache, gfp: Gfp) -> Object {
    let object = slub.alloc(cache, gfp);
    assert!(!object.is_null(), "no object");
    Object::of(object, cache)
}

/// Frees an object.
pub fn free(slub: &Slub, cache: &Cache, object: Object, gfp: Gfp) {
    // SAFETY: an object of the cache, held by the caller alone.
    unsafe { slub.free_with(cache, object.end(), gfp) }
}

/// Frees an object after a grace period.
pub fn free_rcu(slub: &Slub, cache: &Cache, object: Object) {
    HELD.with_borrow_mut(|held| held.remove(&object.address));
    // SAFETY: as in `free`; readers may still look at it.
    unsafe { slub.free_rcu(cache, object.address as *mut u8) }
}
