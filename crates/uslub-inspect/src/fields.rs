//! The fields of the allocator's structures, looked up once.

use crate::error::Result;
use crate::layout::{Field, Layout};

/// Most bytes of a ring of freed objects.
const RING_MOST: usize = 1 << 16;

/// The fields of a cache's record, from the record's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheFields {
    pub bytes: usize,
    pub name: Field,
    pub name_len: Field,
    pub id: Field,
    pub size: Field,
    pub align: Field,
    pub order: Field,
    pub objects: Field,
    pub link_offset: Field,
    pub secret: Field,
    pub random: Field,
    pub nodes: Field,
    pub nr_nodes: Field,
    pub deferred_first: Field,
    pub deferred_len: Field,
    pub flushes: Field,
    pub capacity: Field,
    pub capacity_max: Field,
    pub max_full: Field,
    pub max_full_grown: Field,
    pub barns: Field,
    pub nr_barns: Field,
    pub object_size: Field,
    pub users: Field,
    pub peak_slabs: Option<Field>,
    pub debug_left: Option<Field>,
    pub debug_object: Option<Field>,
}

/// The fields of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DescriptorFields {
    pub bytes: usize,
    pub state: Field,
    pub position: Field,
    pub start: Field,
    pub kind: Field,
    pub pages: Field,
    pub epoch: Field,
}

/// All other fields and constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub cache: CacheFields,
    pub descriptor: DescriptorFields,
    pub allocator_bytes: usize,
    pub end: Field,
    pub pcp: Option<PcpFields>,
    pub ready: Field,
    pub caches: Field,
    pub table_regions: Field,
    pub table_stopped: Field,
    pub table_end: Field,
    pub arena_base: Field,
    pub arena_reserved: Field,
    pub arena_limit: Field,
    pub arena_map: Field,
    pub arena_descriptors: Field,
    pub arena_blocks: Field,
    pub large_pages: Field,
    pub region_bytes: usize,
    pub region_stats: usize,
    pub window_link: Field,
    pub window_capacity: Field,
    pub window_cache: Field,
    pub window_len: Field,
    pub node_bytes: usize,
    pub node_partial: Field,
    pub node_slabs: Field,
    pub node_ahead: Field,
    pub barn_bytes: usize,
    pub barn_full: (Field, Field),
    pub barn_empty: (Field, Field),
    pub block_bytes: usize,
    pub block_free: Field,
    pub block_dirty: Field,
    pub block_pages: usize,
    pub caches_a_page: usize,
    pub cache_words: usize,
    pub max_caches: usize,
    pub sheaf_bytes: u64,
    pub max_capacity: usize,
    pub stat_slots: usize,
    pub stat_allocs: [usize; 2],
    pub stat_frees: [usize; 2],
    pub huge: Option<HugeFields>,
    pub store: Option<Field>,
    pub peak_large: Option<Field>,
    /// The rings of freed objects that wait: of size classes, and large ones.
    pub quarantine: Option<(Field, Field)>,
}

/// The fields of the table of huge objects, from the allocator's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HugeFields {
    pub live: Field,
    pub kept: Option<Field>,
    pub table: Field,
    pub capacity: Field,
    pub entry_bytes: usize,
}

/// What CPUs keep for large objects, and calls without a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PcpFields {
    /// The first list.
    pub lists: Field,
    pub nr_lists: Field,
    /// Calls where there is no list.
    pub without: Field,
    pub bytes: usize,
    pub pages: Field,
    pub calls: Field,
    pub others: Field,
}

/// `field`, in a structure that begins `outer` bytes from the start.
fn within(outer: usize, field: Field) -> Field {
    Field {
        at: outer + field.at,
        bytes: field.bytes,
    }
}

