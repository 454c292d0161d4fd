//! A block: 2 MiB of pages, and the sets of its free and dirty pages.
//!
//! | free | dirty | the page |
//! |---|---|---|
//! | 0 | 0 | is not there yet, or is being given back to the system |
//! | 0 | 1 | is handed out, or is being given back to the system |
//! | 1 | 0 | is free, holds no memory, reads zero |
//! | 1 | 1 | is free, may still hold memory and old bytes |
//!
//! Blocks and groups are plain data. Callers: the zone, under the page lock.

/// Pages of a block, 4096 bytes each.
pub const BLOCK_PAGES: usize = 512;
const WORDS: usize = BLOCK_PAGES / 64;
/// No block: the end of a list.
pub const NO_BLOCK: u32 = u32::MAX;

/// A set of the pages of one block.
pub type PageSet = [u64; WORDS];

/// Number of bins: bin b has the blocks whose longest free run has 2^(b-1) … 2^b - 1 pages.
pub const BINS: usize = 11;

/// The bin that marks absent blocks: unmapped, with no page free or in use.
pub const ABSENT: usize = 15;

/// The bins of 64 neighbouring blocks; changed under the page lock.
#[repr(C, align(128))]
pub struct Group {
    /// By bin, one bit per block; one bin for the [absent](ABSENT) blocks.
    pub bins: [u64; 16],
}

const _: () = assert!(size_of::<Group>() == 128 && BINS <= ABSENT);

/// The record of one block; changed under the page lock.
pub struct Block {
    /// Pages that may be handed out.
    pub free: PageSet,
    /// Pages that were handed out after their memory was last given back to the system.
    pub dirty: PageSet,
    /// Free pages.
    pub nr_free: u16,
    /// Upper bound of the longest run of free pages; made exact when a search fails.
    pub longest: u16,
    /// Neighbour in the list of blocks with free dirty pages.
    pub dirty_prev: u32,
    /// See `dirty_prev`.
    pub dirty_next: u32,
    /// Free dirty pages.
    pub nr_dirty: u16,
    /// Time at which a page of this block was last freed, in milliseconds, the low 32 bits.
    pub dirty_since: u32,
    /// Bin of the block, by its longest run; 0 for none.
    pub bin: u8,
    /// Whether the block is in the list of blocks with free dirty pages.
    pub in_dirty: bool,
    /// Memory node of the pages.
    pub node: u8,
    /// Whether a huge page backs it: then a page that was never handed out may hold memory.
    pub huge: bool,
}

/// Calls `visit(word, mask)` for each word that has bits of the `count` pages from `first`.
fn for_range(first: usize, count: usize, mut visit: impl FnMut(usize, u64)) {
    let (mut at, end) = (first, first + count);
    while at < end {
        let (word, bit) = (at / 64, at % 64);
        let n = (64 - bit).min(end - at);
        let mask = if n == 64 {
            u64::MAX
        } else {
            ((1 << n) - 1) << bit
        };
        visit(word, mask);
        at += n;
    }
}

/// Number of set bits among the `count` bits from `first`.
pub fn count_in(set: &PageSet, first: usize, count: usize) -> usize {
    let mut n = 0;
    for_range(first, count, |w, mask| {
        n += (set[w] & mask).count_ones() as usize
    });
    n
}

/// Sets or clears `count` bits from `first`.
pub fn fill(set: &mut PageSet, first: usize, count: usize, value: bool) {
    for_range(first, count, |w, mask| {
        if value {
            set[w] |= mask;
        } else {
            set[w] &= !mask;
        }
    });
}

/// Position of the first bit at or after `from` that equals `value`, or `BLOCK_PAGES`.
pub fn next(set: &PageSet, from: usize, value: bool) -> usize {
    let mut at = from;
    while at < BLOCK_PAGES {
        let word = if value { set[at / 64] } else { !set[at / 64] };
        let rest = word >> (at % 64);
        if rest != 0 {
            return at + rest.trailing_zeros() as usize;
        }
        at = (at / 64 + 1) * 64;
    }
    BLOCK_PAGES
}

