//! Swings: rows of allocations and frees that cross from the main sheaf to the spare and back, though one of them has room for all.
//!
//! | | main (room for 250) | spare |
//! |---|---|---|
//! | before | 50 | 250 |
//! | 250 are allocated: after 50 of them the two change places | 50 | 0 |
//! | 250 are freed: after 200 of them they change places again | 50 | 250 |
//!
//! It is a matter of where the first row began, and it stays so. Each change costs as much as ten objects. So the CPU notes how many
//! objects it frees from one change to the next: so far does the row reach into each of the two sheaves, above the change and below. Where
//! both together fit into one sheaf, the one that becomes the main one gets just so many of the spare's objects that the row lies in its midst:
//! here 200, so that the next row ends as it is full, and the spare keeps 50. What goes to and fro by a few objects gets half a sheaf.

use core::sync::atomic::Ordering::Relaxed;

use crate::allocator::Allocator;
use crate::atomic::AtomicU32;
use crate::cache::KmemCache;
use crate::gfp::Gfp;
use crate::info;
use crate::percpu::Region;
use crate::platform::Platform;
use crate::sheaf::{self, Sheaf};
use crate::stats::StatItem;

/// What a CPU has seen of a cache, in a word of its region. Racy: a lost update costs a change.
#[derive(Clone, Copy)]
struct Swing {
    /// Low bits of the number of frees at the last change.
    mark: u16,
    /// Objects freed between the last two changes of which the second was by a free.
    below: u16,
}

impl Swing {
    fn load(word: &AtomicU32) -> Self {
        // Relaxed: a hint.
        let word = word.load(Relaxed);
        Self {
            mark: word as u16,
            below: (word >> 16) as u16,
        }
    }

    fn store(self, word: &AtomicU32) {
        // Relaxed: a hint.
        word.store(u32::from(self.mark) | u32::from(self.below) << 16, Relaxed);
    }

    /// Objects freed since the last change, which is this from now on.
    fn freed<P: Platform>(&mut self, cache: &KmemCache<P>, region: &Region) -> u16 {
        let frees = info::count_in(region, cache, StatItem::FreeFastpath);
        let freed = (frees as u16).wrapping_sub(self.mark);
        self.mark = frees as u16;
        freed
    }
}

impl<P: Platform> Allocator<P> {
    /// The main sheaf was full, and one with room takes its place.
    pub(crate) fn note_filled(&self, cache: &KmemCache<P>) {
        if cache.is_adaptive() {
            let region = self.table.here(self.platform.cpu());
            let mut swing = Swing::load(region.swing(cache.id));
            swing.below = swing.freed(cache, region);
            swing.store(region.swing(cache.id));
        }
    }

    /// The main sheaf was empty, and the spare takes its place: the objects that put the row in the midst of a sheaf of `capacity`, if it fits.
    fn note_emptied(&self, cache: &KmemCache<P>, capacity: usize) -> Option<usize> {
        let region = self.table.here(self.platform.cpu());
        let mut swing = Swing::load(region.swing(cache.id));
        let above = usize::from(swing.freed(cache, region));
        swing.store(region.swing(cache.id));
        midst(above, swing.below.into(), capacity)
    }

    /// The sheaf that becomes the main one, which was seen to be empty: the spare, or as much of it as keeps the row in one sheaf.
    pub(crate) fn centred(
        &self,
        cache: &KmemCache<P>,
        main: usize,
        mut spare: Sheaf,
        gfp: Gfp,
    ) -> Sheaf {
        if !cache.is_adaptive() {
            return spare;
        }
        let Some(n) = self.note_emptied(cache, spare.capacity()) else {
            return spare;
        };
        if main == sheaf::bootstrap() || !self.swap(cache.id.main(), main, sheaf::bootstrap()) {
            return spare;
        }
        // SAFETY: just taken out of its slot, and no sentinel.
        let mut main = self.fit(cache, unsafe { Sheaf::from_top(main) });
        if n > main.capacity() || n >= spare.len() {
            self.place_empty(cache, main, gfp);
            return spare;
        }
        let kept = spare.len() - n;
        main.room()[..n].copy_from_slice(&spare.objects()[kept..]);
        main.grow(n);
        spare.truncate(kept);
        let top = spare.into_top();
        if !self.swap(cache.id.spare(), 0, top) {
            // SAFETY: in no slot, so still ours.
            self.store_or_flush(cache, unsafe { Sheaf::from_top(top) }, gfp);
        }
        main
    }
}

/// Objects that a sheaf holds where a row goes up and down that reaches so many above a change of sheaves and so many below, at least one: as
/// much room is left above as objects below. `None` where there was no row, or none that fits.
fn midst(above: usize, below: usize, capacity: usize) -> Option<usize> {
    let below = below.max(1);
    let slack = capacity.checked_sub(above + below)?;
    (above > 0).then_some(below + slack / 2)
}

#[cfg(test)]
mod tests {
    use super::midst;

    #[test]
    fn a_row_lies_in_the_midst_of_a_sheaf_that_has_room_for_it() {
        assert_eq!(midst(50, 200, 250), Some(200));
        assert_eq!(midst(10, 40, 250), Some(140));
        assert_eq!(midst(1, 1, 250), Some(125));
        assert_eq!(midst(249, 0, 250), Some(1));
    }

    #[test]
    fn rows_that_are_too_long_for_a_sheaf_stay_as_they_are() {
        assert_eq!(midst(51, 200, 250), None);
        assert_eq!(midst(250, 0, 250), None);
        // Allocations alone.
        assert_eq!(midst(0, 200, 250), None);
    }
}
