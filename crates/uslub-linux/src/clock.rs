//! The time and the running thread's CPU, from the kernel's own library, the vDSO.
//!
//! The C library's `clock_gettime` and `sched_getcpu` call the same functions. Other libraries wrap
//! these names (libfaketime wraps every function that tells the time). A wrapper may allocate, and
//! may return a time that stands still or jumps. So the allocator looks the kernel's functions up
//! itself, in the vDSO's symbol table. Where the vDSO lacks a function, the allocator makes the
//! system call.
//!
//! [`probe`] runs once, before a second thread uses the platform. Then any thread may ask.

use core::ffi::CStr;
use core::mem::transmute;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::arch::CLOCK_GETTIME;
use crate::sys::call;
use crate::vdso;

/// The vDSO's function for the time. Arguments: clock, result. Returns 0 for success.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;
/// The vDSO's function for the CPU. Arguments: CPU, node, unused. Returns 0 for success.
type Getcpu = unsafe extern "C" fn(*mut u32, *mut u32, usize) -> i32;

/// aarch64 has no such function.
const GETCPU: &CStr = c"__vdso_getcpu";

static CLOCK_GETTIME_AT: AtomicUsize = AtomicUsize::new(0);
static GETCPU_AT: AtomicUsize = AtomicUsize::new(0);

/// Looks the functions up in the vDSO.
pub(crate) fn probe() {
    // Relaxed, here and below: the address is all there is to know; the functions never change.
    CLOCK_GETTIME_AT.store(vdso::find(CLOCK_GETTIME).unwrap_or(0), Relaxed);
    GETCPU_AT.store(vdso::find(GETCPU).unwrap_or(0), Relaxed);
}

/// Nanoseconds on `clock`, a system clock that never goes back. Not inlined: the vDSO's frame then
/// does not come on top of a caller's frame with these locals.
#[inline(never)]
pub(crate) fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Relaxed: as in `probe`.
    let address = CLOCK_GETTIME_AT.load(Relaxed);
    // SAFETY: a nonzero address is that function's. It and the system call only write the time.
    unsafe {
        let told =
            address != 0 && transmute::<usize, ClockGettime>(address)(clock, &raw mut time) == 0;
        if !told {
            let out = &raw mut time as usize;
            call(libc::SYS_clock_gettime, [clock as usize, out, 0, 0, 0, 0]);
        }
    }
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The number of the CPU that this thread runs on; 0 if the kernel does not tell. Where the vDSO
/// has no function, `may_ask` allows the system call: a filter may forbid it.
#[inline(never)]
pub(crate) fn cpu(may_ask: bool) -> usize {
    let mut cpu = 0u32;
    // Relaxed: as in `probe`.
    let address = GETCPU_AT.load(Relaxed);
    // SAFETY: as in `nanoseconds`.
    unsafe {
        let out = &raw mut cpu;
        let told =
            address != 0 && transmute::<usize, Getcpu>(address)(out, core::ptr::null_mut(), 0) == 0;
        if !told && may_ask {
            call(libc::SYS_getcpu, [out as usize, 0, 0, 0, 0, 0]);
        }
    }
    cpu as usize
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn by_libc(clock: libc::clockid_t) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes the time only.
        assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn agrees() {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_COARSE] {
            let before = by_libc(clock);
            let now = nanoseconds(clock);
            assert!(before <= now && now <= by_libc(clock));
        }
    }

    #[test]
    fn the_kernels_functions_are_found_and_tell_what_the_c_library_tells() {
        agrees();
        probe();
        // Emulators may have no vDSO.
        if vdso::library().is_some() {
            assert_ne!(CLOCK_GETTIME_AT.load(Relaxed), 0);
        }
        agrees();
    }

    #[test]
    fn the_cpu_is_one_that_the_thread_may_run_on() {
        // SAFETY: all-zero is a valid set; the calls read and write it only.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
            move |cpu| libc::CPU_ISSET(cpu, &set)
        };
        assert!(allowed(cpu(true)));
        probe();
        assert!(allowed(cpu(true)));
    }
}
