//! Contention: several threads change the state of one slab, as fast as possible.
//!
//! A change reads the state and adds or subtracts one object in use, like an allocation or a free.
//! A thread that loses the race retries. So the row times only the update itself and its cache
//! line, without lists, links and sheaves.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::slab::state::{Slab, State};

use crate::bench::Bench;
use crate::error::Failure;
use crate::linux::{self, Pinned};
use crate::measure::nanoseconds;
use crate::ring::wait_until;
use crate::threads::joined;

use super::{Both, PARTS};

/// Nanoseconds per change with `threads` threads on two CPUs, under a lock and in one atomic step.
pub fn run(bench: &Bench, threads: usize) -> Result<Both, Failure> {
    // With more threads than CPUs, a round must be long enough for preemptions of a lock holder.
    let parts = if threads > 2 { 1 } else { PARTS };
    // An even number: as many additions as subtractions.
    let changes = bench.size.pick(1_000, 1_000_000, 4_000_000) / parts / threads / 2 * 2;
    let rounds = bench.so_many_rounds_of(
        parts * bench.rounds(),
        parts,
        [
            &mut || round(threads, changes, Slab::compare_exchange_locked),
            &mut || round(threads, changes, Slab::compare_exchange),
        ],
    )?;
    Ok(Both::of(&rounds))
}

/// A function that changes a state if the state is still the expected one.
type Change = fn(&Slab, State, State) -> Result<(), State>;

fn round(threads: usize, changes: usize, change: Change) -> Result<f64, Failure> {
    // SAFETY: zeroes are a valid descriptor.
    let slab = unsafe { Box::<Slab>::new_zeroed().assume_init() };
    slab.set_state(State::without_list(0));
    let (ready, cpus) = (AtomicUsize::new(0), linux::two_cpus());
    let side = |me: usize| -> Result<f64, Failure> {
        let pinned = Pinned::to(cpus[me % 2]);
        // Release and Acquire: all threads start together, even if pinning failed.
        ready.fetch_add(1, Release);
        wait_until(|| ready.load(Acquire) == threads);
        let (time, ()) = nanoseconds(|| (0..changes).for_each(|n| change_one(&slab, n, change)));
        drop(pinned?);
        Ok(time)
    };
    let times = std::thread::scope(|scope| {
        let side = &side;
        let sides: Vec<_> = (0..threads)
            .map(|me| scope.spawn(move || side(me)))
            .collect();
        (sides.into_iter().map(joined)).collect::<Result<Vec<_>, _>>()
    })?;
    if slab.state() != State::without_list(0) {
        return Err(Failure::System(
            "changes of a slab's state were lost".into(),
        ));
    }
    let longest = times.into_iter().fold(0.0, f64::max);
    Ok(longest / (threads * changes) as f64)
}

/// Adds one object in use on even turns, and subtracts one on odd turns.
fn change_one(slab: &Slab, turn: usize, change: Change) {
    let mut old = slab.state();
    loop {
        let inuse = old.inuse() + 1 - 2 * (turn as u32 % 2);
        match change(slab, old, old.with(None, inuse)) {
            Ok(()) => return,
            Err(now) => old = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_is_lost_whichever_way() {
        for change in [
            Slab::compare_exchange as Change,
            Slab::compare_exchange_locked,
        ] {
            assert!(round(4, 1_000, change).is_ok());
        }
    }
}
