//! Setting up: once, at the first call, which may come before the C library's own
//! set-up and from any thread.

use uslub_linux::start::{self, Once};
use uslub_report::OPTIONS_VARIABLE;

use crate::front::FRONT;
use crate::{ALLOCATOR, helper, limits, open, process, report, sandbox, spawn, system_call};

static ONCE: Once = Once::new();

/// Whether the allocator can be used; sets it up when it is not.
#[inline]
pub(crate) fn ready() -> bool {
    ONCE.is_done() || ONCE.run(set_up)
}

fn set_up() -> bool {
    // SAFETY: `ONCE` keeps all others out.
    if !unsafe { start::set_up(&ALLOCATOR, OPTIONS_VARIABLE) } {
        return false;
    }
    // The first block, so that the front has pages to open for.
    ALLOCATOR.zone.begin(&ALLOCATOR.platform);
    FRONT.set_up();
    FRONT.open();
    true
}

/// Looks up the next definition of each function that is wrapped.
fn resolve_next() {
    limits::prepare();
    open::prepare();
    process::resolve_next();
    sandbox::prepare();
    spawn::prepare();
    system_call::prepare();
}

/// Runs before `main`.
extern "C" fn constructor() {
    ready();
    resolve_next();
    process::register();
    report::prepare();
    helper::prepare();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
