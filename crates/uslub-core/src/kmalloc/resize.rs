//! Changes the size of an object: in place if possible, otherwise by a copy.
//!
//! | object | resized in place |
//! |---|---|
//! | of a size class | shrinks by less than a quarter, or stays in its class |
//! | large (pages) | frees its last pages, or takes free pages behind it |
//! | huge (a mapping) | remapped by the system |
//!
//! Any thread that owns the object may call.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::Ordering::Relaxed;

use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::kmalloc::{CLASS_MAX, LARGE_MAX, class_of, class_size};
use crate::memory::PageIndex;
use crate::memory::mapped::Lookup;
use crate::platform::{FaultSite, PAGE_SIZE, Platform};
use crate::policy::ARENA_OBJECT_MAX_BYTES;

impl<P: Platform> Allocator<P> {
    /// Whether a pointer is no object of this allocator, of now or of before a fork. An interior
    /// pointer of a huge object may pass for foreign.
    pub fn is_foreign(&self, object: *mut u8) -> bool {
        let address = object as usize;
        // Only a hardened huge object begins inside a page. The look takes a lock.
        let may_be_huge = address.is_multiple_of(PAGE_SIZE) || self.is_hardened();
        let is_huge = || !matches!(self.mapped.find(address, true), Some(Lookup::Nothing));
        self.zone.arena.page_of(address).is_none()
            && !self.is_guarded(object)
            && !(may_be_huge && is_huge())
            && self.former_size(object).is_none()
    }

    /// Resizes an object of [`kmalloc`](Self::kmalloc), and moves it if necessary; null without
    /// memory, and then the object is unchanged.
    ///
    /// With [`ZERO`](Gfp::ZERO), bytes beyond the old size are zero, if the object was always
    /// allocated and resized with `ZERO`.
    ///
    /// # Safety
    ///
    /// `object` is live; after a success only the returned pointer is live.
    pub unsafe fn krealloc(&self, object: *mut u8, bytes: usize, gfp: Gfp) -> *mut u8 {
        if object.is_null() {
            return self.kmalloc(bytes, gfp);
        }
        // SAFETY: passed on.
        unsafe {
            match self.krealloc_in_place(object, bytes, gfp) {
                Ok(new) => new,
                Err(old) => self.move_object(object, old, bytes, gfp),
            }
        }
    }

    /// The first half of [`krealloc`](Self::krealloc), for callers with little stack: resizes an
    /// object in place or moves its mapping; null without memory.
    /// [`move_object`](Self::move_object) is the second half.
    ///
    /// # Errors
    ///
    /// The object's size, if it must be copied.
    ///
    /// # Safety
    ///
    /// As for [`krealloc`](Self::krealloc), and the object is not null.
    #[inline]
    pub unsafe fn krealloc_in_place(
        &self,
        object: *mut u8,
        bytes: usize,
        gfp: Gfp,
    ) -> Result<*mut u8, usize> {
        if let Some(resized) = self.resize_debugged(object, bytes, gfp) {
            return resized;
        }
        let Some((cache, old)) = self.sized(object, "realloc of", gfp.may_spin()) else {
            return Ok(null_mut());
        };
        let new = self.resize_in_place(object, cache.is_some(), old, bytes, gfp)?;
        if gfp.contains(Gfp::ZERO) && !new.is_null() {
            self.zero_grown(new, old, bytes, gfp);
        }
        Ok(new)
    }

    /// Zeroes an object beyond the smaller of its old size and `bytes`.
    #[inline(never)]
    fn zero_grown(&self, object: *mut u8, old: usize, bytes: usize, gfp: Gfp) {
        let in_arena =
            self.zone.arena.page_of(object as usize).is_some() || self.is_guarded(object);
        let now = self.sized(object, "realloc of", gfp.may_spin());
        let end = now.map_or(bytes, |(_, end)| end);
        // The grown part of a mapping is zero already, and stays untouched.
        if in_arena || bytes <= old {
            let kept = old.min(bytes);
            // SAFETY: ours and `end` bytes long.
            unsafe { object.add(kept).write_bytes(0, end - kept) };
        }
    }

