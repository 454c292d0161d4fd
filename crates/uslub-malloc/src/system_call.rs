//! `syscall`: system calls that the program makes by number.
//!
//! For an ordinary call, [`before`](task::before) checks the number. Then the wrapper jumps to the
//! next definition with all registers and the stack unchanged. Calls that make a task enter the
//! kernel from here:
//!
//! | task | before | after, in the parent | after, in the child |
//! |---|---|---|---|
//! | shares memory, waited for | the fast paths close | they open | nothing |
//! | shares memory, not waited for | the fast paths close | they stay closed | nothing |
//! | a fork | the locks are taken | they are released | they are reset |
//! | a thread | nothing | nothing | nothing |
//!
//! A child that shares memory without its own stack returns first and reuses its parent's stack. So
//! the return address stays in a register, which the kernel keeps for both. A child with its own
//! stack on x86-64 returns to the address at the start of this stack, as with the GNU library's
//! `syscall`.

use crate::next::{self, Next};

static SYSCALL: Next = Next::new(c"syscall");

/// Looks up the next definition.
pub(crate) fn prepare() {
    next::resolve(&[&SYSCALL]);
}

/// The number and the arguments of a call, except the last argument.
type Frame = [usize; 6];

mod task {
    use core::ffi::c_void;

    use super::asm::{fork_own, fork_same, unwaited_own, unwaited_same, waited_own, waited_same};
    use super::{Frame, SYSCALL, asm};
    use crate::spawn::{self, Kind};
    use crate::{ALLOCATOR, process, sandbox};

    /// Minimum length of `clone3`'s record in bytes, and the positions of its fields in words.
    const LEAST_BYTES: usize = 64;
    const FLAGS: usize = 0;
    const STACK: usize = 5;
    const THREAD: usize = 7;

    /// Positions of `clone`'s arguments in a frame.
    #[cfg(target_arch = "x86_64")]
    mod place {
        pub(super) const CHILD_TID: usize = 4;
        pub(super) const THREAD: usize = 5;
    }
    #[cfg(not(target_arch = "x86_64"))]
    mod place {
        pub(super) const THREAD: usize = 4;
        pub(super) const CHILD_TID: usize = 5;
    }

    /// A task that a call makes.
    struct Task {
        kind: Kind,
        flags: u64,
        has_stack: bool,
    }

    /// The task that a call makes; `None` if it makes none.
    ///
    /// # Safety
    ///
    /// The frame is that of a call.
    unsafe fn task(frame: &mut Frame) -> Option<Task> {
        let (flags, stack, thread) = match frame[0] as libc::c_long {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => (0, 0, 0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork => ((libc::CLONE_VM | libc::CLONE_VFORK) as u64, 0, 0),
            // The kernel reads 32 bits.
            libc::SYS_clone => (u64::from(frame[1] as u32), frame[2], frame[place::THREAD]),
            libc::SYS_clone3 if frame[1] != 0 && frame[2] >= LEAST_BYTES => {
                let record = frame[1] as *const u64;
                // SAFETY: the caller passes a record of this length.
                let word = |at| unsafe { record.add(at).read_unaligned() };
                // The kernel reads two arguments. The other registers must not confuse the hooks.
                frame[3..].fill(0);
                (word(FLAGS), word(STACK) as usize, word(THREAD) as usize)
            }
            _ => return None,
        };
        // SAFETY: passed on.
        unsafe { spawn::mark_unregistered(flags, thread) };
        Some(Task {
            kind: Kind::of(flags),
            flags,
            has_stack: stack != 0,
        })
    }

    /// Runs before each call; returns the address at which the call continues.
    pub(super) unsafe extern "C" fn before(frame: &mut Frame) -> *const c_void {
        let number = frame[0] as libc::c_long;
        sandbox::before_system_call(number, &frame[1..]);
        // SAFETY: passed on.
        let task = unsafe { task(frame) }.filter(|task| task.kind != Kind::Thread);
        let Some(task) = task else {
            let next = SYSCALL.get();
            return next.map_or(asm::ordinary as *const c_void, |next| next.as_ptr());
        };
        match task.kind {
            Kind::Fork => process::before_raw_fork(),
            Kind::Waited | Kind::Unwaited => spawn::sharing_begins(),
            Kind::Thread => {}
        }
        if task.kind == Kind::Unwaited
            && number == libc::SYS_clone
            && let Some(word) = spawn::word_for(task.flags)
        {
            frame[1] |= libc::CLONE_CHILD_CLEARTID as usize;
            frame[place::CHILD_TID] = word.as_ptr() as usize;
        }
        let entry: unsafe extern "C" fn() = match (task.kind, task.has_stack) {
            (Kind::Waited, false) => waited_same,
            (Kind::Waited, true) => waited_own,
            (Kind::Unwaited, false) => unwaited_same,
            (Kind::Unwaited, true) => unwaited_own,
            (_, false) => fork_same,
            (_, true) => fork_own,
        };
        entry as *const c_void
    }

    pub(super) extern "C" fn after_waited(_result: isize, _child_tid: usize) {
        spawn::sharing_ends();
    }

    pub(super) extern "C" fn after_unwaited(result: isize, child_tid: usize) {
        spawn::sharing_goes_on(result > 0, ALLOCATOR.platform.watched(child_tid));
    }

    pub(super) extern "C" fn after_fork(result: isize, _child_tid: usize) {
        process::after_raw_fork(result);
    }
}

#[cfg(target_arch = "x86_64")]
mod asm {
    use core::arch::naked_asm;

