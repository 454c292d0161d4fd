//! Spill: puts the rest of a refill into one of the CPU's sheaves.
//!
//! A refill takes slabs until its caller has enough objects. The last slab usually holds more, and
//! returning the rest takes the node's list lock once more. With `sheaf_spill` the rest goes into
//! the CPU's main or spare sheaf instead, if this has room for all of it. (A part would still need
//! the lock.) The slab then leaves in one step, full.
//!
//! Callers: `take` reserves the room, and the refill's caller installs the sheaf.

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::gfp::Gfp;
use crate::percpu::sheaf::{self, Sheaf};
use crate::platform::Platform;

/// Where a refill may put its rest.
pub(crate) struct Spill {
    pub(crate) allowed: bool,
    /// The detached sheaf that takes the rest; the refill's caller owns it.
    pub(crate) sheaf: Option<Sheaf>,
}

impl Spill {
    /// No spill: the rest goes back to its slab.
    pub(crate) fn none() -> Self {
        Self {
            allowed: false,
            sheaf: None,
        }
    }

    /// Spills into sheaves, if the cache's tunables say so.
    pub(crate) fn of<P: Platform>(cache: &KmemCache<P>) -> Self {
        Self {
            // A constructor runs only for requested objects.
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

    /// Installs the sheaf with the rest as this CPU's spare: used after the refilled sheaf.
    #[inline(never)]
    pub(crate) fn place_spilled(&self, cache: &KmemCache<P>, spill: Spill, gfp: Gfp) {
        let Some(sheaf) = spill.sheaf else {
            return;
        };
        let top = sheaf.into_top();
        if !self.swap(cache.id.spare(), 0, top) {
            // SAFETY: in no slot, so this thread still owns it.
            self.place_filled(cache, unsafe { Sheaf::from_top(top) }, gfp);
        }
    }
}
