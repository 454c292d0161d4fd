//! The helper: a thread that gives memory back while the program makes no calls.
//!
//! It exists only where the environment asks for it (`uslub run` does), begins only when more than
//! [`START_BYTES`] lie empty, and ends when nothing is left to do, so a
//! program has it for moments. No program can see it in its C library: it is
//! made with a bare system call, has no signals and no per-CPU slots, and makes direct system calls only.
//!
//! Its thread-local memory is a bare block beside its stack. It must not be that of the thread which
//! starts it: that thread may end, and its area is where the kernel looks for the sequence that *it* runs. In the block
//! the area says that the kernel knows nothing of this thread, so no sequence begins.
//!
//! ```text
//!  stack, grows down | below the thread pointer | above it
//! ```
//!
//! | [`TID`] | meaning |
//! |---|---|
//! | 0 | there is none; its stack is free |
//! | [`STARTING`] | a thread is making it |
//! | other | it runs (the kernel writes 0 when it is gone) |
//!
//! Before the program does what needs a single thread or forbids system calls
//! ([`stop`]), it is told to end and waited for.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use uslub_core::platform::Platform;
use uslub_linux::sys;
use uslub_report::HELPER_VARIABLE;

use crate::ALLOCATOR;

/// Bytes that lie empty before the helper starts.
const START_BYTES: usize = 16 << 20;
/// Bytes that may lie empty when it ends.
const END_BYTES: usize = 1 << 20;
/// Milliseconds between two looks.
const PERIOD_MS: u64 = 250;
/// Looks at an idle program before all is given back.
const IDLE_LOOKS: u32 = 6;
/// Looks with little to do before it ends.
const LAZY_LOOKS: u32 = 20;
const STACK_BYTES: usize = 64 << 10;
/// Least bytes of thread-local memory on either side of the thread pointer: more than a C library's record of a thread.
const THREAD_BYTES: usize = 8 << 10;
const STARTING: u32 = u32::MAX;

static ENABLED: AtomicBool = AtomicBool::new(false);
static TID: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicU32 = AtomicU32::new(0);
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Reads the environment, before `main`.
pub(crate) fn prepare() {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && uslub_linux::environment::environment(HELPER_VARIABLE) == Some(b"1")
    {
        // Relaxed: one thread so far.
        ENABLED.store(true, Relaxed);
    }
}

fn empty_bytes() -> usize {
    ALLOCATOR.zone.dirty_bytes() + ALLOCATOR.huge.kept_bytes()
}

/// Starts the helper when it is due; after slow frees.
#[inline]
pub(crate) fn after_free() {
    // Relaxed: glances; the exchange below decides.
    if ENABLED.load(Relaxed) && TID.load(Relaxed) == 0 && empty_bytes() > START_BYTES {
        begin();
    }
}

#[cold]
fn begin() {
    if ALLOCATOR.platform.is_sandboxed() || ALLOCATOR.platform.is_vfork_child() {
        return;
    }
    // Acquire: the last helper has left its stack.
    if TID.compare_exchange(0, STARTING, Acquire, Relaxed).is_err() {
        return;
    }
    // Relaxed: read by the helper, which is born after it.
    STOP.store(0, Relaxed);
    if !spawn() {
        // Release: nobody uses the stack. Not tried again: what failed once fails again.
        ENABLED.store(false, Relaxed);
        TID.store(0, Release);
    }
}

/// What a helper needs: the top of its stack, and its thread pointer.
struct Place {
    stack_top: usize,
    thread: usize,
}

/// The helper's memory; made once.
fn place() -> Option<Place> {
    let area = ALLOCATOR.platform.area().map_or(0, |area| area.offset);
    // The area lies on either side, depending on whose it is.
    let side = |bytes: isize| {
        let bytes = bytes.max(0) as usize + size_of::<[u64; 8]>();
        bytes.max(THREAD_BYTES).next_multiple_of(64)
    };
    let (below, above) = (side(-area), side(area));
    // Relaxed: only the thread that starts a helper comes here.
    let mut stack = STACK.load(Relaxed);
    if stack == 0 {
        let bytes = ALLOCATOR.platform.whole_pages(STACK_BYTES + below + above);
        stack = ALLOCATOR.platform.map(bytes)?.as_ptr() as usize;
        let thread = stack + STACK_BYTES + below;
        // SAFETY: the mapping is ours, and there is room on both sides. A thread pointer's first and third words hold itself where
        // C libraries for x86-64 look for it; on aarch64 nobody looks there.
        unsafe {
            (thread as *mut usize).write(thread);
            (thread as *mut usize).add(2).write(thread);
            // The area's `cpu_id`: not to be registered.
            let cpu_id = thread.wrapping_add_signed(area) + 4;
            (cpu_id as *mut i32).write(-2);
        }
        // Relaxed: as above.
        STACK.store(stack, Relaxed);
    }
    Some(Place {
        stack_top: stack + STACK_BYTES,
        thread: stack + STACK_BYTES + below,
    })
}

