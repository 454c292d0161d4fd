//! The fence against sequences on other CPUs.

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

/// Ends or aborts every sequence of this process that began before the call; false when the kernel
/// cannot do that.
///
/// A concurrency id cannot be told from a core, so all CPUs are fenced.
pub fn fence() -> bool {
    // Relaxed: at worst we register twice.
    if REGISTERED.load(Relaxed) && membarrier(PRIVATE_EXPEDITED_RSEQ) {
        return true;
    }
    // First use, or a child of a fork that the kernel does not know yet.
    if !membarrier(REGISTER_PRIVATE_EXPEDITED_RSEQ) {
        return false;
    }
    // Relaxed: as above.
    REGISTERED.store(true, Relaxed);
    membarrier(PRIVATE_EXPEDITED_RSEQ)
}