    use super::task::{after_fork, after_unwaited, after_waited, before};

    /// Moves the C library's argument registers to the kernel's.
    macro_rules! to_kernel {
        () => {
            "mov rax, rdi
             mov rdi, rsi
             mov rsi, rdx
             mov rdx, rcx
             mov r10, r8
             mov r8, r9"
        };
    }

    /// Returns the kernel's result (`rax`) as the C library does.
    macro_rules! to_library {
        () => {
            "cmp rax, -4095
             jae 70f
             ret
             70:
             neg eax
             push rax
             call {errno}
             pop rcx
             mov [rax], ecx
             mov rax, -1
             ret"
        };
    }

    /// Makes any system call.
    ///
    /// # Safety
    ///
    /// As for the system call.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub unsafe extern "C" fn syscall(number: libc::c_long) -> libc::c_long {
        naked_asm!(
            // The function is variadic, so `al` may matter.
            "push rax",
            "push r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "push rdi",
            "mov rdi, rsp",
            "call {before}",
            "mov r11, rax",
            "pop rdi",
            "pop rsi",
            "pop rdx",
            "pop rcx",
            "pop r8",
            "pop r9",
            "pop rax",
            "jmp r11",
            before = sym before,
        )
    }

    /// A call that makes no task, if there is no next definition.
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn ordinary() {
        naked_asm!(
            to_kernel!(),
            "mov r9, [rsp + 8]",
            "syscall",
            to_library!(),
            errno = sym libc::__errno_location,
        )
    }

    /// Calls that make a task: the code of both tasks after the call, the child's code if it
    /// differs, and the function that the parent calls.
    macro_rules! makes {
        ($($name:ident: $after:ident, $both:literal, $child:literal;)*) => {$(
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() {
                naked_asm!(
                    to_kernel!(),
                    "pop r9",
                    "syscall",
                    $both,
                    "push rax",
                    "mov rdi, rax",
                    "mov rsi, r10",
                    "call {after}",
                    "pop rax",
                    to_library!(),
                    "60:",
                    $child,
                    after = sym $after,
                    errno = sym libc::__errno_location,
                )
            }
        )*};
    }

    makes! {
        waited_same: after_waited, "push r9\ntest rax, rax\njz 60f", "ret";
        waited_own: after_waited, "test rax, rax\njz 60f\npush r9", "ret";
        unwaited_same: after_unwaited, "push r9\ntest rax, rax\njz 60f", "ret";
        unwaited_own: after_unwaited, "test rax, rax\njz 60f\npush r9", "ret";
        fork_same: after_fork, "push r9", "ud2";
        fork_own: after_fork, "test rax, rax\njz 60f\npush r9",
            "mov r9, rsp
             and rsp, -16
             push r9
             push r9
             xor edi, edi
             call {after}
             pop r9
             pop rsp
             xor eax, eax
             ret";
    }
}

#[cfg(target_arch = "aarch64")]
mod asm {
    use core::arch::naked_asm;

    use super::task::{after_fork, after_unwaited, after_waited, before};

    /// Moves the C library's argument registers to the kernel's.
    macro_rules! to_kernel {
        () => {
            "mov x8, x0
             mov x0, x1
             mov x1, x2
             mov x2, x3
             mov x3, x4
             mov x4, x5
             mov x5, x6"
        };
    }

    /// Returns the kernel's result (`x0`) as the C library does.
    macro_rules! to_library {
        () => {
            "cmn x0, #4095
             b.hs 70f
             ret
             70:
             neg w0, w0
             stp x0, x30, [sp, #-16]!
             bl {errno}
             ldp x1, x30, [sp], #16
             str w1, [x0]
             mov x0, #-1
             ret"
        };
    }

    /// Makes any system call.
    ///
    /// # Safety
    ///
    /// As for the system call.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub unsafe extern "C" fn syscall(number: libc::c_long) -> libc::c_long {
        naked_asm!(
            "stp x0, x1, [sp, #-64]!",
            "stp x2, x3, [sp, #16]",
            "stp x4, x5, [sp, #32]",
            "stp x6, x30, [sp, #48]",
            "mov x0, sp",
            "bl {before}",
            "mov x16, x0",
            "ldp x6, x30, [sp, #48]",
            "ldp x4, x5, [sp, #32]",
            "ldp x2, x3, [sp, #16]",
            "ldp x0, x1, [sp], #64",
            "br x16",
            before = sym before,
        )
    }

