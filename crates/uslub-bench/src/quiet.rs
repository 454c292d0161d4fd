//! What a step takes while nobody else uses the processor's core.
//!
//! On a shared machine the other half of a core belongs to somebody else, for some milliseconds at
//! a time, and all that keeps more than one unit of the core busy then takes up to twice as long.
//! So work is cut into slices, with a probe before and after each that does nothing but fill the
//! units of the core; the eighth of all steps whose probes were shortest is what counts, and until
//! so many are done alone, a slice is begun only once a probe takes no longer than the shortest
//! ever, or patience is at its end. What is measured has no say in which they are, and on a machine
//! of one's own they are any eighth. It is for work that goes on evenly: a step that is rare and
//! takes long would mostly go uncounted.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::measure::nanoseconds;

/// Nanoseconds of a slice, about.
const SLICE_NS: f64 = 60_000.0;
/// How much longer than the one before it a slice may be.
const GROWTH: usize = 8;
/// What part of all steps counts.
const PART: usize = 8;
/// Turns of a probe: 3 microseconds.
const TURNS: u64 = 1_500;
/// How much longer than the shortest ever a probe takes at most where nobody else uses the core.
const ALONE: f64 = 1.05;
/// How long is waited for that, in times of what the steps before took.
const PATIENCE: f64 = 4.0;
/// Chains of a turn that do not wait for each other: more than a core has units.
const CHAINS: usize = 12;

/// Part of a run.
struct Slice {
    /// The longer probe beside it, in nanoseconds.
    probe: f64,
    /// Nanoseconds that it took.
    time: f64,
    /// Steps that it did.
    steps: usize,
}

/// Nanoseconds of one of `steps` steps, of which `work` does those that it is given; 0.0 if there
/// are none.
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

/// Nanoseconds of a step in the quietest slices.
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
    /// Steps of the one after it.
    fn next(&self) -> usize {
        let fit = SLICE_NS / self.time.max(1.0) * self.steps as f64;
        (fit as usize).clamp(1, self.steps * GROWTH)
    }
}

/// Nanoseconds of the shortest probe ever, as bits: those of positive numbers are in their order.
static SHORTEST: AtomicU64 = AtomicU64::new(f64::INFINITY.to_bits());

/// Whether somebody else used the core during a probe that took so long.
fn is_shared(probe: f64) -> bool {
    // Relaxed: a number that nothing else hangs on.
    let shortest = SHORTEST.fetch_min(probe.to_bits(), Relaxed);
    probe > f64::from_bits(shortest) * ALONE
}

/// Nanoseconds of work that fills the units of a core and needs no memory.
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
