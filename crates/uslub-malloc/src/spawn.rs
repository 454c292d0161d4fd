//! Children that share our memory: `vfork`, and `clone` with `CLONE_VM`.
//!
//! Such a child runs in its parent's memory and mostly sees its parent's rseq area. But the kernel
//! does not know the child, and would restart none of its sequences. So the fast paths close before
//! it is born.
//!
//! | kind of child | the fast paths open again |
//! |---|---|
//! | `vfork`, or `CLONE_VFORK` | when its parent continues: the child ended or executed a program |
//! | without `CLONE_VFORK` | when the kernel clears a word of ours; slow paths check it |
//! | the same, no word of ours | never |
//! | `CLONE_THREAD` | they stay open: it is a thread with its own area |
//!
//! The kernel clears the word at the child's end (`CLONE_CHILD_CLEARTID`). The word cannot be ours
//! if the caller passes its own, or calls `clone3`.
//!
//! While the fast paths are closed, an allocation takes a slow path and asks for the process id.
//!
//! `posix_spawn`, `system` and `popen` of glibc make such a child themselves. It allocates nothing,
//! so nothing closes.

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU32};

use libc::{c_int, pid_t};

use crate::gate::FRONT;
use crate::next::{self, Next, call_next, library};
use crate::{ALLOCATOR, process, set_errno};

static VFORK: Next = Next::new(c"vfork");
/// The next `vfork`, if it is not the C library's own; otherwise null.
static OTHER_VFORK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static CLONE: [Next; 2] = [Next::new(c"clone"), Next::new(c"__clone")];

/// Looks up the next definitions.
pub(crate) fn prepare() {
    next::resolve(&[&VFORK, &CLONE[0], &CLONE[1]]);
    if let Some(next) = VFORK.get().filter(|&next| !is_of_the_c_library(next)) {
        // Relaxed: the process has one thread so far.
        OTHER_VFORK.store(next.as_ptr(), Relaxed);
    }
}

/// What a new task shares with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A thread: shares memory and process.
    Thread,
    /// Shares memory; the parent waits until the child stops sharing it.
    Waited,
    /// Shares memory; the parent continues at once.
    Unwaited,
    /// Shares nothing: a fork.
    Fork,
}

impl Kind {
    /// The kind that flags of `clone` ask for.
    pub(crate) fn of(flags: u64) -> Self {
        let has = |flag: c_int| flags & flag as u64 != 0;
        match (has(libc::CLONE_VM), has(libc::CLONE_THREAD)) {
            (false, _) => Kind::Fork,
            (true, true) => Kind::Thread,
            (true, false) if has(libc::CLONE_VFORK) => Kind::Waited,
            (true, false) => Kind::Unwaited,
        }
    }
}

/// Closes the fast paths before a child is born that shares our memory.
pub(crate) extern "C" fn sharing_begins() {
    ALLOCATOR.platform.vfork_begins();
    FRONT.close();
}

/// Opens the fast paths in the parent when the child is gone, or was never born.
pub(crate) extern "C" fn sharing_ends() {
    if ALLOCATOR.platform.vfork_ends() && ALLOCATOR.ready() {
        FRONT.open();
    }
}

/// Runs in the parent of a child that it does not wait for. The kernel clears `word` at the child's
/// end.
pub(crate) fn sharing_goes_on(born: bool, word: Option<&AtomicU32>) {
    match (born, word) {
        (true, Some(_)) => {}
        (true, None) => ALLOCATOR.platform.keep_closed(),
        (false, word) => {
            word.inspect(|word| ALLOCATOR.platform.unwatch(word));
            sharing_ends();
        }
    }
}

/// A word that the kernel clears at the end of a child with these flags. `None` if the flags use
/// the caller's word, or all words are in use.
pub(crate) fn word_for(flags: u64) -> Option<&'static AtomicU32> {
    let is_taken = flags & (libc::CLONE_CHILD_CLEARTID | libc::CLONE_CHILD_SETTID) as u64 != 0;
    (!is_taken).then(|| ALLOCATOR.platform.watch()).flatten()
}

