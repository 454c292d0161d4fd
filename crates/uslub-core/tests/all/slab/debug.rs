//! The kernel's own tests of a debugged cache (`slub_kunit`), rebuilt: the same damage, and the
//! same number of errors. A report and a repair count one each.

use std::ptr::null_mut;

use crate::support::{Cache, Setup, Slub};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor};
use uslub_core::debug::{DebugFlags, RED_ACTIVE};
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};

/// An allocator whose debugged caches repair and go on.
pub fn repairing() -> Box<Slub> {
    Setup::with(&["slab_debug_fatal=0"]).build()
}

pub fn cache<'a>(a: &'a Slub, name: &str, size: usize, debug: DebugFlags) -> &'a Cache {
    let mut args = CacheArgs::new(name, size);
    args.debug = debug | DebugFlags::NO_USER_FLAGS;
    a.create(&args).unwrap()
}

/// Errors that a validation of the cache finds.
pub fn validated(a: &Slub, cache: &Cache) -> u32 {
    let before = a.debug.errors();
    a.validate_slabs_of(cache).unwrap();
    a.debug.errors() - before
}

/// Writes a byte where a bug would.
pub fn poke(at: *mut u8, offset: isize, byte: u8) {
    // SAFETY: within the slab of a test; the checks must see it.
    unsafe { at.offset(offset).write(byte) };
}

pub fn peek(at: *mut u8, offset: isize) -> u8 {
    // SAFETY: within the slab of a test.
    unsafe { at.offset(offset).read() }
}

fn free(a: &Slub, cache: &Cache, object: *mut u8) {
    // SAFETY: of this cache; nobody uses it any longer.
    unsafe { a.free(cache, object) };
}

fn destroy(a: &Slub, cache: &Cache) -> usize {
    // SAFETY: nobody uses the cache any longer.
    unsafe { a.destroy(cache, |_| {}) }
}

/// Grace periods that are over at once: nobody reads.
struct AtOnce;

// SAFETY: there are no readers.
unsafe impl GracePeriod for AtOnce {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // SAFETY: by the caller's promise.
        unsafe { callback(head) };
    }

    fn synchronize(&self) {}

    fn barrier(&self) {}
}

/// What an error's report must name.
fn said(a: &Slub, words: &[&str]) {
    let lines = a.platform.warnings().join("\n");
    for word in words {
        assert!(lines.contains(word), "{word:?} is not in:\n{lines}");
    }
}

#[test]
fn a_write_into_the_red_zone_of_an_object_in_use_gives_two_errors() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_RZ_alloc", 64, DebugFlags::RED_ZONE);
    let object = a.alloc(cache, Gfp::KERNEL);
    poke(object, 64, 0x12);
    assert_eq!(validated(&a, cache), 2);
    said(
        &a,
        &[
            "[Right Redzone overwritten]",
            "First byte 0x12 instead of 0xcc",
            "BUG TestSlub_RZ_alloc (pid 0, ): Object corrupt",
            "FIX TestSlub_RZ_alloc: Restoring Right Redzone",
        ],
    );
    assert_eq!(validated(&a, cache), 0, "it was repaired");
    free(&a, cache, object);
    assert_eq!(destroy(&a, cache), 0);
}

#[test]
fn a_resize_in_place_sees_what_it_would_write_over() {
    for (bytes, new) in [(40, 41), (40, 39), (41, 48), (48, 40)] {
        let a = repairing();
        a.switch_classes("ZU").unwrap();
        let object = a.kmalloc(bytes, Gfp::KERNEL);
        let resize = |bytes| {
            // SAFETY: a live object of the test.
            assert_eq!(unsafe { a.krealloc(object, bytes, Gfp::KERNEL) }, object);
        };
        resize(bytes);
        assert_eq!(a.debug.errors(), 0, "{bytes}");
        poke(object, bytes as isize, 0xab);
        resize(new);
        assert_eq!(a.debug.errors(), 2, "{bytes}");
        said(
            &a,
            &["Redzone overwritten]", "First byte 0xab instead of 0xcc"],
        );
    }
}

