//! Caches from `key=value` settings, and counters by name, for all seeds and parts.

use uslub_core::Allocator;
use uslub_core::args::{CacheArgs, Flags};
use uslub_core::cache::KmemCache;
use uslub_core::platform::Platform;
use uslub_core::stats::STAT_ITEMS;
use uslub_core::tunables::{SetError, Tuning};

use crate::error::Failure;

/// The only constructor of a tuning: the defaults, changed by `settings`.
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

/// A cache of one competitor; dropping the value destroys the cache.
pub struct Strategy<'a, P: Platform> {
    /// The allocator of the cache.
    pub slub: &'a Allocator<P>,
    /// The cache.
    pub cache: &'a KmemCache<P>,
}

impl<'a, P: Platform> Strategy<'a, P> {
    /// A new cache of objects of `size` bytes, with these settings.
    pub fn new(slub: &'a Allocator<P>, size: usize, settings: &[&str]) -> Result<Self, Failure> {
        let mut args = CacheArgs::new("bench", size);
        args.flags |= Flags::NO_MERGE;
        args.tuning = Some(tuning(settings)?);
        match slub.create(&args) {
            Ok(cache) => Ok(Self { slub, cache }),
            Err(error) => Err(Failure::Wrong(error.to_string())),
        }
    }

    /// Swaps the metadata positions of competitors that create their caches in turn. The position
    /// of a cache's metadata can matter as much as its settings. Call this once a round; it swaps
    /// every other round.
    pub fn change_places(slub: &'a Allocator<P>, round: usize) -> Result<(), Failure> {
        if round % 2 == 1 {
            drop(Self::new(slub, 64, &[])?);
        }
        Ok(())
    }

    /// The value of a counter.
    pub fn count(&self, item: &str) -> Result<u64, Failure> {
        let known = STAT_ITEMS.iter().find(|(_, name)| *name == item);
        let Some(&(item, _)) = known else {
            return Err(Failure::Unavailable(format!("counter '{item}'")));
        };
        Ok(self.slub.stat(self.cache, item))
    }

    /// Objects per slab.
    pub fn slab_objects(&self) -> usize {
        self.cache.geometry.objects as usize
    }

    /// The page number of the slab of an object.
    pub fn slab_of(&self, object: *mut u8) -> Option<u32> {
        let arena = &self.slub.zone.arena;
        let page = arena.page_of(object as usize)?;
        Some(arena.page_of_slab(self.cache.slab_of(arena, page)).0)
    }

    /// Fails if an object is still allocated or the allocator's validation fails.
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
        // SAFETY: the measurement no longer uses the cache. Lost objects stay lost.
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
