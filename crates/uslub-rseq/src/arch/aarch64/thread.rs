//! The running thread on aarch64: its words lie at an offset from `tpidr_el0`.
//!
//! The rest is what needs asm on each architecture: our own area's memory, weak symbols of the C
//! library, and system calls. Any thread may call.

use core::arch::{asm, global_asm};

/// The word before each abort address: a breakpoint, so that code that runs into it traps.
pub(crate) const SIGNATURE: u32 = 0xd428_bc00;

global_asm!(
    ".pushsection .tdata.uslub_rseq, \"awT\", @progbits",
    ".p2align 5",
    ".globl uslub_rseq_area",
    ".hidden uslub_rseq_area",
    ".type uslub_rseq_area, @object",
    ".size uslub_rseq_area, 32",
    "uslub_rseq_area:",
    ".long 0, -1",
    ".quad 0",
    ".long 0, 0, 0, 0",
    ".popsection",
);

/// The word at an offset, in bytes, from the thread pointer.
#[inline]
pub(crate) fn load(at: isize) -> u32 {
    let word: u32;
    // SAFETY: a load from this thread's own area.
    unsafe {
        asm!(
            "mrs {thread}, tpidr_el0",
            "ldr {word:w}, [{thread}, {at}]",
            thread = out(reg) _,
            word = out(reg) word,
            at = in(reg) at,
            options(nostack, preserves_flags, readonly),
        );
    }
    word
}

/// The thread pointer.
#[inline]
pub fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        asm!(
            "mrs {pointer}, tpidr_el0",
            pointer = out(reg) pointer,
            options(nostack, preserves_flags, nomem),
        );
    }
    pointer
}

/// Offset of our own area from the thread pointer, in bytes.
pub(crate) fn own_offset() -> isize {
    let offset: isize;
    // SAFETY: reads an entry of the global offset table.
    unsafe {
        asm!(
            "adrp {offset}, :gottprel:uslub_rseq_area",
            "ldr {offset}, [{offset}, :gottprel_lo12:uslub_rseq_area]",
            offset = out(reg) offset,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    offset
}

/// Addresses of the C library's `__rseq_offset` and `__rseq_size`; null if it has none.
pub(crate) fn library_symbols() -> (*const isize, *const u32) {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: reads two entries of the global offset table; weak symbols, so 0 when absent.
    unsafe {
        asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "adrp {offset}, :got:__rseq_offset",
            "ldr {offset}, [{offset}, :got_lo12:__rseq_offset]",
            "adrp {size}, :got:__rseq_size",
            "ldr {size}, [{size}, :got_lo12:__rseq_size]",
            offset = out(reg) offset,
            size = out(reg) size,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    (offset, size)
}

/// Address of the C library's `__libc_stack_end`; null if it has none.
pub(crate) fn stack_end() -> *const *const usize {
    let end: *const *const usize;
    // SAFETY: reads an entry of the global offset table; a weak symbol, so 0 when absent.
    unsafe {
        asm!(
            ".weak __libc_stack_end",
            "adrp {end}, :got:__libc_stack_end",
            "ldr {end}, [{end}, :got_lo12:__libc_stack_end]",
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
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}
