//! Setting an allocator up: once, at the first call, on whichever thread makes it.
//!
//! [`Once`] has the states and the rules for callers. [`set_up`] reads the tunables from the
//! environment, probes the machine and reserves address space.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::Allocator;
use uslub_core::debug::options::{self, SlabDebug};
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::platform::Platform;
use uslub_core::tunables::{SetError, Tunables};

use crate::environment::environment;
use crate::policy::{RESERVE_FLOOR_BYTES, RESERVE_MEMORY_FACTOR};
use crate::{Linux, complain, fault, sys};

/// Work that is done once.
///
/// | value | state |
/// |---|---|
/// | 0 | not begun, or failed: the next caller tries again |
/// | 1 | done |
/// | other | a thread does the work: its mark |
///
/// Other threads wait for this thread. Two kinds of caller do not, because the work would never end
/// for them:
///
/// - the thread itself, from inside the work: in a signal handler, or in a library that wraps a
///   function which the work calls;
/// - the child of a fork that another thread made meanwhile: the child does not have the thread
///   that does the work.
///
/// [`run`](Self::run) returns false to both at once.
pub struct Once(AtomicU64);

const DONE: u64 = 1;
/// Bits of a process id: the kernel's ids are below 2^22.
const PID_BITS: u32 = 22;

/// The calling thread's mark: its thread pointer, and its process id in the low bits.
fn mark() -> u64 {
    (uslub_rseq::thread_pointer() as u64 >> 4) << PID_BITS | u64::from(sys::getpid())
}

impl Once {
    /// Not done yet.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether the work is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the end of the work.
        self.0.load(Acquire) == DONE
    }

    /// Does the work unless it is done; `work` returns whether it succeeded. Returns whether it is
    /// done.
    #[cold]
    pub fn run(&self, work: impl FnOnce() -> bool) -> bool {
        loop {
            // Acquire: as in `is_done`, and for what a failed attempt left behind.
            match self.0.compare_exchange(0, mark(), Acquire, Acquire) {
                Ok(_) => {
                    let done = work();
                    // Release: publishes the work.
                    self.0.store(if done { DONE } else { 0 }, Release);
                    return done;
                }
                Err(DONE) => return true,
                Err(owner) if is_out_of_reach(owner) => return false,
                // The waiting thread may have a higher priority than the thread that works, so
                // yielding is not enough.
                Err(_) => sys::futex_wait_for(&0, 0, 1),
            }
        }
    }

    /// Whether the work is not done and can never end for this caller.
    #[cold]
    pub fn is_barred(&self) -> bool {
        // Acquire: as in `is_done`.
        match self.0.load(Acquire) {
            0 | DONE => false,
            owner => is_out_of_reach(owner),
        }
    }
}

/// Whether the thread with this mark is the caller itself, or belongs to another process.
fn is_out_of_reach(owner: u64) -> bool {
    let me = mark();
    let process = |mark| mark & ((1 << PID_BITS) - 1);
    owner >> PID_BITS == me >> PID_BITS || process(owner) != process(me)
}

impl Default for Once {
    fn default() -> Self {
        Self::new()
    }
}

/// Sets an allocator up, with the tunables that an environment variable holds. Returns false if
/// there is no memory, or if the system's page size is not supported, which is reported once.
///
/// # Safety
///
/// Call it once, before any other use of the allocator.
pub unsafe fn set_up(allocator: &'static Allocator<Linux>, variable: &str) -> bool {
    let (tunables, debug) = tunables_from(variable, Hardened::OnDemand);
    // SAFETY: passed on.
    unsafe { set_up_with(allocator, tunables, debug) }
}

/// As [`set_up`], for a face whose objects have no trailers. There the tunable `hardened` means
/// `slab_debug` with [`HARDENED_LETTERS`] for all caches and size classes, unless `slab_debug` is
/// set too. With `hardened` the tunable is 1 by default.
///
/// # Safety
///
/// As for [`set_up`].
pub unsafe fn set_up_without_trailers(
    allocator: &'static Allocator<Linux>,
    variable: &str,
    hardened: Hardened,
) -> bool {
    let (mut tunables, mut debug) = tunables_from(variable, hardened);
    if core::mem::take(&mut tunables.hardened) == 1 && debug == SlabDebug::NONE {
        debug = SlabDebug::new(HARDENED_LETTERS);
    }
    // SAFETY: passed on.
    unsafe { set_up_with(allocator, tunables, debug) }
}

/// What `hardened=1` debugs where objects have no trailers: pointers and freelists, red zones, and
/// the bytes of free objects.
pub const HARDENED_LETTERS: &str = "FZP";

/// Whether a face is hardened where nobody sets the tunable `hardened`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardened {
    /// Only if it is set to 1.
    OnDemand,
    /// Unless it is set to 0.
    ByDefault,
}

/// Sets an allocator up with these options.
///
/// # Safety
///
/// As for [`set_up`].
unsafe fn set_up_with(
    allocator: &'static Allocator<Linux>,
    tunables: Tunables,
    debug: SlabDebug<'static>,
) -> bool {
    // SAFETY: passed on.
    unsafe { allocator.set_slab_debug(debug) };
    if !allocator.platform.ask_page_bytes() {
        return false;
    }
    allocator.platform.probe(tunables.rseq);
    allocator.keep_indices(NR_CLASSES + 1);
    // SAFETY: passed on.
    let done = unsafe { allocator.init(reserve_bytes(&allocator.platform), tunables) };
    if done {
        fault::watch(allocator);
    }
    done
}

