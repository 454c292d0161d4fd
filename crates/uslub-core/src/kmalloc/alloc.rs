//! Allocates and frees objects of any size.
//!
//! | bytes | source | rounded up to |
//! |---|---|---|
//! | 0 … 8 KiB | a cache of the size class | the class, at most a seventh above 128 bytes |
//! | … 256 KiB | a run of pages | whole pages |
//! | more | a mapping; with many mappings a run of pages | whole pages |
//!
//! [`MAPPINGS_MAX`](crate::policy::MAPPINGS_MAX) says how many are many. The cache of a
//! [class](crate::size_class) is created when it is first used. The page map and the table of
//! mappings tell the source of an object to free. Any thread may call.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::memory::mapped::Lookup;
use crate::memory::several::parts;
use crate::memory::{PageIndex, PageKind};
use crate::misuse::{Misuse, Reason};
use crate::percpu::{CACHE_WORDS, CacheId};
use crate::platform::{PAGE_SIZE, Platform};
use crate::size_class::aligned_class;

pub use crate::size_class::{CLASS_MAX, CLASS_TABLE, NR_CLASSES, class_of, class_size};

/// Largest object that comes from a run of pages first, in bytes.
pub const LARGE_MAX: usize = 256 << 10;
/// Largest object, in bytes.
pub const SIZE_MAX: usize = isize::MAX as usize;

/// A new object, and whether its bytes are zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) start: *mut u8,
    pub(crate) zero: bool,
}

pub(crate) const NO_OBJECT: Fresh = Fresh {
    start: null_mut(),
    zero: false,
};

impl<P: Platform> Allocator<P> {
    /// Allocates `bytes` (0 counts as 1); null without memory. Objects are aligned to 16 bytes (8
    /// bytes for sizes up to 8).
    #[inline]
    pub fn kmalloc(&self, bytes: usize, gfp: Gfp) -> *mut u8 {
        if bytes <= CLASS_MAX {
            let id = class_of(bytes);
            // SAFETY: our table.
            let mut object = unsafe { self.platform.pop(&self.table, id.main()) };
            if object.is_null() {
                object = self.kmalloc_slow(id, bytes, gfp);
            } else {
                // The class has no constructor, so the mark is in the first word. SAFETY: ours.
                unsafe { object.write(0) };
            }
            if gfp.contains(Gfp::ZERO) && !object.is_null() {
                // All of it: a resize in place relies on this. SAFETY: ours and as long as its
                // class.
                unsafe { object.write_bytes(0, class_size(id.index())) };
            }
            return object;
        }
        self.kmalloc_large(bytes, PAGE_SIZE, gfp)
    }

    /// Pops an object of `bytes` from this CPU's main sheaf, not zeroed; null if
    /// [`kmalloc`](Self::kmalloc) would take a slow path. May be called before the allocator is
    /// ready.
    #[inline(always)]
    pub fn kmalloc_fast(&self, bytes: usize) -> *mut u8 {
        if bytes > CLASS_MAX {
            return null_mut();
        }
        // SAFETY: our table.
        let object = unsafe { self.platform.pop(&self.table, class_of(bytes).main()) };
        if !object.is_null() {
            // As in `kmalloc`. SAFETY: ours.
            unsafe { object.write(0) };
        }
        object
    }

    /// Slow path of an allocation of `bytes` bytes from a size class.
    #[cold]
    pub fn kmalloc_slow(&self, id: CacheId, bytes: usize, gfp: Gfp) -> *mut u8 {
        if self.debug.guard.is_on() {
            return self.guarded_kmalloc(id, bytes, gfp);
        }
        self.kmalloc_unguarded(id, bytes, gfp)
    }

    /// As [`kmalloc_slow`](Self::kmalloc_slow), never guarded.
    #[inline(always)]
    pub(super) fn kmalloc_unguarded(&self, id: CacheId, bytes: usize, gfp: Gfp) -> *mut u8 {
        match self.class_cache(id, gfp) {
            Some(cache) if cache.is_debugged() => self.kmalloc_debugged(cache, bytes, gfp),
            Some(cache) => self.alloc_slow(cache, gfp),
            None => null_mut(),
        }
    }

