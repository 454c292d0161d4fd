//! How much address space is reserved and when; blocks that go back as a whole; long runs instead
//! of mappings.

#![cfg(not(miri))]

use crate::support::pattern::{fill, is_filled};
use crate::support::{Setup, Slub, assert_all_is_given_back, system};
use uslub_core::Gfp;
use uslub_core::kmalloc::LARGE_MAX;
use uslub_core::memory::PageIndex;
use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::memory::block::BLOCK_PAGES;
use uslub_core::platform::PAGE_SIZE;
use uslub_core::policy::MAPPINGS_MAX;

const MIB: usize = 1 << 20;

fn setup(reserve: usize, limited: bool) -> Box<Slub> {
    let setup = Setup {
        reserve,
        hole: true,
        limited,
        ..Setup::default()
    };
    setup.build()
}

fn try_block(a: &Slub) -> Option<PageIndex> {
    let run = a.zone.alloc(&a.platform, BLOCK_PAGES, 1, Gfp::KERNEL)?;
    fill(a.zone.arena.address(run.page).as_ptr(), BLOCK_BYTES, 0x5a);
    Some(run.page)
}

fn take_blocks(a: &Slub, count: usize) -> Vec<PageIndex> {
    (0..count)
        .map(|_| try_block(a).expect("there is memory"))
        .collect()
}

fn give_blocks(a: &Slub, blocks: impl IntoIterator<Item = PageIndex>) {
    for page in blocks {
        assert!(is_filled(
            a.zone.arena.address(page).as_ptr(),
            BLOCK_BYTES,
            0x5a
        ));
        a.zone.free(&a.platform, page, BLOCK_PAGES, 1000);
    }
}

#[test]
fn under_a_limit_little_is_reserved_and_the_range_grows_in_place() {
    let a = setup(1 << 30, true);
    assert!(a.platform.reserved_bytes() < 4 * MIB);
    let blocks = take_blocks(&a, 60);
    for (n, block) in blocks.iter().enumerate() {
        assert_eq!(block.0 as usize, n * BLOCK_PAGES);
    }
    let reserved = a.platform.reserved_bytes();
    assert!(reserved < 60 * BLOCK_BYTES + 4 * MIB, "{reserved} bytes");
    assert_eq!(a.zone.validate(), Ok(()));
    give_blocks(&a, blocks);
    assert_all_is_given_back(&a);
}

