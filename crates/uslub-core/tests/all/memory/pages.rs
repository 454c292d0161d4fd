//! The page layer: runs of pages, growth in place, and giving back what stays free.

use std::collections::BTreeMap;

use super::SYSTEM_PAGE;
use crate::memory::{DECAY, address, dirty, give, take};
use crate::support::pattern::{fill, is_filled};
use crate::support::{Dice, Fresh, POISON, Setup, Slub, assert_all_is_given_back};
use proptest::prelude::*;
use uslub_core::Gfp;
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};
use uslub_core::memory::PageIndex;
use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::{PAGE_SIZE, Platform, SYSTEM_PAGE_MAX};
use uslub_core::slab::state::Slab;

/// Random cases: fewer where they have run on other pages already.
const CASES: u32 = if SYSTEM_PAGE == PAGE_SIZE { 100 } else { 20 };
/// Pages of ours in the longest page of a system.
const UNIT: usize = SYSTEM_PAGE_MAX / PAGE_SIZE;

fn setup() -> Box<Slub> {
    Setup::with(&[&format!("decay_ms={DECAY}"), "pcp_kb=0"])
        .on_pages_of(SYSTEM_PAGE)
        .build()
}

#[test]
fn runs_are_aligned_within_one_block_and_apart_from_each_other() {
    let a = setup();
    let mut dice = Dice::new(7);
    let mut held = BTreeMap::new();
    for _ in 0..400 {
        let align = 1 << dice.below(10);
        let count = match dice.below(4) {
            0 => 1 + dice.below(BLOCK_PAGES),
            _ => 1 + dice.below(20),
        };
        let page = take(&a, count, align);
        assert!((address(&a, page) as usize).is_multiple_of(align * PAGE_SIZE));
        let (first, end) = (page.0 as usize, page.0 as usize + count);
        assert_eq!(first / BLOCK_PAGES, (end - 1) / BLOCK_PAGES, "one block");
        if let Some((&before, &n)) = held.range(..end).next_back() {
            assert!(before + n <= first, "two runs share pages");
        }
        held.insert(first, count);
        dirty(&a, page, count);
        if dice.below(2) == 0 {
            let which = *held.keys().nth(dice.below(held.len())).unwrap();
            give(&a, PageIndex(which as u32), held.remove(&which).unwrap());
        }
        assert_eq!(a.zone.validate(), Ok(()));
    }
    for (first, count) in held {
        give(&a, PageIndex(first as u32), count);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn a_run_that_nobody_touched_is_known_to_be_zero() {
    let a = setup();
    let run = a.zone.alloc(&a.platform, 8, 1, Gfp::KERNEL).unwrap();
    assert!(run.zero);
    dirty(&a, run.page, 8);
    give(&a, run.page, 8);
    let again = a.zone.alloc(&a.platform, 8, 1, Gfp::KERNEL).unwrap();
    assert_eq!((again.page, again.zero), (run.page, false));
    give(&a, again.page, 8);
    a.zone.purge(&a.platform);
    let third = a.zone.alloc(&a.platform, 8, 1, Gfp::KERNEL).unwrap();
    assert_eq!((third.page, third.zero), (run.page, true));
    assert!(is_filled(address(&a, third.page), 8 * PAGE_SIZE, 0));
}

#[test]
fn what_could_not_be_purged_is_not_taken_for_zero() {
    let a = setup();
    let page = take(&a, 8, 1);
    dirty(&a, page, 8);
    give(&a, page, 8);
    a.platform.set_purges(false);
    a.zone.purge(&a.platform);
    assert_eq!(a.zone.dirty_bytes(), 8 * PAGE_SIZE);
    assert_eq!(a.zone.validate(), Ok(()));
    let run = a.zone.alloc(&a.platform, 8, 1, Gfp::KERNEL).unwrap();
    assert!(!run.zero);
    give(&a, run.page, 8);
    a.platform.set_purges(true);
    a.zone.purge(&a.platform);
    assert_all_is_given_back(&a);
}

#[test]
fn a_run_grows_in_place_into_free_pages_only() {
    let a = setup();
    let page = take(&a, 4, 1);
    let behind = PageIndex(page.0 + 10);
    // Takes the rest of the block, but for six pages behind the run.
    let rest = take(&a, 6, 1);
    assert_eq!(rest.0, page.0 + 4);
    let wall = take(&a, 1, 1);
    assert_eq!(wall, behind);
    assert_eq!(a.zone.extend(page, 4, 1, Gfp::KERNEL), None, "taken");
    dirty(&a, rest, 6);
    give(&a, rest, 6);
    assert_eq!(
        a.zone.extend(page, 4, 7, Gfp::KERNEL),
        None,
        "the seventh is taken"
    );
    assert_eq!(
        a.zone.extend(page, 4, 6, Gfp::KERNEL),
        Some(false),
        "and was used"
    );
    give(&a, wall, 1);
    assert_eq!(a.zone.extend(page, 10, 1, Gfp::KERNEL), Some(false));
    assert_eq!(
        a.zone.extend(page, 11, 2, Gfp::KERNEL),
        Some(true),
        "never used"
    );
    give(&a, page, 13);
    assert_all_is_given_back(&a);
}

#[test]
fn a_run_never_grows_out_of_its_block() {
    let a = setup();
    let first = take(&a, BLOCK_PAGES, 1);
    let second = take(&a, BLOCK_PAGES, 1);
    assert_eq!(second.0, first.0 + BLOCK_PAGES as u32);
    give(&a, second, BLOCK_PAGES);
    assert_eq!(a.zone.extend(first, BLOCK_PAGES, 1, Gfp::KERNEL), None);
    give(&a, first, BLOCK_PAGES);
    let half = take(&a, 256, 256);
    assert_eq!(a.zone.extend(half, 256, 257, Gfp::KERNEL), None);
    assert_eq!(a.zone.extend(half, 256, 256, Gfp::KERNEL), Some(false));
    give(&a, half, BLOCK_PAGES);
    assert_all_is_given_back(&a);
}

#[test]
fn a_large_object_grows_and_shrinks_in_place() {
    let a = setup();
    const FEW: usize = CLASS_MAX + 1;
    const MANY: usize = LARGE_MAX;
    let object = a.kmalloc(FEW, Gfp::KERNEL);
    fill(object, FEW, 7);
    // SAFETY: live, and of such a size.
    unsafe {
        assert_eq!(a.krealloc(object, MANY, Gfp::KERNEL), object);
        assert!(is_filled(object, FEW, 7));
        assert_eq!((a.ksize(object), a.totals().large), (MANY, MANY));
        assert_eq!(a.krealloc(object, 2 * FEW, Gfp::KERNEL), object);
        assert_eq!(a.ksize(object), (2 * FEW).next_multiple_of(PAGE_SIZE));
        assert!(is_filled(object, FEW, 7));
        let other = a.kmalloc(MANY / 2, Gfp::KERNEL);
        assert!(
            other < object.wrapping_add(MANY),
            "the pages behind were given back"
        );
        let moved = a.krealloc(object, MANY, Gfp::KERNEL);
        assert_ne!(moved, object, "now they are taken");
        assert!(is_filled(moved, FEW, 7));
        a.kfree(moved);
        a.kfree(other);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn nothing_is_purged_before_the_decay_and_everything_after() {
    let a = setup();
    let start = a.platform.now_ms();
    let runs: Vec<_> = (0..10).map(|_| take(&a, 4, 1)).collect();
    for (i, &page) in runs.iter().enumerate() {
        dirty(&a, page, 4);
        a.platform.set_clock(start + 10 * i as u64);
        give(&a, page, 4);
    }
    let last = start + 90;
    a.tick(last);
    a.tick(last + DECAY - 1);
    assert_eq!(a.platform.calls().purge, 0);
    assert_eq!(a.zone.dirty_bytes(), 40 * PAGE_SIZE);
    a.tick(last + DECAY);
    assert_eq!(a.zone.dirty_bytes(), 0);
    a.platform.assert_pages_are_zero();
    assert_eq!(a.zone.validate(), Ok(()));
}

#[test]
fn blocks_decay_one_by_one_as_they_were_used_last() {
    let a = setup();
    let start = a.platform.now_ms();
    // A few pages of each of four blocks; the rest stays in use.
    let blocks: Vec<_> = (0..4).map(|_| take(&a, BLOCK_PAGES, 1)).collect();
    for (i, &block) in [2, 0, 3, 1].iter().map(|&b| &blocks[b]).enumerate() {
        a.platform.set_clock(start + 100 * i as u64);
        dirty(&a, block, UNIT);
        give(&a, block, UNIT);
    }
    for i in 0..4 {
        a.tick(start + 100 * i + DECAY - 1);
        assert_eq!(a.zone.dirty_bytes(), (4 - i as usize) * UNIT * PAGE_SIZE);
        a.tick(start + 100 * i + DECAY);
        assert_eq!(a.zone.dirty_bytes(), (3 - i as usize) * UNIT * PAGE_SIZE);
    }
}

#[test]
fn a_block_decays_in_its_time_though_others_were_used_since() {
    let a = setup();
    let start = a.platform.now_ms();
    let (first, second) = (take(&a, BLOCK_PAGES, 1), take(&a, BLOCK_PAGES, 1));
    let last = BLOCK_PAGES - 2 * UNIT;
    give(&a, PageIndex(first.0 + last as u32), 2 * UNIT);
    a.platform.set_clock(start + 500);
    give(&a, second, UNIT);
    // Half of the pages are used again: the others are free since the start.
    a.platform.set_clock(start + 600);
    assert_eq!(a.zone.extend(first, last, UNIT, Gfp::KERNEL), Some(false));
    a.tick(start + DECAY);
    assert_eq!(
        a.zone.dirty_bytes(),
        UNIT * PAGE_SIZE,
        "the first block's pages had their time, the second's not yet"
    );
}

#[test]
fn decay_rides_on_later_frees() {
    let a = setup();
    let (old, rest) = (take(&a, UNIT, 1), take(&a, BLOCK_PAGES - UNIT, 1));
    // In another block, as a use keeps its own block young.
    let other = take(&a, 1, 1);
    dirty(&a, old, UNIT);
    give(&a, old, UNIT);
    a.platform.advance(2 * DECAY);
    assert_eq!(a.platform.calls().purge, 0);
    give(&a, other, 1);
    assert!(is_filled(address(&a, old), UNIT * PAGE_SIZE, 0));
    give(&a, rest, BLOCK_PAGES - UNIT);
    assert_all_is_given_back(&a);
}

#[test]
fn a_clock_that_was_read_before_a_free_purges_nothing() {
    let a = setup();
    let page = take(&a, 10, 1);
    let before = a.platform.now_ms();
    a.platform.advance(1);
    give(&a, page, 10);
    a.tick(before);
    assert_eq!(a.platform.calls().purge, 0, "freed a moment ago");
}

#[test]
fn an_empty_block_is_given_back_with_its_descriptors() {
    let a = setup();
    let object = a.kmalloc(CLASS_MAX + 1, Gfp::KERNEL);
    let more: Vec<_> = (0..10).map(|_| a.kmalloc(64 << 10, Gfp::KERNEL)).collect();
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
    a.zone.purge(&a.platform);
    let descriptors = a.zone.arena.slab(PageIndex(0)) as *const Slab as usize;
    let bytes = BLOCK_PAGES * size_of::<Slab>();
    let of_descriptors = |&(start, n): &(usize, usize)| start == descriptors && n == bytes;
    assert!(
        !a.platform.take_purged().iter().any(of_descriptors),
        "still in use"
    );
    for object in more {
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
    }
    assert_ne!(a.zone.arena.slab(PageIndex(0)).pages(), 0);
    a.zone.purge(&a.platform);
    let purged = a.platform.take_purged();
    // They stay where a page of the system holds those of other blocks too.
    let alone = bytes.is_multiple_of(a.platform.system_page());
    assert_eq!(purged.iter().any(of_descriptors), alone);
    assert!(
        purged.contains(&(a.zone.arena.base(), BLOCK_BYTES)),
        "the whole block at once"
    );
    assert!(!alone || is_filled(descriptors as *const u8, bytes, 0));
    assert_all_is_given_back(&a);
    // And it serves again.
    let object = a.kmalloc(64 << 10, Gfp::KERNEL);
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
    assert_all_is_given_back(&a);
}

#[test]
fn an_empty_block_serves_what_many_blocks_with_holes_cannot() {
    for (count, align) in [(1, 512), (3, 512), (300, 1), (300, 256), (1, 256), (512, 1)] {
        let a = setup();
        let blocks: Vec<_> = (0..24).map(|_| take(&a, BLOCK_PAGES, 1)).collect();
        for &block in &blocks[..20] {
            // Two pages stay in use, at the only places where a run so aligned could begin.
            give(&a, PageIndex(block.0 + 1), 255);
            give(&a, PageIndex(block.0 + 257), 255);
        }
        for &block in &blocks[20..] {
            give(&a, block, BLOCK_PAGES);
        }
        let page = take(&a, count, align);
        assert!(page >= blocks[20], "{count} at {align}");
        assert_eq!(
            a.zone.arena.limit(),
            24 * BLOCK_PAGES,
            "grew for {count} pages at {align} though four blocks are empty"
        );
    }
}

#[test]
fn objects_that_are_asked_for_zeroed_are_zero_wherever_they_come_from() {
    let a = setup();
    for bytes in [
        1,
        100,
        4096,
        CLASS_MAX,
        CLASS_MAX + 1,
        200_000,
        LARGE_MAX,
        LARGE_MAX + 1,
        3 << 20,
    ] {
        for _ in 0..4 {
            let object = a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
            assert!(is_filled(object, bytes, 0), "{bytes} bytes");
            fill(object, a.ksize(object), 0xff);
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
    }
    assert_all_is_given_back(&a);
}

#[test]
fn memory_that_is_known_to_be_zero_is_not_zeroed_again() {
    // Were it written to, the poison would be gone.
    let setup = Setup {
        fresh: Fresh::Poisoned,
        page: SYSTEM_PAGE,
        ..Setup::default()
    };
    let a = setup.build();
    let object = a.kmalloc(100_000, Gfp::KERNEL | Gfp::ZERO);
    assert!(is_filled(object, 100_000, POISON));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Contents and zero flags against a plain reading, with decay between.
    #[test]
    fn runs_keep_their_bytes_until_they_are_freed(
        steps in prop::collection::vec((0u8..6, 1usize..300, 0u32..9, any::<usize>()), 1..80),
    ) {
        let a = setup();
        let mut held: Vec<(PageIndex, usize, u8)> = Vec::new();
        for (i, (what, count, shift, at)) in steps.into_iter().enumerate() {
            let byte = i as u8 | 1;
            let at = if held.is_empty() { 0 } else { at % held.len() };
            match what {
                0..=1 => {
                    let align = 1 << shift;
                    let run = a.zone.alloc(&a.platform, count, align, Gfp::KERNEL).unwrap();
                    prop_assert!(!run.zero || is_filled(address(&a, run.page), count * PAGE_SIZE, 0));
                    fill(address(&a, run.page), count * PAGE_SIZE, byte);
                    held.push((run.page, count, byte));
                }
                2 if !held.is_empty() => {
                    let (page, n, _) = held.swap_remove(at);
                    give(&a, page, n);
                }
                3 if !held.is_empty() => {
                    let (page, n, byte) = &mut held[at];
                    let more = 1 + count % 20;
                    if let Some(zero) = a.zone.extend(*page, *n, more, Gfp::KERNEL) {
                        let new = address(&a, PageIndex(page.0 + *n as u32));
                        prop_assert!(!zero || is_filled(new, more * PAGE_SIZE, 0));
                        fill(new, more * PAGE_SIZE, *byte);
                        *n += more;
                    }
                }
                4 => {
                    a.platform.advance(count as u64 * 5);
                    a.tick(a.platform.now_ms());
                }
                _ => a.platform.set_purges(count % 4 != 0),
            }
            for &(page, n, byte) in &held {
                prop_assert!(is_filled(address(&a, page), n * PAGE_SIZE, byte));
            }
            prop_assert_eq!(a.zone.validate(), Ok(()));
        }
        for (page, n, _) in held {
            give(&a, page, n);
        }
        a.platform.set_purges(true);
        assert_all_is_given_back(&a);
    }
}
