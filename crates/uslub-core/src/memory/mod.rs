//! Pages: takes memory from the system, hands it out in runs of pages, gives it back.
//!
//! Three sources: the arena (one reserved address range, handed out in pages), one mapping per
//! object that is too large for the arena, and separate mappings for the allocator's own records.
//! The layer knows no cache. Its callers are the slab layer and `kmalloc`.
//!
//! | file | concept |
//! |---|---|
//! | `arena` | the address range; finds a page's cache and descriptor by arithmetic |
//! | `descriptor` | what begins at a page: a slab, a large object, a run |
//! | `range` | how much of the range is reserved, and when |
//! | `absent` | free blocks that are unmapped, address space included |
//! | `block` | 2 MiB of pages: which are free, which are dirty |
//! | `page_runs` | a batch of runs to free together |
//! | `pcp` | pages that each CPU keeps |
//! | `want` | a request for pages |
//! | `zone` | finds, claims and frees runs of pages |
//! | `growth` | adds blocks |
//! | `request` | allocates runs, and adds a block if needed |
//! | `several` | runs longer than a block |
//! | `decay` | gives free dirty pages back to the system |
//! | `mapped` | objects with a mapping of their own |
//! | `mapping_cache` | mappings of freed objects |
//! | `metadata` | the allocator's own records: sheaf windows, scratch memory |
//! | `windows` | free sheaf windows |
//! | `validate` | checks the zone's lists against its blocks |

mod absent;
pub mod arena;
pub mod block;
mod decay;
pub mod descriptor;
mod growth;
pub mod mapped;
mod mapping_cache;
pub mod metadata;
pub mod page_runs;
pub mod pcp;
mod range;
mod request;
pub mod several;
mod validate;
mod want;
mod windows;
pub mod zone;

pub use arena::{Arena, PageIndex};
pub use descriptor::{Descriptor, PageKind};
pub use page_runs::Runs;
pub(crate) use want::{Touched, Want};

use crate::platform::Platform;
use crate::policy::{MAPPING_CACHE_SHARE, MAPPING_IDLE_MS, MAPPING_PART_BYTES};
use crate::sync::atomic::AtomicUsize;
use mapped::MappedObjects;
use metadata::MetadataStore;
use pcp::PerCpuPages;
use zone::Zone;

/// Largest number of memory nodes.
pub const MAX_NODES: usize = 64;

/// The memory of an allocator, from its three sources.
#[repr(C)]
pub struct Memory<P: Platform> {
    /// Pages.
    pub zone: Zone<P>,
    /// Memory of the allocator's own records.
    pub meta: MetadataStore<P>,
    /// Objects with mappings of their own.
    pub mapped: MappedObjects<P>,
    /// Pages of large objects, and those that CPUs keep for them.
    pub large_pages: AtomicUsize,
    /// Pages that CPUs keep, and calls without a cache.
    pub pcp: PerCpuPages<P>,
}

impl<P: Platform> Memory<P> {
    /// Owns nothing.
    pub(crate) const fn new() -> Self {
        Self {
            zone: Zone::new(),
            meta: MetadataStore::new(),
            mapped: MappedObjects::new(),
            large_pages: AtomicUsize::new(0),
            pcp: PerCpuPages::new(),
        }
    }

    /// Reports a change of the mapped bytes to the zone. At a new peak of resident memory, cached
    /// mappings go first, then free pages.
    pub(crate) fn update_mapped_bytes(&self, platform: &P) {
        let live = self.mapped.live_bytes();
        let surplus = || (self.mapped.kept_bytes()).saturating_sub(live / MAPPING_CACHE_SHARE);
        let mut most = surplus();
        // Other threads take cached mappings meanwhile: a round goes by one reading.
        while most > 0
            && let Some(more) = self.zone.above_peak(live + most)
            && self.mapped.evict(platform, more.min(most), 0)
        {
            most = surplus();
        }
        self.zone.update_mapped(platform, live + most);
    }

    /// Unmaps cached mappings that have been free for `decay_ms`. If the peak of resident memory
    /// has risen since the last call, also a part of one that nobody has asked for lately.
    #[inline(never)]
    pub(crate) fn decay_mapped(&self, platform: &P, decay_ms: u64) {
        self.purge_mapped(platform, platform.now_ms(), |age| age >= decay_ms);
        if self.zone.peak_has_risen()
            && (self.mapped).evict(platform, MAPPING_PART_BYTES, MAPPING_IDLE_MS)
        {
            self.update_mapped_bytes(platform);
        }
    }

    /// Unmaps cached mappings of huge objects that are old enough at the time `now` (milliseconds);
    /// returns whether there was one.
    pub(crate) fn purge_mapped(
        &self,
        platform: &P,
        now: u64,
        old_enough: impl Fn(u64) -> bool,
    ) -> bool {
        let purged = self.mapped.purge(platform, now, old_enough);
        if purged {
            self.update_mapped_bytes(platform);
        }
        purged
    }

    /// Gives back memory and address space without an object; returns whether there was any. From
    /// then on nothing is reserved or committed ahead of use.
    pub(crate) fn release_idle(&self, platform: &P) -> bool {
        let kept = self.purge_mapped(platform, platform.now_ms(), |_| true);
        self.zone.make_room(platform) || kept
    }

    /// Bytes in use of the allocator's own records.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.meta.bytes() + self.zone.arena.side_bytes() + self.mapped.table_bytes()
    }
}
