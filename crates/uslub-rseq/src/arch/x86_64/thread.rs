//! The running thread on x86-64: its words lie at `fs:[offset]`.
//!
//! The rest is what needs asm on each architecture: our own area's memory, weak symbols of the C
//! library, and system calls. Any thread may call.

use core::arch::{asm, global_asm};

/// The word before each abort address, which the kernel checks.
pub(crate) const SIGNATURE: u32 = 0x5305_3053;

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
            "mov {word:e}, fs:[{at}]",
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
    // SAFETY: the first word of the thread's control block is its own address.
    unsafe {
        asm!(
            "mov {pointer}, fs:[0]",
            pointer = out(reg) pointer,
            options(nostack, preserves_flags, readonly),
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
            "mov {offset}, qword ptr [rip + uslub_rseq_area@GOTTPOFF]",
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
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
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
            "mov {end}, qword ptr [rip + __libc_stack_end@GOTPCREL]",
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
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
