//! Runs a model's threads in random orders with shuttle, for runs that are too long for every
//! order. `tests/shuttle.rs` uses it.
//!
//! Each atomic operation and each declared write is a step. Before each step the scheduler chooses
//! the next thread. Half of the schedules choose uniformly at each step. The other half uses PCT:
//! each thread has a rank, and the first runnable thread by rank runs. At [`DEPTH`] − 1 random
//! steps, the running thread moves to the last rank. So a thread may stay at one step for long.
//!
//! | event | model |
//! |---|---|
//! | a slot operation is disturbed | one in [`DISTURBED`] operations, at random |
//! | a thread changes its CPU | [`hop`] |
//! | a thread waits for a lock or a pool's element | the thread sleeps until it is woken |
//! | a wake-up is lost | deadlock, which fails the model |
//! | a pause | yields to other threads |
//!
//! A schedule depends only on the seed and its number, so the same seed reproduces a failure.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use uslub_core::sync::atomic::{AtomicU32, is_active};
use uslub_core::sync::shuttle_atomics::{Calls, make_calls};

use crate::machine;
use crate::model::{Model, Object, Slub};

pub(crate) use shuttle::sync::Mutex;
pub(crate) use shuttle::thread_local;

/// Bytes of stack of a modelled thread.
const STACK: usize = 256 << 10;
/// Steps after which a run counts as endless; most runs have a few thousand.
const PATIENCE: usize = 2_000_000;
/// PCT finds bugs that need this number of steps in a certain order.
pub const DEPTH: usize = 4;
/// One in this number of slot operations fails, like an interrupted operation.
pub const DISTURBED: u32 = 32;
/// A wait of at least this many milliseconds counts as a wait for another thread's wake-up.
const LONG: u32 = 1000;
/// A sleep of no time switches threads without counting as a yield.
const CALLS: Calls = Calls {
    step: || shuttle::thread::sleep(Duration::ZERO),
    pause: shuttle::thread::yield_now,
};

std::thread_local! {
    /// Sleeping threads, each with the address of its word.
    static SLEEPERS: RefCell<Vec<(usize, shuttle::thread::Thread)>> = RefCell::default();
}

/// Sleeps until the word is woken, unless the word has changed. A short wait is only a yield.
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
    if timeout_ms.is_some_and(|ms| ms < LONG) {
        return shuttle::thread::yield_now();
    }
    // SeqCst: all steps have one order. No step comes between this load and the entry.
    if word.load(SeqCst) != value {
        return;
    }
    let me = shuttle::thread::current();
    let id = me.id();
    SLEEPERS.with_borrow_mut(|all| all.push((address(word), me)));
    while SLEEPERS.with_borrow(|all| all.iter().any(|(_, thread)| thread.id() == id)) {
        shuttle::thread::park();
    }
}

/// Wakes at most `threads` random threads that sleep on a word.
pub(crate) fn wake(word: &AtomicU32, threads: usize) {
    for _ in 0..threads {
        let woken = SLEEPERS.with_borrow_mut(|all| {
            let mut here: Vec<_> = (0..all.len())
                .filter(|&n| all[n].0 == address(word))
                .collect();
            (!here.is_empty()).then(|| all.swap_remove(here.swap_remove(below(here.len()))).1)
        });
        match woken {
            // The sleepers of a failed run must stay asleep.
            Some(thread) if is_active() => thread.unpark(),
            _ => return,
        }
    }
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word) as usize
}

/// Whether a slot operation is disturbed.
pub(crate) fn is_disturbed() -> bool {
    is_active() && thread_rng().gen_ratio(1, DISTURBED)
}

/// A random number below `n` (at least 1).
pub fn below(n: usize) -> usize {
    thread_rng().gen_range(0..n)
}

/// Moves this thread to a random CPU below `cpus`.
pub fn hop(cpus: usize) {
    machine::on_cpu(below(cpus));
}

/// Yields to all other threads.
pub fn rest() {
    shuttle::thread::yield_now();
}

/// Starts a thread on a CPU.
pub fn spawn<T: Send + 'static>(
    cpu: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> shuttle::thread::JoinHandle<T> {
    let builder = shuttle::thread::Builder::new().stack_size(STACK);
    let work = move || {
        machine::on_cpu(cpu);
        work()
    };
    builder.spawn(work).expect("a thread")
}

/// The number in an environment variable.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

impl Model {
    /// Tries `run` in `schedules` schedules (times `USLUB_SCHEDULES`, from the seed `USLUB_SEED`).
    /// `run` must join all threads that it starts, and returns the objects that stay in use.
    pub fn check(
        self,
        name: &str,
        schedules: usize,
        run: impl Fn(&'static Slub) -> Vec<Object> + Send + Sync + 'static,
    ) {
        let half = schedules.div_ceil(2) * number("USLUB_SCHEDULES", 1) as usize;
        let seed = number("USLUB_SEED", 1);
        let setup = self.seal();
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        let run = Arc::new(move || {
            // Relaxed: only a counter.
            counter.fetch_add(1, Relaxed);
            SLEEPERS.with_borrow_mut(Vec::clear);
            setup.begin();
            make_calls(Some(CALLS));
            let left = run(setup.slub);
            make_calls(None);
            setup.end(&left);
        });
        let mut config = Config::new();
        config.stack_size = STACK;
        config.max_steps = MaxSteps::FailAfter(PATIENCE);
        config.failure_persistence = FailurePersistence::None;
        config.silence_warnings = true;
        let start = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let (even, ranks) = (run.clone(), run);
            let random = RandomScheduler::new_from_seed(seed, half);
            Runner::new(random, config.clone()).run(move || even());
            let pct = PctScheduler::new_from_seed(seed, DEPTH, half);
            Runner::new(pct, config).run(move || ranks());
        }));
        make_calls(None);
        // Relaxed: only a counter.
        let runs = runs.load(Relaxed);
        if let Err(why) = done {
            eprintln!("model {name}: USLUB_SEED={seed} fails in schedule {runs}");
            resume_unwind(why);
        }
        let took = start.elapsed().as_secs_f32();
        println!("model {name}: {runs} schedules from seed {seed}, {took:.1} s");
    }
}
