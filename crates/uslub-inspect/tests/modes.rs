//! The reader against allocators in other modes: debugged caches, quarantine.

mod support;

use support::World;
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Flags};
use uslub_core::debug::DebugFlags;
use uslub_core::tunables::Tunables;
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

/// Every other object from the second on, and every other from the first on.
fn halves(objects: &[u64]) -> (Vec<u64>, Vec<u64>) {
    let from = |first: usize| objects.iter().skip(first).step_by(2).copied().collect();
    (from(1), from(0))
}

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
    let (mut live, freed) = halves(&objects);
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
        let cache = heap.caches_named("debugged").remove(0);
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

/// A hardened allocator with twenty objects of `bytes` bytes; every second one is freed.
fn hardened(bytes: usize) -> (World, Vec<u64>, Vec<u64>) {
    let tunables = Tunables {
        hardened: 1,
        ..Tunables::DEFAULT
    };
    let world = World::with(7, &[0], tunables);
    let objects: Vec<_> = (0..20)
        .map(|_| world.slub.hard_alloc(bytes, 1, Gfp::KERNEL) as u64)
        .collect();
    assert!(!objects.contains(&0));
    let (live, freed) = halves(&objects);
    for &object in &freed {
        // SAFETY: live until now.
        unsafe { world.slub.hard_free(object as *mut u8) };
    }
    (world, live, freed)
}

#[test]
fn small_objects_in_quarantine_are_cached_and_free() {
    let (world, live, freed) = hardened(700);
    let process = World::process();
    let mut heap = world.heap(&process);
    let name = slot(&heap, live[0]).cache.name;
    for depth in [Depth::Full, Depth::Light] {
        let look = heap.look(depth).expect("a look");
        let row = look.rows.iter().find(|row| row.cache.name == name);
        let row = row.expect("the cache");
        assert_eq!(row.quarantined, 10);
        assert!(row.cached >= 10 && row.uncertain == 0);
        assert_eq!(row.live(), (depth == Depth::Full).then_some(10));
        let bytes = 10 * u64::from(row.cache.size);
        assert_eq!(look.quarantined(), (10, bytes));
    }
    let full: u64 = heap
        .fullness(Some(&name))
        .iter()
        .map(|full| full.live())
        .sum();
    assert_eq!(full, 10);
    for &at in &freed {
        assert_eq!(slot(&heap, at).state, State::Quarantined);
    }
    for &at in &live {
        assert_eq!(slot(&heap, at).state, State::Live);
    }
}

#[test]
fn large_and_huge_objects_in_quarantine_are_not_live() {
    for bytes in [20_000, 400_000] {
        let (world, live, freed) = hardened(bytes);
        let process = World::process();
        let mut heap = world.heap(&process);
        let look = heap.look(Depth::Full).expect("a look");
        let huge = look.huge.map_or(0, |(live, _)| live);
        let whole = (bytes.next_multiple_of(4096) + 2 * 4096) as u64;
        assert_eq!(look.pages.large_objects + look.huge_objects, 10, "{bytes}");
        assert_eq!(look.quarantined_large.0, 10);
        assert!(look.quarantined_large.1 >= 10 * whole);
        assert_eq!(look.pages.large * 4096 + huge, look.quarantined_large.1);
        assert!(look.live_bytes() < 15 * whole && look.cached_bytes() >= 10 * whole);
        for &at in &freed {
            assert!(
                matches!(heap.explain(at), Meaning::Quarantined(..)),
                "{bytes}"
            );
        }
        for &at in &live {
            let meaning = heap.explain(at);
            assert!(
                matches!(meaning, Meaning::Large(..) | Meaning::Huge(..)),
                "{meaning:?}"
            );
        }
    }
}