    /// A call that makes no task, if there is no next definition.
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn ordinary() {
        naked_asm!(
            to_kernel!(),
            "svc 0",
            to_library!(),
            errno = sym libc::__errno_location,
        )
    }

    /// Calls that make a task: the function that the parent calls, and the child's code.
    macro_rules! makes {
        ($($name:ident: $after:ident, $child:literal;)*) => {$(
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() {
                naked_asm!(
                    to_kernel!(),
                    "svc 0",
                    $child,
                    "stp x0, x30, [sp, #-16]!",
                    "mov x1, x4",
                    "bl {after}",
                    "ldp x0, x30, [sp], #16",
                    to_library!(),
                    "60:",
                    "ret",
                    after = sym $after,
                    errno = sym libc::__errno_location,
                )
            }
        )*};
    }

    makes! {
        waited_same: after_waited, "cbz x0, 60f";
        waited_own: after_waited, "cbz x0, 60f";
        unwaited_same: after_unwaited, "cbz x0, 60f";
        unwaited_own: after_unwaited, "cbz x0, 60f";
        fork_same: after_fork, "";
        fork_own: after_fork, "";
    }
}

#[cfg(target_arch = "riscv64")]
mod asm {
    use core::arch::naked_asm;

    use super::task::{after_fork, after_unwaited, after_waited, before};

    /// Moves the C library's argument registers to the kernel's.
    macro_rules! to_kernel {
        () => {
            "mv a7, a0
             mv a0, a1
             mv a1, a2
             mv a2, a3
             mv a3, a4
             mv a4, a5
             mv a5, a6"
        };
    }

    /// Returns the kernel's result (`a0`) as the C library does.
    macro_rules! to_library {
        () => {
            "li t0, -4095
             bgeu a0, t0, 70f
             ret
             70:
             neg a0, a0
             addi sp, sp, -16
             sd a0, 0(sp)
             sd ra, 8(sp)
             call {errno}
             ld t0, 0(sp)
             ld ra, 8(sp)
             addi sp, sp, 16
             sw t0, 0(a0)
             li a0, -1
             ret"
        };
    }

    /// Makes any system call.
    ///
    /// # Safety
    ///
    /// As for the system call.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    pub unsafe extern "C" fn syscall(number: libc::c_long) -> libc::c_long {
        naked_asm!(
            "addi sp, sp, -64",
            "sd a0, 0(sp)",
            "sd a1, 8(sp)",
            "sd a2, 16(sp)",
            "sd a3, 24(sp)",
            "sd a4, 32(sp)",
            "sd a5, 40(sp)",
            "sd a6, 48(sp)",
            "sd ra, 56(sp)",
            "mv a0, sp",
            "call {before}",
            "mv t1, a0",
            "ld a0, 0(sp)",
            "ld a1, 8(sp)",
            "ld a2, 16(sp)",
            "ld a3, 24(sp)",
            "ld a4, 32(sp)",
            "ld a5, 40(sp)",
            "ld a6, 48(sp)",
            "ld ra, 56(sp)",
            "addi sp, sp, 64",
            "jr t1",
            before = sym before,
        )
    }

    /// A call that makes no task, if there is no next definition.
    #[unsafe(naked)]
    pub(super) unsafe extern "C" fn ordinary() {
        naked_asm!(
            to_kernel!(),
            "ecall",
            to_library!(),
            errno = sym libc::__errno_location,
        )
    }

    /// Calls that make a task: the function that the parent calls, and the child's code.
    macro_rules! makes {
        ($($name:ident: $after:ident, $child:literal;)*) => {$(
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() {
                naked_asm!(
                    to_kernel!(),
                    "ecall",
                    $child,
                    "addi sp, sp, -16",
                    "sd a0, 0(sp)",
                    "sd ra, 8(sp)",
                    "mv a1, a4",
                    "call {after}",
                    "ld a0, 0(sp)",
                    "ld ra, 8(sp)",
                    "addi sp, sp, 16",
                    to_library!(),
                    "60:",
                    "ret",
                    after = sym $after,
                    errno = sym libc::__errno_location,
                )
            }
        )*};
    }

    makes! {
        waited_same: after_waited, "beqz a0, 60f";
        waited_own: after_waited, "beqz a0, 60f";
        unwaited_same: after_unwaited, "beqz a0, 60f";
        unwaited_own: after_unwaited, "beqz a0, 60f";
        fork_same: after_fork, "";
        fork_own: after_fork, "";
    }
}
