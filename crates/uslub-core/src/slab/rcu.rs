//! The slabs of a cache with `TYPESAFE_BY_RCU` wait for a grace period before their pages are
//! reused.
//!
//! An empty slab's address waits in a sheaf of one object, whose window has the record of the grace
//! period. Callbacks run on a thread of the grace period without locks of the allocator.

use core::ptr::NonNull;

use crate::gfp::Gfp;
use crate::grace::{GracePeriod, RcuHead};
use crate::percpu::CacheId;
use crate::percpu::sheaf::{SHEAF_BYTES, Sheaf, Window};
use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::Node;
use crate::slab::state::Slab;

impl<P: Platform> Base<P> {
    pub(crate) fn grace(&self) -> &'static dyn GracePeriod {
        match *self.grace.lock() {
            Some(grace) => grace,
            None => self
                .platform
                .fatal(format_args!("free_rcu: no grace period was set")),
        }
    }

    /// Lets the pages of an empty slab that we own wait for a grace period; false without memory
    /// for the wait.
    pub(crate) fn free_slab_rcu(&self, cache: &SlabCache<P>, slab: &Slab, gfp: Gfp) -> bool {
        let Some(window) = self.meta.window(&self.platform, gfp) else {
            return false;
        };
        // SAFETY: a window of ours, which is never freed.
        let mut sheaf = unsafe { Sheaf::new(window, 1, cache.id.index()) };
        sheaf.push(self.slab_base(slab));
        let window = sheaf.keep().as_ptr();
        // SAFETY: the window is ours until the callback.
        unsafe {
            (*window).allocator = core::ptr::from_ref(self).cast();
            self.grace().call(&raw mut (*window).rcu, slab_waited::<P>);
        }
        true
    }

    /// After a slab's grace period: its pages may be reused.
    fn slab_done(&self, mut sheaf: Sheaf) {
        let cache = self.slabs_of(CacheId::from_index(sheaf.cache()));
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

unsafe extern "C" fn slab_waited<P: Platform>(head: *mut RcuHead) {
    // SAFETY: the callback of `free_slab_rcu`.
    let (sheaf, base) = unsafe { context_of::<Base<P>>(head) };
    base.slab_done(sheaf);
}
