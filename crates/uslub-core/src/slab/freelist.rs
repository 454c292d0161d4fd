//! Links inside free objects, hardened.
//!
//! A free object in a slab's freelist holds the address of the next one, combined with a random
//! word of the cache and with the byte-swapped address of the link itself:
//! `stored = next ^ random ^ swap(address)`. So a link cannot be forged
//! without knowing the random word, and overwriting one is seen: what it decodes to is
//! almost surely no slot of the slab.
//!
//! A link that is read out for good is wiped, so an object that is handed out does not look free. A
//! slab that starts over as fresh enters another *epoch*, and so do pages that are given back; it
//! is part of the code, so links that were left behind do not look like any either.

use crate::sync::atomic;

/// How a cache stores links.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Bytes from an object's start to its link.
    pub offset: u32,
    /// The random word; 0 where hardening is off.
    pub random: u64,
}

impl Links {
    /// The same for a slab in its `epoch`: what was stored in another epoch decodes to nonsense.
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

    /// A link as stored at `address`; decoding is the same operation.
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

    /// Makes `object` point to `next` (null for the last).
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

    /// As [`get`](Self::get), and wipes the link, so that the object looks free no longer.
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
                assert_eq!(links.take(base), next);
                assert_eq!(links.get(base) == next, random == 0);
            }
        }
    }
}
