//! Callers' own functions, constructors, shrinkers and drops, that panic or call back: nothing is
//! lost.

mod support;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, LazyLock, Mutex};

use support::assert_live;
use uslub::{Cache, Gfp, Mempool, Object, Shrinker};

const SLAB: usize = 32 << 10;

#[test]
fn a_shrinker_may_call_back_into_its_own_cache() {
    static CACHE: LazyLock<Cache<[u8; 1024]>> =
        LazyLock::new(|| Cache::builder("callback").limit(SLAB).build().unwrap());
    static HELD: Mutex<Vec<Object<'static, [u8; 1024]>>> = Mutex::new(Vec::new());
    static FAILED_INSIDE: AtomicUsize = AtomicUsize::new(0);
    let shrinker = CACHE.shrinker(|wanted| {
        // There is nothing yet: it fails rather than ask us again.
        FAILED_INSIDE.fetch_add(usize::from(CACHE.alloc([0; 1024]).is_err()), SeqCst);
        let mut held = HELD.lock().unwrap();
        let keep = held.len().saturating_sub(wanted.min(3));
        let freed = held.drain(keep..).count();
        // From the sheaves of whichever CPU.
        CACHE.shrink();
        drop(CACHE.alloc([1; 1024]).expect("what was just freed"));
        freed
    });
    for n in 0..200 {
        let object = CACHE.alloc([n; 1024]).expect("the shrinker makes room");
        HELD.lock().unwrap().push(object);
    }
    assert!(FAILED_INSIDE.load(SeqCst) > 10);
    drop(shrinker);
    let mut more = Vec::new();
    while let Ok(object) = CACHE.alloc([9; 1024]) {
        more.push(object);
        assert!(more.len() < 100, "it is asked no more");
    }
    HELD.lock().unwrap().clear();
}

#[test]
fn a_shrinker_that_panics_freed_nothing() {
    let cache = Cache::<[u8; 1024]>::builder("panics")
        .limit(SLAB)
        .build()
        .unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let _shrinker = cache.shrinker(move |_| {
        counted.fetch_add(1, SeqCst);
        panic!("as it must");
    });
    let mut held = Vec::new();
    while let Ok(object) = cache.alloc([0; 1024]) {
        held.push(object);
    }
    assert!(calls.load(SeqCst) > 0);
    assert!(cache.alloc([0; 1024]).is_err(), "and it is asked again");
    drop(held);
    assert_live(&cache, 0);
}

#[test]
fn a_shrinker_may_unregister_itself() {
    static CACHE: LazyLock<Cache<[u8; 1024]>> =
        LazyLock::new(|| Cache::builder("itself").limit(SLAB).build().unwrap());
    static GUARD: Mutex<Option<Shrinker<'static>>> = Mutex::new(None);
    let token = Arc::new(AtomicUsize::new(0));
    let held = token.clone();
    let shrinker = CACHE.shrinker(move |_| {
        drop(GUARD.lock().unwrap().take());
        held.fetch_add(1, SeqCst);
        0
    });
    *GUARD.lock().unwrap() = Some(shrinker.unwrap());
    let mut objects = Vec::new();
    for _ in 0..3 {
        while let Ok(object) = CACHE.alloc([0; 1024]) {
            objects.push(object);
        }
    }
    assert_eq!(token.load(SeqCst), 1, "once");
    assert_eq!(Arc::strong_count(&token), 1, "and its closure is gone");
}

thread_local! {
    /// Objects that the constructor of this thread's test makes before it panics.
    static MAKES: Cell<usize> = const { Cell::new(0) };
}

fn panicking(name: &str) -> Cache<[u64; 64]> {
    Cache::builder(name)
        .limit(2 * SLAB)
        .constructor(|| {
            assert!(MAKES.get() > 0, "the constructor gives up");
            MAKES.set(MAKES.get() - 1);
            [5; 64]
        })
        .build()
        .unwrap()
}

fn panics(work: impl FnOnce()) -> bool {
    let said = catch_unwind(AssertUnwindSafe(work)).err();
    said.is_some_and(|panic| panic.downcast_ref::<&str>() == Some(&"the constructor gives up"))
}

#[test]
fn a_constructor_that_panics_loses_nothing() {
    for makes in [0, 1, 5, 33, 70] {
        let cache = panicking("panics");
        let most = {
            let reference = panicking("most");
            MAKES.set(usize::MAX);
            let mut objects = Vec::new();
            while let Ok(object) = reference.alloc_constructed() {
                objects.push(object);
            }
            objects.len()
        };
        MAKES.set(makes);
        let mut held = Vec::new();
        let panicked = panics(|| {
            loop {
                held.push(cache.alloc_constructed().expect("below the limit"));
            }
        });
        assert!(panicked, "{makes}");
        assert_live(&cache, held.len());
        // Again and again, in each kind of call.
        assert!(panics(
            || _ = cache.alloc_bulk(&mut [None; 100], Gfp::KERNEL)
        ));
        assert!(panics(|| drop(cache.prefill(100))));
        assert!(panics(|| drop(cache.prefill(100_000))));
        assert_live(&cache, held.len());
        // When it has come round, all objects are there.
        MAKES.set(usize::MAX);
        while let Ok(object) = cache.alloc_constructed() {
            assert_eq!(*object, [5; 64]);
            held.push(object);
        }
        assert_eq!(held.len(), most);
        drop(held);
        assert_live(&cache, 0);
        cache.destroy().unwrap();
    }
}

#[test]
fn a_refill_whose_constructor_panics_keeps_what_there_was() {
    let cache = panicking("refill");
    MAKES.set(usize::MAX);
    let mut aside = cache.prefill(2).unwrap();
    let before = aside.remaining();
    cache.shrink();
    MAKES.set(0);
    assert!(panics(|| _ = aside.refill(90)));
    assert!(aside.remaining() >= before);
    drop(aside);
    assert_live(&cache, 0);
}

#[test]
fn a_panic_while_objects_are_set_aside_loses_nothing() {
    let cache = Cache::new("unwound").unwrap();
    for n in [1, 5, 1000] {
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let mut aside = cache.prefill(n).unwrap();
            let _object = aside.alloc(1u64);
            panic!("with {} left", aside.remaining());
        }));
        assert!(unwound.is_err());
        assert_live(&cache, 0);
    }
}

#[test]
fn a_value_whose_drop_panics_leaves_its_memory() {
    struct Angry;
    impl Drop for Angry {
        fn drop(&mut self) {
            panic!("as it must");
        }
    }
    let cache = Cache::new("angry").unwrap();
    let object = cache.alloc((Angry, 1u8)).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(object))).is_err());
    assert_live(&cache, 0);
    let pool = Mempool::new(&cache, 1).unwrap();
    let element = pool.alloc((Angry, 1u8));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(element))).is_err());
    assert_eq!(pool.curr_nr(), 1);
    assert_live(&cache, 1);
}
