//! The helper: a thread that gives memory back while the program makes no calls.
//!
//! It exists only if the environment asks for it (`uslub run` does). It starts when more than
//! [`START_BYTES`] are empty, and ends when nothing is left to do, so it lives for moments. The
//! program's C library does not know it: a bare system call makes it, and it has no signals and no
//! per-CPU slots. It makes direct system calls only.
//!
//! Its thread-local memory is a bare block next to its stack. The memory of the thread that starts
//! it would not do: this thread may end, and the kernel looks in its area for the sequence that
//! *it* runs. In the block the area says that the kernel does not know the helper, so no sequence
//! begins.
//!
//! ```text
//!  stack, grows down | below the thread pointer | above it
//! ```
//!
//! | [`TID`] | meaning |
//! |---|---|
//! | 0 | no helper; its stack is free |
//! | [`STARTING`] | a thread is making it |
//! | other | it runs (the kernel writes 0 at its end) |
//!
//! The helper must not have more rights than the program. It gets the rights of the thread that
//! starts it. Before the program changes its rights, needs a single thread or forbids itself system
//! calls, the wrapper of the call tells the helper to end and waits for it ([`hold`], [`stop`]). A
//! program may also make these calls by bare instructions, unseen. So [`uslub run`](crate::witness)
//! is asked before the helper is made and before each piece of work:
//!
//! | answer | action |
//! |---|---|
//! | all threads have the same rights, and no filter | the helper works |
//! | threads differ | it ends; a thread may make another when they are the same again |
//! | there is a filter | it ends for good, because a filter may kill the process at any call |
//! | no answer, many times in a row | it ends for good |
//!
//! The only system call for a question is `futex`. The helper keeps the scheduling (priority, CPUs)
//! of the thread that started it, as any thread does.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use uslub_core::platform::Platform;
use uslub_linux::{Linux, sys};
use uslub_report::HELPER_VARIABLE;
use uslub_report::witness::Verdict;

use crate::{ALLOCATOR, witness};

/// Empty bytes above which the helper starts.
const START_BYTES: usize = 16 << 20;
/// Empty bytes that may be left when it ends.
const END_BYTES: usize = 1 << 20;
/// Milliseconds between two checks.
const PERIOD_MS: u64 = 250;
/// Checks in a row that find the program idle before all empty memory is given back.
const IDLE_LOOKS: u32 = 6;
/// Milliseconds between two checks whether the helper has ended; its end wakes the waiter sooner.
const GONE_MS: u64 = 100;
/// Checks in a row with at most [`START_BYTES`] empty before the helper ends.
const LAZY_LOOKS: u32 = 20;
/// Most milliseconds that a thread of the program waits for the witness's answer.
const ASK_MS: u64 = 500;
/// Milliseconds in which no helper starts after one was told to end, or after threads differed.
const PAUSE_MS: u64 = 200;
/// Questions in a row without an answer that the helper tolerates.
const UNANSWERED: u32 = 20;
const STACK_BYTES: usize = 64 << 10;
/// Minimum bytes of thread-local memory on either side of the thread pointer: more than a C
/// library's record of a thread.
const THREAD_BYTES: usize = 8 << 10;
const STARTING: u32 = u32::MAX;

static ENABLED: AtomicBool = AtomicBool::new(false);
static TID: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicU32 = AtomicU32::new(0);
/// Number of calls of [`stop`].
static STOPS: AtomicU32 = AtomicU32::new(0);
/// Calls in progress during which there may be no helper.
static HELD: AtomicU32 = AtomicU32::new(0);
/// Thread pointer of the thread that is starting the helper.
static STARTER: AtomicUsize = AtomicUsize::new(0);
/// Time before which no helper starts, in milliseconds.
static NEXT: AtomicU64 = AtomicU64::new(0);
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Reads the environment. Call it before `main`.
pub(crate) fn prepare() {
    if uslub_linux::environment::environment(HELPER_VARIABLE).is_some_and(witness::find) {
        // Relaxed: the process has one thread so far.
        ENABLED.store(true, Relaxed);
    }
}

fn empty_bytes() -> usize {
    ALLOCATOR.zone.dirty_bytes() + ALLOCATOR.mapped.kept_bytes()
}

/// Starts the helper if it is due. Slow frees call it.
#[inline]
pub(crate) fn after_free() {
    // Relaxed: hints; the compare-and-swap in `begin` decides.
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
    // SeqCst: `TID` is stored before `HELD` is loaded. `hold` does the opposite, so one of the two
    // sees the other.
    if TID.compare_exchange(0, STARTING, SeqCst, Relaxed).is_err() {
        return;
    }
    // Relaxed: read by signal handlers on this thread.
    STARTER.store(Linux::thread(), Relaxed);
    // Relaxed, both: the helper, which reads `STOP`, is born later. `STOPS` is compared on this
    // thread.
    STOP.store(0, Relaxed);
    let stops = STOPS.load(Relaxed);
    // SeqCst: as above.
    if HELD.load(SeqCst) > 0 || !is_wanted(witness::ask(ASK_MS)) || !spawn(stops) {
        // Release: nobody uses the stack any longer.
        TID.store(0, Release);
        sys::futex_wake(TID.as_ptr(), i32::MAX as usize);
    }
}

