//! An area of our own, for threads of programs whose C library registers none.
//!
//! It lies in thread-local memory of a fixed place, so its offset from the thread pointer is the same in
//! every thread, as with the C library's. A thread that is not registered has a negative
//! `cpu_id` in it, which every sequence tests; its slow path registers it ([`register`]).
//!
//! | `cpu_id` | the thread is |
//! |---|---|
//! | -1 | not registered yet |
//! | -2 | not to be registered: the kernel refused |
//! | other | registered |

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
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

/// Bytes of the area, as registered.
#[cfg(target_arch = "x86_64")]
const BYTES: usize = 32;
/// The word before each abort address.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "x86_64")]
const REFUSED: u32 = -2i32 as u32;

/// Offset of our area from the thread pointer.
#[cfg(target_arch = "x86_64")]
pub(crate) fn offset() -> isize {
    let offset: isize;
    // SAFETY: reads an entry of the global offset table.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + uslub_rseq_area@GOTTPOFF]",
            offset = out(reg) offset,
            options(nostack, preserves_flags, pure, readonly),
        );
    }
    offset
}

/// Registers this thread's own area; false when the kernel refuses, which it is not asked again for this thread.
#[cfg(target_arch = "x86_64")]
pub(crate) fn register() -> bool {
    let area: usize;
    // SAFETY: the first word of the thread's control block is its own address.
    unsafe {
        core::arch::asm!(
            "mov {area}, fs:[0]",
            area = out(reg) area,
            options(nostack, preserves_flags, readonly),
        );
    }
    let area = area.wrapping_add_signed(offset());
    let result: isize;
    // SAFETY: the area is this thread's, of that size and alignment, and lives as long as the thread.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_rseq as isize => result,
            in("rdi") area,
            in("rsi") BYTES,
            in("rdx") 0,
            in("r10") SIGNATURE,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
        if result != 0 {
            // Not registered, so the area is ours to write.
            (area as *mut u32).add(1).write_volatile(REFUSED);
        }
    }
    result == 0
}
