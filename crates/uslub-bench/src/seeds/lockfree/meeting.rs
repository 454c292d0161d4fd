//! Contention: several threads change the state of one slab, as fast as possible.
//!
//! A change reads the state and adds or subtracts one object in use, like an allocation or a free.
//! So the row times only the update itself and its cache line, without lists, links and sheaves.
//!
//! | way | change | who comes second |
//! |---|---|---|
//! | lock of 2011 | save flags, lock, read, write, unlock | reads the lock until it is free |
//! | one atomic step | read, compare-and-swap | tries again |
//!
//! Whoever comes second pauses on both sides, or on neither.
//!
//! The saved flags stand for the disabled interrupts of 2011, which a program cannot disable.

use std::hint::spin_loop;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use uslub_core::slab::state::{Slab, State};

use crate::bench::Bench;
use crate::error::Failure;
use crate::linux::{self, Pinned};
use crate::measure::nanoseconds;
use crate::ring::wait_until;
use crate::seeds::Way;
use crate::threads::joined;

use super::{Both, PARTS};

/// Whether a thread that comes second pauses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BackOff {
    OnBothSides,
    OnNone,
}

impl BackOff {
    pub const ALL: [BackOff; 2] = [BackOff::OnBothSides, BackOff::OnNone];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            BackOff::OnBothSides => "back-off on both sides",
            BackOff::OnNone => "back-off on neither side",
        }
    }
}

/// What both ways run.
pub fn ways(back_off: BackOff) -> [Way; 2] {
    let calls = match back_off {
        BackOff::OnBothSides => ["lock, with pauses", "compare-and-swap, with pauses"],
        BackOff::OnNone => ["lock, without pauses", "compare-and-swap, without pauses"],
    };
    let names = ["lock of 2011", "one atomic step"];
    [0, 1].map(|i| Way::new(names[i], calls[i], &[]))
}

/// A state with a lock next to it, as in a slab's record.
#[repr(align(64))]
struct Contended {
    slab: Slab,
    state: AtomicU64,
    lock: AtomicU32,
}

/// Nanoseconds per change with `threads` threads on two CPUs, under a lock and in one atomic step.
pub fn run(bench: &Bench, threads: usize, back_off: BackOff) -> Result<Both, Failure> {
    // With more threads than CPUs, a round must be long enough for preemptions of a lock holder.
    let parts = if threads > 2 { 1 } else { PARTS };
    // An even number: as many additions as subtractions.
    let changes = bench.size.pick(1_000, 1_000_000, 4_000_000) / parts / threads / 2 * 2;
    let [old, new]: [Change; 2] = match back_off {
        BackOff::OnBothSides => [change_locked::<true>, change_with_pauses],
        BackOff::OnNone => [change_locked::<false>, change_at_once],
    };
    let rounds = bench.so_many_rounds_of(
        parts * bench.rounds(),
        parts,
        [&mut || round(threads, changes, old), &mut || {
            round(threads, changes, new)
        }],
    )?;
    Ok(Both::of(&rounds))
}

/// A function that adds one object in use on even turns, and subtracts one on odd turns.
type Change = fn(&Contended, usize);

fn round(threads: usize, changes: usize, change: Change) -> Result<f64, Failure> {
    // SAFETY: zeroes are valid everywhere.
    let place = unsafe { Box::<Contended>::new_zeroed().assume_init() };
    place.slab.set_state(State::without_list(0));
    let (ready, cpus) = (AtomicUsize::new(0), linux::two_cpus());
    let side = |me: usize| -> Result<f64, Failure> {
        let pinned = Pinned::to(cpus[me % 2]);
        // Release and Acquire: all threads start together, even if pinning failed.
        ready.fetch_add(1, Release);
        wait_until(|| ready.load(Acquire) == threads);
        let (time, ()) = nanoseconds(|| (0..changes).for_each(|n| change(&place, n)));
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
    // Relaxed: all threads have ended.
    if place.slab.state() != State::without_list(0) || place.state.load(Relaxed) != 0 {
        return Err(Failure::System(
            "changes of a slab's state were lost".into(),
        ));
    }
    let longest = times.into_iter().fold(0.0, f64::max);
    Ok(longest / (threads * changes) as f64)
}

/// The number of objects in use after a turn.
fn after(inuse: u32, turn: usize) -> u32 {
    (inuse + 1).wrapping_sub(2 * (turn as u32 % 2))
}

fn change_locked<const PAUSES: bool>(place: &Contended, turn: usize) {
    let flags = saved_flags();
    // Acquire: sees the last holder's change.
    while (place.lock.compare_exchange_weak(0, 1, Acquire, Relaxed)).is_err() {
        // Relaxed: only waits; the exchange acquires.
        while place.lock.load(Relaxed) != 0 {
            if PAUSES {
                spin_loop();
            }
        }
    }
    // Relaxed, both: under the lock.
    let now = place.state.load(Relaxed);
    place
        .state
        .store(u64::from(after(now as u32, turn)), Relaxed);
    // Release: the next holder sees the change.
    place.lock.store(0, Release);
    restore_flags(flags);
}

fn change_with_pauses(place: &Contended, turn: usize) {
    let mut old = place.slab.state();
    while let Err(now) =
        (place.slab).compare_exchange(old, old.with(None, after(old.inuse(), turn)))
    {
        old = now;
    }
}

fn change_at_once(place: &Contended, turn: usize) {
    // Relaxed: the exchange confirms it.
    let mut old = place.state.load(Relaxed);
    let new = |old: u64| u64::from(after(old as u32, turn));
    // AcqRel and Acquire: as the slab's own change.
    while let Err(now) = (place.state).compare_exchange_weak(old, new(old), AcqRel, Acquire) {
        old = now;
    }
}

#[cfg(target_arch = "x86_64")]
fn saved_flags() -> u64 {
    let flags;
    // SAFETY: pushes the flags and pops them into a register; the stack is as before.
    unsafe { core::arch::asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags
}

#[cfg(target_arch = "x86_64")]
fn restore_flags(flags: u64) {
    // SAFETY: the flags were those of this thread a moment ago.
    unsafe { core::arch::asm!("push {}", "popfq", in(reg) flags) };
}

#[cfg(not(target_arch = "x86_64"))]
fn saved_flags() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn restore_flags(_flags: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_change_is_lost_whichever_way() {
        for change in [
            change_locked::<true> as Change,
            change_locked::<false>,
            change_with_pauses,
            change_at_once,
        ] {
            assert!(round(4, 1_000, change).is_ok());
        }
    }
}
