//! Caches from `key=value` settings, and counters by name.

use uslub_core::Allocator;
use uslub_core::args::{CacheArgs, Flags};
use uslub_core::cache::KmemCache;
use uslub_core::platform::Platform;
use uslub_core::stats::STAT_ITEMS;
use uslub_core::tunables::{SetError, Tuning};

use crate::error::Failure;

/// The one place where a tuning is made: defaults with some settings changed.
pub fn tuning(settings: &[&str]) -> Result<Tuning, Failure> {
    let mut tuning = Tuning::DEFAULT;
    for setting in settings {
        tuning.set(setting).map_err(|error| match error {
            SetError::UnknownKey(key) => Failure::Unavailable(format!("tunable '{key}'")),
            other => Failure::Wrong(other.to_string()),
        })?;
    }
    Ok(tuning)
}

/// A cache of one competitor, which goes with this value.
pub struct Strategy<'a, P: Platform> {
    /// Whose it is.
    pub slub: &'a Allocator<P>,
    /// The cache.
    pub cache: &'a KmemCache<P>,
}

impl<'a, P: Platform> Strategy<'a, P> {
    /// A fresh cache of objects of `size` bytes that behaves as the settings say.
    pub fn new(slub: &'a Allocator<P>, size: usize, settings: &[&str]) -> Result<Self, Failure> {
        let mut args = CacheArgs::new("bench", size);
        args.flags |= Flags::NO_MERGE;
        args.tuning = Some(tuning(settings)?);
        match slub.create(&args) {
            Ok(cache) => Ok(Self { slub, cache }),
            Err(error) => Err(Failure::Wrong(error.to_string())),
        }
    }

    /// Lets competitors that make their caches in turn change places: where a cache's records lie
    /// can matter as much as how it behaves. Called once a round, it does so every other one.
    pub fn change_places(slub: &'a Allocator<P>, round: usize) -> Result<(), Failure> {
        if round % 2 == 1 {
            drop(Self::new(slub, 64, &[])?);
        }
        Ok(())
    }

    /// What a counter says.
    pub fn count(&self, item: &str) -> Result<u64, Failure> {
        let known = STAT_ITEMS.iter().find(|(_, name)| *name == item);
        let Some(&(item, _)) = known else {
            return Err(Failure::Unavailable(format!("counter '{item}'")));
        };
        Ok(self.slub.stat(self.cache, item))
    }

    /// Objects in a slab.
    pub fn slab_objects(&self) -> usize {
        self.cache.oo.objects as usize
    }

    /// Which slab an object lies in: its page number.
    pub fn slab_of(&self, object: *mut u8) -> Option<u32> {
        let arena = &self.slub.zone.arena;
        let page = arena.page_of(object as usize)?;
        Some(arena.page_of_slab(self.cache.slab_of(arena, page)).0)
    }

    /// Fails unless everything that was allocated is freed, and the allocator's books are in order.
    pub fn check_at_rest(&self) -> Result<(), Failure> {
        let info = self.slub.info(self.cache);
        if info.live_objs() != 0 || info.allocs != info.frees {
            return Err(Failure::Wrong(format!(
                "{} objects are missing: {} were allocated, {} freed",
                info.live_objs(),
                info.allocs,
                info.frees
            )));
        }
        (self.slub.validate()).map_err(|invalid| Failure::Wrong(format!("{invalid:?}")))
    }
}

impl<P: Platform> Drop for Strategy<'_, P> {
    fn drop(&mut self) {
        // SAFETY: whoever measures is done with the cache. Objects that it lost stay lost.
        unsafe { self.slub.destroy(self.cache, |_| ()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_allocator_does_not_know_is_unavailable() {
        assert_eq!(tuning(&["look_ahead=5"]).unwrap().look_ahead, 5);
        let unknown = tuning(&["no_such_thing=1"]).unwrap_err().to_string();
        assert_eq!(unknown, "tunable 'no_such_thing' is not available");
        assert!(matches!(tuning(&["look_ahead=99"]), Err(Failure::Wrong(_))));
    }
}
