//! The next definition of a function that this library defines too.
//!
//! Other preloaded libraries may wrap the same functions. So each wrapper here passes its call on
//! to the next definition in the loader's order, not to the kernel, and the other libraries see the
//! call. The kernel is asked only if there is no next definition.
//!
//! | `address` | state |
//! |---|---|
//! | null | not looked up |
//! | `NONE` | looked up: no next definition |
//! | other | the next definition |
//!
//! [`resolve`] looks all functions up before `main`. A wrapper that is called earlier looks its own
//! up.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

// Since glibc 2.34 the loader's functions lie in the C library itself, under a new version too. By
// their first version they are found in older ones as well, in `libdl.so.2` (`build.rs`).
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
core::arch::global_asm!(".symver dlsym, dlsym@GLIBC_2.2.5");
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
core::arch::global_asm!(".symver dlsym, dlsym@GLIBC_2.17");

/// Stands for a function without a next definition.
const NONE: *mut c_void = without_provenance_mut(1);

/// A place in this library.
static HERE: u8 = 0;

/// The next definition of one function, looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The next definition of the function with this name, not looked up yet.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(null_mut()),
        }
    }

    /// The address of the next definition; `None` if there is none.
    ///
    /// The first call asks the loader, which may allocate, so it must not come from inside the
    /// allocator.
    pub(crate) fn get(&self) -> Option<NonNull<c_void>> {
        // Acquire: pairs with `look_up`.
        let mut known = self.address.load(Acquire);
        if known.is_null() {
            known = self.look_up();
        }
        NonNull::new(known).filter(|_| known != NONE)
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name is a C string. The loader starts behind the caller, which is this
        // library.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        let found = if found.is_null() { NONE } else { found };
        // Release: publishes what the loader did.
        self.address.store(found, Release);
        found
    }
}

/// Looks these functions up, so that no later call asks the loader.
pub(crate) fn resolve(all: &[&Next]) {
    for next in all {
        next.get();
    }
}

/// Where the program or library that contains an address begins; 0 if there is none.
///
/// Not by `dladdr`, which also looks for the symbol. It reads the library's whole symbol table, and
/// took two fifths of the instructions of a short program.
pub(crate) fn library(address: *const c_void) -> usize {
    let mut search = Search {
        address: address as usize,
        begin: 0,
    };
    // SAFETY: `examine` gets the search, and only while this call runs.
    unsafe { libc::dl_iterate_phdr(Some(examine), (&raw mut search).cast()) };
    search.begin
}

/// A search for the program or library that contains an address.
struct Search {
    address: usize,
    begin: usize,
}

/// Whether this program or library contains the address of the search, as 0 or 1.
///
/// # Safety
///
/// For the loader only: a valid description, and a [`Search`].
unsafe extern "C" fn examine(
    info: *mut libc::dl_phdr_info,
    _: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: by the caller's promise; the headers live as long as the program or library.
    let (search, base, headers) = unsafe {
        let info = &*info;
        let headers = core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        (
            &mut *search.cast::<Search>(),
            info.dlpi_addr as usize,
            headers,
        )
    };
    let loads = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD);
    let mut parts = loads.map(|header| {
        let begin = base.wrapping_add(header.p_vaddr as usize);
        (begin, begin.wrapping_add(header.p_memsz as usize))
    });
    let first = parts.clone().next();
    let contains = parts.any(|(begin, end)| (begin..end).contains(&search.address));
    search.begin = first.filter(|_| contains).map_or(0, |(begin, _)| begin);
    contains.into()
}

/// Whether the program's calls of a function come to this library. A program may define the
/// function itself, and a library that is loaded earlier too. Asks the loader.
pub(crate) fn is_ours(name: &CStr) -> bool {
    // SAFETY: the name is a C string.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    library(first) == library((&raw const HERE).cast())
}

/// Calls the next definition, whose type is `$type`. Without one, evaluates the expression after
/// `or`.
macro_rules! call_next {
    ($next:expr, $type:ty, ($($argument:expr),*), or $otherwise:expr) => {
        match $next.get() {
            // SAFETY: the C library and its wrappers define a function of this type under this
            // name; passed on.
            Some(next) => unsafe {
                core::mem::transmute::<*mut core::ffi::c_void, $type>(next.as_ptr())($($argument),*)
            },
            None => $otherwise,
        }
    };
}

pub(crate) use call_next;