impl CacheFields {
    fn of(layout: &Layout) -> Result<Self> {
        let sheaves = layout.field("KmemCache.sheaves")?.at;
        let slabs = sheaves + layout.field("SheafCache.slabs")?.at;
        let slab = |name, bytes| Ok(within(slabs, layout.number(name, bytes)?));
        let sheaf = |name| Ok(within(sheaves, layout.number(name, 8)?));
        let geometry = slabs + layout.field("SlabCache.geometry")?.at;
        let links = slabs + layout.field("SlabCache.links")?.at;
        let deferred = slabs + layout.field("SlabCache.deferred")?.at;
        Ok(Self {
            bytes: layout.constant("size_of.KmemCache", 64..=1 << 16)?,
            name: slab("SlabCache.name", 32)?,
            name_len: slab("SlabCache.name_len", 1)?,
            id: slab("SlabCache.id", 2)?,
            size: slab("SlabCache.size", 4)?,
            align: slab("SlabCache.align", 4)?,
            order: within(geometry, layout.number("SlabGeometry.order", 4)?),
            objects: within(geometry, layout.number("SlabGeometry.objects", 4)?),
            link_offset: within(links, layout.number("Links.offset", 4)?),
            secret: within(links, layout.number("Links.random", 8)?),
            random: slab("SlabCache.random", 8)?,
            nodes: slab("SlabCache.nodes", 8)?,
            nr_nodes: slab("SlabCache.nr_nodes", 8)?,
            deferred_first: within(deferred, layout.number("Deferred.objects", 8)?),
            deferred_len: within(deferred, layout.number("Deferred.len", 8)?),
            flushes: sheaf("SheafCache.flushes_in_flight")?,
            capacity: sheaf("SheafCache.capacity")?,
            capacity_max: sheaf("SheafCache.capacity_max")?,
            max_full: sheaf("SheafCache.max_full")?,
            max_full_grown: sheaf("SheafCache.max_full_grown")?,
            barns: sheaf("SheafCache.barns")?,
            nr_barns: sheaf("SheafCache.nr_barns")?,
            object_size: layout.number("KmemCache.object_size", 4)?,
            users: layout.number("KmemCache.users", 4)?,
            peak_slabs: slab("SlabCache.peak_slabs", 8).ok(),
            debug_left: slab("SlabCache.debug_left", 4).ok(),
            debug_object: slab("SlabCache.debug_object", 4).ok(),
        })
    }
}

impl PcpFields {
    /// `None` if the version does not describe what CPUs keep.
    fn of(layout: &Layout, memory: usize) -> Option<Self> {
        let pcp = memory + layout.field("Memory.pcp").ok()?.at;
        let field = |name, bytes| Some(within(pcp, layout.number(name, bytes).ok()?));
        Some(Self {
            lists: field("PerCpuPages.lists", 8)?,
            nr_lists: field("PerCpuPages.nr_lists", 8)?,
            without: field("PerCpuPages.calls", 16)?,
            bytes: layout.constant("size_of.PageList", 16..=1 << 12).ok()?,
            pages: layout.number("PageList.pages", 8).ok()?,
            calls: layout.number("PageList.calls", 16).ok()?,
            others: layout.number("PageList.others", 16).ok()?,
        })
    }
}

impl HugeFields {
    /// `None` if the version does not describe huge objects.
    fn of(layout: &Layout, memory: usize) -> Option<Self> {
        let mapped = memory + layout.field("Memory.mapped").ok()?.at;
        let field = |name| Some(within(mapped, layout.number(name, 8).ok()?));
        Some(Self {
            live: field("MappedObjects.live")?,
            kept: field("MappedObjects.kept"),
            table: field("MappedObjects.entries")?,
            capacity: field("MappedObjects.capacity")?,
            entry_bytes: layout.constant("size_of.Mapping", 16..=256).ok()?,
        })
    }
}

