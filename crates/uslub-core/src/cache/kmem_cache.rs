//! A cache: what its slabs and sheaves are made by, and its creators.
//!
//! States of a record:
//!
//! | `users` | state |
//! |---|---|
//! | 1 or more | live; that many creators share the cache |
//! | 0 | destroyed; in quarantine, then reused for another cache |
//!
//! Callers: `allocator` and `destroy` change `users`.

use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr::{self, NonNull, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::args::{CacheArgs, CreateError, ObjectLayout};
use crate::debug::DebugFlags;
use crate::layout::{Row, rows};
use crate::percpu::CacheId;
use crate::platform::Platform;
use crate::sheaf::barn::Barn;
use crate::sheaf::cache::SheafCache;
use crate::slab::cache::SlabCache;
use crate::slab::node::Node;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};
use crate::tunables::Tuning;

/// A cache. Its slabs' part comes first: `of_slabs` relies on it.
#[repr(C)]
pub struct KmemCache<P: 'static> {
    sheaves: SheafCache<P>,
    /// Bytes of an object as requested; the largest request of all creators.
    object_size: AtomicU32,
    /// Whether other creators may share it.
    mergeable: bool,
    /// Whether it is one of many caches that share the memory, and so keeps nothing unused.
    pub(crate) keeps_little: bool,
    /// Creators that share it; 0 after its destruction.
    pub(crate) users: AtomicU32,
    /// Whether sheaves of its objects may wait for a grace period.
    pub(crate) has_rcu_sheaves: AtomicBool,
    /// The next record of a destroyed cache; under `slab_mutex`.
    next_dead: AtomicPtr<KmemCache<P>>,
    /// The twin that allocations of a size class go to; null if they stay here.
    serving: AtomicPtr<KmemCache<P>>,
    /// The twins of a size class, each the next of the one before; under `slab_mutex`.
    next_twin: AtomicPtr<KmemCache<P>>,
}

// SAFETY: the pointers lead to records that are never freed; locks and atomics protect them.
unsafe impl<P: Platform> Sync for KmemCache<P> {}

impl<P> Deref for KmemCache<P> {
    type Target = SheafCache<P>;

    #[inline]
    fn deref(&self) -> &SheafCache<P> {
        &self.sheaves
    }
}

/// What a cache has on each memory node: its lists, and a barn for each group of CPUs.
pub(crate) struct NodeRecords<P> {
    pub(crate) nodes: NonNull<Node<P>>,
    pub(crate) barns: NonNull<Barn<P>>,
    pub(crate) nr: usize,
    pub(crate) nr_barns: usize,
}

impl<P: Platform> NodeRecords<P> {
    /// Bytes of the records of `nr` nodes and `nr_barns` barns, and their alignment.
    pub(crate) const fn layout(nr: usize, nr_barns: usize) -> (usize, usize) {
        assert!(align_of::<Node<P>>() >= align_of::<Barn<P>>());
        let bytes = nr * size_of::<Node<P>>() + nr_barns * size_of::<Barn<P>>();
        (bytes, align_of::<Node<P>>())
    }

    /// The records in memory of this [layout](Self::layout), not set up.
    pub(crate) fn of(memory: NonNull<u8>, nr: usize, nr_barns: usize) -> Self {
        let nodes = memory.cast::<Node<P>>();
        // SAFETY: the barns lie behind the nodes, as `layout` says.
        let barns = unsafe { nodes.add(nr) }.cast();
        Self {
            nodes,
            barns,
            nr,
            nr_barns,
        }
    }

    /// Sets all records up: nothing is on any node.
    ///
    /// # Safety
    ///
    /// Nobody uses them.
    pub(crate) unsafe fn reset(&self) {
        for nid in 0..self.nr {
            // SAFETY: within the records, which nobody uses.
            unsafe { self.nodes.add(nid).write(Node::new()) };
        }
        for barn in 0..self.nr_barns {
            // SAFETY: as above.
            unsafe { self.barns.add(barn).write(Barn::new()) };
        }
    }
}

impl<P: Platform> KmemCache<P> {
    pub(crate) const ROWS: &'static [Row] = rows!("KmemCache", Self, [sheaves, object_size, users]);

    /// Writes the record of a cache to `memory`; nothing on an error. The nodes must be set up by
    /// the caller, and there is no random order yet.
    #[inline(never)]
    pub(crate) fn write_to(
        memory: &mut MaybeUninit<Self>,
        args: &CacheArgs<'_>,
        id: CacheId,
        tuning: &Tuning,
        min_objects: usize,
        secret: u64,
        on_nodes: &NodeRecords<P>,
    ) -> Result<(), CreateError> {
        let at = memory.as_mut_ptr();
        // SAFETY: within the record, and as uninitialized as it.
        let sheaves = unsafe { &mut *(&raw mut (*at).sheaves).cast() };
        let nodes = (on_nodes.nodes, on_nodes.nr);
        let slabs = SheafCache::slabs_in(sheaves);
        SlabCache::write_to(slabs, args, id, tuning, min_objects, secret, nodes)?;
        // SAFETY: the slabs' part was just written; all other fields, each once.
        unsafe {
            SheafCache::write_rest(sheaves, args, (on_nodes.barns, on_nodes.nr_barns));
            (&raw mut (*at).object_size).write(AtomicU32::new(args.size as u32));
            (&raw mut (*at).mergeable).write(args.is_mergeable());
            (&raw mut (*at).keeps_little).write(args.kept_bytes.is_some());
            (&raw mut (*at).users).write(AtomicU32::new(1));
            (&raw mut (*at).has_rcu_sheaves).write(AtomicBool::new(false));
            (&raw mut (*at).next_dead).write(AtomicPtr::new(null_mut()));
            (&raw mut (*at).serving).write(AtomicPtr::new(null_mut()));
            (&raw mut (*at).next_twin).write(AtomicPtr::new(null_mut()));
        }
        Ok(())
    }

