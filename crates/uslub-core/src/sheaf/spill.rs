//! Spill: puts the rest of a refill into a sheaf.
//!
//! A refill takes slabs until its caller has enough objects. The last slab usually holds more, and
//! returning the rest takes the node's list lock once more. With a spill the slab leaves in one
//! step, full, if a sheaf has room for all of the rest. (A part would still need the lock.)
//!
//! | `sheaf_spill` | the rest goes |
//! |---|---|
//! | 0 | back to its slab |
//! | 1 | into the CPU's main or spare sheaf |
//! | 2 | into one sheaf of the barn, which replaces the next empty main; as 1 if it has one |
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

/// The value of `sheaf_spill` for the barn.
pub(crate) const SPILL_INTO_BARN: u32 = 2;

/// The sheaf that takes what a refill leaves over, if it needs one.
pub(crate) struct Spill<'a, P: Platform> {
    cache: &'a SheafCache<P>,
    sheaf: Option<Sheaf>,
}

impl<'a, P: Platform> Spill<'a, P> {
    /// The barn's sheaf, or none yet. (Not in `has_room`: a refill has little stack left.)
    pub(crate) fn new(base: &Base<P>, cache: &'a SheafCache<P>, gfp: Gfp) -> Self {
        let mut spill = Self { cache, sheaf: None };
        if spill.is_into_barn() {
            spill.sheaf = base.barn_sheaf_for_spill(cache, gfp);
        }
        spill
    }

    /// Where a refill may put the rest of a slab; nowhere if the cache does not spill.
    pub(crate) fn overflow(&mut self) -> Option<&mut dyn Overflow<P>> {
        // A constructor runs only for objects that are wanted.
        (self.cache.tuning.sheaf_spill != 0 && self.cache.ctor.is_none()).then_some(self)
    }

    fn is_into_barn(&self) -> bool {
        self.cache.tuning.sheaf_spill == SPILL_INTO_BARN
    }
}

impl<P: Platform> Overflow<P> for Spill<'_, P> {
    fn has_room(&mut self, base: &Base<P>, n: usize) -> bool {
        if self.sheaf.is_none() && !self.is_into_barn() {
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

    /// The barn's sheaf of leftovers, or an empty one.
    #[inline(never)]
    fn barn_sheaf_for_spill(&self, cache: &SheafCache<P>, gfp: Gfp) -> Option<Sheaf> {
        self.barn_get_spilled(cache, gfp)
            .or_else(|| self.barn_get_empty(cache, gfp))
            .or_else(|| self.new_sheaf(cache, gfp))
    }

    /// Installs the sheaf with the rest as this CPU's spare: used after the refilled sheaf.
    #[inline(never)]
    pub(crate) fn install_spilled(&self, spill: Spill<'_, P>, gfp: Gfp) {
        let cache = spill.cache;
        if let Some(sheaf) = self.spilled_for_cpu(spill, gfp)
            && let Err(sheaf) = self.try_install(cache.id.spare(), sheaf)
        {
            self.install_filled(cache, sheaf, gfp);
        }
    }

    /// The sheaf with the rest, unless the barn takes it.
    #[inline]
    pub(crate) fn spilled_for_cpu(&self, spill: Spill<'_, P>, gfp: Gfp) -> Option<Sheaf> {
        let (cache, into_barn) = (spill.cache, spill.is_into_barn());
        let sheaf = spill.sheaf?;
        match into_barn {
            false => Some(sheaf),
            true if sheaf.is_empty() => self.barn_put_empty(cache, sheaf, gfp).err(),
            true => self.barn_put_spilled(cache, sheaf, gfp).err(),
        }
    }
}
