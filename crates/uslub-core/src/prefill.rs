//! Prefilled sheaves: allocations promised in advance.
//!
//! The holder of a [`Prefilled`] takes its objects without a lock, a system call or a failure.
//!
//! - Up to the cache's largest capacity, the objects wait in a sheaf: the CPU's spare, one of the
//!   barn's, or a new one, filled up.
//! - More objects wait in an array from kmalloc of exactly this size.
//!
//! The objects count as allocated from the start; returned ones count as freed. One thread at a
//! time uses a [`Prefilled`]; it may move to another thread. Any thread may call.

use core::ptr::NonNull;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::sheaf::{Sheaf, Window};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::RECLAIM_TRIES;
use crate::sheaf::spill::Spill;
use crate::slab::take::Refill;

/// An array of objects that is larger than any sheaf; the objects follow this head.
#[repr(C)]
struct Oversize {
    capacity: usize,
    len: usize,
}

/// Objects reserved for their holder.
///
/// Dropping it leaks them: return it to its cache instead.
#[must_use = "its objects are lost unless it is given back"]
#[derive(Debug)]
pub struct Prefilled(Kind);

#[derive(Debug)]
enum Kind {
    Sheaf(Sheaf),
    Oversize(NonNull<Oversize>),
}

// SAFETY: the holder owns the objects, on any thread.
unsafe impl Send for Prefilled {}

/// Bit 0 of a raw word, set for an oversize array.
const OVERSIZE: usize = 1;

impl Prefilled {
    /// Number of objects left.
    pub fn size(&self) -> usize {
        match &self.0 {
            Kind::Sheaf(sheaf) => sheaf.len(),
            // SAFETY: the array is ours.
            Kind::Oversize(array) => unsafe { array.as_ref().len },
        }
    }

    /// Number of objects that it can hold.
    pub fn capacity(&self) -> usize {
        match &self.0 {
            Kind::Sheaf(sheaf) => sheaf.capacity(),
            // SAFETY: the array is ours.
            Kind::Oversize(array) => unsafe { array.as_ref().capacity },
        }
    }

    /// The word for it, never 0; the same until it is refilled or returned.
    pub fn into_raw(self) -> NonNull<u8> {
        match self.0 {
            Kind::Sheaf(sheaf) => sheaf.keep().cast(),
            // SAFETY: aligned to words, so bit 0 is free; never null.
            Kind::Oversize(array) => unsafe { array.cast::<u8>().byte_add(OVERSIZE) },
        }
    }

    /// The inverse of [`into_raw`](Self::into_raw).
    ///
    /// # Safety
    ///
    /// The word came from `into_raw`, and each is used once.
    pub unsafe fn from_raw(raw: NonNull<u8>) -> Self {
        if raw.as_ptr() as usize & OVERSIZE == 0 {
            // SAFETY: a window, by the caller's promise.
            Self(Kind::Sheaf(unsafe {
                Sheaf::from_window(raw.cast::<Window>())
            }))
        } else {
            // SAFETY: as in `into_raw`.
            Self(Kind::Oversize(unsafe { raw.byte_sub(OVERSIZE) }.cast()))
        }
    }

    /// Takes an object; null if none is left.
    #[inline]
    fn pop(&mut self) -> *mut u8 {
        match &mut self.0 {
            Kind::Sheaf(sheaf) => sheaf.pop().unwrap_or_default(),
            // SAFETY: the array is ours and has `len` objects.
            Kind::Oversize(array) => unsafe {
                let array = array.as_mut();
                if array.len == 0 {
                    return core::ptr::null_mut();
                }
                array.len -= 1;
                *array.first().add(array.len)
            },
        }
    }
}

impl Oversize {
    fn first(&mut self) -> *mut *mut u8 {
        // SAFETY: the objects follow the head, in the same allocation.
        unsafe { core::ptr::from_mut(self).add(1).cast() }
    }
}

