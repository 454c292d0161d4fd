//! The list lock of a node, and the fate of empty slabs.
//!
//! - `empty_reserve=0`, the kernel's rule: an empty slab stays on the partial list if the list is
//!   shorter than `min_partial`, and goes back at once otherwise.
//! - `empty_reserve=1`: empty slabs have a list of their own, whose length the
//!   [reserve](crate::slab::empty_reserve) bounds.
//!
//! Callers: `refill`, `detached`, `whole_slab`, and `cache::shrink`.

use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::policy::SURPLUS_BATCH_SLABS;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::node::{Node, NodeLists, SlabList};
use crate::sync::Guard;

impl<P: Platform> Base<P> {
    /// Locks a node's lists and counts it; `None` if `spin` is false and the lock is taken.
    pub(crate) fn lock_lists<'a>(
        &self,
        cache: &SlabCache<P>,
        node: &'a Node<P>,
        spin: bool,
    ) -> Option<Guard<'a, P, NodeLists>> {
        self.count(cache, StatItem::ListLock, 1);
        if let Some(lists) = node.lists.try_lock() {
            return Some(lists);
        }
        self.count(cache, StatItem::ListLockWait, 1);
        spin.then(|| node.lists.lock())
    }

    /// Keeps or drops slabs that just became empty and are on no list. The list lock ends here.
    /// Without a reserve all of them go to `gone`, otherwise only the surplus.
    pub(crate) fn slabs_emptied(
        &self,
        cache: &SlabCache<P>,
        node: &Node<P>,
        mut lists: Guard<'_, P, NodeLists>,
        mut emptied: SlabList,
        gone: &mut SlabList,
    ) {
        let arena = &self.zone.arena;
        if !cache.has_reserve() {
            node.update_counts(&lists);
            drop(lists);
            return gone.append(arena, &mut emptied);
        }
        for slab in emptied.drain(arena) {
            slab.set_partial(true);
            lists.empty.push_front(arena, slab);
        }
        // The clock is read here because `take_surplus` has less stack left.
        let now = self.platform.now_ms();
        self.take_surplus(cache, node, lists, now, gone);
    }

    /// Moves the reserve's surplus at the time `now` (milliseconds) to `gone`.
    #[inline(never)]
    pub(crate) fn take_surplus(
        &self,
        cache: &SlabCache<P>,
        node: &Node<P>,
        mut lists: Guard<'_, P, NodeLists>,
        now: u64,
        gone: &mut SlabList,
    ) {
        let arena = &self.zone.arena;
        node.drain_all_pending(arena, &mut lists, true);
        let empty = lists.empty.len();
        let in_use = node.nr_slabs().saturating_sub(empty);
        let surplus = (lists.reserve).surplus(empty, in_use, cache.geometry.bytes(), now);
        for _ in 0..surplus.min(SURPLUS_BATCH_SLABS) {
            // The oldest: the newer ones' cache lines may still be in a CPU's cache.
            if let Some(slab) = lists.empty.last(arena) {
                lists.empty.remove(arena, slab);
                slab.set_partial(false);
                gone.push_back(arena, slab);
            }
        }
        node.refill_ready(arena, &mut lists);
        node.update_counts(&lists);
    }
}
