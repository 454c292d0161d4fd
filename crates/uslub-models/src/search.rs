//! The search that `explore` and `fast_explore` share: threads on a few CPUs, in every order.
//!
//! A model says what an instruction, an interruption and a step of the drain change. The search
//! skips states that it has seen before.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

pub(crate) const NR_CPUS: usize = 2;
/// Steps of a drain.
const DRAIN_STEPS: u8 = 4;

/// The input of an exploration, with calls `C`.
#[derive(Clone, Debug)]
pub struct Scenario<C> {
    /// The first CPU and the calls of each thread.
    pub threads: Vec<(usize, Vec<C>)>,
    /// The call of a signal handler of the first thread.
    pub handler: Option<C>,
    /// Whether CPU 0 is drained in parallel.
    pub drain: bool,
    /// The bound on the sum of preemptions, migrations and signals.
    pub disturbances: u32,
}

/// Statistics of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of different states.
    pub states: usize,
    /// Number of different end states.
    pub ends: usize,
    /// Number of aborted sequences.
    pub aborts: usize,
    /// Number of calls that were aborted behind their commit.
    pub late: usize,
}

/// A thread: its calls under way with their frames `F`, the innermost last, and the calls left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Thread<C, F> {
    pub(crate) cpu: usize,
    pub(crate) frames: Vec<F>,
    pub(crate) left: Vec<C>,
    handler: Option<C>,
}

impl<C, F> Thread<C, F> {
    fn is_over(&self) -> bool {
        self.frames.is_empty() && self.left.is_empty()
    }
}

/// All threads, and how far the drain is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Threads<C, F> {
    pub(crate) all: Vec<Thread<C, F>>,
    /// The thread that runs on each CPU.
    pub(crate) running: [Option<usize>; NR_CPUS],
    /// Completed steps of the drain.
    drained: u8,
    disturbances: u32,
}

impl<C: Clone, F> Threads<C, F> {
    pub(crate) fn of(scenario: &Scenario<C>) -> Self {
        let thread = |(n, (cpu, left)): (usize, &(usize, Vec<C>))| Thread {
            cpu: *cpu,
            frames: Vec::new(),
            left: left.clone(),
            handler: scenario.handler.clone().filter(|_| n == 0),
        };
        Self {
            all: scenario.threads.iter().enumerate().map(thread).collect(),
            running: [None; NR_CPUS],
            drained: if scenario.drain { 0 } else { DRAIN_STEPS },
            disturbances: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.drained == DRAIN_STEPS && self.all.iter().all(Thread::is_over)
    }
}

/// A state of a model.
pub(crate) trait State: Clone + Debug + Eq + Hash {
    type Call: Clone;
    type Frame;

    fn threads(&mut self) -> &mut Threads<Self::Call, Self::Frame>;

    /// Checks an end state.
    fn check(&self);
}

/// What events change.
pub(crate) trait Model {
    type State: State;

    /// The state after one instruction of a thread, or after the start or end of a call.
    fn stepped(&self, state: &Self::State, thread: usize) -> Self::State;

    /// What the kernel does before an interrupted thread continues.
    fn interrupt(&self, state: &mut Self::State, thread: usize, seen: &mut Seen);

    /// A step of the drain, from 1.
    fn drain_step(&self, state: &mut Self::State, step: u8, seen: &mut Seen);

    /// Begins a call of a thread.
    fn begin(&self, state: &mut Self::State, thread: usize, call: <Self::State as State>::Call);

    /// Moves a thread to a CPU.
    fn move_to(&self, state: &mut Self::State, thread: usize, cpu: usize);

    /// Tries every order from a start state on.
    fn search(&self, start: Self::State, disturbances: u32) -> Seen {
        let mut seen = Seen::default();
        let mut known = HashSet::from([start.clone()]);
        let mut next = vec![start];
        while let Some(mut state) = next.pop() {
            seen.states += 1;
            if state.threads().is_over() {
                seen.ends += 1;
                state.check();
            }
            for follower in self.followers(&mut state, disturbances, &mut seen) {
                if known.insert(follower.clone()) {
                    next.push(follower);
                }
            }
        }
        seen
    }

    /// The states that one event leads to.
    fn followers(
        &self,
        state: &mut Self::State,
        disturbances: u32,
        seen: &mut Seen,
    ) -> Vec<Self::State> {
        let mut all = Vec::new();
        let running = state.threads().running;
        for (cpu, thread) in running.into_iter().enumerate() {
            if let Some(thread) = thread {
                all.push(self.stepped(state, thread));
                continue;
            }
            for thread in 0..state.threads().all.len() {
                let waiting = &state.threads().all[thread];
                if waiting.cpu == cpu && !waiting.is_over() {
                    let mut next = state.clone();
                    next.threads().running[cpu] = Some(thread);
                    all.push(next);
                }
            }
        }
        if state.threads().drained < DRAIN_STEPS {
            let mut next = state.clone();
            next.threads().drained += 1;
            let step = next.threads().drained;
            self.drain_step(&mut next, step, seen);
            all.push(next);
        }
        if state.threads().disturbances == disturbances {
            return all;
        }
        for thread in running.into_iter().flatten() {
            let mut interrupted = state.clone();
            interrupted.threads().disturbances += 1;
            self.interrupt(&mut interrupted, thread, seen);
            // A signal: the handler runs before the interrupted call continues.
            let mut next = interrupted.clone();
            if let Some(call) = next.threads().all[thread].handler.take() {
                self.begin(&mut next, thread, call);
                all.push(next);
            }
            // A preemption, perhaps with a migration: then the same or another thread runs.
            let before = state.threads().all[thread].cpu;
            for cpu in 0..NR_CPUS {
                let mut next = interrupted.clone();
                next.threads().running[before] = None;
                self.move_to(&mut next, thread, cpu);
                all.push(next);
            }
        }
        all
    }
}

/// Words of memory at fixed addresses.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) addresses: Rc<[u64]>,
    words: Vec<u64>,
}

impl Memory {
    pub(crate) fn of(words: &BTreeMap<u64, u64>) -> Self {
        Self {
            addresses: words.keys().copied().collect(),
            words: words.values().copied().collect(),
        }
    }

    fn at(&self, address: u64) -> usize {
        let found = self.addresses.binary_search(&address);
        found.unwrap_or_else(|_| panic!("the word at {address:#x}, where nothing is"))
    }

    pub(crate) fn load(&self, address: u64) -> u64 {
        self.words[self.at(address)]
    }

    /// Writes a word, and returns its previous value.
    pub(crate) fn swap(&mut self, address: u64, value: u64) -> u64 {
        let at = self.at(address);
        std::mem::replace(&mut self.words[at], value)
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl Eq for Memory {}

impl Hash for Memory {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.words.hash(hasher);
    }
}
