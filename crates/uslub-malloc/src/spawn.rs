//! Children that share our memory: `vfork` and its like.
//!
//! Such a child runs in its parent's memory and sees its parent's rseq area, but the kernel does not
//! know it: no sequence of it would be restarted. While it lives the fast paths are closed.

use crate::ALLOCATOR;
use crate::front::FRONT;

/// Runs before the process that calls `vfork` stands still.
extern "C" fn vfork_begins() {
    ALLOCATOR.platform.vfork_begins();
    FRONT.close();
}

/// Runs in the parent when the child is gone, or was never there.
extern "C" fn vfork_ends() {
    if ALLOCATOR.platform.vfork_ends() && ALLOCATOR.ready() {
        FRONT.open();
    }
}

/// `vfork`: the child shares our memory and its parent's thread area without being registered
/// with the kernel, so per-CPU slots are closed to it until it is gone.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {begins}",
        "add rsp, 8",
        // The child returns first and reuses the stack: the return address waits in a register.
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test eax, eax",
        "je 60f",
        "push rax",
        "call {ends}",
        "pop rax",
        "cmp eax, -4095",
        "jae 70f",
        "60:",
        "ret",
        "70:",
        "neg eax",
        "push rax",
        "call {errno}",
        "pop rcx",
        "mov [rax], ecx",
        "mov eax, -1",
        "ret",
        begins = sym vfork_begins,
        ends = sym vfork_ends,
        errno = sym libc::__errno_location,
        number = const libc::SYS_vfork,
    )
}

/// `vfork`: as on x86-64. The child's return address is in a register, which the kernel keeps for the parent.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {begins}",
        "ldp x29, x30, [sp], #16",
        "mov x0, #{flags}",
        "mov x1, xzr",
        "mov x2, xzr",
        "mov x3, xzr",
        "mov x4, xzr",
        "mov x8, #{number}",
        "svc 0",
        "cbz w0, 60f",
        "stp x0, x30, [sp, #-16]!",
        "bl {ends}",
        "ldp x0, x30, [sp], #16",
        "cmn w0, #4095",
        "b.hs 70f",
        "60:",
        "ret",
        "70:",
        "neg w0, w0",
        "stp x0, x30, [sp, #-16]!",
        "bl {errno}",
        "ldp x1, x30, [sp], #16",
        "str w1, [x0]",
        "mov w0, #-1",
        "ret",
        begins = sym vfork_begins,
        ends = sym vfork_ends,
        errno = sym libc::__errno_location,
        flags = const libc::CLONE_VFORK | libc::CLONE_VM | libc::SIGCHLD,
        number = const libc::SYS_clone,
    )
}
