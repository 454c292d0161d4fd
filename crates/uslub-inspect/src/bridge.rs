//! The bridge: from the resident memory of a process to its live objects, in parts that add up.
//!
//! | part | what it is |
//! |---|---|
//! | live | resident slots, large and huge objects that the program holds |
//! | cached | free objects in sheaves |
//! | free slots | resident free slots of slabs, and the rest behind the last slot of each |
//! | kept | resident free pages: they go back to the system after the decay time |
//! | tables | the allocator's records that are resident |
//! | files | programs, libraries and mapped files |
//! | stacks | the stack of the first thread |
//! | other | the rest: stacks of threads, mappings of the program's own, other allocators |
//!
//! `smaps` has the resident bytes of each mapping; `pagemap` says which pages of the arena are
//! resident. A slab's page does not say which of its slots were touched. So live slots count as
//! resident first, then cached ones, then free ones: fresh slots are what was never touched.
//!
//! The sum is the resident memory by construction, because `other` is the difference. If the parts
//! exceed what is resident, because the process runs on, they are cut in the order of the table,
//! from the last.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::heap::{Cache, Heap};
use crate::memory::PAGE;
use crate::pages::Span;
use crate::proc_text::{self, Resident};
use crate::process::Process;
use crate::snapshot::Snapshot;

/// Pages whose residence is asked for at a time.
const BATCH: u64 = 1 << 15;

/// Resident bytes by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// All resident bytes: the kernel's VmRSS.
    pub resident: u64,
    /// Objects that the program holds.
    pub live: u64,
    /// Free objects in sheaves and in quarantine.
    pub cached: u64,
    /// Free slots in slabs.
    pub free: u64,
    /// Free pages.
    pub kept: u64,
    /// The allocator's own records.
    pub tables: u64,
    /// Programs, libraries and mapped files.
    pub files: u64,
    /// The stack of the first thread.
    pub stack: u64,
    /// The rest.
    pub other: u64,
}

impl Bridge {
    /// The parts, in order, with their names.
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("live", self.live),
            ("cached", self.cached),
            ("free slots", self.free),
            ("kept", self.kept),
            ("tables", self.tables),
            ("files", self.files),
            ("stack", self.stack),
            ("other", self.other),
        ]
    }

    /// The bridge of a process whose allocators were looked at.
    ///
    /// # Errors
    ///
    /// If the process ended, or the system forbids reading its `smaps`.
    pub fn of(process: &Process, heaps: &[(Heap<'_>, Snapshot)]) -> Result<Self> {
        let smaps = proc_text::smaps(&process.text("smaps")?);
        let mut bridge = Self {
            resident: smaps.iter().map(|map| map.bytes).sum(),
            ..Self::default()
        };
        let is_file = |map: &&Resident| map.map.name.starts_with('/');
        bridge.files = smaps.iter().filter(is_file).map(|map| map.bytes).sum();
        let is_stack = |map: &&Resident| map.map.name == "[stack]";
        bridge.stack = smaps.iter().filter(is_stack).map(|map| map.bytes).sum();
        for (heap, snapshot) in heaps {
            bridge.add(process, heap, snapshot);
        }
        bridge.close();
        Ok(bridge)
    }

    /// Adds the resident memory of one allocator.
    fn add(&mut self, process: &Process, heap: &Heap<'_>, snapshot: &Snapshot) {
        let (caches, _) = heap.caches();
        let mut slabs = vec![0; caches.len()];
        let mut pages = Residents::new(process, heap);
        let quarantine = heap.quarantined_large();
        heap.walk(&caches, |span| match span {
            Span::Slab(place, slab) => {
                slabs[place] += PAGE * pages.count(slab.page, caches[place].slab_pages());
            }
            Span::Large(first, n) => {
                let bytes = PAGE * pages.count(first, n);
                match quarantine.has(heap.address(first)..heap.address(first + n)) {
                    true => self.cached += bytes,
                    false => self.live += bytes,
                }
            }
            Span::Kept(first, n) | Span::Free(first, n) => {
                self.kept += PAGE * pages.count(first, n)
            }
            Span::Torn(page) => self.free += PAGE * pages.count(page, 1),
        });
        for (cache, mut left) in caches.iter().zip(slabs) {
            let mut rows = snapshot.rows.iter();
            let Some(row) = rows.find(|row| row.cache.index == cache.index) else {
                self.free += left;
                continue;
            };
            let mut take = |bytes: u64| {
                let taken = bytes.min(left);
                left -= taken;
                taken
            };
            self.live += take(row.live_bytes().unwrap_or(0));
            self.cached += take(row.cached_bytes());
            self.free += left;
        }
        for (at, bytes) in heap.huge_objects() {
            let resident = PAGE * resident(process, at, bytes.div_ceil(PAGE));
            match quarantine.has(at..at + bytes) {
                true => self.cached += resident,
                false => self.live += resident,
            }
        }
        self.tables += heap.resident_tables(process, &caches);
    }

    /// Makes the parts add up.
    fn close(&mut self) {
        let mut left = self.resident;
        let parts = [
            &mut self.live,
            &mut self.cached,
            &mut self.free,
            &mut self.kept,
            &mut self.tables,
            &mut self.files,
            &mut self.stack,
        ];
        for part in parts {
            *part = (*part).min(left);
            left -= *part;
        }
        self.other = left;
    }
}

/// Resident pages among `pages` pages from an address on.
fn resident(process: &Process, at: u64, pages: u64) -> u64 {
    let (mut done, mut count) = (0, 0);
    while done < pages {
        let n = (pages - done).min(BATCH);
        let Some(set) = process.resident(at.wrapping_add(done * PAGE), n as usize) else {
            return 0;
        };
        count += set.iter().filter(|&&is| is).count() as u64;
        done += n;
    }
    count
}

/// Which pages of the arena are resident, read in parts.
struct Residents<'p> {
    process: &'p Process,
    base: u64,
    limit: u64,
    first: u64,
    set: Vec<bool>,
}

