//! The laboratory's loads on the real allocator.

use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::Gfp;
use uslub_linux::Linux;
use uslub_sim::{Batches, Clock, cpu};

use super::{Check, ROUNDS, SIZE};
use crate::dice::Dice;
use crate::error::Failure;
use crate::linux::{self, Pinned, Slub};
use crate::measure::nanoseconds;
use crate::ring::{Ring, wait_until};
use crate::strategy::Strategy;
use crate::threads::joined;

/// Operations of a round.
const PAIRS: usize = 400_000;
const OBJECTS: usize = 400_000;
const STEPS: usize = 100_000;
const GRACE_MS: u64 = 4;
/// The laboratory's numbers: bulks held, nodes of a tree, batch and depth of a queue.
const HELD: usize = 8;
const LIVE: usize = 24;
const BATCH: usize = 32;
const DEPTH: usize = 128;

/// Nanoseconds of an operation of one CPU, in the fastest round. All CPUs work at the same time.
pub fn fastest(check: Check, cpus: &[usize]) -> Result<f64, Failure> {
    let slub = linux::steady()?;
    let mut best = f64::INFINITY;
    for round in 0..=ROUNDS {
        let settings: &[&str] = if check == Check::Maple {
            &[
                "sheaf_capacity=32",
                "max_full_sheaves=10",
                "slab_min_objects=32",
                "slab_min_order=1",
            ]
        } else {
            &[]
        };
        let strategy = Strategy::new(slub, SIZE, settings)?;
        let time = match check {
            Check::Flow => flow(&strategy, cpus)?,
            Check::Bulk(n) => on_each(check, &strategy, cpus)? - without_calls(n),
            _ => on_each(check, &strategy, cpus)?,
        };
        slub.rcu_barrier();
        // The first round warms up.
        if round > 0 {
            best = best.min(time);
        }
    }
    Ok(best)
}

/// Nanoseconds of an object in the loop of bulks, without the calls: the model does not count them.
fn without_calls(n: usize) -> f64 {
    let mut held = vec![null_mut::<u8>(); HELD * n];
    let mut dice = Dice::new(0);
    let (time, ()) = nanoseconds(|| {
        for _ in 0..OBJECTS / n {
            held.append(&mut std::hint::black_box(vec![null_mut(); n]));
            let take = |_| held.swap_remove(dice.below(held.len()));
            std::hint::black_box((0..n).map(take).collect::<Vec<_>>());
        }
    });
    time / (OBJECTS / n * n) as f64
}

/// Runs the load on each CPU; returns the mean time of an operation.
fn on_each(check: Check, strategy: &Strategy<'_, Linux>, cpus: &[usize]) -> Result<f64, Failure> {
    let ready = AtomicUsize::new(0);
    let periods = periods(strategy.slub);
    let one = |number: usize| -> Result<f64, Failure> {
        let pinned = Pinned::to(cpus[number])?;
        cpu::on(number);
        let mut load = Load::new(check, strategy, periods, number);
        load.run(STEPS / 2);
        // Release and Acquire: all begin together.
        ready.fetch_add(1, Release);
        wait_until(|| ready.load(Acquire) >= cpus.len());
        let time = load.run(usize::MAX);
        load.end();
        drop(pinned);
        Ok(time)
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..cpus.len())
            .map(|n| scope.spawn(move || one(n)))
            .collect();
        let mut sum = one(0)?;
        for other in others {
            sum += joined(other)?;
        }
        Ok(sum / cpus.len() as f64)
    })
}

/// Nanoseconds of CPU time that `work` takes: other programs on the CPU do not count.
fn cpu_nanoseconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call writes the time only.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let before = now();
    work();
    now() - before
}

/// The grace periods of the real allocator.
fn periods(slub: &Slub) -> &'static Batches {
    static PERIODS: OnceLock<Batches> = OnceLock::new();
    let periods = PERIODS.get_or_init(|| Batches::new(2, Clock::real(), GRACE_MS));
    slub.set_grace_period(periods);
    periods
}

/// A load of one CPU.
struct Load<'a, 'b> {
    check: Check,
    strategy: &'a Strategy<'b, Linux>,
    grace: &'static Batches,
    held: Vec<*mut u8>,
    dice: Dice,
}

impl<'a, 'b> Load<'a, 'b> {
    fn new(
        check: Check,
        strategy: &'a Strategy<'b, Linux>,
        grace: &'static Batches,
        number: usize,
    ) -> Self {
        Self {
            check,
            strategy,
            grace,
            held: Vec::new(),
            dice: Dice::new(number as u64),
        }
    }

