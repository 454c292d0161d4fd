//! Slabs in huge pages that were split, and in small pages where huge ones were asked for.
//!
//! The kernel says for each mapping whether huge pages were asked for (`hg` in `VmFlags`) or asked
//! not to be used (`nh`), and how many of its bytes are in huge pages. uslub asks for huge pages by
//! blocks of 2 MiB as its memory grows. When a part of a block goes back to the system, the block's
//! huge page is split:
//!
//! | mappings of a block | its slabs |
//! |---|---|
//! | `hg` throughout | in a huge page, if the system had one |
//! | `hg`, and others | split: new mappings replaced the parts that went back |
//! | `nh`, with room for more slabs | split: advice was taken back, then parts went back |
//! | others | nobody asked for a huge page |

use std::collections::BTreeMap;
use std::fs;
use uslub_inspect::memory::PAGE;
use uslub_inspect::proc_text::{Advice, Resident};
use uslub_inspect::{Heap, Snapshot};

/// Bytes of a block, and of a huge page.
const BLOCK: u64 = 2 << 20;

/// Slabs where huge pages were asked for, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// All of them.
    pub asked: u64,
    /// Those in small pages.
    pub small: u64,
    /// Whether the system allows huge pages.
    pub is_allowed: bool,
}

/// What was asked for in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Huge,
    Split,
    NotAsked,
}

impl HugePages {
    /// The slabs of all allocators, in the mappings that `smaps` lists.
    pub fn of(smaps: &[Resident], looks: &[(Heap<'_>, Snapshot)]) -> Self {
        // Bytes of slabs by the number of their block.
        let mut slabs = BTreeMap::new();
        for (heap, look) in looks {
            for row in &look.rows {
                let bytes = row.cache.slab_pages() * PAGE;
                heap.for_each_slab(&row.cache, |slab| {
                    *slabs.entry(heap.address(slab.page) / BLOCK).or_insert(0) += bytes;
                });
            }
        }
        Self {
            is_allowed: is_allowed(),
            ..Self::count(smaps, &slabs)
        }
    }

    fn count(smaps: &[Resident], slabs: &BTreeMap<u64, u64>) -> Self {
        let (mut all, mut whole) = (Self::default(), 0);
        for (&number, &bytes) in slabs {
            match block(smaps, number, bytes) {
                Block::Huge => whole += bytes,
                Block::Split => all.small += bytes,
                Block::NotAsked => {}
            }
        }
        all.asked = all.small + whole;
        let advised = smaps.iter().filter(|map| map.advice == Advice::Huge);
        all.small += advised.map(small_in_whole_blocks).sum::<u64>().min(whole);
        all
    }
}

/// Bytes in small pages of a mapping, in blocks that are all its own: other blocks are split.
fn small_in_whole_blocks(map: &Resident) -> u64 {
    let range = &map.map.range;
    let (first, last) = (
        range.start.next_multiple_of(BLOCK),
        range.end / BLOCK * BLOCK,
    );
    let at_ends = (first - range.start) + range.end.saturating_sub(last);
    map.bytes.saturating_sub(map.huge).saturating_sub(at_ends)
}

/// What was asked for in the block with a number, in which slabs have `bytes`.
fn block(smaps: &[Resident], number: u64, bytes: u64) -> Block {
    let (start, end) = (number * BLOCK, (number + 1) * BLOCK);
    let first = smaps.partition_point(|map| map.map.range.end <= start);
    let inside = (smaps[first..].iter()).take_while(|map| map.map.range.start < end);
    let advice: Vec<_> = inside.map(|map| map.advice).collect();
    let (huge, small) = (Advice::Huge, Advice::Small);
    if advice.contains(&huge) {
        let is_whole = advice.iter().all(|&advice| advice == huge);
        return if is_whole { Block::Huge } else { Block::Split };
    }
    match advice.contains(&small) && bytes < BLOCK {
        true => Block::Split,
        false => Block::NotAsked,
    }
}

/// Whether the system allows huge pages.
fn is_allowed() -> bool {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    text.is_ok_and(|text| !text.contains("[never]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use uslub_inspect::memory::Map;

    const KIB: u64 = 1024;

    /// A mapping from and to an address in KiB, all of it resident, with KiB in huge pages.
    fn map(from: u64, to: u64, huge: u64, advice: Advice) -> Resident {
        Resident {
            map: Map {
                range: from * KIB..to * KIB,
                writable: true,
                offset: 0,
                name: String::new(),
            },
            bytes: (to - from) * KIB,
            huge: huge * KIB,
            advice,
        }
    }

    /// KiB of slabs where huge pages were asked for, and of them in small pages; each block has as
    /// many KiB of slabs as `slabs` says.
    fn count(smaps: &[Resident], slabs: &[u64]) -> (u64, u64) {
        let slabs = slabs
            .iter()
            .zip(0..)
            .map(|(kib, number)| (number, kib * KIB));
        let all = HugePages::count(smaps, &slabs.collect());
        (all.asked / KIB, all.small / KIB)
    }

    #[test]
    fn blocks_in_huge_pages_are_told_from_those_that_were_split() {
        let (none, huge, small) = (Advice::None, Advice::Huge, Advice::Small);
        // Nobody asked; then two blocks in huge pages, of which the system supplied one.
        let smaps = [map(0, 2048, 0, none), map(2048, 6144, 2048, huge)];
        assert_eq!(count(&smaps, &[2000, 2000, 2048]), (4048, 2048));
        assert_eq!(count(&smaps, &[2000, 0, 0]), (0, 0));
        // A part of the second block was replaced.
        let smaps = [
            map(0, 3000, 2048, huge),
            map(3000, 3100, 0, none),
            map(3100, 4096, 0, huge),
        ];
        assert_eq!(count(&smaps[..1], &[2048]).0, 2048);
        let (asked, in_small) = count(&smaps, &[2048, 1900]);
        assert_eq!((asked, in_small), (3948, 1900));
        // The advice was taken back: for a block that is full, and for one with a part missing.
        let smaps = [map(0, 4096, 0, small)];
        assert_eq!(count(&smaps, &[2048, 1024]), (1024, 1024));
    }
}
