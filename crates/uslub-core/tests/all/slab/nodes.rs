//! Memory nodes: local objects for local CPUs, remote ones back to their slabs, CPUs whose node has
//! no memory.

use std::collections::BTreeSet;

use crate::support;
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, give, on_cpu, take};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

/// Eight CPUs on four nodes, two each.
fn machine(memory: u64, settings: &[&str], slots: Slots) -> Box<Slub> {
    let mut setup = Setup::with(settings);
    (setup.cpus, setup.nodes, setup.memory, setup.slots) = (8, 4, memory, slots);
    setup.build()
}

fn cache(a: &Slub) -> &Cache {
    a.create(&CacheArgs::new("far", 256)).unwrap()
}

fn nodes_of(a: &Slub, objects: &[*mut u8]) -> BTreeSet<usize> {
    let node = |&object: &*mut u8| a.platform.node_of(object as usize).unwrap();
    objects.iter().map(node).collect()
}

#[test]
fn a_cpu_gets_memory_of_its_node_and_large_objects_too() {
    for slots in [Slots::Locked, Slots::Restartable] {
        // Without the search of other nodes, which may find what earlier CPUs left.
        let a = machine(0b1111, &["remote_node_defrag_ratio=0"], slots);
        let cache = cache(&a);
        for cpu in 0..8 {
            let objects = take(&a, cache, cpu, 500);
            assert_eq!(nodes_of(&a, &objects), BTreeSet::from([cpu / 2]));
            let large = a.kmalloc(40_000, Gfp::KERNEL);
            assert_eq!(a.platform.node_of(large as usize), Some(cpu / 2));
            give(&a, cache, cpu, &objects);
            // SAFETY: the test's object, freed once.
            unsafe { a.kfree(large) };
        }
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn nor_are_those_whose_cache_nobody_asks_for() {
    let a = machine(0b1111, &[], Slots::Locked);
    let cache = cache(&a);
    let far = take(&a, cache, 0, 1);
    // A sheaf with room.
    let near = take(&a, cache, 7, 10);
    // SAFETY: the test's object; nothing is done.
    assert!(!unsafe { a.free_own_fast(cache, far[0]) });
    give(&a, cache, 7, &[far, near].concat());
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn remote_objects_are_never_parked_in_a_local_sheaf() {
    let a = machine(0b1111, &[], Slots::Locked);
    let cache = cache(&a);
    let objects = take(&a, cache, 0, 300);
    let (one_by_one, in_bulk) = objects.split_at(150);
    let before = a.stat(cache, StatItem::FreeSlowpath);
    give(&a, cache, 7, one_by_one);
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut in_bulk.to_vec()) };
    assert_eq!(a.stat(cache, StatItem::FreeSlowpath) - before, 300);
    assert_eq!(support::sheaves_on(&a, cache, 7), (None, None));
    assert_eq!(a.info(cache).live_objs(), 0);
    // What this CPU allocates is of its own node.
    let mine = take(&a, cache, 7, 100);
    assert_eq!(nodes_of(&a, &mine), BTreeSet::from([3]));
    give(&a, cache, 7, &mine);
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn nor_where_the_sheaf_has_room() {
    let a = machine(0b1111, &[], Slots::Locked);
    let cache = cache(&a);
    let far = take(&a, cache, 0, 1);
    let near = take(&a, cache, 7, 10);
    let before = a.stat(cache, StatItem::FreeSlowpath);
    give(&a, cache, 7, &far);
    assert_eq!(a.stat(cache, StatItem::FreeSlowpath) - before, 1);
    give(&a, cache, 7, &near);
    // Objects of kmalloc are no different.
    let kmalloc = |cpu, n| -> Vec<_> {
        on_cpu(cpu);
        (0..n).map(|_| a.kmalloc(100, Gfp::KERNEL)).collect()
    };
    let (far, near) = (kmalloc(0, 3), kmalloc(7, 10));
    let class = a.caches().find(|cache| cache.name().starts_with("kmalloc"));
    let class = class.expect("the class of these objects");
    on_cpu(7);
    let before = a.stat(class, StatItem::FreeSlowpath);
    // SAFETY: the test's objects, freed once.
    unsafe {
        a.kfree(far[0]);
        a.kfree_sized(far[1], 100);
        a.kfree_with(far[2], Gfp::NOWAIT);
    }
    assert_eq!(a.stat(class, StatItem::FreeSlowpath) - before, 3);
    // SAFETY: as above.
    near.iter().for_each(|&object| unsafe { a.kfree(object) });
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn cpus_of_a_node_without_memory_use_sheaves_and_a_barn_of_their_own() {
    for (barns, slow) in [("memoryless_barns=1", false), ("memoryless_barns=0", true)] {
        // Nodes 0 and 1 have memory; CPUs 4 to 7 are on nodes 2 and 3.
        let a = machine(0b0011, &[barns], Slots::Locked);
        let cache = cache(&a);
        for round in 0..50 {
            let objects = take(&a, cache, 4, 100);
            assert_eq!(nodes_of(&a, &objects), BTreeSet::from([1]), "the nearest");
            give(&a, cache, 5, &objects);
            let _ = round;
        }
        let frees = a.stat(cache, StatItem::FreeSlowpath);
        let through_barn = a.stat(cache, StatItem::BarnGet);
        if slow {
            assert_eq!((frees, through_barn), (5000, 0));
        } else {
            assert_eq!(frees, 0);
            assert!(through_barn > 50);
        }
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn an_object_of_a_certain_node_can_be_had() {
    let a = machine(0b1111, &[], Slots::Locked);
    let cache = cache(&a);
    on_cpu(0);
    let mut objects = vec![];
    for nid in 0..4 {
        for gfp in [Gfp::KERNEL, Gfp::KERNEL | Gfp::THISNODE | Gfp::ZERO] {
            let object = a.alloc_node(cache, gfp, nid);
            assert_eq!(a.platform.node_of(object as usize), Some(nid));
            let other = a.kmalloc_node(100, gfp, nid);
            assert_eq!(a.platform.node_of(other as usize), Some(nid));
            objects.extend([object, other]);
        }
    }
    assert_eq!(a.stat(cache, StatItem::AllocNodeMismatch), 6);
    // A node that is not there: any will do, unless no other may.
    assert!(
        a.alloc_node(cache, Gfp::KERNEL | Gfp::THISNODE, 4)
            .is_null()
    );
    objects.push(a.alloc_node(cache, Gfp::KERNEL, 4));
    for object in objects {
        // SAFETY: the test's object, freed once.
        unsafe { a.kfree(object) };
    }
    assert_all_is_given_back(&a);
}

#[test]
fn other_nodes_are_searched_before_the_system_is_asked() {
    for (ratio, searched) in [
        ("remote_node_defrag_ratio=1024", true),
        ("remote_node_defrag_ratio=0", false),
    ] {
        let a = machine(0b1111, &[ratio, "min_partial=2"], Slots::Locked);
        let cache = cache(&a);
        // Many partial slabs on node 0: of each slab one object stays.
        let objects = take(&a, cache, 0, 2000);
        let (kept, freed): (Vec<_>, Vec<_>) = (objects.into_iter().enumerate())
            .partition(|(i, _)| i % cache.geometry.objects as usize == 0);
        let strip = |pairs: Vec<(usize, *mut u8)>| pairs.into_iter().map(|pair| pair.1).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = (strip(kept), strip(freed));
        give(&a, cache, 0, &freed);
        a.shrink(cache);
        let slabs = a.info(cache).num_slabs;
        let mine = take(&a, cache, 6, 20);
        let expected = if searched { 0 } else { 3 };
        assert_eq!(nodes_of(&a, &mine), BTreeSet::from([expected]));
        assert_eq!(a.info(cache).num_slabs > slabs, !searched);
        give(&a, cache, 6, &mine);
        give(&a, cache, 1, &kept);
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn memory_that_is_far_is_better_than_none() {
    let a = machine(0b1111, &[], Slots::Locked);
    let cache = cache(&a);
    let near = take(&a, cache, 0, 10);
    let classed = a.kmalloc(100, Gfp::KERNEL);
    // The range cannot grow: CPUs of node 3 get what node 0 has left.
    a.platform.fail(0, usize::MAX);
    on_cpu(6);
    let far = a.alloc(cache, Gfp::KERNEL);
    let classed_far = a.kmalloc(100, Gfp::KERNEL);
    assert_eq!(nodes_of(&a, &[far, classed_far]), BTreeSet::from([0]));
    // Neither may hand out what the sheaves have from node 0.
    let here = Gfp::KERNEL | Gfp::THISNODE;
    assert!(a.alloc_node(cache, here, 3).is_null());
    assert!(a.kmalloc_node(100, here, 3).is_null());
    a.platform.heal();
    // SAFETY: the test's objects, freed once.
    unsafe {
        a.free(cache, far);
        a.kfree(classed);
        a.kfree(classed_far);
    }
    give(&a, cache, 0, &near);
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
}

#[test]
fn a_node_without_memory_is_no_place_for_objects_even_when_it_is_named() {
    let a = machine(0b1011, &[], Slots::Restartable);
    let cache = cache(&a);
    on_cpu(0);
    for nid in [2, 4] {
        let object = a.alloc_node(cache, Gfp::KERNEL, nid);
        let other = a.kmalloc_node(100, Gfp::KERNEL, nid);
        assert_eq!(nodes_of(&a, &[object, other]), BTreeSet::from([0]));
        // SAFETY: the test's objects, freed once.
        unsafe {
            a.free(cache, object);
            a.kfree(other);
        }
        let here = Gfp::KERNEL | Gfp::THISNODE;
        assert!(a.alloc_node(cache, here, nid).is_null());
        assert!(a.kmalloc_node(100, here, nid).is_null());
    }
    assert_all_is_given_back(&a);
}
