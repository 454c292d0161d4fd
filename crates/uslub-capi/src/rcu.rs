//! Frees after a grace period, which liburcu or a similar library supplies.
//!
//! The grace period is not set at first, and is set once for the life of the process. It must be
//! set before the first call that frees after a grace period.

use core::ffi::{c_int, c_void};

use libc::ENOMEM;
use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};

use crate::cache::{core, uslub_cache};
use crate::{ALLOCATOR, invalid, record, set_errno, start, unrecord};

/// liburcu's record of a callback; two words.
pub struct rcu_head(());

type Func = unsafe extern "C" fn(head: *mut rcu_head);
type CallRcu = unsafe extern "C" fn(head: *mut rcu_head, func: uslub_rcu_func);
type Wait = unsafe extern "C" fn();

/// Runs after a grace period, with the record that was passed.
pub type uslub_rcu_func = Option<unsafe extern "C" fn(head: *mut rcu_head)>;

/// Calls `func` with `head` once, after a grace period, on any thread: liburcu's `call_rcu`.
pub type uslub_call_rcu_fn =
    Option<unsafe extern "C" fn(head: *mut rcu_head, func: uslub_rcu_func)>;

/// Waits for all callbacks passed before (liburcu's `rcu_barrier`), or for a grace period
/// (`synchronize_rcu`).
pub type uslub_rcu_wait_fn = Option<unsafe extern "C" fn()>;

/// The functions of a grace period.
struct Functions {
    call_rcu: CallRcu,
    barrier: Wait,
    synchronize: Wait,
}

// SAFETY: the caller of `uslub_set_call_rcu` promises what the functions do.
unsafe impl GracePeriod for Functions {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // SAFETY: the same function; in C its argument has another type's name.
        unsafe {
            let func = core::mem::transmute::<RcuCallback, Func>(callback);
            (self.call_rcu)(head.cast(), Some(func));
        }
    }

    fn barrier(&self) {
        // SAFETY: the caller of `uslub_set_call_rcu` promises that it may be called.
        unsafe { (self.barrier)() };
    }

    fn synchronize(&self) {
        // SAFETY: as above.
        unsafe { (self.synchronize)() };
    }
}

/// Sets the functions that wait for readers. With liburcu: `uslub_set_call_rcu(call_rcu,
/// rcu_barrier, synchronize_rcu)`. Call it once, before anything waits for a grace period. Returns
/// 0. Returns -1 with ENOMEM. Returns -1 with EINVAL, after a message, if a function is missing or
/// the functions were set before. Threads that free must be registered with liburcu if its flavour
/// demands this.
///
/// # Safety
///
/// A callback runs, and `synchronize` returns, only after all readers have left that were inside a
/// read-side section. `barrier` returns only after all callbacks passed before.
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
    // SAFETY: the record is never freed, unless nobody has seen it.
    unsafe {
        if ALLOCATOR.set_grace_period(&*place.as_ptr()) {
            return 0;
        }
        unrecord(place);
    }
    invalid(format_args!("uslub_set_call_rcu: it was set before"));
    -1
}

/// Frees an object of a cache after a grace period; null is ignored. Without memory to let the
/// object wait, it waits for the grace period itself. So it must not be called inside a read-side
/// section.
///
/// # Safety
///
/// As for `uslub_cache_free`, but readers inside a read-side section may still read the object. A
/// grace period was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_cache_free_rcu(cache: *mut uslub_cache, object: *mut c_void) {
    // SAFETY: passed on.
    unsafe { ALLOCATOR.free_rcu(core(cache, "uslub_cache_free_rcu"), object.cast()) };
}

/// As `uslub_cache_free_rcu`, for an object of the kmalloc family, of buckets or of any cache.
///
/// # Safety
///
/// As for `uslub_cache_free_rcu`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uslub_kfree_rcu(object: *mut c_void) {
    if object.is_null() {
        return;
    }
    start::ready();
    // SAFETY: passed on.
    unsafe { ALLOCATOR.kfree_rcu(object.cast()) };
}

/// Waits until all objects given to `uslub_cache_free_rcu` and `uslub_kfree_rcu` before are free.
/// It must not be called inside a read-side section.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_rcu_barrier() {
    if start::ready() {
        ALLOCATOR.rcu_barrier();
    }
}
