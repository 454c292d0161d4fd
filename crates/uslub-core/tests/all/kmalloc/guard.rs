//! Guarded objects on the platform for tests: it has no faults, so the fault handler's part is
//! called by hand.

use crate::support::seen::message;
use crate::support::{Cache, Setup, Slub};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Flags};
use uslub_core::debug::DebugFlags;
use uslub_core::kmalloc::CLASS_MAX;
use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_core::slab::debug::guard_report::Touch;

fn guarding(more: &[&str]) -> Box<Slub> {
    let tunables = [&["guard=1000"], more].concat();
    Setup::with(&tunables).build()
}

fn owns(a: &Slub, object: *mut u8) -> bool {
    a.debug.guard.owns(object as usize)
}

/// An object that is guarded; its size is exact.
fn guarded(a: &Slub, bytes: usize, gfp: Gfp) -> *mut u8 {
    for _ in 0..10_000 {
        a.platform.set_clock(a.platform.now_ms() + 10);
        let object = a.kmalloc(bytes, gfp);
        if owns(a, object) {
            return object;
        }
    }
    panic!("no object of {bytes} bytes was guarded");
}

fn kfree(a: &Slub, object: *mut u8) {
    // SAFETY: what is wrong is what the test is about.
    unsafe { a.kfree(object) }
}

fn krealloc(a: &Slub, object: *mut u8, bytes: usize, gfp: Gfp) -> *mut u8 {
    // SAFETY: a live object of the test.
    unsafe { a.krealloc(object, bytes, gfp) }
}

/// Writes a byte where a bug would.
fn poke(object: *mut u8, offset: isize, byte: u8) {
    // SAFETY: within the open page of a guarded object.
    unsafe { object.offset(offset).write(byte) };
}

fn bytes_of<'a>(object: *mut u8, bytes: usize) -> &'a mut [u8] {
    // SAFETY: a live object of the test with that many bytes.
    unsafe { core::slice::from_raw_parts_mut(object, bytes) }
}

#[test]
fn without_the_tunable_no_object_is_guarded() {
    let a = Setup::with(&[]).build();
    assert!(!a.debug.guard.is_on() && !owns(&a, core::ptr::null_mut()));
    let a = guarding(&["hardened=1"]);
    assert!(!a.debug.guard.is_on());
}

#[test]
fn sizes_are_exact_and_bytes_zero_where_that_is_asked_for() {
    let a = guarding(&[]);
    for bytes in [0, 1, 5, 8, 13, 40, 100, 1000, PAGE_SIZE] {
        let object = guarded(&a, bytes, Gfp::KERNEL);
        assert_eq!(a.ksize(object), bytes);
        bytes_of(object, bytes).fill(7);
        kfree(&a, object);
        let zero = guarded(&a, bytes, Gfp::KERNEL | Gfp::ZERO);
        assert!(a.ksize(zero) >= bytes && bytes_of(zero, a.ksize(zero)).iter().all(|&b| b == 0));
        kfree(&a, zero);
    }
    let large = a.kmalloc(CLASS_MAX, Gfp::KERNEL);
    assert!(!owns(&a, large));
    kfree(&a, large);
    a.validate().unwrap();
}

#[test]
fn the_sides_alternate_and_each_slot_waits_for_its_turn() {
    let a = guarding(&[]);
    let starts = |object: *mut u8| (object as usize).is_multiple_of(PAGE_SIZE);
    let (first, second) = (guarded(&a, 40, Gfp::KERNEL), guarded(&a, 40, Gfp::KERNEL));
    assert!(!starts(first) && starts(second));
    assert_eq!(first as usize % PAGE_SIZE, PAGE_SIZE - 48);
    kfree(&a, first);
    let page = first as usize / PAGE_SIZE;
    for n in 0..253 {
        let object = guarded(&a, 40, Gfp::KERNEL);
        assert_ne!(object as usize / PAGE_SIZE, page, "{n}");
        kfree(&a, object);
    }
    let again = guarded(&a, 40, Gfp::KERNEL);
    assert_eq!(again as usize / PAGE_SIZE, page);
}

