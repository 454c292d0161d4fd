//! What CPUs keep of the pages of large objects.

use super::DECAY;
use crate::support::pattern::{fill, is_filled};
use crate::support::{Setup, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_core::policy::{PCP_BATCH_MAX, PCP_BATCH_RUN_MAX_PAGES, PCP_LIST_RUNS};

const BYTES: usize = 3 * PAGE_SIZE;

fn setup(settings: &[&str]) -> Box<Slub> {
    Setup::with(settings).build()
}

fn take(a: &Slub, bytes: usize) -> *mut u8 {
    let object = a.kmalloc(bytes, Gfp::KERNEL);
    assert!(!object.is_null());
    object
}

fn free(a: &Slub, object: *mut u8) {
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
}

#[test]
fn pages_stay_with_their_cpu_and_come_back_as_they_went() {
    let a = setup(&[]);
    let (one, two, three) = (take(&a, BYTES), take(&a, BYTES), take(&a, BYTES + 1));
    let used = a.zone.used_bytes();
    for object in [one, three, two] {
        free(&a, object);
    }
    let totals = a.totals();
    let kept = 10 * PAGE_SIZE;
    assert_eq!((totals.large, totals.live, totals.dirty), (0, 0, kept));
    assert_eq!((totals.allocs, totals.frees), (3, 3));
    assert_eq!((a.zone.used_bytes(), a.zone.dirty_bytes()), (used, 0));
    // Another CPU has none of them.
    on_cpu(1);
    let other = take(&a, BYTES);
    assert!(![one, two, three].contains(&other));
    on_cpu(0);
    assert_eq!(
        [take(&a, BYTES), take(&a, BYTES), take(&a, BYTES + 1)],
        [two, one, three]
    );
    assert_eq!(a.totals().large, kept + BYTES);
    assert_eq!((a.totals().allocs, a.large_objs()), (7, 4));
    for object in [one, two, three, other] {
        free(&a, object);
    }
    assert_eq!(a.peak_large_bytes(), kept + BYTES);
    assert_all_is_given_back(&a);
}

#[test]
fn a_zeroed_object_in_kept_pages_is_zero() {
    let a = setup(&[]);
    let object = take(&a, BYTES);
    fill(object, BYTES, 0x5a);
    free(&a, object);
    let again = a.kmalloc(BYTES - 100, Gfp::KERNEL | Gfp::ZERO);
    assert_eq!(again, object);
    assert!(is_filled(again, BYTES, 0));
    free(&a, again);
}

#[test]
fn a_full_list_gives_its_older_half_to_the_zone() {
    let a = setup(&["pcp_kb=96"]);
    let objects: Vec<_> = (0..8).map(|_| take(&a, BYTES)).collect();
    let more = take(&a, BYTES);
    objects.iter().for_each(|&object| free(&a, object));
    assert_eq!(a.memory.pcp.bytes(), 96 << 10);
    assert_eq!(a.zone.dirty_bytes(), 0);
    free(&a, more);
    assert_eq!(a.memory.pcp.bytes(), 5 * BYTES, "the newest");
    assert_eq!(a.zone.dirty_bytes(), 4 * BYTES);
    let newest = [more, objects[7], objects[6], objects[5], objects[4]];
    assert_eq!(newest.map(|_| take(&a, BYTES)), newest);
    newest.iter().for_each(|&object| free(&a, object));
    assert_all_is_given_back(&a);
}

/// Two lists full of runs of `bytes` bytes, and free pages in the zone; then the lists are empty.
fn after_a_peak(a: &Slub, bytes: usize) -> Vec<*mut u8> {
    let objects: Vec<_> = (0..4 * PCP_LIST_RUNS).map(|_| take(a, bytes)).collect();
    objects.iter().for_each(|&object| free(a, object));
    let kept = a.memory.pcp.bytes() / bytes;
    let newest = (0..kept).map(|_| take(a, bytes)).collect();
    assert_eq!(a.memory.pcp.bytes(), 0);
    assert!(a.zone.dirty_bytes() >= 2 * PCP_LIST_RUNS * bytes);
    newest
}

#[test]
fn a_cpu_that_only_allocates_takes_more_and_more_runs_at_once() {
    let a = setup(&[]);
    let mut objects = after_a_peak(&a, BYTES);
    let mut kept = Vec::new();
    while a.zone.dirty_bytes() > 0 && kept.len() < 50 {
        let large = a.totals().large;
        let object = take(&a, BYTES);
        assert!(!objects.contains(&object), "{object:?} has two owners");
        objects.push(object);
        assert_eq!(a.totals().large, large + BYTES);
        kept.push(a.memory.pcp.bytes() / BYTES);
    }
    // One, two, four, eight, and PCP_BATCH_MAX at most.
    let starts = [0, 1, 0, 3, 2, 1, 0, 7];
    assert_eq!(kept[..starts.len()], starts);
    assert_eq!(kept.iter().max(), Some(&(PCP_BATCH_MAX - 1)));
    // Who frees begins with one again.
    objects.extend((0..kept[49]).map(|_| take(&a, BYTES)));
    free(&a, objects.pop().unwrap());
    objects.push(take(&a, BYTES));
    objects.push(take(&a, BYTES));
    assert_eq!(a.memory.pcp.bytes(), 0);
    a.validate().unwrap();
    objects.into_iter().for_each(|object| free(&a, object));
    assert_all_is_given_back(&a);
}

#[test]
fn a_list_takes_no_more_runs_than_it_may_have() {
    for (settings, bytes, most) in [
        (["pcp_kb=36"], BYTES, 3),
        (
            ["pcp_kb=1024"],
            (PCP_BATCH_RUN_MAX_PAGES + 1) * PAGE_SIZE,
            1,
        ),
        (["pcp_kb=0"], BYTES, 1),
    ] {
        let a = setup(&settings);
        let mut objects = after_a_peak(&a, bytes);
        let mut kept = Vec::new();
        for _ in 0..20 {
            objects.push(take(&a, bytes));
            kept.push(a.memory.pcp.bytes() / bytes);
        }
        assert_eq!(kept.iter().max(), Some(&(most - 1)), "{settings:?}");
        objects.into_iter().for_each(|object| free(&a, object));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn pages_that_were_never_used_stay_in_the_zone() {
    let a = setup(&[]);
    let objects: Vec<_> = (0..40).map(|_| take(&a, BYTES)).collect();
    assert_eq!(a.memory.pcp.bytes(), 0);
    objects.into_iter().for_each(|object| free(&a, object));
}

#[test]
fn nothing_is_kept_where_nothing_may_be() {
    let none: [&[&str]; 3] = [&["pcp_kb=0"], &["decay_ms=0"], &["hardened=1"]];
    for settings in none {
        let a = setup(settings);
        free(&a, take(&a, BYTES));
        assert_eq!(a.memory.pcp.bytes(), 0, "{settings:?}");
    }
    let a = setup(&[]);
    for bytes in [PAGE_SIZE * 33, 200 << 10, 3 << 20] {
        free(&a, take(&a, bytes));
        assert_eq!(a.memory.pcp.bytes(), 0, "{bytes}");
    }
}

#[test]
fn what_is_not_used_goes_back_in_time() {
    let a = setup(&[&format!("decay_ms={DECAY}")]);
    free(&a, take(&a, BYTES));
    on_cpu(1);
    free(&a, take(&a, BYTES));
    on_cpu(0);
    for _ in 0..2 {
        a.platform.advance(DECAY);
        free(&a, take(&a, BYTES));
        a.tick(a.platform.now_ms());
        assert!(a.memory.pcp.bytes() >= BYTES, "in use");
    }
    assert_eq!(a.memory.pcp.bytes(), BYTES, "the other CPU's were idle");
    for _ in 0..3 {
        a.platform.advance(DECAY);
        a.tick(a.platform.now_ms());
    }
    assert_eq!(a.memory.pcp.bytes() + a.zone.dirty_bytes(), 0);
}

#[test]
fn calls_alone_give_idle_pages_back() {
    let a = setup(&[&format!("decay_ms={DECAY}")]);
    free(&a, take(&a, BYTES));
    on_cpu(1);
    for _ in 0..60 {
        a.platform.advance(DECAY / 10);
        free(&a, take(&a, BYTES));
    }
    assert_eq!(a.memory.pcp.bytes(), BYTES);
    assert_eq!(a.zone.dirty_bytes(), 0);
}

#[test]
fn kept_pages_serve_others_when_memory_is_short() {
    let a = setup(&[]);
    let objects: Vec<_> = (0..10).map(|_| take(&a, BYTES)).collect();
    objects.into_iter().for_each(|object| free(&a, object));
    assert!(a.memory.pcp.bytes() > 0);
    assert!(a.release_unused());
    assert_eq!(a.memory.pcp.bytes(), 0);
}

#[test]
fn calls_that_may_not_wait_keep_and_take_pages() {
    let a = setup(&["pcp_kb=24"]);
    let objects = [take(&a, BYTES), take(&a, BYTES), take(&a, BYTES)];
    for object in objects {
        // SAFETY: live, freed once.
        unsafe { a.kfree_with(object, Gfp::NOSPIN) };
    }
    assert_eq!(a.memory.pcp.bytes(), 2 * BYTES);
    assert_eq!(a.kmalloc(BYTES, Gfp::NOSPIN), objects[2]);
    free(&a, objects[2]);
    assert_all_is_given_back(&a);
}

#[test]
fn a_list_in_use_is_left_alone() {
    let a = setup(&[]);
    free(&a, take(&a, BYTES));
    // A fork of another thread holds all locks.
    std::thread::scope(|scope| {
        let (to, from) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let a = &a;
        scope.spawn(move || {
            a.lock_for_fork();
            to.send(()).unwrap();
            end.recv().unwrap();
            // SAFETY: locked above, on this thread.
            unsafe { a.unlock_after_fork() };
        });
        from.recv().unwrap();
        assert!(
            a.kmalloc(BYTES, Gfp::NOSPIN).is_null(),
            "the page lock is held, too"
        );
        done.send(()).unwrap();
    });
    let object = take(&a, BYTES);
    free(&a, object);
    assert_all_is_given_back(&a);
}
