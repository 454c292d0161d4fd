//! Pages of the system that are longer than ours: what goes back to it, and what must not.
//!
//! The platform fails a test by a call that is not aligned to the system's pages. A real system
//! rounds the end of such a range up, and takes live objects with it.

use std::collections::BTreeSet;

use crate::support::pattern::{fill, is_filled};
use crate::support::{Dice, SYSTEM_PAGES, Setup, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::kmalloc::LARGE_MAX;
use uslub_core::memory::PageIndex;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::percpu::sheaf::SHEAF_BYTES;
use uslub_core::platform::{PAGE_SIZE, Platform, SYSTEM_PAGE_MAX};

const DECAY: u64 = 1000;

/// An allocator on pages of each length.
fn each() -> impl Iterator<Item = (Box<Slub>, usize)> {
    SYSTEM_PAGES.into_iter().map(|page| {
        let setup = Setup::with(&[&format!("decay_ms={DECAY}")]);
        (setup.on_pages_of(page).build(), page / PAGE_SIZE)
    })
}

fn take(a: &Slub, count: usize) -> PageIndex {
    let run = a.zone.alloc(&a.platform, count, 1, Gfp::KERNEL).unwrap();
    fill(address(a, run.page), count * PAGE_SIZE, 0x5a);
    run.page
}

fn address(a: &Slub, page: PageIndex) -> *mut u8 {
    a.zone.arena.address(page).as_ptr()
}

fn give(a: &Slub, page: PageIndex, count: usize) {
    a.zone.free(&a.platform, page, count, DECAY);
}

fn is_whole(a: &Slub, page: u32, byte: u8) -> bool {
    is_filled(address(a, PageIndex(page)), PAGE_SIZE, byte)
}

/// Of the pages of a block, those that `stays` names stay in use; returns what the purge left
/// dirty.
fn purge_all_but(a: &Slub, stays: impl Fn(u32) -> bool) -> usize {
    let first = take(a, BLOCK_PAGES).0;
    let pages = || first..first + BLOCK_PAGES as u32;
    let free = |&page: &u32| !stays(page - first);
    pages()
        .filter(free)
        .for_each(|page| give(a, PageIndex(page), 1));
    a.zone.purge(&a.platform);
    assert_eq!(a.zone.validate(), Ok(()));
    assert!(
        pages()
            .filter(|page| !free(page))
            .all(|page| is_whole(a, page, 0x5a))
    );
    let dirty = a.zone.dirty_bytes() / PAGE_SIZE;
    let zero = pages().filter(|&page| is_whole(a, page, 0)).count();
    assert_eq!(zero + dirty, pages().filter(free).count());
    pages()
        .filter(|page| !free(page))
        .for_each(|page| give(a, PageIndex(page), 1));
    assert_all_is_given_back(a);
    dirty
}

#[test]
fn a_page_goes_back_with_all_others_of_its_system_page_and_not_before() {
    for (a, group) in each() {
        assert_eq!(purge_all_but(&a, |_| false), 0);
        // One in 32: the other pages of its system page stay too.
        let dirty = BLOCK_PAGES / 32 * (group - 1);
        assert_eq!(purge_all_but(&a, |page| page % 32 == 5), dirty);
        // Every second one.
        let dirty = if group == 1 { 0 } else { BLOCK_PAGES / 2 };
        assert_eq!(purge_all_but(&a, |page| page % 2 == 0), dirty);
        // The ends of what is free lie inside system pages.
        let dirty = 2 * (group - 1);
        assert_eq!(purge_all_but(&a, |page| !(33..479).contains(&page)), dirty);
    }
}

#[test]
fn pages_that_wait_for_others_of_their_system_page_go_back_when_those_are_free() {
    for (a, group) in each() {
        let page = take(&a, BLOCK_PAGES);
        let last = BLOCK_PAGES as u32 - 1;
        give(&a, PageIndex(page.0 + last), 1);
        a.platform.advance(DECAY);
        a.tick(a.platform.now_ms());
        let waits = usize::from(group > 1);
        assert_eq!(a.zone.dirty_bytes(), waits * PAGE_SIZE);
        // Clean pages at the side of dirty ones are of their system page too.
        let others = group as u32 - 1;
        for other in last - others..last {
            give(&a, PageIndex(page.0 + other), 1);
        }
        a.platform.advance(DECAY);
        a.tick(a.platform.now_ms());
        assert_eq!(a.zone.dirty_bytes(), 0);
        assert!((last - others..=last).all(|at| is_whole(&a, page.0 + at, 0)));
        give(&a, page, BLOCK_PAGES - group);
        assert_all_is_given_back(&a);
    }
}

/// A page that cannot go back must not keep those of other blocks.
#[test]
fn blocks_of_which_nothing_can_go_back_do_not_hold_others_up() {
    for (a, _) in each() {
        let blocks: Vec<_> = (0..12).map(|_| take(&a, BLOCK_PAGES)).collect();
        let (stuck, others) = blocks.split_at(4);
        stuck.iter().for_each(|&block| give(&a, block, 1));
        a.platform.advance(1);
        let unit = SYSTEM_PAGE_MAX / PAGE_SIZE;
        others.iter().for_each(|&block| give(&a, block, 8 * unit));
        a.platform.advance(DECAY / 2);
        // Objects of their own mappings take the place of free pages.
        let huge = a.kmalloc(8 << 20, Gfp::KERNEL);
        assert!(!huge.is_null());
        let dirty = a.zone.dirty_bytes() / PAGE_SIZE;
        assert!(dirty <= 16 + stuck.len(), "{dirty} pages stay");
        // SAFETY: live, freed once.
        unsafe { a.kfree(huge) };
        a.platform.advance(DECAY);
        a.tick(a.platform.now_ms());
        for (i, &block) in blocks.iter().enumerate() {
            let free = if i < stuck.len() { 1 } else { 8 * unit };
            give(&a, PageIndex(block.0 + free as u32), BLOCK_PAGES - free);
        }
        assert_all_is_given_back(&a);
    }
}

#[test]
fn mappings_are_whole_system_pages_however_they_are_cut() {
    for (a, group) in each() {
        let page = group * PAGE_SIZE;
        for bytes in [LARGE_MAX + 1, LARGE_MAX + 5000, 1_000_000, (1 << 20) + 1] {
            let object = a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
            let whole = bytes.next_multiple_of(page);
            assert_eq!(a.ksize(object), whole);
            assert!((object as usize).is_multiple_of(page) && is_filled(object, whole, 0));
            fill(object, whole, 1);
            // SAFETY: live; nobody uses the old address.
            let moved = unsafe { a.krealloc(object, 3 * bytes, Gfp::KERNEL) };
            assert!(is_filled(moved, whole, 1));
            assert_eq!(a.ksize(moved), (3 * bytes).next_multiple_of(page));
            for align in [PAGE_SIZE, 4 * PAGE_SIZE, 16 * PAGE_SIZE, 1 << 20] {
                let aligned = a.kmalloc_aligned(bytes, align, Gfp::KERNEL);
                assert!((aligned as usize).is_multiple_of(align));
                fill(aligned, a.ksize(aligned), 2);
                // SAFETY: live, freed once.
                unsafe { a.kfree(aligned) };
            }
            // SAFETY: live, freed once.
            unsafe { a.kfree(moved) };
        }
        assert_all_is_given_back(&a);
    }
}

#[test]
fn zeroed_objects_are_zero_to_the_end_of_a_mapping_that_others_had() {
    for (a, _) in each() {
        let anchor = a.kmalloc(64 << 20, Gfp::KERNEL);
        let bytes = LARGE_MAX + 1;
        // Mappings are kept once one was missed.
        for _ in 0..4 {
            let object = a.kmalloc(bytes, Gfp::KERNEL);
            fill(object, a.ksize(object), 0xff);
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
        let maps = a.platform.calls().map;
        let object = a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
        assert_eq!(a.platform.calls().map, maps, "it was kept");
        assert!(is_filled(object, a.ksize(object), 0));
        for object in [object, anchor] {
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
        assert_all_is_given_back(&a);
    }
}

/// Windows of one system page that are in use keep the others.
#[test]
fn windows_go_back_by_whole_system_pages() {
    for (a, group) in each() {
        let take = || a.meta.window(&a.platform, Gfp::KERNEL).unwrap();
        let windows: BTreeSet<_> = (0..640).map(|_| take()).collect();
        let number = |window: usize| window / SHEAF_BYTES;
        for window in &windows {
            // SAFETY: ours, and so long.
            unsafe { window.cast::<u8>().write_bytes(0xff, SHEAF_BYTES) };
        }
        // One in 32 stays in use.
        let stays = |window: usize| number(window) % 32 == 7;
        for round in 0..3 {
            for (i, &window) in windows.iter().enumerate() {
                if !stays(window.as_ptr() as usize) {
                    a.meta.give_window(&a.platform, window, i % 3 != 0);
                }
            }
            a.platform.take_purged();
            a.meta.purge(&a.platform);
            let purged: usize = a.platform.take_purged().iter().map(|(_, n)| n).sum();
            let kept = windows.len() - purged / SHEAF_BYTES;
            let staying = windows
                .iter()
                .filter(|w| stays(w.as_ptr() as usize))
                .count();
            assert!(
                kept >= staying * group && kept <= staying * group + 2 * group + 1,
                "{kept}"
            );
            for window in windows.iter().filter(|w| stays(w.as_ptr() as usize)) {
                assert!(
                    is_filled(window.cast().as_ptr(), SHEAF_BYTES, 0xff),
                    "in use"
                );
            }
            // Each comes back once, and none is made anew.
            let maps = a.platform.calls().map;
            let again: BTreeSet<_> = (staying..windows.len()).map(|_| take()).collect();
            assert_eq!(again.len(), windows.len() - staying, "round {round}");
            assert!(again.is_subset(&windows) && a.platform.calls().map == maps);
        }
        for window in windows {
            a.meta.give_window(&a.platform, window, true);
        }
        assert_all_is_given_back(&a);
    }
}

#[test]
fn the_reservation_is_trimmed_at_system_pages_and_its_tables_serve_on() {
    for page in SYSTEM_PAGES {
        let reserve = 512 << 20;
        let setup = Setup::default().on_pages_of(page);
        let a = Setup { reserve, ..setup }.build();
        let some: Vec<_> = (0..3).map(|_| take(&a, BLOCK_PAGES)).collect();
        // Not as many blocks as fill a page of each table.
        a.zone.arena.trim_reservation(&a.platform, 43 << 21);
        let mut more = Vec::new();
        while let Some(run) = a.zone.alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL) {
            more.push(run.page);
        }
        assert!(more.len() >= 43 && more.len() < 128, "{}", more.len());
        for block in some.into_iter().chain(more) {
            a.zone.free(&a.platform, block, BLOCK_PAGES, DECAY);
        }
        assert_all_is_given_back(&a);
    }
}

/// Objects of all sizes, with decay and trims between: none loses a byte.
#[test]
fn live_objects_keep_their_bytes_while_others_go_back() {
    for (a, group) in each() {
        let mut dice = Dice::new(11);
        let mut live: Vec<(*mut u8, usize, u8)> = Vec::new();
        for step in 0..6000usize {
            on_cpu(dice.below(4));
            if live.len() < 200 || live.len() < 2000 && dice.below(2) == 0 {
                let bytes = match dice.below(16) {
                    0 => 1 + dice.below(2 * LARGE_MAX),
                    1..=3 => 1 + dice.below(30_000),
                    _ => 1 + dice.below(600),
                };
                let object = a.kmalloc(bytes, Gfp::KERNEL);
                fill(object, bytes, step as u8);
                live.push((object, bytes, step as u8));
            } else {
                // Neighbours, so that pages become free; not all of them.
                let from = dice.below(live.len());
                for at in (from..(from + 100).min(live.len())).rev() {
                    if dice.below(8) > 0 {
                        let (object, bytes, byte) = live.swap_remove(at);
                        assert!(is_filled(object, bytes, byte));
                        // SAFETY: live, freed once.
                        unsafe { a.kfree(object) };
                    }
                }
            }
            match dice.below(64) {
                0 => _ = a.trim(),
                1..4 => {
                    a.platform.advance(DECAY / 2);
                    a.tick(a.platform.now_ms());
                }
                _ => {}
            }
        }
        assert!(a.platform.calls().purge > 20, "{group}");
        for (object, bytes, byte) in live {
            assert!(is_filled(object, bytes, byte));
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
        assert_all_is_given_back(&a);
    }
}
