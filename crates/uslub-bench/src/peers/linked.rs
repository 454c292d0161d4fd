//! Other allocators that are linked into this program: through pointers, and called directly.

use std::ffi::c_void;
use std::sync::Once;

use super::More;
use super::face::Face;
use super::pair::direct;

/// All allocators that are linked in.
pub fn faces() -> Vec<Face> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: called once, before any thread uses rpmalloc.
        unsafe { rpmalloc_sys::rpmalloc_initialize() };
    });
    let mimalloc = (libmimalloc_sys::mi_malloc, libmimalloc_sys::mi_free);
    let snmalloc = (snmalloc_sys::sn_malloc, snmalloc_sys::sn_free);
    let jemalloc = (tikv_jemalloc_sys::malloc, tikv_jemalloc_sys::free);
    let rpmalloc = (rpmalloc_sys::rpmalloc, rpmalloc_sys::rpfree);
    vec![
        Face::new("mimalloc v3", "libmimalloc-sys", mimalloc.0, mimalloc.1),
        Face::new("snmalloc", "snmalloc-sys", snmalloc.0, snmalloc.1),
        Face::new("jemalloc 5.3", "tikv-jemalloc-sys", jemalloc.0, jemalloc.1),
        Face::new("rpmalloc", "rpmalloc-sys", rpmalloc.0, rpmalloc.1).with_threads(enter, leave),
    ]
}

unsafe extern "C" fn enter() {
    // SAFETY: a repeated call is harmless.
    unsafe { rpmalloc_sys::rpmalloc_thread_initialize() };
}

unsafe extern "C" fn leave() {
    // SAFETY: the thread makes no further call.
    unsafe { rpmalloc_sys::rpmalloc_thread_finalize() };
}

/// The same allocators, called by name instead of through a pointer, for a constant size.
pub fn called_directly<const SIZE: usize>(loops: usize) -> Vec<More<'static>> {
    macro_rules! of {
        ($name:literal, $malloc:path, $free:path) => {
            (
                $name,
                Box::new(move || {
                    // SAFETY: a repeated call is harmless.
                    unsafe { enter() };
                    // SAFETY: malloc accepts any size.
                    let alloc = || unsafe { $malloc(SIZE) }.cast::<u8>();
                    // SAFETY: the counterpart allocated the object; it is freed once.
                    let free = |object: *mut u8| unsafe { $free(object.cast::<c_void>()) };
                    Ok(direct(loops, alloc, free))
                }),
            )
        };
    }
    vec![
        of!(
            "mimalloc v3",
            libmimalloc_sys::mi_malloc,
            libmimalloc_sys::mi_free
        ),
        of!("snmalloc", snmalloc_sys::sn_malloc, snmalloc_sys::sn_free),
        of!("rpmalloc", rpmalloc_sys::rpmalloc, rpmalloc_sys::rpfree),
        of!(
            "jemalloc 5.3",
            tikv_jemalloc_sys::malloc,
            tikv_jemalloc_sys::free
        ),
    ]
}
