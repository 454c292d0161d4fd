//! Runs the fast paths for aarch64 of several threads in every order. `tests/fast_paths.rs` gives
//! the scenarios. Between any two instructions the events of `explore` may happen: another CPU's
//! instruction, a preemption, a migration, a signal whose handler makes a call, a step of a drain.
//!
//! At each end, every object must be in exactly one place, and every call that did not leave for a
//! slow path is counted. A call that moves to another CPU may lose its count.

use std::collections::HashSet;

use crate::fast_aarch64::{Outcome, Program};
use crate::fast_state::{
    CLASSES, COUNTS, CPU_ID, DESCRIPTOR, DESCRIPTORS, FRONT, Here, LINE, MARK, MM_CID, NO_SHEAF,
    NR_CPUS, REGIONS, SHAPES, STOPPED, State, TABLE, Thread, WINDOW, area, slot,
};
pub use crate::fast_state::{Call, Scenario};

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

/// The parsed functions: `malloc` and `free` by the concurrency id.
#[derive(Debug)]
pub struct FastPaths([Program; 2]);

impl FastPaths {
    /// Parses the functions from the source.
    pub fn read() -> Self {
        let common = |call: usize, base: u64| {
            vec![
                ("front", FRONT),
                ("descriptor", DESCRIPTORS[call]),
                ("number", CPU_ID),
                ("index", MM_CID),
                ("regions", TABLE - base),
                ("count", COUNTS[call]),
            ]
        };
        let mut malloc = common(0, CLASSES);
        malloc.extend([
            ("classes", CLASSES),
            ("limit", (LINE + 24).wrapping_sub(CLASSES)),
        ]);
        let mut free = common(1, 0);
        free.extend([
            ("base", LINE),
            ("map", LINE + 16),
            ("offset", LINE + 32),
            ("pages", LINE + 48),
            ("shapes", SHAPES),
            ("byte", MARK & 0xff),
            ("mark", MARK),
            ("room", WINDOW - 1),
        ]);
        Self([
            Program::read("malloc_by", &malloc),
            Program::read("free_by", &free),
        ])
    }

    /// Tries every order of a scenario.
    ///
    /// # Panics
    ///
    /// If an object is lost or in two places, or a count is wrong.
    pub fn explore(&self, scenario: &Scenario) -> Seen {
        let start = State::of(scenario);
        let mut seen = Seen::default();
        let mut known = HashSet::from([start.clone()]);
        let mut next = vec![start];
        while let Some(state) = next.pop() {
            seen.states += 1;
            if state.drained == 4 && state.threads.iter().all(Thread::is_over) {
                seen.ends += 1;
                state.check();
            }
            for follower in self.followers(&state, scenario, &mut seen) {
                if known.insert(follower.clone()) {
                    next.push(follower);
                }
            }
        }
        seen
    }

    fn followers(&self, state: &State, scenario: &Scenario, seen: &mut Seen) -> Vec<State> {
        let mut all = Vec::new();
        for cpu in 0..NR_CPUS {
            match state.running[cpu] {
                Some(thread) => all.push(self.stepped(state, thread)),
                None => {
                    let waits =
                        |t: &usize| state.threads[*t].cpu == cpu && !state.threads[*t].is_over();
                    for thread in (0..state.threads.len()).filter(waits) {
                        let mut next = state.clone();
                        next.running[cpu] = Some(thread);
                        all.push(next);
                    }
                }
            }
        }
        if scenario.drain && state.drained < 4 {
            let mut next = state.clone();
            self.drain_step(&mut next, seen);
            all.push(next);
        }
        if state.disturbances == scenario.disturbances {
            return all;
        }
        for thread in state.running.iter().flatten().copied() {
            let mut interrupted = state.clone();
            interrupted.disturbances += 1;
            self.interrupt(&mut interrupted, thread, seen);
            // A signal: the handler runs before the interrupted call continues.
            if let Some(call) = interrupted.threads[thread].handler {
                let mut next = interrupted.clone();
                next.threads[thread].handler = None;
                next.begin(thread, call);
                all.push(next);
            }
            // A preemption, perhaps with a migration: then the same or another thread runs.
            for cpu in 0..NR_CPUS {
                let mut next = interrupted.clone();
                next.running[state.threads[thread].cpu] = None;
                next.move_to(thread, cpu);
                all.push(next);
            }
        }
        all
    }

    /// What the kernel does before an interrupted thread continues.
    fn interrupt(&self, state: &mut State, thread: usize, seen: &mut Seen) {
        let descriptor = state.swap(area(thread) + DESCRIPTOR, 0);
        let Some((call, place)) = state.threads[thread].frames.last_mut() else {
            return;
        };
        place.interrupt();
        let index = call.index();
        if descriptor == DESCRIPTORS[index] && self.0[index].abort(place) {
            seen.aborts += 1;
            // The register with the address of the main word: see `fast_path/aarch64.rs`.
            seen.late += (place.registers[5] & 1) as usize;
        }
    }

    fn drain_step(&self, state: &mut State, seen: &mut Seen) {
        state.drained += 1;
        match state.drained {
            1 => {
                state.swap(FRONT + TABLE, STOPPED);
            }
            2 => (0..state.threads.len()).for_each(|thread| self.interrupt(state, thread, seen)),
            3 => {
                let word = state.swap(slot(REGIONS), NO_SHEAF);
                let objects = state.objects_of(word);
                state.held.extend(objects);
                state.held.sort_unstable();
            }
            _ => {
                state.swap(FRONT + TABLE, REGIONS);
            }
        }
    }

    /// The state after one instruction of a thread, or after the start or end of a call.
    fn stepped(&self, state: &State, thread: usize) -> State {
        let mut next = state.clone();
        let cpu = next.threads[thread].cpu;
        let Some((call, mut place)) = next.threads[thread].frames.pop() else {
            if next.threads[thread].left.is_empty() {
                next.running[cpu] = None;
            } else {
                let call = next.threads[thread].left.remove(0);
                next.begin(thread, call);
            }
            return next;
        };
        match place.outcome.take() {
            None => {
                let state = &mut next;
                let program = &self.0[call.index()];
                // What lies before the start reads constants, and writes words of this thread's
                // alone: one step.
                loop {
                    program.step(&mut place, &mut Here { state, thread });
                    if !program.is_before_start(&place) {
                        break;
                    }
                }
                next.threads[thread].frames.push((call, place));
            }
            Some(Outcome::Returned) => next.end(call, place.registers[0]),
            Some(Outcome::Left(to)) => {
                assert_eq!(to, "slow", "{call:?}");
                assert_eq!(place.registers[0], call.argument(), "{call:?} leaves");
            }
        }
        next
    }
}
