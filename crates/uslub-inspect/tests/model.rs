//! The reader against the allocator's own figures and against a shadow model, at rest.

mod support;

use support::World;
use uslub_inspect::explain::Meaning;
use uslub_inspect::sheaves::Place;
use uslub_inspect::slots::State;
use uslub_inspect::{Depth, Error, Heap, root};

/// Compares each figure of a look with the allocator's own.
fn compare(world: &World, heap: &mut Heap<'_>) {
    let look = heap.look(Depth::Full).expect("a look");
    assert_eq!((look.looks, look.damaged, look.pages.torn), (1, 0, 0));
    let light = heap.look(Depth::Light).expect("a look");
    for cache in world.slub.caches() {
        let info = world.slub.info(cache);
        let row = look
            .rows
            .iter()
            .find(|row| row.cache.index == cache.id.index());
        let row = row.unwrap_or_else(|| panic!("no row for '{}'", cache.name()));
        assert_eq!(row.cache.name, cache.name());
        assert_eq!(row.cache.size, cache.size);
        assert_eq!(row.cache.object_size as usize, cache.object_size());
        assert_eq!(row.uncertain, 0, "'{}' at rest", cache.name());
        let of_reader = [
            row.slots,
            row.inuse.unwrap(),
            row.cached,
            row.slabs,
            row.active_slabs.unwrap(),
            row.calls.0,
            row.calls.1,
            row.live().unwrap(),
        ];
        let of_allocator = [
            info.num_objs as u64,
            info.active_objs as u64,
            info.cached_objs as u64,
            info.num_slabs as u64,
            info.active_slabs as u64,
            info.allocs,
            info.frees,
            info.live_objs() as u64,
        ];
        assert_eq!(of_reader, of_allocator, "'{}'", cache.name());
        let light = light
            .rows
            .iter()
            .find(|row| row.cache.index == cache.id.index());
        let light = light.expect("a row");
        assert_eq!(
            (light.slots, light.slabs, light.cached),
            (row.slots, row.slabs, row.cached)
        );
        assert_eq!(light.live(), None);
    }
    let totals = world.slub.totals();
    assert_eq!(look.pages.large * 4096, totals.large as u64);
    assert_eq!(look.pages.large_objects, world.large.len() as u64);
    assert_eq!(light.pages.large, look.pages.large);
    assert_eq!(look.cached_bytes(), totals.cached as u64);
    assert_eq!(look.free_bytes(), totals.free as u64);
    let kept = world.slub.zone.dirty_bytes() + world.slub.memory.pcp.bytes();
    assert_eq!(look.pages.dirty * 4096, kept as u64);
    let slab_bytes: u64 = look.rows.iter().map(|row| row.slab_bytes()).sum();
    assert_eq!(slab_bytes, totals.slabs as u64);
    if let Some((live, _)) = look.huge {
        assert_eq!(live, totals.huge as u64);
    }
}

/// Compares the state of each slot with the model.
fn compare_slots(world: &World, heap: &Heap<'_>) {
    for (which, own) in world.caches.iter().enumerate() {
        let cache = &heap.caches_named(own.name())[0];
        let info = world.slub.info(own);
        let (mut live, mut cached, mut free) = (0, 0, 0);
        heap.for_each_slot(cache, |at, state| {
            let is_live = world.live.get(&at) == Some(&which);
            assert_eq!(
                state == State::Live,
                is_live,
                "{at:#x} of '{}': {state:?}",
                cache.name
            );
            match state {
                State::Live => live += 1,
                State::InSheaf { .. } | State::Deferred | State::Quarantined => cached += 1,
                State::OnFreelist(_) | State::Fresh => free += 1,
            }
            true
        });
        let ahead: u64 = cache.ahead.iter().map(|&(_, slabs)| slabs).sum();
        let ahead = ahead as usize * cache.objects as usize;
        assert_eq!(live, info.live_objs(), "'{}'", cache.name);
        assert_eq!(cached, info.cached_objs, "'{}'", cache.name);
        assert_eq!(
            free + ahead,
            info.num_objs - info.active_objs,
            "'{}'",
            cache.name
        );
    }
}

fn run(seed: u64, nodes: &[usize]) {
    let mut world = World::new(seed, nodes);
    let mut process = World::process();
    for round in 0..8 {
        for _ in 0..100 {
            world.step();
        }
        process.read_maps().expect("the maps");
        let mut heap = world.heap(&process);
        compare(&world, &mut heap);
        if round % 4 == 0 {
            compare_slots(&world, &heap);
        }
    }
    assert_eq!(world.slub.validate(), Ok(()));
}

#[test]
fn a_look_equals_the_allocator_s_figures_and_the_model() {
    for seed in 0..2 {
        run(seed, &[0]);
    }
}

