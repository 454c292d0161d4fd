//! Setting up: once, at the first call, which may come before the C library's own
//! set-up and from any thread.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use uslub_core::tunables::Tunables;
use uslub_linux::{complain, sys};
use uslub_report::OPTIONS_VARIABLE;

use crate::front::FRONT;
use crate::{ALLOCATOR, helper, process, report};

/// | value | meaning |
/// |---|---|
/// | 0 | nobody has begun |
/// | 1 | a thread is at it; others wait |
/// | 2 | ready |
/// | 3 | no memory for a start; asked again at the next call |
static STATE: AtomicU32 = AtomicU32::new(0);

/// Least address space to reserve, in bytes, where there is no limit.
const RESERVE_FLOOR: usize = 64 << 30;

/// Whether the allocator can be used; sets it up when it is not.
#[inline]
pub(crate) fn ready() -> bool {
    // Acquire: pairs with the end of the set-up.
    STATE.load(Acquire) == 2 || set_up()
}

#[cold]
fn set_up() -> bool {
    loop {
        // Acquire: as above; and what a failed attempt left.
        match STATE.compare_exchange(0, 1, Acquire, Acquire) {
            Ok(_) => {
                let done = do_set_up();
                // Release: others see the allocator set up.
                STATE.store(if done { 2 } else { 0 }, Release);
                return done;
            }
            Err(2) => return true,
            // SAFETY: lets the thread that is at it run.
            Err(_) => unsafe {
                sys::call(libc::SYS_sched_yield, [0; 6]);
            },
        }
    }
}

fn do_set_up() -> bool {
    let tunables = tunables();
    ALLOCATOR.platform.probe(tunables.rseq == 1);
    ALLOCATOR.keep_indices(uslub_core::kmalloc::NR_CLASSES + 1);
    // SAFETY: `STATE` keeps all others out.
    if !unsafe { ALLOCATOR.init(reserve_bytes(), tunables) } {
        return false;
    }
    // The first block, so that the front has pages to open for.
    ALLOCATOR.zone.grow(&ALLOCATOR.platform, 0);
    FRONT.open();
    true
}

/// Address space to reserve: four times the machine's memory, or half of what the
/// process may have.
fn reserve_bytes() -> usize {
    use uslub_core::platform::Platform;
    let limit = crate::limits::address_space();
    if limit < usize::MAX {
        return limit / 2;
    }
    (ALLOCATOR.platform.memory_bytes().saturating_mul(4))
        .max(RESERVE_FLOOR)
        .next_power_of_two()
}

/// The tunables from the environment. What cannot be read is said and left out.
fn tunables() -> Tunables {
    let mut tunables = Tunables::DEFAULT;
    let options = environment(OPTIONS_VARIABLE).and_then(|v| core::str::from_utf8(v).ok());
    for setting in options.unwrap_or("").split(',').filter(|s| !s.is_empty()) {
        if let Err(error) = tunables.set(setting) {
            complain(format_args!("{OPTIONS_VARIABLE}: {error}"));
        }
    }
    tunables
}

unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// The environment's strings: the C library's, or before its set-up the kernel's.
fn environment_strings() -> *mut *mut libc::c_char {
    // SAFETY: read once; early on nobody changes it.
    let strings = unsafe { environ };
    if strings.is_null() {
        initial_strings()
    } else {
        strings
    }
}

/// The environment as the kernel left it at the start of the stack.
#[cfg(target_arch = "x86_64")]
fn initial_strings() -> *mut *mut libc::c_char {
    let end: *const *const usize;
    // SAFETY: reads an entry of the global offset table; weak, so 0 when absent.
    unsafe {
        core::arch::asm!(
            ".weak __libc_stack_end",
            "mov {end}, qword ptr [rip + __libc_stack_end@GOTPCREL]",
            end = out(reg) end,
            options(nostack, preserves_flags, pure, readonly),
        );
        if end.is_null() || (*end).is_null() {
            return core::ptr::null_mut();
        }
        // There lies: argc, the arguments, null, the environment.
        let argc = **end;
        (*end).add(argc + 2) as *mut *mut libc::c_char
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn initial_strings() -> *mut *mut libc::c_char {
    core::ptr::null_mut()
}

/// Value of an environment variable; nothing in a program that runs with others' rights.
pub(crate) fn environment(name: &str) -> Option<&'static [u8]> {
    // SAFETY: looks a number up.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    let mut at = environment_strings();
    if at.is_null() {
        return None;
    }
    // SAFETY: an array of C strings that ends with null.
    unsafe {
        while !(*at).is_null() {
            let text = core::ffi::CStr::from_ptr(*at).to_bytes();
            if let Some(value) = text.strip_prefix(name.as_bytes())
                && let Some(value) = value.strip_prefix(b"=")
            {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// Takes variables out of the environment of programs that this one starts.
pub(crate) fn forget_environment(names: &[&str]) {
    let strings = environment_strings();
    if strings.is_null() {
        return;
    }
    // SAFETY: an array of C strings that ends with null; called before the program's own code.
    unsafe {
        let (mut from, mut to) = (strings, strings);
        while !(*from).is_null() {
            let text = core::ffi::CStr::from_ptr(*from).to_bytes();
            let dropped = names.iter().any(|n| {
                text.strip_prefix(n.as_bytes())
                    .is_some_and(|rest| rest.starts_with(b"="))
            });
            if !dropped {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null_mut();
    }
}

/// Runs before `main`.
extern "C" fn constructor() {
    ready();
    process::register();
    report::prepare();
    helper::prepare();
    // Relaxed: one thread so far, or the caller's business.
    debug_assert!(STATE.load(Relaxed) != 1);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;