#[test]
fn a_resize_moves_and_keeps_the_bytes() {
    let a = guarding(&[]);
    let object = guarded(&a, 40, Gfp::KERNEL);
    bytes_of(object, 40).fill(9);
    assert_eq!(krealloc(&a, object, 40, Gfp::KERNEL), object);
    let moved = krealloc(&a, object, 5000, Gfp::KERNEL | Gfp::ZERO);
    assert!(!owns(&a, moved));
    assert!(bytes_of(moved, 40).iter().all(|&b| b == 9));
    assert!(bytes_of(moved, 5000)[40..].iter().all(|&b| b == 0));
    kfree(&a, moved);
    // Without leave to ask the system too, as far as the class has objects.
    kfree(&a, a.kmalloc(50, Gfp::KERNEL));
    let object = guarded(&a, 40, Gfp::KERNEL);
    let moved = krealloc(&a, object, 50, Gfp::NOWAIT);
    assert!(!moved.is_null() && moved != object);
}

#[test]
fn misuse_at_a_free_ends_the_process() {
    let a = guarding(&[]);
    let object = guarded(&a, 40, Gfp::KERNEL);
    kfree(&a, object);
    let seen = message(|| kfree(&a, object));
    assert!(seen.contains("'kmalloc-48': double free at"), "{seen}");
    let object = guarded(&a, 40, Gfp::KERNEL);
    let seen = message(|| kfree(&a, object.wrapping_add(16)));
    assert!(seen.contains("free of a pointer to no object"), "{seen}");
    let seen = message(|| kfree(&a, object.wrapping_add(PAGE_SIZE)));
    assert!(seen.contains("free of a pointer to no object"), "{seen}");
    poke(object, 40, 1);
    let seen = message(|| kfree(&a, object));
    assert!(seen.contains("memory corruption"), "{seen}");
    for bytes in [41, 32] {
        let object = guarded(&a, 40, Gfp::KERNEL);
        let seen = message(|| a.check_size("free_sized of", object, bytes, 1));
        assert!(seen.contains("'kmalloc-48': free_sized of"), "{seen}");
        a.check_size("free_sized of", object, 40, 1);
    }
    // C++ rounds 33 bytes with an alignment of 64 up to 64.
    let object = guarded(&a, 64, Gfp::KERNEL);
    a.check_size("free_sized of", object, 33, 64);
    // Without memory a resize to fewer bytes may have kept the object.
    a.kept_larger();
    a.check_size("free_sized of", object, 1, 1);
}

#[test]
fn each_byte_around_an_object_is_checked() {
    let a = guarding(&["guard_recover=1"]);
    for bytes in [3_usize, 40, 64] {
        for offset in [-1, -9, bytes as isize, bytes as isize + 1] {
            let object = guarded(&a, bytes, Gfp::KERNEL);
            let page = object as usize / PAGE_SIZE;
            if (object as usize).wrapping_add_signed(offset) / PAGE_SIZE != page {
                continue;
            }
            let errors = a.debug.errors();
            poke(object, offset, 0x11);
            kfree(&a, object);
            assert_eq!(a.debug.errors(), errors + 1, "{offset} of {bytes}");
        }
    }
}

#[test]
fn with_recover_misuse_is_counted_and_has_no_effect() {
    let a = guarding(&["guard_recover=1"]);
    let object = guarded(&a, 40, Gfp::KERNEL);
    kfree(&a, object.wrapping_add(1));
    assert_eq!((a.debug.guard.counts().1, a.ksize(object)), (1, 40));
    kfree(&a, object);
    kfree(&a, object);
    assert_eq!(a.debug.guard.counts().1, 2);
    assert_eq!(a.debug.errors(), 2);
}

#[test]
fn a_fault_is_that_of_the_nearer_object_and_is_reported_once() {
    let a = guarding(&["guard_recover=1"]);
    let right = guarded(&a, 40, Gfp::KERNEL);
    let behind = right as usize + 48;
    let hits = || a.debug.guard.counts().1;
    a.guard_fault(behind, Touch::Read, &[]);
    a.guard_fault(behind + 8, Touch::Write, &[]);
    assert_eq!(hits(), 1, "the first of an object only");
    kfree(&a, right);
    a.guard_fault(right as usize, Touch::Write, &[]);
    assert_eq!(hits(), 1, "it was reported before its free");
    let other = guarded(&a, 40, Gfp::KERNEL);
    a.guard_fault(other as usize, Touch::Read, &[]);
    assert_eq!(hits(), 1, "an object in use has an open page");
    kfree(&a, other);
    a.guard_fault(other as usize, Touch::Read, &[]);
    assert_eq!(hits(), 2);
}

