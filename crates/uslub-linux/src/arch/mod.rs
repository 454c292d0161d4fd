//! What differs between processors. `x86_64.rs`, `aarch64.rs` and `riscv64.rs` have the same names.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "riscv64", path = "riscv64.rs")]
mod own;

pub(crate) use own::*;

use core::arch::{asm, naked_asm};

use crate::registers::Registers;

/// The registers at this place of the function that it is inlined into.
#[inline(always)]
pub(crate) fn here() -> Registers {
    let (pc, sp, fp): (usize, usize, usize);
    // SAFETY: reads registers only.
    unsafe {
        asm!(
            here_code!(),
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp,
            options(nomem, nostack, preserves_flags),
        );
    }
    Registers { pc, sp, fp }
}

/// The kernel's `struct sigaction`; riscv64's has no `restorer`.
#[repr(C)]
pub(crate) struct KernelAction {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    #[cfg(not(target_arch = "riscv64"))]
    restorer: usize,
    pub(crate) mask: u64,
}

impl KernelAction {
    /// The kernel's flag for `restorer`.
    pub(crate) const RESTORER: u64 = match cfg!(target_arch = "riscv64") {
        true => 0,
        false => 0x0400_0000,
    };

    pub(crate) fn new(handler: usize, flags: u64, mask: u64) -> Self {
        Self {
            handler,
            flags: flags | Self::RESTORER,
            #[cfg(not(target_arch = "riscv64"))]
            restorer: handler_returns_to(),
            mask,
        }
    }
}

/// Where the kernel lets a handler return to.
#[cfg(not(target_arch = "riscv64"))]
pub(crate) fn handler_returns_to() -> usize {
    own::restore as *const () as usize
}

/// Calls a function on another stack, which ends at `top`.
///
/// # Safety
///
/// The stack is this thread's, and long enough; the argument is one of the function's.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_on<T>(
    top: usize,
    work: unsafe extern "C" fn(*const T),
    argument: *const T,
) {
    naked_asm!(call_on_code!())
}
