//! The walk of a debugged slab's freelist, and its repair.
//!
//! | found | repair |
//! |---|---|
//! | the head is no slot | the list is emptied |
//! | a link leads to no slot | the list ends there |
//! | more steps than slots | the list is emptied |
//! | another count than the slab's | the slab's count is adjusted |
//!
//! The caller holds the list lock.

use core::ptr::null_mut;

use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::state::{Slab, State};

/// What a walk found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// The object that was looked for.
    Found,
    /// The list is whole, and does not have the object.
    NotFound,
    /// The list was emptied.
    Cleared,
}

impl<P: Platform> Base<P> {
    /// The first object of a slab's freelist; null for none.
    pub(crate) fn debug_head(&self, slab: &Slab) -> *mut u8 {
        let base = self.slab_base(slab);
        slab.state()
            .head()
            .map_or(null_mut(), |at| base.wrapping_add(at))
    }

    /// Walks a slab's freelist, looks for `wanted` (null for none), and repairs it.
    #[cold]
    #[inline(never)]
    pub(crate) fn walk_freelist(&self, cache: &SlabCache<P>, slab: &Slab, wanted: *mut u8) -> Walk {
        let (base, links) = (self.slab_base(slab), cache.links_of(slab));
        let objects = cache.geometry.objects;
        let (mut at, mut former, mut count) = (self.debug_head(slab), null_mut::<u8>(), 0);
        while !at.is_null() && count <= objects {
            if at == wanted {
                return Walk::Found;
            }
            if !cache.is_debug_slot(base, at) {
                if former.is_null() {
                    self.report_slab(cache, slab, format_args!("Freepointer corrupt"));
                    return self.clear_freelist(cache, slab);
                }
                self.report_object(cache, former, "Freechain corrupt");
                // SAFETY: a slot of the slab, under the list lock.
                unsafe { links.set(former, null_mut()) };
                break;
            }
            former = at;
            // SAFETY: a slot of the slab.
            at = unsafe { links.get(at) };
            count += 1;
        }
        if count > objects {
            self.report_slab(cache, slab, format_args!("Freelist cycle detected"));
            return self.clear_freelist(cache, slab);
        }
        let (state, counted) = (slab.state(), objects - count);
        if state.inuse() != counted {
            let inuse = state.inuse();
            self.report_slab(
                cache,
                slab,
                format_args!("Wrong object count. Counter is {inuse} but counted were {counted}"),
            );
            slab.set_state(state.with(state.head(), counted));
            self.report_fix(cache, format_args!("Object count adjusted"));
        }
        Walk::NotFound
    }

    /// Empties a slab's freelist: its free objects are lost.
    fn clear_freelist(&self, cache: &SlabCache<P>, slab: &Slab) -> Walk {
        slab.set_state(State::without_list(cache.geometry.objects));
        self.report_fix(cache, format_args!("Freelist cleared"));
        Walk::Cleared
    }
}
