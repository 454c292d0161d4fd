//! Readers and grace periods: nothing that a reader may see is used again before the reader is
//! gone.

mod support;

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::thread;
use std::time::Instant;

use crossbeam_epoch as epoch;
use support::{assert_live, assert_live_raw, in_child, stress};
use uslub::{Cache, Gfp, Object, RawCache, kfree, kfree_rcu, kmalloc, rcu_barrier};

const READERS: usize = 5;
const WRITERS: usize = 3;
const PLACES: usize = 64;

/// What readers look at: whoever uses the memory anew writes another stamp.
#[repr(C)]
struct Stamped {
    stamp: AtomicU64,
    again: [AtomicU64; 6],
}

fn write(object: NonNull<Stamped>, stamp: u64) {
    // SAFETY: memory of an object, ours, whose words readers of an earlier life may still read as
    // atomics.
    let object = unsafe { object.as_ref() };
    // Relaxed: published with the pointer.
    object.stamp.store(stamp, Relaxed);
    object
        .again
        .iter()
        .for_each(|word| word.store(!stamp, Relaxed));
}

#[test]
fn no_object_is_used_again_before_its_grace_period() {
    let cache = Cache::<Stamped>::new("stamped").unwrap();
    let places: Vec<AtomicPtr<Stamped>> = (0..PLACES).map(|_| AtomicPtr::new(null_mut())).collect();
    let (next, reads) = (AtomicU64::new(1), AtomicU64::new(0));
    let end = Instant::now() + stress();
    thread::scope(|scope| {
        for me in 0..WRITERS {
            let (cache, places, next) = (&cache, &places, &next);
            scope.spawn(move || {
                let mut at = me;
                while Instant::now() < end {
                    at = (at * 5 + 7) % PLACES;
                    // Frees while pinned are usual.
                    let guard = (at % 2 == 0).then(epoch::pin);
                    let new = cache.alloc_raw(Gfp::KERNEL).expect("memory");
                    // Relaxed: a number of one's own.
                    write(new, next.fetch_add(1, Relaxed));
                    // AcqRel: publishes the object, and takes the old one over.
                    let old = places[at].swap(new.as_ptr(), AcqRel);
                    if let Some(old) = NonNull::new(old) {
                        // SAFETY: nobody finds it any more.
                        unsafe { cache.free_rcu(old) };
                    }
                    drop(guard);
                    if at == 3 {
                        cache.shrink();
                    }
                    if at == 5 && me == 0 {
                        rcu_barrier();
                    }
                }
            });
        }
        for me in 0..READERS {
            let (places, reads) = (&places, &reads);
            scope.spawn(move || {
                let (mut n, mut at) = (0, me);
                while Instant::now() < end {
                    let _guard = epoch::pin();
                    at = (at * 5 + 11) % PLACES;
                    // Acquire: pairs with the publication.
                    let Some(object) = NonNull::new(places[at].load(Acquire)) else {
                        continue;
                    };
                    // SAFETY: we are pinned.
                    let object = unsafe { object.as_ref() };
                    // SeqCst, here and below: each is to be read when it stands here.
                    let stamp = object.stamp.load(SeqCst);
                    for _ in 0..20 {
                        for word in &object.again {
                            assert_eq!(word.load(SeqCst), !stamp, "used again under a reader");
                        }
                        thread::yield_now();
                    }
                    assert_eq!(
                        object.stamp.load(SeqCst),
                        stamp,
                        "used again under a reader"
                    );
                    n += 1;
                }
                // Relaxed: a figure.
                reads.fetch_add(n, Relaxed);
            });
        }
    });
    for place in &places {
        if let Some(object) = NonNull::new(place.load(Relaxed)) {
            // SAFETY: no readers any more.
            unsafe { cache.free_rcu(object) };
        }
    }
    rcu_barrier();
    println!("{} writes, {} reads", next.into_inner(), reads.into_inner());
    assert_live(&cache, 0);
    assert_eq!(cache.destroy(), Ok(()));
}

/// What no user of a typed object ever changes.
const TYPE: u64 = 0x7965_7374_6162_6c65;

