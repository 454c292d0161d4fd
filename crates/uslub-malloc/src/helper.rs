//! The helper: a thread that gives memory back while the program makes no calls.
//!
//! It exists only where the environment asks for it (`uslub run` does), begins only when more than
//! [`START_BYTES`] lie empty, and ends when nothing is left to do, so a
//! program has it for moments. No program can see it in its C library: it is made with a bare
//! system call, has no signals and no per-CPU slots, and makes direct system calls only.
//!
//! Its thread-local memory is a bare block beside its stack. It must not be that of the thread
//! which starts it: that thread may end, and its area is where the kernel looks for the sequence
//! that *it* runs. In the block the area says that the kernel knows nothing of this thread, so no
//! sequence begins.
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
//! The helper must not have more rights than the program. It gets those of the thread that starts
//! it. Before the program changes its rights, needs a single thread or forbids itself system calls,
//! the helper is told to end and waited for ([`hold`], [`stop`]). A program may also do so by bare
//! instructions, which nobody sees. So [`uslub run`](crate::witness) is asked before the helper is
//! made and before each piece of work:
//!
//! | answer | then |
//! |---|---|
//! | all threads have the same rights, and no filter | it works |
//! | threads differ | it ends; a thread may make another when they do not |
//! | there is a filter | it ends for good, as a filter may end the process at any call |
//! | none, time and again | it ends for good |
//!
//! The question needs no system call but `futex`. Scheduling (priority, CPUs) stays that of the
//! thread that started the helper, as with any thread.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use uslub_core::platform::Platform;
use uslub_linux::{Linux, sys};
use uslub_report::HELPER_VARIABLE;
use uslub_report::witness::Verdict;

use crate::{ALLOCATOR, witness};

/// Bytes that lie empty before the helper starts.
const START_BYTES: usize = 16 << 20;
/// Bytes that may lie empty when it ends.
const END_BYTES: usize = 1 << 20;
/// Milliseconds between two looks.
const PERIOD_MS: u64 = 250;
/// Looks at an idle program before all is given back.
const IDLE_LOOKS: u32 = 6;
/// Milliseconds between two looks whether the helper is gone; its end wakes sooner.
const GONE_MS: u64 = 100;
/// Looks with little to do before it ends.
const LAZY_LOOKS: u32 = 20;
/// Milliseconds that a thread of the program waits for the witness.
const ASK_MS: u64 = 500;
/// Milliseconds in which no helper begins after one was told to end, or threads differed.
const PAUSE_MS: u64 = 200;
/// Questions without an answer before the helper ends.
const UNANSWERED: u32 = 20;
const STACK_BYTES: usize = 64 << 10;
/// Least bytes of thread-local memory on either side of the thread pointer: more than a C library's
/// record of a thread.
const THREAD_BYTES: usize = 8 << 10;
const STARTING: u32 = u32::MAX;

static ENABLED: AtomicBool = AtomicBool::new(false);
static TID: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicU32 = AtomicU32::new(0);
/// Changes with each call of [`stop`].
static STOPS: AtomicU32 = AtomicU32::new(0);
/// Calls that are under way during which there may be no helper.
static HELD: AtomicU32 = AtomicU32::new(0);
/// The thread that is starting the helper.
static STARTER: AtomicUsize = AtomicUsize::new(0);
/// No helper begins before, in milliseconds.
static NEXT: AtomicU64 = AtomicU64::new(0);
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Reads the environment, before `main`.
pub(crate) fn prepare() {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
        && uslub_linux::environment::environment(HELPER_VARIABLE).is_some_and(witness::find)
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
    // Relaxed: a hint.
    if ALLOCATOR.platform.now_ms() < NEXT.load(Relaxed) {
        return;
    }
    // SeqCst: before the look at `HELD`, as `hold` looks here after it has written there.
    if TID.compare_exchange(0, STARTING, SeqCst, Relaxed).is_err() {
        return;
    }
    // Relaxed: a signal handler on this thread looks.
    STARTER.store(Linux::thread(), Relaxed);
    // Relaxed, both: read by the helper, which is born after it; compared on this thread.
    STOP.store(0, Relaxed);
    let stops = STOPS.load(Relaxed);
    // SeqCst: as above.
    if HELD.load(SeqCst) > 0 || !is_wanted(witness::ask(ASK_MS)) || !spawn(stops) {
        // Release: nobody uses the stack.
        TID.store(0, Release);
        sys::futex_wake(TID.as_ptr(), i32::MAX as usize);
    }
}

