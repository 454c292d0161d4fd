//! Memory that is not to be had: every call ends well, and leaves nothing behind.
//!
//! Each case runs again and again, with the system, or a layer of the allocator's own, refusing its
//! first, second, third … request, or all from there on, until a run needs no request more. A run
//! that fails must have no effect, and its repetition when nothing fails must succeed. At the end
//! all is freed and given back, and as much is mapped as in a run without a failure.

use std::ptr::null_mut;

use crate::support;
use crate::support::case::{Case, Held};
use crate::support::pattern::is_filled;
use crate::support::{Cache, Setup, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, CreateError, Ctor};
use uslub_core::kmalloc::{CLASS_MAX, LARGE_MAX};

fn cache(a: &Slub) -> &Cache {
    a.caches().find(|cache| cache.name() == "test").unwrap()
}

fn alloc(a: &Slub, held: &mut Held) -> bool {
    let object = a.alloc(cache(a), Gfp::KERNEL);
    if !object.is_null() {
        held.objects.push(object);
    }
    !object.is_null()
}

fn alloc_bulk<const N: usize>(a: &Slub, held: &mut Held) -> bool {
    let mut objects = vec![null_mut(); N];
    let done = a.alloc_bulk(cache(a), Gfp::KERNEL, &mut objects);
    if done {
        held.objects.extend(objects);
    }
    done
}

fn kmalloc<const BYTES: usize>(a: &Slub, held: &mut Held) -> bool {
    held.take(a.kmalloc(BYTES, Gfp::KERNEL), BYTES)
}

fn kmalloc_aligned<const BYTES: usize, const ALIGN: usize>(a: &Slub, held: &mut Held) -> bool {
    let object = a.kmalloc_aligned(BYTES, ALIGN, Gfp::KERNEL);
    assert!((object as usize).is_multiple_of(ALIGN));
    held.take(object, BYTES)
}

fn krealloc<const BYTES: usize>(a: &Slub, held: &mut Held) -> bool {
    let (object, old) = *held.sized.last().unwrap();
    // SAFETY: live.
    let moved = unsafe { a.krealloc(object, BYTES, Gfp::KERNEL) };
    let kept = if moved.is_null() { object } else { moved };
    assert!(is_filled(kept, old.min(BYTES), old as u8), "the bytes stay");
    if !moved.is_null() {
        held.sized.pop();
        held.take(moved, BYTES);
    }
    !moved.is_null()
}

/// Frees half of the cache's objects on a CPU that was never used; frees never fail.
fn free_elsewhere(a: &Slub, held: &mut Held) -> bool {
    on_cpu(3);
    for object in held.objects.split_off(held.objects.len() / 2) {
        // SAFETY: live, freed once.
        unsafe { a.free(cache(a), object) };
    }
    true
}

fn free_bulk_elsewhere(a: &Slub, held: &mut Held) -> bool {
    on_cpu(3);
    let mut half = held.objects.split_off(held.objects.len() / 2);
    // SAFETY: live, freed once.
    unsafe { a.free_bulk(cache(a), &mut half) };
    true
}

#[test]
fn an_object_is_had_or_not() {
    Case::new("first object", alloc).check();
    Case::new("many objects", |a, held| {
        // One call of many: those that were had are given back.
        let count = held.objects.len();
        let done = (0..300).all(|_| alloc(a, held));
        if !done {
            for object in held.objects.split_off(count) {
                // SAFETY: live, freed once.
                unsafe { a.free(cache(a), object) };
            }
        }
        done
    })
    .check();
    Case::new("object on another CPU", |a, held| {
        on_cpu(2);
        alloc(a, held)
    })
    .after(|a, held| assert!(alloc_bulk::<50>(a, held)))
    .check();
}

#[test]
fn a_bulk_is_had_whole_or_not_at_all() {
    Case::new("small bulk", alloc_bulk::<5>).check();
    Case::new("bulk of more than a block", alloc_bulk::<25_000>).check();
    Case::new(
        "bulk with objects in sheaves and slabs",
        alloc_bulk::<5_000>,
    )
    .after(|a, held| {
        assert!(alloc_bulk::<1000>(a, held));
        free_elsewhere(a, held);
        on_cpu(3);
    })
    .check();
    Case::new("bulk where there are no sheaves", |a, held| {
        a.platform.set_percpu_usable(false);
        let done = alloc_bulk::<5_000>(a, held);
        a.platform.set_percpu_usable(true);
        done
    })
    .check();
}

