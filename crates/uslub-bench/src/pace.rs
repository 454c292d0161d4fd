//! The pace of this machine: the cost of two basic steps, compared with their cost on the machine
//! where the goals in nanoseconds were set. `machine` reports it; seeds 0 and 2 use it.

use std::cell::Cell;
use std::fmt;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use crate::measure::nanoseconds;

/// A dependent load, in nanoseconds, on the machine where the goals were set.
const LOAD_NS: f64 = 1.1;
/// An uncontended compare-and-swap on that machine: the middle of 2.5 to 3.1 ns.
const EXCHANGE_NS: f64 = 2.8;
/// Steps per window.
const STEPS: usize = 20_000;
/// Number of windows; the shortest counts.
const WINDOWS: usize = 25;
/// Words in the cycle of loads: half of the smallest first-level cache.
const WORDS: usize = 2048;
/// Words from one load to the next: a cache line and one word.
const STRIDE: usize = 9;

/// The cost of two basic steps on this machine, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pace {
    /// A dependent load from the first-level cache.
    pub load_ns: f64,
    /// An uncontended compare-and-swap.
    pub exchange_ns: f64,
}

impl Pace {
    /// Measures this machine now.
    pub fn look() -> Self {
        let word = AtomicU64::new(0);
        let exchange = || {
            for step in 0..STEPS as u64 {
                // Relaxed: no other thread uses the word.
                let swapped = word.compare_exchange(step, step + 1, Relaxed, Relaxed);
                black_box(swapped.is_ok());
            }
            // Relaxed: as above.
            word.store(0, Relaxed);
        };
        Self {
            load_ns: shortest(load),
            exchange_ns: shortest(|| nanoseconds(exchange).0 / STEPS as f64),
        }
    }
}

fn shortest(window: impl Fn() -> f64) -> f64 {
    (0..WINDOWS).map(|_| window()).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of a dependent load, in one window.
pub fn load() -> f64 {
    let ring: Vec<_> = (0..WORDS).map(|_| Link(Cell::new(None))).collect();
    for (at, link) in ring.iter().enumerate() {
        link.0.set(ring.get((at + STRIDE) % WORDS));
    }
    let mut here = &ring[0];
    let (time, ()) = nanoseconds(|| {
        for _ in 0..STEPS {
            // A predicted jump instead of a conditional move: only the load takes time.
            let Some(next) = here.0.get() else { break };
            here = next;
        }
    });
    black_box(here);
    time / STEPS as f64
}

/// A word that holds the address of the next word.
struct Link<'a>(Cell<Option<&'a Link<'a>>>);

/// Converts nanoseconds to the machine where the goals were set, in words. `load_ns` is the cost of
/// a load here. One ratio is only an estimate.
pub fn where_goals_were_set(ns: f64, load_ns: f64) -> String {
    format!("{:.2} ns where goals were set", ns * LOAD_NS / load_ns)
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a load takes {:.1} ns and a compare-and-swap {:.1} ns, where the goals in nanoseconds were set {LOAD_NS} and {EXCHANGE_NS}",
            self.load_ns, self.exchange_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_less_where_loads_are_quicker() {
        assert_eq!(
            where_goals_were_set(3.0, 2.2),
            "1.50 ns where goals were set"
        );
    }

    #[test]
    fn steps_take_time() {
        let pace = Pace::look();
        assert!(pace.load_ns > 0.0 && pace.exchange_ns > 0.0);
        assert!(pace.to_string().ends_with("set 1.1 and 2.8"));
    }
}
