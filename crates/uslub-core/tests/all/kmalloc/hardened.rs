//! The hardened mode on the platform for tests, which refuses protections: what canaries, trailers
//! and the quarantine see.

use crate::support::seen::message;
use crate::support::{Setup, Slub};
use uslub_core::Gfp;
use uslub_core::kmalloc::CLASS_MAX;
use uslub_core::platform::PAGE_SIZE;

fn hardened() -> Box<Slub> {
    Setup::with(&["hardened=1"]).build()
}

fn alloc(a: &Slub, bytes: usize) -> *mut u8 {
    let object = a.hard_alloc(bytes, 1, Gfp::KERNEL);
    assert!(!object.is_null());
    object
}

fn free(a: &Slub, object: *mut u8) {
    // SAFETY: what is wrong is what the test is about.
    unsafe { a.hard_free(object) }
}

fn realloc(a: &Slub, object: *mut u8, bytes: usize) -> *mut u8 {
    // SAFETY: an object of the test.
    let new = unsafe { a.hard_realloc(object, bytes, 1) };
    assert!(!new.is_null());
    new
}

/// Writes a byte where a bug would.
fn poke(object: *mut u8, offset: usize) {
    // SAFETY: within the memory of an object, which nobody else uses.
    unsafe { object.add(offset).write(0x17) };
}

fn bytes_of<'a>(object: *mut u8, bytes: usize) -> &'a mut [u8] {
    // SAFETY: a live object of the test with that many bytes.
    unsafe { core::slice::from_raw_parts_mut(object, bytes) }
}

/// An object of `bytes` bytes that `realloc` made larger than a size class.
fn grown(a: &Slub, bytes: usize) -> *mut u8 {
    realloc(a, alloc(a, 100), bytes)
}

const LARGE: usize = 3 * CLASS_MAX;

#[test]
fn an_object_that_grows_a_little_at_a_time_seldom_moves() {
    let a = hardened();
    let (mut object, mut moves) = (alloc(&a, 10), 0);
    for bytes in 11..100_000 {
        let old = object;
        object = realloc(&a, old, bytes);
        moves += usize::from(object != old);
        bytes_of(object, bytes)[bytes - 1] = bytes as u8;
        assert_eq!(a.hard_size(object, "size of"), bytes);
    }
    assert!(moves < 100, "{moves}");
    let all = bytes_of(object, 99_999);
    assert!((11..100_000).all(|bytes| all[bytes - 1] == bytes as u8));
    for bytes in (1..99_999).rev().step_by(97) {
        object = realloc(&a, object, bytes);
        assert_eq!(a.hard_size(object, "size of"), bytes);
    }
    free(&a, object);
    a.validate().unwrap();
}

#[test]
fn room_to_grow_is_a_bounded_part() {
    let a = hardened();
    for bytes in [CLASS_MAX, 50_000, 1 << 20, 5 << 20] {
        let object = grown(&a, bytes);
        let most = bytes + bytes / 8 + 2 * PAGE_SIZE;
        let mut last = bytes;
        while last < 2 * most && realloc(&a, object, last + 16) == object {
            last += 16;
        }
        assert!((bytes + bytes / 8..most).contains(&last), "{bytes} {last}");
    }
}

#[test]
fn a_write_over_the_end_of_a_grown_object_is_seen_at_its_free_and_its_resize() {
    for bytes in [LARGE, LARGE + 1, LARGE + 7, 5 << 20] {
        for offset in [0, 1, 7, 63] {
            let a = hardened();
            let object = grown(&a, bytes);
            poke(object, bytes + offset);
            let seen = message(|| free(&a, object));
            assert!(
                seen.contains("free of") && seen.contains("overwritten"),
                "{seen}"
            );
            let object = grown(&a, bytes);
            poke(object, bytes + offset);
            let seen = message(|| {
                realloc(&a, object, bytes + 100);
            });
            assert!(seen.contains("realloc of"), "{seen}");
        }
    }
}

#[test]
fn a_write_over_the_end_is_seen_when_an_object_is_resized_in_its_slot() {
    for (bytes, offset) in [(40, 0), (41, 0), (41, 6), (33, 6)] {
        let a = hardened();
        let object = alloc(&a, bytes);
        poke(object, bytes + offset);
        let seen = message(|| {
            realloc(&a, object, bytes + 1);
        });
        assert!(seen.contains("realloc of"), "{seen}");
    }
}

