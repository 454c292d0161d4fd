//! Memory nodes: which one a CPU works on, and which objects are near.
//!
//! | the CPU's node | its barn | an object of another node that it frees |
//! |---|---|---|
//! | has memory | its own | goes to its slab at once, never into a sheaf |
//! | has none | its own, or none with `memoryless_barns=0` | goes into the sheaf, as all objects are remote |
//!
//! With one node, all of this is no more than a compare.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::platform::Platform;

/// Most nodes that are told apart.
pub const MAX_NODES: usize = 64;

impl<P: Platform> Allocator<P> {
    /// Number of memory nodes.
    #[inline]
    pub fn nr_nodes(&self) -> usize {
        // Relaxed: set once, before anyone has the allocator.
        self.nodes.load(Relaxed)
    }

    /// The node of the CPU that this thread runs on.
    #[inline]
    pub(crate) fn nid(&self) -> usize {
        match self.nr_nodes() {
            1 => 0,
            nodes => self.platform.node() % nodes,
        }
    }

    /// The node whose memory CPUs of node `nid` get: their own, or the nearest that has any.
    pub(crate) fn memory_node(&self, nid: usize) -> usize {
        if self.nr_nodes() == 1 || self.platform.node_has_memory(nid) {
            return nid;
        }
        let with_memory =
            (0..self.nr_nodes()).filter(|&other| self.platform.node_has_memory(other));
        with_memory
            .min_by_key(|&other| self.platform.distance(nid, other))
            .unwrap_or(nid)
    }

    /// Whether there is a node with this number, and it has memory.
    pub(crate) fn has_memory_on(&self, nid: usize) -> bool {
        nid < self.nr_nodes() && (self.nr_nodes() == 1 || self.platform.node_has_memory(nid))
    }

    /// The node after `last` in the order of their distance from `nid`; the first one for `None`.
    #[inline(never)]
    pub(crate) fn next_nearest(&self, nid: usize, last: Option<usize>) -> Option<usize> {
        let rank = |other: usize| (self.platform.distance(nid, other), other);
        let others = (0..self.nr_nodes()).filter(|&other| other != nid);
        others
            .filter(|&other| last.is_none_or(|last| rank(other) > rank(last)))
            .min_by_key(|&other| rank(other))
    }

    /// Whether an object of the cache may lie in this CPU's sheaves.
    #[inline]
    pub(crate) fn is_parkable(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        self.nr_nodes() == 1 || self.is_near(cache, object)
    }

    #[cold]
    fn is_near(&self, cache: &KmemCache<P>, object: *mut u8) -> bool {
        let nid = self.nid();
        let arena = &self.zone.arena;
        let home = arena
            .page_of(object as usize)
            .map(|page| usize::from(cache.slab_of(arena, page).node()));
        home == Some(nid)
            || (cache.tuning.memoryless_barns == 1 && !self.platform.node_has_memory(nid))
    }
}