/// Marks the rseq area of a new task with its own thread pointer as unregistered.
///
/// The C library's new thread-local memory is all zeroes, which looks like CPU 0, and `clone` does
/// not register the task. Memory that does not begin like the GNU library's record of a thread is
/// left alone.
///
/// # Safety
///
/// `thread` is the thread pointer of a new task.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn mark_unregistered(flags: u64, thread: usize) {
    const NOT_TO_BE_REGISTERED: i32 = -2;
    let Some(area) = ALLOCATOR.platform.area().filter(|area| !area.own) else {
        return;
    };
    if flags & libc::CLONE_SETTLS as u64 == 0 || thread == 0 {
        return;
    }
    let record = thread as *const usize;
    // SAFETY: a thread pointer points at a word with its own address. The GNU library's record has
    // it in the third word too, and has its rseq area at our offset.
    unsafe {
        if *record == thread && *record.add(2) == thread {
            let cpu_id = (thread.wrapping_add_signed(area.offset) + 4) as *mut i32;
            if *cpu_id >= 0 {
                *cpu_id = NOT_TO_BE_REGISTERED;
            }
        }
    }
}

/// On other architectures a thread pointer tells nothing about the memory there.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn mark_unregistered(_flags: u64, _thread: usize) {}

type Start = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(Start, *mut c_void, c_int, *mut c_void, ...) -> c_int;

/// What the child of a fork by `clone` runs. The child reads this in its own copy of the memory.
struct Child {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn child_of_fork(child: *mut c_void) -> c_int {
    process::after_raw_fork(0);
    // SAFETY: `clone_by` made it, and the memory was copied since.
    let child = unsafe { &*child.cast::<Child>() };
    (child.start)(child.argument)
}

/// Arguments of `clone`.
struct Arguments {
    start: Option<Start>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    thread: *mut c_void,
    child_tid: *mut c_void,
}

impl Arguments {
    /// # Safety
    ///
    /// As for `clone`.
    unsafe fn call(&self, next: &Next) -> c_int {
        let Some(start) = self.start else {
            set_errno(libc::EINVAL);
            return -1;
        };
        call_next!(
            next,
            Clone,
            (start, self.stack, self.flags, self.argument, self.parent_tid, self.thread, self.child_tid),
            or {
                set_errno(libc::ENOSYS);
                -1
            }
        )
    }
}

/// # Safety
///
/// As for `clone`.
unsafe fn clone_by(next: &Next, mut all: Arguments) -> c_int {
    let flags = u64::from(all.flags as u32);
    // SAFETY: passed on, here and below.
    unsafe { mark_unregistered(flags, all.thread as usize) };
    match Kind::of(flags) {
        // SAFETY: as above.
        Kind::Thread => unsafe { all.call(next) },
        Kind::Waited => {
            sharing_begins();
            // SAFETY: as above.
            let result = unsafe { all.call(next) };
            sharing_ends();
            result
        }
        Kind::Unwaited => {
            sharing_begins();
            let word = word_for(flags);
            if let Some(word) = word {
                all.flags |= libc::CLONE_CHILD_CLEARTID;
                all.child_tid = word.as_ptr().cast();
            }
            // SAFETY: as above.
            let result = unsafe { all.call(next) };
            sharing_goes_on(result > 0, word);
            result
        }
        Kind::Fork => {
            let Some(start) = all.start else {
                // SAFETY: as above.
                return unsafe { all.call(next) };
            };
            let mut child = Child {
                start,
                argument: all.argument,
            };
            all.start = Some(child_of_fork);
            all.argument = (&raw mut child).cast();
            process::before_raw_fork();
            // SAFETY: as above. The child reads `child` in its copy of this frame.
            let result = unsafe { all.call(next) };
            process::after_raw_fork(result as isize);
            result
        }
    }
}

macro_rules! clones {
    ($($name:ident: $index:literal;)*) => {$(
        /// Makes a task that runs `start` on its own stack. The arguments after `argument` are read
        /// if the flags ask for them.
        ///
        /// # Safety
        ///
        /// As for the C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            start: Option<Start>,
            stack: *mut c_void,
            flags: c_int,
            argument: *mut c_void,
            parent_tid: *mut c_void,
            thread: *mut c_void,
            child_tid: *mut c_void,
        ) -> c_int {
            let all = Arguments { start, stack, flags, argument, parent_tid, thread, child_tid };
            // SAFETY: passed on.
            unsafe { clone_by(&CLONE[$index], all) }
        }
    )*};
}