    /// Runs at most `most` steps; returns the nanoseconds of an operation.
    fn run(&mut self, most: usize) -> f64 {
        let (steps, each) = match self.check {
            Check::Pairs => (PAIRS, 1),
            Check::Bulk(n) => (OBJECTS / n, n),
            Check::Maple | Check::Flow => (STEPS, 1),
        };
        let steps = steps.min(most);
        let time = cpu_nanoseconds(|| {
            for _ in 0..steps {
                match self.check {
                    Check::Pairs => self.pair(),
                    Check::Bulk(n) => self.bulk(n),
                    Check::Maple | Check::Flow => self.maple(),
                }
            }
        });
        time / (steps * each) as f64
    }

    #[inline]
    fn pair(&self) {
        let Strategy { slub, cache } = self.strategy;
        let object = slub.alloc(cache, Gfp::KERNEL);
        if !object.is_null() {
            // SAFETY: the object is ours, and it is freed once.
            unsafe {
                object.cast::<usize>().write_volatile(1);
                slub.free(cache, object);
            }
        }
    }

    fn bulk(&mut self, n: usize) {
        let Strategy { slub, cache } = self.strategy;
        let mut objects = vec![null_mut(); n];
        if slub.alloc_bulk(cache, Gfp::KERNEL, &mut objects) {
            self.held.append(&mut objects);
        }
        if self.held.len() > HELD * n {
            let take = |_| self.held.swap_remove(self.dice.below(self.held.len()));
            let mut old: Vec<_> = (0..n).map(take).collect();
            // SAFETY: the objects are of this cache and are freed once.
            unsafe { slub.free_bulk(cache, &mut old) };
        }
    }

    fn maple(&mut self) {
        let Strategy { slub, cache } = self.strategy;
        let plant = |held: &mut Vec<*mut u8>, node: *mut u8| {
            if !node.is_null() {
                // SAFETY: a node has 256 bytes.
                unsafe { node.cast::<[usize; 8]>().write_volatile([0; 8]) };
                held.push(node);
            }
        };
        if self.dice.below(5) == 0 {
            let (worst, needed) = (8 + self.dice.below(23), 1 + self.dice.below(4));
            if let Some(mut sheaf) = slub.prefill(cache, Gfp::KERNEL, worst) {
                for _ in 0..needed {
                    plant(
                        &mut self.held,
                        slub.alloc_from(cache, Gfp::KERNEL, &mut sheaf),
                    );
                }
                slub.return_prefilled(cache, Gfp::KERNEL, sheaf);
            }
        } else {
            plant(&mut self.held, slub.alloc(cache, Gfp::KERNEL));
        }
        while self.held.len() > LIVE {
            let old = self.held.swap_remove(self.dice.below(LIVE));
            // SAFETY: the node is of this cache and is freed once.
            unsafe { slub.free_rcu(cache, old) };
        }
        self.grace.run(1);
    }

    fn end(&mut self) {
        let Strategy { slub, cache } = self.strategy;
        for object in self.held.drain(..) {
            // SAFETY: the object is of this cache and is freed once.
            unsafe { slub.free(cache, object) };
        }
    }
}

/// A producer on one CPU and a consumer on the other; nanoseconds of an object.
fn flow(strategy: &Strategy<'_, Linux>, cpus: &[usize]) -> Result<f64, Failure> {
    let ring = Ring::new(DEPTH);
    let Strategy { slub, cache } = strategy;
    let consume = || {
        let pinned = Pinned::to(cpus[1]);
        let mut left = OBJECTS / BATCH * BATCH;
        let mut batch = [null_mut(); BATCH];
        while left > 0 {
            let mut got = 0;
            wait_until(|| {
                got = ring.try_take(&mut batch);
                got > 0
            });
            left -= got;
            for object in &batch[..got] {
                // SAFETY: the producer gave the object up, and it is freed once.
                unsafe {
                    object.cast::<usize>().read_volatile();
                    slub.free(cache, *object);
                }
            }
        }
        pinned.map(drop)
    };
    std::thread::scope(|scope| {
        let consumer = scope.spawn(consume);
        let pinned = Pinned::to(cpus[0]);
        let (time, done) = nanoseconds(|| {
            for _ in 0..OBJECTS / BATCH {
                let mut batch = [null_mut(); BATCH];
                for place in &mut batch {
                    *place = slub.alloc(cache, Gfp::KERNEL | Gfp::NOFAIL);
                    // SAFETY: the object is new.
                    unsafe { place.cast::<usize>().write_volatile(1) };
                }
                wait_until(|| ring.try_put(&batch));
            }
            joined(consumer)
        });
        done?;
        pinned.map(|_| time / OBJECTS as f64)
    })
}
