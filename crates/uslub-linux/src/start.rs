//! Setting an allocator up: once, at the first call, from whichever thread that comes.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::Allocator;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::platform::Platform;
use uslub_core::tunables::{SetError, Tunables};

use crate::environment::environment;
use crate::{Linux, complain, sys};

/// Least address space to reserve, in bytes, where there is no limit.
const RESERVE_FLOOR: usize = 64 << 30;

/// What is done once.
///
/// | value | meaning |
/// |---|---|
/// | 0 | nobody has begun, or it failed and is asked for again |
/// | 1 | a thread is at it; others wait |
/// | 2 | done |
pub struct Once(AtomicU32);

impl Once {
    /// Not done yet.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether it is done.
    #[inline]
    pub fn is_done(&self) -> bool {
        // Acquire: pairs with the end of the work.
        self.0.load(Acquire) == 2
    }

    /// Does it, unless it is done; `work` says whether it succeeded. Returns whether it is done.
    #[cold]
    pub fn run(&self, work: impl FnOnce() -> bool) -> bool {
        loop {
            // Acquire: as above; and what a failed attempt left.
            match self.0.compare_exchange(0, 1, Acquire, Acquire) {
                Ok(_) => {
                    let done = work();
                    // Release: others see what was done.
                    self.0.store(if done { 2 } else { 0 }, Release);
                    return done;
                }
                Err(2) => return true,
                // SAFETY: lets the thread that is at it run.
                Err(_) => unsafe {
                    sys::call(libc::SYS_sched_yield, [0; 6]);
                },
            }
        }
    }
}

impl Default for Once {
    fn default() -> Self {
        Self::new()
    }
}

/// Sets an allocator up, with the tunables that an environment variable names; false when there is no memory.
///
/// # Safety
///
/// Once, and before anyone else uses the allocator.
pub unsafe fn set_up(allocator: &Allocator<Linux>, variable: &str) -> bool {
    let tunables = tunables(variable);
    allocator.platform.probe(tunables.rseq);
    allocator.keep_indices(NR_CLASSES + 1);
    // SAFETY: passed on.
    unsafe { allocator.init(reserve_bytes(&allocator.platform), tunables) }
}

/// Address space to reserve where the process has no limit: four times the machine's memory.
fn reserve_bytes(platform: &Linux) -> usize {
    (platform.memory_bytes().saturating_mul(4))
        .max(RESERVE_FLOOR)
        .next_power_of_two()
}

/// The tunables from the environment. What cannot be read is said and left out.
fn tunables(variable: &str) -> Tunables {
    let options = environment(variable).and_then(|v| core::str::from_utf8(v).ok());
    tunables_in(options.unwrap_or(""), |error| {
        complain(format_args!("{variable}: {error}"));
    })
}

/// The tunables that a text such as `rseq=0,decay_ms=50` sets, the others as by default. `refused` is told each
/// setting that makes no sense, which is left out.
///
/// ```
/// use uslub_linux::start::tunables_in;
/// let mut refused = 0;
/// let tunables = tunables_in("rseq=0,,colour=red", |_| refused += 1);
/// assert_eq!((tunables.rseq, refused), (0, 1));
/// ```
pub fn tunables_in(options: &str, mut refused: impl FnMut(SetError<'_>)) -> Tunables {
    let mut tunables = Tunables::DEFAULT;
    for setting in options.split(',').filter(|s| !s.is_empty()) {
        if let Err(error) = tunables.set(setting) {
            refused(error);
        }
    }
    tunables
}

/// Asks for and sets a limit; returns 0 or minus an error number.
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

/// What the process may have of a resource; `usize::MAX` for no limit.
pub fn limit(resource: libc::__rlimit_resource_t) -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: 0,
    };
    prlimit(0, resource as usize, core::ptr::null(), &raw mut limit);
    limit.rlim_cur as usize
}
