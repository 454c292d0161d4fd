//! The fence against sequences on other CPUs: the system call `membarrier`.
//!
//! A process must register before it may fence. [`fence`] registers on its first call, and again in
//! the child of a fork, which the kernel does not know. Any thread may call.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::thread::call;

const PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;

static REGISTERED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { call(libc::SYS_membarrier, [command as usize, 0, 0, 0, 0, 0]) == 0 }
}

/// Completes or aborts every sequence of this process that began before the call. False if the
/// kernel cannot do this.
///
/// A concurrency id does not tell the CPU, so all CPUs are fenced.
pub fn fence() -> bool {
    // Relaxed: at worst the process registers twice.
    if REGISTERED.load(Relaxed) && membarrier(PRIVATE_EXPEDITED_RSEQ) {
        return true;
    }
    // First call, or first call in the child of a fork.
    if !membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ) {
        return false;
    }
    // Relaxed: as above.
    REGISTERED.store(true, Relaxed);
    membarrier(PRIVATE_EXPEDITED_RSEQ)
}
