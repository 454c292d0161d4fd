//! The pace of this machine: what two steps take that everything is made of, beside what they took
//! where the goals in nanoseconds were set.

use std::cell::Cell;
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
/// Words from one load to the next: a line and one.
const STRIDE: usize = 9;

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
        let word = AtomicU64::new(0);
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
            exchange_ns: shortest(|| nanoseconds(exchange).0 / STEPS as f64),
        }
    }
}

fn shortest(window: impl Fn() -> f64) -> f64 {
    (0..WINDOWS).map(|_| window()).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of a load that the next one waits for, in one window.
pub fn load() -> f64 {
    let ring: Vec<_> = (0..WORDS).map(|_| Link(Cell::new(None))).collect();
    for (at, link) in ring.iter().enumerate() {
        link.0.set(ring.get((at + STRIDE) % WORDS));
    }
    let mut here = &ring[0];
    let (time, ()) = nanoseconds(|| {
        for _ in 0..STEPS {
            // No choice but a jump, which is foreseen: nothing but the load takes time.
            let Some(next) = here.0.get() else { break };
            here = next;
        }
    });
    black_box(here);
    time / STEPS as f64
}

/// A word that says where the next is.
struct Link<'a>(Cell<Option<&'a Link<'a>>>);

/// What nanoseconds would be where the goals were set, as far as one figure can tell, if a load
/// takes `load_ns` here: in words.
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
