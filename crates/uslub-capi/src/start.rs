//! Set-up, at the first call or before `main`, whichever comes first; and forks.
//!
//! [`Once`] has the states of the set-up. Around a fork, `prepare` takes the locks; `parent`
//! releases them, and `child` resets them.

use uslub_linux::start::{self, Hardened, Once};
use uslub_linux::{traces, watch};
use uslub_report::{OPTIONS_VARIABLE, TRACES_VARIABLE};

use crate::ALLOCATOR;

/// The feature `hardened` decides where `USLUB_OPTIONS` does not.
const HARDENED: Hardened = if cfg!(feature = "hardened") {
    Hardened::ByDefault
} else {
    Hardened::OnDemand
};

static ONCE: Once = Once::new();

/// Whether the allocator can be used. The first call sets it up.
#[inline]
pub(crate) fn ready() -> bool {
    ONCE.is_done() || ONCE.run(set_up)
}

fn set_up() -> bool {
    traces::prepare(TRACES_VARIABLE);
    watch::look();
    // SAFETY: `ONCE` keeps all other threads out.
    unsafe { start::set_up_without_trailers(&ALLOCATOR, OPTIONS_VARIABLE, HARDENED) }
}

extern "C" fn prepare() {
    if ready() {
        ALLOCATOR.lock_for_fork();
    }
}

extern "C" fn parent() {
    if ready() {
        // SAFETY: `prepare` took the locks on this thread.
        unsafe { ALLOCATOR.unlock_after_fork() };
    }
}

extern "C" fn child() {
    if ready() {
        ALLOCATOR.platform.is_child_of_fork();
        // SAFETY: the child's only thread; `prepare` took the locks.
        unsafe { ALLOCATOR.reset_after_fork() };
    }
}

/// Runs before `main`.
extern "C" fn constructor() {
    ready();
    // SAFETY: the library is never unloaded, so the functions live as long as the process.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
