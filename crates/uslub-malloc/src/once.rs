//! Whether the set-up was done: what the parts of the library that it sets up may ask.

use uslub_linux::start::Once;

pub(crate) static ONCE: Once = Once::new();

/// Whether the allocator was set up.
#[inline]
pub(crate) fn is_done() -> bool {
    ONCE.is_done()
}

/// Whether the caller must not wait for the set-up, because for it the set-up never ends.
#[cold]
pub(crate) fn is_barred() -> bool {
    ONCE.is_barred()
}
