//! A walk over the pages of an arena: what begins where.
//!
//! The walk reads the page map and the descriptors in parts of 64 blocks (128 MiB of pages), and
//! only what was ever touched. Each page is seen once, so the walk ends whatever memory says.

use crate::heap::{Arena, Cache, Heap};

/// Pages of one part.
const PART: u64 = 64 * 512;
/// Kind of a page with which a slab begins.
const SLAB: u64 = 1;
/// Kind of a page with which a large object begins.
const LARGE: u64 = 2;
/// Kind of a page with which pages begin that a CPU keeps.
const KEPT: u64 = 3;
/// Freelist offset of a slab without a freelist.
const NO_HEAD: u64 = 0xffff;

/// A slab, as its descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// Its first page.
    pub page: u64,
    /// Slots in use.
    pub inuse: u32,
    /// Byte offset of the first object of the freelist.
    pub head: Option<u64>,
    /// Slots that were handed out since the slab was last empty.
    pub position: u32,
    /// Where in the random order it began.
    pub start: u32,
    /// How often it started over.
    pub epoch: u16,
}

/// What the walk meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// A slab of the cache with this place in the list of caches.
    Slab(usize, Slab),
    /// A large object: first page, pages.
    Large(u64, u64),
    /// Pages that a CPU keeps for the next large object: first page, pages.
    Kept(u64, u64),
    /// Pages in which nothing begins: free, or of slabs to come.
    Free(u64, u64),
    /// A page of a slab that is being made or freed just now, or is damaged.
    Torn(u64),
}

/// From a cache's identity in the page map to its place in the list.
fn by_identity(caches: &[Cache]) -> Vec<Option<usize>> {
    let most = caches.iter().map(|cache| usize::from(cache.id) + 1).max();
    let mut table = vec![None; most.unwrap_or(0)];
    for (place, cache) in caches.iter().enumerate() {
        table[usize::from(cache.id)] = Some(place);
    }
    table
}

impl Heap<'_> {
    fn slab(&self, page: u64, descriptor: &[u8]) -> Slab {
        let f = &self.f.descriptor;
        let state = f.state.of(descriptor);
        let head = state & 0xffff;
        Slab {
            page,
            inuse: (state >> 16 & 0xffff) as u32,
            head: (head != NO_HEAD).then_some(head * 8),
            position: f.position.of(descriptor) as u32,
            start: f.start.of(descriptor) as u32,
            epoch: f.epoch.of(descriptor) as u16,
        }
    }

    /// The slab with a first page.
    pub(crate) fn slab_at(&self, page: u64) -> Option<Slab> {
        let f = &self.f.descriptor;
        let mut descriptor = vec![0; f.bytes];
        let at = (self.arena().descriptors).wrapping_add(page * f.bytes as u64);
        self.memory.read_sparse(at, &mut descriptor);
        (f.kind.of(&descriptor) == SLAB).then(|| self.slab(page, &descriptor))
    }

    fn large_pages_in(&self, descriptor: &[u8]) -> u64 {
        let f = &self.f.descriptor;
        (f.position.of(descriptor) << 16 | f.pages.of(descriptor)).max(1)
    }

    /// The entry of a page in the page map.
    pub(crate) fn map_entry(&self, page: u64) -> u16 {
        let mut entry = [0; 2];
        self.memory
            .read_sparse(self.arena().map.wrapping_add(page * 2), &mut entry);
        u16::from_le_bytes(entry)
    }

    /// Calls `visit` with everything in the arena, in the order of pages.
    pub(crate) fn walk(&self, caches: &[Cache], mut visit: impl FnMut(Span)) {
        let arena = self.arena();
        let places = by_identity(caches);
        let mut walk = Walk {
            heap: self,
            arena,
            map: Vec::new(),
            descriptors: Vec::new(),
            page: 0,
        };
        let mut begin = 0;
        while begin < arena.pages {
            let end = (begin + PART).min(arena.pages);
            walk.page = walk.page.max(begin);
            if !walk.read(begin, end) {
                if walk.page < end {
                    visit(Span::Free(walk.page, end - walk.page));
                }
                begin = end;
                continue;
            }
            while walk.page < end {
                visit(walk.step(begin, end, caches, &places));
            }
            begin = end;
        }
    }
}

/// The part of the arena that is walked.
struct Walk<'h, 'm> {
    heap: &'h Heap<'m>,
    arena: Arena,
    map: Vec<u8>,
    descriptors: Vec<u8>,
    page: u64,
}

impl Walk<'_, '_> {
    /// Reads the records of a part; false if none of them was ever touched.
    fn read(&mut self, begin: u64, end: u64) -> bool {
        let (pages, bytes) = ((end - begin) as usize, self.heap.f.descriptor.bytes);
        let is_touched = |start: u64, unit: u64| {
            let range = start.wrapping_add(begin * unit)..start.wrapping_add(end * unit);
            self.heap.memory.touched(range).is_some()
        };
        if !is_touched(self.arena.map, 2) && !is_touched(self.arena.descriptors, bytes as u64) {
            return false;
        }
        self.map.resize(2 * pages, 0);
        self.descriptors.resize(bytes * pages, 0);
        let memory = self.heap.memory;
        memory.read_sparse(self.arena.map.wrapping_add(2 * begin), &mut self.map);
        let at = self.arena.descriptors.wrapping_add(begin * bytes as u64);
        memory.read_sparse(at, &mut self.descriptors);
        true
    }

    fn entry(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.map[2 * at], self.map[2 * at + 1]])
    }

    fn descriptor(&self, at: usize) -> &[u8] {
        let bytes = self.heap.f.descriptor.bytes;
        &self.descriptors[at * bytes..(at + 1) * bytes]
    }

    /// What begins at the next page; moves on behind it.
    fn step(&mut self, begin: u64, end: u64, caches: &[Cache], places: &[Option<usize>]) -> Span {
        let page = self.page;
        let at = (page - begin) as usize;
        let kind = self.heap.f.descriptor.kind;
        let id = self.entry(at);
        if id == 0 {
            let first = kind.of(self.descriptor(at));
            if matches!(first, LARGE | KEPT) {
                let pages = self.heap.large_pages_in(self.descriptor(at));
                let pages = pages.min(self.arena.pages - page);
                self.page += pages;
                return match first {
                    LARGE => Span::Large(page, pages),
                    _ => Span::Kept(page, pages),
                };
            }
            let mut next = at + 1;
            let last = (end - begin) as usize;
            let begins = |at| matches!(kind.of(self.descriptor(at)), LARGE | KEPT);
            while next < last && self.entry(next) == 0 && !begins(next) {
                next += 1;
            }
            self.page = begin + next as u64;
            return Span::Free(page, self.page - page);
        }
        self.page += 1;
        let Some(place) = places.get(usize::from(id)).copied().flatten() else {
            return Span::Torn(page);
        };
        let pages = caches[place].slab_pages();
        let whole = (page..page + pages).take_while(|&p| p < end);
        let is_whole = page.is_multiple_of(pages)
            && kind.of(self.descriptor(at)) == SLAB
            && whole
                .filter(|&p| self.entry((p - begin) as usize) == id)
                .count() as u64
                == pages;
        if !is_whole {
            return Span::Torn(page);
        }
        let mut slab = self.heap.slab(page, self.descriptor(at));
        slab.inuse = slab.inuse.min(caches[place].objects);
        self.page = page + pages;
        Span::Slab(place, slab)
    }
}
