//! Freelist links inside free objects, hardened.
//!
//! A free object in a slab's freelist holds the address of the next one, combined with a random
//! word of the cache and the byte-swapped address of the link itself:
//! `stored = next ^ random ^ swap(address)`. Nobody can forge a link without the random word. An
//! overwritten link is detected: its decoded value is almost surely no slot of the slab.
//!
//! A link that is read to hand its object out is wiped, so the object does not look free. A slab
//! that starts over as fresh enters a new *epoch*, and so do freed pages. The epoch is part of the
//! code, so an old link left in memory does not look like a link either.
//!
//! Callers own the object, or only read its link.

use core::ptr::null_mut;

use crate::sync::atomic;

/// The cache's way to store links.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Bytes from an object's start to its link.
    pub offset: u32,
    /// The random word; 0 with hardening off.
    pub random: u64,
}

impl Links {
    /// The same links for a slab in epoch `epoch`: a link of another epoch decodes to nonsense.
    #[inline]
    pub fn in_epoch(self, epoch: u16) -> Self {
        let mix = u64::from(epoch).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            offset: self.offset,
            random: if self.random == 0 {
                0
            } else {
                self.random ^ (mix & !1)
            },
        }
    }

    /// Encodes a link stored at `address`; decoding is the same operation.
    #[inline]
    fn code(self, word: u64, address: usize) -> u64 {
        if self.random == 0 {
            word
        } else {
            word ^ self.random ^ (address as u64).swap_bytes()
        }
    }

    #[inline]
    fn at(self, object: *mut u8) -> *mut u64 {
        object.wrapping_add(self.offset as usize).cast()
    }

    /// Links `object` to `next` (null for the last).
    ///
    /// # Safety
    ///
    /// `object` is a free object that the caller owns.
    #[inline]
    pub unsafe fn set(self, object: *mut u8, next: *mut u8) {
        let link = self.at(object);
        atomic::writes(link, 8);
        // SAFETY: within the object, which the caller owns.
        unsafe { link.write_unaligned(self.code(next as u64, link as usize)) }
    }

    /// The object after `object`.
    ///
    /// # Safety
    ///
    /// `object` is readable.
    #[inline]
    pub unsafe fn get(self, object: *mut u8) -> *mut u8 {
        let link = self.at(object);
        atomic::reads(link, 8);
        // SAFETY: within the object.
        self.code(unsafe { link.read_unaligned() }, link as usize) as *mut u8
    }

    /// As [`get`](Self::get), and wipes the link, so that the object no longer looks free.
    ///
    /// # Safety
    ///
    /// `object` is a free object that the caller owns.
    #[inline]
    pub unsafe fn take(self, object: *mut u8) -> *mut u8 {
        // SAFETY: the caller owns the object.
        unsafe {
            let next = self.get(object);
            if self.random != 0 {
                atomic::writes(self.at(object), 8);
                self.at(object).write_unaligned(0);
            }
            next
        }
    }

    /// Offsets from `base` of a freelist's objects, from `object` on (null for none); only reads.
    /// `None` stands for a link that leads to no slot, and ends the walk.
    ///
    /// # Safety
    ///
    /// Slots are readable.
    pub unsafe fn walk(
        self,
        base: *mut u8,
        object: *mut u8,
        is_slot: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = Option<usize>> {
        let mut next = object;
        core::iter::from_fn(move || {
            let object = core::mem::replace(&mut next, null_mut());
            let offset = (object as usize).wrapping_sub(base as usize);
            if object.is_null() {
                return None;
            }
            if !is_slot(offset) {
                return Some(None);
            }
            // SAFETY: a slot.
            next = unsafe { self.get(object) };
            Some(Some(offset))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardened_link_reads_back_and_does_not_show_its_address() {
        let mut slots = [0u64; 8];
        let base = slots.as_mut_ptr().cast::<u8>();
        for random in [0, 0x1234_5678_9abc_def1] {
            let links = Links { offset: 8, random };
            let next = base.wrapping_add(32);
            // SAFETY: within `slots`.
            unsafe {
                links.set(base, next);
                assert_eq!(links.get(base), next);
                assert_eq!(base.add(8).cast::<u64>().read() == next as u64, random == 0);
                links.set(next, null_mut());
                let walk = |offset| links.walk(base, base, move |at| at % 32 == offset);
                assert!(walk(0).eq([Some(0), Some(32)]) && walk(1).eq([None]));
                assert_eq!(links.take(base), next);
                assert_eq!(links.get(base) == next, random == 0);
            }
        }
    }
}