impl<P: Platform> Allocator<P> {
    /// Reserves `n` objects (at least 1) of a cache; `None` without memory, and then nothing is
    /// taken.
    pub fn prefill(&self, cache: &KmemCache<P>, gfp: Gfp, n: usize) -> Option<Prefilled> {
        let gfp = gfp - Gfp::ZERO;
        if cache.is_debugged() || n > cache.capacity.max(cache.capacity_max) {
            self.count(cache, StatItem::SheafPrefillOversize, 1);
            return self.prefill_oversize(cache, gfp, n);
        }
        let sheaf = self.sheaf_for_prefill(cache, n, gfp)?;
        self.count(cache, StatItem::AllocFastpath, sheaf.len());
        let mut prefilled = Prefilled(Kind::Sheaf(sheaf));
        if self.refill_prefilled(cache, gfp, &mut prefilled, n) {
            return Some(prefilled);
        }
        self.return_prefilled(cache, gfp, prefilled);
        None
    }

    /// A sheaf for `n` objects, with its present contents: the CPU's spare, the barn's, or a new
    /// one.
    fn sheaf_for_prefill(&self, cache: &KmemCache<P>, n: usize, gfp: Gfp) -> Option<Sheaf> {
        if self.has_slots(gfp)
            && let Some(spare) = self.detach_spare(cache, self.peek(cache.id.spare()))
        {
            self.count(cache, StatItem::SheafPrefillFast, 1);
            return self.enlarge(cache, spare, n, gfp);
        }
        self.count(cache, StatItem::SheafPrefillSlow, 1);
        let full = self.barn_get_full(cache, &mut None, gfp);
        let sheaf = full.or_else(|| self.empty_sheaf(cache, gfp))?;
        self.enlarge(cache, sheaf, n, gfp)
    }

    /// A sheaf with at least these objects and room for `n`; adaptive sheaves may be too small.
    fn enlarge(&self, cache: &KmemCache<P>, sheaf: Sheaf, n: usize, gfp: Gfp) -> Option<Sheaf> {
        if sheaf.capacity() >= n || sheaf.is_empty() {
            return Some(self.adjust_capacity_for(cache, sheaf, n));
        }
        let Some(larger) = self.empty_sheaf(cache, gfp) else {
            self.store_or_flush(cache, sheaf, gfp);
            return None;
        };
        let (mut small, mut larger) = (sheaf, self.adjust_capacity_for(cache, larger, n));
        larger.extend_from(small.objects());
        small.truncate(0);
        self.install_empty(cache, small, gfp);
        Some(larger)
    }

    fn prefill_oversize(&self, cache: &KmemCache<P>, gfp: Gfp, n: usize) -> Option<Prefilled> {
        let bytes = n
            .checked_mul(size_of::<*mut u8>())?
            .checked_add(size_of::<Oversize>())?;
        let memory = NonNull::new(self.kmalloc(bytes, gfp - Gfp::NOFAIL))?;
        let mut array = memory.cast::<Oversize>();
        // SAFETY: ours, and long enough for the head and `n` objects.
        let objects = unsafe {
            array.write(Oversize {
                capacity: n,
                len: 0,
            });
            core::slice::from_raw_parts_mut(array.as_mut().first(), n)
        };
        objects.fill(core::ptr::null_mut());
        if self.alloc_bulk(cache, gfp, objects) {
            // SAFETY: ours.
            unsafe { array.as_mut().len = n };
            return Some(Prefilled(Kind::Oversize(array)));
        }
        // SAFETY: no thread has seen it.
        unsafe { self.kfree(memory.as_ptr()) };
        None
    }

    /// Takes a reserved object; null only if none is left.
    ///
    /// A cache with a constructor cannot give zeroed memory: the object stays as constructed, with
    /// a warning.
    #[inline]
    pub fn alloc_from(&self, cache: &KmemCache<P>, gfp: Gfp, prefilled: &mut Prefilled) -> *mut u8 {
        let object = prefilled.pop();
        if gfp.contains(Gfp::ZERO) && !object.is_null() && self.may_zero(cache) {
            self.zero_object(cache, object);
        }
        object
    }

