//! Groups of CPUs: each has a barn, and CPUs whose barn is empty or full use their neighbours'.

use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, give, on_cpu, take};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::stats::StatItem;

const SHEAF: usize = 8;
const SLOTS: [Slots; 2] = [Slots::Locked, Slots::Restartable];

/// Eight CPUs, `cpus` of them to a group.
fn machine(nodes: usize, cpus: usize, slots: Slots) -> Box<Slub> {
    let group = format!("barn_cpus={cpus}");
    let mut setup = Setup::with(&[&group, "max_full_sheaves=2", "remote_node_defrag_ratio=0"]);
    (setup.cpus, setup.nodes, setup.slots) = (8, nodes, slots);
    setup.build()
}

fn cache(a: &Slub) -> &Cache {
    let mut args = CacheArgs::new("shared", 64);
    args.sheaf_capacity = Some(SHEAF);
    a.create(&args).unwrap()
}

/// Full sheaves in each barn.
fn full(cache: &Cache) -> Vec<usize> {
    cache.barns().map(|barn| barn.nr_full()).collect()
}

#[test]
fn a_group_has_a_barn_of_its_own() {
    for slots in SLOTS {
        for (cpus, barns) in [(1, 8), (2, 4), (3, 3), (8, 1), (4096, 1)] {
            let a = machine(1, cpus, slots);
            let cache = cache(&a);
            assert_eq!(cache.nr_barns(), barns);
            // Main and spare are full, and a sheaf more goes to the barn.
            let objects = take(&a, cache, 7, 3 * SHEAF);
            give(&a, cache, 7, &objects);
            let mut expected = vec![0; barns];
            expected[barns - 1] = 1;
            assert_eq!(full(cache), expected);
            assert_eq!(a.validate(), Ok(()));
            assert_all_is_given_back(&a);
        }
    }
}

#[test]
fn what_a_full_barn_has_no_room_for_goes_to_the_neighbours_and_then_to_slabs() {
    for slots in SLOTS {
        let a = machine(1, 4, slots);
        let cache = cache(&a);
        let objects = take(&a, cache, 0, 8 * SHEAF);
        let slow = a.stat(cache, StatItem::SheafFlush);
        give(&a, cache, 0, &objects[..4 * SHEAF]);
        assert_eq!(full(cache), [2, 0]);
        give(&a, cache, 0, &objects[4 * SHEAF..6 * SHEAF]);
        assert_eq!(full(cache), [2, 2]);
        assert_eq!(a.stat(cache, StatItem::SheafFlush), slow);
        give(&a, cache, 0, &objects[6 * SHEAF..]);
        assert_eq!(full(cache), [2, 2]);
        assert!(a.stat(cache, StatItem::SheafFlush) > slow);
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_cpu_whose_barn_is_empty_takes_from_the_neighbours_of_its_node_only() {
    for slots in SLOTS {
        // Groups 0 and 1 on node 0, 2 and 3 on node 1.
        let a = machine(2, 2, slots);
        let cache = cache(&a);
        let objects = take(&a, cache, 0, 4 * SHEAF);
        give(&a, cache, 0, &objects);
        assert_eq!(full(cache), [2, 0, 0, 0]);
        let far = take(&a, cache, 4, 1);
        assert_eq!(full(cache), [2, 0, 0, 0], "another node's");
        let refills = a.stat(cache, StatItem::SheafRefill);
        let near = take(&a, cache, 2, 2 * SHEAF);
        assert_eq!(full(cache), [0, 0, 0, 0]);
        assert_eq!(a.stat(cache, StatItem::SheafRefill), refills);
        give(&a, cache, 4, &far);
        give(&a, cache, 2, &near);
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_bulk_takes_from_all_barns_of_a_node_and_gives_to_all() {
    for slots in SLOTS {
        let a = machine(1, 2, slots);
        let cache = cache(&a);
        let objects = [0, 2, 4, 6].map(|cpu| (cpu, take(&a, cache, cpu, 4 * SHEAF)));
        for (cpu, objects) in objects {
            give(&a, cache, cpu, &objects);
        }
        assert_eq!(full(cache), [2, 2, 2, 2]);
        on_cpu(1);
        let mut out = vec![std::ptr::null_mut(); 8 * SHEAF];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut out));
        assert_eq!(full(cache), [0, 0, 0, 0]);
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut out) };
        assert!(full(cache).iter().sum::<usize>() >= 4);
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_bulk_takes_what_other_groups_have_before_it_takes_new_slabs() {
    for slots in SLOTS {
        let a = machine(1, 4, slots);
        let cache = cache(&a);
        // All objects of whole slabs, so that no list has any.
        let slab = cache.geometry.objects as usize;
        let objects = take(&a, cache, 4, 4 * SHEAF.max(slab));
        give(&a, cache, 4, &objects[..4 * SHEAF]);
        assert_eq!(full(cache), [0, 2]);
        on_cpu(0);
        let mut out = vec![std::ptr::null_mut(); 2 * slab];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut out));
        assert_eq!(full(cache), [0, 0]);
        give(&a, cache, 0, &out);
        give(&a, cache, 4, &objects[4 * SHEAF..]);
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_barn_grows_if_another_group_lacks_what_it_had_no_room_for() {
    for slots in SLOTS {
        let mut setup = Setup::with(&["barn_cpus=4", "sheaf_capacity_max=16"]);
        (setup.cpus, setup.slots) = (8, slots);
        let a = setup.build();
        let cache = cache(&a);
        let room = || -> usize { cache.barns().map(|barn| barn.extra_capacity()).sum() };
        let objects = take(&a, cache, 0, 40 * SHEAF);
        give(&a, cache, 0, &objects);
        assert_eq!(room(), 0);
        let objects = take(&a, cache, 4, 40 * SHEAF);
        assert!(room() > 0);
        give(&a, cache, 4, &objects);
        assert_eq!(a.validate(), Ok(()));
        assert_all_is_given_back(&a);
    }
}

#[test]
fn a_shrink_and_a_fork_see_every_barn() {
    let a = machine(1, 1, Slots::Locked);
    let cache = cache(&a);
    let objects: Vec<_> = (0..8).map(|cpu| take(&a, cache, cpu, 3 * SHEAF)).collect();
    for (cpu, objects) in objects.iter().enumerate() {
        give(&a, cache, cpu, objects);
    }
    assert_eq!(full(cache), [1; 8]);
    let mut locks = 0;
    a.for_each_lock(|_| locks += 1);
    let small = machine(1, 8, Slots::Locked);
    self::cache(&small);
    let mut fewer = 0;
    small.for_each_lock(|_| fewer += 1);
    let caches = small.caches().count();
    assert_eq!(locks - fewer, 7 * caches);
    a.shrink_all();
    assert_eq!(full(cache), [0; 8]);
    assert_eq!(a.validate(), Ok(()));
    assert_all_is_given_back(&a);
    assert_all_is_given_back(&small);
}
