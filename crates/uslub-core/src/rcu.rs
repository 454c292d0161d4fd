//! Frees after a grace period, in batches: the kernel's `kfree_rcu`, with per-CPU rcu sheaves.
//!
//! Each CPU collects a cache's objects in a third sheaf. A full sheaf is handed to the
//! [`GracePeriod`]. After the grace period the sheaf goes to the barn as it is, or its objects go
//! to their slabs. So all objects of a sheaf wait for the grace period of the last.
//!
//! The slabs of a cache with `TYPESAFE_BY_RCU` wait in the same way before their pages are reused.
//!
//! Any thread may free; callbacks run on a thread of the grace period without locks of the
//! allocator.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Release;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::drain::SlotSelector;
use crate::gfp::Gfp;
use crate::grace::{GracePeriod, RcuHead};
use crate::percpu::CacheId;
use crate::percpu::sheaf::{self, Sheaf};
use crate::percpu::sheaf_list::SheafList;
use crate::percpu::slot::{SlotState, Top};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::RCU_SLOT_TRIES;
use crate::slab::rcu::{call_with_window, context_of};

/// An object that waits for a grace period without a sheaf.
#[repr(C)]
struct SingleDeferral {
    head: RcuHead,
    allocator: *const (),
    object: *mut u8,
}

impl<P: Platform> Allocator<P> {
    /// Sets the source of grace periods; false if it was set before.
    pub fn set_grace_period(&self, grace: &'static dyn GracePeriod) -> bool {
        self.grace.set(grace)
    }

    /// Whether there is a source of grace periods.
    pub fn has_grace_period(&self) -> bool {
        self.grace.get().is_some()
    }

    /// Frees an object of a cache after a grace period; null is ignored.
    ///
    /// Without a sheaf the object waits alone, in a record from kmalloc. Without memory for the
    /// record, the caller itself waits for the grace period.
    ///
    /// # Safety
    ///
    /// The object came from this cache, and nobody begins to use it any longer. Readers in a
    /// read-side section may still read it.
    pub unsafe fn free_rcu(&self, cache: &KmemCache<P>, object: *mut u8) {
        let is_guarded = self.is_guarded(object);
        if !is_guarded && !self.is_object_of(cache, object) {
            return;
        }
        if !cache.may_wait_for_readers() {
            self.prepare_rcu(cache);
        }
        if is_guarded || cache.is_debugged() || !self.is_cacheable_here(cache, object) {
            // An object of another node waits alone, and goes to its slab.
            return self.defer_single(Some(cache.id), object);
        }
        if self.platform.percpu_usable() && self.push_rcu(cache, object) {
            return;
        }
        self.count(cache, StatItem::FreeRcuSheafFail, 1);
        self.defer_single(Some(cache.id), object);
    }

    /// As [`free_rcu`](Self::free_rcu), for an object of kmalloc or of any cache.
    ///
    /// # Safety
    ///
    /// As for [`free_rcu`](Self::free_rcu).
    pub unsafe fn kfree_rcu(&self, object: *mut u8) {
        if object.is_null() {
            return;
        }
        if let Some(cache) = self.cache_of(object) {
            // SAFETY: passed on.
            return unsafe { self.free_rcu(cache, object) };
        }
        self.defer_single(None, object);
    }

    /// Frees an object after a grace period, without a sheaf.
    fn defer_single(&self, id: Option<CacheId>, object: *mut u8) {
        let memory = self
            .kmalloc(size_of::<SingleDeferral>(), Gfp::KERNEL)
            .cast::<SingleDeferral>();
        let Some(deferral) = NonNull::new(memory) else {
            self.grace(id, object).synchronize();
            // SAFETY: the caller frees it, and its readers have left.
            return unsafe { self.kfree(object) };
        };
        // SAFETY: ours until the callback.
        unsafe {
            deferral.write(SingleDeferral {
                head: RcuHead::NEW,
                allocator: core::ptr::from_ref(self).cast(),
                object,
            });
            let head = deferral.as_ptr().cast();
            self.grace(id, object).call(head, on_object_ready::<P>);
        }
    }

