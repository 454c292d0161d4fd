//! The next definition of a function that this library defines too.
//!
//! A program may run under other preloaded libraries, which wrap some of the same functions. Each
//! wrapper of ours passes its call on to the definition that the loader finds behind this library,
//! and not to the kernel, so that the others see the call. The kernel is asked only where there is
//! no such definition.
//!
//! Each is looked up once, before `main` ([`resolve`]). A wrapper that is called earlier looks its
//! own up.

use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

/// Stands for the address of a function that nobody behind us defines.
const NONE: *mut c_void = without_provenance_mut(1);

/// The next definition of one function, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The next definition of the function with this name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// The address of the next definition; `None` where there is none.
    ///
    /// The first call asks the loader, which may allocate: never from inside the allocator.
    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        // Acquire: pairs with the store below.
        let mut known = self.address.load(Acquire);
        if known.is_null() {
            known = self.look_up();
        }
        NonNull::new(known).filter(|_| known != NONE)
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string. The loader goes by the caller, which is this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if found.is_null() { NONE } else { found };
        // Release: with what the loader did.
        self.address.store(found, Release);
        found
    }
}

/// Looks these up, so that no later call asks the loader.
pub(crate) fn resolve(all: &[&Next]) {
    for next in all {
        next.get();
    }
}

/// Calls the next definition, of this type; where there is none, evaluates what follows `or`.
macro_rules! call_next {
    ($next:expr, $type:ty, ($($argument:expr),*), or $otherwise:expr) => {
        match $next.get() {
            // SAFETY: what the C library and its wrappers define under this name is of this type;
            // passed on.
            Some(next) => unsafe {
                core::mem::transmute::<*mut core::ffi::c_void, $type>(next.as_ptr())($($argument),*)
            },
            None => $otherwise,
        }
    };
}

pub(crate) use call_next;
