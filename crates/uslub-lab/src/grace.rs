//! Grace periods in virtual time. They follow each other without a gap.
//!
//! A callback waits for a whole period: until the end of the period after the one in which it was
//! registered. Each CPU has a queue and runs its own callbacks, some at a time.

use std::cell::RefCell;
use std::collections::VecDeque;

use uslub_core_timed::grace::{GracePeriod, RcuCallback, RcuHead};

use crate::engine;

struct Waiting {
    head: *mut RcuHead,
    callback: RcuCallback,
    /// End of the grace period, in picoseconds.
    due: u64,
}

/// Grace periods of a fixed length, for the CPUs of one machine.
pub struct Periods {
    queues: RefCell<Vec<VecDeque<Waiting>>>,
    length: u64,
}

// SAFETY: one thread of the system plays all CPUs of a machine.
unsafe impl Sync for Periods {}

impl Periods {
    /// Periods of some picoseconds, for some CPUs.
    pub fn new(cpus: usize, length: u64) -> Self {
        Self {
            queues: RefCell::new((0..cpus).map(|_| VecDeque::new()).collect()),
            length,
        }
    }

    /// Runs at most `most` due callbacks of the running CPU.
    pub fn run(&self, most: usize) {
        self.run_of(engine::here(), engine::now(), most);
    }

    fn run_of(&self, cpu: usize, now: u64, most: usize) {
        for _ in 0..most {
            let mut queues = self.queues.borrow_mut();
            if queues[cpu].front().is_none_or(|next| next.due > now) {
                return;
            }
            let next = queues[cpu].pop_front();
            drop(queues);
            if let Some(next) = next {
                // SAFETY: each callback runs once, after its period, with no lock held.
                unsafe { (next.callback)(next.head) };
            }
        }
    }
}

// SAFETY: a callback runs at least a whole period later, and all readers are simulated.
unsafe impl GracePeriod for Periods {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        let due = (engine::now() / self.length + 2) * self.length;
        let waiting = Waiting {
            head,
            callback,
            due,
        };
        self.queues.borrow_mut()[engine::here()].push_back(waiting);
    }

    fn barrier(&self) {
        let cpus = self.queues.borrow().len();
        (0..cpus).for_each(|cpu| self.run_of(cpu, u64::MAX, usize::MAX));
    }

    fn synchronize(&self) {}
}
