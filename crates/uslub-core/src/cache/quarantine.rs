//! Quarantine: freed objects that wait a random time before they can be handed out again.
//!
//! A ring of places. A freed object takes a random place, and the object that was there leaves. An
//! object so waits for as many frees as there are places on average, and nobody can tell how long.
//! Callers: `kmalloc::hardened`, from any thread.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::policy::{QUARANTINE_LARGE, QUARANTINE_SMALL};
use crate::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

/// What the hardened mode keeps.
pub(crate) struct Quarantine {
    pub(crate) small: [AtomicPtr<u8>; QUARANTINE_SMALL],
    pub(crate) large: [AtomicPtr<u8>; QUARANTINE_LARGE],
    dice: AtomicU64,
    /// Start of the addresses of objects without bytes; null before the first.
    pub(crate) empty: AtomicPtr<u8>,
    /// Objects without bytes that were handed out.
    pub(crate) empties: AtomicUsize,
}

impl Quarantine {
    pub(crate) const fn new() -> Self {
        Self {
            small: [const { AtomicPtr::new(null_mut()) }; QUARANTINE_SMALL],
            large: [const { AtomicPtr::new(null_mut()) }; QUARANTINE_LARGE],
            dice: AtomicU64::new(0),
            empty: AtomicPtr::new(null_mut()),
            empties: AtomicUsize::new(0),
        }
    }

    /// A number that only someone who knows `secret` can foretell.
    fn throw(&self, secret: u64) -> usize {
        // Relaxed, both: any value will do, also one that two threads get.
        let n = self.dice.load(Relaxed);
        self.dice
            .store(n.wrapping_add(0x9e37_79b9_7f4a_7c15), Relaxed);
        let n = n ^ secret;
        let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as usize
    }

    /// The place that the next small object takes, and the object that may leave it: a hint.
    pub(crate) fn next_place(&self, secret: u64) -> (usize, *mut u8) {
        let place = self.throw(secret) % QUARANTINE_SMALL;
        // Relaxed: a hint.
        (place, self.small[place].load(Relaxed))
    }

    /// Puts a small object into a place; the object that leaves, or null.
    pub(crate) fn exchange_small(&self, place: usize, object: *mut u8) -> *mut u8 {
        // AcqRel: the fill of the object goes with it.
        self.small[place].swap(object, AcqRel)
    }

    /// Puts a large object into some place; the object that leaves, or null.
    pub(crate) fn exchange_large(&self, object: *mut u8, secret: u64) -> *mut u8 {
        // AcqRel: as above.
        self.large[self.throw(secret) % QUARANTINE_LARGE].swap(object, AcqRel)
    }

    /// How many places have a large object; more than one if two threads freed it at once.
    pub(crate) fn has_large(&self, object: *mut u8) -> usize {
        // Acquire: pairs with `exchange` of another thread that freed the object.
        let places = self.large.iter().map(|place| place.load(Acquire));
        places.filter(|&kept| kept == object).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    #[test]
    fn what_goes_in_comes_out_once_in_another_order() {
        let quarantine = Quarantine::new();
        let went = 1..=10 * QUARANTINE_SMALL;
        let came: Vec<usize> = went
            .clone()
            .map(|n| {
                let (place, _) = quarantine.next_place(42);
                quarantine.exchange_small(place, (n * 16) as *mut u8) as usize / 16
            })
            .filter(|&n| n != 0)
            .collect();
        let once: HashSet<_> = came.iter().copied().collect();
        assert_eq!(once.len(), came.len());
        assert!(came.len() >= went.count() - QUARANTINE_SMALL);
        assert!(!came.is_sorted());
    }
}