/// Whether there may be a helper after this answer.
fn is_wanted(answer: Option<Verdict>) -> bool {
    match answer {
        Some(Verdict::Same) => return true,
        Some(Verdict::Filtered) => {
            ALLOCATOR.platform.enter_sandbox();
            // Relaxed: a hint.
            ENABLED.store(false, Relaxed);
        }
        Some(Verdict::Differs) | None => pause(),
    }
    false
}

/// Lets no helper begin for a while.
fn pause() {
    // Relaxed: a hint.
    NEXT.store(ALLOCATOR.platform.now_ms() + PAUSE_MS, Relaxed);
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
        // SAFETY: the mapping is ours, and there is room on both sides. A thread pointer's first
        // and third words hold itself where C libraries for x86-64 look for it; on aarch64 nobody
        // looks there.
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

/// Makes the helper, unless it was told to end since `stops` was read.
fn spawn(stops: u32) -> bool {
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
    // Relaxed: written by this thread's handlers, which are held back now. Other threads wait.
    let result = if STOPS.load(Relaxed) == stops {
        clone(&place)
    } else {
        0
    };
    if result < 0 {
        // Relaxed: a hint. Not tried again: what failed once fails again.
        ENABLED.store(false, Relaxed);
    }
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
    ALLOCATOR.platform.is_helper(true);
    work();
    ALLOCATOR.platform.is_helper(false);
}

fn work() {
    let (mut activity, mut idle, mut lazy, mut unanswered) = (0, 0, 0, 0);
    // Acquire: pairs with `stop`.
    while STOP.load(Acquire) == 0 {
        sys::futex_wait_for(STOP.as_ptr(), 0, PERIOD_MS);
        // Acquire: as above.
        if STOP.load(Acquire) != 0 {
            return;
        }
        let answer = witness::ask(PERIOD_MS);
        if answer.is_none() && unanswered < UNANSWERED {
            unanswered += 1;
            continue;
        }
        if !is_wanted(answer) {
            if answer.is_none() {
                // Relaxed: a hint.
                ENABLED.store(false, Relaxed);
            }
            return;
        }
        unanswered = 0;
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

/// Keeps helpers away until it is dropped.
pub(crate) struct Hold;

/// Ends the helper, if there is one, and lets none begin.
pub(crate) fn hold() -> Hold {
    // SeqCst: before the look at `TID`; see `begin`.
    HELD.fetch_add(1, SeqCst);
    stop();
    Hold
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Release: after the call. Nobody may take it below 0: a fork in between resets it.
        _ = HELD.fetch_update(Release, Relaxed, |held| held.checked_sub(1));
    }
}

/// Ends the helper, if there is one, and waits until it is gone; the next begins a little later.
pub(crate) fn stop() {
    // Relaxed: a hint.
    if !ENABLED.load(Relaxed) && TID.load(Relaxed) == 0 {
        return;
    }
    pause();
    // Relaxed: for a start on this thread, which we may have interrupted.
    STOPS.fetch_add(1, Relaxed);
    // SeqCst: see `hold`; with what the helper did.
    while let tid @ 1.. = TID.load(SeqCst) {
        // Release: with whatever made us stop it.
        STOP.store(1, Release);
        sys::futex_wake(STOP.as_ptr(), 1);
        if tid != STARTING {
            sys::futex_wait_shared_for(TID.as_ptr(), tid, GONE_MS);
            // In a child that the C library does not know to be one there is no helper.
            // Acquire: what the helper did.
            if TID.load(Acquire) == tid && !sys::thread_exists(tid) {
                return;
            }
        // Relaxed: equal only where this thread wrote it.
        } else if STARTER.load(Relaxed) == Linux::thread() {
            // It sees that `STOPS` has changed.
            return;
        } else {
            sys::futex_wait_for(TID.as_ptr(), tid, 1);
        }
    }
}

/// In the child of a fork the helper does not exist.
pub(crate) fn after_fork_in_child() {
    // Relaxed, all: the child has one thread.
    TID.store(0, Relaxed);
    HELD.store(0, Relaxed);
    if !witness::after_fork_in_child() {
        ENABLED.store(false, Relaxed);
    }
}
