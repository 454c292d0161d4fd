//! Constructors: closures behind the core's plain function, and their panics.
//!
//! The core calls a constructor deep inside an allocation, where nothing may unwind. So each call
//! of this crate that may construct registers a [`Call`] for its thread. The constructor's panic
//! waits in it until the core has returned. The constructor acts on the state of the thread's call:
//!
//! - There is no call, it is of another cache, or it may not wait: the constructor does nothing,
//!   and the core continues with the objects that it has.
//! - The call already has a panic: the constructor does nothing.
//! - Otherwise the closure runs; its panic is caught and stored.
//!
//! So user code runs only in calls that allocate. It never runs in a free, in a signal handler's
//! allocation (`GFP_NOSPIN`) or under a lock.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use uslub_core::Gfp;
use uslub_core::args::Ctor;

/// A closure, and the function that drops it when its type is not known.
#[repr(C)]
struct Record<F> {
    release: unsafe fn(*const ()),
    construct: F,
}

/// Makes a core constructor from a closure. [`release`] drops the closure.
pub(crate) fn make<F>(construct: F) -> Ctor
where
    F: Fn(*mut u8) + Send + Sync + 'static,
{
    let record = Box::new(Record {
        release: drop_record::<F>,
        construct,
    });
    Ctor {
        call: call::<F>,
        data: Box::into_raw(record).cast_const().cast(),
    }
}

/// Drops the closure of a constructor.
///
/// # Safety
///
/// `ctor` came from [`make`], and no cache uses it any longer.
pub(crate) unsafe fn release(ctor: Ctor) {
    // SAFETY: the record begins with the function, whatever the closure's type.
    unsafe {
        let release = *ctor.data.cast::<unsafe fn(*const ())>();
        release(ctor.data);
    }
}

unsafe fn drop_record<F>(data: *const ()) {
    // SAFETY: from `make::<F>`; the caller gives it up.
    drop(unsafe { Box::from_raw(data.cast_mut().cast::<Record<F>>()) });
}

unsafe fn call<F: Fn(*mut u8)>(data: *const (), object: *mut u8) -> bool {
    // SAFETY: from `make::<F>`; the calling cache keeps it.
    let record = unsafe { &*data.cast::<Record<F>>() };
    // SAFETY: a call lives as long as it is the thread's current call.
    let Some(call) = (unsafe { CALL.get().as_ref() }) else {
        return false;
    };
    if call.data != data || !call.may_construct || call.has_panicked.get() {
        return false;
    }
    match catch_unwind(AssertUnwindSafe(|| (record.construct)(object))) {
        Ok(()) => true,
        Err(panic) => {
            call.has_panicked.set(true);
            call.panic.set(Some(panic));
            false
        }
    }
}

/// The payload of a constructor's panic.
pub(crate) type Panic = Box<dyn Any + Send>;

/// A call that may construct objects.
struct Call {
    /// Identifies the constructor.
    data: *const (),
    may_construct: bool,
    has_panicked: Cell<bool>,
    panic: Cell<Option<Panic>>,
    outer: *const Call,
}

thread_local! {
    /// The innermost call of this thread; it has no destructor.
    static CALL: Cell<*const Call> = const { Cell::new(ptr::null()) };
}

/// Runs `work` as a call in which `ctor` may run, if `gfp` allows waiting. Returns the result of
/// `work`, and the constructor's panic.
pub(crate) fn during<R>(ctor: Ctor, gfp: Gfp, work: impl FnOnce() -> R) -> (R, Option<Panic>) {
    let call = Call {
        data: ctor.data,
        may_construct: gfp.may_spin(),
        has_panicked: Cell::new(false),
        panic: Cell::new(None),
        outer: CALL.get(),
    };
    CALL.set(&raw const call);
    // The core does not unwind.
    let result = work();
    CALL.set(call.outer);
    (result, call.panic.take())
}

/// Runs a constructor on fresh memory, and resumes its panic.
pub(crate) fn construct(ctor: Ctor, object: *mut u8) {
    // SAFETY: the caller's cache has this constructor, and the memory fits its objects.
    let (_, panic) = during(ctor, Gfp::KERNEL, || unsafe {
        (ctor.call)(ctor.data, object)
    });
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}
