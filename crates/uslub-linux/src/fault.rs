//! The handler of SIGSEGV, for guarded objects. It is there only if the tunable `guard` is set.
//!
//! | fault | what happens |
//! |---|---|
//! | in the pool of guarded objects | a report; then the process ends, or the page is opened |
//! | elsewhere | the program's own handler gets it, with the same arguments |
//! | elsewhere, and the program has no handler | the default: the process dies of the signal |
//!
//! The kernel's action is ours, with the flags and the mask of the program's: so its handler runs
//! on the stack, with the mask, and with the context that it asked for. The program may set its
//! action in two ways:
//!
//! | way | effect |
//! |---|---|
//! | a wrapper of `sigaction`, as the malloc library has | [`exchange`], not the kernel's call |
//! | any other | the next guarded object puts our handler in front again |
//!
//! After the second way, the program's handler may call ours as the one that it has replaced. Then
//! the action before that one is due. A thread that blocks SIGSEGV dies of a fault, and nothing is
//! reported.
//!
//! Reports are written on a stack of ours: the program's may be short.
//!
//! Any thread may call [`exchange`], in a signal handler too.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use uslub_core::Allocator;
use uslub_core::platform::Platform;
use uslub_core::slab::debug::guard_report::Touch;

use crate::arch::{self, KernelAction};
use crate::callers;
use crate::registers::Registers;
use crate::{Linux, sys};

/// Return addresses of a fault's stack.
const FRAMES: usize = 16;
/// Rounds that a look at the program's action waits for the end of its change.
const ROUNDS: u32 = 1 << 16;
/// Bytes of the stack on which reports are written.
const STACK_BYTES: usize = 64 << 10;
/// Bytes of the kernel's set of signals.
const SET_BYTES: usize = 8;

/// What the program wants to happen at SIGSEGV, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, `SIG_DFL` or `SIG_IGN`.
    pub handler: usize,
    /// `SA_` flags.
    pub flags: u64,
    /// Signals that are blocked while the handler runs.
    pub mask: u64,
}

impl Action {
    const DEFAULT: Self = Self {
        handler: libc::SIG_DFL,
        flags: 0,
        mask: 0,
    };
}

/// The program's action. A change makes `version` odd; readers then wait or read again.
struct Kept {
    version: AtomicU64,
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

/// The program's action before it set one past us.
static BEFORE: Kept = Kept::new();

static PROGRAM: Kept = Kept::new();

/// The allocator whose pool is watched; null for none.
static WATCHED: AtomicPtr<Allocator<Linux>> = AtomicPtr::new(null_mut());

impl Kept {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicU64::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn get(&self) -> Action {
        let mut action = Action::DEFAULT;
        for _ in 0..ROUNDS {
            // Acquire, here and below: the fields are read between two looks at the version.
            let before = self.version.load(Acquire);
            action = Action {
                handler: self.handler.load(Acquire),
                flags: self.flags.load(Acquire),
                mask: self.mask.load(Acquire),
            };
            // Relaxed: ordered by the loads above.
            if before.is_multiple_of(2) && self.version.load(Relaxed) == before {
                break;
            }
            core::hint::spin_loop();
        }
        action
    }

    /// Runs `change` while no other thread changes the action. A thread that waits very long goes
    /// on: the other may not exist in this child of a fork.
    fn change(&self, change: impl FnOnce(&Self)) {
        let mut rounds = 0;
        loop {
            // Relaxed: the exchange decides.
            let now = self.version.load(Relaxed);
            let free = now.is_multiple_of(2);
            // AcqRel: the last change is seen, and the version is odd before the fields change.
            let mine = free
                && (self.version)
                    .compare_exchange(now, now + 1, AcqRel, Relaxed)
                    .is_ok();
            if mine || rounds == ROUNDS {
                break;
            }
            rounds += 1;
            core::hint::spin_loop();
        }
        change(self);
        // Relaxed: only the thread that changes the action is here.
        let now = self.version.load(Relaxed);
        // Release: the fields are written before.
        self.version.store((now | 1) + 1, Release);
    }

    /// The action, for the thread that changes it.
    fn now(&self) -> Action {
        // Relaxed, all: written by this thread, or before its change began.
        Action {
            handler: self.handler.load(Relaxed),
            flags: self.flags.load(Relaxed),
            mask: self.mask.load(Relaxed),
        }
    }

