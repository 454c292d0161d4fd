//! What one look keeps: the bridge, and the figures of each cache.

use crate::failure::Failure;
use crate::inspect::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uslub_inspect::Bridge;

/// Which cache a row is about.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Cache {
    /// Its name; `large` and `huge` are the objects above 8 KiB.
    pub name: String,
    /// The face whose allocator has it: `malloc`, `rust` or `c`.
    pub face: String,
    /// Bytes of a slot; 0 for large and huge objects.
    pub size: u64,
}

/// The figures of one cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Row {
    /// Objects that the program holds.
    pub live: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects in sheaves.
    pub cached: u64,
    /// Bytes of all slabs.
    pub memory: u64,
    /// Objects allocated so far; racy.
    pub allocs: u64,
    /// Objects freed so far; racy.
    pub frees: u64,
}

impl Row {
    /// The figures in the order of the file.
    pub fn figures(self) -> [u64; 6] {
        let Row { live, bytes, .. } = self;
        [
            live,
            bytes,
            self.cached,
            self.memory,
            self.allocs,
            self.frees,
        ]
    }

    /// The row with these figures.
    pub fn of(figures: [u64; 6]) -> Self {
        let [live, bytes, cached, memory, allocs, frees] = figures;
        Row {
            live,
            bytes,
            cached,
            memory,
            allocs,
            frees,
        }
    }

    fn add(&mut self, other: Row) {
        let sum = |(a, b): (u64, u64)| a.saturating_add(b);
        let mut figures = self.figures();
        for (figure, other) in figures.iter_mut().zip(other.figures()) {
            *figure = sum((*figure, other));
        }
        *self = Row::of(figures);
    }
}

/// Names of the parts of resident memory, in the order of the file.
pub const PARTS: [&str; 8] = [
    "live",
    "cached",
    "free slots",
    "kept",
    "tables",
    "files",
    "stack",
    "other",
];

/// One look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Milliseconds from the first look.
    pub at: u64,
    /// Resident bytes by what they hold, in the order of [`PARTS`].
    pub parts: [u64; 8],
    /// The figures of each cache with memory or live objects.
    pub rows: BTreeMap<Cache, Row>,
}

impl Look {
    /// Looks at a process.
    ///
    /// # Errors
    ///
    /// If the process cannot be read.
    pub fn at(target: &Target, at: u64) -> Result<(Self, String), Failure> {
        let looks = target.looks()?;
        let mut parts = [0; 8];
        if let Target::Process(process) = target {
            let bridge = Bridge::of(process, &looks).map_err(|error| target.refuse(error))?;
            parts = bridge.parts().map(|(_, bytes)| bytes);
        }
        let mut rows: BTreeMap<Cache, Row> = BTreeMap::new();
        let mut version = String::new();
        for (heap, snapshot) in &looks {
            let face = &heap.root().face;
            version.clone_from(&heap.root().version);
            let mut add = |name: &str, size: u64, row: Row| {
                let cache = Cache {
                    name: name.to_owned(),
                    face: face.clone(),
                    size,
                };
                rows.entry(cache).or_default().add(row);
            };
            for row in snapshot.rows.iter().filter(|row| row.slabs > 0) {
                let figures = Row {
                    live: row.live().unwrap_or(0),
                    bytes: row.live_bytes().unwrap_or(0),
                    cached: row.cached,
                    memory: row.slab_bytes(),
                    allocs: row.calls.0,
                    frees: row.calls.1,
                };
                add(&row.cache.name, u64::from(row.cache.size), figures);
            }
            let whole = |live: u64, bytes: u64| Row {
                live,
                bytes,
                memory: bytes,
                ..Row::default()
            };
            let pages = &snapshot.pages;
            if pages.large_objects > 0 {
                add("large", 0, whole(pages.large_objects, pages.large * 4096));
            }
            if let Some((bytes, _)) = snapshot.huge.filter(|&(bytes, _)| bytes > 0) {
                add("huge", 0, whole(snapshot.huge_objects, bytes));
            }
        }
        let look = Look { at, parts, rows };
        Ok((look, version))
    }
}
