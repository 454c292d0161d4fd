//! The process's environment, also before the C library's set-up.

unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// The environment's strings: the C library's, or before its set-up the kernel's.
fn environment_strings() -> *mut *mut libc::c_char {
    // SAFETY: read once; early on nobody changes it.
    let strings = unsafe { environ };
    if strings.is_null() {
        uslub_rseq::initial::environment()
    } else {
        strings
    }
}

/// Value of an environment variable; nothing in a program that runs with others' rights.
pub fn environment(name: &str) -> Option<&'static [u8]> {
    if uslub_rseq::initial::auxiliary(libc::AT_SECURE as usize) != 0 {
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