/// Whether a helper is allowed after this answer.
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

/// Lets no helper start for [`PAUSE_MS`].
fn pause() {
    // Relaxed: a hint.
    NEXT.store(ALLOCATOR.platform.now_ms() + PAUSE_MS, Relaxed);
}

/// The top of the helper's stack, and its thread pointer.
struct Place {
    stack_top: usize,
    thread: usize,
}

/// The helper's memory; made once.
fn place() -> Option<Place> {
    let area = ALLOCATOR.platform.area().map_or(0, |area| area.offset);
    // The area lies below or above the thread pointer, depending on whose it is.
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
        // SAFETY: the mapping is ours, and there is room on both sides. C libraries for x86-64
        // expect the thread pointer in the first and third word that it points at. On aarch64
        // nothing reads them.
        unsafe {
            (thread as *mut usize).write(thread);
            (thread as *mut usize).add(2).write(thread);
            // The area's `cpu_id`: never registered.
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

/// Makes the helper, unless it was told to end since `stops` was read. Returns whether it runs.
fn spawn(stops: u32) -> bool {
    let Some(place) = place() else {
        return false;
    };
    let all = u64::MAX;
    let mut before = 0u64;
    let mask = |how: libc::c_int, set: &u64, old: *mut u64| {
        // SAFETY: only reads and writes the sets.
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
    // Relaxed: changed by signal handlers on this thread, which are blocked now. Other threads
    // wait.
    let result = if STOPS.load(Relaxed) == stops {
        clone(&place)
    } else {
        0
    };
    if result < 0 {
        // Relaxed: a hint. It is not tried again, because it would fail again.
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

/// Makes the thread, which runs [`run`] and ends. Returns its id, or a negative error number.
#[cfg(target_arch = "x86_64")]
fn clone(place: &Place) -> isize {
    let result: isize;
    // SAFETY: the child runs `run` on its own stack, with its own thread pointer, and ends there.
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

/// Makes the thread, which runs [`run`] and ends. Returns its id, or a negative error number.
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

/// Makes the thread, which runs [`run`] and ends. Returns its id, or a negative error number.
#[cfg(target_arch = "riscv64")]
fn clone(place: &Place) -> isize {
    let result: isize;
    // SAFETY: as on x86-64.
    unsafe {
        core::arch::asm!(
            "ecall",
            "bnez a0, 60f",
            "li s0, 0",
            "call {run}",
            "li a7, {exit}",
            "li a0, 0",
            "ecall",
            "ebreak",
            "60:",
            run = sym run,
            exit = const libc::SYS_exit,
            in("a7") libc::SYS_clone,
            inlateout("a0") FLAGS as isize => result,
            in("a1") place.stack_top,
            in("a2") TID.as_ptr(),
            in("a3") place.thread,
            in("a4") TID.as_ptr(),
            options(nostack),
        );
    }
    result
}

/// The helper's main function.
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

/// While this value lives, there is no helper.
pub(crate) struct Hold;

/// Ends the helper, if there is one. None starts until the returned value is dropped.
pub(crate) fn hold() -> Hold {
    // SeqCst: `HELD` is stored before `TID` is loaded; see `begin`.
    HELD.fetch_add(1, SeqCst);
    stop();
    Hold
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Release: comes after the caller's work. A fork in between resets the count, so it may be
        // 0.
        _ = HELD.fetch_update(Release, Relaxed, |held| held.checked_sub(1));
    }
}

/// Ends the helper, if there is one, and waits until it is gone. The next one starts a little
/// later.
pub(crate) fn stop() {
    // Relaxed: a hint.
    if !ENABLED.load(Relaxed) && TID.load(Relaxed) == 0 {
        return;
    }
    pause();
    // Relaxed: for a start on this thread that this call may have interrupted.
    STOPS.fetch_add(1, Relaxed);
    // SeqCst: as in `hold`; it also sees what the helper did.
    while let tid @ 1.. = TID.load(SeqCst) {
        // Release: publishes what the caller did before.
        STOP.store(1, Release);
        sys::futex_wake(STOP.as_ptr(), 1);
        if tid != STARTING {
            sys::futex_wait_shared_for(TID.as_ptr(), tid, GONE_MS);
            // The child of a bare fork has no helper. Acquire: sees what the helper did.
            if TID.load(Acquire) == tid && !sys::thread_exists(tid) {
                return;
            }
        // Relaxed: equal only if this thread stored it.
        } else if STARTER.load(Relaxed) == Linux::thread() {
            // The interrupted start sees that `STOPS` has changed.
            return;
        } else {
            sys::futex_wait_for(TID.as_ptr(), tid, 1);
        }
    }
}

/// Resets everything in the child of a fork, where the helper does not exist.
pub(crate) fn after_fork_in_child() {
    // Relaxed, all: the child has one thread.
    TID.store(0, Relaxed);
    HELD.store(0, Relaxed);
    if !witness::after_fork_in_child() {
        ENABLED.store(false, Relaxed);
    }
}
