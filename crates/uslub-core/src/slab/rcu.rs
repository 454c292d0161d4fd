//! The slabs of a cache with `TYPESAFE_BY_RCU` wait for a grace period before their pages are
//! reused.
//!
//! An empty slab's address waits in a sheaf of one object, whose window has the record of the grace
//! period. Callbacks run on a thread of the grace period without locks of the allocator. Callers:
//! `fresh`, and `rcu` above.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::grace::{GracePeriod, RcuCallback, RcuHead};
use crate::misuse::{Misuse, Reason};
use crate::percpu::CacheId;
use crate::percpu::sheaf::{SHEAF_BYTES, Sheaf, Window};
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::Node;
use crate::slab::state::Slab;

impl<P: Platform> Base<P> {
    /// The source of grace periods; `object` of the cache with this identity is to wait for one.
    pub(crate) fn grace(&self, id: Option<CacheId>, object: *mut u8) -> &'static dyn GracePeriod {
        let grace = self.grace.get();
        grace.unwrap_or_else(|| self.no_grace_period(id, object))
    }

    #[cold]
    #[inline(never)]
    fn no_grace_period(&self, id: Option<CacheId>, object: *mut u8) -> ! {
        let cache = id.and_then(|id| self.slabs_of(id)).map(SlabCache::name);
        Misuse::Object(cache, "free_rcu of", object, Reason::NoGracePeriod).fatal(&self.platform)
    }

    /// Lets the pages of an empty slab that we own wait for a grace period; false without memory
    /// for the wait.
    pub(crate) fn free_slab_rcu(&self, cache: &SlabCache<P>, slab: &Slab, gfp: Gfp) -> bool {
        let Some(window) = self.meta.window(&self.platform, gfp) else {
            return false;
        };
        // SAFETY: a window of ours, which is never freed.
        let mut sheaf = unsafe { Sheaf::new(window, 1, cache.id.index()) };
        let base = self.slab_base(slab);
        sheaf.push(base);
        let grace = self.grace(Some(cache.id), base);
        let context = core::ptr::from_ref(self).cast();
        // Relaxed: a statistic.
        cache
            .node(usize::from(slab.node()))
            .nr_waiting
            .fetch_add(1, Relaxed);
        call_with_window(grace, sheaf, context, on_slab_ready::<P>);
        true
    }

    /// After a slab's grace period: its pages may be reused.
    fn slab_ready(&self, mut sheaf: Sheaf) {
        let cache = self.slabs_of(CacheId::from_index(sheaf.cache()));
        let page = sheaf
            .pop()
            .and_then(|base| self.zone.arena.page_of(base as usize));
        if let (Some(cache), Some(page)) = (cache, page) {
            let slab: &Slab = self.zone.arena.slab(page);
            let node: &Node<P> = cache.node(usize::from(slab.node()));
            self.free_slab_now(cache, node, slab);
            // Relaxed: a statistic.
            node.nr_waiting.fetch_sub(1, Relaxed);
        }
        self.meta
            .give_window(&self.platform, sheaf.into_window(), true);
    }
}

/// Calls `callback` with the sheaf's window after a grace period.
pub(crate) fn call_with_window(
    grace: &dyn GracePeriod,
    sheaf: Sheaf,
    context: *const (),
    callback: RcuCallback,
) {
    let window = sheaf.keep().as_ptr();
    // SAFETY: the window is ours until the callback.
    unsafe {
        (*window).allocator = context;
        grace.call(&raw mut (*window).rcu, callback);
    }
}

/// The sheaf and the context of a record in a window.
///
/// # Safety
///
/// `head` lies in a window that waits, the caller is its callback, and the window's context is a
/// `T` that outlives its waiting objects.
pub(crate) unsafe fn context_of<'a, T>(head: *mut RcuHead) -> (Sheaf, &'a T) {
    let window = (head as usize & !(SHEAF_BYTES - 1)) as *mut Window;
    // SAFETY: by the caller's promise.
    unsafe {
        let window = NonNull::new_unchecked(window);
        let context = window.as_ref().allocator.cast::<T>();
        (Sheaf::from_window(window), &*context)
    }
}

unsafe extern "C" fn on_slab_ready<P: Platform>(head: *mut RcuHead) {
    // SAFETY: the callback of `free_slab_rcu`.
    let (sheaf, base) = unsafe { context_of::<Base<P>>(head) };
    base.slab_ready(sheaf);
}