/// Bytes of address space to reserve without a limit: a multiple of the machine's memory.
fn reserve_bytes(platform: &Linux) -> usize {
    (platform
        .memory_bytes()
        .saturating_mul(RESERVE_MEMORY_FACTOR))
    .max(RESERVE_FLOOR_BYTES)
    .next_power_of_two()
}

/// The tunables from the environment. A setting that cannot be parsed is reported and ignored.
fn tunables_from(variable: &str, hardened: Hardened) -> (Tunables, SlabDebug<'static>) {
    let options = environment(variable).and_then(|v| core::str::from_utf8(v).ok());
    let (before, debug, behind) = options::split(options.unwrap_or(""));
    let debug = debug.map_or(SlabDebug::NONE, SlabDebug::new);
    debug.check(|letter| {
        let letters = options::LETTERS;
        complain(format_args!(
            "slab_debug option '{letter}' unknown. skipped; known are {letters}"
        ));
    });
    let mut tunables = Tunables::DEFAULT;
    tunables.hardened = u32::from(hardened == Hardened::ByDefault);
    for part in [before, behind] {
        set_in(&mut tunables, part, &mut |error| {
            complain(format_args!("{variable}: {error}"));
        });
    }
    if tunables.guard != 0 && tunables.hardened == 1 {
        complain(format_args!(
            "{variable}: guard has no effect with hardened=1, whose objects have guards of their own"
        ));
    }
    (tunables, debug)
}

/// The tunables that a text such as `rseq=0,decay_ms=50` sets; the others have their defaults. Each
/// invalid setting is passed to `refused` and ignored.
/// ```
/// use uslub_linux::start::tunables_in;
/// let mut refused = 0;
/// let tunables = tunables_in("rseq=0,,colour=red", |_| refused += 1);
/// assert_eq!((tunables.rseq, refused), (0, 1));
/// ```
pub fn tunables_in(options: &str, mut refused: impl FnMut(SetError<'_>)) -> Tunables {
    let mut tunables = Tunables::DEFAULT;
    set_in(&mut tunables, options, &mut refused);
    tunables
}

/// Applies the settings of a text; each invalid one is passed to `refused`.
fn set_in(tunables: &mut Tunables, options: &str, refused: &mut dyn FnMut(SetError<'_>)) {
    for setting in options.split(',').filter(|s| !s.is_empty()) {
        if let Err(error) = tunables.set(setting) {
            refused(error);
        }
    }
}

/// Reads and sets a limit; returns 0, or a negative error number.
pub fn prlimit(
    pid: libc::pid_t,
    resource: usize,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> isize {
    // SAFETY: the kernel checks the pointers.
    unsafe {
        sys::call(
            libc::SYS_prlimit64,
            [pid as usize, resource, new as usize, old as usize, 0, 0],
        )
    }
}

/// Most bytes that the process may write to a file; `usize::MAX` for no limit.
pub fn file_bytes() -> usize {
    limit(libc::RLIMIT_FSIZE as usize)
}

/// The process's soft limit of a resource, in the kernel's unit; `usize::MAX` for no limit. The
/// type of `RLIMIT_` numbers differs between C libraries.
pub fn limit(resource: usize) -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: 0,
    };
    prlimit(0, resource, core::ptr::null(), &raw mut limit);
    limit.rlim_cur as usize
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_work_is_done_once_and_others_wait_for_its_end() {
        let (once, runs) = (Once::new(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let work = || {
                        thread::sleep(Duration::from_millis(20));
                        // SeqCst, here and below: a test.
                        runs.fetch_add(1, SeqCst);
                        true
                    };
                    assert!(once.run(work));
                    // SeqCst: as above.
                    assert_eq!(runs.load(SeqCst), 1);
                });
            }
        });
        assert!(once.is_done() && !once.is_barred());
    }

    #[test]
    fn the_thread_that_does_it_is_told_that_it_is_not_done() {
        let once = Once::new();
        assert!(!once.is_barred());
        assert!(once.run(|| {
            assert!(once.is_barred());
            assert!(!once.run(|| unreachable!()));
            true
        }));
        assert!(once.run(|| unreachable!()));
    }

    #[test]
    fn a_failure_is_tried_again() {
        let once = Once::new();
        assert!(!once.run(|| false));
        assert!(once.run(|| true));
    }

    #[test]
    fn a_child_does_not_wait_for_a_thread_that_it_does_not_have() {
        let once = Once::new();
        let (begun, go_on) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                once.run(|| {
                    // SeqCst, here and below: a test.
                    begun.store(1, SeqCst);
                    while go_on.load(SeqCst) == 0 {
                        thread::yield_now();
                    }
                    true
                })
            });
            // SeqCst: as above.
            while begun.load(SeqCst) == 0 {
                thread::yield_now();
            }
            // SAFETY: the child only calls what is tested, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let good = once.is_barred() && !once.run(|| false);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            let mut status = -1;
            // SAFETY: writes the status only.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            // SeqCst: as above.
            go_on.store(1, SeqCst);
            assert_eq!(status, 0);
        });
    }
}
