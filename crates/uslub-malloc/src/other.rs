//! Another malloc in the process: a library behind this one that replaces `operator new`, as
//! jemalloc does.
//!
//! Its `operator new` returns objects of its own. Its `operator delete` may call `free` by symbol,
//! and this library is the first that defines it. So [`free`] passes objects on that no part of
//! this allocator knows. Elsewhere such a pointer is a misuse.
//!
//! Any thread may call.

use core::ffi::{CStr, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::next::{Next, library};
use crate::{ALLOCATOR, once};

static FREE: Other = Other::new(c"free");
static USABLE_SIZE: Other = Other::new(c"malloc_usable_size");
/// `operator new(unsigned long)`. The C library has none.
static NEW: Next = Next::new(c"_Znwm");

/// A function of the other malloc.
struct Other {
    next: Next,
    /// The function, once it was found; otherwise null.
    found: AtomicPtr<c_void>,
}

impl Other {
    const fn new(name: &'static CStr) -> Self {
        Self {
            next: Next::new(name),
            found: AtomicPtr::new(null_mut()),
        }
    }

    /// The next definition of the function, if its library replaces `operator new` too.
    ///
    /// May ask the loader, so call it only with a pointer that would be a misuse otherwise.
    fn get(&self) -> Option<*mut c_void> {
        // Acquire: pairs with the store below.
        let found = self.found.load(Acquire);
        if !found.is_null() {
            return Some(found);
        }
        let (new, next) = (NEW.get()?.as_ptr(), self.next.get()?.as_ptr());
        if library(new) != library(next) {
            return None;
        }
        // Release: publishes what the loader did.
        self.found.store(next, Release);
        Some(next)
    }
}

/// Whether no part of this allocator knows a pointer.
fn is_foreign(object: *mut c_void) -> bool {
    !once::is_done() || ALLOCATOR.is_foreign(object.cast())
}

/// Frees a foreign object by the other malloc. False if this allocator knows the object, or there
/// is no other malloc.
///
/// # Safety
///
/// As for `free`.
#[cold]
pub(crate) unsafe fn free(object: *mut c_void) -> bool {
    // SAFETY: passed on.
    is_foreign(object) && unsafe { free_by_other(object) }
}

/// The usable bytes of a foreign object; `None` where [`free`] would return false.
///
/// # Safety
///
/// As for `malloc_usable_size`.
#[cold]
pub(crate) unsafe fn usable_size(object: *mut c_void) -> Option<usize> {
    if !is_foreign(object) {
        return None;
    }
    // SAFETY: passed on.
    unsafe { size_by_other(object) }
}

/// Apart from [`free`], because the loader takes much stack.
#[inline(never)]
unsafe fn free_by_other(object: *mut c_void) -> bool {
    type Free = unsafe extern "C" fn(*mut c_void);
    let Some(free) = FREE.get() else {
        return false;
    };
    // SAFETY: a definition of `free`; passed on.
    unsafe { transmute::<*mut c_void, Free>(free)(object) };
    true
}

/// As [`free_by_other`].
#[inline(never)]
unsafe fn size_by_other(object: *mut c_void) -> Option<usize> {
    type Size = unsafe extern "C" fn(*mut c_void) -> usize;
    let size = USABLE_SIZE.get()?;
    // SAFETY: a definition of `malloc_usable_size`; passed on.
    Some(unsafe { transmute::<*mut c_void, Size>(size)(object) })
}