    fn set(&self, action: Action) {
        // Release, all: after the version was made odd.
        self.handler.store(action.handler, Release);
        self.flags.store(action.flags, Release);
        self.mask.store(action.mask, Release);
    }
}

/// Begins to watch the pool of an allocator. The program's action so far is kept. Nothing happens
/// if another allocator is watched, or if this one guards nothing.
pub(crate) fn watch(allocator: &'static Allocator<Linux>) {
    if !allocator.debug.guard.is_on() {
        return;
    }
    let place = core::ptr::from_ref(allocator).cast_mut();
    // AcqRel: publishes the pool to handlers.
    if (WATCHED.compare_exchange(null_mut(), place, AcqRel, Relaxed)).is_err() {
        return;
    }
    let old = ask_kernel(None);
    PROGRAM.change(|kept| {
        kept.set(old);
        ask_kernel(Some(in_front_of(old)));
    });
}

/// The watched allocator.
fn watched() -> Option<&'static Allocator<Linux>> {
    // Acquire: pairs with `watch`. SAFETY: it lives as long as the process.
    unsafe { WATCHED.load(Acquire).as_ref() }
}

/// Whether a handler is installed: then [`exchange`] must take the place of the kernel's call.
#[inline]
pub fn is_watching() -> bool {
    // Relaxed: only compared.
    !WATCHED.load(Relaxed).is_null()
}

/// Sets the program's action at SIGSEGV, if one is given; returns the one before.
pub fn exchange(new: Option<Action>) -> Action {
    let Some(new) = new else {
        return PROGRAM.get();
    };
    let mut old = Action::DEFAULT;
    let signals = sys::block_signals();
    PROGRAM.change(|kept| {
        old = kept.now();
        kept.set(new);
        ask_kernel(Some(in_front_of(new)));
    });
    sys::unblock_signals(signals);
    old
}

/// Puts the handler in front again, if the program has set its action without [`exchange`].
pub(crate) fn stay_in_front() {
    if !is_watching() || ask_kernel(None).handler == entry as *const () as usize {
        return;
    }
    let signals = sys::block_signals();
    PROGRAM.change(|kept| {
        let program = ask_kernel(None);
        if program.handler != entry as *const () as usize {
            BEFORE.change(|before| before.set(kept.now()));
            kept.set(program);
            ask_kernel(Some(in_front_of(program)));
        }
    });
    sys::unblock_signals(signals);
}

/// Our action in front of the program's. A handler that runs once is our matter: the kernel would
/// remove us too.
fn in_front_of(program: Action) -> Action {
    let has_handler = !matches!(program.handler, libc::SIG_DFL | libc::SIG_IGN);
    let theirs = program.flags & !(libc::SA_RESETHAND as u64);
    let (stack, info) = (libc::SA_ONSTACK as u64, libc::SA_SIGINFO as u64);
    Action {
        handler: entry as *const () as usize,
        flags: info | if has_handler { theirs } else { stack },
        mask: program.mask,
    }
}

/// Sets the kernel's action at SIGSEGV, if one is given; returns the one before.
fn ask_kernel(new: Option<Action>) -> Action {
    let kernel = |action: Action| KernelAction::new(action.handler, action.flags, action.mask);
    let new = new.map(kernel);
    let mut old = kernel(Action::DEFAULT);
    let new = new
        .as_ref()
        .map_or(0, |new| core::ptr::from_ref(new) as usize);
    let signal = libc::SIGSEGV as usize;
    // SAFETY: reads one record and writes the other; the handler is ours or the program's.
    unsafe {
        sys::call(
            libc::SYS_rt_sigaction,
            [signal, new, &raw mut old as usize, SET_BYTES, 0, 0],
        )
    };
    Action {
        handler: old.handler,
        flags: old.flags & !KernelAction::RESTORER,
        mask: old.mask,
    }
}

/// What the kernel calls at SIGSEGV: [`on_fault`], with the address that it returns to as well.
#[unsafe(naked)]
unsafe extern "C" fn entry() {
    core::arch::naked_asm!(arch::handler_entry!(), to = sym on_fault);
}

/// Where the stack for reports begins, once one was needed; 0 before. Programs give handlers as
/// little as 2 KiB.
static STACK: AtomicUsize = AtomicUsize::new(0);