impl<'p> Residents<'p> {
    fn new(process: &'p Process, heap: &Heap<'_>) -> Self {
        let arena = heap.arena();
        Self {
            process,
            base: arena.base,
            limit: arena.pages,
            first: 0,
            set: Vec::new(),
        }
    }

    /// Resident pages among `pages` pages from `first` on.
    fn count(&mut self, first: u64, pages: u64) -> u64 {
        let end = (first + pages).min(self.limit);
        (first..end).filter(|&page| self.is_resident(page)).count() as u64
    }

    fn is_resident(&mut self, page: u64) -> bool {
        let is_read = page >= self.first && page - self.first < self.set.len() as u64;
        if !is_read {
            let n = (self.limit - page).min(BATCH);
            let set = self
                .process
                .resident(self.base.wrapping_add(page * PAGE), n as usize);
            self.set = set.unwrap_or_else(|| vec![false; n as usize]);
            self.first = page;
        }
        self.set[(page - self.first) as usize]
    }
}

impl Heap<'_> {
    /// Resident bytes of the allocator's records: side arrays, regions, cache records, sheaves.
    fn resident_tables(&self, process: &Process, caches: &[Cache]) -> u64 {
        let arena = self.arena();
        let bytes = |bytes: usize| bytes as u64;
        let blocks = arena.pages / bytes(self.f.block_pages) * bytes(self.f.block_bytes);
        let mut ranges = vec![
            (arena.map, 2 * arena.pages),
            (
                arena.descriptors,
                arena.pages * bytes(self.f.descriptor.bytes),
            ),
            (arena.blocks, blocks),
            (self.stopped, bytes(self.f.region_bytes)),
        ];
        let regions = self.regions.iter();
        ranges.extend(regions.map(|&(_, at)| (at, bytes(self.f.region_bytes))));
        for cache in caches {
            ranges.push((cache.at, bytes(self.f.cache.bytes)));
            ranges.extend(cache.barns.iter().map(|&at| (at, bytes(self.f.barn_bytes))));
            let nodes = cache.node_records.iter();
            ranges.extend(nodes.map(|&at| (at, bytes(self.f.node_bytes))));
            if cache.random != 0 {
                ranges.push((cache.random, 8 * u64::from(cache.objects)));
            }
        }
        for window in self.windows(caches) {
            ranges.push((window, self.f.sheaf_bytes));
        }
        let mut pages = BTreeSet::new();
        for (at, bytes) in ranges
            .into_iter()
            .filter(|&(at, bytes)| at != 0 && bytes > 0)
        {
            // Records of one arena: nothing is larger than its descriptors.
            pages.extend(at / PAGE..(at.saturating_add(bytes)).div_ceil(PAGE));
        }
        let mut count = 0;
        let mut runs = pages.into_iter().peekable();
        while let Some(first) = runs.next() {
            let mut end = first + 1;
            while runs.next_if_eq(&end).is_some() {
                end += 1;
            }
            count += resident(process, first * PAGE, end - first);
        }
        count * PAGE
    }

    /// The windows of all sheaves that can be found, full and empty.
    fn windows(&self, caches: &[Cache]) -> Vec<u64> {
        let words = self.region_words(caches);
        let mut windows: Vec<_> = self
            .slot_sheaves(caches, &words)
            .iter()
            .map(|s| s.window)
            .collect();
        windows.extend(self.barn_sheaves(caches).iter().map(|sheaf| sheaf.window));
        windows.extend(self.empty_windows(caches));
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_exceed_the_whole_are_cut_from_the_last() {
        let mut bridge = Bridge {
            resident: 100,
            live: 60,
            kept: 30,
            tables: 20,
            files: 5,
            ..Bridge::default()
        };
        bridge.close();
        assert_eq!((bridge.live, bridge.kept), (60, 30));
        assert_eq!((bridge.tables, bridge.files, bridge.other), (10, 0, 0));
        let mut bridge = Bridge {
            resident: 100,
            live: 60,
            ..Bridge::default()
        };
        bridge.close();
        assert_eq!(bridge.other, 40);
        let sum: u64 = bridge.parts().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(sum, bridge.resident);
    }
}
