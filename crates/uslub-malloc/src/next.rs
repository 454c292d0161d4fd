//! The next definition of a function that this library defines too.
//!
//! A program may run under other preloaded libraries, which wrap some of the same functions. Each
//! wrapper of ours passes its call on to the definition that the loader finds behind this library,
//! and never to the kernel directly, so that the others see the call.

use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

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
        let known = self.address.load(Acquire);
        if !known.is_null() {
            return NonNull::new(known);
        }
        // SAFETY: the name is a C string. The loader goes by the caller, which is this library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // Release: with what the loader did.
        self.address.store(found, Release);
        NonNull::new(found)
    }
}
