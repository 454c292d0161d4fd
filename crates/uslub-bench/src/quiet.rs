//! The time of a step while no other program uses the processor's core. Most rows use it.
//!
//! On a shared machine, another program may use the other half of the core for some milliseconds.
//! Work that keeps more than one unit of the core busy then takes up to twice as long.
//!
//! - The work is cut into slices. Before and after each slice runs a probe, which only keeps the
//!   units of the core busy.
//! - The eighth of all steps with the shortest probes counts.
//! - Until an eighth of all steps ran on a quiet core, a slice waits for a short probe. The wait
//!   ends when a probe is about as short as the shortest ever, or after a time limit.
//!
//! The measured work does not influence the choice of slices. On an unshared machine the chosen
//! eighth is arbitrary. The method fits uniform work: it mostly misses a rare and long step.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::measure::nanoseconds;

/// Approximate length of a slice, in nanoseconds.
const SLICE_NS: f64 = 60_000.0;
/// Most steps of a slice, as a multiple of the steps of the slice before.
const GROWTH: usize = 8;
/// One in this number of steps counts.
const PART: usize = 8;
/// Iterations of a probe: 3 microseconds.
const TURNS: u64 = 1_500;
/// Longest probe on a quiet core, as a multiple of the shortest probe ever.
const ALONE: f64 = 1.05;
/// Longest wait for a quiet core, as a multiple of the time of the work so far.
const PATIENCE: f64 = 4.0;
/// Independent dependency chains in an iteration: more than a core has units.
const CHAINS: usize = 12;

/// A part of a run.
struct Slice {
    /// The longer of the probes before and after the slice, in nanoseconds.
    probe: f64,
    /// Time of the slice, in nanoseconds.
    time: f64,
    /// Steps of the slice.
    steps: usize,
}

/// Nanoseconds per step for `steps` steps; 0.0 if `steps` is 0. `work` runs the given range of
/// steps.
#[inline(always)]
pub fn nanoseconds_a_step(steps: usize, mut work: impl FnMut(Range<usize>)) -> f64 {
    let mut slices: Vec<Slice> = Vec::new();
    let (mut at, mut alone) = (0, 0);
    let (mut worked, mut waited) = (0.0, 0.0);
    let mut before = probe();
    while at < steps {
        while alone * PART < steps && is_shared(before) && waited < worked * PATIENCE {
            waited += before;
            before = probe();
        }
        let end = steps.min(at + slices.last().map_or(1, Slice::next));
        let (time, ()) = nanoseconds(|| work(at..end));
        let after = probe();
        let slice = Slice {
            probe: before.max(after),
            time,
            steps: end - at,
        };
        if !is_shared(slice.probe) {
            alone += slice.steps;
        }
        worked += time;
        slices.push(slice);
        (at, before) = (end, after);
    }
    quietest(slices, steps)
}

/// Nanoseconds per step in the quietest slices.
fn quietest(mut slices: Vec<Slice>, steps: usize) -> f64 {
    slices.sort_by(|a, b| a.probe.total_cmp(&b.probe));
    let (mut time, mut counted) = (0.0, 0);
    for slice in slices {
        if counted * PART >= steps {
            break;
        }
        time += slice.time;
        counted += slice.steps;
    }
    time / counted.max(1) as f64
}

impl Slice {
    /// Steps of the next slice.
    fn next(&self) -> usize {
        let fit = SLICE_NS / self.time.max(1.0) * self.steps as f64;
        (fit as usize).clamp(1, self.steps * GROWTH)
    }
}

/// Shortest probe ever in nanoseconds, as bits. The bits of positive numbers have their order.
static SHORTEST: AtomicU64 = AtomicU64::new(f64::INFINITY.to_bits());

/// Whether another program used the core during a probe of this length.
fn is_shared(probe: f64) -> bool {
    // Relaxed: the number publishes no other data.
    let shortest = SHORTEST.fetch_min(probe.to_bits(), Relaxed);
    probe > f64::from_bits(shortest) * ALONE
}

/// Time in nanoseconds of work that fills the units of a core and accesses no memory.
#[inline(never)]
fn probe() -> f64 {
    let mut chains: [u64; CHAINS] = black_box([1; CHAINS]);
    let (time, ()) = nanoseconds(|| {
        for turn in 0..TURNS {
            for chain in &mut chains {
                *chain = (*chain ^ turn).wrapping_add(*chain >> 3);
            }
        }
    });
    black_box(chains);
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_done_once_and_in_order() {
        let mut done = Vec::new();
        let time = nanoseconds_a_step(10_000, |range| done.extend(range));
        assert_eq!(done, (0..10_000).collect::<Vec<_>>());
        assert!(time > 0.0);
        assert_eq!(nanoseconds_a_step(0, |_| ()), 0.0);
    }

    #[test]
    fn the_eighth_with_the_shortest_probes_counts_whatever_it_took() {
        let slice = |probe, time, steps| Slice { probe, time, steps };
        let slices = || {
            vec![
                slice(9.0, 10.0, 10),
                slice(1.0, 80.0, 10),
                slice(2.0, 30.0, 10),
                slice(3.0, 10.0, 10),
            ]
        };
        assert_eq!(quietest(slices(), 80), 8.0);
        assert_eq!(quietest(slices(), 160), 5.5);
        assert_eq!(quietest(vec![], 0), 0.0);
    }

    #[test]
    fn slices_become_as_long_as_they_should_be() {
        let slice = |time, steps| Slice {
            probe: 0.0,
            time,
            steps,
        };
        assert_eq!(slice(10.0, 1).next(), GROWTH);
        assert_eq!(slice(SLICE_NS, 1000).next(), 1000);
        assert_eq!(slice(SLICE_NS * 3000.0, 1000).next(), 1);
    }
}