impl Fields {
    /// The fields that a layout table describes.
    ///
    /// # Errors
    ///
    /// If one is missing or has another width.
    pub(crate) fn of(layout: &Layout) -> Result<Self> {
        let base = layout.field("Allocator.base")?.at;
        let table = base + layout.field("Base.table")?.at;
        let memory = base + layout.field("Base.memory")?.at;
        let arena = memory + layout.field("Memory.zone")?.at + layout.field("Zone.arena")?.at;
        let in_table = |name| Ok(within(table, layout.number(name, 8)?));
        let in_arena = |name| Ok(within(arena, layout.number(name, 8)?));
        let (head, len) = (
            layout.number("SheafList.head", 8)?,
            layout.number("SheafList.len", 8)?,
        );
        let list = |name| {
            let at = layout.field(name)?.at;
            Ok((within(at, head), within(at, len)))
        };
        let constant = |name, most| layout.constant(name, 1..=most);
        let stat_slots = constant("STAT_SLOTS", 256)?;
        let stat = |name| layout.constant(name, 0..=stat_slots - 1);
        Ok(Self {
            cache: CacheFields::of(layout)?,
            descriptor: DescriptorFields {
                bytes: constant("size_of.Descriptor", 256)?,
                state: layout.number("Descriptor.state", 8)?,
                position: layout.number("Descriptor.position", 2)?,
                start: layout.number("Descriptor.start", 2)?,
                kind: layout.number("Descriptor.kind", 1)?,
                pages: layout.number("Descriptor.pages", 2)?,
                epoch: layout.number("Descriptor.epoch", 2)?,
            },
            allocator_bytes: constant("size_of.Allocator", 1 << 22)?,
            end: layout.number("Allocator.end", 8)?,
            pcp: PcpFields::of(layout, memory),
            ready: within(base, layout.number("Base.ready", 1)?),
            caches: within(base, layout.field("Base.caches")?),
            table_regions: in_table("Table.regions")?,
            table_stopped: in_table("Table.stopped")?,
            table_end: in_table("Table.end")?,
            arena_base: in_arena("Arena.base")?,
            arena_reserved: in_arena("Arena.reserved")?,
            arena_limit: in_arena("Arena.limit")?,
            arena_map: in_arena("Arena.map")?,
            arena_descriptors: in_arena("Arena.descriptors")?,
            arena_blocks: in_arena("Arena.blocks")?,
            large_pages: within(memory, layout.number("Memory.large_pages", 8)?),
            region_bytes: constant("size_of.Region", 1 << 26)?,
            region_stats: layout.field("Region.stats")?.at,
            window_link: layout.number("Window.link", 8)?,
            window_capacity: layout.number("Window.capacity", 2)?,
            window_cache: layout.number("Window.cache", 2)?,
            window_len: layout.number("Window.len", 4)?,
            node_bytes: constant("size_of.Node", 1 << 16)?,
            node_partial: layout.number("Node.nr_partial", 8)?,
            node_slabs: layout.number("Node.nr_slabs", 8)?,
            node_ahead: layout.number("Node.ahead", 8)?,
            barn_bytes: constant("size_of.Barn", 1 << 16)?,
            barn_full: list("Barn.full")?,
            barn_empty: list("Barn.empty")?,
            block_bytes: constant("size_of.Block", 1 << 12)?,
            block_free: layout.field("Block.free")?,
            block_dirty: layout.field("Block.dirty")?,
            block_pages: layout.constant("BLOCK_PAGES", 64..=4096)?,
            caches_a_page: constant("CACHES_A_PAGE", 1024)?,
            cache_words: layout.constant("CACHE_WORDS", 4..=8)?,
            max_caches: constant("MAX_CACHES", 4096)?,
            sheaf_bytes: layout.constant("SHEAF_BYTES", 4096..=1 << 16)? as u64,
            max_capacity: constant("MAX_CAPACITY", 1 << 13)?,
            stat_slots,
            stat_allocs: [stat("alloc_fastpath")?, stat("alloc_slowpath")?],
            stat_frees: [stat("free_fastpath")?, stat("free_slowpath")?],
            huge: HugeFields::of(layout, memory),
            store: layout.field("Memory.meta").ok().and_then(|meta| {
                let used = layout.number("MetadataStore.used", 8).ok()?;
                Some(within(memory + meta.at, used))
            }),
            peak_large: layout.number("Allocator.peak_large", 8).ok(),
            quarantine: Self::quarantine(layout),
        })
    }

    /// `None` if the version does not describe quarantine.
    fn quarantine(layout: &Layout) -> Option<(Field, Field)> {
        let outer = layout.field("Allocator.quarantine").ok()?.at;
        let ring = |name| {
            let ring = layout.field(name).ok()?;
            (ring.bytes <= RING_MOST).then(|| within(outer, ring))
        };
        Some((ring("Quarantine.small")?, ring("Quarantine.large")?))
    }
}
