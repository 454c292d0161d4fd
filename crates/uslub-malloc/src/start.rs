//! Setting up: once, at the first call, which may come before the C library's own
//! set-up and from any thread.

use uslub_linux::start::{self, Once};
use uslub_report::OPTIONS_VARIABLE;

use crate::front::FRONT;
use crate::{ALLOCATOR, helper, process, report};

static ONCE: Once = Once::new();

/// Whether the allocator can be used; sets it up when it is not.
#[inline]
pub(crate) fn ready() -> bool {
    ONCE.is_done() || ONCE.run(set_up)
}

/// Whether the caller comes from inside the set-up, so that it must not wait for its end.
#[cold]
pub(crate) fn is_barred() -> bool {
    ONCE.is_barred()
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

/// Runs before `main`.
extern "C" fn constructor() {
    ready();
    process::register();
    report::prepare();
    helper::prepare();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
