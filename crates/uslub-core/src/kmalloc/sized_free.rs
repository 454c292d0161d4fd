//! Frees whose caller says the size: the size is compared with the object.
//!
//! | object | sizes that it can have been requested, or resized, with |
//! |---|---|
//! | of a size class | those of the class, also when rounded up to the alignment |
//! | | resized in place: above three quarters of the class |
//! | large or huge | above 8 KiB and at most its bytes |
//! | | aligned, and resized in place: in its last page |
//!
//! When memory is exhausted, a resize to fewer bytes keeps the object
//! ([`kept_larger`](Allocator::kept_larger)). From then on only sizes above the object's are wrong.
//!
//! Callers: C23's sized frees, C++'s sized `delete` and Rust's global allocator.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::kmalloc::{CLASS_MAX, class_of, class_size};
use crate::misuse::Misuse;
use crate::platform::{PAGE_SIZE, Platform};
use crate::size_class::aligned_class;

/// Whether an object of a class can have been requested with these bytes and this alignment, and
/// not resized since.
pub(super) fn is_of_class(class: usize, bytes: usize, align: usize) -> bool {
    // C++ rounds the bytes of aligned objects up before it asks for them.
    let rounded = bytes.max(1).checked_next_multiple_of(align);
    let last = rounded.and_then(|bytes| aligned_class(bytes, align));
    let (first, last) = (aligned_class(bytes, align), last.or(Some(class)));
    first.is_some_and(|first| first <= class) && last >= Some(class)
}

impl<P: Platform> Allocator<P> {
    /// Says that a resize to fewer bytes kept an object because there was no memory for a smaller
    /// one.
    #[cold]
    pub fn kept_larger(&self) {
        // Relaxed: a hint for frees that come later on this thread, or behind a handover.
        self.base.kept_larger.store(true, Relaxed);
    }

    /// Ends the process if `object`, live or null, cannot have been requested with these bytes and
    /// this alignment (a power of two; 1 if none was requested). `call` names the caller's call.
    ///
    /// ```no_run
    /// # fn demo<P: uslub_core::platform::Platform>(slub: &uslub_core::Allocator<P>) {
    /// use uslub_core::Gfp;
    /// let object = slub.kmalloc(100, Gfp::KERNEL);
    /// slub.check_size("free_sized of", object, 100, 1);
    /// # }
    /// ```
    pub fn check_size(&self, call: &str, object: *mut u8, bytes: usize, align: usize) {
        if object.is_null() {
            return;
        }
        // Relaxed: as above.
        let kept = self.base.kept_larger.load(Relaxed);
        if self.is_guarded(object) {
            return self.guarded_check_size(call, object, bytes, align, kept);
        }
        let (old, fits) = match self.class_of_object(object) {
            Some(class) => {
                let old = class_size(class);
                let requested = is_of_class(class, bytes, align);
                (old, requested || bytes > old / 4 * 3 || kept)
            }
            None => {
                let Some((cache, old)) = self.sized(object, call, true) else {
                    return;
                };
                if let Some(cache) = cache.filter(|cache| cache.is_debugged()) {
                    return self.check_debugged_size(cache, call, object, (bytes, align), old);
                }
                let in_last_page = bytes.div_ceil(PAGE_SIZE) == old / PAGE_SIZE;
                (
                    old,
                    bytes > CLASS_MAX || in_last_page || align > PAGE_SIZE || kept,
                )
            }
        };
        if bytes > old || !fits {
            self.wrong_size(call, object, bytes, old);
        }
    }

    /// [`check_size`](Self::check_size) of an object of a debugged size class, which stays in place
    /// while half of it is used. `old` is what it was asked for with, if the class knows.
    #[cold]
    #[inline(never)]
    fn check_debugged_size(
        &self,
        cache: &KmemCache<P>,
        call: &str,
        object: *mut u8,
        (bytes, align): (usize, usize),
        old: usize,
    ) {
        let size = cache.object_size();
        // Relaxed: as in `check_size`.
        let kept = bytes >= size / 2 || self.base.kept_larger.load(Relaxed);
        let fits = kept || (size <= CLASS_MAX && is_of_class(class_of(size).index(), bytes, align));
        if bytes > old || !fits {
            self.wrong_size(call, object, bytes, old);
        }
    }

    /// Ends the process if `object`, live or null, has fewer than `bytes` bytes.
    pub(super) fn check_room(&self, call: &str, object: *mut u8, bytes: usize) {
        let has = self.ksize(object);
        if bytes > has && !object.is_null() {
            self.wrong_size(call, object, bytes, has);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn wrong_size(&self, call: &str, object: *mut u8, bytes: usize, old: usize) -> ! {
        let cache = self.cache_of(object).map(|cache| cache.name());
        Misuse::WrongSize(cache, call, object, bytes, old).fatal(&self.platform)
    }
}
