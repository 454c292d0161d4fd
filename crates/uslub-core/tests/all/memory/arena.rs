//! The range of pages: how it is reserved and grows, and what is trimmed of it.

use super::SYSTEM_PAGE;
use crate::memory::{DECAY, address, dirty, give, take};
use crate::support::pattern::{fill, is_filled};
use crate::support::{Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::Platform;

fn setup() -> Box<Slub> {
    Setup::with(&[&format!("decay_ms={DECAY}")])
        .on_pages_of(SYSTEM_PAGE)
        .build()
}

#[test]
fn the_range_grows_only_when_nothing_free_fits() {
    let a = setup();
    assert_eq!(a.zone.arena.limit(), 0);
    let page = take(&a, 200, 1);
    take(&a, 312, 1);
    assert_eq!(a.zone.arena.limit(), BLOCK_PAGES);
    take(&a, 1, 1);
    assert_eq!(a.zone.arena.limit(), 2 * BLOCK_PAGES);
    give(&a, page, 200);
    take(&a, 200, 1);
    assert_eq!(a.zone.arena.limit(), 2 * BLOCK_PAGES);
}

#[test]
fn a_growth_that_fails_leaves_everything_as_it_was() {
    for fails in 0..5 {
        let a = setup();
        let before = take(&a, BLOCK_PAGES, 1);
        dirty(&a, before, BLOCK_PAGES);
        a.platform.fail(fails, 1);
        let run = a.zone.alloc(&a.platform, 3, 1, Gfp::KERNEL);
        let failed = a.platform.heal();
        assert_eq!(run.is_none(), failed == 1);
        assert_eq!(a.zone.validate(), Ok(()));
        assert_eq!(a.zone.arena.limit(), (2 - failed) * BLOCK_PAGES);
        let page = match run {
            Some(run) => run.page,
            None => take(&a, 3, 1),
        };
        assert_eq!(page.0 as usize, BLOCK_PAGES);
        assert!(is_filled(address(&a, before), BLOCK_BYTES, 0x5a));
        give(&a, page, 3);
        give(&a, before, BLOCK_PAGES);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_refused_reservation_is_halved_until_it_is_granted() {
    let setup = Setup {
        reserve: 256 << 20,
        page: SYSTEM_PAGE,
        ..Setup::default()
    };
    // Some mappings for tables come first, and one for records last.
    let mappings = setup.build().platform.calls().map - 1;
    for refused in 0..6 {
        let a = setup.bare();
        a.platform.fail(mappings, refused);
        // SAFETY: nobody else has it yet.
        let done = unsafe { a.init(setup.reserve, setup.tunables) };
        assert_eq!(a.platform.heal(), refused);
        assert_eq!(
            (done, a.ready()),
            (refused < 5, refused < 5),
            "16 MiB are the least"
        );
        let reserved = if done { (256 << 20) >> refused } else { 0 };
        assert_eq!(a.zone.arena.reserved_bytes(), reserved);
    }
}

#[test]
fn a_range_that_is_used_up_hands_out_no_more_and_large_objects_get_mappings() {
    let setup = Setup {
        reserve: 16 << 20,
        page: SYSTEM_PAGE,
        ..Setup::default()
    };
    let a = setup.build();
    let blocks: Vec<_> = (0..8).map(|_| take(&a, BLOCK_PAGES, 1)).collect();
    assert!(a.zone.alloc(&a.platform, 1, 1, Gfp::KERNEL).is_none());
    assert!(a.kmalloc(100, Gfp::KERNEL).is_null());
    let large = a.kmalloc(100_000, Gfp::KERNEL);
    assert!(!large.is_null() && a.zone.arena.page_of(large as usize).is_none());
    assert_eq!(a.totals().huge, a.platform.whole_pages(100_000));
    // SAFETY: live, freed once.
    unsafe { a.kfree(large) };
    for block in blocks {
        give(&a, block, BLOCK_PAGES);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn a_reservation_is_trimmed_to_what_is_committed_and_some_more() {
    for keep in [0, 1, BLOCK_BYTES, 5 * BLOCK_BYTES, 1 << 40] {
        for used in [0, 1, 3] {
            let a = setup();
            let blocks: Vec<_> = (0..used).map(|_| take(&a, BLOCK_PAGES, 1)).collect();
            for &block in &blocks {
                dirty(&a, block, BLOCK_PAGES);
            }
            let before = (a.zone.arena.reserved_bytes(), a.platform.reserved_bytes());
            a.zone.arena.trim_reservation(&a.platform, keep);
            let kept = (used + keep / BLOCK_BYTES).min(before.0 / BLOCK_BYTES);
            assert_eq!(a.zone.arena.reserved_bytes(), kept * BLOCK_BYTES);
            let given = before.1 - a.platform.reserved_bytes();
            assert!(
                given >= before.0 - kept * BLOCK_BYTES,
                "pages are given back"
            );
            assert_eq!(a.zone.validate(), Ok(()));
            for &block in &blocks {
                assert!(is_filled(address(&a, block), BLOCK_BYTES, 0x5a));
            }
            // As much as was kept can still be used.
            let more: Vec<_> = (used..kept.min(used + 8))
                .map(|_| take(&a, BLOCK_PAGES, 1))
                .collect();
            for &block in &more {
                dirty(&a, block, BLOCK_PAGES);
            }
            if kept < used + 8 {
                assert!(
                    a.zone
                        .alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL)
                        .is_none()
                );
            }
            a.zone.arena.trim_reservation(&a.platform, 0);
            for block in blocks.into_iter().chain(more) {
                give(&a, block, BLOCK_PAGES);
            }
            assert_all_is_given_back(&a);
        }
    }
}

#[test]
fn many_blocks_share_their_tables_without_harm() {
    // Enough blocks that every side range spans pages and groups.
    let setup = Setup {
        reserve: 1 << 30,
        page: SYSTEM_PAGE,
        ..Setup::default()
    };
    let a = setup.build();
    let mut held = Vec::new();
    for i in 0..200u32 {
        let page = take(&a, BLOCK_PAGES, BLOCK_PAGES);
        assert_eq!(page.0, i * BLOCK_PAGES as u32);
        fill(address(&a, page), 1, i as u8);
        held.push(page);
        if i % 3 == 2 {
            give(&a, held[i as usize - 1], BLOCK_PAGES);
            held[i as usize - 1] = take(&a, BLOCK_PAGES, BLOCK_PAGES);
        }
    }
    assert_eq!(a.zone.validate(), Ok(()));
    for (i, page) in held.into_iter().enumerate() {
        assert!(i % 3 == 1 || is_filled(address(&a, page), 1, i as u8));
        give(&a, page, BLOCK_PAGES);
    }
    assert_eq!(a.zone.validate(), Ok(()));
    a.zone.purge(&a.platform);
    assert_eq!(a.zone.dirty_bytes(), 0);
    assert_eq!(a.zone.validate(), Ok(()));
}