#[test]
fn a_write_into_the_red_zone_of_a_free_object_gives_two_errors() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_RZ_free", 64, DebugFlags::RED_ZONE);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    poke(object, 64, 0x12);
    assert_eq!(validated(&a, cache), 2);
    said(&a, &["[Right Redzone overwritten]", "instead of 0xbb"]);
    assert_eq!(destroy(&a, cache), 0);
}

#[test]
fn a_damaged_link_gives_three_errors_then_two_then_none() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_next_ptr_free", 64, DebugFlags::POISON);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    let link = cache.links.offset as isize;
    assert!(link >= 64, "the link lies behind the poison");
    let whole: Vec<u8> = (0..8).map(|i| peek(object, link + i)).collect();
    poke(object, link, !whole[0]);
    assert_eq!(validated(&a, cache), 3);
    said(
        &a,
        &[
            "Freechain corrupt",
            "Wrong object count. Counter is 0 but counted were",
        ],
    );
    for (i, &byte) in whole.iter().enumerate() {
        poke(object, link + i as isize, byte);
    }
    assert_eq!(validated(&a, cache), 2);
    assert_eq!(validated(&a, cache), 0);
    assert_eq!(destroy(&a, cache), 0);
}

#[test]
fn a_write_to_the_first_byte_of_a_free_object_gives_two_errors() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_1th_byte_free", 64, DebugFlags::POISON);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    poke(object, 0, 0x78);
    assert_eq!(validated(&a, cache), 2);
    said(
        &a,
        &["[Poison overwritten]", "First byte 0x78 instead of 0x6b"],
    );
    assert_eq!(destroy(&a, cache), 0);
}

#[test]
fn a_write_to_byte_50_of_a_free_object_gives_two_errors() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_50th_byte_free", 64, DebugFlags::POISON);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    poke(object, 50, 0x9a);
    assert_eq!(validated(&a, cache), 2);
    assert_eq!(validated(&a, cache), 0);
    assert_eq!(destroy(&a, cache), 0);
}

const SIZED: DebugFlags = DebugFlags::from_bits_truncate(
    DebugFlags::KMALLOC.bits() | DebugFlags::STORE_USER.bits() | DebugFlags::RED_ZONE.bits(),
);

#[test]
fn a_write_behind_the_size_that_was_asked_for_gives_two_errors() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_RZ_kmalloc", 32, SIZED);
    let object = a.alloc_for(cache, 18, Gfp::KERNEL);
    assert_eq!(a.ksize(object), 18);
    poke(object, 18, 0xab);
    poke(object, 19, 0xab);
    assert_eq!(validated(&a, cache), 2);
    said(
        &a,
        &[
            "[kmalloc Redzone overwritten]",
            "First byte 0xab instead of 0xcc",
        ],
    );
    free(&a, cache, object);
    assert_eq!(destroy(&a, cache), 0);
}

#[test]
fn a_resize_moves_the_red_zone_behind_the_new_size() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_krealloc", 64, SIZED);
    let bytes = |object, from: isize, to: isize| -> Vec<u8> {
        (from..to).map(|i| peek(object, i)).collect()
    };
    let resize = |object, bytes| {
        // SAFETY: live.
        unsafe { a.krealloc(object, bytes, Gfp::KERNEL | Gfp::ZERO) }
    };
    let object = a.alloc_for(cache, 48, Gfp::KERNEL);
    (0..48).for_each(|i| poke(object, i, 0xff));
    let object = resize(object, 40);
    assert_eq!(bytes(object, 40, 64), [RED_ACTIVE; 24]);
    let object = resize(object, 56);
    assert_eq!(bytes(object, 40, 56), [0; 16]);
    assert_eq!(bytes(object, 56, 64), [RED_ACTIVE; 8]);
    assert_eq!(validated(&a, cache), 0);
    (0..56).for_each(|i| poke(object, i, 0xff));
    let larger = resize(object, 112);
    assert_eq!(bytes(larger, 0, 56), [0xff; 56]);
    assert_eq!(bytes(larger, 56, 112), [0; 56]);
    assert_eq!(a.debug.errors(), 0);
    // SAFETY: live.
    unsafe { a.kfree(larger) };
    assert_eq!(destroy(&a, cache), 0);
}

