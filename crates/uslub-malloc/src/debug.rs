//! What a program under `slab_debug` asks of the library: who allocated, what a pointer is.
//!
//! Any thread may call. The text goes to a file descriptor, without the C library's streams.

use core::ffi::{c_int, c_void};
use core::fmt::{self, Write};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use uslub_core::slab::debug::track::Which;
use uslub_linux::sys;
use uslub_linux::traces::Lines;

use crate::ALLOCATOR;

/// Whether the end was reported: a process may come through several exits.
static DONE: AtomicBool = AtomicBool::new(false);

/// A file descriptor that text is written to.
struct Output {
    fd: c_int,
    good: bool,
}

impl Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.good &= sys::write_all(self.fd, text.as_bytes());
        Ok(())
    }
}

/// Writes where the live objects of all caches with U were allocated: a block for each caller, the
/// most objects first. Returns 0, or -1 if a write failed.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_alloc_traces(fd: c_int) -> c_int {
    let mut out = Output { fd, good: true };
    if ALLOCATOR.ready() {
        write_traces(&mut out);
    }
    if out.good { 0 } else { -1 }
}

#[cold]
#[inline(never)]
fn write_traces(out: &mut impl Write) {
    for cache in ALLOCATOR.caches() {
        let live = ALLOCATOR.info(cache).live_objs();
        if cache.layout.tracks == 0 || live == 0 {
            continue;
        }
        let _ = writeln!(out, "cache {}: {live} objects in use", cache.name());
        let _ = ALLOCATOR.write_traces(cache, Which::Alloc, out);
    }
}

/// Writes what is known of a pointer: cache, object, and with U who allocated and freed it. Returns
/// 1, or 0 for a pointer into no slab.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_dump_object(pointer: *const c_void, fd: c_int) -> c_int {
    let mut out = Output { fd, good: true };
    let known = ALLOCATOR.ready() && ALLOCATOR.write_object(pointer.cast_mut().cast(), &mut out);
    c_int::from(known)
}

/// Reports and repairs so far.
#[unsafe(no_mangle)]
pub extern "C" fn uslub_debug_errors() -> u32 {
    ALLOCATOR.debug.errors()
}

/// At the end of the process: the live objects, if they were asked for.
pub(crate) fn at_end() {
    let wanted = ALLOCATOR.ready() && ALLOCATOR.tunables().slab_debug_leaks == 1;
    // Relaxed: a process ends once, on one thread.
    if wanted && !DONE.swap(true, Relaxed) {
        write_traces(&mut Lines::new());
    }
}