#[test]
fn slabs_of_a_typesafe_cache_keep_their_type_under_readers() {
    struct Typed {
        kind: AtomicU64,
        key: AtomicU64,
    }
    let cache = Cache::<Typed>::builder("typed")
        .typesafe_by_rcu()
        .constructor(|| Typed {
            kind: AtomicU64::new(TYPE),
            key: AtomicU64::new(0),
        })
        .build()
        .unwrap();
    let places: Vec<AtomicPtr<Typed>> = (0..PLACES).map(|_| AtomicPtr::new(null_mut())).collect();
    let (done, reused) = (AtomicBool::new(false), AtomicU64::new(0));
    let end = Instant::now() + stress();
    thread::scope(|scope| {
        for _ in 0..WRITERS - 1 {
            let (cache, places) = (&cache, &places);
            scope.spawn(move || {
                while Instant::now() < end {
                    // Many at once, so that whole slabs become empty.
                    for (at, place) in places.iter().enumerate() {
                        let object = cache.alloc_constructed().expect("memory");
                        // Relaxed: published with the pointer.
                        object.key.store(at as u64, Relaxed);
                        let new = Object::into_raw(object).as_ptr();
                        // AcqRel: publishes the object, and takes the old one over.
                        if let Some(old) = NonNull::new(place.swap(new, AcqRel)) {
                            // SAFETY: ours now; readers make sure what they found.
                            unsafe { cache.free_raw(old) };
                        }
                    }
                    for place in places {
                        // AcqRel: as above.
                        if let Some(old) = NonNull::new(place.swap(null_mut(), AcqRel)) {
                            // SAFETY: as above.
                            unsafe { cache.free_raw(old) };
                        }
                    }
                    cache.shrink();
                }
            });
        }
        // Somebody who would like the pages, and writes all over them.
        let stop = &done;
        scope.spawn(move || {
            // Relaxed: nothing hangs on when it is seen.
            while !stop.load(Relaxed) {
                let pages: Vec<_> = (0..64).filter_map(|_| kmalloc(4096, Gfp::KERNEL)).collect();
                for page in pages {
                    // SAFETY: ours, freed once.
                    unsafe {
                        page.write_bytes(0x66, 4096);
                        kfree(page.as_ptr());
                    }
                }
            }
        });
        let readers: Vec<_> = (0..READERS)
            .map(|me| {
                let (places, reused) = (&places, &reused);
                scope.spawn(move || {
                    let mut at = me;
                    while Instant::now() < end {
                        let _guard = epoch::pin();
                        at = (at * 5 + 11) % PLACES;
                        // Acquire: pairs with the publication.
                        let Some(object) = NonNull::new(places[at].load(Acquire)) else {
                            continue;
                        };
                        for _ in 0..20 {
                            // SAFETY: we are pinned, so it is an object of its type, though perhaps
                            // another.
                            let object = unsafe { object.as_ref() };
                            // SeqCst: to be read when it stands here.
                            assert_eq!(object.kind.load(SeqCst), TYPE, "the slab serves others");
                            if object.key.load(SeqCst) != at as u64 {
                                // Relaxed: a figure.
                                reused.fetch_add(1, Relaxed);
                            }
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        // Relaxed: as above.
        done.store(true, Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    for place in &places {
        if let Some(object) = NonNull::new(place.load(Relaxed)) {
            // SAFETY: ours.
            unsafe { cache.free_raw(object) };
        }
    }
    rcu_barrier();
    let slabs = cache.stats().counter("free_slab");
    println!(
        "{} objects seen in another life, {slabs:?} slabs given back",
        reused.into_inner()
    );
    assert_live(&cache, 0);
    assert!(!cache.shrink());
    rcu_barrier();
    assert_eq!(
        cache.stats().slab_bytes(),
        0,
        "nor does anything stay behind"
    );
    assert_eq!(cache.destroy(), Ok(()));
}

#[test]
fn objects_of_any_size_wait_for_readers() {
    let reader = epoch::pin();
    let sizes = [8, 100, 8192, 8193, 300_000];
    let objects = sizes.map(|bytes| kmalloc(bytes, Gfp::KERNEL).unwrap());
    for (object, bytes) in objects.iter().zip(sizes) {
        // SAFETY: ours, freed once; we are pinned, so it may be looked at.
        unsafe {
            object.write_bytes(0x5a, bytes);
            kfree_rcu(object.as_ptr());
        }
    }
    for (object, bytes) in objects.iter().zip(sizes) {
        for i in 0..bytes {
            // SAFETY: as above.
            assert_eq!(unsafe { object.add(i).read() }, 0x5a);
        }
    }
    drop(reader);
    rcu_barrier();
}

#[test]
fn a_barrier_waits_for_all_that_came_before() {
    let cache = RawCache::new("before", 64).unwrap();
    for n in [1, 10, 1000] {
        for _ in 0..n {
            let object = cache.alloc(Gfp::KERNEL).unwrap();
            // SAFETY: freed once.
            unsafe { cache.free_rcu(object.as_ptr()) };
        }
        let others: Vec<_> = (0..4).map(|_| thread::spawn(rcu_barrier)).collect();
        rcu_barrier();
        assert_live_raw(&cache, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
    }
}

#[test]
fn objects_become_free_without_a_barrier() {
    // Alone: the other tests' readers would hold it up.
    let Some(output) = in_child("objects_become_free_without_a_barrier") else {
        let cache = Cache::<[u64; 8]>::new("flowing").unwrap();
        for n in 0..200_000 {
            Object::free_rcu(cache.alloc([n; 8]).unwrap());
        }
        let bytes = cache.stats().slab_bytes();
        println!("{bytes} bytes of slabs for 200000 objects of 64 bytes");
        assert!(bytes < 2 << 20, "{bytes}");
        return;
    };
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success());
}
