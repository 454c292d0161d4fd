//! The laboratory's loads on the real allocator.

use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use uslub_core::Gfp;
use uslub_linux::Linux;
use uslub_sim::{Batches, Clock, cpu};

use super::{Check, GRACE, ROUNDS, SIZE, hardware};
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
/// Time before: a tree's nodes come round after some grace periods, sheaves find their capacity.
const WARM: Duration = Duration::from_millis(40);
/// Bulks for which there are random numbers.
const PICKS: usize = 64;
/// The laboratory's numbers: bulks held, nodes of a tree, batch and depth of a queue.
const HELD: usize = 8;
const LIVE: usize = 24;
const BATCH: usize = 32;
const DEPTH: usize = 128;

/// Nanoseconds of an operation.
#[derive(Clone, Copy)]
pub struct Time {
    /// Of the whole load.
    pub all: f64,
    /// Of what the load does itself.
    pub own: f64,
    /// Of lines between the two CPUs, right after it; see [`hardware::lines`].
    pub lines: Option<(f64, f64)>,
}

impl Time {
    /// Of the allocator's calls.
    pub fn calls(&self) -> f64 {
        self.all - self.own
    }
}

/// Nanoseconds of an operation of one CPU, in the fastest round. All CPUs work at the same time.
/// What the load does besides its calls does not count: the model has no cost for it.
pub fn fastest(check: Check, cpus: &[usize]) -> Result<Time, Failure> {
    let slub = linux::steady()?;
    let mut best = Time {
        all: f64::INFINITY,
        own: f64::INFINITY,
        lines: None,
    };
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
            Check::Flow => Time {
                all: flow(&strategy, cpus)?,
                own: 0.0,
                lines: None,
            },
            _ => on_each(check, &strategy, cpus)?,
        };
        slub.rcu_barrier();
        // The first round warms up.
        if round > 0 {
            best.own = best.own.min(time.own);
            if time.all < best.all {
                best.all = time.all;
                best.lines = match cpus {
                    &[one, other] => Some(hardware::lines([one, other])?),
                    _ => None,
                };
            }
        }
    }
    Ok(best)
}

/// Runs the load on each CPU; returns the mean time of an operation.
fn on_each(check: Check, strategy: &Strategy<'_, Linux>, cpus: &[usize]) -> Result<Time, Failure> {
    let ready = AtomicUsize::new(0);
    let periods = periods(strategy.slub);
    let one = |number: usize| -> Result<Time, Failure> {
        let pinned = Pinned::to(cpus[number])?;
        cpu::on(number);
        let together = |n: usize| {
            // Release and Acquire: all begin together.
            ready.fetch_add(1, Release);
            wait_until(|| ready.load(Acquire) >= n * cpus.len());
        };
        let mut load = Load::new(check, strategy, periods, number);
        let all = load.run(|| together(1));
        let nodes = strategy.slub.info(strategy.cache).num_objs / cpus.len();
        load.end();
        if check == Check::Pairs {
            // A pair without calls is one write.
            drop(pinned);
            return Ok(Time {
                all,
                own: 0.0,
                lines: None,
            });
        }
        let mut load = Load::new(check, strategy, periods, number);
        load.own = Some(Own::new(nodes.max(2 * LIVE), &mut load.dice));
        let own = load.run(|| together(2));
        drop(pinned);
        Ok(Time {
            all,
            own,
            lines: None,
        })
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..cpus.len())
            .map(|n| scope.spawn(move || one(n)))
            .collect();
        let mut sum = one(0)?;
        for other in others {
            let time = joined(other)?;
            sum.all += time.all;
            sum.own += time.own;
        }
        let n = cpus.len() as f64;
        Ok(Time {
            all: sum.all / n,
            own: sum.own / n,
            lines: None,
        })
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
    let periods = PERIODS.get_or_init(|| Batches::new(2, Clock::real(), GRACE));
    slub.set_grace_period(periods);
    periods
}

/// Objects without an allocator, which come round in a fixed order. The same load on them shows
/// what the load does itself.
struct Own {
    memory: Vec<[u8; SIZE]>,
    order: Vec<usize>,
    next: usize,
}

impl Own {
    fn new(n: usize, dice: &mut Dice) -> Self {
        let mut order: Vec<_> = (0..n).collect();
        dice.shuffle(&mut order);
        Self {
            memory: vec![[0; SIZE]; n],
            order,
            next: 0,
        }
    }