    /// Resizes a live object of `old` bytes if no copy is needed.
    #[inline]
    fn resize_in_place(
        &self,
        object: *mut u8,
        in_class: bool,
        old: usize,
        bytes: usize,
        gfp: Gfp,
    ) -> Result<*mut u8, usize> {
        if !gfp.may_map() && self.zone.arena.page_of(object as usize).is_none() {
            // Only the system can change a mapping.
            return Ok(if bytes <= old { object } else { null_mut() });
        }
        if bytes <= old && self.worth_keeping(in_class, old, bytes) {
            return Ok(object);
        }
        if !in_class
            && bytes > CLASS_MAX
            && let Some(moved) = self.resize(object, old, bytes, gfp)
        {
            return Ok(moved.as_ptr());
        }
        Err(old)
    }

    /// An object to move another one to. Only one above `LARGE_MAX` bytes is zeroed: a mapping may
    /// be reused, and a fresh one costs nothing to clear.
    #[inline(never)]
    fn new_place(&self, bytes: usize, gfp: Gfp) -> *mut u8 {
        match bytes > LARGE_MAX {
            true => self.kmalloc_large(bytes, PAGE_SIZE, gfp),
            false => self.kmalloc(bytes, gfp - Gfp::ZERO),
        }
    }

    /// Moves a live object of `old` bytes to a new object; null without memory.
    ///
    /// # Safety
    ///
    /// As for [`krealloc`](Self::krealloc).
    #[inline]
    pub unsafe fn move_object(
        &self,
        object: *mut u8,
        old: usize,
        bytes: usize,
        gfp: Gfp,
    ) -> *mut u8 {
        let new = self.new_place(bytes, gfp);
        if new.is_null() && bytes <= old {
            // No memory for a smaller object: the old one serves.
            return object;
        }
        if !new.is_null() {
            // SAFETY: both are live, with at least the bytes copied; the caller gives up the old.
            unsafe {
                new.copy_from_nonoverlapping(object, old.min(bytes));
                if gfp.contains(Gfp::ZERO) {
                    self.zero_grown(new, old, bytes, gfp);
                }
                match self.zone.arena.page_of(object as usize) {
                    Some(page) if !gfp.may_spin() => self.kfree_in_arena(page, object, gfp),
                    _ => self.kfree(object),
                }
            }
        }
        new
    }

    /// Whether an object of `old` bytes can hold `bytes` without much waste.
    fn worth_keeping(&self, in_class: bool, old: usize, bytes: usize) -> bool {
        if in_class {
            bytes > old / 4 * 3 || class_size(class_of(bytes).index()) == old
        } else {
            bytes.next_multiple_of(PAGE_SIZE) == old
        }
    }

    /// Resizes a large object in place, or a huge one without a copy.
    #[inline(never)]
    fn resize(&self, object: *mut u8, old: usize, bytes: usize, gfp: Gfp) -> Option<NonNull<u8>> {
        let Some(page) = self.zone.arena.page_of(object as usize) else {
            if bytes <= LARGE_MAX / 2 {
                return None;
            }
            let zeroed = gfp.contains(Gfp::ZERO);
            let may_cache = self.tunables().decay_ms > 0;
            let moved =
                (self.mapped).resize(&self.platform, object as usize, bytes, zeroed, may_cache)?;
            self.memory.update_mapped_bytes(&self.platform);
            return Some(moved);
        };
        if bytes > LARGE_MAX && (old <= LARGE_MAX || bytes > ARENA_OBJECT_MAX_BYTES) {
            return None;
        }
        let (have, want) = (old / PAGE_SIZE, bytes.div_ceil(PAGE_SIZE));
        if want > have {
            if self.platform.should_fail(FaultSite::Extend) {
                return None;
            }
            self.zone.extend(page, have, want - have, gfp)?;
            // Relaxed: a statistic.
            self.large_pages.fetch_add(want - have, Relaxed);
        }
        self.zone.arena.slab(page).set_large_pages(want);
        if want < have {
            self.free_pages(PageIndex(page.0 + want as u32), have - want, gfp);
        }
        NonNull::new(object)
    }
}