clones! {
    clone: 0;
    __clone: 1;
}

/// Runs before `vfork`. Returns the next definition if it is not the C library's own. The C
/// library's does what is done here, but its return address would lie on the stack that the child
/// uses.
extern "C" fn vfork_begins() -> *mut c_void {
    sharing_begins();
    // Relaxed: stored before `main`.
    OTHER_VFORK.load(Relaxed)
}

/// Whether a function lies in the same library as the C library's `__errno_location`.
fn is_of_the_c_library(function: NonNull<c_void>) -> bool {
    library(function.as_ptr()) == library(libc::__errno_location as *const c_void)
}

/// `vfork`. The child shares our memory and its parent's thread area, and the kernel does not know
/// it. So per-CPU slots are closed to it until it is gone.
///
/// The definition of another library is called as an ordinary function: such a function can only be
/// a `fork`.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {begins}",
        "test rax, rax",
        "jnz 50f",
        "add rsp, 8",
        // The child returns first and reuses the stack, so the return address stays in a register.
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
        "50:",
        "call rax",
        "mov [rsp], rax",
        "test eax, eax",
        "je 51f",
        "call {ends}",
        "51:",
        "pop rax",
        "ret",
        begins = sym vfork_begins,
        ends = sym sharing_ends,
        errno = sym libc::__errno_location,
        number = const libc::SYS_vfork,
    )
}

/// `vfork`, as on x86-64. The child's return address is in a register, which the kernel keeps for
/// the parent.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {begins}",
        "cbnz x0, 50f",
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
        "50:",
        "blr x0",
        "cbz w0, 51f",
        "str x0, [sp, #-16]!",
        "bl {ends}",
        "ldr x0, [sp], #16",
        "51:",
        "ldp x29, x30, [sp], #16",
        "ret",
        begins = sym vfork_begins,
        ends = sym sharing_ends,
        errno = sym libc::__errno_location,
        flags = const libc::CLONE_VFORK | libc::CLONE_VM | libc::SIGCHLD,
        number = const libc::SYS_clone,
    )
}

/// `vfork`, as on aarch64.
#[cfg(target_arch = "riscv64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    core::arch::naked_asm!(
        "addi sp, sp, -16",
        "sd ra, 8(sp)",
        "call {begins}",
        "bnez a0, 50f",
        "ld ra, 8(sp)",
        "addi sp, sp, 16",
        "li a0, {flags}",
        "li a1, 0",
        "li a2, 0",
        "li a3, 0",
        "li a4, 0",
        "li a7, {number}",
        "ecall",
        "beqz a0, 60f",
        "addi sp, sp, -16",
        "sd a0, 0(sp)",
        "sd ra, 8(sp)",
        "call {ends}",
        "ld a0, 0(sp)",
        "ld ra, 8(sp)",
        "addi sp, sp, 16",
        "li t0, -4095",
        "bgeu a0, t0, 70f",
        "60:",
        "ret",
        "70:",
        "neg a0, a0",
        "addi sp, sp, -16",
        "sd a0, 0(sp)",
        "sd ra, 8(sp)",
        "call {errno}",
        "ld t0, 0(sp)",
        "ld ra, 8(sp)",
        "addi sp, sp, 16",
        "sw t0, 0(a0)",
        "li a0, -1",
        "ret",
        "50:",
        "jalr a0",
        "sd a0, 0(sp)",
        "sext.w t0, a0",
        "beqz t0, 51f",
        "call {ends}",
        "51:",
        "ld a0, 0(sp)",
        "ld ra, 8(sp)",
        "addi sp, sp, 16",
        "ret",
        begins = sym vfork_begins,
        ends = sym sharing_ends,
        errno = sym libc::__errno_location,
        flags = const libc::CLONE_VFORK | libc::CLONE_VM | libc::SIGCHLD,
        number = const libc::SYS_clone,
    )
}

/// [`vfork`] under the C library's internal name.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym vfork)
}

/// [`vfork`] under the C library's internal name.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    core::arch::naked_asm!("b {vfork}", vfork = sym vfork)
}

/// [`vfork`] under the C library's internal name.
#[cfg(target_arch = "riscv64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> pid_t {
    core::arch::naked_asm!("tail {vfork}", vfork = sym vfork)
}
