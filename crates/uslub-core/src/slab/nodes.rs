//! Memory nodes: the node of a CPU, and which objects are local to it.
//!
//! - The CPU's node has memory: the CPU uses the node's barn. An object of another node goes to its
//!   slab at once, never into a sheaf.
//! - The CPU's node has no memory: the CPU uses the node's barn, or none with `memoryless_barns=0`.
//!   With a barn, an object of any node goes into a sheaf, since all objects are remote.
//!
//! With one node, all of this is one compare. Callers: every layer above the pages.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::Platform;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;

impl<P: Platform> Base<P> {
    /// Number of memory nodes.
    #[inline]
    pub fn nr_nodes(&self) -> usize {
        // Relaxed: set once, before any other thread has the allocator.
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

    /// Groups of CPUs in each node; each group has a barn.
    #[inline]
    pub(crate) fn nr_groups(&self) -> usize {
        // Relaxed: as in `nr_nodes`.
        self.groups.load(Relaxed)
    }

    /// The group, within its node, of the CPU that this thread runs on.
    #[inline]
    pub(crate) fn group(&self) -> usize {
        match self.nr_groups() {
            1 => 0,
            groups => self.platform.group() % groups,
        }
    }

    /// The node whose memory the CPUs of node `nid` get: `nid`, or the nearest node with memory.
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

    /// Whether a node of this number exists and has memory.
    pub(crate) fn has_memory_on(&self, nid: usize) -> bool {
        nid < self.nr_nodes() && (self.nr_nodes() == 1 || self.platform.node_has_memory(nid))
    }

    /// The node after `last` in order of distance from `nid`; the nearest one if `last` is `None`.
    #[inline(never)]
    pub(crate) fn next_nearest(&self, nid: usize, last: Option<usize>) -> Option<usize> {
        let rank = |other: usize| (self.platform.distance(nid, other), other);
        let others = (0..self.nr_nodes()).filter(|&other| other != nid);
        others
            .filter(|&other| last.is_none_or(|last| rank(other) > rank(last)))
            .min_by_key(|&other| rank(other))
    }

    /// Whether this CPU may cache the object in its sheaves.
    #[inline]
    pub(crate) fn is_cacheable_here(&self, cache: &SlabCache<P>, object: *mut u8) -> bool {
        self.nr_nodes() == 1 || self.is_local(cache, object)
    }

    #[cold]
    fn is_local(&self, cache: &SlabCache<P>, object: *mut u8) -> bool {
        let nid = self.nid();
        self.is_of(cache, object, nid)
            || (cache.tuning.memoryless_barns == 1 && !self.platform.node_has_memory(nid))
    }

    /// Whether an object lies on a node.
    pub(crate) fn is_of(&self, cache: &SlabCache<P>, object: *mut u8, nid: usize) -> bool {
        let arena = &self.zone.arena;
        let home = arena
            .page_of(object as usize)
            .map(|page| usize::from(cache.slab_of(arena, page).node()));
        home == Some(nid)
    }
}