#[test]
fn frees_need_no_memory() {
    for settings in [&[][..], &["max_full_sheaves=1", "max_empty_sheaves=0"]] {
        for call in [free_elsewhere, free_bulk_elsewhere] {
            let mut case = Case::new("free", call).after(|a, held| {
                assert!(alloc_bulk::<500>(a, held));
            });
            case.settings = settings;
            case.check();
        }
    }
    Case::new("free of everything", |a, held| {
        std::mem::take(held).free(a);
        true
    })
    .after(|a, held| {
        assert!(kmalloc::<10>(a, held) && kmalloc::<100_000>(a, held));
        assert!(kmalloc::<2_000_000>(a, held) && alloc_bulk::<100>(a, held));
    })
    .check();
}

#[test]
fn kmalloc_is_had_or_not() {
    Case::new("nothing", kmalloc::<0>).check();
    Case::new("small", kmalloc::<100>).check();
    Case::new("a page", kmalloc::<4096>).check();
    Case::new("largest class", kmalloc::<CLASS_MAX>).check();
    Case::new("small of a new class", kmalloc::<200>)
        .after(|a, held| assert!(kmalloc::<100>(a, held)))
        .check();
    let random = &["slab_freelist_random=1"];
    let mut case = Case::new("small in random order", kmalloc::<8>);
    case.settings = random;
    case.check();
}

#[test]
fn large_and_huge_objects_are_had_or_not() {
    Case::new("large", kmalloc::<100_000>).check();
    Case::new("largest", kmalloc::<LARGE_MAX>).check();
    Case::new("huge", kmalloc::<3_000_000>).check();
    Case::new("another huge", kmalloc::<3_000_000>)
        .after(|a, held| assert!(kmalloc::<4_000_000>(a, held)))
        .check();
    // The table of huge objects is half full at 128, and moves.
    Case::new("huge when the table grows", kmalloc::<1_100_000>)
        .after(|a, held| (0..128).for_each(|_| assert!(kmalloc::<1_100_000>(a, held))))
        .check();
    Case::new("huge from a kept mapping", kmalloc::<600_000>)
        .after(|a, held| {
            // The second time shows that it is worth keeping.
            for _ in 0..2 {
                assert!(kmalloc::<600_000>(a, held));
                std::mem::take(held).free(a);
            }
            assert!(a.mapped.kept_bytes() > 0);
        })
        .check();
}

#[test]
fn aligned_objects_are_had_or_not() {
    Case::new("small", kmalloc_aligned::<100, 64>).check();
    Case::new("page", kmalloc_aligned::<5000, 4096>).check();
    Case::new("large", kmalloc_aligned::<5000, 65536>).check();
    Case::new("huge", kmalloc_aligned::<3_000_000, 65536>).check();
    Case::new("hugely aligned", kmalloc_aligned::<100, { 8 << 20 }>).check();
}

#[test]
fn krealloc_moves_the_object_or_leaves_it() {
    let small = |a: &Slub, held: &mut Held| assert!(kmalloc::<100>(a, held));
    let large = |a: &Slub, held: &mut Held| assert!(kmalloc::<100_000>(a, held));
    let walled = |a: &Slub, held: &mut Held| {
        // The pages behind the last are taken: it cannot grow in place.
        assert!(kmalloc::<100_000>(a, held) && kmalloc::<40_000>(a, held));
        held.sized.swap(0, 1);
    };
    let huge = |a: &Slub, held: &mut Held| assert!(kmalloc::<3_000_000>(a, held));
    Case::new("small to larger class", krealloc::<1000>)
        .after(small)
        .check();
    Case::new("small to large", krealloc::<100_000>)
        .after(small)
        .check();
    Case::new("small to huge", krealloc::<3_000_000>)
        .after(small)
        .check();
    Case::new("large in place", krealloc::<200_000>)
        .after(large)
        .check();
    Case::new("large to larger", krealloc::<LARGE_MAX>)
        .after(walled)
        .check();
    Case::new("large to huge", krealloc::<3_000_000>)
        .after(large)
        .check();
    Case::new("large to small", krealloc::<100>)
        .after(large)
        .check();
    Case::new("huge to larger", krealloc::<9_000_000>)
        .after(huge)
        .check();
    Case::new("huge to smaller", krealloc::<2_000_000>)
        .after(huge)
        .check();
    Case::new("huge to large", krealloc::<100_000>)
        .after(huge)
        .check();
    Case::new("huge to small", krealloc::<100>)
        .after(huge)
        .check();
}