fn spawn() -> bool {
    let Some(place) = place() else {
        return false;
    };
    let all = u64::MAX;
    let mut before = 0u64;
    let mask = |how: libc::c_int, set: &u64, old: *mut u64| {
        // SAFETY: reads and writes the sets only.
        unsafe {
            sys::call(
                libc::SYS_rt_sigprocmask,
                [
                    how as usize,
                    set as *const u64 as usize,
                    old as usize,
                    8,
                    0,
                    0,
                ],
            )
        };
    };
    mask(libc::SIG_SETMASK, &all, &raw mut before);
    let result = clone(&place);
    mask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
    result > 0
}

const FLAGS: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Makes the thread, which runs [`run`] and ends; returns its id, or minus an error number.
#[cfg(target_arch = "x86_64")]
fn clone(place: &Place) -> isize {
    let result: isize;
    // SAFETY: the child runs `run` on a stack and with a thread pointer of its own and ends there.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 60f",
            "xor ebp, ebp",
            "call {run}",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "60:",
            run = sym run,
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") FLAGS as usize,
            in("rsi") place.stack_top,
            in("rdx") TID.as_ptr(),
            in("r10") TID.as_ptr(),
            in("r8") place.thread,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// Makes the thread, which runs [`run`] and ends; returns its id, or minus an error number.
#[cfg(target_arch = "aarch64")]
fn clone(place: &Place) -> isize {
    let result: isize;
    // SAFETY: as on x86-64.
    unsafe {
        core::arch::asm!(
            "svc 0",
            "cbnz x0, 60f",
            "mov x29, xzr",
            "bl {run}",
            "mov x8, {exit}",
            "mov x0, xzr",
            "svc 0",
            "brk #1",
            "60:",
            run = sym run,
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone,
            inlateout("x0") FLAGS as isize => result,
            in("x1") place.stack_top,
            in("x2") TID.as_ptr(),
            in("x3") place.thread,
            in("x4") TID.as_ptr(),
            options(nostack),
        );
    }
    result
}

/// No helper on other architectures.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn clone(_: &Place) -> isize {
    let _ = run;
    -1
}

/// What the helper does.
extern "C" fn run() {
    let (mut activity, mut idle, mut lazy) = (0, 0, 0);
    // Acquire: pairs with `stop`.
    while STOP.load(Acquire) == 0 {
        sys::futex_wait_for(STOP.as_ptr(), 0, PERIOD_MS);
        // Acquire: as above.
        if STOP.load(Acquire) != 0 {
            return;
        }
        ALLOCATOR.tick(ALLOCATOR.platform.now_ms());
        let now = ALLOCATOR.activity();
        idle = if now == activity { idle + 1 } else { 0 };
        activity = now;
        lazy = if empty_bytes() > START_BYTES {
            0
        } else {
            lazy + 1
        };
        if idle == IDLE_LOOKS {
            ALLOCATOR.trim();
            if empty_bytes() <= END_BYTES {
                return;
            }
        }
        if lazy >= LAZY_LOOKS {
            return;
        }
    }
}

/// Ends the helper, if there is one, and waits until it is gone.
pub(crate) fn stop() {
    // Release: with whatever made us stop it.
    STOP.store(1, Release);
    sys::futex_wake(STOP.as_ptr(), 1);
    loop {
        // Acquire: what the helper did.
        match TID.load(Acquire) {
            0 => return,
            // SAFETY: lets the thread that starts it run.
            STARTING => unsafe {
                sys::call(libc::SYS_sched_yield, [0; 6]);
            },
            tid => sys::futex_wait_shared(TID.as_ptr(), tid),
        }
    }
}

/// In the child of a fork the helper does not exist.
pub(crate) fn after_fork_in_child() {
    // Relaxed: the child has one thread.
    TID.store(0, Relaxed);
}
