//! Freeing after a grace period, which liburcu or the like brings.

use core::ffi::{c_int, c_void};

use libc::ENOMEM;
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};

use crate::cache::{core, uslub_cache};
use crate::{ALLOCATOR, invalid, record, set_errno, start, unrecord};

/// A record of one who waits, liburcu's; two words.
pub struct rcu_head(());

type Func = unsafe extern "C" fn(head: *mut rcu_head);
type CallRcu = unsafe extern "C" fn(head: *mut rcu_head, func: uslub_rcu_func);
type Wait = unsafe extern "C" fn();

/// What runs after a grace period, with the record that was given.
pub type uslub_rcu_func = Option<unsafe extern "C" fn(head: *mut rcu_head)>;

/// Calls `func` with `head` once, after a grace period, on any thread; liburcu's `call_rcu`.
pub type uslub_call_rcu_fn =
    Option<unsafe extern "C" fn(head: *mut rcu_head, func: uslub_rcu_func)>;

/// Waits: for every callback that was given before (liburcu's `rcu_barrier`), or for a grace period
/// (`synchronize_rcu`).
pub type uslub_rcu_wait_fn = Option<unsafe extern "C" fn()>;

/// The functions of a grace period.
struct Functions {
    call_rcu: CallRcu,
    barrier: Wait,
    synchronize: Wait,
}

// SAFETY: who set the functions promises what they do.
unsafe impl GracePeriod for Functions {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // SAFETY: the same function, for C its argument has another name.
        unsafe {
            let func = core::mem::transmute::<RcuCallback, Func>(callback);
            (self.call_rcu)(head.cast(), Some(func));
        }
    }

    fn barrier(&self) {
        // SAFETY: may be called, by the promise of who set it.
        unsafe { (self.barrier)() };
    }

    fn synchronize(&self) {
        // SAFETY: as above.
        unsafe { (self.synchronize)() };
    }
}

/// Says how readers are waited for: with liburcu, `uslub_set_call_rcu(call_rcu, rcu_barrier,
/// synchronize_rcu)`. Once, before anything waits for a grace period. Returns 0; or -1 with ENOMEM,
/// or with EINVAL, after a message, when a function is missing or it was said before. Threads that
/// free are registered with liburcu, where its flavour demands it.
///
/// # Safety
///
/// A callback runs, and `synchronize` returns, only after all readers have left that were inside a
/// read-side section; `barrier` returns only after all callbacks that were given before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_set_call_rcu(
    call_rcu: uslub_call_rcu_fn,
    barrier: uslub_rcu_wait_fn,
    synchronize: uslub_rcu_wait_fn,
) -> c_int {
    let (Some(call_rcu), Some(barrier), Some(synchronize)) = (call_rcu, barrier, synchronize)
    else {
        invalid(format_args!("uslub_set_call_rcu: a function is missing"));
        return -1;
    };
    if !start::ready() {
        set_errno(ENOMEM);
        return -1;
    }
    let functions = Functions {
        call_rcu,
        barrier,
        synchronize,
    };
    let Some(place) = record(functions) else {
        return -1;
    };
    // SAFETY: the record is kept for ever, unless nobody has seen it.
    unsafe {
        if ALLOCATOR.set_grace_period(&*place.as_ptr()) {
            return 0;
        }
        unrecord(place);
    }
    invalid(format_args!("uslub_set_call_rcu: it was set before"));
    -1
}

/// Frees an object of a cache after a grace period; null is ignored. Where there is no memory for a
/// sheaf it waits for the grace period itself, so not from inside a read-side section.
///
/// # Safety
///
/// As for `uslub_cache_free`, but readers that are inside a read-side section may still look at the
/// object. A grace period was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_free_rcu(cache: *mut uslub_cache, object: *mut c_void) {
    // SAFETY: passed on.
    unsafe { ALLOCATOR.free_rcu(core(cache, "uslub_cache_free_rcu"), object.cast()) };
}

/// As `uslub_cache_free_rcu`, for an object of the kmalloc family, of buckets or of any cache.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kfree_rcu(object: *mut c_void) {
    if object.is_null() {
        return;
    }
    start::ready();
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_rcu(object.cast()) };
}

/// Waits until all that was given to `uslub_cache_free_rcu` and `uslub_kfree_rcu` before is free.
/// Not from inside a read-side section.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_rcu_barrier() {
    if start::ready() {
        ALLOCATOR.rcu_barrier();
    }
}
