//! Constructors: closures behind the core's plain function, and what becomes of their panics.
//!
//! The core calls a constructor from deep inside an allocation, where nothing may unwind. So a call
//! of this crate that may construct leaves a [`Call`] where the thread finds it, and the
//! constructor's panic waits in it until the core has returned:
//!
//! | the thread's call | what the constructor does |
//! |---|---|
//! | none, of another cache, or one that may not wait | nothing: the core goes on with the objects it has |
//! | has a panic already | nothing |
//! | otherwise | runs; its panic is caught and kept |
//!
//! So user code runs in the calls that ask for objects only, never in a free, a signal handler's
//! allocation (`GFP_NOSPIN`) or under a lock.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use uslub_core::Gfp;
use uslub_core::args::Ctor;

/// A closure, and how to drop it when its type is forgotten.
#[repr(C)]
struct Record<F> {
    release: unsafe fn(*const ()),
    construct: F,
}

/// Makes a core constructor of a closure; [`release`] drops it.
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
/// `ctor` came from [`make`], and no cache uses it any more.
pub(crate) unsafe fn release(ctor: Ctor) {
    // SAFETY: the record begins with the function, whatever its closure.
    unsafe {
        let release = *ctor.data.cast::<unsafe fn(*const ())>();
        release(ctor.data);
    }
}

unsafe fn drop_record<F>(data: *const ()) {
    // SAFETY: from `make::<F>`, and given up by the caller.
    drop(unsafe { Box::from_raw(data.cast_mut().cast::<Record<F>>()) });
}

unsafe fn call<F: Fn(*mut u8)>(data: *const (), object: *mut u8) -> bool {
    // SAFETY: from `make::<F>`; the cache that calls keeps it.
    let record = unsafe { &*data.cast::<Record<F>>() };
    // SAFETY: calls live as long as they are the thread's.
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

/// What a constructor threw.
pub(crate) type Panic = Box<dyn Any + Send>;

/// A call that may construct objects.
struct Call {
    /// Which constructor's.
    data: *const (),
    may_construct: bool,
    has_panicked: Cell<bool>,
    panic: Cell<Option<Panic>>,
    outer: *const Call,
}

thread_local! {
    /// The innermost call of this thread; without a destructor.
    static CALL: Cell<*const Call> = const { Cell::new(ptr::null()) };
}

/// Does `work` as a call in which `ctor` may run if `gfp` allows waiting; returns what it gave, and
/// the panic of the constructor.
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

/// Runs a constructor on fresh memory; its panic goes on from here.
pub(crate) fn construct(ctor: Ctor, object: *mut u8) {
    // SAFETY: the caller's cache has the constructor, and its objects fit.
    let (_, panic) = during(ctor, Gfp::KERNEL, || unsafe {
        (ctor.call)(ctor.data, object)
    });
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}
