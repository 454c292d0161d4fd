//! The GNU library's internal names of the malloc family.
//!
//! Programs call them to get past a wrapper of malloc, often their own. They free these objects by
//! `free`, so the objects must come from this library too. Each function is a jump, so a wrapper of
//! malloc in another preloaded library is not called.
//!
//! The GNU library has had no malloc hooks (`__malloc_hook` and others) since version 2.34. This
//! library never called them.

use core::ffi::{c_int, c_void};

use crate::fast_path::{free, malloc};
use crate::malloc::{
    calloc, cfree, memalign, posix_memalign, pvalloc, realloc, reallocarray, valloc,
};

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($to:ident) => {
        core::arch::naked_asm!("jmp {to}", to = sym $to)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($to:ident) => {
        core::arch::naked_asm!("b {to}", to = sym $to)
    };
}

#[cfg(target_arch = "riscv64")]
macro_rules! jump {
    ($to:ident) => {
        core::arch::naked_asm!("tail {to}", to = sym $to)
    };
}

macro_rules! names {
    ($($name:ident is $to:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[doc = concat!("[`", stringify!($to), "`] under an inner name of the GNU library.")]
        ///
        /// # Safety
        ///
        /// As for this function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            jump!($to)
        }
    )*};
}

names! {
    __libc_malloc is malloc(bytes: usize) -> *mut c_void;
    __libc_calloc is calloc(count: usize, size: usize) -> *mut c_void;
    __libc_realloc is realloc(object: *mut c_void, bytes: usize) -> *mut c_void;
    __libc_reallocarray is reallocarray(object: *mut c_void, count: usize, size: usize) -> *mut c_void;
    __libc_free is free(object: *mut c_void);
    __libc_cfree is cfree(object: *mut c_void);
    __libc_memalign is memalign(align: usize, bytes: usize) -> *mut c_void;
    __libc_valloc is valloc(bytes: usize) -> *mut c_void;
    __libc_pvalloc is pvalloc(bytes: usize) -> *mut c_void;
    __posix_memalign is posix_memalign(out: *mut *mut c_void, align: usize, bytes: usize) -> c_int;
}
