//! Quarantine: freed objects that wait before they can be handed out again.
//!
//! A ring of places. A freed object takes a place, and the object that was there leaves. The places
//! are taken quarter by quarter; the order within a quarter cannot be foretold. So an object waits
//! for three to five quarters as many frees as there are places. It waits less only if two threads
//! take a place at the same moment, because turns are counted without a locked instruction. Objects
//! that were freed together leave together: they often are neighbours, and share lines and a slab.
//! Callers: `kmalloc::hardened`, from any thread.

use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::layout::Row;
use crate::policy::{QUARANTINE_LARGE, QUARANTINE_SMALL};
use crate::sync::atomic::{AtomicPtr, AtomicUsize};

/// What the hardened mode keeps.
pub(crate) struct Quarantine {
    pub(crate) small: Ring<QUARANTINE_SMALL>,
    pub(crate) large: Ring<QUARANTINE_LARGE>,
    /// Start of the addresses of objects without bytes; null before the first.
    pub(crate) empty: AtomicPtr<u8>,
    /// Objects without bytes that were handed out.
    pub(crate) empties: AtomicUsize,
}

/// The places of a ring, as a row says it.
const fn places<const N: usize>(name: &str, ring: usize) -> Row {
    let places = offset_of!(Ring<N>, places);
    Row::new(name, ring + places, size_of::<[AtomicPtr<u8>; N]>())
}

impl Quarantine {
    pub(crate) const ROWS: &'static [Row] = &[
        places::<QUARANTINE_SMALL>("Quarantine.small", offset_of!(Self, small)),
        places::<QUARANTINE_LARGE>("Quarantine.large", offset_of!(Self, large)),
    ];

    pub(crate) const fn new() -> Self {
        Self {
            small: Ring::new(),
            large: Ring::new(),
            empty: AtomicPtr::new(null_mut()),
            empties: AtomicUsize::new(0),
        }
    }
}

/// `N` places for an object or null; `N` is a power of two from 16 on.
pub(crate) struct Ring<const N: usize> {
    places: [AtomicPtr<u8>; N],
    /// Places that were given out.
    turns: AtomicUsize,
}

impl<const N: usize> Ring<N> {
    const QUARTER: usize = N / 4;

    const fn new() -> Self {
        const { assert!(N.is_power_of_two() && N >= 16) };
        Self {
            places: [const { AtomicPtr::new(null_mut()) }; N],
            turns: AtomicUsize::new(0),
        }
    }

    /// The place for the next object, which only someone who knows `secret` can foretell.
    pub(crate) fn next_place(&self, secret: u64) -> usize {
        // Relaxed, both: if two threads get one place, an object leaves early.
        let turn = self.turns.load(Relaxed);
        self.turns.store(turn.wrapping_add(1), Relaxed);
        let quarter = turn / Self::QUARTER;
        let mut key = (quarter as u64 ^ secret).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key = (key ^ key >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        // An odd factor: each place of the quarter comes once.
        let (factor, offset) = ((key >> 32) as usize | 1, (key >> 48) as usize);
        let within = turn.wrapping_mul(factor).wrapping_add(offset) % Self::QUARTER;
        quarter % 4 * Self::QUARTER + within
    }

    /// The object in a place, or null; a hint.
    pub(crate) fn peek(&self, place: usize) -> *mut u8 {
        // Relaxed: a hint.
        self.places[place].load(Relaxed)
    }

    /// Puts an object into a place; the object that leaves, or null.
    pub(crate) fn exchange(&self, place: usize, object: *mut u8) -> *mut u8 {
        // AcqRel: the fill of the object goes with it.
        self.places[place].swap(object, AcqRel)
    }

    /// How many places have an object; more than one if two threads freed it at once.
    pub(crate) fn count(&self, object: *mut u8) -> usize {
        // Acquire: pairs with `exchange` of another thread that freed the object.
        let places = self.places.iter().map(|place| place.load(Acquire));
        places.filter(|&kept| kept == object).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// When each of `frees` objects leaves, counted from its own free.
    fn waits(secret: u64, frees: usize) -> Vec<usize> {
        let ring = Ring::<64>::new();
        let mut waits = std::vec![0; frees];
        for n in 0..frees {
            let place = ring.next_place(secret);
            let hint = ring.peek(place);
            let left = ring.exchange(place, (16 * (n + 1)) as *mut u8);
            assert_eq!(left, hint);
            if let Some(left) = (left as usize / 16).checked_sub(1) {
                assert_eq!(waits[left], 0, "{left} leaves twice");
                waits[left] = n - left;
            }
        }
        waits
    }

    #[test]
    fn each_object_waits_for_three_to_five_quarters_and_leaves_once() {
        for secret in 0..50 {
            let all = waits(secret, 1024);
            assert!(all[..944].iter().all(|wait| (49..80).contains(wait)));
            assert!(all[960..].iter().all(|&wait| wait == 0));
        }
    }

    #[test]
    fn the_order_depends_on_the_secret_and_changes() {
        let all = waits(1, 1000);
        assert_ne!(all, waits(2, 1000));
        assert!((1..50).all(|quarter| all[..16] != all[16 * quarter..16 * (quarter + 1)]));
    }

    #[test]
    fn an_object_that_is_there_twice_is_counted_twice() {
        let ring = Ring::<32>::new();
        let object = 16 as *mut u8;
        for n in 0..3 {
            assert_eq!(ring.count(object), n);
            ring.exchange(ring.next_place(7), object);
        }
    }
}
