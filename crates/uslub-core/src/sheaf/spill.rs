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
use crate::percpu::sheaf::Sheaf;
use crate::platform::Platform;
use crate::slab::take::Overflow;

/// The sheaf that takes what a refill leaves over, if it needs one.
pub(crate) struct Spill(Option<Sheaf>);

impl Spill {
    /// No sheaf yet.
    pub(crate) fn new() -> Self {
        Self(None)
    }

    /// Where a refill may put the rest of a slab; nowhere if the cache does not spill.
    pub(crate) fn overflow_of<P: Platform>(
        &mut self,
        cache: &KmemCache<P>,
    ) -> Option<&mut dyn Overflow<P>> {
        // A constructor runs only for objects that are wanted.
        (cache.tuning.sheaf_spill == 1 && cache.ctor.is_none()).then_some(self)
    }

    /// The sheaf, now the caller's.
    pub(crate) fn into_sheaf(self) -> Option<Sheaf> {
        self.0
    }
}

impl<P: Platform> Overflow<P> for Spill {
    fn has_room(&mut self, allocator: &Allocator<P>, cache: &KmemCache<P>, n: usize) -> bool {
        if self.0.is_none() {
            self.0 = allocator.sheaf_for_spill(cache, n);
        }
        (self.0.as_ref()).is_some_and(|sheaf| sheaf.capacity() - sheaf.len() >= n)
    }

    fn places(&mut self, n: usize) -> &mut [*mut u8] {
        match &mut self.0 {
            Some(sheaf) => &mut sheaf.room()[..n],
            None => &mut [],
        }
    }

    fn took(&mut self, n: usize) {
        if let Some(sheaf) = &mut self.0 {
            sheaf.grow(n);
        }
    }
}

impl<P: Platform> Allocator<P> {
    fn sheaf_for_spill(&self, cache: &KmemCache<P>, rest: usize) -> Option<Sheaf> {
        if rest > cache.capacity || !self.platform.percpu_usable() || self.region_is_missing() {
            return None;
        }
        self.detach_local(cache, |top| top.room() >= rest)
    }

    /// Installs the sheaf with the rest as this CPU's spare: used after the refilled sheaf.
    #[inline(never)]
    pub(crate) fn install_spilled(&self, cache: &KmemCache<P>, spill: Spill, gfp: Gfp) {
        if let Some(sheaf) = spill.into_sheaf()
            && let Err(sheaf) = self.try_install(cache.id.spare(), sheaf)
        {
            self.install_filled(cache, sheaf, gfp);
        }
    }
}