#[test]
fn blocks_that_are_freed_under_a_limit_go_back_but_for_a_few_and_come_again() {
    let a = setup(1 << 30, true);
    for _ in 0..3 {
        let blocks = take_blocks(&a, 40);
        let others = blocks.iter().copied().step_by(2);
        give_blocks(&a, others);
        let reserved = a.platform.reserved_bytes();
        assert!(reserved < 24 * BLOCK_BYTES, "{reserved} bytes");
        assert!(a.zone.nr_absent() >= 16);
        assert_eq!(a.zone.validate(), Ok(()));
        let again = take_blocks(&a, 20);
        assert_eq!(a.zone.arena.limit(), 40 * BLOCK_PAGES, "no other addresses");
        assert_eq!(a.zone.nr_absent(), 0);
        give_blocks(&a, again);
        give_blocks(&a, blocks.into_iter().skip(1).step_by(2));
        assert!(a.platform.reserved_bytes() < 4 * BLOCK_BYTES);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn an_ample_range_gives_all_back_that_is_not_used_and_grows_on() {
    let a = setup(1 << 30, false);
    assert!(a.platform.reserved_bytes() >= 1 << 30);
    let mut blocks = take_blocks(&a, 20);
    a.zone.shed(&a.platform, 0);
    let reserved = a.platform.reserved_bytes();
    assert!(reserved < 20 * BLOCK_BYTES + 4 * MIB, "{reserved} bytes");
    blocks.extend(take_blocks(&a, 100));
    assert_eq!(a.zone.validate(), Ok(()));
    give_blocks(&a, blocks);
    assert_all_is_given_back(&a);
}

#[test]
fn a_range_that_is_used_up_is_extended_in_place() {
    let a = setup(16 * MIB, false);
    let blocks = take_blocks(&a, 8 * 8);
    assert_eq!(try_block(&a), None, "no more was planned");
    give_blocks(&a, blocks);
    assert_all_is_given_back(&a);
}

#[test]
fn what_lies_behind_the_range_stops_its_growth_until_it_is_gone() {
    let a = setup(1 << 30, true);
    let mut blocks = take_blocks(&a, 5);
    let behind = a.zone.arena.base() + 7 * BLOCK_BYTES;
    assert!(system::reserve_at(behind, PAGE_SIZE));
    while let Some(block) = try_block(&a) {
        blocks.push(block);
    }
    assert_eq!(blocks.len(), 7);
    let object = a.kmalloc(100_000, Gfp::KERNEL);
    assert!(!object.is_null(), "by a mapping");
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
    system::unmap(behind, PAGE_SIZE);
    blocks.extend(take_blocks(&a, 10));
    give_blocks(&a, blocks);
    assert_all_is_given_back(&a);
}

#[test]
fn an_absent_block_whose_place_is_taken_is_passed_by() {
    let a = setup(1 << 30, true);
    let mut blocks = take_blocks(&a, 10);
    let keep = blocks.split_off(9);
    give_blocks(&a, blocks);
    a.zone.make_room(&a.platform);
    assert_eq!(a.zone.nr_absent(), 9);
    let place = a.zone.arena.base() + BLOCK_BYTES / 2;
    assert!(system::reserve_at(place, PAGE_SIZE));
    let again = take_blocks(&a, 9);
    assert_eq!((a.zone.nr_absent(), again[0].0 as usize), (1, BLOCK_PAGES));
    assert_eq!(a.zone.validate(), Ok(()));
    system::unmap(place, PAGE_SIZE);
    assert_eq!(take_blocks(&a, 1), [PageIndex(0)]);
    give_blocks(&a, keep.into_iter().chain(again).chain([PageIndex(0)]));
    assert_all_is_given_back(&a);
}

#[test]
fn what_the_system_does_not_take_back_serves_on() {
    let a = setup(1 << 30, true);
    let blocks = take_blocks(&a, 10);
    a.platform.set_releases(false);
    give_blocks(&a, blocks);
    assert!(!a.zone.make_room(&a.platform));
    assert_eq!((a.zone.nr_absent(), a.zone.validate()), (0, Ok(())));
    let again = take_blocks(&a, 10);
    assert_eq!(a.zone.arena.limit(), 10 * BLOCK_PAGES);
    a.platform.set_releases(true);
    give_blocks(&a, again);
    assert_all_is_given_back(&a);
}

#[test]
fn a_refused_mapping_is_asked_for_again_when_room_was_made() {
    let a = setup(1 << 30, false);
    let blocks = take_blocks(&a, 20);
    give_blocks(&a, blocks);
    let before = a.platform.reserved_bytes();
    assert!(!a.zone.arena.is_lean());
    // The system refuses a mapping, and a run in its stead.
    a.platform.fail(0, 1);
    let object = a.kmalloc(2 << 30, Gfp::KERNEL);
    assert_eq!((object.is_null(), a.platform.heal()), (false, 1));
    assert!(a.zone.arena.is_lean());
    let given = before - a.platform.reserved_bytes();
    assert!(
        given > (1 << 30) - 4 * MIB,
        "only {given} bytes were given back"
    );
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
    assert_all_is_given_back(&a);
}

#[test]
fn a_request_that_is_just_too_large_leaves_the_range_ample() {
    let a = setup(1 << 30, false);
    take_blocks(&a, 4);
    a.platform.fail(0, usize::MAX);
    assert!(a.kmalloc(1 << 40, Gfp::KERNEL).is_null());
    a.platform.heal();
    assert!(!a.zone.arena.is_lean());
    a.platform.fail(0, usize::MAX);
    assert!(a.kmalloc(8 * MIB, Gfp::KERNEL).is_null());
    a.platform.heal();
    assert!(a.zone.arena.is_lean(), "memory is short");
}

/// As many huge objects as have mappings.
fn fill_mappings(a: &Slub) -> Vec<*mut u8> {
    let take = |_| a.kmalloc(LARGE_MAX + 1, Gfp::KERNEL);
    let objects: Vec<_> = (0..MAPPINGS_MAX).map(take).collect();
    let is_mapped = |object: &*mut u8| a.zone.arena.page_of(*object as usize).is_none();
    assert!(
        objects
            .iter()
            .all(|object| !object.is_null() && is_mapped(object))
    );
    objects
}

#[test]
fn many_huge_objects_are_runs_of_pages() {
    let a = setup(2 << 30, false);
    let mut objects = fill_mappings(&a);
    let maps = a.platform.calls().map;
    let sizes = [
        LARGE_MAX + 1,
        BLOCK_BYTES - 1,
        BLOCK_BYTES,
        BLOCK_BYTES + 1,
        3 * BLOCK_BYTES + 5 * PAGE_SIZE,
    ];
    let mut runs = Vec::new();
    for round in 0..20 {
        let bytes = sizes[round % sizes.len()];
        let object = a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
        assert!(a.zone.arena.page_of(object as usize).is_some());
        assert!(is_filled(object, bytes, 0));
        fill(object, bytes, round as u8 + 1);
        assert_eq!(a.ksize(object), bytes.next_multiple_of(PAGE_SIZE));
        assert_eq!(a.zone.validate(), Ok(()));
        runs.push((object, bytes, round as u8 + 1));
        if round % 3 == 2 {
            let (object, bytes, byte) = runs.swap_remove(round / 2);
            assert!(is_filled(object, bytes, byte));
            // SAFETY: live, freed once.
            unsafe { a.kfree(object) };
        }
    }
    assert_eq!(a.platform.calls().map, maps);
    for (object, bytes, byte) in runs {
        assert!(is_filled(object, bytes, byte));
        objects.push(object);
    }
    for object in objects {
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
    }
    assert_all_is_given_back(&a);
}

#[test]
fn a_long_run_grows_and_shrinks() {
    let a = setup(2 << 30, false);
    let objects = fill_mappings(&a);
    let first = 3 * BLOCK_BYTES + 5 * PAGE_SIZE;
    let object = a.kmalloc(first, Gfp::KERNEL);
    fill(object, first, 7);
    // SAFETY: live, and of such a size.
    unsafe {
        assert_eq!(
            a.krealloc(object, 4 * BLOCK_BYTES, Gfp::KERNEL),
            object,
            "in its last block"
        );
        let moved = a.krealloc(object, 4 * BLOCK_BYTES + 1, Gfp::KERNEL);
        assert!(!moved.is_null() && is_filled(moved, first, 7));
        let short = a.krealloc(moved, BLOCK_BYTES + PAGE_SIZE, Gfp::KERNEL);
        assert_eq!((short, a.ksize(short)), (moved, BLOCK_BYTES + PAGE_SIZE));
        assert!(is_filled(short, BLOCK_BYTES + PAGE_SIZE, 7));
        assert_eq!(a.zone.validate(), Ok(()));
        a.kfree(short);
        objects.into_iter().for_each(|object| a.kfree(object));
    }
    assert_all_is_given_back(&a);
}

#[test]
fn a_run_serves_where_the_system_gives_no_mapping() {
    let a = setup(1 << 30, false);
    // The range has its first blocks.
    let blocks = take_blocks(&a, 30);
    for bytes in [LARGE_MAX + 1, 3 * BLOCK_BYTES] {
        a.platform.fail(0, 1);
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        assert_eq!(a.platform.heal(), 1);
        assert!(a.zone.arena.page_of(object as usize).is_some());
        fill(object, bytes, 1);
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
    }
    give_blocks(&a, blocks);
    assert_all_is_given_back(&a);
}
