//! Processes that this one becomes: fork, vfork, and the end.

use libc::c_int;
use uslub_linux::sys;

use crate::front::FRONT;
use crate::{ALLOCATOR, helper, report, start};

extern "C" fn prepare() {
    if start::ready() {
        ALLOCATOR.lock_for_fork();
    }
}

extern "C" fn parent() {
    if start::ready() {
        // SAFETY: `prepare` took them on this thread.
        unsafe { ALLOCATOR.unlock_after_fork() };
    }
}

extern "C" fn child() {
    if start::ready() {
        ALLOCATOR.platform.is_child_of_fork();
        // SAFETY: the child's only thread; `prepare` took the locks.
        unsafe { ALLOCATOR.reset_after_fork() };
        FRONT.open();
        helper::after_fork_in_child();
    }
}

/// Registers for forks.
pub(crate) fn register() {
    // SAFETY: the functions live as long as the process: the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

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

/// Ends the process at once, after the report.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    report::write();
    loop {
        // SAFETY: ends the process.
        unsafe { sys::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// [`_exit`] under its C99 name.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: passed on.
    unsafe { _exit(status) }
}

/// Runs when the process ends in the ordinary way.
extern "C" fn destructor() {
    report::write();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;