#[test]
fn a_fault_ends_the_process_with_what_it_is() {
    let a = guarding(&[]);
    let object = guarded(&a, 40, Gfp::KERNEL);
    let seen = message(|| a.guard_fault(object as usize + 48, Touch::Write, &[]));
    assert!(seen.contains("'kmalloc-48': out-of-bounds write"), "{seen}");
    let object = guarded(&a, 40, Gfp::KERNEL);
    kfree(&a, object);
    let seen = message(|| a.guard_fault(object as usize + 4, Touch::Read, &[]));
    assert!(seen.contains("use-after-free read"), "{seen}");
    let far = object as usize / PAGE_SIZE * PAGE_SIZE + 9 * PAGE_SIZE;
    let seen = message(|| a.guard_fault(far, Touch::Read, &[]));
    assert!(seen.contains("invalid read"), "{seen}");
}

/// A cache whose objects may be guarded, and a guarded object of it.
fn with_cache(work: impl FnOnce(&Slub, &Cache, *mut u8)) {
    let a = guarding(&["guard_recover=1"]);
    let mut args = CacheArgs::new("herbs", 40);
    args.debug = DebugFlags::MAY_GUARD;
    let cache = a.create(&args).unwrap();
    let object = guarded_of(&a, cache);
    work(&a, cache, object);
}

fn guarded_of(a: &Slub, cache: &Cache) -> *mut u8 {
    for _ in 0..10_000 {
        a.platform.set_clock(a.platform.now_ms() + 10);
        let object = a.alloc(cache, Gfp::KERNEL);
        if owns(a, object) {
            return object;
        }
        // SAFETY: ours.
        unsafe { a.free(cache, object) };
        a.shrink(cache);
    }
    panic!("no object was guarded");
}

#[test]
fn each_free_of_a_cache_takes_its_guarded_objects() {
    with_cache(|a, cache, object| {
        let live = || a.info(cache).live_objs();
        let hits = || a.debug.guard.counts().1;
        assert_eq!((a.ksize(object), live()), (40, 0));
        // SAFETY: an object of the cache that nobody uses. Below, the second free of one is not
        // safe, on purpose.
        unsafe { a.free(cache, object) };
        assert_eq!(hits(), 0);
        // SAFETY: as above.
        unsafe { a.free(cache, object) };
        assert_eq!(hits(), 1, "a second free");
        let plain: Vec<_> = (0..5).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        let mut bulk = [&plain[..], &[guarded_of(a, cache)]].concat();
        // SAFETY: as above.
        unsafe { a.free_bulk(cache, &mut bulk) };
        // SAFETY: as above.
        unsafe { a.kfree(guarded_of(a, cache)) };
        // SAFETY: as above.
        unsafe { a.free_with(cache, guarded_of(a, cache), Gfp::NOSPIN) };
        assert_eq!((live(), hits()), (0, 1));
        // SAFETY: nobody uses the cache.
        assert_eq!(unsafe { a.destroy(cache, |_| {}) }, 0);
    });
}

#[test]
fn a_guarded_object_leaks_with_its_cache_and_is_no_object_of_another() {
    with_cache(|a, cache, object| {
        let other = a.create(&CacheArgs::new("spices", 40)).unwrap();
        // SAFETY: not safe, on purpose: it must warn, and leave the object.
        unsafe { a.free(other, object) };
        assert_eq!(a.ksize(object), 40);
        let mut leaked = Vec::new();
        // SAFETY: the object leaked, on purpose.
        let count = unsafe { a.destroy(cache, |object| leaked.push(object)) };
        assert_eq!((count, leaked), (1, vec![object]));
    });
}

#[test]
fn caches_merge_with_those_whose_users_look_at_pointers_too() {
    let a = guarding(&[]);
    let make = |name, debug| {
        let mut args = CacheArgs::new(name, 40);
        args.flags -= Flags::NO_MERGE;
        args.debug = debug;
        a.create(&args).unwrap() as *const Cache
    };
    let guarded = make("herbs", DebugFlags::MAY_GUARD);
    let plain = make("trees", DebugFlags::empty());
    assert_ne!(guarded, plain);
    assert_eq!(make("mosses", DebugFlags::MAY_GUARD), guarded);
    assert_eq!(make("ferns", DebugFlags::empty()), plain);
}
