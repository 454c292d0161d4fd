//! The reader against allocators in other modes: debugged caches.

mod support;

use support::World;
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Flags};
use uslub_core::debug::DebugFlags;
use uslub_inspect::explain::{Meaning, Slot};
use uslub_inspect::holders::{self, Place};
use uslub_inspect::slots::State;
use uslub_inspect::{Depth, Heap};

fn slot(heap: &Heap<'_>, at: u64) -> Slot {
    match heap.explain(at) {
        Meaning::Slot(slot) => *slot,
        other => panic!("{at:#x} is no slot: {other:?}"),
    }
}

/// Bytes of the objects of debugged caches.
const BYTES: u64 = 700;

/// Ten live objects and ten freed ones of a new debugged cache.
fn debugged(world: &World, debug: DebugFlags) -> (Vec<u64>, Vec<u64>) {
    let args = CacheArgs {
        flags: Flags::NO_MERGE,
        debug: debug | DebugFlags::NO_USER_FLAGS,
        ..CacheArgs::new("debugged", BYTES as usize)
    };
    let cache = world.slub.create(&args).expect("a cache");
    let objects: Vec<_> = (0..20)
        .map(|_| world.slub.alloc(cache, Gfp::KERNEL) as u64)
        .collect();
    assert!(!objects.contains(&0));
    let even = |n: usize| {
        objects
            .iter()
            .skip(n)
            .step_by(2)
            .copied()
            .collect::<Vec<_>>()
    };
    let (mut live, freed) = (even(1), even(0));
    for &object in &freed {
        // SAFETY: live until now, of this cache.
        unsafe { world.slub.free(cache, object as *mut u8) };
    }
    live.sort_unstable();
    (live, freed)
}

#[test]
fn objects_of_debugged_caches_are_told_apart_and_begin_behind_the_red_zone() {
    use DebugFlags as D;
    for debug in [
        D::DEFAULT,
        D::RED_ZONE,
        D::RED_ZONE | D::STORE_USER,
        D::POISON,
        D::STORE_USER,
        D::CONSISTENCY_CHECKS,
    ] {
        let world = World::new(5, &[0]);
        let (live, freed) = debugged(&world, debug);
        let words = Box::new([live[3], live[4] + 9]);
        let process = World::process();
        let mut heap = world.heap(&process);
        let look = heap.look(Depth::Full).expect("a look");
        let row = look.rows.iter().find(|row| row.cache.name == "debugged");
        assert_eq!(row.and_then(|row| row.live()), Some(10), "{debug:?}");
        let cache = heap.cache_named("debugged").expect("the cache");
        assert_eq!(u64::from(cache.object_bytes()), BYTES);
        let mut found = Vec::new();
        heap.for_each_slot(&cache, |at, state| {
            if state == State::Live {
                found.push(at);
            }
            true
        });
        found.sort_unstable();
        assert_eq!(found, live, "{debug:?}");
        for (&at, is_live) in
            (live.iter().map(|at| (at, true))).chain(freed.iter().map(|at| (at, false)))
        {
            for offset in [0, 9, BYTES - 1] {
                let slot = slot(&heap, at + offset);
                assert_eq!((slot.at, slot.offset, slot.in_front), (at, offset, 0));
                assert_eq!(slot.state == State::Live, is_live, "{debug:?}: {slot:?}");
            }
        }
        if debug.contains(D::RED_ZONE) {
            let slot = slot(&heap, live[0] - 8);
            assert_eq!((slot.at, slot.offset, slot.in_front), (live[0], 0, 8));
        }
        for (word, object) in words.iter().zip([live[3], live[4]]) {
            let heaps = std::slice::from_ref(&heap);
            let found = holders::find(&process, heaps, object..object + BYTES, 1000);
            let at = &raw const *word as u64;
            let mut found = found.words.iter();
            let found = found.find(|found| found.at == at).expect("the word");
            assert!(found.value == *word && found.place.holds());
        }
    }
}

#[test]
fn a_word_in_a_debugged_object_holds_but_not_one_beside_it() {
    let world = World::new(6, &[0]);
    let (live, _) = debugged(&world, DebugFlags::RED_ZONE);
    let wanted = live[0];
    // SAFETY: the first word of a live object, and the red zone in front of another one.
    unsafe {
        (live[1] as *mut u64).write(wanted);
        (live[2] as *mut u64).sub(1).write(wanted);
    }
    let process = World::process();
    let heap = world.heap(&process);
    let heaps = std::slice::from_ref(&heap);
    let found = holders::find(&process, heaps, wanted..wanted + BYTES, 1000);
    let place = |at| {
        let mut words = found.words.iter();
        words.find(|word| word.at == at).map(|word| &word.place)
    };
    let name = "debugged".to_owned();
    let inside = Place::Slot(name, live[1], State::Live);
    assert_eq!(place(live[1]), Some(&inside));
    assert!(matches!(place(live[2] - 8), Some(Place::Record(_))));
}
