//! Costs of the machine without the allocator.

use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use uslub_lab::Costs;

use super::ROUNDS;
use crate::dice::Dice;
use crate::error::Failure;
use crate::linux::Pinned;
use crate::measure::nanoseconds;
use crate::ring::wait_until;
use crate::threads::joined;

/// Repetitions of a short step.
const TIMES: usize = 200_000;
/// Bytes that exceed most caches, for reads of memory.
const FAR_BYTES: usize = 64 << 20;
/// Bytes of a line and of a page.
const LINE: usize = 64;
const PAGE: usize = 4096;

/// The shortest of some rounds.
fn fastest(mut round: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Sets what can be measured here.
pub fn measure(costs: &mut Costs, cpus: [usize; 2]) -> Result<(), Failure> {
    let pinned = Pinned::to(cpus[1])?;
    costs.change = change();
    costs.system_call = system_call();
    costs.page_fault = page_fault()?;
    costs.memory = memory();
    drop(pinned);
    if cpus[0] != cpus[1] {
        set_lines(costs, lines(cpus)?);
    }
    Ok(())
}

/// Sets the costs of lines between CPUs.
pub fn set_lines(costs: &mut Costs, (waiting, other): (f64, f64)) {
    costs.cache = waiting;
    costs.overlap = (waiting / other).clamp(1.0, 64.0);
}

/// A read-modify-write instruction on an own line.
fn change() -> f64 {
    let word = AtomicUsize::new(0);
    fastest(|| {
        let (time, ()) = nanoseconds(|| {
            for _ in 0..TIMES {
                // Relaxed: the instruction is the same with all orderings on x86-64.
                word.fetch_add(1, Relaxed);
            }
        });
        time / TIMES as f64
    })
}

/// A short call of the system.
fn system_call() -> f64 {
    let times = TIMES / 20;
    fastest(|| {
        let (time, ()) = nanoseconds(|| {
            for _ in 0..times {
                // SAFETY: the call has no arguments and no effect.
                black_box(unsafe { libc::syscall(libc::SYS_getppid) });
            }
        });
        time / times as f64
    })
}

/// The first touch of a page.
fn page_fault() -> Result<f64, Failure> {
    let bytes = FAR_BYTES / 8;
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping overlaps no other.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Failure::NoMemory("for page faults"));
        }
        let (time, ()) = nanoseconds(|| {
            for at in (0..bytes).step_by(PAGE) {
                // SAFETY: inside the mapping.
                unsafe { start.cast::<u8>().add(at).write_volatile(1) };
            }
        });
        // SAFETY: the mapping is ours and not used any longer.
        unsafe { libc::munmap(start, bytes) };
        best = best.min(time * PAGE as f64 / bytes as f64);
    }
    Ok(best)
}

/// A read of a line that no cache has: a chain of addresses in random order.
fn memory() -> f64 {
    const STRIDE: usize = LINE / size_of::<usize>();
    let n = FAR_BYTES / LINE;
    let mut order: Vec<usize> = (1..n).collect();
    Dice::new(1).shuffle(&mut order);
    let mut chain = vec![0usize; n * STRIDE];
    let mut at = 0;
    for next in order {
        chain[at * STRIDE] = next;
        at = next;
    }
    let mut at = 0;
    fastest(|| {
        let (time, ()) = nanoseconds(|| {
            for _ in 0..TIMES / 4 {
                at = chain[at * STRIDE];
            }
            black_box(at);
        });
        time / (TIMES / 4) as f64
    })
}

/// Lines that the other CPU wrote: nanoseconds of a read that waits for the read before, and of one
/// that does not.
pub fn lines(cpus: [usize; 2]) -> Result<(f64, f64), Failure> {
    /// As far apart as objects, so that no line brings its neighbour along.
    const STRIDE: usize = 4 * LINE / size_of::<usize>();
    const LINES: usize = 256;
    const TRIPS: usize = 40;
    let words: Vec<_> = (0..STRIDE * LINES).map(|_| AtomicUsize::new(0)).collect();
    // Each line leads to the next one, in random order.
    let mut order: Vec<usize> = (1..LINES).collect();
    Dice::new(1).shuffle(&mut order);
    let mut next = vec![0; LINES];
    let mut at = 0;
    for line in order {
        next[at] = line * STRIDE;
        at = line;
    }
    let turn = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = Pinned::to(cpus[0]);
            for trip in 0..TRIPS {
                // Acquire and Release: the trips follow each other, and publish the lines.
                wait_until(|| turn.load(Acquire) == 2 * trip);
                for (word, next) in words.iter().step_by(STRIDE).zip(&next) {
                    // Relaxed: published below.
                    word.store(*next, Relaxed);
                }
                turn.store(2 * trip + 1, Release);
            }
            pinned.map(drop)
        });
        let pinned = Pinned::to(cpus[1]);
        let mut times = [Vec::new(), Vec::new()];
        for trip in 0..TRIPS {
            // As above.
            wait_until(|| turn.load(Acquire) == 2 * trip + 1);
            let (time, last) = nanoseconds(|| {
                // Relaxed: published by the other CPU.
                if trip % 2 == 0 {
                    (0..LINES).fold(0, |at, _| words[at].load(Relaxed))
                } else {
                    let words = words.iter().step_by(STRIDE);
                    // Relaxed: as above.
                    words.map(|word| word.load(Relaxed)).fold(0, usize::max)
                }
            });
            black_box(last);
            times[trip % 2].push(time / LINES as f64);
            // Release: as above.
            turn.store(2 * trip + 2, Release);
        }
        joined(other)?;
        drop(pinned?);
        let [waiting, others] = times.map(median);
        Ok((waiting, others))
    })
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
