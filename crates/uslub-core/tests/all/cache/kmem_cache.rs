//! What caches are made of: sharing, alignment, constructors that fail, pages that are touched.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use crate::support;
use crate::support::{Cache, Fresh, POISON, Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor, Flags};

fn shared<'a>(name: &'a str, size: usize) -> CacheArgs<'a> {
    let mut args = CacheArgs::new(name, size);
    args.flags -= Flags::NO_MERGE;
    args
}

fn destroy(a: &Slub, cache: &Cache) -> usize {
    // SAFETY: the tests use the cache no more unless it is shared.
    unsafe { a.destroy(cache, |_| ()) }
}

#[test]
fn caches_that_fit_share_their_slabs() {
    let a = support::allocator(1);
    let first = a.create(&shared("first", 100)).unwrap();
    let again = a.create(&shared("again", 97)).unwrap();
    assert!(std::ptr::eq(first, again));
    assert_eq!(
        (first.aliases(), first.name(), first.object_size()),
        (1, "first", 100)
    );
    let larger = a.create(&shared("larger", 104)).unwrap();
    assert!(std::ptr::eq(first, larger));
    assert_eq!(first.object_size(), 104);
    // Zeroed memory is zeroed for the largest of them.
    let object = a.alloc(first, Gfp::KERNEL);
    support::pattern::fill(object, 104, 1);
    // SAFETY: the test's object, freed once.
    unsafe { a.free(first, object) };
    let object = a.alloc(first, Gfp::KERNEL | Gfp::ZERO);
    assert!(support::pattern::is_filled(object, 104, 0));
    // SAFETY: as above.
    unsafe { a.free(larger, object) };
    // It lives until the last of them is destroyed.
    assert_eq!((destroy(&a, first), destroy(&a, larger)), (0, 0));
    let object = a.alloc(again, Gfp::KERNEL);
    assert!(!object.is_null());
    // SAFETY: as above.
    unsafe { a.free(again, object) };
    assert_eq!(destroy(&a, again), 0);
    assert_eq!(a.caches().count(), 0);
}

#[test]
fn caches_that_do_not_fit_or_must_not_share_do_not() {
    unsafe fn construct(_: *mut u8) {}
    let a = support::allocator(1);
    let first = a.create(&shared("first", 104)).unwrap();
    let mut others = vec![shared("larger", 105), shared("too small", 96)];
    others.push(CacheArgs::new("alone", 104));
    let changes: [fn(&mut CacheArgs<'_>); 7] = [
        |args| args.align = 16,
        |args| args.flags |= Flags::HWCACHE_ALIGN,
        |args| args.flags |= Flags::TYPESAFE_BY_RCU,
        |args| args.flags |= Flags::PREFAULT,
        |args| args.ctor = Some(Ctor::plain(construct)),
        |args| args.limit = Some(1 << 20),
        |args| args.sheaf_capacity = Some(32),
    ];
    for change in changes {
        let mut args = shared("other", 104);
        change(&mut args);
        others.push(args);
    }
    let mut ids = BTreeSet::from([first.id.index()]);
    for args in &others {
        assert!(ids.insert(a.create(args).unwrap().id.index()));
    }
    let nobody = Setup::with(&["slab_nomerge=1"]).build();
    let ids = [(); 2].map(|()| nobody.create(&shared("same", 64)).unwrap().id.index());
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn small_objects_share_a_cache_line_and_others_begin_one() {
    let a = support::allocator(1);
    for (size, align) in [
        (1, 8),
        (8, 8),
        (9, 16),
        (16, 16),
        (17, 32),
        (33, 64),
        (64, 64),
        (65, 64),
        (200, 64),
    ] {
        let mut args = CacheArgs::new("lines", size);
        args.flags |= Flags::HWCACHE_ALIGN;
        let cache = a.create(&args).unwrap();
        assert_eq!(cache.align, align, "{size}");
        let objects: Vec<_> = (0..100).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        assert!(
            objects
                .iter()
                .all(|&o| (o as usize).is_multiple_of(align as usize))
        );
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects.clone()) };
    }
    assert_all_is_given_back(&a);
}

