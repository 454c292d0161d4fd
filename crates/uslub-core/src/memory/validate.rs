//! Validation: checks that the zone's lists agree with its blocks. Callers: `cache::validate`.

use crate::memory::block::{BINS, BLOCK_PAGES};
use crate::memory::zone::{Zone, bin_of};
use crate::platform::Platform;

impl<P: Platform> Zone<P> {
    /// Checks the lists against the blocks. The allocator must be idle.
    ///
    /// # Errors
    ///
    /// The invariant that does not hold.
    pub fn validate(&self) -> Result<(), &'static str> {
        let lists = self.lists.lock();
        let mut dirty = 0;
        for number in 0..(self.arena.limit() / BLOCK_PAGES) as u32 {
            // SAFETY: we hold the page lock.
            let b = unsafe { self.arena.block(number) };
            let (free, longest, nr_dirty) = (b.nr_free, b.longest, b.nr_dirty);
            b.recount();
            // `longest` is an upper bound.
            let exact = core::mem::replace(&mut b.longest, longest);
            if (free, nr_dirty) != (b.nr_free, b.nr_dirty) || exact > longest {
                return Err("a block's counts disagree with its pages");
            }
            if usize::from(b.bin) != bin_of(usize::from(longest)) {
                return Err("a block is in the wrong bin");
            }
            // SAFETY: we hold the page lock.
            let group = unsafe { self.arena.group(number / 64) };
            let marked = (0..BINS).filter(|&bin| group.bins[bin] >> (number % 64) & 1 == 1);
            if !marked.eq([bin_of(usize::from(longest))]) {
                return Err("a block is in no bin or in two");
            }
            dirty += usize::from(nr_dirty);
        }
        if dirty != lists.nr_dirty {
            return Err("the count of dirty pages is wrong");
        }
        Ok(())
    }
}