    fn push_rcu(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        let slot = cache.id.rcu();
        for _ in 0..RCU_SLOT_TRIES {
            // SAFETY: our table; the object is being freed.
            if unsafe { self.platform.push(&self.table, slot, object) } {
                return true;
            }
            let Some(word) = self.peek_after_miss(slot, Gfp::KERNEL) else {
                return false;
            };
            if !SlotState::of(word).is_free_or(Top::is_full) {
                continue;
            }
            let Some(mut sheaf) = self.empty_sheaf(cache, Gfp::KERNEL) else {
                return false;
            };
            sheaf.push(object);
            match self.replace(slot, word, sheaf) {
                Ok(full) => {
                    self.count(cache, StatItem::FreeRcuSheaf, 1);
                    full.into_iter()
                        .for_each(|sheaf| self.hand_to_grace_period(sheaf));
                    return true;
                }
                Err(mut sheaf) => {
                    sheaf.truncate(0);
                    self.install_empty(cache, sheaf, Gfp::KERNEL);
                }
            }
        }
        false
    }

    #[cold]
    fn prepare_rcu(&self, cache: &KmemCache<P>) {
        self.while_draining(|| self.table.prepare_rcu(cache.id));
        // Release: the words of the slots are ready.
        cache.has_rcu_sheaves.store(true, Release);
    }

    /// Hands a sheaf to the grace period.
    #[inline(never)]
    fn hand_to_grace_period(&self, sheaf: Sheaf) {
        let id = CacheId::from_index(sheaf.cache());
        let Some(&object) = sheaf.objects().first() else {
            if let Some(cache) = self.cache(id) {
                self.free_sheaf(cache, sheaf, Gfp::KERNEL);
            }
            return;
        };
        let grace = self.grace(Some(id), object);
        let context = core::ptr::from_ref(self).cast();
        call_with_window(grace, sheaf, context, on_sheaf_ready::<P>);
    }

    /// After a sheaf's grace period: its objects may be allocated.
    fn sheaf_ready(&self, sheaf: Sheaf) {
        let Some(cache) = self.cache(CacheId::from_index(sheaf.cache())) else {
            return;
        };
        let mut sheaf = sheaf;
        let is_closed = self.closed.contains(cache.id);
        let mut objects = sheaf.objects().iter();
        if !is_closed && objects.all(|&object| self.is_cacheable_here(cache, object)) {
            self.count(cache, StatItem::FreeFastpath, sheaf.len());
            return self.store_or_flush(cache, sheaf, Gfp::NOWAIT);
        }
        // The callback's thread is on another node than the objects, or the cache is closed.
        self.count(cache, StatItem::FreeSlowpath, sheaf.len());
        self.flush_sheaf(cache, &mut sheaf, Gfp::NOWAIT);
        self.install_empty(cache, sheaf, Gfp::NOWAIT);
    }

    /// Waits until all objects given to [`free_rcu`](Self::free_rcu) before are free.
    ///
    /// Not inside a read-side section.
    pub fn rcu_barrier(&self) {
        self.rcu_barrier_for(&|_| true);
    }

    pub(crate) fn rcu_barrier_for(&self, which: &dyn Fn(&KmemCache<P>) -> bool) {
        let Some(grace) = self.grace.get() else {
            return;
        };
        let mut taken = SheafList::new();
        let which = |cache: &KmemCache<P>| cache.may_wait_for_readers() && which(cache);
        let rcu: SlotSelector = |id| (id.rcu(), sheaf::bootstrap());
        self.take_slots(&|_| true, &which, &[rcu], &mut taken);
        while let Some(sheaf) = taken.pop() {
            let cache = self.cache(CacheId::from_index(sheaf.cache()));
            self.hand_to_grace_period(sheaf);
            if let Some(cache) = cache {
                self.finish_flush(cache);
            }
        }
        // Sheaves that another barrier has detached may not be handed over yet.
        let wait_for_flushes = |cache| self.wait_for_flushes(cache);
        self.while_draining(|| {
            self.caches()
                .filter(|c| which(c))
                .for_each(wait_for_flushes)
        });
        grace.barrier();
    }
}

unsafe extern "C" fn on_sheaf_ready<P: Platform>(head: *mut RcuHead) {
    // SAFETY: the callback of `hand_to_grace_period`.
    let (sheaf, allocator) = unsafe { context_of::<Allocator<P>>(head) };
    allocator.sheaf_ready(sheaf);
}

unsafe extern "C" fn on_object_ready<P: Platform>(head: *mut RcuHead) {
    // SAFETY: the callback of `defer_single`; an allocator outlives its waiting objects.
    unsafe {
        let deferral = head.cast::<SingleDeferral>().read();
        let allocator = &*deferral.allocator.cast::<Allocator<P>>();
        allocator.kfree(head.cast());
        allocator.kfree(deferral.object);
    }
}