/// What a constructor frees while it is at work, as another thread might.
struct Meanwhile<'a> {
    slub: &'a Slub,
    cache: Cell<Option<&'a Cache>>,
    objects: RefCell<Vec<*mut u8>>,
}

unsafe fn free_meanwhile(meanwhile: *const (), _: *mut u8) -> bool {
    // SAFETY: the test gives its own, which outlives the cache, and has one thread.
    let meanwhile = unsafe { &*meanwhile.cast::<Meanwhile<'_>>() };
    if let Some(cache) = meanwhile.cache.get() {
        let mut objects = meanwhile.objects.take();
        // SAFETY: the test's objects, freed once.
        unsafe { meanwhile.slub.free_bulk(cache, &mut objects) };
    }
    true
}

#[test]
fn objects_that_come_back_during_construction_displace_nothing() {
    for settings in [&[][..], &["slab_state_lockfree=0"]] {
        let a = Setup::with(settings).build();
        // Everything goes to the slab at once.
        a.platform.set_percpu_usable(false);
        let meanwhile = Meanwhile {
            slub: &a,
            cache: Cell::new(None),
            objects: RefCell::default(),
        };
        let mut args = CacheArgs::new("made", 64);
        args.ctor = Some(Ctor {
            call: free_meanwhile,
            data: (&raw const meanwhile).cast(),
        });
        let cache = a.create(&args).unwrap();
        let mut first = vec![std::ptr::null_mut(); 12];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut first));
        meanwhile.objects.replace(first.split_off(1));
        meanwhile.cache.set(Some(cache));
        let mut next = [std::ptr::null_mut(); 8];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut next));
        assert!(meanwhile.objects.borrow().is_empty(), "it was at work");
        assert_eq!(a.info(cache).live_objs(), 9);
        // SAFETY: the test's objects, freed once.
        unsafe {
            a.free_bulk(cache, &mut next);
            a.free_bulk(cache, &mut first);
        }
        a.platform.set_percpu_usable(true);
        assert_all_is_given_back(&a);
    }
}

/// A constructor that fails now and then, and what it has done.
#[derive(Default)]
struct Maker {
    calls: Cell<usize>,
    fail_at: Cell<usize>,
    made: RefCell<BTreeSet<usize>>,
}

unsafe fn make(maker: *const (), object: *mut u8) -> bool {
    // SAFETY: the tests give their maker, which outlives the cache, and have one thread.
    let maker = unsafe { &*maker.cast::<Maker>() };
    maker.calls.set(maker.calls.get() + 1);
    if maker.calls.get() == maker.fail_at.get() {
        return false;
    }
    assert!(
        maker.made.borrow_mut().insert(object as usize),
        "constructed twice"
    );
    // SAFETY: the object has 64 bytes.
    unsafe { object.write_bytes(0xc0, 64) };
    true
}

#[test]
fn a_constructor_that_fails_loses_nothing() {
    for random in ["slab_freelist_random=0", "slab_freelist_random=1"] {
        for fail_at in [1, 2, 7, 60, 61, 100] {
            let a = Setup::with(&[random]).build();
            let maker = Maker::default();
            maker.fail_at.set(fail_at);
            let mut args = CacheArgs::new("made", 64);
            args.ctor = Some(Ctor {
                call: make,
                data: (&raw const maker).cast(),
            });
            let cache = a.create(&args).unwrap();
            let mut objects = vec![];
            let mut failures = 0;
            while objects.len() < 300 {
                let object = a.alloc(cache, Gfp::KERNEL);
                assert_eq!(a.validate(), Ok(()));
                if object.is_null() {
                    failures += 1;
                    continue;
                }
                assert!(maker.made.borrow().contains(&(object as usize)));
                assert!(support::pattern::is_filled(object, 64, 0xc0));
                objects.push(object);
            }
            assert!(failures <= 1, "one call failed");
            // SAFETY: the test's objects, freed once.
            unsafe { a.free_bulk(cache, &mut objects) };
            maker.fail_at.set(maker.calls.get() + 3);
            let mut many = [std::ptr::null_mut(); 5000];
            let took = a.alloc_bulk(cache, Gfp::KERNEL, &mut many);
            assert_eq!(a.validate(), Ok(()));
            if took {
                // SAFETY: the test's objects, freed once.
                unsafe { a.free_bulk(cache, &mut many) };
            }
            assert_all_is_given_back(&a);
        }
    }
}

