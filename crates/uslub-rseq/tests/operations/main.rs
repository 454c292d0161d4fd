//! What each operation does and when it refuses, and what an abort at each of its instructions
//! leaves.
//!
//! The operations run on an area that the kernel does not know, which this program fills in
//! itself: so they run wherever their instructions do, in an emulator too.
//!
//! ```text
//!  world    one sheaf, one word, one counter, and what each operation must make of them
//!  thread   an area of the test's own
//!  forced   aborts, by breakpoints and a signal handler that acts as the kernel would
//! ```

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

#[cfg(target_arch = "aarch64")]
mod forced;
mod thread;
mod world;

use thread::OwnArea;
use world::{BLOCK, BOUNDS, CAPACITY, Operation, World, operations, push_within};

fn operation(name: &str) -> &'static Operation {
    operations().iter().find(|o| o.name == name).unwrap()
}

/// Prepares the world otherwise than the operation wants it; it must refuse and change nothing.
fn refuses(name: &str, prepare: impl FnOnce(&mut World)) {
    let area = OwnArea::registered();
    let mut world = World::new(area.area());
    let operation = operation(name);
    (operation.prepare)(&mut world);
    prepare(&mut world);
    let before = world.state();
    assert!(!(operation.run)(&mut world), "{name}");
    assert_eq!(world.state(), before, "{name}");
}

#[test]
fn each_operation_does_what_the_model_says() {
    let area = OwnArea::registered();
    let mut world = World::new(area.area());
    // Bulks from and to all places of a page, of all lengths that differ.
    for operation in operations().iter().cycle().take(4096 * operations().len()) {
        (operation.prepare)(&mut world);
        let mut expected = world.state();
        (operation.model)(&mut expected);
        assert!((operation.run)(&mut world), "{}", operation.name);
        assert_eq!(world.state(), expected, "{}", operation.name);
    }
}

#[test]
fn a_pop_refuses_an_empty_sheaf() {
    refuses("pop", |world| world.fill(0, 0));
}

#[test]
fn a_push_refuses_a_full_sheaf() {
    refuses("push", |world| world.fill(CAPACITY, 1));
}

#[test]
fn a_bulk_pop_refuses_a_sheaf_with_one_object_too_few() {
    refuses("pop_many", |world| {
        let (many, _) = world.turn(1);
        world.fill(many - 1, 0);
    });
}

#[test]
fn a_bulk_push_refuses_a_sheaf_with_room_for_one_object_too_few() {
    refuses("push_many", |world| {
        let (many, _) = world.turn(1);
        world.fill(CAPACITY - many + 1, many);
    });
}

#[test]
fn a_bulk_push_within_bounds_refuses_a_sheaf_with_room_for_one_object_too_few() {
    if operations().iter().all(|o| o.name != "push_many_within") {
        return;
    }
    refuses("push_many_within", |world| {
        let (many, _) = world.turn(BLOCK);
        world.fill(CAPACITY - many + 1, many);
    });
}

#[test]
fn a_bulk_push_refuses_one_object_out_of_bounds() {
    let area = OwnArea::registered();
    let mut world = World::new(area.area());
    let (first, last) = (BOUNDS.0 as u64, BOUNDS.1 as u64);
    let wide = operations().iter().find(|o| o.name == "push_many_within");
    let Some(within) = wide else { return };
    // Small and large, and from and to many places.
    for _ in 0..64 {
        let (many, below) = world.turn(BLOCK);
        for at in 0..many {
            for (object, is_within) in [
                (first, true),
                (last, true),
                (first - 1, false),
                (last + 1, false),
                (0, false),
                (first + (1 << 32), false),
                (1 << 62, false),
                (u64::MAX, false),
            ] {
                world.fill(below, many);
                world.change_hand(at, object);
                let mut expected = world.state();
                if is_within {
                    (within.model)(&mut expected);
                }
                let done = (within.run)(&mut world);
                assert_eq!(done, is_within, "{object:#x}, the {at}th of {many}");
                assert_eq!(world.state(), expected, "{object:#x}, the {at}th of {many}");
            }
        }
    }
}