#[test]
fn giving_back_needs_no_memory() {
    for call in [
        (|a, _| {
            a.trim();
            true
        }) as fn(&Slub, &mut Held) -> bool,
        |a, _| {
            a.shrink_all();
            true
        },
        |a, _| {
            a.shrink(cache(a));
            true
        },
        |a, _| {
            a.tick(u64::MAX / 2);
            true
        },
        |a, _| {
            a.zone.arena.trim_reservation(&a.platform, 64 << 20);
            true
        },
    ] {
        Case::new("giving back", call)
            .after(|a, held| {
                assert!(alloc_bulk::<500>(a, held));
                free_elsewhere(a, held);
                free_bulk_elsewhere(a, held);
                assert!(kmalloc::<100_000>(a, held) && kmalloc::<3_000_000>(a, held));
            })
            .check();
    }
}

#[test]
fn a_cache_is_made_or_not() {
    fn create(a: &Slub, held: &mut Held) -> bool {
        // Many, so that the records run out of their chunk.
        let mut names = (0..200).map(|i| format!("cache-{i}"));
        let done = names.all(|name| {
            if a.caches().any(|cache| cache.name() == name) {
                return true;
            }
            let mut args = CacheArgs::new(&name, 40);
            args.ctor = Some(Ctor::plain(construct));
            match a.create(&args) {
                Ok(_) => true,
                Err(why) => {
                    assert_eq!(why, CreateError::NoMemory);
                    false
                }
            }
        });
        let _ = held;
        done
    }
    unsafe fn construct(_: *mut u8) {}
    let mut case = Case::new("caches", create);
    case.check();
    case.settings = &["slab_freelist_random=1"];
    case.check();
}

#[test]
fn an_allocator_that_cannot_start_leaves_nothing_mapped() {
    let setup = Setup::default();
    for granted in 0..10 {
        let a = setup.bare();
        a.platform.fail(granted, usize::MAX);
        // SAFETY: nobody else has it yet.
        let done = unsafe { a.init(setup.reserve, setup.tunables) };
        assert_eq!(a.ready(), done);
        if done {
            assert!(granted > 1, "it needs a table and a range");
            return;
        }
        let left = a.platform.mapped_bytes() + a.platform.reserved_bytes();
        assert_eq!(left, 0, "bytes left when request {granted} failed");
    }
    panic!("it never starts");
}

#[test]
fn sizes_beyond_all_bounds_are_refused() {
    let a = support::allocator(1);
    let object = a.kmalloc(100, Gfp::KERNEL);
    let half = usize::MAX / 2;
    for bytes in [
        half,
        half + 1,
        half - 1,
        usize::MAX,
        usize::MAX - 4096,
        1 << 50,
    ] {
        assert!(a.kmalloc(bytes, Gfp::KERNEL).is_null(), "{bytes:#x}");
        for align in [8, 4096, 1 << 21, 1 << 62, 1 << 63] {
            assert!(a.kmalloc_aligned(bytes, align, Gfp::KERNEL).is_null());
        }
        // SAFETY: live.
        assert!(unsafe { a.krealloc(object, bytes, Gfp::KERNEL) }.is_null());
    }
    for align in [1 << 62, 1 << 63] {
        assert!(a.kmalloc_aligned(8, align, Gfp::KERNEL).is_null());
    }
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
    assert_all_is_given_back(&a);
}
