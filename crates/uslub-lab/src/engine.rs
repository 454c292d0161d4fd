//! Virtual time: plays all CPUs of a machine on one thread, each as a coroutine with a clock.
//!
//! The CPU with the earliest clock runs. It may switch only in the calls of this file: accesses to
//! memory that others share, locks, pauses and sleeps. So each run with the same seed has the same
//! order of steps, on every machine.
//!
//! | call | effect on the CPU |
//! |---|---|
//! | [`access`] | pays for the line; CPUs with earlier clocks run first |
//! | [`touch`] | pays for an access of the load itself, whose lines come while it goes on |
//! | [`fast`] | pays for a fast path, whose access to the CPU's own words is one step |
//! | `enter`, `left` | waits in a lock's queue, first come, first served; passes the lock on |
//! | [`sleep`], [`wake_up`] | waits for another CPU or for a time |
//! | [`work`], [`idle`] | spends time outside of the allocator |
//!
//! A CPU whose accesses hit its own cache may be ahead of the others by [`SLACK`]. This saves
//! switches, and changes times by less than one transfer of a line.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use uslub_core_timed::sync::timed_atomics::{Access, Calls, Choice, make_calls};

use crate::costs::{Costs, ps};
use crate::cpu::{Cpu, Stop, Times};
use crate::error::Failure;
use crate::lines::{Kind, Lines};
use crate::policy::Policy;
use crate::topology::Topology;

/// Picoseconds by which a CPU may be ahead while its accesses hit its own cache.
const SLACK: u64 = 100_000;
/// Accesses of a call before its fast path, at most.
const FAST_HITS: usize = 4;
/// Bytes of a coroutine's stack: the allocator takes about 1 KiB in a release build.
const STACK: usize = 128 << 10;
/// Pauses in a row after which the simulation is taken for dead.
const PAUSES_MAX: u32 = 1_000_000;

/// Use of all locks that guard the same type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockUse {
    /// Times that a lock was taken by a caller who would wait.
    pub taken: u64,
    /// Of these, those that waited.
    pub waits: u64,
    /// Picoseconds of all waits.
    pub waited: u64,
}

#[derive(Default)]
struct LockQueue {
    waiting: VecDeque<usize>,
    promised: Option<usize>,
}

/// A simulated machine that runs.
pub struct Engine {
    cpus: Vec<Cpu>,
    /// Who can run, and when: time, CPU, ticket.
    heap: BinaryHeap<Reverse<(u64, usize, u64)>>,
    current: usize,
    /// The time at which another CPU must run.
    horizon: u64,
    /// Whether accesses are charged.
    is_on: bool,
    lines: Lines,
    locks: HashMap<usize, LockQueue>,
    /// Use of locks, by the type that they guard.
    uses: Vec<(&'static str, LockUse)>,
    /// Sleepers on a word.
    sleepers: HashMap<usize, VecDeque<usize>>,
    costs: Prices,
    policy: Option<Box<dyn Policy>>,
}

struct Prices {
    fast: u64,
    exchange: u64,
    overlap: f64,
    pause: u64,
    wake: u64,
    system_call: u64,
}

thread_local! {
    static ENGINE: Cell<*mut Engine> = const { Cell::new(std::ptr::null_mut()) };
}

static CALLS: Calls = Calls {
    access: |address, bytes, kind| {
        let kind = match kind {
            Access::Read => Kind::Read,
            Access::Write => Kind::Write,
            Access::Change => Kind::Change,
        };
        access(address, bytes, kind);
    },
    pause,
    enter,
    is_promised,
    left,
    choose,
};

/// Runs `f` on this thread's engine, if it has one. `f` must not switch CPUs.
#[inline]
fn with<R>(f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    let engine = ENGINE.get();
    // SAFETY: the engine lives until `drop` resets the pointer; `f` ends before any other call.
    (!engine.is_null()).then(|| f(unsafe { &mut *engine }))
}

/// As [`with`], while CPUs run and accesses count.
#[inline]
fn running<R>(f: impl FnOnce(&mut Engine) -> R) -> Option<R> {
    with(|e| e.is_on.then(|| f(e))).flatten()
}

/// Lets another CPU run.
#[inline(never)]
fn suspend(stop: Stop) {
    if let Some(yielder) = with(|e| e.cpus[e.current].yielder) {
        // SAFETY: the running coroutine's own yielder, which lives as long as its stack.
        unsafe { (*yielder).suspend(stop) };
    }
}

/// Lets CPUs with an earlier clock run.
#[inline]
fn catch_up(slack: u64) {
    while running(|e| e.cpus[e.current].clock > e.horizon.saturating_add(slack)) == Some(true) {
        suspend(Stop::Ready);
    }
}

/// Pays for an access.
#[inline]
pub fn access(address: usize, bytes: usize, kind: Kind) {
    if running(|_| ()).is_none() {
        return;
    }
    catch_up(SLACK);
    let ahead = running(|e| {
        let cpu = e.current;
        let now = e.cpus[cpu].clock;
        if now <= e.horizon || e.lines.is_own(cpu, address, bytes, kind) {
            e.pay(address, bytes, kind);
            return false;
        }
        true
    });
    if ahead == Some(true) {
        catch_up(0);
        running(|e| e.pay(address, bytes, kind));
    }
}

/// Pays for an access of the load itself: for lines that move, as far as the CPU waits for them.
/// It asks for the next object meanwhile. Hits are part of the load's work.
#[inline]
pub fn touch(address: usize, bytes: usize, kind: Kind) {
    catch_up(SLACK);
    running(|e| e.queue(address, bytes, kind));
}

impl Engine {
    #[inline]
    fn pay(&mut self, address: usize, bytes: usize, kind: Kind) {
        let cpu = &mut self.cpus[self.current];
        cpu.pauses = 0;
        if kind == Kind::Change {
            // An atomic instruction waits for all that the CPU asked for before.
            cpu.clock = cpu.clock.max(cpu.queue);
        }
        let cost = self
            .lines
            .touch(self.current, cpu.clock, address, bytes, kind);
        cpu.clock += cost.hit + cost.fault + cost.wait;
        if (cpu.hits.0 as usize) < FAST_HITS {
            cpu.hits = (cpu.hits.0 + 1, cpu.hits.1 + cost.hit);
        }
        cpu.ask_for(cost.queued, cost.longest, self.costs.overlap);
        if cpu.granted == address && address != 0 {
            cpu.granted = 0;
            if let Some(queue) = self.locks.get_mut(&address) {
                queue.promised = None;
            }
        }
    }

