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
    if ONCE.is_done() {
        process::notice();
        return true;
    }
    ONCE.run(set_up)
}

/// Whether the allocator was set up.
#[inline]
pub(crate) fn is_done() -> bool {
    ONCE.is_done()
}

fn set_up() -> bool {
    // SAFETY: `ONCE` keeps all others out.
    if !unsafe { start::set_up(&ALLOCATOR, OPTIONS_VARIABLE) } {
        return false;
    }
    // The first block, so that the front has pages to open for.
    ALLOCATOR.zone.begin(&ALLOCATOR.platform);
    process::watch();
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
