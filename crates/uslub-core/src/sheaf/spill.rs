//! Spill: puts the rest of a refill into one of the CPU's sheaves.
//!
//! A refill takes slabs until its caller has enough objects. The last slab usually holds more, and
//! returning the rest takes the node's list lock once more. With `sheaf_spill` the rest goes into
//! the CPU's main or spare sheaf instead, if this has room for all of it. (A part would still need
//! the lock.) The slab then leaves in one step, full.
//!
//! Callers: `take` reserves the room, and the refill's caller installs the sheaf.

use crate::gfp::Gfp;
use crate::percpu::sheaf::Sheaf;
use crate::platform::Platform;
use crate::sheaf::cache::SheafCache;
use crate::slab::base::Base;
use crate::slab::take::Overflow;
use crate::sync::atomic;
use crate::sync::choice::Choice;

/// The sheaf that takes what a refill leaves over, if it needs one.
pub(crate) struct Spill<'a, P: Platform> {
    cache: &'a SheafCache<P>,
    sheaf: Option<Sheaf>,
}

impl<'a, P: Platform> Spill<'a, P> {
    /// No sheaf yet.
    pub(crate) fn new(cache: &'a SheafCache<P>) -> Self {
        Self { cache, sheaf: None }
    }

    /// Where a refill may put the rest of a slab; nowhere if the cache does not spill.
    pub(crate) fn overflow(&mut self) -> Option<&mut dyn Overflow<P>> {
        // A constructor runs only for objects that are wanted.
        (self.cache.tuning.sheaf_spill == 1 && self.cache.ctor.is_none()).then_some(self)
    }

    /// The sheaf, now the caller's.
    pub(crate) fn into_sheaf(self) -> Option<Sheaf> {
        self.sheaf
    }
}

impl<P: Platform> Overflow<P> for Spill<'_, P> {
    fn has_room(&mut self, base: &Base<P>, n: usize) -> bool {
        if self.sheaf.is_none() {
            let capacity = self.cache.capacity;
            if atomic::choose(Choice::Spill { rest: n, capacity }, n) < n {
                return false;
            }
            self.sheaf = base.sheaf_for_spill(self.cache, n);
        }
        (self.sheaf.as_ref()).is_some_and(|sheaf| sheaf.capacity() - sheaf.len() >= n)
    }

    fn places(&mut self, n: usize) -> &mut [*mut u8] {
        match &mut self.sheaf {
            Some(sheaf) => &mut sheaf.room()[..n],
            None => &mut [],
        }
    }

    fn took(&mut self, n: usize) {
        if let Some(sheaf) = &mut self.sheaf {
            sheaf.grow(n);
        }
    }
}

impl<P: Platform> Base<P> {
    fn sheaf_for_spill(&self, cache: &SheafCache<P>, rest: usize) -> Option<Sheaf> {
        if rest > cache.capacity || !self.platform.percpu_usable() {
            return None;
        }
        self.detach_local(cache, |top| top.room() >= rest)
    }

    /// Installs the sheaf with the rest as this CPU's spare: used after the refilled sheaf.
    #[inline(never)]
    pub(crate) fn install_spilled(&self, spill: Spill<'_, P>, gfp: Gfp) {
        let cache = spill.cache;
        if let Some(sheaf) = spill.into_sheaf()
            && let Err(sheaf) = self.try_install(cache.id.spare(), sheaf)
        {
            self.install_filled(cache, sheaf, gfp);
        }
    }
}
