//! Every order of a model's threads, by loom.
//!
//! loom keeps an object of its own beside each atomic that is watched. Which atomics a run uses is
//! not known before it is tried; a run that meets a new one proves nothing, and the exploration
//! begins anew with that one known.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uslub_core::sync::atomic::AtomicU32;
use uslub_core::sync::loom_atomics::{self, Unknown};

use crate::machine;
use crate::model::{Cache, Model, Object, Slub};

pub(crate) use loom::sync::Mutex;
pub(crate) use loom::thread_local;

/// Words of stack of a modelled thread.
const STACK: usize = 32 << 10;
/// Seconds after which a run is taken for one that does not end; most take less than a millisecond.
const PATIENCE: u32 = 30;
/// Stands for a model that is done, in the number of its runs.
const DONE: usize = usize::MAX - 1;

/// Lets others go first: the caller looks again.
pub(crate) fn wait(_word: &AtomicU32, _value: u32, _timeout_ms: Option<u32>) {
    loom::thread::yield_now();
}

/// Disturbed operations are the matter of `tests/sequences.rs`.
pub(crate) fn is_disturbed() -> bool {
    false
}

/// Nobody sleeps.
pub(crate) fn wake(_word: &AtomicU32, _threads: usize) {}

impl Model {
    /// Makes the atomics of the slab that an object is of part of the model.
    pub fn watch_slab_of(&self, cache: &Cache, object: *mut u8) {
        let page = self.slub.zone.arena.page_of(object as usize);
        let slab = cache.slab_of(&self.slub.zone.arena, page.expect("an object of ours"));
        loom_atomics::watch(std::ptr::from_ref(slab) as usize, size_of_val(slab));
    }

    /// Makes the lists and the barn of a cache part of the model.
    pub fn watch_node_of(&self, cache: &Cache) {
        let node = cache.node(0);
        loom_atomics::watch(std::ptr::from_ref(node) as usize, size_of_val(node));
    }

    /// Makes the record of a cache part of the model.
    pub fn watch_cache(&self, cache: &Cache) {
        loom_atomics::watch(std::ptr::from_ref(cache) as usize, size_of_val(cache));
    }

    /// Makes the allocator's own words part of the model: locks, lists, the table of CPUs.
    pub fn watch_allocator(&self) {
        loom_atomics::watch(std::ptr::from_ref(self.slub) as usize, size_of::<Slub>());
    }

    /// Makes the words of a cache's sheaves on all CPUs, and the way to them, part of the model.
    pub fn watch_slots_of(&self, cache: &Cache) {
        for (cpu, region) in self.slub.table.regions() {
            for slot in [cache.id.main(), cache.id.spare(), cache.id.rcu()] {
                loom_atomics::watch(std::ptr::from_ref(region.word(slot)) as usize, 8);
            }
            loom_atomics::watch(self.slub.table.active().wrapping_add(cpu) as usize, 8);
        }
    }

    /// Tries `run` in every order of its threads with at most so many preemptions (see
    /// [`preemptions`]). `run` joins all threads that it begins, and returns the objects that stay
    /// in use.
    pub fn check(
        self,
        name: &str,
        preemptions: usize,
        run: impl Fn(&'static Slub) -> Vec<Object> + Send + Sync + 'static,
    ) {
        let setup = self.seal();
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 100_000;
        let runs: &'static AtomicUsize = Box::leak(Box::default());
        keep_restarts_quiet();
        let run = std::sync::Arc::new(move || {
            setup.begin();
            loom_atomics::begin();
            let left = run(setup.slub);
            loom_atomics::end();
            setup.end(&left);
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
                Err(_) if loom_atomics::has_news() => loom_atomics::abandon(),
                Err(why) => resume_unwind(why),
            }
        }
        // Relaxed: as above.
        let runs = runs.swap(DONE, Relaxed);
        println!("model {name}: {runs} runs, at most {preemptions} preemptions");
    }
}

/// Ends the process when a run does not end: a bug may close a list to a ring, in which no checker
/// sees that nothing happens.
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
