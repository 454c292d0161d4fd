//! Swings: rows of allocations and frees that cross from the main sheaf to the spare and back, though one of them has room for all.
//!
//! | | main (room for 250) | spare |
//! |---|---|---|
//! | before | 50 | 250 |
//! | 250 are allocated: after 50 of them the two change places | 50 | 0 |
//! | 250 are freed: after 200 of them they change places again | 50 | 250 |
//!
//! It is a matter of where the first row began, and it stays so. Each change costs as much as ten objects. So the CPU notes how
//! many objects it frees from one change to the next: so far does the row reach into each of the two sheaves, above the change and
//! below. Where both together fit into one sheaf, the one that becomes the main one gets just so many of the spare's objects that
//! the row lies in its midst: here 200, so that the next row ends as it is full, and the spare keeps 50. What goes to and fro by a
//! few objects gets half a sheaf.

use core::sync::atomic::Ordering::Relaxed;

use crate::allocator::Allocator;
use crate::atomic::AtomicU32;
use crate::cache::KmemCache;
use crate::gfp::Gfp;
use crate::info;
use crate::platform::Platform;
use crate::sheaf::Sheaf;
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
}

impl<P: Platform> Allocator<P> {
    /// The main sheaf was full, and one with room takes its place.
    pub(crate) fn note_filled(&self, cache: &KmemCache<P>) {
        if cache.is_adaptive() {
            self.note_change(cache, true);
        }
    }

    /// Main and spare change places, as main is `filled` or else empty: the objects freed since the change before, and those that were
    /// freed from one by an allocation to one by a free.
    fn note_change(&self, cache: &KmemCache<P>, filled: bool) -> (usize, usize) {
        let region = self.table.here(self.platform.cpu());
        let frees = info::count_in(region, cache, StatItem::FreeFastpath) as u16;
        let last = Swing::load(region.swing(cache.id));
        let freed = frees.wrapping_sub(last.mark);
        let below = if filled { freed } else { last.below };
        Swing { mark: frees, below }.store(region.swing(cache.id));
        (freed.into(), below.into())
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
        let (above, below) = self.note_change(cache, false);
        let Some(n) = midst(above, below, spare.capacity()).filter(|&n| n < spare.len()) else {
            return spare;
        };
        let Some(main) = self.take_main(cache, main) else {
            return spare;
        };
        let mut main = self.fit(cache, main);
        let n = n.min(main.capacity());
        let kept = spare.len() - n;
        main.room()[..n].copy_from_slice(&spare.objects()[kept..]);
        main.grow(n);
        spare.truncate(kept);
        self.place_spare(cache, spare, gfp);
        main
    }
}

/// Objects, at least one, of a sheaf in whose midst a row lies that reaches so many above a change of sheaves and so many below: as
/// much room is left over as objects. `None` where there was no row, or none that fits.
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
