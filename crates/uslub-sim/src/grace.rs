//! Simulated grace periods by the clock. Callbacks wait for a whole period and then come in a
//! burst. The benchmarks use them.
//!
//! Periods follow each other without a gap. A callback registered in one period waits for the end
//! of the next period. The reason is the kernel's: readers of the current period may have started
//! earlier. Each CPU has its own queue. It runs its own callbacks, some at a time, when its thread
//! calls [`Batches::run`].
//!
//! There are no real readers: the length of a period stands for the time of the readers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};

use crate::{Clock, cpu};

struct Waiting {
    head: *mut RcuHead,
    callback: RcuCallback,
    /// The end of the grace period, in nanoseconds.
    due: u64,
}

// SAFETY: a callback may run on any thread.
unsafe impl Send for Waiting {}

/// Grace periods of a fixed length.
pub struct Batches {
    queues: Vec<Mutex<VecDeque<Waiting>>>,
    clock: Clock,
    period_ns: u64,
}

impl Batches {
    /// Grace periods of this length on a machine with `cpus` CPUs.
    pub fn new(cpus: usize, clock: Clock, period: Duration) -> Self {
        Self {
            queues: (0..cpus).map(|_| Mutex::default()).collect(),
            clock,
            period_ns: period.as_nanos() as u64,
        }
    }

    /// Runs at most `most` due callbacks of this thread's CPU; returns their number.
    pub fn run(&self, most: usize) -> usize {
        let now = self.clock.now_ns();
        self.run_until(cpu::here() % self.queues.len(), now, most)
    }

    fn run_until(&self, cpu: usize, now: u64, most: usize) -> usize {
        let queue = &self.queues[cpu];
        for done in 0..most {
            // A callback runs without the queue's lock, because it may register another callback.
            let mut waiting = queue.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(next) = waiting.pop_front_if(|next| next.due <= now) else {
                return done;
            };
            drop(waiting);
            // SAFETY: the callback runs once, after its grace period, with no lock held.
            unsafe { (next.callback)(next.head) };
        }
        most
    }
}

// SAFETY: a callback comes at least a whole period later, and all readers are simulated.
unsafe impl GracePeriod for Batches {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        let due = (self.clock.now_ns() / self.period_ns + 2) * self.period_ns;
        let queue = &self.queues[cpu::here() % self.queues.len()];
        queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(Waiting {
                head,
                callback,
                due,
            });
    }

    fn barrier(&self) {
        self.synchronize();
        let here = cpu::here();
        for queue in 0..self.queues.len() {
            cpu::on(queue);
            self.run_until(queue, u64::MAX, usize::MAX);
        }
        cpu::on(here);
    }

    fn synchronize(&self) {
        self.clock.advance(2 * self.period_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    static CALLS: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn called(_: *mut RcuHead) {
        // SeqCst: the test does not measure time.
        CALLS.fetch_add(1, SeqCst);
    }

    #[test]
    fn a_call_comes_after_a_whole_period_on_the_cpu_that_gave_it() {
        let clock = Clock::manual();
        let grace = Batches::new(2, clock.clone(), Duration::from_millis(4));
        cpu::on(1);
        clock.advance(3_999_999);
        // SAFETY: the callback accesses no record.
        (0..5).for_each(|_| unsafe { grace.call(std::ptr::null_mut(), called) });
        clock.advance(4_000_000);
        assert_eq!(
            grace.run(10),
            0,
            "only a part of a period and no whole one is over"
        );
        clock.advance(1);
        cpu::on(0);
        assert_eq!(grace.run(10), 0, "another CPU's");
        cpu::on(1);
        assert_eq!((grace.run(2), grace.run(10), grace.run(10)), (2, 3, 0));
        // SAFETY: the callback accesses no record.
        unsafe { grace.call(std::ptr::null_mut(), called) };
        cpu::on(0);
        grace.barrier();
        // SeqCst: the test does not measure time.
        assert_eq!(CALLS.load(SeqCst), 6);
        assert_eq!(cpu::here(), 0);
    }
}
