//! A ring buffer of pointers from one producer to one consumer. P4 and seed 4 pass objects between
//! CPUs in batches through it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Polls before a waiting side yields its CPU.
const LOOKS: usize = 256;

#[repr(align(128))]
struct Line(AtomicUsize);

/// A ring of pointers.
pub struct Ring {
    slots: Box<[AtomicPtr<u8>]>,
    /// Number of pointers put in so far. Only the producer writes it.
    tail: Line,
    /// Number of pointers taken out so far. Only the consumer writes it.
    head: Line,
}

impl Ring {
    /// An empty ring with room for `depth` pointers, a power of two.
    pub fn new(depth: usize) -> Self {
        assert!(depth.is_power_of_two());
        Self {
            slots: (0..depth).map(|_| AtomicPtr::default()).collect(),
            tail: Line(AtomicUsize::new(0)),
            head: Line(AtomicUsize::new(0)),
        }
    }

    /// Number of pointers put in so far.
    pub fn total_put(&self) -> usize {
        // Acquire: what was written before the put.
        self.tail.0.load(Acquire)
    }

    fn slot(&self, number: usize) -> &AtomicPtr<u8> {
        &self.slots[number & (self.slots.len() - 1)]
    }

    /// Puts all pointers in and returns true, or puts none in if there is no room for all.
    pub fn try_put(&self, batch: &[*mut u8]) -> bool {
        // Relaxed: only the producer writes the tail. Acquire: the consumer has read the slots.
        let (tail, head) = (self.tail.0.load(Relaxed), self.head.0.load(Acquire));
        if tail + batch.len() - head > self.slots.len() {
            return false;
        }
        for (i, &pointer) in batch.iter().enumerate() {
            // Relaxed: the release store of the tail publishes the slot.
            self.slot(tail + i).store(pointer, Relaxed);
        }
        // Release: publishes the slots and the memory that the pointers refer to.
        self.tail.0.store(tail + batch.len(), Release);
        true
    }

    /// Takes out the available pointers, at most `batch.len()`; returns their number.
    pub fn try_take(&self, batch: &mut [*mut u8]) -> usize {
        // Relaxed: only the consumer writes the head. Acquire: pairs with the producer's release.
        let (head, tail) = (self.head.0.load(Relaxed), self.tail.0.load(Acquire));
        let n = (tail - head).min(batch.len());
        for (i, pointer) in batch[..n].iter_mut().enumerate() {
            // Relaxed: the acquire load of the tail covers the slot.
            *pointer = self.slot(head + i).load(Relaxed);
        }
        // Release: the producer may reuse the slots.
        self.head.0.store(head + n, Release);
        n
    }
}

/// Waits until `ready` returns true.
pub fn wait_until(mut ready: impl FnMut() -> bool) {
    let mut looks = 0;
    while !ready() {
        looks += 1;
        if looks % LOOKS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_out_in_order_and_no_more_than_fits_goes_in() {
        let ring = Ring::new(8);
        let pointers: Vec<_> = (2..=7).map(|n| n as *mut u8).collect();
        assert!(ring.try_put(&pointers[..5]) && !ring.try_put(&pointers[..4]));
        let mut out = [std::ptr::null_mut(); 3];
        assert_eq!(ring.try_take(&mut out), 3);
        assert_eq!(out, pointers[..3]);
        assert!(ring.try_put(&pointers));
        assert_eq!(ring.try_take(&mut out), 3);
        assert_eq!(out, [5 as *mut u8, 6 as *mut u8, 2 as *mut u8]);
        assert_eq!(ring.total_put(), 11);
    }

    #[test]
    fn two_threads_lose_nothing() {
        let ring = Ring::new(16);
        let n = if cfg!(miri) { 100 } else { 100_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=n {
                    let pointer = i as *mut u8;
                    wait_until(|| ring.try_put(&[pointer]));
                }
            });
            let (mut next, mut out) = (1, [std::ptr::null_mut(); 4]);
            while next <= n {
                let mut got = 0;
                wait_until(|| {
                    got = ring.try_take(&mut out);
                    got > 0
                });
                for &pointer in &out[..got] {
                    assert_eq!(pointer as usize, next);
                    next += 1;
                }
            }
        });
    }
}
