//! The process's environment, also before the C library's set-up.

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
pub fn environment(name: &str) -> Option<&'static [u8]> {
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
pub fn forget_environment(names: &[&str]) {
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
