//! The process's only allocator, set up at the first call that needs it.
//!
//! It is a static value. Before the first call it owns nothing, and its set-up allocates nothing
//! from itself or from Rust's heap. If the process has no memory for it, calls fail with an error,
//! never with a crash. [`Once`] has the states of the set-up.

use uslub_core::{Allocator, Gfp};
use uslub_linux::Linux;
use uslub_linux::start::{self, Hardened, Once};
use uslub_report::{OPTIONS_VARIABLE, TRACES_VARIABLE};

pub(crate) static ALLOCATOR: Allocator<Linux> = Allocator::new(Linux::new());
static ONCE: Once = Once::new();

/// The feature `hardened` decides where `USLUB_OPTIONS` does not.
const HARDENED: Hardened = if cfg!(feature = "hardened") {
    Hardened::ByDefault
} else {
    Hardened::OnDemand
};

uslub_core::note!(ALLOCATOR, "rust");

/// The allocator below all caches, for calls that this crate does not wrap. `None` if there is no
/// address space for it.
///
/// Its tunables come from the environment variable `USLUB_OPTIONS` (`key=value` pairs, separated by
/// commas) at the first use.
///
/// ```
/// // SAFETY: validates while this thread is the only one, and reads a name.
/// let allocator = unsafe { uslub::raw_allocator() }.expect("address space");
/// assert_eq!(allocator.validate(), Ok(()));
/// println!("per-CPU sheaves by {}", allocator.platform.mode().name());
/// ```
///
/// # Safety
///
/// The allocator trusts its caller: it frees whatever object it is told to free, also one that an
/// [`Object`](crate::Object) owns. The caller frees and moves only objects that it allocated from
/// the allocator itself, with the cache that they came from, and changes no cache of this crate.
#[inline]
pub unsafe fn raw_allocator() -> Option<&'static Allocator<Linux>> {
    allocator()
}

/// The allocator, set up. `None` if there is no address space for it.
#[inline]
pub(crate) fn allocator() -> Option<&'static Allocator<Linux>> {
    (ONCE.is_done() || ONCE.run(set_up)).then_some(&ALLOCATOR)
}

/// The allocator, if it was set up or `gfp` allows setting it up.
#[inline]
pub(crate) fn allocator_for(gfp: Gfp) -> Option<&'static Allocator<Linux>> {
    if ONCE.is_done() || gfp.may_map() {
        allocator()
    } else {
        None
    }
}

/// Whether the allocator was set up.
#[inline]
pub(crate) fn is_ready() -> bool {
    ONCE.is_done()
}

fn set_up() -> bool {
    uslub_linux::traces::prepare(TRACES_VARIABLE);
    uslub_linux::watch::look();
    // SAFETY: `ONCE` keeps all other threads out.
    let done = unsafe { start::set_up_without_trailers(&ALLOCATOR, OPTIONS_VARIABLE, HARDENED) };
    if done {
        // SAFETY: the functions live as long as the process. Without memory for the entry forks are
        // not protected; the C library's own allocator would fail as badly.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
    done
}

extern "C" fn prepare() {
    ALLOCATOR.lock_for_fork();
}

extern "C" fn parent() {
    // SAFETY: `prepare` took the locks on this thread.
    unsafe { ALLOCATOR.unlock_after_fork() };
}

extern "C" fn child() {
    ALLOCATOR.platform.is_child_of_fork();
    // SAFETY: the child's only thread; `prepare` took the locks.
    unsafe { ALLOCATOR.reset_after_fork() };
}
