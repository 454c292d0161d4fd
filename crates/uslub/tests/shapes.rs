//! The shapes in which a program holds caches and objects: statics, shared owners, over a panic,
//! and both versions of allocator-api2.

use std::cell::Cell;
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;

use uslub::{Buckets, Cache, LazyCache, Object, OwnedObject, RawCache};

static RACED: LazyCache<[u64; 5]> = LazyCache::new("raced");

#[test]
fn threads_that_race_for_a_static_cache_get_one() {
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let barrier = barrier.clone();
            thread::spawn(move || {
                barrier.wait();
                RACED.alloc([n; 5]).expect("memory")
            })
        })
        .collect();
    let objects: Vec<Object<'static, _>> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert_eq!(RACED.stats().info.live_objs(), 4);
    let one = RACED.get().expect("created") as *const Cache<_>;
    assert!(std::ptr::eq(one, &*RACED));
    drop(objects);
    assert_eq!(RACED.stats().info.live_objs(), 0);
}

#[test]
#[should_panic(expected = "cache 'a name of more than thirty-one bytes'")]
fn a_static_cache_that_cannot_be_made_says_so() {
    static WRONG: LazyCache<u64> = LazyCache::new("a name of more than thirty-one bytes");
    let _ = WRONG.alloc(1);
}

#[test]
fn an_owned_object_outlives_every_other_owner_of_its_cache() {
    struct Tell<'a>(&'a Cell<u32>);
    impl Drop for Tell<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let dropped = Cell::new(0);
    let cache = Arc::new(Cache::new("outlived").expect("a cache"));
    let first = OwnedObject::new(&cache, Tell(&dropped)).unwrap_or_else(|_| panic!("memory"));
    let second = OwnedObject::new(&cache, Tell(&dropped)).unwrap_or_else(|_| panic!("memory"));
    let weak = Arc::downgrade(&cache);
    drop(cache);
    drop(OwnedObject::into_inner(first));
    assert_eq!((dropped.get(), weak.strong_count()), (1, 1));
    drop(second);
    assert_eq!((dropped.get(), weak.strong_count()), (2, 0));
}

#[test]
fn caches_cross_a_panic_and_objects_are_as_safe_as_their_values() {
    fn safe<T: UnwindSafe + RefUnwindSafe>() {}
    safe::<RawCache>();
    safe::<Cache<Cell<u32>>>();
    safe::<LazyCache<Cell<u32>>>();
    safe::<Buckets>();
    safe::<Object<'static, u32>>();
    safe::<OwnedObject<String>>();
    let cache = Cache::new("crossed").expect("a cache");
    let caught = catch_unwind(|| {
        let _object = cache.alloc(1u64).expect("memory");
        panic!("while an object lives");
    });
    assert!(caught.is_err());
    assert_eq!(cache.stats().info.live_objs(), 0);
}

#[cfg(all(feature = "allocator-api2", feature = "allocator-api2-02"))]
#[test]
fn both_versions_of_allocator_api2_are_served_by_one_set() {
    let buckets = Buckets::new("both").expect("buckets");
    let mut new = allocator_api2::vec::Vec::new_in(&buckets);
    let mut old = allocator_api2_02::vec::Vec::new_in(&buckets);
    new.extend(0..1000);
    old.extend(0..1000);
    assert_eq!(&new[..], &old[..]);
    let whole: std::collections::HashMap<_, _> = new.iter().zip(&old).collect();
    assert_eq!(whole.len(), 1000);
}