/// Thread pointer of the thread that uses the stack; 0 for none.
static REPORTER: AtomicUsize = AtomicUsize::new(0);

/// A fault of a guarded object.
struct Fault {
    allocator: &'static Allocator<Linux>,
    address: usize,
    at: Registers,
    touch: Touch,
}

/// Reports a fault, on whichever stack.
unsafe extern "C" fn report(fault: *const Fault) {
    // SAFETY: a value of `on_fault`, which waits.
    let fault = unsafe { fault.read() };
    let Fault {
        allocator,
        address,
        at,
        touch,
    } = fault;
    let mut frames = [at.pc; FRAMES];
    let now = allocator.platform.now_ms();
    let more = match allocator.platform.is_sandboxed() {
        true => 0,
        false => callers::callers_above(at, &mut frames[1..], now),
    };
    allocator.guard_fault(address, touch, &frames[..1 + more]);
}

/// Runs [`report`] on the stack for reports. A thread that waits for it very long runs it on its
/// own: the other may not exist in this child of a fork. So does one without memory for the stack.
fn report_apart(fault: &Fault) {
    let me = Linux::thread();
    for _ in 0..ROUNDS {
        // Acquire: the last user's stack frames are done. Relaxed on failure: only compared.
        match REPORTER.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => {
                // Relaxed: used by the thread that set `REPORTER`.
                let mut stack = STACK.load(Relaxed);
                if stack == 0 {
                    let access = libc::PROT_READ | libc::PROT_WRITE;
                    stack = sys::mmap(0, STACK_BYTES, access, 0).unwrap_or(0);
                    // Relaxed: as above.
                    STACK.store(stack, Relaxed);
                }
                if stack == 0 {
                    // Release: as below.
                    REPORTER.store(0, Release);
                    break;
                }
                // SAFETY: the stack is this thread's; the value outlives the call.
                unsafe { arch::call_on(stack + STACK_BYTES, report, fault) };
                // Release: pairs with the next user's exchange.
                return REPORTER.store(0, Release);
            }
            Err(other) if other == me => break,
            Err(_) => sys::futex_wait_for(&0, 0, 1),
        }
    }
    // SAFETY: as above.
    unsafe { report(fault) };
}

/// Handles SIGSEGV. `back`: where it returns to.
///
/// # Safety
///
/// The other arguments are the kernel's.
unsafe extern "C" fn on_fault(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    back: usize,
) {
    // SAFETY: the kernel's record.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Positive codes are the kernel's own; others have no address.
    if code > 0
        && let Some(allocator) = watched()
        && allocator.debug.guard.owns(address)
    {
        // SAFETY: the kernel's record.
        let (at, touch) = unsafe { (arch::place(&*context), touch(&*context)) };
        return report_apart(&Fault {
            allocator,
            address,
            at,
            touch,
        });
    }
    // The program's handler returns to itself.
    let kept = match back == arch::handler_returns_to() {
        true => &PROGRAM,
        false => &BEFORE,
    };
    // SAFETY: passed on.
    unsafe { pass_on(kept.get(), signal, info, context, code > 0) };
}

/// Does what the program wants. `is_fault`: the instruction that follows would fault again.
///
/// # Safety
///
/// The arguments are the kernel's.
unsafe fn pass_on(
    program: Action,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
    is_fault: bool,
) {
    match program.handler {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_IGN | libc::SIG_DFL => {
            ask_kernel(Some(Action::DEFAULT));
            if !is_fault {
                // It arrives when this handler returns.
                sys::raise(signal as usize);
            }
        }
        handler => {
            if program.flags & libc::SA_RESETHAND as u64 != 0 {
                exchange(Some(Action::DEFAULT));
            }
            // SAFETY: the program's handler, of the type that its flags say.
            unsafe {
                if program.flags & libc::SA_SIGINFO as u64 != 0 {
                    type Long = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                    let handler: Long = core::mem::transmute::<usize, Long>(handler);
                    handler(signal, info, context.cast());
                } else {
                    type Short = unsafe extern "C" fn(c_int);
                    let handler: Short = core::mem::transmute::<usize, Short>(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Whether the access was a write.
fn touch(context: &libc::ucontext_t) -> Touch {
    match arch::is_write(context) {
        true => Touch::Write,
        false => Touch::Read,
    }
}
