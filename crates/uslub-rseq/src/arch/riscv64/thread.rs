//! The running thread on riscv64: no thread has an area, and the kernel is never asked for one.
//!
//! The rest is what needs asm on each architecture: the thread pointer, weak symbols of the C
//! library, and system calls. Any thread may call.

use core::arch::asm;

/// Never compared with anything.
pub(crate) const SIGNATURE: u32 = 0;

/// The value "refused", in the only field that is read.
#[inline]
pub(crate) fn load(_: isize) -> u32 {
    -2i32 as u32
}

/// The thread pointer.
#[inline]
pub fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        asm!(
            "mv {pointer}, tp",
            pointer = out(reg) pointer,
            options(nostack, preserves_flags, nomem),
        );
    }
    pointer
}

/// Never used.
pub(crate) fn own_offset() -> isize {
    0
}

/// The C library's symbols are not used.
pub(crate) fn library_symbols() -> (*const isize, *const u32) {
    (core::ptr::null(), core::ptr::null())
}

/// Address of the C library's `__libc_stack_end`; null if it has none.
pub(crate) fn stack_end() -> *const *const usize {
    let end: *const *const usize;
    // SAFETY: reads an entry of the global offset table; a weak symbol, so 0 when absent.
    unsafe {
        asm!(
            ".weak __libc_stack_end",
            "2: auipc {end}, %got_pcrel_hi(__libc_stack_end)",
            "ld {end}, %pcrel_lo(2b)({end})",
            end = out(reg) end,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    end
}

/// Makes a system call; returns its result, or a negative error number. It leaves `errno` alone, so
/// a thread without thread-local memory may call it.
///
/// # Safety
///
/// As for the system call itself.
#[inline]
pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; the caller answers for the system call itself.
    unsafe {
        asm!(
            "ecall",
            in("a7") number,
            inlateout("a0") args[0] as isize => result,
            in("a1") args[1],
            in("a2") args[2],
            in("a3") args[3],
            in("a4") args[4],
            in("a5") args[5],
            options(nostack),
        );
    }
    result
}
