//! Runs the fast paths for aarch64 of several threads in every order. `tests/fast_paths.rs` gives
//! the scenarios. Between any two instructions the events of `explore` may happen: another CPU's
//! instruction, a preemption, a migration, a signal whose handler makes a call, a step of a drain.
//!
//! At each end, every object must be in exactly one place, and every call that did not leave for a
//! slow path is counted. A call that moves to another CPU may lose its count.

use crate::fast_aarch64::{Outcome, Program};
use crate::fast_state::{
    CLASSES, COUNTS, CPU_ID, DESCRIPTOR, DESCRIPTORS, FRONT, Here, LINE, MARK, MM_CID, NO_SHEAF,
    REGIONS, SHAPES, STOPPED, State, TABLE, WINDOW, area, slot,
};
pub use crate::fast_state::{Call, Scenario};
use crate::search::Model;
pub use crate::search::Seen;

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
        self.search(State::of(scenario), scenario.disturbances)
    }
}

impl Model for FastPaths {
    type State = State;

    fn interrupt(&self, state: &mut State, thread: usize, seen: &mut Seen) {
        let descriptor = state.memory.swap(area(thread) + DESCRIPTOR, 0);
        let Some((call, place)) = state.threads.all[thread].frames.last_mut() else {
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

    fn begin(&self, state: &mut State, thread: usize, call: Call) {
        let place = Program::begin(call.argument());
        state.threads.all[thread].frames.push((call, place));
    }

    fn move_to(&self, state: &mut State, thread: usize, cpu: usize) {
        state.move_to(thread, cpu);
    }

    fn drain_step(&self, state: &mut State, step: u8, seen: &mut Seen) {
        match step {
            1 => drop(state.memory.swap(FRONT + TABLE, STOPPED)),
            2 => (0..state.threads.all.len()).for_each(|t| self.interrupt(state, t, seen)),
            3 => {
                let word = state.memory.swap(slot(REGIONS), NO_SHEAF);
                let objects = state.objects_of(word);
                state.held.extend(objects);
                state.held.sort_unstable();
            }
            _ => drop(state.memory.swap(FRONT + TABLE, REGIONS)),
        }
    }

    fn stepped(&self, state: &State, thread: usize) -> State {
        let mut next = state.clone();
        let cpu = next.threads.all[thread].cpu;
        let Some((call, mut place)) = next.threads.all[thread].frames.pop() else {
            if next.threads.all[thread].left.is_empty() {
                next.threads.running[cpu] = None;
            } else {
                let call = next.threads.all[thread].left.remove(0);
                self.begin(&mut next, thread, call);
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
                next.threads.all[thread].frames.push((call, place));
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
