//! The root: where a reader in another process, or of a core file, begins.
//!
//! A [`Root`] is a constant in the data of each face's library or program. An ELF note, in the
//! section `.note.uslub`, says where it lies. So a reader finds it through the program headers in
//! memory, in stripped and in static programs too. The root leads to the allocator, and to the
//! [rows](crate::layout) that say where each field is. It costs 2 KiB of data: no code reads it.
//!
//! ```text
//!   note:  4 name length | 4 description length | 4 type | "uslub\0" 0 0 | Root's address - here
//!   Root:  magic, format, face, version → allocator, sentinels; rows
//! ```
//!
//! The note has a distance, which the linker knows, and no address, which the loader would write.
//! So it is read-only. GNU `ld` puts the notes of a static program into one segment with its
//! headers and often its code, and a writable one would make them all writable.
//!
//! The reader finds the cache's secret of [`Links`] too, because it
//! walks freelists. Whoever may read a process's memory can read that secret anyway.
//!
//! Callers: the faces make it ([`note!`](crate::note)), `uslub-inspect` reads it.

use core::mem::offset_of;

use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::quarantine::Quarantine;
use crate::layout::{Row, count, join};
use crate::memory::block::{BLOCK_PAGES, Block};
use crate::memory::mapped::MappedObjects;
use crate::memory::pcp::{PageList, PerCpuPages};
use crate::memory::zone::Zone;
use crate::memory::{Arena, Descriptor, Memory};
use crate::percpu::sheaf::{self, MAX_CAPACITY, SHEAF_BYTES, Window};
use crate::percpu::sheaf_list::SheafList;
use crate::percpu::stats::{STAT_ITEMS, STAT_SLOTS};
use crate::percpu::{CACHE_WORDS, CACHES_A_PAGE, Region};
use crate::percpu::{MAX_CACHES, Table};
use crate::platform::Platform;
use crate::sheaf::barn::Barn;
use crate::sheaf::cache::SheafCache;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::deferred::Deferred;
use crate::slab::freelist::Links;
use crate::slab::node::Node;
use crate::slab::order::SlabGeometry;
use crate::slab::state::Slab;

/// The first bytes of a root.
pub const MAGIC: [u8; 8] = *b"uslubrt1";
/// Version of the format: of the root and of what its rows mean.
pub const FORMAT: u32 = 1;
/// Name of the ELF note, with its zero byte.
pub const NOTE_NAME: [u8; 6] = *b"uslub\0";
/// Type of the ELF note.
pub const NOTE_TYPE: u32 = 1;

/// What a reader needs to read an allocator.
///
/// It lies within one page. The loader writes the pointers, or the program other data near it, so
/// the kernel puts that page into a core file. Read-only data would be left out.
#[repr(C, align(2048))]
pub struct Root {
    magic: [u8; 8],
    format: u32,
    nr_rows: u32,
    /// Which face made it (`malloc`, `rust`, `c`); ends with zero bytes.
    face: [u8; 8],
    /// Version of uslub; ends with zero bytes.
    version: [u8; 24],
    allocator: *const (),
    sentinels: *const (),
    rows: [Row; MOST_ROWS],
}

// SAFETY: never written; its pointers lead to statics.
unsafe impl Sync for Root {}

const _: () = assert!(offset_of!(Root, rows) == 64 && size_of::<Root>() == 2048);

impl Root {
    /// The root of an allocator; `face` has at most 7 bytes.
    pub const fn of<P: Platform>(allocator: &'static Allocator<P>, face: &str) -> Self {
        Self {
            magic: MAGIC,
            format: FORMAT,
            nr_rows: count(Allocator::<P>::PARTS) as u32,
            face: padded(face),
            version: padded(env!("CARGO_PKG_VERSION")),
            rows: join(Allocator::<P>::PARTS),
            allocator: (&raw const *allocator).cast(),
            sentinels: sheaf::sentinels(),
        }
    }
}

/// A text as bytes, with zero bytes behind it.
const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let (bytes, mut all) = (text.as_bytes(), [0; N]);
    assert!(bytes.len() < N);
    let mut i = 0;
    while i < bytes.len() {
        all[i] = bytes[i];
        i += 1;
    }
    all
}

/// Puts the root of a static allocator into the data of the library or program, and an ELF note
/// that leads to it.
///
/// Both are kept by the linker: the root is `#[used]`, and linkers keep notes.
#[macro_export]
macro_rules! note {
    ($allocator:expr, $face:literal) => {
        #[used]
        static USLUB_ROOT: $crate::root::Root = $crate::root::Root::of(&$allocator, $face);
        // The lengths of the name and of the description, the type, the name, the description.
        ::core::arch::global_asm!(
            ".pushsection .note.uslub, \"a\", %note",
            ".balign 4",
            ".long {name_bytes}, 8, {kind}",
            ".asciz \"uslub\"",
            ".byte 0, 0",
            ".quad {root} - .",
            ".popsection",
            name_bytes = const $crate::root::NOTE_NAME.len(),
            kind = const $crate::root::NOTE_TYPE,
            root = sym USLUB_ROOT,
        );
    };
}