#[test]
fn second_frees_and_uses_of_large_objects_are_seen() {
    let plain: fn(&Slub) -> *mut u8 = |a| alloc(a, LARGE);
    let ones: [fn(&Slub) -> *mut u8; 2] = [plain, |a| grown(a, LARGE)];
    for make in ones {
        for others in [0, 1, 200] {
            let a = hardened();
            let object = make(&a);
            free(&a, object);
            let mut kept = Vec::new();
            for _ in 0..others {
                let other = alloc(&a, LARGE);
                kept.push(alloc(&a, LARGE));
                free(&a, other);
            }
            if kept.contains(&object) {
                continue;
            }
            let seen = message(|| free(&a, object));
            assert!(seen.contains("free of"), "{others}: {seen}");
            if others == 0 {
                let seen = message(|| {
                    a.hard_size(object, "malloc_usable_size of");
                });
                assert!(seen.contains("malloc_usable_size of"), "{seen}");
                let seen = message(|| {
                    realloc(&a, object, LARGE + 10);
                });
                assert!(seen.contains("realloc of"), "{seen}");
            }
        }
    }
}

#[test]
fn large_objects_leave_quarantine_and_their_memory_is_used_again() {
    let a = hardened();
    for round in 0..500 {
        let object = match round % 2 {
            0 => alloc(&a, LARGE),
            _ => grown(&a, LARGE),
        };
        bytes_of(object, LARGE).fill(round as u8);
        free(&a, object);
    }
    // 32 objects of at most 40 KiB wait.
    let held = a.totals().large;
    assert!(held < 40 * PAGE_SIZE * 32, "{held}");
    a.validate().unwrap();
}

#[test]
fn a_resize_to_more_than_there_can_be_fails_and_keeps_the_object() {
    let makes: [fn(&Slub) -> *mut u8; 3] =
        [|a| alloc(a, 40), |a| alloc(a, LARGE), |a| grown(a, LARGE)];
    for make in makes {
        let a = hardened();
        let object = make(&a);
        let bytes = a.hard_size(object, "size of");
        // With an eighth more the third is a little more than 2^64.
        for huge in [usize::MAX, usize::MAX - 7, usize::MAX / 9 * 8 + 9, 1 << 63] {
            // SAFETY: a live object of the test.
            let moved = unsafe { a.hard_realloc(object, huge, 1) };
            assert!(moved.is_null(), "{huge:#x}");
        }
        assert_eq!(a.hard_size(object, "size of"), bytes);
        free(&a, object);
    }
}

#[test]
fn a_resize_to_fewer_bytes_needs_no_memory() {
    let makes: [fn(&Slub) -> *mut u8; 3] =
        [|a| alloc(a, 4000), |a| alloc(a, LARGE), |a| grown(a, LARGE)];
    // The second ends at its guard, and keeps its bytes.
    for (make, knows) in makes.into_iter().zip([true, false, true]) {
        for fewer in [CLASS_MAX + 100, 100, 0] {
            let a = hardened();
            let object = make(&a);
            let bytes = a.hard_size(object, "size of");
            if fewer > bytes {
                continue;
            }
            bytes_of(object, bytes)[0] = 7;
            a.platform.fail(0, usize::MAX);
            let mut spares = Vec::new();
            // Whatever the allocator has is taken, too.
            loop {
                let spare = a.hard_alloc(fewer, 1, Gfp::KERNEL);
                if spare.is_null() {
                    break;
                }
                spares.push(spare);
            }
            // SAFETY: a live object of the test.
            let kept = unsafe { a.hard_realloc(object, fewer, 1) };
            assert_eq!(kept, object, "{bytes} to {fewer}");
            let now = if knows { fewer } else { bytes };
            assert_eq!(a.hard_size(object, "size of"), now);
            assert!(fewer == 0 || bytes_of(object, bytes)[0] == 7);
            spares.push(kept);
            spares.into_iter().for_each(|spare| free(&a, spare));
            a.platform.heal();
            a.validate().unwrap();
        }
    }
}