/// Start of the run of set bits that ends just before `at`; `at` if there is none.
fn run_before(set: &PageSet, at: usize) -> usize {
    let (mut word, bits) = (at / 64, at % 64);
    if bits > 0 {
        // Shift the bits below `at` to the top of the word; zeros fill the rest.
        let run = (set[word] << (64 - bits)).leading_ones() as usize;
        if run < bits {
            return at - run;
        }
    }
    // Skip full words without counting their bits.
    while word > 0 && set[word - 1] == u64::MAX {
        word -= 1;
    }
    let run = word
        .checked_sub(1)
        .map_or(0, |before| set[before].leading_ones());
    word * 64 - run as usize
}

/// Calls `visit(first, count)` for each run of set bits until it returns true; returns whether it
/// did.
pub fn any_run(set: &PageSet, mut visit: impl FnMut(usize, usize) -> bool) -> bool {
    let mut at = next(set, 0, true);
    while at < BLOCK_PAGES {
        let end = next(set, at, false);
        if visit(at, end - at) {
            return true;
        }
        at = next(set, end, true);
    }
    false
}

/// First page of a free run of `count` pages, aligned to `align` pages (a power of two).
pub fn find(set: &PageSet, count: usize, align: usize) -> Option<usize> {
    let mut found = None;
    any_run(set, |first, len| {
        let start = first.next_multiple_of(align);
        if start + count <= first + len {
            found = Some(start);
        }
        found.is_some()
    });
    found
}

/// Number of runs of `count` pages that follow each other from `first`, where the first one is
/// known to be; at most `most`.
pub fn runs_from(set: &PageSet, first: usize, count: usize, most: usize) -> usize {
    if most == 1 {
        return 1;
    }
    ((next(set, first, false) - first) / count).min(most)
}

/// The aligned groups of `n` pages (a power of two up to 64) whose pages are all in `free` and some
/// in `wanted`.
pub fn groups(free: &PageSet, wanted: &PageSet, n: usize) -> PageSet {
    let group = u64::MAX >> (64 - n);
    // The first page of each group.
    let mut firsts = 1;
    let mut apart = n;
    while apart < 64 {
        firsts |= firsts << apart;
        apart *= 2;
    }
    core::array::from_fn(|w| {
        let (mut all, mut any) = (free[w], wanted[w]);
        let mut step = 1;
        while step < n {
            all &= all >> step;
            any |= any >> step;
            step *= 2;
        }
        (all & any & firsts) * group
    })
}

impl Block {
    /// A block of node `node` without pages.
    pub const fn new(node: u8) -> Self {
        Self {
            free: [0; WORDS],
            dirty: [0; WORDS],
            nr_free: 0,
            longest: 0,
            dirty_prev: NO_BLOCK,
            dirty_next: NO_BLOCK,
            nr_dirty: 0,
            dirty_since: 0,
            bin: 0,
            in_dirty: false,
            node,
            huge: false,
        }
    }

    /// Adds `count` pages from `first` on as free and clean.
    pub fn add(&mut self, first: usize, count: usize) {
        fill(&mut self.free, first, count, true);
        self.recount();
    }

    /// The free dirty pages.
    pub fn free_dirty(&self) -> PageSet {
        core::array::from_fn(|w| self.free[w] & self.dirty[w])
    }

    /// Takes `count` free pages from `first` on out of the free set: they are handed out.
    pub fn claim(&mut self, first: usize, count: usize) {
        self.nr_dirty -= count_in(&self.dirty, first, count) as u16;
        self.nr_free -= count as u16;
        self.longest = self.longest.min(self.nr_free);
        fill(&mut self.free, first, count, false);
        fill(&mut self.dirty, first, count, true);
    }

    /// Puts `count` pages from `first` on back as free and dirty.
    pub fn give(&mut self, first: usize, count: usize) {
        self.nr_dirty += count as u16;
        self.nr_free += count as u16;
        fill(&mut self.free, first, count, true);
        let end = next(&self.free, first, false);
        let start = run_before(&self.free, first);
        self.longest = self.longest.max((end - start) as u16);
    }