    /// As [`kmalloc`](Self::kmalloc), but from memory of node `nid` if it has any; from no other
    /// node with [`THISNODE`](Gfp::THISNODE).
    pub fn kmalloc_node(&self, bytes: usize, gfp: Gfp, nid: usize) -> *mut u8 {
        let has_memory = self.has_memory_on(nid);
        if gfp.contains(Gfp::THISNODE) && !has_memory {
            return null_mut();
        }
        if bytes <= CLASS_MAX
            && has_memory
            && self.sheaves_do_not_serve(gfp, nid)
            && let Some(cache) = self.class_cache(class_of(bytes), gfp)
        {
            return self.alloc_on(cache, gfp, nid);
        }
        self.kmalloc(bytes, gfp)
    }

    /// Allocates `bytes` aligned to `align` bytes (a power of two); null without memory.
    pub fn kmalloc_aligned(&self, bytes: usize, align: usize, gfp: Gfp) -> *mut u8 {
        debug_assert!(align.is_power_of_two());
        match aligned_class(bytes, align) {
            Some(class) => self.kmalloc(class_size(class), gfp),
            None => self.kmalloc_large(bytes, align, gfp),
        }
    }

    /// Allocates whole pages; with [`ZERO`](Gfp::ZERO) all of their bytes are zero.
    pub(super) fn kmalloc_large(&self, bytes: usize, align: usize, gfp: Gfp) -> *mut u8 {
        let fresh = self.alloc_pages_or_mapping(bytes, align, gfp);
        if gfp.contains(Gfp::ZERO) && !fresh.zero && !fresh.start.is_null() {
            let whole = match self.zone.arena.page_of(fresh.start as usize) {
                Some(_) => bytes.next_multiple_of(PAGE_SIZE),
                None => self.platform.whole_pages(bytes),
            };
            self.clear(fresh.start, whole, gfp);
        }
        fresh.start
    }

    /// Frees an object of [`kmalloc`](Self::kmalloc) or of any cache; null is ignored.
    ///
    /// Any other pointer ends the process with a message.
    ///
    /// # Safety
    ///
    /// Nobody uses the object any longer.
    #[inline]
    pub unsafe fn kfree(&self, object: *mut u8) {
        if let Some(id) = self.zone.arena.cacheable_in(object as usize)
            && let Some(cache) = self.cache(id)
        {
            // SAFETY: in a slab of the cache; the caller frees the object.
            if !unsafe { self.check_and_mark(cache, object) } {
                return self.free_suspect(cache, object, Gfp::KERNEL);
            }
            // SAFETY: our table; the caller frees the object.
            if unsafe { self.platform.push(&self.table, id.main(), object) } {
                return;
            }
        }
        self.kfree_slow(object);
    }

    /// As [`kfree`](Self::kfree), for a caller that knows how many bytes it requested, at least
    /// one. For a constant size the class is constant, and no instruction waits for the page map.
    ///
    /// # Safety
    ///
    /// As for [`kfree`](Self::kfree).
    #[inline]
    pub unsafe fn kfree_sized(&self, object: *mut u8, bytes: usize) {
        let id = class_of(bytes.min(CLASS_MAX));
        if !self.zone.arena.is_cacheable_in(object as usize, id) {
            // SAFETY: passed on.
            return unsafe { self.kfree_of_another_class(object, bytes) };
        }
        if let Some(cache) = self.cache(id) {
            // SAFETY: in a slab of the cache; the caller frees the object.
            if !unsafe { self.check_and_mark(cache, object) } {
                return self.free_suspect(cache, object, Gfp::KERNEL);
            }
        }
        // SAFETY: our table; the caller frees the object.
        if !unsafe { self.platform.push(&self.table, id.main(), object) } {
            self.kfree_slow(object);
        }
    }

    /// Frees an object of another class than requested: aligned, resized or large. Ends the process
    /// if the object has fewer bytes than that.
    #[inline(never)]
    unsafe fn kfree_of_another_class(&self, object: *mut u8, bytes: usize) {
        self.check_room("free of", object, bytes);
        // SAFETY: passed on.
        unsafe { self.kfree(object) };
    }

