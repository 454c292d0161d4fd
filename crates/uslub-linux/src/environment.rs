//! The process's environment, readable before the C library is set up too.
//!
//! Reading is safe from any thread while nobody changes the environment. [`forget_environment`]
//! changes it in place, so call it before the program's own code runs.

unsafe extern "C" {
    static mut environ: *mut *mut libc::c_char;
}

/// The environment's strings: the C library's, or the kernel's before the C library is set up.
fn environment_strings() -> *mut *mut libc::c_char {
    // SAFETY: read once; nobody changes it during start-up.
    let strings = unsafe { environ };
    if strings.is_null() {
        uslub_rseq::initial::environment()
    } else {
        strings
    }
}

/// Value of an environment variable. `None` if it is not set, or if the program runs with other
/// rights than its caller's (`AT_SECURE`).
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

/// Removes variables from the environment that programs started by this one inherit.
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
