//! Set-up: once, at the first call.
//!
//! The first call may come before the C library's own set-up, and on any thread. [`Once`] has the
//! states, and the rules for callers that must not wait. A constructor does the rest before `main`.

use uslub_core::memory::PageIndex;
use uslub_core::platform::PAGE_SIZE;
use uslub_linux::{start, traces};
use uslub_report::{OPTIONS_VARIABLE, TRACES_VARIABLE};

use crate::gate::FRONT;
use crate::once::ONCE;
use crate::{ALLOCATOR, fault, helper, limits, open, process, report, sandbox, spawn, system_call};

/// Whether the allocator can be used. The first call sets it up.
#[inline]
pub(crate) fn ready() -> bool {
    if ONCE.is_done() {
        process::notice();
        return true;
    }
    ONCE.run(set_up)
}

fn set_up() -> bool {
    traces::prepare(TRACES_VARIABLE);
    // SAFETY: `ONCE` keeps all other threads out.
    if !unsafe { start::set_up(&ALLOCATOR, OPTIONS_VARIABLE) } {
        return false;
    }
    // The first block, so that the fast paths have pages to open for.
    ALLOCATOR.zone.begin(&ALLOCATOR.platform);
    ask_for_huge_pages();
    process::watch();
    FRONT.set_up();
    FRONT.open();
    true
}

/// Asks for huge pages for all pages to come, because later the advice may be forbidden.
fn ask_for_huge_pages() {
    let arena = &ALLOCATOR.zone.arena;
    let first = (ALLOCATOR.tunables().huge_pages_mb as usize) << 20;
    let bytes = arena.reserved_bytes().saturating_sub(first);
    if first != 0 && bytes != 0 {
        let page = PageIndex((first / PAGE_SIZE) as u32);
        ALLOCATOR.platform.will_grow(arena.address(page), bytes);
    }
}

/// Looks up the next definition of each wrapped function.
fn resolve_next() {
    fault::prepare();
    limits::prepare();
    open::prepare();
    process::resolve_next();
    sandbox::prepare();
    spawn::prepare();
    system_call::prepare();
}

/// Runs before `main`. glibc passes the program's arguments; musl passes nothing, so registers hold
/// whatever they held.
extern "C" fn constructor(count: libc::c_int, arguments: *const *const libc::c_char) {
    ready();
    resolve_next();
    process::register();
    let has_first = !cfg!(target_env = "musl") && count > 0 && !arguments.is_null();
    // SAFETY: an array of `count` C strings that live as long as the process.
    let first = has_first.then(|| unsafe { core::ffi::CStr::from_ptr(*arguments) });
    report::prepare(first.map(core::ffi::CStr::to_bytes));
    helper::prepare();
    ALLOCATOR.platform.program_begins();
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(libc::c_int, *const *const libc::c_char) = constructor;