#[test]
fn a_look_equals_them_with_several_memory_nodes() {
    for seed in 4..5 {
        run(seed, &[0, 1]);
    }
}

#[test]
fn a_program_that_is_still_being_loaded_is_not_ready() {
    let world = World::new(3, &[0]);
    let process = World::process();
    let mut root = root::at(&process, world.root_address()).expect("a root");
    root.allocator = 0;
    assert!(matches!(Heap::open(&process, root), Err(Error::NotReady)));
}

#[test]
fn calls_are_told_apart_by_the_cpu_slot() {
    let mut world = World::new(3, &[0]);
    uslub_sim::cpu::on(0);
    world.alloc_of(1, 1000);
    uslub_sim::cpu::on(2);
    world.free(700);
    uslub_sim::cpu::on(0);
    world.free(300);
    let process = World::process();
    let heap = world.heap(&process);
    let caches = heap.caches_named(world.caches[1].name());
    let slots = heap.calls_by_slot(&caches);
    let busy: Vec<_> = slots[0].iter().filter(|calls| **calls != (0, 0)).collect();
    assert_eq!(busy, [&(1000, 300), &(0, 700)]);
}

#[test]
fn every_state_of_an_address_is_explained() {
    let mut world = World::new(7, &[0]);
    (0..3000).for_each(|_| world.step());
    uslub_sim::cpu::on(1);
    let process = World::process();
    let heap = world.heap(&process);
    for (&at, &which) in world.live.iter().step_by(37) {
        let size = u64::from(world.caches[which].size);
        for offset in [0, 1, size - 1] {
            let Meaning::Slot(slot) = heap.explain(at + offset) else {
                panic!("{at:#x} + {offset} is no slot");
            };
            assert_eq!(
                (slot.at, slot.offset, slot.state),
                (at, offset, State::Live)
            );
            assert_eq!(slot.cache.name, world.caches[which].name());
        }
    }
    for &at in &world.large {
        let Meaning::Large(start, bytes) = heap.explain(at + 5000) else {
            // An object of more than 256 KiB has a mapping of its own.
            panic!("{at:#x} is no large object");
        };
        assert_eq!(start, at);
        assert!(bytes > 5000 && bytes % 4096 == 0);
    }
    // The object that a CPU frees last leaves next.
    let object = world.slub.alloc(world.caches[1], uslub_core::Gfp::KERNEL);
    // SAFETY: live, of this cache.
    unsafe { world.slub.free(world.caches[1], object) };
    let Meaning::Slot(slot) = heap.explain(object as u64) else {
        panic!("no slot");
    };
    let State::InSheaf {
        place, from_top, ..
    } = slot.state
    else {
        panic!("not in a sheaf: {:?}", slot.state);
    };
    assert_eq!((place, from_top), (Place::Main(1), 0));
    let arena = heap.arena();
    let local = 0_u64;
    let record = |at| match heap.explain(at) {
        Meaning::Record(what) => what,
        other => panic!("{at:#x} is no record: {other:?}"),
    };
    assert_eq!(record(arena.map), "the map from pages to caches");
    assert_eq!(record(arena.descriptors), "the descriptors of pages");
    assert_eq!(
        record(&raw const *world.slub as u64),
        "the allocator itself"
    );
    assert_eq!(
        record(&raw const *world.caches[0] as u64),
        "the record of a cache"
    );
    assert!(matches!(
        heap.explain(&raw const local as u64),
        Meaning::NotOurs(_)
    ));
    assert!(matches!(
        heap.explain(arena.base + arena.pages * 4096),
        Meaning::Reserved
    ));
    assert!(matches!(heap.explain(0), Meaning::Unmapped));
    assert!(matches!(heap.explain(u64::MAX), Meaning::Kernel));
}

#[test]
fn slack_behind_slots_and_free_pages_are_told_apart() {
    let world = World::new(8, &[0]);
    // 3000 bytes do not divide a slab.
    let object = world.slub.alloc(world.caches[4], uslub_core::Gfp::KERNEL) as u64;
    let large = world.slub.kmalloc(64 << 10, uslub_core::Gfp::KERNEL);
    let process = World::process();
    let heap = world.heap(&process);
    let Meaning::Slot(slot) = heap.explain(object) else {
        panic!("no slot");
    };
    let slab = heap.address(slot.page);
    let (slots, bytes) = (
        u64::from(slot.cache.size * slot.cache.objects),
        4096 << slot.cache.order,
    );
    if slots < bytes {
        let Meaning::BehindSlots(cache, behind) = heap.explain(slab + bytes - 1) else {
            panic!("not behind the slots");
        };
        assert_eq!((cache.name.as_str(), behind), ("e", bytes - 1 - slots));
    }
    // SAFETY: live until now.
    unsafe { world.slub.kfree(large) };
    assert!(matches!(
        heap.explain(large as u64),
        Meaning::FreePage(_, true)
    ));
}