#[test]
fn an_object_that_is_left_at_the_destruction_gives_two_errors() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_leak_destroy", 64, DebugFlags::DEFAULT);
    let object = a.alloc(cache, Gfp::KERNEL);
    let mut left = Vec::new();
    // SAFETY: nobody uses the cache any longer, but for what leaked.
    let n = unsafe { a.destroy(cache, |leaked| left.push(leaked)) };
    assert_eq!((n, a.debug.errors()), (1, 2));
    assert_eq!(left, [object]);
    said(
        &a,
        &[
            "Objects remaining on __kmem_cache_shutdown()",
            &format!("Object {object:p} @offset="),
            "Allocated in 0x0 age=0 cpu=0 pid=0",
            "kmem_cache_destroy TestSlub_leak_destroy: Slab cache still has objects",
        ],
    );
}

#[test]
fn objects_freed_after_a_grace_period_give_no_error() {
    let a = repairing();
    assert!(a.set_grace_period(&AtOnce));
    let cache = cache(&a, "TestSlub_kfree_rcu", 64, DebugFlags::DEFAULT);
    for _ in 0..10 {
        let object = a.alloc(cache, Gfp::KERNEL);
        // SAFETY: of this cache; nobody begins to use it.
        unsafe { a.free_rcu(cache, object) };
    }
    a.rcu_barrier();
    assert_eq!(destroy(&a, cache), 0);
    assert_eq!(a.debug.errors(), 0);
}

#[test]
fn calls_that_may_not_wait_give_no_error() {
    let a = repairing();
    let cache = cache(&a, "TestSlub_nolock", 64, DebugFlags::DEFAULT);
    let mut held = vec![a.alloc(cache, Gfp::KERNEL)];
    for round in 0..2_000 {
        let object = match round % 3 {
            0 => a.alloc(cache, Gfp::NOSPIN),
            1 => a.alloc(cache, Gfp::KERNEL),
            _ => held.pop().unwrap_or(null_mut()),
        };
        match round % 3 {
            2 if !object.is_null() => {
                // SAFETY: of this cache; freed once.
                unsafe { a.free_with(cache, object, Gfp::NOSPIN) };
            }
            2 => {}
            _ if !object.is_null() => held.push(object),
            _ => {}
        }
    }
    assert_eq!(validated(&a, cache), 0);
    held.into_iter().for_each(|object| free(&a, cache, object));
    assert_eq!(a.validate(), Ok(()));
    assert_eq!(destroy(&a, cache), 0);
}

/// Destroys another cache, of which an object is left.
fn leave_one(data: *const (), _object: *mut u8) -> bool {
    // SAFETY: the allocator of the test.
    let a = unsafe { &*data.cast::<Slub>() };
    let other = cache(a, "other", 64, DebugFlags::DEFAULT);
    assert!(!a.alloc(other, Gfp::KERNEL).is_null());
    destroy(a, other) == 1
}

#[test]
fn what_another_cache_reports_meanwhile_ends_no_call() {
    // Reports are fatal to the call that makes them.
    let a = Setup::with(&[]).build();
    let mut args = CacheArgs::new("innocent", 64);
    args.debug = DebugFlags::DEFAULT;
    args.ctor = Some(Ctor {
        call: leave_one,
        data: (&raw const *a).cast(),
    });
    let innocent = a.create(&args).unwrap();
    let object = a.alloc(innocent, Gfp::KERNEL);
    assert!(!object.is_null() && a.debug.errors() > 0);
    free(&a, innocent, object);
    a.validate_slabs_of(innocent).unwrap();
}
