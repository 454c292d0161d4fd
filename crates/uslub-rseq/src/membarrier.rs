//! The fence against sequences on other CPUs.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

const PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
const REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Made directly: threads that have no `errno` of their own call it.
#[cfg(target_arch = "x86_64")]
fn membarrier(command: libc::c_int) -> bool {
    let result: isize;
    // SAFETY: the call takes numbers only.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_membarrier as isize => result,
            in("rdi") command as isize,
            in("rsi") 0,
            in("rdx") 0,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_arch = "x86_64"))]
fn membarrier(_: libc::c_int) -> bool {
    false
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