    /// As [`kfree`](Self::kfree), in the context `gfp`. Only the system can take a mapping back, so
    /// a huge object leaks, with a warning, if `gfp` forbids system calls.
    ///
    /// # Safety
    ///
    /// As for [`kfree`](Self::kfree).
    pub unsafe fn kfree_with(&self, object: *mut u8, gfp: Gfp) {
        if gfp.contains(Gfp::KERNEL) {
            // SAFETY: passed on.
            return unsafe { self.kfree(object) };
        }
        if let Some(id) = self.zone.arena.cacheable_in(object as usize)
            && let Some(cache) = self.cache(id)
        {
            // SAFETY: in a slab of the cache; the caller frees the object.
            if !unsafe { self.check_and_mark(cache, object) } {
                return self.free_suspect(cache, object, gfp);
            }
            // SAFETY: our table; the caller frees the object.
            if unsafe { self.platform.push(&self.table, id.main(), object) } {
                return;
            }
        }
        match self.zone.arena.page_of(object as usize) {
            Some(page) => self.kfree_in_arena(page, object, gfp),
            None if object.is_null() => {}
            None if self.is_guarded(object) => self.guarded_free(object, None, gfp),
            None => self.leaks(object),
        }
    }

    /// Slow path of a free.
    #[cold]
    pub fn kfree_slow(&self, object: *mut u8) {
        if object.is_null() {
            return;
        }
        match self.zone.arena.page_of(object as usize) {
            Some(page) => self.kfree_in_arena(page, object, Gfp::KERNEL),
            None => self.kfree_mapped(object),
        }
    }

    #[inline(never)]
    fn kfree_mapped(&self, object: *mut u8) {
        if self.is_guarded(object) {
            return self.guarded_free(object, None, Gfp::KERNEL);
        }
        self.note_large_peak();
        if !self.mapped_is_freed(object) {
            if self.former_size(object).is_some() {
                // It belongs to a world that this child of a fork has given up.
                return;
            }
            self.not_ours(object, "free of");
        }
        self.memory.update_mapped_bytes(&self.platform);
        self.count_large(1);
        self.decay_if_due();
    }

    /// Frees a huge object; false if there is none.
    #[inline(never)]
    fn mapped_is_freed(&self, object: *mut u8) -> bool {
        let may_cache = self.tunables().decay_ms > 0;
        (self.mapped).free(&self.platform, object as usize, may_cache)
    }

    pub(crate) fn kfree_in_arena(&self, page: PageIndex, object: *mut u8, gfp: Gfp) {
        match self.zone.arena.cache_of(page).and_then(|id| self.cache(id)) {
            Some(cache) => self.free_slow(cache, object, gfp),
            None => self.free_large(page, object, gfp),
        }
    }

    #[inline(never)]
    fn free_large(&self, page: PageIndex, object: *mut u8, gfp: Gfp) {
        let slab = self.zone.arena.slab(page);
        let pages = slab.large_pages();
        if !(object as usize).is_multiple_of(PAGE_SIZE) || !slab.clear_kind(PageKind::Large) {
            self.not_an_object(page, object, "free of");
        }
        if !self.keep_pages(page, pages, gfp) {
            self.free_pages(page, pages, gfp);
            self.count_large(1);
        }
    }

    /// Frees pages of a large object.
    pub(crate) fn free_pages(&self, page: PageIndex, pages: usize, gfp: Gfp) {
        self.note_large_peak();
        // Relaxed: a statistic.
        self.large_pages.fetch_sub(pages, Relaxed);
        let decay = u64::from(self.tunables().decay_ms);
        for (page, pages) in parts(page, pages) {
            if gfp.may_spin() {
                self.zone.free(&self.platform, page, pages, decay);
            } else {
                self.zone.push_pending(page, pages);
            }
        }
        if gfp.may_spin() {
            self.decay_mapped();
        }
    }

    /// Usable bytes of an object of [`kmalloc`](Self::kmalloc) or of any cache; 0 for null.
    ///
    /// Any other pointer ends the process with a message. (Exception: the few unused slots at the
    /// end of a slab, in classes that are a power of two.)
    #[inline]
    pub fn ksize(&self, object: *mut u8) -> usize {
        match self.class_of_object(object) {
            Some(class) => class_size(class),
            None => self.ksize_slow(object),
        }
    }

