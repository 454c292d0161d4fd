//! Grace periods by crossbeam-epoch: a reader is a pinned thread.
//!
//! The core calls [`Epoch::call`] where it may hold locks. There a thread must not pin, because
//! this may run other callbacks and may allocate. So the call only pushes a record onto a stack,
//! without a lock or memory. Calls of this crate that hold no lock *hand over*: they take the whole
//! stack and defer it in one step. Every reader of its records is pinned at this moment or has
//! already unpinned, so this is late enough for all records.
//!
//! A record belongs to a *phase*, 0 or 1. A phase has a stack, and a count of records that are not
//! done. A [`barrier`](Epoch::barrier) must not wait for records that come after it:
//!
//! | step | the barrier | new records meanwhile |
//! |---|---|---|
//! | 1 | waits until the other phase has no records | go to the current phase |
//! | 2 | makes the other phase the current one | go to the new current phase |
//! | 3 | waits until the former phase has no records | go to the current phase |
//!
//! In step 1 a thread that loaded an older value of the current phase may still add to the other
//! phase. A record passed before the barrier is in one of the phases, and the barrier waits for
//! both.

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::thread;
use std::time::Duration;

use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_linux::complain;

/// Rounds of a wait that only yield; later rounds sleep.
const YIELDS: usize = 64;
/// Sleep between two checks.
const NAP: Duration = Duration::from_micros(100);

/// Grace periods by [crossbeam-epoch](crossbeam_epoch)'s default collector: an object waits until
/// every thread that is pinned has unpinned.
///
/// It is installed at the first use, unless [`set_grace_period`](crate::set_grace_period) came
/// first. No thread is started. Objects become free in later calls of this crate or of
/// crossbeam-epoch, on any thread, and at the latest in [`rcu_barrier`](crate::rcu_barrier). A
/// thread may free while it is pinned. A barrier while pinned would wait for itself, so it panics.
///
/// In the child of a fork, threads that were pinned in the parent stay pinned for ever.
///
/// ```
/// use crossbeam_epoch as epoch;
/// use uslub::{Cache, Epoch, Object};
///
/// assert!(uslub::set_grace_period(&Epoch), "which is also what comes by itself");
/// let cache = Cache::new("read")?;
/// let reader = epoch::pin();
/// let seen = Object::into_raw(cache.alloc(42u64)?);
/// // SAFETY: freed once.
/// unsafe { cache.free_rcu(seen) };
/// // SAFETY: we were pinned before it was freed.
/// assert_eq!(unsafe { seen.read() }, 42);
/// drop(reader);
/// uslub::rcu_barrier();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Epoch;

/// A record while it waits; it has the size of an [`RcuHead`].
#[repr(C)]
struct Waiting {
    next: *mut Waiting,
    callback: RcuCallback,
}

const _: () = assert!(size_of::<Waiting>() == size_of::<RcuHead>());

struct Phase {
    /// Records not handed over yet.
    stack: AtomicPtr<Waiting>,
    /// Number of records whose callback has not returned.
    pending: AtomicUsize,
}

static PHASES: [Phase; 2] = [const {
    Phase {
        stack: AtomicPtr::new(null_mut()),
        pending: AtomicUsize::new(0),
    }
}; 2];

/// The phase of new records.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
/// Held by the barrier in progress.
static BARRIER: Mutex<()> = Mutex::new(());

// SAFETY: a stack is deferred after its records were pushed. crossbeam-epoch runs deferred work
// when all threads pinned at that time have unpinned.
unsafe impl GracePeriod for Epoch {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // SeqCst: pairs with the barrier. A barrier that begins after this call sees the count,
        // because it checks both phases.
        let phase = &PHASES[CURRENT.load(SeqCst)];
        phase.pending.fetch_add(1, SeqCst);
        let record = head.cast::<Waiting>();
        // Relaxed: only compared.
        let mut top = phase.stack.load(Relaxed);
        loop {
            // SAFETY: the record is ours until it is pushed.
            unsafe {
                record.write(Waiting {
                    next: top,
                    callback,
                })
            };
            // Release: the thread that takes the stack sees the record, and all that its owner did
            // before.
            match phase
                .stack
                .compare_exchange_weak(top, record, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    fn barrier(&self) {
        forbid_pinned("a barrier");
        // No code under this lock panics, and a panic would leave nothing half done.
        let _barrier = BARRIER
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // SeqCst: see `call`. Only the barrier changes it.
        let current = CURRENT.load(SeqCst);
        wait_for(|| is_done(&PHASES[1 - current]));
        CURRENT.store(1 - current, SeqCst);
        wait_for(|| is_done(&PHASES[current]));
    }

    fn synchronize(&self) {
        forbid_pinned("a wait for readers, as there is no memory to free an object later,");
        let done = AtomicBool::new(false);
        let flag = Shared(&raw const done);
        // SAFETY: the flag lives until it is set, because this function waits for that.
        unsafe {
            crossbeam_epoch::pin().defer_unchecked(move || {
                let flag = flag;
                // Release: pairs with the load below.
                (*flag.0).store(true, Release);
            });
        }
        // Acquire: the readers' work is done.
        wait_for(|| done.load(Acquire));
    }
}

/// A pointer that other threads may dereference.
struct Shared<T>(*const T);

// SAFETY: its maker ensures that it is valid for as long as another thread uses it.
unsafe impl<T> Send for Shared<T> {}

fn is_done(phase: &Phase) -> bool {
    // SeqCst: see `call`.
    phase.pending.load(SeqCst) == 0
}

/// Ends the process if this thread is pinned: the call would wait for this thread itself.
fn forbid_pinned(what: &str) {
    if is_pinned() {
        complain(format_args!(
            "{what} inside a read-side section would wait for ever"
        ));
        std::process::abort();
    }
}

/// Advances epochs until `done` returns true.
fn wait_for(done: impl Fn() -> bool) {
    for round in 0.. {
        hand_over();
        // Advances the epoch and runs what is due.
        crossbeam_epoch::pin().flush();
        if done() {
            return;
        }
        if round < YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }
}

/// Whether this thread is pinned.
pub(crate) fn is_pinned() -> bool {
    crossbeam_epoch::is_pinned()
}

/// Defers the records on the stacks. The caller must hold no lock.
#[inline]
pub(crate) fn hand_over() {
    for phase in &PHASES {
        // Relaxed: a hint.
        if !phase.stack.load(Relaxed).is_null() {
            defer(phase);
        }
    }
}

#[cold]
fn defer(phase: &'static Phase) {
    // Acquire: pairs with the pushes.
    let stack = phase.stack.swap(null_mut(), AcqRel);
    if stack.is_null() {
        return;
    }
    let records = Shared(stack.cast_const());
    let guard = crossbeam_epoch::pin();
    // SAFETY: the records are ours until their callbacks, on whichever thread these run.
    unsafe {
        guard.defer_unchecked(move || {
            let records = records;
            run(phase, records.0.cast_mut());
        });
    }
    // Moves the work out of this thread's own bag, which nobody would empty if the thread made no
    // further call. Also runs what is due.
    guard.flush();
}

/// Calls the callbacks of a stack after its grace period.
fn run(phase: &Phase, mut record: *mut Waiting) {
    while !record.is_null() {
        // SAFETY: the record is ours until its callback.
        let Waiting { next, callback } = unsafe { record.read() };
        // SAFETY: called once, after the grace period, with the head that was passed.
        unsafe { callback(record.cast()) };
        // SeqCst: see `call`; the callback's work comes before it.
        phase.pending.fetch_sub(1, SeqCst);
        record = next;
    }
}