    fn alloc(&mut self) -> *mut u8 {
        self.next = (self.next + 1) % self.order.len();
        self.memory[self.order[self.next]].as_mut_ptr()
    }
}

/// A load of one CPU.
struct Load<'a, 'b> {
    check: Check,
    strategy: &'a Strategy<'b, Linux>,
    grace: &'static Batches,
    held: Vec<*mut u8>,
    dice: Dice,
    /// If there are any: the objects in place of the allocator's.
    own: Option<Own>,
    /// A bulk, and random numbers for the next ones.
    bulk: Vec<*mut u8>,
    picks: Vec<u32>,
    turn: usize,
}

impl<'a, 'b> Load<'a, 'b> {
    fn new(
        check: Check,
        strategy: &'a Strategy<'b, Linux>,
        grace: &'static Batches,
        number: usize,
    ) -> Self {
        let n = match check {
            Check::Bulk(n) => n,
            _ => 0,
        };
        let mut dice = Dice::new(number as u64);
        Self {
            check,
            strategy,
            grace,
            held: Vec::with_capacity((HELD + 1) * n),
            own: None,
            bulk: vec![null_mut(); n],
            picks: (0..PICKS * n)
                .map(|_| dice.below(HELD * n) as u32)
                .collect(),
            turn: 0,
            dice,
        }
    }

    /// Runs the load for the time before the measurement, and then measures the nanoseconds of an
    /// operation.
    fn run(&mut self, begin: impl FnOnce()) -> f64 {
        let start = Instant::now();
        while start.elapsed() < WARM {
            for _ in 0..100 {
                self.step();
            }
        }
        begin();
        let (steps, each) = match self.check {
            Check::Pairs => (PAIRS, 1),
            Check::Bulk(n) => (OBJECTS / n, n),
            Check::Maple | Check::Flow => (STEPS, 1),
        };
        let time = cpu_nanoseconds(|| (0..steps).for_each(|_| self.step()));
        time / (steps * each) as f64
    }

    #[inline]
    fn step(&mut self) {
        match self.check {
            Check::Pairs => self.pair(),
            Check::Bulk(n) => self.bulk(n),
            Check::Maple | Check::Flow => self.maple(),
        }
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
        let start = self.held.len();
        self.held.resize(start + n, null_mut());
        let objects = &mut self.held[start..];
        if self.own.is_some() {
            objects.copy_from_slice(&self.bulk[..n]);
        } else if !slub.alloc_bulk(cache, Gfp::KERNEL, objects) {
            return self.held.truncate(start);
        }
        if self.held.len() > HELD * n {
            self.turn = (self.turn + n) % self.picks.len();
            let picks = &self.picks[self.turn..self.turn + n];
            for (object, pick) in self.bulk.iter_mut().zip(picks) {
                *object = self.held.swap_remove(*pick as usize % self.held.len());
            }
            if self.own.is_none() {
                // SAFETY: the objects are of this cache and are freed once.
                unsafe { slub.free_bulk(cache, &mut self.bulk) };
            }
        }
    }

    fn plant(&mut self, node: *mut u8) {
        if !node.is_null() {
            // SAFETY: a node has 256 bytes.
            unsafe { node.cast::<[usize; 8]>().write_volatile([0; 8]) };
            self.held.push(node);
        }
    }

    fn maple(&mut self) {
        let Strategy { slub, cache } = self.strategy;
        if self.dice.below(5) == 0 {
            let (worst, needed) = (8 + self.dice.below(23), 1 + self.dice.below(4));
            if let Some(own) = &mut self.own {
                let nodes: [_; 4] = std::array::from_fn(|_| own.alloc());
                for node in &nodes[..needed] {
                    self.plant(*node);
                }
            } else if let Some(mut sheaf) = slub.prefill(cache, Gfp::KERNEL, worst) {
                for _ in 0..needed {
                    self.plant(slub.alloc_from(cache, Gfp::KERNEL, &mut sheaf));
                }
                slub.return_prefilled(cache, Gfp::KERNEL, sheaf);
            }
        } else {
            let node = match &mut self.own {
                Some(own) => own.alloc(),
                None => slub.alloc(cache, Gfp::KERNEL),
            };
            self.plant(node);
        }
        while self.held.len() > LIVE {
            let old = self.held.swap_remove(self.dice.below(LIVE));
            if self.own.is_none() {
                // SAFETY: the node is of this cache and is freed once.
                unsafe { slub.free_rcu(cache, old) };
            }
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