    /// [`ksize`](Self::ksize) of an object of no size class.
    #[cold]
    fn ksize_slow(&self, object: *mut u8) -> usize {
        if object.is_null() {
            0
        } else {
            self.sized(object, "size of", true)
                .map_or(0, |(_, bytes)| bytes)
        }
    }

    /// Size class of a live object; `None` for any other object, and for a pointer to no object's
    /// start.
    #[inline]
    pub fn class_of_object(&self, object: *mut u8) -> Option<usize> {
        let arena = &self.zone.arena;
        let id = arena.cache_of(arena.page_of(object as usize)?)?;
        // The classes' caches come first, and lie in one page of a region: their numbers are the
        // classes.
        let class = usize::from(id.raw()) / CACHE_WORDS;
        if class > NR_CLASSES {
            return None;
        }
        let bytes = class_size(class);
        if bytes.is_power_of_two() {
            // Slabs are aligned to the class size too, so the cache's record need not be read. (A
            // few unused slots of a slab pass; the free of one reports the misuse.)
            return (object as usize).is_multiple_of(bytes).then_some(class);
        }
        let cache = self.cache(id)?;
        // Slabs are aligned to their size.
        let offset = object as usize & (cache.geometry.bytes() - 1);
        cache.is_slot(offset).then_some(class)
    }

    /// The cache (if any) and size of a live object; `None` if `spin` is false and a lock is taken.
    #[inline(never)]
    pub(crate) fn sized(
        &self,
        object: *mut u8,
        what: &str,
        spin: bool,
    ) -> Option<(Option<&KmemCache<P>>, usize)> {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            if self.is_guarded(object) {
                return Some((None, self.guarded_size(object, what)));
            }
            match self.mapped.find(object as usize, spin)? {
                Lookup::Start(bytes) => return Some((None, bytes)),
                _ => match self.former_size(object) {
                    Some(bytes) => return Some((None, bytes)),
                    None => self.not_ours(object, what),
                },
            }
        };
        if let Some(cache) = arena.cache_of(page).and_then(|id| self.cache(id)) {
            let base = self.slab_base(cache.slab_of(arena, page));
            if cache.is_debugged() && cache.is_debug_slot(base, object) {
                return Some((Some(cache), self.size_of_debugged(cache, object)));
            }
            if !cache.is_slot(object as usize - base as usize) {
                self.wrong(Some(cache), what, object, Reason::Interior);
            }
            return Some((Some(cache), cache.object_size()));
        }
        let slab = arena.slab(page);
        if slab.kind() != PageKind::Large || !(object as usize).is_multiple_of(PAGE_SIZE) {
            self.not_an_object(page, object, what);
        }
        Some((None, slab.large_pages() * PAGE_SIZE))
    }

    /// Warns: a huge object cannot be freed in this context.
    #[cold]
    #[inline(never)]
    fn leaks(&self, object: *mut u8) {
        Misuse::Object(None, "free of", object, Reason::HugeLeaks).warn(&self.platform);
    }

    /// Ends the process: the pointer is outside the arena and no huge object.
    #[cold]
    fn not_ours(&self, object: *mut u8, call: &str) -> ! {
        let why = match self.mapped.find(object as usize, true) {
            Some(Lookup::Inside) => Reason::InsideHuge,
            Some(Lookup::Freed) => Reason::FreedHuge,
            _ => Reason::ForeignOrFreed,
        };
        self.wrong(None, call, object, why)
    }

    /// Ends the process: the pointer points into pages of no slab, and to no large object.
    #[cold]
    fn not_an_object(&self, page: PageIndex, object: *mut u8, call: &str) -> ! {
        let kept = self.zone.arena.slab(page).kind() == PageKind::Kept;
        let why = if kept || self.zone.is_free(page) {
            Reason::FreePages
        } else {
            Reason::Interior
        };
        self.wrong(None, call, object, why)
    }

    /// Ends the process: the pointer is no object that `call` can take.
    #[cold]
    #[inline(never)]
    pub(super) fn wrong(
        &self,
        cache: Option<&KmemCache<P>>,
        call: &str,
        object: *mut u8,
        why: Reason,
    ) -> ! {
        Misuse::Object(cache.map(|cache| cache.name()), call, object, why).fatal(&self.platform)
    }
}
