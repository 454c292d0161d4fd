//! Destruction of a cache.
//!
//! 1. Flush all sheaves and free all empty slabs.
//! 2. If no object is in use, the cache's identity and record are reused for another cache.
//! 3. Otherwise report each object and keep the cache and its memory forever: a leak is safer than
//!    memory with two owners.
//!
//! Callers: the last of a cache's creators. No other thread may use the cache meanwhile.

use core::ptr;

use crate::args::Flags;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::drain::DrainScope;
use crate::cache::validate::SlotSet;
use crate::memory::{PageIndex, PageKind};
use crate::misuse::{Misuse, Reason};
use crate::platform::Platform;
use crate::slab::state::Slab;

impl<P: Platform> Allocator<P> {
    /// Destroys a cache; calls `leaked` with each object still in use, and returns the number of
    /// these objects. If there is one, the cache stays. It also stays while other creators share
    /// it, and then nothing is reported.
    ///
    /// A second destruction of a cache ends the process with a message.
    ///
    /// # Safety
    ///
    /// Nobody uses the cache any longer, unless objects leaked.
    pub unsafe fn destroy(&self, cache: &KmemCache<P>, mut leaked: impl FnMut(*mut u8)) -> usize {
        if !self
            .cache(cache.id)
            .is_some_and(|known| ptr::eq(known, cache))
        {
            Misuse::DestroyedTwice(cache.name()).fatal(&self.platform);
        }
        if !self.drop_user(cache) {
            return 0;
        }
        self.forget_shrinkers(cache);
        if cache.may_wait_for_readers() {
            self.rcu_barrier_for(&|c| c.id == cache.id);
        }
        self.flush_all(cache, DrainScope::All);
        self.while_draining(|| self.shrink_nodes(cache));
        if cache.flags.contains(Flags::TYPESAFE_BY_RCU) {
            self.rcu_barrier_for(&|_| false);
            self.free_slabs_after_grace(cache);
        }
        let mut count = 0;
        if cache.nr_slabs() > 0 {
            self.for_each_in_use(cache, |object| {
                count += 1;
                leaked(object);
            });
        }
        self.debug.guard.for_each_of(cache.id.raw(), |object| {
            count += 1;
            leaked(object);
        });
        if count == 0 {
            self.release_id(cache);
        } else {
            self.add_user(cache);
        }
        count
    }

    /// Frees the empty slabs that could not wait for readers for lack of memory; the caller waits
    /// for a grace period instead.
    fn free_slabs_after_grace(&self, cache: &KmemCache<P>) {
        if cache.nr_slabs() == 0 {
            return;
        }
        self.grace(Some(cache.id), ptr::null_mut()).synchronize();
        self.while_draining(|| {
            for node in cache.nodes() {
                for slab in self.take_empty(cache, node).iter(&self.zone.arena) {
                    self.free_slab_now(cache, node, slab);
                }
            }
        });
    }

    /// Calls `visit` with each object of a cache in use, including those in sheaves; a debugged
    /// cache reports them first. The cache must be idle.
    fn for_each_in_use(&self, cache: &KmemCache<P>, mut visit: impl FnMut(*mut u8)) {
        if cache.is_debugged() {
            self.report_remaining(cache);
            return self.for_each_debug_object(cache, &mut |_, object| visit(object));
        }
        let arena = &self.zone.arena;
        for page in 0..arena.limit() as u32 {
            let slab = arena.slab(PageIndex(page));
            if arena.cache_of(PageIndex(page)) == Some(cache.id) && slab.kind() == PageKind::Slab {
                self.for_each_in_slab(cache, slab, &mut visit);
            }
        }
    }

    fn for_each_in_slab(&self, cache: &KmemCache<P>, slab: &Slab, visit: &mut impl FnMut(*mut u8)) {
        if slab.state().inuse() == 0 {
            return;
        }
        let (base, mut free) = (self.slab_base(slab), SlotSet::NONE);
        if self.find_free(cache, slab, &mut free).is_err() {
            self.corrupt(cache, base, Reason::BadFreelist);
        }
        let objects = cache.geometry.objects as usize;
        for slot in (0..objects).filter(|&slot| !free.contains(slot)) {
            visit(base.wrapping_add(slot * cache.size as usize));
        }
    }
}
