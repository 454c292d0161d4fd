//! malloc and free on uslub, for programs that do not know it.
//!
//! | file | concept |
//! |---|---|
//! | `fast_path` | malloc and free as most calls see them: one restartable sequence |
//! | `gate` | what the fast paths look at, and whether it lets them in |
//! | `slow_path` | malloc and free where the fast paths could not |
//! | `malloc` | the rest of the malloc family |
//! | `info` | queries: mallinfo, malloc_info, malloc_stats, malloc_trim, mallopt |
//! | `debug`, `switch` | what a program asks about `slab_debug`; switches it |
//! | `fault` | the program's action at SIGSEGV, while guarded objects are watched |
//! | `start` | set-up, at the first call or before `main`, whichever comes first |
//! | `once` | whether the set-up was done |
//! | `early` | memory for calls from inside the set-up |
//! | `process` | fork, exit |
//! | `spawn` | vfork and clone: children that share our memory |
//! | `limits` | programs that limit their own address space |
//! | `sandbox` | programs that change their rights or forbid themselves system calls |
//! | `system_call` | system calls by number |
//! | `next` | the next definition of a wrapped function |
//! | `other` | another malloc in the process, which replaces `operator new` |
//! | `open` | dlopen, without `RTLD_DEEPBIND` |
//! | `inner_names` | the GNU library's internal names of the malloc family |
//! | `helper` | the thread that gives memory back while the program idles |
//! | `witness` | the process's questions to `uslub run` about itself |
//! | `report` | the report that the process writes at its end |
//!
//! The library owns one allocator and no thread-local memory. It never allocates from itself and is
//! never unloaded.

#![cfg_attr(panic = "abort", no_std)]
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

mod debug;
mod early;
mod fast_path;
mod fault;
mod gate;
mod helper;
mod info;
mod inner_names;
mod limits;
mod malloc;
mod next;
mod once;
mod open;
mod other;
mod process;
mod report;
mod sandbox;
mod slow_path;
mod spawn;
mod start;
mod switch;
mod system_call;
mod witness;

use uslub_core::Allocator;
use uslub_core::percpu::Table;
use uslub_linux::Linux;
pub(crate) use uslub_linux::set_errno;

use crate::gate::FRONT;

/// The only allocator.
pub(crate) static ALLOCATOR: Allocator<Linux> =
    Allocator::with_table(Linux::new(), Table::at(FRONT.regions()));

uslub_core::note!(ALLOCATOR, "malloc");

#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    uslub_linux::complain(format_args!("internal error: {info}"));
    uslub_linux::sys::abort()
}