    /// Recomputes the counts after a change of the sets.
    pub fn recount(&mut self) {
        let mut longest = 0;
        let mut free = 0;
        any_run(&self.free, |_, len| {
            longest = longest.max(len);
            free += len;
            false
        });
        self.longest = longest as u16;
        self.nr_free = free as u16;
        self.nr_dirty = self
            .free_dirty()
            .iter()
            .map(|w| w.count_ones() as u16)
            .sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block() -> Block {
        let mut b = Block::new(0);
        b.add(0, BLOCK_PAGES);
        b
    }

    #[test]
    fn runs_are_found_aligned_and_lowest_first() {
        let mut b = block();
        assert_eq!(find(&b.free, 512, 512), Some(0));
        fill(&mut b.free, 0, 3, false);
        assert_eq!(find(&b.free, 1, 1), Some(3));
        assert_eq!(find(&b.free, 4, 4), Some(4));
        assert_eq!(find(&b.free, 512, 1), None);
        assert_eq!(find(&b.free, 256, 256), Some(256));
        assert_eq!(runs_from(&b.free, 4, 4, 3), 3);
        fill(&mut b.free, 17, 1, false);
        assert_eq!(
            (runs_from(&b.free, 4, 4, 9), runs_from(&b.free, 504, 4, 9)),
            (3, 2)
        );
        fill(&mut b.free, 17, 1, true);
        b.recount();
        assert_eq!((b.nr_free, b.longest), (509, 509));
    }

    proptest! {
        #[test]
        fn runs_agree_with_a_plain_reading_of_the_bits(
            words in prop::array::uniform8(any::<u64>()),
            count in 1usize..40,
            shift in 0u32..5,
        ) {
            let mut b = block();
            b.free = words;
            b.recount();
            let bit = |i: usize| words[i / 64] >> (i % 64) & 1 == 1;
            let align = 1usize << shift;
            let plain = (0..=BLOCK_PAGES - count).step_by(align).find(|&s| (s..s + count).all(bit));
            prop_assert_eq!(find(&b.free, count, align), plain);
            prop_assert_eq!(b.nr_free as usize, (0..BLOCK_PAGES).filter(|&i| bit(i)).count());
            let (mut best, mut run) = (0, 0);
            for i in 0..BLOCK_PAGES {
                run = if bit(i) { run + 1 } else { 0 };
                best = best.max(run);
            }
            prop_assert_eq!(b.longest as usize, best);
            prop_assert_eq!(count_in(&words, 3, 200), (3..203).filter(|&i| bit(i)).count());
        }

        #[test]
        fn groups_agree_with_a_plain_reading_of_the_bits(
            free in prop::array::uniform8(prop_oneof![
                Just(u64::MAX),
                any::<u64>(),
                (0u32..64).prop_map(|n| u64::MAX << n),
            ]),
            wanted in prop::array::uniform8(any::<u64>()),
            shift in 0u32..7,
        ) {
            let n = 1usize << shift;
            let found = groups(&free, &wanted, n);
            let bit = |set: &PageSet, i: usize| set[i / 64] >> (i % 64) & 1 == 1;
            for first in (0..BLOCK_PAGES).step_by(n) {
                let mut group = first..first + n;
                let plain = group.clone().all(|i| bit(&free, i))
                    && group.clone().any(|i| bit(&wanted, i));
                prop_assert!(group.all(|i| bit(&found, i) == plain));
            }
        }

        #[test]
        fn the_run_before_agrees_with_a_plain_reading_of_the_bits(
            words in prop::array::uniform8(prop_oneof![
                Just(0),
                Just(u64::MAX),
                any::<u64>(),
                (0u32..64).prop_map(|n| u64::MAX << n),
            ]),
            at in 0..=BLOCK_PAGES,
        ) {
            let bit = |i: usize| words[i / 64] >> (i % 64) & 1 == 1;
            let run = (0..at).rev().take_while(|&i| bit(i)).count();
            prop_assert_eq!(run_before(&words, at), at - run);
        }
    }
}
