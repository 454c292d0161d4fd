//! The pace of this machine: what two steps take that everything is made of, beside what they took where the goals in
//! nanoseconds were set.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::Serialize;

use crate::measure::nanoseconds;

/// A load that the next one waits for, in nanoseconds, where the goals were set.
const LOAD_NS: f64 = 1.1;
/// A compare-and-swap that nobody contends, there: the middle of 2.5 to 3.1.
const EXCHANGE_NS: f64 = 2.8;
/// Steps a window.
const STEPS: usize = 20_000;
/// Windows; the shortest counts.
const WINDOWS: usize = 25;
/// Words that the loads go round in: half of the smallest first-level cache.
const WORDS: usize = 2048;

/// What two steps take here, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pace {
    /// A load from the first-level cache that the next one waits for.
    pub load_ns: f64,
    /// A compare-and-swap that nobody contends.
    pub exchange_ns: f64,
}

impl Pace {
    /// Of this machine, now.
    pub fn look() -> Self {
        let next: Vec<usize> = (0..WORDS).map(|at| (at + 9) % WORDS).collect();
        let word = AtomicU64::new(0);
        let load = || {
            let last = (0..STEPS).fold(0, |at: usize, _| next[at]);
            black_box(last);
        };
        let exchange = || {
            for step in 0..STEPS as u64 {
                // Relaxed: nobody else has it.
                let swapped = word.compare_exchange(step, step + 1, Relaxed, Relaxed);
                black_box(swapped.is_ok());
            }
            // Relaxed: as above.
            word.store(0, Relaxed);
        };
        Self {
            load_ns: shortest(load),
            exchange_ns: shortest(exchange),
        }
    }
}

fn shortest(window: impl Fn()) -> f64 {
    let windows = (0..WINDOWS).map(|_| nanoseconds(&window).0);
    windows.fold(f64::INFINITY, f64::min) / STEPS as f64
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
    fn steps_take_time() {
        let pace = Pace::look();
        assert!(pace.load_ns > 0.0 && pace.exchange_ns > 0.0);
        assert!(pace.to_string().ends_with("set 1.1 and 2.8"));
    }
}
