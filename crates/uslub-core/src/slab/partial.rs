//! A node's lists of slabs, as allocations and frees use them: the list lock, and what becomes of
//! empty slabs.
//!
//! | tunable | an empty slab |
//! |---|---|
//! | `empty_reserve=0` | stays on the partial list while that is shorter than `min_partial`, else goes at once: the kernel's rule |
//! | `empty_reserve=1` | waits on a list of its own, as long as the [reserve](crate::slab::empty_reserve) says |

use crate::args::Flags;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::percpu::stats::StatItem;
use crate::platform::Platform;
use crate::slab::node::{Lists, Node, SlabList};
use crate::sync::Guard;

/// Slabs that are given back for one hold of the list lock, at most.
const BATCH: usize = 32;

impl<P: Platform> Allocator<P> {
    /// Takes a node's list lock, waiting only where `spin` allows it, and counts that.
    pub(crate) fn lock_lists<'a>(
        &self,
        cache: &KmemCache<P>,
        node: &'a Node<P>,
        spin: bool,
    ) -> Option<Guard<'a, P, Lists>> {
        self.count(cache, StatItem::ListLock, 1);
        if let Some(lists) = node.lists.try_lock() {
            return Some(lists);
        }
        self.count(cache, StatItem::ListLockWait, 1);
        spin.then(|| node.lists.lock())
    }

    /// Finds places for slabs that just emptied and are on no list of their node; under the list
    /// lock, which ends here. Those that are too many go to `gone`.
    pub(crate) fn slabs_emptied(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        mut lists: Guard<'_, P, Lists>,
        mut emptied: SlabList,
        gone: &mut SlabList,
    ) {
        let arena = &self.zone.arena;
        if !cache.has_reserve() {
            node.note(&lists);
            drop(lists);
            return gone.append(arena, &mut emptied);
        }
        while let Some(slab) = emptied.first(arena) {
            emptied.remove(arena, slab);
            slab.set_partial(true);
            lists.empty.push_front(arena, slab);
        }
        // Not below, where there is less stack.
        let now = self.platform.now_ms();
        self.take_surplus(cache, node, lists, now, gone);
    }

    /// Takes what the reserve holds too many of at the time `now`, to `gone`.
    #[inline(never)]
    fn take_surplus(
        &self,
        cache: &KmemCache<P>,
        node: &Node<P>,
        mut lists: Guard<'_, P, Lists>,
        now: u64,
        gone: &mut SlabList,
    ) {
        let arena = &self.zone.arena;
        node.absorb_all(arena, &mut lists, true);
        let empty = lists.empty.len();
        let in_use = node.nr_slabs().saturating_sub(empty);
        let surplus = (lists.reserve).surplus(empty, in_use, cache.oo.bytes(), now);
        for _ in 0..surplus.min(BATCH) {
            // The one that emptied first: the others' lines may still be in a CPU's cache.
            if let Some(slab) = lists.empty.last(arena) {
                lists.empty.remove(arena, slab);
                slab.set_partial(false);
                gone.push_back(arena, slab);
            }
        }
        node.offer(arena, &mut lists);
        node.note(&lists);
    }

    /// Lets the reserves of all caches shrink, whose windows have ended; while nobody destroys a
    /// cache.
    #[inline(never)]
    pub(crate) fn trim_reserves(&self) {
        let waits = |cache: &&KmemCache<P>| cache.flags.contains(Flags::TYPESAFE_BY_RCU);
        for cache in self.caches().filter(|c| c.has_reserve() && !waits(c)) {
            for node in cache.nodes() {
                let mut before = usize::MAX;
                // Batch by batch; at most one window ends.
                while node.nr_empty() > crate::slab::empty_reserve::KEPT && node.nr_empty() < before
                {
                    before = node.nr_empty();
                    let mut gone = SlabList::new();
                    let now = self.platform.now_ms();
                    self.take_surplus(cache, node, node.lists.lock(), now, &mut gone);
                    self.discard_list(cache, gone);
                }
            }
        }
    }
}
