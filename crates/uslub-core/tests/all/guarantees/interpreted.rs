//! Each kind of call once or twice, in runs so short that an interpreter (`.ci/miri`) comes to
//! their end: it sees reads of memory that nobody has written, accesses outside of what was
//! allocated, and accesses of threads that nothing orders.

use std::sync::Mutex;

use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, on_cpu};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor, Flags};
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_core::mempool::{Mempool, SlabSource};

/// Words of an object.
const WORDS: usize = 64;

/// An allocator of two CPUs, and a cache with sheaves of 3 objects and slabs of 8.
fn with_cache(slots: Slots, settings: &[&str], work: impl FnOnce(&Slub, &Cache)) {
    let setup = Setup {
        cpus: 2,
        slots,
        reserve: 16 << 20,
        ..Setup::with(settings)
    };
    let a = setup.build();
    let args = CacheArgs {
        max_order: Some(0),
        min_objects: Some(1),
        sheaf_capacity: Some(3),
        ..CacheArgs::new("short", 8 * WORDS)
    };
    work(&a, a.create(&args).unwrap());
    assert_all_is_given_back(&a);
}

/// Fills an object with its address.
fn fill(object: *mut u8) -> *mut u8 {
    assert!(!object.is_null());
    // SAFETY: just allocated, and of this size.
    unsafe {
        object
            .cast::<[usize; WORDS]>()
            .write([object as usize; WORDS])
    };
    object
}

/// Looks whether an object is as [`fill`] left it.
fn look(object: *mut u8) {
    // SAFETY: an object of ours, filled.
    let words = unsafe { object.cast::<[usize; WORDS]>().read() };
    assert_eq!(words, [object as usize; WORDS]);
}

/// Allocates, frees and drains one by one and in bulk.
fn use_cache(a: &Slub, cache: &Cache) {
    let mut objects: Vec<_> = (0..12).map(|_| fill(a.alloc(cache, Gfp::KERNEL))).collect();
    let mut bulk = [std::ptr::null_mut(); 9];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut bulk));
    objects.extend(bulk.map(fill));
    objects.iter().for_each(|&o| look(o));
    for (n, &object) in objects[..10].iter().enumerate() {
        on_cpu(n % 2);
        let gfp = [Gfp::KERNEL, Gfp::NOSPIN][n / 2 % 2];
        // SAFETY: ours, freed once.
        unsafe { a.free_with(cache, object, gfp) };
    }
    let zeroed = a.alloc(cache, Gfp::KERNEL | Gfp::ZERO);
    // SAFETY: just allocated, and of this size.
    assert_eq!(unsafe { *zeroed.cast::<[usize; WORDS]>() }, [0; WORDS]);
    objects[10..].iter().for_each(|&o| look(o));
    objects.push(zeroed);
    // SAFETY: ours, freed once.
    unsafe { a.free_bulk(cache, &mut objects[10..]) };
    on_cpu(0);
    a.flush(cache);
    assert_eq!(a.validate(), Ok(()));
    a.shrink(cache);
    assert_eq!(a.info(cache).live_objs(), 0);
}

#[test]
fn objects_come_and_go() {
    with_cache(Slots::Restartable, &[], use_cache);
}

#[test]
fn objects_come_and_go_in_the_older_ways() {
    let older = [
        "freelist_deferred=0",
        "slab_state_lockfree=0",
        "detached_freelist=0",
        "sheaf_spill=0",
        "empty_reserve=0",
        "slab_freelist_random=0",
        "slab_freelist_hardened=0",
    ];
    with_cache(Slots::Locked, &older, use_cache);
}

#[test]
fn threads_give_objects_to_each_other_and_drain() {
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for slots in [Slots::Locked, Slots::Restartable] {
        with_cache(slots, &[], |a, cache| {
            let table = Mutex::new(Vec::new());
            let work = |cpu: usize| {
                on_cpu(cpu);
                for round in 0..rounds {
                    for _ in 0..5 {
                        let object = fill(a.alloc(cache, Gfp::KERNEL)) as usize;
                        table.lock().unwrap().push(object);
                    }
                    for _ in 0..4 {
                        let Some(object) = table.lock().unwrap().pop() else {
                            break;
                        };
                        look(object as *mut u8);
                        // SAFETY: ours, freed once.
                        unsafe { a.free(cache, object as *mut u8) };
                    }
                    if round % 3 == cpu {
                        a.flush(cache);
                    }
                }
            };
            std::thread::scope(|scope| {
                for cpu in [0, 1, 1] {
                    scope.spawn(move || work(cpu));
                }
            });
            for object in table.into_inner().unwrap() {
                look(object as *mut u8);
                // SAFETY: ours, freed once.
                unsafe { a.free(cache, object as *mut u8) };
            }
        });
    }
}