    /// Pays for an access whose line the CPU does not wait for, without the hit.
    #[inline]
    fn queue(&mut self, address: usize, bytes: usize, kind: Kind) {
        let cpu = &mut self.cpus[self.current];
        let cost = self
            .lines
            .touch(self.current, cpu.clock, address, bytes, kind);
        cpu.clock += cost.fault;
        cpu.ask_for(cost.queued + cost.wait, cost.longest, self.costs.overlap);
    }

    /// Makes a CPU ready at a time; its other wake-ups are void.
    fn ready(&mut self, cpu: usize, at: u64) {
        self.heap.push(Reverse((at, cpu, self.cpus[cpu].ticket)));
        self.horizon = self.horizon.min(at);
    }

    fn use_of(&mut self, guards: &'static str) -> &mut LockUse {
        let found = self
            .uses
            .iter()
            .position(|(name, _)| std::ptr::eq(*name, guards) || *name == guards);
        let at = found.unwrap_or_else(|| {
            self.uses.push((guards, LockUse::default()));
            self.uses.len() - 1
        });
        &mut self.uses[at].1
    }
}

/// Runs the CPU's own step: `before` runs first, its accesses are free, and no other CPU runs
/// meanwhile. Then pays for a fast path and for the accesses that `before` returns.
#[inline]
pub fn fast<R, const N: usize>(
    exchanges: bool,
    step: impl FnOnce() -> (R, [(usize, usize, Kind); N]),
) -> R {
    catch_up(SLACK);
    let was_on = with(|e| std::mem::replace(&mut e.is_on, false));
    let (result, accesses) = step();
    if was_on == Some(true) {
        with(|e| {
            e.is_on = true;
            let cpu = &mut e.cpus[e.current];
            let (_, hits) = std::mem::take(&mut cpu.hits);
            // The accesses of a call on its fast path are part of the cost of that path.
            if exchanges {
                cpu.clock += e.costs.exchange;
            } else {
                cpu.clock = (cpu.clock + e.costs.fast).saturating_sub(hits);
            }
            for (address, bytes, kind) in accesses {
                if bytes > 0 {
                    e.queue(address, bytes, kind);
                }
            }
        });
    }
    result
}

/// Starts to fetch a line.
pub fn prefetch(address: usize) {
    running(|e| {
        e.lines
            .prefetch(e.current, e.cpus[e.current].clock, address)
    });
}

/// Forgets the lines of memory that went back to the system; pays for the call.
pub fn forget(address: usize, bytes: usize) {
    running(|e| e.cpus[e.current].clock += e.costs.system_call);
    with(|e| e.lines.forget(address, bytes));
}

/// Pays for a call of the system.
pub fn system_call() {
    running(|e| e.cpus[e.current].clock += e.costs.system_call);
}

fn pause() {
    let dead = running(|e| {
        let cpu = &mut e.cpus[e.current];
        cpu.clock += e.costs.pause;
        cpu.pauses += 1;
        cpu.pauses > PAUSES_MAX
    });
    assert_ne!(dead, Some(true), "a CPU waits for ever");
    catch_up(0);
}

fn enter(lock: usize, guards: &'static str, is_free: &dyn Fn() -> bool) {
    if running(|_| ()).is_none() {
        return;
    }
    // The arrival changes the lock's word or the end of its queue.
    access(lock, 4, Kind::Change);
    let quiet = |e: &mut Engine| std::mem::replace(&mut e.is_on, false);
    running(quiet);
    let free = is_free();
    let waits = with(|e| {
        e.is_on = true;
        let cpu = e.current;
        let queue = e.locks.entry(lock).or_default();
        let waits = !free || queue.promised.is_some();
        if waits {
            queue.waiting.push_back(cpu);
            e.cpus[cpu].ticket += 1;
        }
        let used = e.use_of(guards);
        used.taken += 1;
        used.waits += u64::from(waits);
        waits.then_some(e.cpus[cpu].clock)
    });
    if let Some(Some(since)) = waits {
        suspend(Stop::Blocked);
        running(|e| {
            let waited = e.cpus[e.current].clock - since;
            e.use_of(guards).waited += waited;
        });
    }
}

fn is_promised(lock: usize) -> bool {
    running(|e| {
        let promised = e.locks.get(&lock).and_then(|queue| queue.promised);
        promised.is_some_and(|cpu| cpu != e.current)
    }) == Some(true)
}

fn left(lock: usize) {
    running(|e| {
        let from = e.current;
        let Some(queue) = e.locks.get_mut(&lock) else {
            return;
        };
        if let Some(next) = queue.waiting.pop_front() {
            queue.promised = Some(next);
            e.cpus[next].granted = lock;
            let at = e.cpus[from].clock + e.lines.way(from, next);
            e.ready(next, at);
        }
    });
}

fn choose(choice: Choice, ours: usize) -> usize {
    let chosen = running(|e| e.policy.as_mut().map(|policy| policy.choose(choice, ours)));
    chosen.flatten().unwrap_or(ours)
}

/// Spends nanoseconds outside of the allocator.
pub fn work(ns: u64) {
    running(|e| {
        let cpu = &mut e.cpus[e.current];
        cpu.clock += ns * 1000;
        cpu.times.work += ns * 1000;
    });
}

/// Sleeps until [`wake_up`] with the same word, or until a time in picoseconds.
pub fn sleep(word: usize, until: Option<u64>) {
    let before = running(|e| {
        let cpu = e.current;
        e.cpus[cpu].ticket += 1;
        e.sleepers.entry(word).or_default().push_back(cpu);
        if let Some(until) = until {
            let at = until.max(e.cpus[cpu].clock);
            e.heap.push(Reverse((at, cpu, e.cpus[cpu].ticket)));
        }
        e.cpus[cpu].clock
    });
    if let Some(before) = before {
        suspend(Stop::Blocked);
        running(|e| {
            let cpu = e.current;
            e.cpus[cpu].times.idle += e.cpus[cpu].clock - before;
            if let Some(queue) = e.sleepers.get_mut(&word) {
                queue.retain(|&c| c != cpu);
            }
        });
    }
}

/// Wakes at most `most` sleepers of a word; each runs `after` picoseconds later.
pub fn wake_up(word: usize, most: usize, after: u64) {
    running(|e| {
        let at = e.cpus[e.current].clock + after;
        for _ in 0..most {
            let sleeper = e.sleepers.get_mut(&word).and_then(VecDeque::pop_front);
            let Some(cpu) = sleeper else { break };
            e.ready(cpu, at);
        }
    });
}

/// Sleep and wake-up by the system: cost in picoseconds.
pub fn wake_cost() -> u64 {
    running(|e| e.costs.wake).unwrap_or(0)
}

/// The running CPU; 0 outside of a run.
#[inline]
pub fn here() -> usize {
    with(|e| e.current).unwrap_or(0)
}

/// The running CPU's clock, in picoseconds.
#[inline]
pub fn now() -> u64 {
    with(|e| e.cpus[e.current].clock).unwrap_or(0)
}

/// An engine that this thread of the system uses until the value is dropped.
pub struct Running(Box<Engine>);

impl Running {
    /// An engine for a machine whose shared memory is a range.
    pub fn new(
        machine: &Topology,
        costs: &Costs,
        (start, bytes): (usize, usize),
        policy: Option<Box<dyn Policy>>,
    ) -> Result<Self, Failure> {
        assert!(
            ENGINE.get().is_null(),
            "a thread runs one machine at a time"
        );
        let mut engine = Box::new(Engine {
            cpus: (0..machine.cpus).map(|_| Cpu::new()).collect(),
            heap: BinaryHeap::new(),
            current: 0,
            horizon: u64::MAX,
            is_on: false,
            lines: Lines::new(start, bytes, machine, costs)?,
            locks: HashMap::new(),
            uses: Vec::new(),
            sleepers: HashMap::new(),
            costs: Prices {
                fast: ps(costs.fast),
                exchange: ps(costs.exchange),
                overlap: costs.overlap.max(1.0),
                pause: ps(costs.pause),
                wake: ps(costs.wake),
                system_call: ps(costs.system_call),
            },
            policy,
        });
        ENGINE.set(&raw mut *engine);
        make_calls(Some(&CALLS));
        Ok(Self(engine))
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "the engine lies behind a pointer of this thread"
    )]
    fn engine(&self) -> &mut Engine {
        // SAFETY: the pointer of this thread is to our box; no other reference lives longer than a
        // call.
        unsafe { &mut *ENGINE.get() }
    }