    /// As [`refill_prefilled`](Self::refill_prefilled), for a sheaf that has the room.
    #[inline]
    fn refill_sheaf(&self, cache: &KmemCache<P>, gfp: Gfp, sheaf: &mut Sheaf, n: usize) -> bool {
        for attempt in 0.. {
            let missing = n.saturating_sub(sheaf.len());
            let mut spill = Spill::new(self, cache, gfp);
            let overflow = spill.overflow();
            let room = sheaf.room();
            let mut refill = Refill::new(cache, &mut *room, missing, gfp, overflow);
            self.refill(&mut refill);
            let more = refill.filled;
            room[..more].reverse();
            sheaf.grow(more);
            if let Some(spilled) = self.spilled_for_cpu(spill, gfp) {
                self.install_filled(cache, spilled, gfp);
            }
            self.count(cache, StatItem::SheafRefill, more);
            self.count(cache, StatItem::AllocFastpath, more);
            self.end_allocation(gfp);
            if more >= missing {
                return true;
            }
            if (attempt >= RECLAIM_TRIES && !gfp.contains(Gfp::NOFAIL))
                || !self.reclaim_for(cache, gfp)
            {
                break;
            }
        }
        false
    }

    /// Refills to at least `n` objects; false without memory. There may then be more objects than
    /// before, but never fewer.
    pub fn refill_prefilled(
        &self,
        cache: &KmemCache<P>,
        gfp: Gfp,
        prefilled: &mut Prefilled,
        n: usize,
    ) -> bool {
        let gfp = gfp - Gfp::ZERO;
        if prefilled.size() >= n {
            return true;
        }
        if n > prefilled.capacity() {
            let Some(mut larger) = self.prefill(cache, gfp, n) else {
                return false;
            };
            core::mem::swap(prefilled, &mut larger);
            self.return_prefilled(cache, gfp, larger);
            return true;
        }
        match &mut prefilled.0 {
            Kind::Sheaf(sheaf) => self.refill_sheaf(cache, gfp, sheaf, n),
            Kind::Oversize(array) => {
                // SAFETY: ours; the words behind the objects were set at the creation.
                let room = unsafe {
                    let array = array.as_mut();
                    let (first, len) = (array.first(), array.len);
                    core::slice::from_raw_parts_mut(first.add(len), n - len)
                };
                if !self.alloc_bulk(cache, gfp, room) {
                    return false;
                }
                // SAFETY: ours.
                unsafe { array.as_mut().len = n };
                true
            }
        }
    }

    /// Returns the objects that are left to the cache.
    pub fn return_prefilled(&self, cache: &KmemCache<P>, gfp: Gfp, prefilled: Prefilled) {
        let mut sheaf = match prefilled.0 {
            Kind::Sheaf(sheaf) => sheaf,
            Kind::Oversize(mut array) => {
                // SAFETY: ours, with `len` objects of the cache that nobody uses.
                unsafe {
                    let (first, len) = (array.as_mut().first(), array.as_ref().len);
                    self.free_bulk_with(cache, core::slice::from_raw_parts_mut(first, len), gfp);
                    self.kfree_with(array.as_ptr().cast(), gfp);
                }
                return;
            }
        };
        self.count(cache, StatItem::FreeFastpath, sheaf.len());
        if self.has_slots(gfp) {
            match self.try_install(cache.id.spare(), sheaf) {
                Ok(()) => return self.count(cache, StatItem::SheafReturnFast, 1),
                Err(back) => sheaf = back,
            }
        }
        self.count(cache, StatItem::SheafReturnSlow, 1);
        if !sheaf.is_full() && !self.barns_are_full(cache) {
            let room = sheaf.room();
            let more = self.refill_objects(cache, room, 0, gfp - Gfp::MAP);
            sheaf.grow(more);
            self.count(cache, StatItem::SheafRefill, more);
        }
        self.store_or_flush(cache, sheaf, gfp);
    }
}