/// Nobody reads: what is given waits for the next barrier.
struct Grace(Mutex<Vec<(usize, RcuCallback)>>);

// SAFETY: there are no readers.
unsafe impl GracePeriod for Grace {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        self.0.lock().unwrap().push((head as usize, callback));
    }

    fn barrier(&self) {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap());
        for (head, callback) in waiting {
            // SAFETY: given once, called once.
            unsafe { callback(head as *mut RcuHead) };
        }
    }

    fn synchronize(&self) {}
}

#[test]
fn objects_wait_for_readers_and_sheaves_are_set_aside() {
    static GRACE: Grace = Grace(Mutex::new(Vec::new()));
    with_cache(Slots::Restartable, &[], |a, cache| {
        assert!(a.set_grace_period(&GRACE));
        let objects: Vec<_> = (0..8).map(|_| fill(a.alloc(cache, Gfp::KERNEL))).collect();
        for &object in &objects {
            look(object);
            // SAFETY: ours, freed once.
            unsafe { a.free_rcu(cache, object) };
        }
        objects.iter().for_each(|&o| look(o));
        a.rcu_barrier();
        for n in [3, 7] {
            let mut set = a.prefill(cache, Gfp::KERNEL, n).unwrap();
            assert!(a.refill_prefilled(cache, Gfp::KERNEL, &mut set, n + 2));
            let object = fill(a.alloc_from(cache, Gfp::NOSPIN, &mut set));
            a.return_prefilled(cache, Gfp::KERNEL, set);
            look(object);
            // SAFETY: ours, freed once.
            unsafe { a.free(cache, object) };
        }
        let source = SlabSource::new(a, cache).unwrap();
        let pool = Mempool::new(a, 2, source).unwrap();
        let element = fill(pool.alloc(Gfp::KERNEL));
        // SAFETY: just allocated, freed once.
        unsafe { pool.free(element) };
    });
}

#[test]
fn constructed_and_type_safe_objects_keep_what_they_hold() {
    static GRACE: Grace = Grace(Mutex::new(Vec::new()));
    with_cache(Slots::Restartable, &[], |a, _| {
        assert!(a.set_grace_period(&GRACE));
        let args = CacheArgs {
            flags: Flags::TYPESAFE_BY_RCU,
            ctor: Some(Ctor::plain(|object| {
                fill(object);
            })),
            ..CacheArgs::new("made", 8 * WORDS)
        };
        let cache = a.create(&args).unwrap();
        for _ in 0..2 {
            let objects: Vec<_> = (0..4).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
            for object in objects {
                look(object);
                // SAFETY: ours, freed once.
                unsafe { a.free(cache, object) };
                look(object);
            }
        }
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { a.destroy(cache, |_| {}) }, 0);
    });
}

#[test]
fn objects_of_any_size_grow_and_shrink() {
    with_cache(Slots::Restartable, &[], |a, _| {
        let mut object = std::ptr::null_mut();
        let mut kept = 0;
        for bytes in [1, 100, 5000, 40_000, 300_000, 600_000, 24] {
            // SAFETY: ours; null at first.
            object = unsafe { a.krealloc(object, bytes, Gfp::KERNEL) };
            assert!(!object.is_null() && a.ksize(object) >= bytes);
            // SAFETY: an object of so many bytes, whose first were written.
            let bytes_of = unsafe {
                object.add(kept).write_bytes(7, bytes.saturating_sub(kept));
                std::slice::from_raw_parts(object, bytes)
            };
            assert!(bytes_of.iter().take(100).all(|&b| b == 7));
            kept = bytes;
        }
        // SAFETY: ours, freed once.
        unsafe { a.kfree(object) };
    });
}