#[test]
fn zeroed_objects_of_a_cache_with_a_constructor_are_refused() {
    let a = support::allocator(1);
    let maker = Maker::default();
    let mut args = CacheArgs::new("made", 64);
    args.ctor = Some(Ctor {
        call: make,
        data: (&raw const maker).cast(),
    });
    let cache = a.create(&args).unwrap();
    assert!(a.alloc(cache, Gfp::KERNEL | Gfp::ZERO).is_null());
    let mut many = [std::ptr::null_mut(); 3];
    assert!(!a.alloc_bulk(cache, Gfp::KERNEL | Gfp::ZERO, &mut many));
    let warnings = a.platform.warnings();
    assert_eq!(warnings.len(), 2);
    assert!(
        warnings
            .iter()
            .all(|w| w.contains("'made'") && w.contains("constructor"))
    );
    assert_eq!(a.info(cache).num_slabs, 0);
}

#[test]
fn the_pages_of_a_prefaulted_cache_are_touched_when_they_are_taken() {
    let a = Setup {
        fresh: Fresh::Poisoned,
        ..Setup::default()
    }
    .build();
    let mut args = CacheArgs::new("touched", 2048);
    for flags in [Flags::NO_MERGE, Flags::NO_MERGE | Flags::PREFAULT] {
        args.flags = flags;
        let cache = a.create(&args).unwrap();
        let object = a.alloc(cache, Gfp::KERNEL) as usize;
        // A page that the object is not in: an allocation writes the object's first word. SAFETY:
        // pages of the slab, which has four at least.
        let slab = object & !(cache.geometry.bytes() - 1);
        let other = if object & !4095 == slab {
            slab + 4096
        } else {
            slab
        };
        // SAFETY: as above.
        let first = unsafe { *(other as *const u8) };
        assert_eq!(first != POISON, flags.contains(Flags::PREFAULT));
        // SAFETY: the test's object, freed once.
        unsafe { a.free(cache, object as *mut u8) };
    }
}

#[test]
fn prefaulting_damages_neither_links_nor_constructed_objects() {
    unsafe fn construct(object: *mut u8) {
        support::pattern::fill(object, 320, 0xcc);
    }
    for ctor in [None, Some(Ctor::plain(construct))] {
        // All slots are linked beforehand, and byte 4096 of a slab lies inside one.
        let a = Setup::with(&["freelist_deferred=0", "slab_freelist_hardened=0"]).build();
        let mut args = CacheArgs::new("prefaulted", 320);
        args.flags |= Flags::PREFAULT | Flags::TYPESAFE_BY_RCU;
        args.min_objects = Some(40);
        args.ctor = ctor;
        let cache = a.create(&args).unwrap();
        assert!(cache.geometry.pages() > 1);
        let n = 3 * cache.geometry.objects as usize;
        let objects: Vec<_> = (0..n).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
        let different: BTreeSet<_> = objects.iter().collect();
        assert_eq!(different.len(), n);
        for &object in &objects {
            assert!(ctor.is_none() || support::pattern::is_filled(object, 320, 0xcc));
            // SAFETY: the test's object, freed once.
            unsafe { a.free(cache, object) };
        }
        assert_eq!(a.validate(), Ok(()));
    }
}

#[test]
fn a_refused_cache_costs_no_memory() {
    let a = support::allocator(1);
    a.create(&CacheArgs::new("test", 8)).unwrap();
    let before = a.metadata_bytes();
    let mut bad_align = CacheArgs::new("test", 8);
    bad_align.align = 3;
    for args in [CacheArgs::new("", 8), CacheArgs::new("test", 0), bad_align] {
        assert!(a.create(&args).is_err());
        assert_eq!(a.metadata_bytes(), before, "{args:?}");
    }
}
