//! Spilling: what a refill leaves over goes into the CPU's sheaves.
//!
//! A refill empties slabs until its caller has enough; the last slab usually holds more. To give
//! that back takes the node's list lock once more. With `sheaf_spill` it goes into a sheaf instead,
//! if one has room for all of it (for a part the lock would be needed all the same):
//!
//! 1. the CPU's own main or spare sheaf,
//! 2. an empty sheaf, where the spare's place is free for it.
//!
//! The slab then leaves in one step, full.

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::sheaf::{self, Sheaf};
use crate::platform::Platform;

/// Where a refill may put what is left over.
pub(crate) struct Spill {
    pub(crate) allowed: bool,
    /// The sheaf that took it, owned by the refill's caller.
    pub(crate) sheaf: Option<Sheaf>,
}

impl Spill {
    /// Back to the slab.
    pub(crate) fn none() -> Self {
        Self {
            allowed: false,
            sheaf: None,
        }
    }

    /// Into sheaves, if the cache is to.
    pub(crate) fn of<P: Platform>(cache: &KmemCache<P>) -> Self {
        Self {
            // A constructor runs only for objects that are wanted.
            allowed: cache.tuning.sheaf_spill == 1 && cache.ctor.is_none(),
            sheaf: None,
        }
    }
}

impl<P: Platform> Allocator<P> {
    /// Objects of `rest` that a sheaf can take: all or none.
    pub(crate) fn spill_room(
        &self,
        cache: &KmemCache<P>,
        spill: &mut Spill,
        rest: usize,
        gfp: Gfp,
    ) -> usize {
        if !spill.allowed || rest == 0 {
            return 0;
        }
        if spill.sheaf.is_none() {
            spill.sheaf = self.sheaf_for_spill(cache, rest, gfp);
        }
        let room = |sheaf: &Sheaf| sheaf.capacity() - sheaf.len();
        let fits = spill.sheaf.as_ref().is_some_and(|s| room(s) >= rest);
        if fits { rest } else { 0 }
    }

    fn sheaf_for_spill(&self, cache: &KmemCache<P>, rest: usize, gfp: Gfp) -> Option<Sheaf> {
        if rest > cache.capacity || !self.has_slots(gfp) {
            return None;
        }
        self.take_own(cache, |top| sheaf::top_room(top) >= rest)
    }

    /// Puts what was left over where the CPU finds it next, behind what was refilled.
    #[inline(never)]
    pub(crate) fn place_spilled(&self, cache: &KmemCache<P>, spill: Spill, gfp: Gfp) {
        let Some(sheaf) = spill.sheaf else {
            return;
        };
        let top = sheaf.into_top();
        if !self.swap(cache.id.spare(), 0, top) {
            // SAFETY: in no slot, so still ours.
            self.place_filled(cache, unsafe { Sheaf::from_top(top) }, gfp);
        }
    }
}
