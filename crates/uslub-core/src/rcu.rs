//! Frees after a grace period, in batches: the kernel's `kfree_rcu`, with per-CPU rcu sheaves.
//!
//! Each CPU collects a cache's objects in a third sheaf. A full sheaf is handed to the
//! [`GracePeriod`]. After the grace period the sheaf goes to the barn as it is, or its objects go
//! to their slabs. So all objects of a sheaf wait for the grace period of the last.
//!
//! | word of the rcu slot | meaning |
//! |---|---|
//! | a top | this CPU's rcu sheaf |
//! | bootstrap | no rcu sheaf yet |
//! | stopped | the CPU is being drained |
//!
//! The slabs of a cache with `TYPESAFE_BY_RCU` wait in the same way before their pages are reused.
//!
//! Any thread may free; callbacks run on a thread of the grace period without locks of the
//! allocator.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::grace::{GracePeriod, RcuCallback, RcuHead};
use crate::misuse::{Misuse, Reason};
use crate::percpu::CacheId;
use crate::percpu::sheaf::{self, SHEAF_BYTES, Sheaf, SheafList, Window};
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::RCU_SLOT_TRIES;
use crate::sheaf::drain::SlotSelector;
use crate::slab::node::Node;
use crate::slab::state::Slab;

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
        let mut place = self.grace.lock();
        if place.is_some() {
            return false;
        }
        *place = Some(grace);
        true
    }

    /// The source of grace periods; `object` of the cache with this identity is to wait for one.
    pub(crate) fn grace(&self, id: Option<CacheId>, object: *mut u8) -> &'static dyn GracePeriod {
        let grace = *self.grace.lock();
        grace.unwrap_or_else(|| self.no_grace_period(id, object))
    }

    #[cold]
    #[inline(never)]
    fn no_grace_period(&self, id: Option<CacheId>, object: *mut u8) -> ! {
        let cache = id.and_then(|id| self.cache(id)).map(KmemCache::name);
        Misuse::Object(cache, "free_rcu of", object, Reason::NoGracePeriod).fatal(&self.platform)
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
        if !self.is_object_of(cache, object) {
            return;
        }
        // Acquire: pairs with `prepare_rcu`.
        if !cache.has_rcu_sheaves.load(Acquire) {
            self.prepare_rcu(cache);
        }
        if !self.is_cacheable_here(cache, object) {
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
        let page = self.zone.arena.page_of(object as usize);
        if let Some(page) = page
            && let Some(id) = self.zone.arena.cache_of(page)
            && let Some(cache) = self.cache(id)
        {
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
            let top = self.peek(slot);
            if top == sheaf::stopped() {
                if self.region_is_missing() && self.make_region() {
                    continue;
                }
                return false;
            }
            if top & 1 != 0 || !sheaf::top_is_full(top) {
                continue;
            }
            let Some(mut sheaf) = self.empty_sheaf(cache, Gfp::KERNEL) else {
                return false;
            };
            sheaf.push(object);
            let new = sheaf.into_top();
            if self.compare_exchange_slot(slot, top, new) {
                self.count(cache, StatItem::FreeRcuSheaf, 1);
                if top != sheaf::bootstrap() {
                    // SAFETY: just taken out of its slot, and no sentinel.
                    self.hand_to_grace_period(unsafe { Sheaf::from_top(top) });
                }
                return true;
            }
            // SAFETY: in no slot, so this thread still owns it.
            let mut sheaf = unsafe { Sheaf::from_top(new) };
            sheaf.truncate(0);
            self.install_empty(cache, sheaf, Gfp::KERNEL);
        }
        false
    }

    #[cold]
    fn prepare_rcu(&self, cache: &KmemCache<P>) {
        self.prepare_rcu_slots(cache.id);
        // Release: the words of the slots are ready.
        cache.has_rcu_sheaves.store(true, Release);
    }

    /// Hands a sheaf to the grace period.
    fn hand_to_grace_period(&self, sheaf: Sheaf) {
        let id = CacheId::from_index(sheaf.cache());
        let Some(&object) = sheaf.objects().first() else {
            if let Some(cache) = self.cache(id) {
                self.free_sheaf(cache, sheaf, Gfp::KERNEL);
            }
            return;
        };
        let grace = self.grace(Some(id), object);
        self.call_with_window(grace, sheaf, on_sheaf_ready::<P>);
    }

    /// Calls `callback` with the sheaf's window after a grace period.
    fn call_with_window(&self, grace: &dyn GracePeriod, sheaf: Sheaf, callback: RcuCallback) {
        let window = sheaf.keep().as_ptr();
        // SAFETY: the window is ours until the callback.
        unsafe {
            (*window).allocator = core::ptr::from_ref(self).cast();
            grace.call(&raw mut (*window).rcu, callback);
        }
    }

    /// After a sheaf's grace period: its objects may be allocated.
    fn sheaf_ready(&self, sheaf: Sheaf) {
        let Some(cache) = self.cache(CacheId::from_index(sheaf.cache())) else {
            return;
        };
        let mut sheaf = sheaf;
        if sheaf
            .objects()
            .iter()
            .all(|&object| self.is_cacheable_here(cache, object))
        {
            self.count(cache, StatItem::FreeFastpath, sheaf.len());
            return self.store_or_flush(cache, sheaf, Gfp::NOWAIT);
        }
        // The callback's thread is on another node than the objects.
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
        let Some(grace) = *self.grace.lock() else {
            return;
        };
        let mut taken = SheafList::new();
        // Acquire: pairs with `prepare_rcu`.
        let which = |cache: &KmemCache<P>| cache.has_rcu_sheaves.load(Acquire) && which(cache);
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

    /// Lets the pages of an empty slab that we own wait for a grace period; false without memory
    /// for the wait.
    pub(crate) fn free_slab_rcu(&self, cache: &KmemCache<P>, slab: &Slab, gfp: Gfp) -> bool {
        let Some(window) = self.meta.window(&self.platform, gfp) else {
            return false;
        };
        // SAFETY: a window of ours, which is never freed.
        let mut sheaf = unsafe { Sheaf::new(window, 1, cache.id.index()) };
        let base = self.slab_base(slab);
        sheaf.push(base);
        let grace = self.grace(Some(cache.id), base);
        self.call_with_window(grace, sheaf, on_slab_ready::<P>);
        true
    }

    /// After a slab's grace period: its pages may be reused.
    fn slab_ready(&self, mut sheaf: Sheaf) {
        let cache = self.cache(CacheId::from_index(sheaf.cache()));
        let page = sheaf
            .pop()
            .and_then(|base| self.zone.arena.page_of(base as usize));
        if let (Some(cache), Some(page)) = (cache, page) {
            let slab: &Slab = self.zone.arena.slab(page);
            let node: &Node<P> = cache.node(usize::from(slab.node()));
            self.free_slab_now(cache, node, slab);
        }
        self.meta.give_window(sheaf.into_window(), true);
    }
}

/// The sheaf and the allocator of a record in a window.
///
/// # Safety
///
/// `head` lies in a window that waits, and the caller is its callback.
unsafe fn context_of<'a, P: Platform>(head: *mut RcuHead) -> (Sheaf, &'a Allocator<P>) {
    let window = (head as usize & !(SHEAF_BYTES - 1)) as *mut Window;
    // SAFETY: by the caller's promise; an allocator outlives its waiting objects.
    unsafe {
        let window = NonNull::new_unchecked(window);
        let allocator = window.as_ref().allocator.cast::<Allocator<P>>();
        (Sheaf::from_window(window), &*allocator)
    }
}

unsafe extern "C" fn on_sheaf_ready<P: Platform>(head: *mut RcuHead) {
    // SAFETY: the callback of `hand_to_grace_period`.
    let (sheaf, allocator) = unsafe { context_of::<P>(head) };
    allocator.sheaf_ready(sheaf);
}

unsafe extern "C" fn on_slab_ready<P: Platform>(head: *mut RcuHead) {
    // SAFETY: the callback of `free_slab_rcu`.
    let (sheaf, allocator) = unsafe { context_of::<P>(head) };
    allocator.slab_ready(sheaf);
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