    /// The slabs' part, for the creation.
    pub(crate) fn slabs_mut(&mut self) -> &mut SlabCache<P> {
        self.sheaves.slabs_mut()
    }

    /// The memory of what it has on each node.
    pub(crate) fn node_records(&self) -> NodeRecords<P> {
        NodeRecords {
            nodes: self.sheaves.node_records(),
            barns: self.sheaves.barn_records(),
            nr: self.nr_nodes(),
            nr_barns: self.sheaves.nr_barns(),
        }
    }

    /// The cache that these slabs are part of.
    ///
    /// # Safety
    ///
    /// The pointer leads to the slabs of a whole record, and may be used for all of it.
    #[inline]
    pub(crate) unsafe fn of_slabs<'a>(slabs: *mut SlabCache<P>) -> Option<&'a Self> {
        // SAFETY: the first field of the first field; by the caller's promise.
        unsafe { slabs.cast::<Self>().as_ref() }
    }

    /// Whether an object of it was ever freed after a grace period: its end waits for one.
    #[inline]
    pub fn may_wait_for_readers(&self) -> bool {
        // Acquire: pairs with `prepare_rcu`.
        self.has_rcu_sheaves.load(Acquire)
    }

    /// The next record of a destroyed cache.
    pub(crate) fn next_dead(&self) -> *mut Self {
        // Relaxed: under `slab_mutex`.
        self.next_dead.load(Relaxed)
    }

    /// Stores the next record of a destroyed cache.
    pub(crate) fn set_next_dead(&self, next: *mut Self) {
        // Relaxed: under `slab_mutex`.
        self.next_dead.store(next, Relaxed);
    }

    /// The cache that allocations of a size class go to: a twin, or this one.
    #[inline]
    pub(crate) fn serving(&self) -> &Self {
        // Acquire: pairs with `serve_by`. SAFETY: records of caches are never freed.
        unsafe { self.serving.load(Acquire).as_ref() }.unwrap_or(self)
    }

    /// Directs allocations of a size class to a twin, or back to this cache.
    pub(crate) fn serve_by(&self, twin: Option<&Self>) {
        let twin = twin.map_or(null_mut(), |twin| ptr::from_ref(twin).cast_mut());
        // Release: a thread that finds the twin sees its record.
        self.serving.store(twin, Release);
    }

    /// Adds a twin to a size class.
    pub(crate) fn add_twin(&self, twin: &Self) {
        // Relaxed, here and below: under `slab_mutex`.
        twin.next_twin.store(self.next_twin.load(Relaxed), Relaxed);
        let twin = ptr::from_ref(twin).cast_mut();
        self.next_twin.store(twin, Relaxed);
    }

    /// The twins of a size class.
    pub(crate) fn twins(&self) -> impl Iterator<Item = &Self> {
        // Relaxed: under `slab_mutex`. SAFETY: records of caches are never freed.
        let next = |cache: &Self| unsafe { cache.next_twin.load(Relaxed).as_ref() };
        core::iter::successors(next(self), move |twin| next(twin))
    }

    /// Bytes of an object as requested; the largest request of all creators.
    #[inline]
    pub fn object_size(&self) -> usize {
        // Relaxed: only grows, and before the creator that needs more has the cache.
        self.object_size.load(Relaxed) as usize
    }

    /// Whether objects of this layout fit into the slots, and their users look at pointers as those
    /// of the cache do.
    pub(crate) fn can_serve(&self, layout: &ObjectLayout, debug: DebugFlags) -> bool {
        let size = self.size as usize;
        self.mergeable
            && size >= layout.size
            && size - layout.size < size_of::<usize>()
            && size.is_multiple_of(layout.align)
            && self.align as usize >= layout.align
            && self.debug.get().contains(DebugFlags::MAY_GUARD)
                == debug.contains(DebugFlags::MAY_GUARD)
    }

    /// Adds a creator with objects of `bytes` bytes.
    pub(crate) fn share(&self, bytes: usize) {
        // Relaxed: under `slab_mutex`; the size as in `object_size`.
        self.object_size.fetch_max(bytes as u32, Relaxed);
        self.users.fetch_add(1, Relaxed);
    }

    /// Number of names of the cache beyond the first.
    pub fn aliases(&self) -> usize {
        // Relaxed: a statistic.
        (self.users.load(Relaxed) as usize).saturating_sub(1)
    }

    /// Whether the cache was destroyed; may be stale.
    #[inline]
    pub fn is_destroyed(&self) -> bool {
        // Relaxed: a peek, for messages.
        self.users.load(Relaxed) == 0
    }
}
