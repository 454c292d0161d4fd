//! Orders of a model's threads by chance, by shuttle: for runs too long to try every order.
//!
//! Each atomic operation and each announcement is a step, and before each step the scheduler says
//! which thread goes on. Half of the schedules choose evenly at each step. The other half (PCT)
//! give each thread a rank, run the first that can run, and at [`DEPTH`] − 1 steps by chance move
//! it to the end: so a thread may rest for long where it is.
//!
//! | what may happen | how |
//! |---|---|
//! | a slot operation is disturbed | one in [`DISTURBED`], by chance |
//! | a thread changes its CPU | [`hop`] |
//! | a thread waits for a lock or for a pool's element | sleeps until it is woken; a wake that is lost is a deadlock, which fails the model |
//! | a pause | lets others go first |
//!
//! A schedule follows from the seed and its number, so the same seed finds the same failure again.

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
/// Steps after which a run is taken for one that does not end; most have a few thousand.
const PATIENCE: usize = 2_000_000;
/// Bugs that need so many steps in a certain order are what PCT looks for.
pub const DEPTH: usize = 4;
/// One slot operation in so many fails, as one does that is interrupted.
pub const DISTURBED: u32 = 32;
/// Milliseconds from which on a wait is taken for one that somebody ends.
const LONG: u32 = 1000;
/// A sleep is a change of threads that does not count as giving way.
const CALLS: Calls = Calls {
    step: || shuttle::thread::sleep(Duration::ZERO),
    pause: shuttle::thread::yield_now,
};

std::thread_local! {
    /// Threads that sleep, and on which word.
    static SLEEPERS: RefCell<Vec<(usize, shuttle::thread::Thread)>> = RefCell::default();
}

/// Sleeps until the word is woken, unless it has changed; a short wait is a pause.
pub(crate) fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
    if timeout_ms.is_some_and(|ms| ms < LONG) {
        return shuttle::thread::yield_now();
    }
    // SeqCst: all steps have one order. None comes between this one and the entry.
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

/// Wakes at most so many threads that sleep on a word, by chance which.
pub(crate) fn wake(word: &AtomicU32, threads: usize) {
    for _ in 0..threads {
        let woken = SLEEPERS.with_borrow_mut(|all| {
            let mut here: Vec<_> = (0..all.len())
                .filter(|&n| all[n].0 == address(word))
                .collect();
            (!here.is_empty()).then(|| all.swap_remove(here.swap_remove(below(here.len()))).1)
        });
        match woken {
            // What a failed run leaves behind wakes nobody.
            Some(thread) if is_active() => thread.unpark(),
            _ => return,
        }
    }
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word) as usize
}

/// Whether a slot operation is to be disturbed.
pub(crate) fn is_disturbed() -> bool {
    is_active() && thread_rng().gen_ratio(1, DISTURBED)
}

/// A number below `n` (at least 1), by chance.
pub fn below(n: usize) -> usize {
    thread_rng().gen_range(0..n)
}

/// Puts this thread on one of so many CPUs, by chance.
pub fn hop(cpus: usize) {
    machine::on_cpu(below(cpus));
}

/// Gives way to all others.
pub fn rest() {
    shuttle::thread::yield_now();
}

/// Begins a thread on a CPU.
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

/// A number of the environment.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

impl Model {
    /// Tries `run` in so many schedules (times `USLUB_SCHEDULES`, from the seed `USLUB_SEED`).
    /// `run` joins all threads that it begins, and returns the objects that stay in use.
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
            // Relaxed: a figure.
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
        // Relaxed: a figure.
        let runs = runs.load(Relaxed);
        if let Err(why) = done {
            eprintln!("model {name}: USLUB_SEED={seed} fails in schedule {runs}");
            resume_unwind(why);
        }
        let took = start.elapsed().as_secs_f32();
        println!("model {name}: {runs} schedules from seed {seed}, {took:.1} s");
    }
}
