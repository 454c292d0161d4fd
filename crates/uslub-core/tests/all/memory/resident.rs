//! Resident memory follows use: what lies idle makes room before the process takes more.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use super::SYSTEM_PAGE;
use crate::support::pattern::is_filled;
use crate::support::{Cache, Setup, Slub, assert_all_is_given_back, take_mapped};
use uslub_core::Gfp;
use uslub_core::kmalloc::class_of;
use uslub_core::percpu::sheaf::{SHEAF_BYTES, Window};
use uslub_core::platform::{PAGE_SIZE, Platform};

const DECAY: u64 = 1000;
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

/// Takes and frees objects of `bytes` bytes, `ms` milliseconds apart; returns the pages that went
/// back to the system meanwhile.
fn pairs(a: &Slub, bytes: usize, count: usize, ms: u64) -> usize {
    a.platform.take_purged();
    for _ in 0..count {
        give(a, take(a, bytes));
        a.platform.advance(ms);
        // A moment for the maintenance that frees do.
        give(a, take(a, 20_000));
    }
    let purged = a.platform.take_purged();
    purged.iter().map(|(_, bytes)| bytes / PAGE_SIZE).sum()
}

#[test]
fn pages_of_large_objects_stay_once_they_were_missed() {
    let a = setup();
    let bytes = 8 << 20;
    let other = take(&a, bytes);
    // So far apart that the surplus goes back between two.
    let apart = DECAY / 4;
    assert!(pairs(&a, bytes, 6, apart) > 0, "nobody has asked again");
    assert_eq!(pairs(&a, bytes, 5, apart), 0, "they were missed");
    assert!(a.zone.dirty_bytes() >= bytes);
    // Objects of other sizes use them too.
    assert_eq!(pairs(&a, bytes / 3, 3, 1), 0);
    // Nobody needs them any more: they go back, and demand is over.
    a.platform.advance(2 * DECAY);
    a.tick(a.platform.now_ms());
    assert_eq!(a.zone.dirty_bytes(), 0);
    assert!(pairs(&a, bytes, 1, apart) > 0, "as at first");
    give(&a, other);
    assert_all_is_given_back(&a);
}

#[test]
fn pages_that_are_missed_too_late_do_not_stay() {
    let a = setup();
    for _ in 0..5 {
        assert!(pairs(&a, 8 << 20, 1, DECAY) > 0);
    }
    assert_all_is_given_back(&a);
}

fn pages(ranges: &[(usize, usize)]) -> usize {
    ranges.iter().map(|(_, bytes)| bytes / PAGE_SIZE).sum()
}

#[test]
fn at_a_peak_the_system_may_take_what_demand_keeps() {
    let a = setup();
    let bytes = 8 << 20;
    let [hole, other] = [bytes, bytes].map(|bytes| take(&a, bytes));
    give(&a, hole);
    pairs(&a, bytes, 6, DECAY / 4);
    let kept = a.zone.dirty_bytes();
    assert!(kept >= bytes);
    a.platform.take_purged();
    // More than ever, and no run for it in what is kept.
    let peak = take(&a, 20 << 20);
    let lazily = a.platform.take_purged_lazily();
    assert!(pages(&lazily) >= bytes / PAGE_SIZE, "{lazily:?}");
    assert_eq!(a.platform.take_purged(), [], "it stays for the next one");
    assert_eq!(a.zone.dirty_bytes(), kept);
    // The system took a part of it.
    let again = a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
    assert!(
        lazily
            .iter()
            .any(|&(at, n)| (at..at + n).contains(&(again as usize)))
    );
    assert!(is_filled(again, bytes, 0));
    [again, peak, other]
        .into_iter()
        .for_each(|object| give(&a, object));
    a.platform.advance(2 * DECAY);
    a.tick(a.platform.now_ms());
    assert_eq!(a.zone.dirty_bytes(), 0, "nobody asks any more");
    assert_all_is_given_back(&a);
}

#[test]
fn at_a_peak_demand_keeps_no_more_than_half_of_what_is_in_use() {
    let a = setup();
    let bytes = 60 << 20;
    let both = || [bytes, bytes].map(|bytes| take(&a, bytes));
    for _ in 0..6 {
        both().into_iter().for_each(|object| give(&a, object));
        a.platform.advance(DECAY / 4);
        // Each free gives back a block at most.
        (0..100).for_each(|_| give(&a, take(&a, 20_000)));
    }
    let [used, free] = both();
    give(&a, free);
    assert!(a.zone.dirty_bytes() >= bytes, "as much was missed");
    let peak = take_mapped(&a, 200 << 20);
    let kept = a.zone.dirty_bytes();
    assert!((24 << 20..=bytes / 2).contains(&kept), "{kept} bytes");
    [used, peak].into_iter().for_each(|object| give(&a, object));
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
    let huge = take_mapped(&a, 4 << 20);
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
    give(&a, take_mapped(&a, 8 << 20));
    leave_dirty(&a, 512);
    let dirty = a.zone.dirty_bytes();
    let huge = take_mapped(&a, 4 << 20);
    assert_eq!(a.zone.dirty_bytes(), dirty);
    let more = take_mapped(&a, 4 << 20);
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
            // Half of them without waiting.
            a.meta.give_window(window, i % 2 == 0);
        }
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
        .for_each(|window| a.meta.give_window(window, true));
    assert_all_is_given_back(&a);
}
