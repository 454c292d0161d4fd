//! Resident memory follows use: what lies idle makes room before the process takes more.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use super::SYSTEM_PAGE;
use crate::support::calls::Calls;
use crate::support::{Cache, Setup, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::kmalloc::{LARGE_MAX, class_of};
use uslub_core::percpu::sheaf::{SHEAF_BYTES, Window};
use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_core::policy::{MAPPING_CACHE_BYTES, MAPPING_CACHE_SHARE, MAPPING_IDLE_MS};

const DECAY: u64 = 1000;
const HUGE: usize = 2 * LARGE_MAX;
/// Small objects, enough of them for many slabs of a page.
const SMALL: usize = 400;
const MANY: usize = 4000;

fn setup() -> Box<Slub> {
    Setup::with(&[&format!("decay_ms={DECAY}")])
        .on_pages_of(SYSTEM_PAGE)
        .build()
}

fn take(a: &Slub, bytes: usize) -> *mut u8 {
    let object = a.kmalloc(bytes, Gfp::KERNEL);
    assert!(!object.is_null());
    object
}

fn give(a: &Slub, object: *mut u8) {
    // SAFETY: allocated here, freed once.
    unsafe { a.kfree(object) };
}

/// Takes and frees one huge object; returns how many mappings that made.
fn cycle(a: &Slub, bytes: usize) -> usize {
    let before = a.platform.calls().map;
    give(a, take(a, bytes));
    a.platform.calls().map - before
}

#[test]
fn a_huge_mapping_is_kept_once_one_like_it_was_missed() {
    let a = setup();
    let anchor = take(&a, HUGE);
    cycle(&a, HUGE);
    assert_eq!(
        a.mapped.kept_bytes(),
        0,
        "nobody has asked for the like yet"
    );
    assert_eq!(cycle(&a, HUGE), 1, "it was missed");
    assert_eq!(a.mapped.kept_bytes(), HUGE);
    for _ in 0..5 {
        assert_eq!(cycle(&a, HUGE - PAGE_SIZE), 0, "it serves again");
    }
    // Nobody needs it any more, so nothing is kept from then on.
    a.platform.advance(DECAY);
    a.tick(a.platform.now_ms());
    assert_eq!(a.mapped.kept_bytes(), 0);
    cycle(&a, 2 * HUGE);
    assert_eq!(a.mapped.kept_bytes(), 0);
    give(&a, anchor);
    assert_all_is_given_back(&a);
}

/// What a thread has read may be gone when it asks: other threads take cached mappings.
#[test]
fn to_evict_nothing_unmaps_nothing() {
    let a = setup();
    let anchor = take(&a, HUGE);
    cycle(&a, HUGE);
    cycle(&a, HUGE);
    let unmapped = a.platform.calls().unmap;
    assert!(!a.mapped.evict(&a.platform, 0, 0));
    assert_eq!(a.mapped.kept_bytes(), HUGE);
    assert_eq!(a.platform.calls().unmap, unmapped);
    assert!(a.mapped.evict(&a.platform, 1, 0), "a part of it");
    assert!((1..HUGE).contains(&a.mapped.kept_bytes()));
    give(&a, anchor);
    assert_all_is_given_back(&a);
}

/// A loop that doubles a buffer lives from what it has freed, though each round ends above the
/// live peak.
#[test]
fn a_small_process_gives_nothing_back_in_each_round() {
    const BUFFER: usize = 1 << 20;
    const ROUNDS: usize = 20;
    let a = setup();
    let round = || {
        let (buffer, beside) = (take(&a, BUFFER), take(&a, 200_000));
        give(&a, beside);
        // SAFETY: allocated above.
        let longer = unsafe { a.krealloc(buffer, 2 * BUFFER, Gfp::KERNEL) };
        assert!(!longer.is_null());
        give(&a, longer);
    };
    (0..ROUNDS).for_each(|_| round());
    let before = a.platform.calls();
    (0..ROUNDS).for_each(|_| round());
    let after = a.platform.calls();
    assert_eq!(after.purge, before.purge);
    assert!(
        after.unmap - before.unmap <= 1,
        "{before:?} {after:?}: a mapping in each round"
    );
    assert_all_is_given_back(&a);
}

#[test]
fn huge_mappings_that_nobody_asks_for_again_are_not_kept() {
    let a = setup();
    let objects: Vec<_> = (0..20).map(|_| take(&a, HUGE)).collect();
    for object in objects {
        give(&a, object);
        assert_eq!(a.mapped.kept_bytes(), 0);
    }
    // The like of the last, but long after.
    a.platform.advance(DECAY);
    cycle(&a, HUGE);
    assert_eq!(a.mapped.kept_bytes(), 0);
    assert_all_is_given_back(&a);
}

#[test]
fn huge_mappings_of_ever_larger_sizes_are_stretched() {
    let a = setup();
    // Demand for the first two is known with the third.
    (0..3).for_each(|step| assert!(cycle(&a, HUGE + HUGE / 2 * step) >= 1));
    for step in 3..20 {
        let remaps = a.platform.calls().remap;
        assert_eq!(cycle(&a, HUGE + HUGE / 2 * step), 0, "step {step}");
        assert_eq!(a.platform.calls().remap, remaps + 1);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn no_more_than_the_largest_total_is_kept() {
    let a = setup();
    for _ in 0..3 {
        let objects: Vec<_> = (0..10).map(|_| take(&a, 16 << 20)).collect();
        objects.iter().for_each(|&object| give(&a, object));
        assert!(a.mapped.kept_bytes() <= MAPPING_CACHE_BYTES);
    }
    assert_eq!(a.mapped.kept_bytes(), MAPPING_CACHE_BYTES);
    a.platform.advance(DECAY);
    a.tick(a.platform.now_ms());
    assert_eq!(a.mapped.kept_bytes(), 0);
    assert_all_is_given_back(&a);
}

#[test]
fn as_much_is_kept_as_is_live() {
    let a = setup();
    let mut live: Vec<_> = (0..12).map(|_| take(&a, 16 << 20)).collect();
    for _ in 0..3 {
        let objects: Vec<_> = (0..8).map(|_| take(&a, 16 << 20)).collect();
        objects.iter().for_each(|&object| give(&a, object));
    }
    assert_eq!(a.mapped.kept_bytes(), 128 << 20);
    live.drain(6..).for_each(|object| give(&a, object));
    assert_eq!(a.mapped.kept_bytes(), 96 << 20);
    live.iter().for_each(|&object| give(&a, object));
    assert_eq!(a.mapped.kept_bytes(), MAPPING_CACHE_BYTES);
    a.platform.advance(DECAY);
    a.tick(a.platform.now_ms());
    assert_eq!(a.mapped.kept_bytes(), 0);
    assert_all_is_given_back(&a);
}

#[test]
fn what_is_kept_makes_room_at_a_peak() {
    let a = setup();
    for _ in 0..3 {
        let objects = [(); 4].map(|()| take(&a, 8 << 20));
        objects.iter().for_each(|&object| give(&a, object));
    }
    assert_eq!(a.mapped.kept_bytes(), 32 << 20);
    // Zeroed memory is mapped anew. As much as was in use before, and a share, is no peak.
    let zeroed = |bytes| a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
    let huge = zeroed(33 << 20);
    let kept = a.mapped.kept_bytes();
    let most = (33 << 20) / MAPPING_CACHE_SHARE + (1 << 20);
    assert!((1 << 20..=most).contains(&kept), "{kept} bytes");
    give(&a, huge);
    assert_all_is_given_back(&a);
}

#[test]
fn what_is_kept_makes_room_for_small_objects() {
    let a = setup();
    for _ in 0..3 {
        let objects = [(); 4].map(|()| take(&a, 8 << 20));
        objects.iter().for_each(|&object| give(&a, object));
    }
    assert_eq!(a.mapped.kept_bytes(), 32 << 20);
    a.platform.advance(MAPPING_IDLE_MS);
    let small: Vec<_> = (0..(64 << 20) / SMALL).map(|_| take(&a, SMALL)).collect();
    let kept = a.mapped.kept_bytes();
    assert!(kept <= 2 << 20, "{kept} bytes");
    small.iter().for_each(|&object| give(&a, object));
    assert_all_is_given_back(&a);
}

#[test]
fn a_buffer_that_shrinks_and_grows_again_keeps_its_pages() {
    let a = setup();
    let resize = |object: *mut u8, bytes| {
        // SAFETY: live, given up.
        let object = unsafe { a.krealloc(object, bytes, Gfp::KERNEL) };
        assert_eq!(a.ksize(object), bytes);
        object
    };
    let mut object = take(&a, 8 << 20);
    // The first rounds tell the demand.
    for _ in 0..3 {
        object = resize(resize(object, 4 << 20), 8 << 20);
    }
    let before = a.platform.calls();
    for _ in 0..10 {
        let small = resize(object, 4 << 20);
        assert_eq!(a.mapped.kept_bytes(), 4 << 20);
        object = resize(small, 8 << 20);
        assert_eq!((object, a.mapped.kept_bytes()), (small, 0));
    }
    let after = a.platform.calls();
    let calls = |calls: Calls| calls.map + calls.map_at + calls.remap + calls.unmap;
    assert_eq!(calls(after), calls(before));
    // Zeroed memory is not what was cut off.
    // SAFETY: so long.
    unsafe { object.write_bytes(7, 8 << 20) };
    let small = resize(object, 4 << 20);
    // SAFETY: live, given up.
    let grown = unsafe { a.krealloc(small, 8 << 20, Gfp::KERNEL | Gfp::ZERO) };
    // SAFETY: so long.
    let content = unsafe { std::slice::from_raw_parts(grown, 8 << 20) };
    let (old, new) = content.split_at(4 << 20);
    assert!(old.iter().all(|&byte| byte == 7) && new.iter().all(|&byte| byte == 0));
    give(&a, grown);
    assert_all_is_given_back(&a);
}

#[test]
fn an_object_that_moves_into_a_used_mapping_is_zero_beyond_its_old_end() {
    let (a, anchor) = setup_with_kept();
    let dirty = take(&a, 2 << 20);
    // SAFETY: so long.
    unsafe { dirty.write_bytes(7, 2 << 20) };
    give(&a, dirty);
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    let small = take(&a, SMALL);
    // SAFETY: live, given up.
    let object = unsafe { a.krealloc(small, 2 << 20, Gfp::KERNEL | Gfp::ZERO) };
    assert_eq!(object, dirty);
    // SAFETY: so long.
    let content = unsafe { std::slice::from_raw_parts(object, 2 << 20) };
    assert!(content[SMALL..].iter().all(|&byte| byte == 0));
    give(&a, object);
    give(&a, anchor);
    assert_all_is_given_back(&a);
}

#[test]
#[cfg_attr(miri, ignore = "an interpreter's mappings do not join")]
fn a_kept_mapping_is_stretched_where_it_lies() {
    let setup = Setup::with(&[&format!("decay_ms={DECAY}")]).on_pages_of(SYSTEM_PAGE);
    let a = setup.beside().build();
    let anchor = take(&a, 64 << 20);
    cycle(&a, 2 << 20);
    cycle(&a, 2 << 20);
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    let before = a.platform.calls();
    let long = take(&a, 5 << 20);
    // SAFETY: so long.
    unsafe { long.write_bytes(3, 5 << 20) };
    let after = a.platform.calls();
    assert_eq!((after.map, after.remap), (before.map, before.remap));
    assert_eq!(after.map_at, before.map_at + 1);
    assert_eq!((a.ksize(long), a.mapped.kept_bytes()), (5 << 20, 0));
    give(&a, long);
    give(&a, anchor);
    assert_all_is_given_back(&a);
}

/// So much is in use that 4 MiB are no peak, and 2 MiB are kept.
fn setup_with_kept() -> (Box<Slub>, *mut u8) {
    let a = setup();
    let anchor = take(&a, 64 << 20);
    cycle(&a, 2 << 20);
    cycle(&a, 2 << 20);
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    (a, anchor)
}

#[test]
fn what_is_kept_serves_other_sizes() {
    let (a, anchor) = setup_with_kept();
    let before = a.platform.calls();
    let take_filled = |bytes, byte| {
        let object = take(&a, bytes);
        // SAFETY: so long.
        unsafe { object.write_bytes(byte, bytes) };
        object
    };
    let short = take_filled(1 << 20, 1);
    assert_eq!(a.mapped.kept_bytes(), 1 << 20, "it was cut");
    let long = take_filled(3 << 20, 3);
    assert_eq!(a.mapped.kept_bytes(), 0, "it was stretched");
    let after = a.platform.calls();
    assert_eq!((after.map - before.map, after.remap - before.remap), (0, 1));
    // A size of its own each, and nothing of another in it.
    for (object, filled) in [(short, 1), (long, 3)] {
        let bytes = usize::from(filled) << 20;
        assert_eq!(a.ksize(object), bytes);
        // SAFETY: so long.
        let content = unsafe { std::slice::from_raw_parts(object, bytes) };
        assert!(content.iter().all(|&byte| byte == filled));
        give(&a, object);
    }
    assert_eq!(a.mapped.kept_bytes(), 4 << 20);
    // What was used before is zero where that is asked for.
    let zero = a.kmalloc(2 << 20, Gfp::KERNEL | Gfp::ZERO);
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    // SAFETY: so long.
    let content = unsafe { std::slice::from_raw_parts(zero, 2 << 20) };
    assert!(content.iter().all(|&byte| byte == 0));
    give(&a, zero);
    give(&a, anchor);
    assert_all_is_given_back(&a);
}

#[test]
fn what_is_kept_is_not_stretched_beyond_reason() {
    let (a, anchor) = setup_with_kept();
    let maps = a.platform.calls().map;
    let long = take(&a, 9 << 20);
    assert_eq!(a.platform.calls().map, maps + 1);
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    // Nor where it is to be zero: what is not touched comes as zero by itself.
    let zero = a.kmalloc(3 << 20, Gfp::KERNEL | Gfp::ZERO);
    assert!(!zero.is_null());
    assert_eq!(a.platform.calls().map, maps + 2);
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    // Nor where that fails.
    a.platform.fail(0, 1);
    let other = take(&a, 3 << 20);
    a.platform.heal();
    assert_eq!(a.mapped.kept_bytes(), 2 << 20);
    for object in [long, zero, other, anchor] {
        give(&a, object);
    }
    assert_all_is_given_back(&a);
}

#[test]
fn the_oldest_mappings_make_room_for_others() {
    let (a, anchor) = setup_with_kept();
    let objects = [1, 2, 3].map(|_| take(&a, 2 << 20));
    for object in objects {
        a.platform.advance(1);
        give(&a, object);
    }
    assert_eq!(
        a.mapped.kept_bytes(),
        2 << 20,
        "as much as was asked for again"
    );
    let maps = a.platform.calls().map;
    let again = take(&a, 2 << 20);
    assert_eq!((again, a.platform.calls().map), (objects[2], maps));
    give(&a, again);
    give(&a, anchor);
    assert_all_is_given_back(&a);
}

/// Leaves so many pages free and dirty.
fn leave_dirty(a: &Slub, pages: usize) {
    let runs: Vec<_> = (0..pages / 64).map(|_| take(a, 64 * PAGE_SIZE)).collect();
    runs.iter().for_each(|&run| give(a, run));
    assert!(a.zone.dirty_bytes() >= pages * PAGE_SIZE);
}

#[test]
fn dirty_pages_make_room_for_a_huge_mapping() {
    let a = setup();
    leave_dirty(&a, 2048);
    let dirty = a.zone.dirty_bytes();
    let huge = take(&a, 4 << 20);
    assert!(a.zone.dirty_bytes() <= dirty - (4 << 20));
    assert!(a.zone.dirty_bytes() > 0, "only as much as it takes");
    // Growing it counts as well.
    // SAFETY: live.
    let huge = unsafe { a.krealloc(huge, 16 << 20, Gfp::KERNEL) };
    assert!(a.zone.dirty_bytes() <= 16 * PAGE_SIZE);
    give(&a, huge);
    assert_all_is_given_back(&a);
}

#[test]
fn a_huge_mapping_takes_nothing_away_within_what_the_process_had_before() {
    let a = setup();
    // As much, once.
    give(&a, take(&a, 8 << 20));
    leave_dirty(&a, 512);
    let dirty = a.zone.dirty_bytes();
    let huge = take(&a, 4 << 20);
    assert_eq!(a.zone.dirty_bytes(), dirty);
    let more = take(&a, 4 << 20);
    assert!(a.zone.dirty_bytes() < dirty, "that is more than ever");
    give(&a, huge);
    give(&a, more);
    assert_all_is_given_back(&a);
}

#[test]
fn resident_pages_are_handed_out_before_clean_ones_below() {
    let a = setup();
    let runs: Vec<_> = (0..64).map(|_| take(&a, 16 * PAGE_SIZE)).collect();
    let (low, high) = runs.split_at(32);
    low.iter().for_each(|&run| give(&a, run));
    a.platform.advance(DECAY);
    a.tick(a.platform.now_ms());
    assert_eq!(a.zone.dirty_bytes(), 0, "clean by now");
    let resident = high[7];
    give(&a, resident);
    assert_eq!(take(&a, 16 * PAGE_SIZE), resident);
    let clean = take(&a, 16 * PAGE_SIZE);
    assert!(low.contains(&clean), "the lowest that is free");
    give(&a, clean);
    high.iter().for_each(|&run| give(&a, run));
    assert_all_is_given_back(&a);
}

#[test]
fn idle_pages_make_room_when_the_process_is_about_to_have_more_than_ever() {
    let a = setup();
    if a.platform.system_page() > PAGE_SIZE {
        // A single page does not go back; see system_pages.rs.
        return;
    }
    // A free page behind each object, which serves nobody who wants more.
    let objects: Vec<_> = (0..1024).map(|_| take(&a, 4 * PAGE_SIZE)).collect();
    for &object in &objects {
        // SAFETY: live; it shrinks in place.
        let shrunk = unsafe { a.krealloc(object, 3 * PAGE_SIZE, Gfp::KERNEL) };
        assert_eq!(shrunk, object);
    }
    let resident = |a: &Slub| a.zone.used_bytes() + a.zone.dirty_bytes();
    let most = resident(&a);
    assert_eq!(a.zone.dirty_bytes(), 1024 * PAGE_SIZE);
    let others: Vec<_> = (0..400).map(|_| take(&a, 3 * PAGE_SIZE)).collect();
    assert_eq!(
        resident(&a),
        most + 1200 * PAGE_SIZE,
        "what was free a moment ago stays"
    );
    a.platform.advance(5);
    let more: Vec<_> = (0..300).map(|_| take(&a, 3 * PAGE_SIZE)).collect();
    let grown = resident(&a) - most - 1200 * PAGE_SIZE;
    assert!(
        grown <= 100 * PAGE_SIZE,
        "{grown} bytes more, and {} idle",
        a.zone.dirty_bytes()
    );
    let all = [objects, others, more].concat();
    all.iter().for_each(|&object| give(&a, object));
    assert_all_is_given_back(&a);
}

#[test]
fn what_a_process_had_before_takes_nothing_away() {
    let a = setup();
    for _ in 0..5 {
        let runs: Vec<_> = (0..64).map(|_| take(&a, 64 * PAGE_SIZE)).collect();
        runs.iter().for_each(|&run| give(&a, run));
        a.platform.advance(5);
    }
    assert_eq!(
        a.platform.calls().purge,
        0,
        "the same pages serve again and again"
    );
    assert_all_is_given_back(&a);
}

/// The class of small objects, of which many were taken and freed.
fn left_behind(a: &Slub) -> &Cache {
    let objects: Vec<_> = (0..MANY).map(|_| take(a, SMALL)).collect();
    objects.iter().for_each(|&object| give(a, object));
    a.cache(class_of(SMALL)).unwrap()
}

/// Lets so many looks for what is idle go by while others ask for pages; `meanwhile` happens
/// between them.
fn while_others_go_on(a: &Slub, looks: usize, meanwhile: impl Fn()) -> Vec<*mut u8> {
    let others = (0..looks).flat_map(|_| {
        a.platform.advance(20);
        meanwhile();
        (0..MANY).map(|_| take(a, 64)).collect::<Vec<_>>()
    });
    others.collect()
}

#[test]
fn a_class_that_nobody_uses_any_more_keeps_nothing() {
    let a = setup();
    let class = left_behind(&a);
    let before = a.info(class);
    assert!(before.cached_objs > 0 && before.num_slabs > 0);
    let others = while_others_go_on(&a, 6, || {});
    let after = a.info(class);
    assert_eq!((after.cached_objs, after.num_slabs), (0, 0));
    others.iter().for_each(|&object| give(&a, object));
    assert_all_is_given_back(&a);
}

#[test]
fn what_the_barn_of_a_class_does_not_need_goes_back_though_the_class_is_in_use() {
    let a = setup();
    let class = left_behind(&a);
    let full = || class.barn(0).nr_full();
    let before = full();
    assert!(before > 1, "{before}");
    let others = while_others_go_on(&a, 12, || give(&a, take(&a, SMALL)));
    assert_eq!(full(), 0);
    assert!(a.info(class).cached_objs > 0, "what the CPU has stays");
    others.iter().for_each(|&object| give(&a, object));
    assert_all_is_given_back(&a);
}

/// A window without pages is known to one that has some; each of them comes back once.
#[test]
fn the_pages_of_windows_that_are_given_up_go_back_but_for_few() {
    let a = setup();
    let take = || a.meta.window(&a.platform, Gfp::KERNEL).unwrap();
    let windows: BTreeSet<_> = (0..1200).map(|_| take()).collect();
    assert_eq!(windows.len(), 1200);
    for round in 1..=2 {
        for (i, &window) in windows.iter().enumerate() {
            // SAFETY: so long, and ours until it is given up.
            unsafe { window.write_bytes(0xff, 1) };
            // On CPUs of all shards, and half of them without waiting.
            on_cpu(i % 256);
            a.meta.give_window(&a.platform, window, i % 2 == 0);
        }
        on_cpu(0);
        a.meta.purge(&a.platform);
        // Nothing is left to do.
        a.meta.purge(&a.platform);
        let is_zero = |window: &&NonNull<Window>| {
            let words = window.cast::<[u64; SHEAF_BYTES / 8]>();
            // SAFETY: so long; nobody else runs.
            unsafe { words.as_ref() }.iter().all(|&word| word == 0)
        };
        let together = a.platform.system_page() / SHEAF_BYTES;
        let kept = if together == 1 { 3 } else { together };
        assert_eq!(windows.iter().filter(is_zero).count(), 1200 - kept);
        let maps = a.platform.calls().map;
        let again: BTreeSet<_> = (0..1200).map(|_| take()).collect();
        assert_eq!(again, windows, "round {round}");
        assert_eq!(a.platform.calls().map, maps);
    }
    windows
        .into_iter()
        .for_each(|window| a.meta.give_window(&a.platform, window, true));
    assert_all_is_given_back(&a);
}

/// What CPUs of one shard give, those of others find, while their own have none.
#[test]
fn a_window_that_one_cpu_gives_is_found_by_another() {
    let a = setup();
    let take = || a.meta.window(&a.platform, Gfp::KERNEL).unwrap();
    let windows: BTreeSet<_> = (0..100).map(|_| take()).collect();
    let maps = a.platform.calls().map;
    for (giver, taker) in [(0, 16), (16, 255), (255, 0), (200, 17)] {
        on_cpu(giver);
        for &window in &windows {
            a.meta.give_window(&a.platform, window, true);
        }
        on_cpu(taker);
        let again: BTreeSet<_> = (0..100).map(|_| take()).collect();
        assert_eq!(again, windows, "{giver} to {taker}");
    }
    assert_eq!(a.platform.calls().map, maps);
    on_cpu(0);
    windows
        .into_iter()
        .for_each(|window| a.meta.give_window(&a.platform, window, true));
    assert_all_is_given_back(&a);
}