    /// Runs on each CPU its program to the end. Programs begin at the same time: the latest clock.
    pub fn run(&mut self, programs: Vec<Box<dyn FnOnce() + '_>>) -> Result<(), Failure> {
        let engine = self.engine();
        let start = self.latest();
        let mut coroutines = Vec::new();
        for (cpu, program) in programs.into_iter().enumerate() {
            engine.cpus[cpu].clock = start;
            let stack = DefaultStack::new(STACK).map_err(|_| Failure::NoMemory(STACK >> 20))?;
            let body = move |yielder: &Yielder<(), Stop>, ()| {
                with(|e| e.cpus[e.current].yielder = yielder);
                program();
            };
            // SAFETY: each coroutine runs to its end before this function returns, or the
            // process panics; the programs' borrows live longer.
            coroutines
                .push(unsafe { Coroutine::<(), Stop, ()>::with_stack_unchecked(stack, body) });
            engine.ready(cpu, start);
        }
        engine.is_on = true;
        let mut left = coroutines.len();
        while left > 0 {
            let engine = self.engine();
            let Some(Reverse((at, cpu, ticket))) = engine.heap.pop() else {
                panic!("{left} CPUs wait for each other");
            };
            if engine.cpus[cpu].ticket != ticket {
                continue;
            }
            engine.cpus[cpu].ticket += 1;
            engine.cpus[cpu].clock = engine.cpus[cpu].clock.max(at);
            engine.current = cpu;
            engine.horizon = engine.heap.peek().map_or(u64::MAX, |Reverse((t, ..))| *t);
            let stop = coroutines[cpu].resume(());
            let engine = self.engine();
            match stop {
                CoroutineResult::Yield(Stop::Ready) => {
                    let at = engine.cpus[cpu].clock;
                    engine.ready(cpu, at);
                }
                CoroutineResult::Yield(Stop::Blocked) => (),
                CoroutineResult::Return(()) => {
                    left -= 1;
                    engine.cpus[cpu].times.passed += engine.cpus[cpu].clock - start;
                }
            }
        }
        let engine = self.engine();
        engine.is_on = false;
        engine.current = 0;
        engine.heap.clear();
        Ok(())
    }

