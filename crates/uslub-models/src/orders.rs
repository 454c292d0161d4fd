//! Tries every order of a model's threads with loom. The tests `loom_*` use it.
//!
//! loom needs its own record for each watched atomic. The set of atomics that a run uses is unknown
//! before the run. A run that meets a new atomic proves nothing: the exploration adds the atomic to
//! the set and starts again.

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

/// Bytes of stack of a modelled thread.
const STACK: usize = 32 << 10;
/// Seconds after which a run counts as endless; most runs take less than a millisecond.
const PATIENCE: u32 = 30;
/// Marks a finished model, instead of its number of runs.
const DONE: usize = usize::MAX - 1;

/// Yields to other threads; the caller checks again.
pub(crate) fn wait(_word: &AtomicU32, _value: u32, _timeout_ms: Option<u32>) {
    loom::thread::yield_now();
}

/// Never: `tests/sequences.rs` covers disturbed operations.
pub(crate) fn is_disturbed() -> bool {
    false
}

/// Does nothing: no thread sleeps.
pub(crate) fn wake(_word: &AtomicU32, _threads: usize) {}

impl Model {
    /// Watches the atomics of the slab of an object.
    pub fn watch_slab_of(&self, cache: &Cache, object: *mut u8) {
        let page = self.slub.zone.arena.page_of(object as usize);
        let slab = cache.slab_of(&self.slub.zone.arena, page.expect("an object of ours"));
        loom_atomics::watch(std::ptr::from_ref(slab) as usize, size_of_val(slab));
    }

    /// Watches the lists and the barn of a cache.
    pub fn watch_node_of(&self, cache: &Cache) {
        let (node, barn) = (cache.node(0), cache.barn(0));
        loom_atomics::watch(std::ptr::from_ref(node) as usize, size_of_val(node));
        loom_atomics::watch(std::ptr::from_ref(barn) as usize, size_of_val(barn));
    }

    /// Watches the descriptor of a cache.
    pub fn watch_cache(&self, cache: &Cache) {
        loom_atomics::watch(std::ptr::from_ref(cache) as usize, size_of_val(cache));
    }

    /// Watches the allocator's own words: locks, lists, the table of CPUs.
    pub fn watch_allocator(&self) {
        loom_atomics::watch(std::ptr::from_ref(self.slub) as usize, size_of::<Slub>());
    }

    /// Watches the sheaf slots of a cache on all CPUs, and the table entries of the CPUs.
    pub fn watch_slots_of(&self, cache: &Cache) {
        for (cpu, region) in self.slub.table.regions() {
            for slot in [cache.id.main(), cache.id.spare(), cache.id.rcu()] {
                loom_atomics::watch(std::ptr::from_ref(region.word(slot)) as usize, 8);
            }
            loom_atomics::watch(self.slub.table.active().wrapping_add(cpu) as usize, 8);
        }
    }

    /// Tries `run` in every order of its threads, with a bound on preemptions (see
    /// [`preemptions`]). `run` must join all threads that it starts, and returns the objects that
    /// stay in use.
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
            // Relaxed: only a counter.
            runs.fetch_add(1, Relaxed);
        });
        watch_over(name, runs);
        loop {
            // Relaxed: only a counter.
            runs.store(0, Relaxed);
            let run = run.clone();
            let done = catch_unwind(AssertUnwindSafe(|| builder.check(move || run())));
            match done {
                Ok(()) => break,
                Err(_) if loom_atomics::has_news() => loom_atomics::abandon(),
                Err(why) => resume_unwind(why),
            }
        }
        // Relaxed: only a counter.
        let runs = runs.swap(DONE, Relaxed);
        println!("model {name}: {runs} runs, at most {preemptions} preemptions");
    }
}

/// Ends the process if a run does not end. A bug may close a list to a ring, and loom cannot detect
/// an endless walk of a ring.
fn watch_over(name: &str, runs: &'static AtomicUsize) {
    let name = name.to_owned();
    std::thread::spawn(move || {
        let (mut before, mut idle) = (usize::MAX, 0);
        while before != DONE {
            std::thread::sleep(Duration::from_secs(1));
            // Relaxed: only a counter.
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

/// Silences the panic of a restart with a new atomic, because it is not a failure.
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

/// The bound on preemptions: `short` plus the value of `USLUB_PREEMPTIONS`.
pub fn preemptions(short: usize) -> usize {
    let more = std::env::var("USLUB_PREEMPTIONS").map_or(0, |more| more.parse().expect("a number"));
    short + more
}

/// A thread of a model.
pub type Thread<T> = loom::thread::JoinHandle<T>;

/// Starts a thread on a CPU.
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