#[test]
fn bounds_without_room_or_too_far_from_each_other_are_not_judged() {
    let area = OwnArea::registered();
    let mut world = World::new(area.area());
    let first = BOUNDS.0;
    for last in [first - 1, first - 4096, first + (1 << 32), usize::MAX] {
        let (many, below) = world.turn(BLOCK);
        world.fill(below, many);
        uslub_rseq::move_wide(true);
        let before = world.state();
        assert_eq!(push_within(&mut world, (first, last)), None);
        assert_eq!(world.state(), before);
    }
}

#[test]
fn addresses_are_written_where_they_belong_and_nowhere_else() {
    const GUARD: *mut u8 = std::ptr::dangling_mut();
    let base = 0x7fff_ffff_f000 as *mut u8;
    let offsets: Vec<u32> = (0..80u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    let has_wide = operations().iter().any(|o| o.name == "push_many_within");
    for (first, count) in (0..8).flat_map(|first| (0..64).map(move |count| (first, count))) {
        let mut array = vec![GUARD; 72];
        let (from, out) = (&offsets[first..], &mut array[4..4 + count]);
        // Other tests say otherwise.
        let written = (0..1000).any(|_| {
            uslub_rseq::move_wide(true);
            uslub_rseq::write_at(base, from, out)
        });
        assert_eq!(written, has_wide && count >= 8, "{count}");
        for (i, &place) in array.iter().enumerate() {
            let wanted = match i.checked_sub(4).filter(|&i| written && i < count) {
                Some(i) => base.wrapping_add(from[i] as usize),
                None => GUARD,
            };
            assert_eq!(place, wanted, "the {i}th of {count}");
        }
    }
    uslub_rseq::move_wide(true);
    let mut out = [GUARD; 9];
    assert!(
        !uslub_rseq::write_at(base, &offsets[..8], &mut out),
        "an offset too few"
    );
    assert_eq!(out, [GUARD; 9]);
}

#[test]
fn an_exchange_refuses_another_word() {
    refuses("exchange", |world| world.set_word(0));
}

#[test]
fn an_addition_refuses_a_stopped_region() {
    refuses("add", World::stop);
}

#[test]
fn bulk_operations_use_the_last_object_and_the_last_room() {
    let area = OwnArea::registered();
    let mut world = World::new(area.area());
    for name in ["pop_many", "push_many"].repeat(64) {
        let (many, _) = world.turn(1);
        if name == "pop_many" {
            world.fill(many, 0);
        } else {
            world.fill(CAPACITY - many, many);
        }
        let mut expected = world.state();
        (operation(name).model)(&mut expected);
        assert!((operation(name).run)(&mut world), "{name}");
        assert_eq!(world.state(), expected, "{name}");
    }
}

#[test]
fn a_thread_that_is_not_registered_touches_nothing() {
    for operation in operations() {
        let area = OwnArea::unregistered();
        let mut world = World::new(area.area());
        (operation.prepare)(&mut world);
        let before = world.state();
        assert!(!(operation.run)(&mut world), "{}", operation.name);
        assert_eq!(world.state(), before, "{}", operation.name);
        assert_eq!(area.descriptor(), 0, "{}", operation.name);
    }
}

#[test]
fn the_kernel_is_asked_and_its_answer_is_believed() {
    let area = uslub_rseq::Area::adopt().or_else(uslub_rseq::Area::register_own);
    // Under an emulator that has no sequences there must be none; elsewhere the fields must make
    // sense.
    match area {
        Some(area) => {
            assert!(area.register_here());
            assert!(area.index_here() < 8192);
        }
        None => println!("no restartable sequences: the locked fallback is used here"),
    }
    if std::env::var_os("USLUB_EXPECT_NO_RSEQ").is_some() {
        assert!(area.is_none());
    }
}