    /// The latest clock, in picoseconds.
    pub fn latest(&self) -> u64 {
        self.engine()
            .cpus
            .iter()
            .map(|cpu| cpu.clock)
            .max()
            .unwrap_or(0)
    }

    /// Moves all clocks to a later time, as if nothing happened meanwhile.
    pub fn pass(&mut self, ps: u64) {
        let at = self.latest() + ps;
        self.engine().cpus.iter_mut().for_each(|cpu| cpu.clock = at);
    }

    /// Lets calls outside of a run be those of a CPU.
    pub fn on(&mut self, cpu: usize) {
        self.engine().current = cpu;
    }

    /// Forgets times, moves and waits so far.
    pub fn reset(&mut self) {
        let engine = self.engine();
        engine.lines.moves = Default::default();
        engine.uses.clear();
        engine
            .cpus
            .iter_mut()
            .for_each(|cpu| cpu.times = Times::default());
    }

    /// Times of all CPUs.
    pub fn times(&self) -> Vec<Times> {
        self.engine().cpus.iter().map(|cpu| cpu.times).collect()
    }

    /// Lines moved.
    pub fn moves(&self) -> crate::lines::Moves {
        self.engine().lines.moves
    }

    /// Use of locks, by the type that they guard.
    pub fn uses(&self) -> Vec<(&'static str, LockUse)> {
        self.engine().uses.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        make_calls(None);
        ENGINE.set(std::ptr::null_mut());
        let _ = &self.0;
    }
}
