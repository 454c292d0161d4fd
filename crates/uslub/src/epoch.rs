//! Grace periods by crossbeam-epoch: readers are those who are pinned.
//!
//! The core calls [`Epoch::call`] in places where locks may be held, and where pinning, which may
//! run others' callbacks and allocate, has no place. So a record is put on a stack there and no
//! more (a push without a lock or memory). The calls of this crate that hold nothing *hand over*:
//! they take the whole stack and defer it as one. Its readers are pinned at that moment or were let
//! go before, so that is late enough for all.
//!
//! A record belongs to a *phase*, 0 or 1, which has a stack and a count of the records that are not
//! done. A
//! [`barrier`](Epoch::barrier) must not be kept waiting by records that come after it:
//!
//! | step | the barrier | records that come meanwhile |
//! |---|---|---|
//! | 1 | waits until the other phase has none | go to the current phase, but for stragglers who saw an older one |
//! | 2 | makes the other phase the current one | go to that |
//! | 3 | waits until the former one has none | go to the current phase |
//!
//! A record that was given before the barrier is in one of the two, and both are waited for.

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::thread;
use std::time::Duration;

use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};
use uslub_linux::complain;

/// Rounds of a wait that only yield, before it sleeps between them.
const YIELDS: usize = 64;
/// Time to sleep between two looks.
const NAP: Duration = Duration::from_micros(100);

/// Grace periods by [crossbeam-epoch](crossbeam_epoch)'s default collector: an object waits until
/// every thread that is pinned has been unpinned.
///
/// It is installed at the first use, unless [`set_grace_period`](crate::set_grace_period) came
/// first. No thread is started: objects become free in later calls, of this crate or of
/// crossbeam-epoch, on whichever thread makes them, and at last in
/// [`rcu_barrier`](crate::rcu_barrier). Freeing while pinned is right and usual; a barrier while pinned would wait for
/// itself, and panics.
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

/// A record while it waits; as long as an [`RcuHead`].
#[repr(C)]
struct Waiting {
    next: *mut Waiting,
    callback: RcuCallback,
}

const _: () = assert!(size_of::<Waiting>() == size_of::<RcuHead>());

struct Phase {
    /// Records that were not handed over yet.
    stack: AtomicPtr<Waiting>,
    /// Records whose callback has not returned.
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
/// Held by the barrier that is under way.
static BARRIER: Mutex<()> = Mutex::new(());

// SAFETY: a stack is deferred after its records were pushed, and crossbeam-epoch calls what was
// deferred when all who were pinned then are not any more.
unsafe impl GracePeriod for Epoch {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        // SeqCst: a barrier that begins after this call sees the count or turned the phase before.
        let phase = &PHASES[CURRENT.load(SeqCst)];
        phase.pending.fetch_add(1, SeqCst);
        let record = head.cast::<Waiting>();
        // Relaxed: only compared.
        let mut top = phase.stack.load(Relaxed);
        loop {
            // SAFETY: ours until it is pushed.
            unsafe {
                record.write(Waiting {
                    next: top,
                    callback,
                })
            };
            // Release: who takes the stack sees the record, and what was done before it was given.
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
        // A panic elsewhere in here is not possible, and would leave nothing half done.
        let _barrier = BARRIER
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // SeqCst: see `call`. Only we change it.
        let current = CURRENT.load(SeqCst);
        wait_for(|| is_done(&PHASES[1 - current]));
        CURRENT.store(1 - current, SeqCst);
        wait_for(|| is_done(&PHASES[current]));
    }

    fn synchronize(&self) {
        forbid_pinned("a wait for readers, as there is no memory to free an object later,");
        let done = AtomicBool::new(false);
        let flag = Shared(&raw const done);
        // SAFETY: the flag lives until it is set, which is waited for.
        unsafe {
            crossbeam_epoch::pin().defer_unchecked(move || {
                let flag = flag;
                // Release: pairs with the wait.
                (*flag.0).store(true, Release);
            });
        }
        // Acquire: the readers' work is done.
        wait_for(|| done.load(Acquire));
    }
}

/// A pointer that other threads may follow.
struct Shared<T>(*const T);

// SAFETY: its maker says how long it may be followed, and by whom.
unsafe impl<T> Send for Shared<T> {}

fn is_done(phase: &Phase) -> bool {
    // SeqCst: see `call`.
    phase.pending.load(SeqCst) == 0
}

/// Ends the process: what comes would wait for this thread itself.
fn forbid_pinned(what: &str) {
    if is_pinned() {
        complain(format_args!(
            "{what} inside a read-side section would wait for ever"
        ));
        std::process::abort();
    }
}

/// Drives epochs on until `done`.
fn wait_for(done: impl Fn() -> bool) {
    for round in 0.. {
        hand_over();
        // Lets epochs pass and runs what is due.
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

/// Defers the records that wait for that. Not with locks held.
#[inline]
pub(crate) fn hand_over() {
    for phase in &PHASES {
        // Relaxed: a glance.
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
    // SAFETY: the records are ours until their callbacks, on whichever thread these are called.
    unsafe {
        guard.defer_unchecked(move || {
            let records = records;
            run(phase, records.0.cast_mut());
        });
    }
    // Out of this thread's own bag, which nobody would empty if the thread did no more; and runs
    // what is due.
    guard.flush();
}

/// Calls the callbacks of a stack whose grace period is over.
fn run(phase: &Phase, mut record: *mut Waiting) {
    while !record.is_null() {
        // SAFETY: ours until its callback.
        let Waiting { next, callback } = unsafe { record.read() };
        // SAFETY: once, after the grace period, and with the head that was given.
        unsafe { callback(record.cast()) };
        // SeqCst: see `call`; what the callback did comes before it.
        phase.pending.fetch_sub(1, SeqCst);
        record = next;
    }
}