/// The fields of an arena, as [`Arena`] has them. The arena's own are private to its layer; a test
/// compares both.
#[repr(C, align(32))]
struct ArenaFields {
    base: usize,
    reserved: usize,
    limit: usize,
    cacheable_limit: usize,
    map: usize,
    descriptors: usize,
    blocks: usize,
    groups: usize,
    rest: [usize; 5],
}

const _: () = assert!(size_of::<ArenaFields>() == size_of::<Arena>());

impl ArenaFields {
    const ROWS: &'static [Row] = crate::layout::rows!(
        "Arena",
        Self,
        [base, reserved, limit, map, descriptors, blocks]
    );
}

/// The fields of a descriptor, as [`Descriptor`] has them; see [`ArenaFields`].
#[repr(C, align(32))]
struct DescriptorFields {
    state: u64,
    prev: u32,
    next: u32,
    position: u16,
    start: u16,
    kind: u8,
    partial: u8,
    node: u8,
    lock: u8,
    pages: u16,
    epoch: u16,
}

const _: () = assert!(size_of::<DescriptorFields>() == size_of::<Descriptor>());
const _: () = assert!(offset_of!(Slab, state) == offset_of!(DescriptorFields, state));

impl DescriptorFields {
    const ROWS: &'static [Row] = crate::layout::rows!(
        "Descriptor",
        Self,
        [state, position, start, kind, node, pages, epoch]
    );
}

/// Fields of plain structures, and constants.
const CONSTANTS: &[Row] = &[
    Row::new("SlabGeometry.order", offset_of!(SlabGeometry, order), 4),
    Row::new("SlabGeometry.objects", offset_of!(SlabGeometry, objects), 4),
    Row::new("Links.offset", offset_of!(Links, offset), 4),
    Row::new("Links.random", offset_of!(Links, random), 8),
    Row::new("Block.free", offset_of!(Block, free), BLOCK_PAGES / 8),
    Row::new("Block.dirty", offset_of!(Block, dirty), BLOCK_PAGES / 8),
    Row::constant("size_of.Block", size_of::<Block>()),
    Row::constant("size_of.Descriptor", size_of::<Descriptor>()),
    Row::constant("size_of.Region", size_of::<Region>()),
    Row::constant("BLOCK_PAGES", BLOCK_PAGES),
    Row::constant("CACHES_A_PAGE", CACHES_A_PAGE),
    Row::constant("CACHE_WORDS", CACHE_WORDS),
    Row::constant("MAX_CACHES", MAX_CACHES),
    Row::constant("SHEAF_BYTES", SHEAF_BYTES),
    Row::constant("MAX_CAPACITY", MAX_CAPACITY),
    Row::constant("STAT_SLOTS", STAT_SLOTS),
];

/// Room for rows; 12 bytes each.
const MOST_ROWS: usize = 160;

/// The counters: the value of each row is the counter's index.
const STATS: [Row; STAT_SLOTS] = {
    let mut rows = [Row::constant("", 0); STAT_SLOTS];
    let mut i = 0;
    while i < STAT_SLOTS {
        rows[i] = Row::constant(STAT_ITEMS[i].1, STAT_ITEMS[i].0 as usize);
        i += 1;
    }
    rows
};

impl<P: Platform> Allocator<P> {
    const PARTS: &'static [&'static [Row]] = &[
        CONSTANTS,
        &STATS,
        ArenaFields::ROWS,
        DescriptorFields::ROWS,
        Table::ROWS,
        Region::ROWS,
        Window::ROWS,
        SheafList::ROWS,
        Deferred::ROWS,
        SlabCache::<P>::ROWS,
        SlabCache::<P>::DEBUG_ROWS,
        SheafCache::<P>::ROWS,
        KmemCache::<P>::ROWS,
        Node::<P>::ROWS,
        Barn::<P>::ROWS,
        &Barn::<P>::LISTS,
        Base::<P>::ROWS,
        Self::ROWS,
        Quarantine::ROWS,
        crate::layout::rows!("Memory", Memory<P>, [zone, meta, mapped, large_pages, pcp]),
        crate::layout::rows!("Zone", Zone<P>, [arena]),
        MappedObjects::<P>::ROWS,
        PerCpuPages::<P>::ROWS,
        PageList::<P>::ROWS,
        &[
            Row::constant("size_of.PageList", size_of::<PageList<P>>()),
            Row::constant("size_of.Node", size_of::<Node<P>>()),
            Row::constant("size_of.Barn", size_of::<Barn<P>>()),
            Row::constant("size_of.KmemCache", size_of::<KmemCache<P>>()),
            Row::constant("size_of.Allocator", size_of::<Self>()),
        ],
    ];
}
