//! The figures of a process as OpenMetrics text: names, kinds and labels of the series.
//!
//! | family | kind | labels | meaning |
//! |---|---|---|---|
//! | `uslub_cache_objects` | gauge | `cache`, `state` | slots: `live`, `cached` or `free` |
//! | `uslub_cache_slab_bytes` | gauge | `cache` | bytes of the slabs |
//! | `uslub_cache_allocations_total`, `uslub_cache_frees_total` | counter | `cache` | calls |
//! | `uslub_large_bytes`, `uslub_huge_bytes` | gauge | | objects with pages of their own |
//! | `uslub_build_info` | info | `version` | 1 |
//!
//! All have the labels `pid` and `face`. The command and the process itself write the same text, so
//! both use this module. It needs no memory: the caches' figures lie in a slice.

use core::fmt::{self, Display, Write};

/// Caches of a process that get series of their own. The smaller ones are summed as `(other)`.
pub const CACHES_MAX: usize = 200;

/// Name of the sum of the caches without series of their own.
pub const OTHER: &str = "(other)";

/// A metric family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name, without the suffix of its kind.
    pub name: &'static str,
    /// `gauge`, `counter` or `info`.
    pub kind: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// Slots by state.
pub const CACHE_OBJECTS: Family = Family {
    name: "uslub_cache_objects",
    kind: "gauge",
    help: "Slots of a cache by state.",
};
/// Bytes of slabs.
pub const CACHE_SLAB_BYTES: Family = Family {
    name: "uslub_cache_slab_bytes",
    kind: "gauge",
    help: "Bytes of a cache's slabs.",
};
/// Allocations.
pub const CACHE_ALLOCATIONS: Family = Family {
    name: "uslub_cache_allocations",
    kind: "counter",
    help: "Objects allocated so far.",
};
/// Frees.
pub const CACHE_FREES: Family = Family {
    name: "uslub_cache_frees",
    kind: "counter",
    help: "Objects freed so far.",
};
/// Large objects.
pub const LARGE_BYTES: Family = Family {
    name: "uslub_large_bytes",
    kind: "gauge",
    help: "Live large objects.",
};
/// Huge objects.
pub const HUGE_BYTES: Family = Family {
    name: "uslub_huge_bytes",
    kind: "gauge",
    help: "Live objects with a mapping of their own.",
};
/// The version.
pub const BUILD: Family = Family {
    name: "uslub_build",
    kind: "info",
    help: "The version of uslub.",
};

/// The figures of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFigures<'a> {
    /// Its name.
    pub name: &'a str,
    /// Objects that the program holds.
    pub live: u64,
    /// Free objects in sheaves.
    pub cached: u64,
    /// Free slots.
    pub free: u64,
    /// Bytes of its slabs.
    pub slab_bytes: u64,
    /// Objects allocated so far.
    pub allocs: u64,
    /// Objects freed so far.
    pub frees: u64,
}

impl CacheFigures<'_> {
    fn add(&mut self, other: &Self) {
        self.live = self.live.wrapping_add(other.live);
        self.cached = self.cached.wrapping_add(other.cached);
        self.free = self.free.wrapping_add(other.free);
        self.slab_bytes = self.slab_bytes.wrapping_add(other.slab_bytes);
        self.allocs = self.allocs.wrapping_add(other.allocs);
        self.frees = self.frees.wrapping_add(other.frees);
    }
}

/// Sums caches of the same name, and all but the [`CACHES_MAX`] largest; the largest come first.
/// Two series of the same labels would make the whole text invalid.
///
/// ```
/// use uslub_report::openmetrics::{CacheFigures, merge};
///
/// let cache = |name, slab_bytes| CacheFigures { name, slab_bytes, ..Default::default() };
/// let mut caches = [cache("a", 1), cache("b", 9), cache("a", 2)];
/// assert_eq!(merge(&mut caches), [cache("b", 9), cache("a", 3)]);
/// ```
pub fn merge<'s, 'a>(caches: &'s mut [CacheFigures<'a>]) -> &'s [CacheFigures<'a>] {
    caches.sort_unstable_by_key(|cache| cache.name);
    let mut n = 0;
    for i in 0..caches.len() {
        let cache = caches[i];
        match caches[..n].last_mut() {
            Some(last) if last.name == cache.name => last.add(&cache),
            _ => {
                caches[n] = cache;
                n += 1;
            }
        }
    }
    let caches = &mut caches[..n];
    caches.sort_unstable_by(|a, b| b.slab_bytes.cmp(&a.slab_bytes).then(a.name.cmp(b.name)));
    if n <= CACHES_MAX {
        return caches;
    }
    let (shown, rest) = caches.split_at_mut(CACHES_MAX + 1);
    let other = &mut shown[CACHES_MAX];
    other.name = OTHER;
    rest.iter().for_each(|cache| other.add(cache));
    shown
}

/// The figures of one allocator.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    /// The process.
    pub pid: &'a str,
    /// Which face of uslub it has: `malloc`, `rust` or `c`.
    pub face: &'a str,
    /// The version of uslub.
    pub version: &'a str,
    /// The caches, [merged](merge).
    pub caches: &'a [CacheFigures<'a>],
    /// Bytes of large objects.
    pub large_bytes: u64,
    /// Bytes of huge objects; `None` if unknown.
    pub huge_bytes: Option<u64>,
}

/// Writes families and their samples.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// A writer.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Begins a family: its type, unit and meaning.
    ///
    /// # Errors
    ///
    /// If the text cannot be written.
    pub fn begin(&mut self, family: &Family) -> fmt::Result {
        let Family { name, kind, help } = family;
        writeln!(self.out, "# TYPE {name} {kind}")?;
        if name.ends_with("_bytes") {
            writeln!(self.out, "# UNIT {name} bytes")?;
        }
        writeln!(self.out, "# HELP {name} {help}")
    }

    /// A sample of a family.
    ///
    /// # Errors
    ///
    /// If the text cannot be written.
    pub fn sample(
        &mut self,
        family: &Family,
        labels: &[(&str, &str)],
        value: impl Display,
    ) -> fmt::Result {
        let suffix = match family.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        write!(self.out, "{}{suffix}{{", family.name)?;
        for (i, (key, label)) in labels.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(self.out, "{comma}{key}=\"")?;
            for c in label.chars() {
                match c {
                    '\\' => self.out.write_str("\\\\")?,
                    '"' => self.out.write_str("\\\"")?,
                    '\n' => self.out.write_str("\\n")?,
                    c => self.out.write_char(c)?,
                }
            }
            self.out.write_char('"')?;
        }
        writeln!(self.out, "}} {value}")
    }

    /// A family with a sample for each cache of each allocator.
    fn caches(
        &mut self,
        family: &Family,
        all: &[Figures<'_>],
        value: fn(&CacheFigures<'_>) -> u64,
    ) -> fmt::Result {
        self.begin(family)?;
        for figures in all {
            for cache in figures.caches {
                let labels = [
                    ("pid", figures.pid),
                    ("face", figures.face),
                    ("cache", cache.name),
                ];
                self.sample(family, &labels, value(cache))?;
            }
        }
        Ok(())
    }

    /// The families of all allocators, without the end mark.
    ///
    /// ```
    /// use uslub_report::openmetrics::{CacheFigures, Figures, Writer};
    ///
    /// let caches = [CacheFigures { name: "a", live: 7, ..Default::default() }];
    /// let figures = Figures {
    ///     pid: "1",
    ///     face: "c",
    ///     version: "0.1.0",
    ///     caches: &caches,
    ///     large_bytes: 0,
    ///     huge_bytes: None,
    /// };
    /// let mut text = String::new();
    /// Writer::new(&mut text).all(&[figures])?;
    /// let line = r#"uslub_cache_objects{pid="1",face="c",cache="a",state="live"} 7"#;
    /// assert!(text.lines().any(|l| l == line));
    /// # Ok::<(), std::fmt::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the text cannot be written.
    pub fn all(&mut self, all: &[Figures<'_>]) -> fmt::Result {
        self.begin(&CACHE_OBJECTS)?;
        for figures in all {
            for cache in figures.caches {
                let states = [
                    ("live", cache.live),
                    ("cached", cache.cached),
                    ("free", cache.free),
                ];
                for (state, value) in states {
                    let labels = [
                        ("pid", figures.pid),
                        ("face", figures.face),
                        ("cache", cache.name),
                        ("state", state),
                    ];
                    self.sample(&CACHE_OBJECTS, &labels, value)?;
                }
            }
        }
        self.caches(&CACHE_SLAB_BYTES, all, |cache| cache.slab_bytes)?;
        self.caches(&CACHE_ALLOCATIONS, all, |cache| cache.allocs)?;
        self.caches(&CACHE_FREES, all, |cache| cache.frees)?;
        self.begin(&LARGE_BYTES)?;
        for f in all {
            let labels = [("pid", f.pid), ("face", f.face)];
            self.sample(&LARGE_BYTES, &labels, f.large_bytes)?;
        }
        self.begin(&HUGE_BYTES)?;
        for f in all {
            if let Some(bytes) = f.huge_bytes {
                self.sample(&HUGE_BYTES, &[("pid", f.pid), ("face", f.face)], bytes)?;
            }
        }
        self.begin(&BUILD)?;
        for f in all {
            let labels = [("pid", f.pid), ("face", f.face), ("version", f.version)];
            self.sample(&BUILD, &labels, 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn labels_are_escaped() {
        let mut out = String::new();
        let mut writer = Writer::new(&mut out);
        let family = Family {
            name: "a_bytes",
            kind: "counter",
            help: "Help.",
        };
        writer.begin(&family).unwrap();
        let labels = [("x", "a\"b\\c\nd"), ("y", "")];
        writer.sample(&family, &labels, 7).unwrap();
        assert_eq!(
            out,
            "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes Help.\n\
             a_bytes_total{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 7\n"
        );
    }

    #[test]
    fn the_smallest_of_very_many_caches_are_summed() {
        let names: Vec<String> = (0..500).map(|i| std::format!("cache-{i}")).collect();
        let caches = names.iter().zip(1..).map(|(name, i)| CacheFigures {
            name,
            live: 1,
            slab_bytes: i,
            ..CacheFigures::default()
        });
        let mut caches: Vec<_> = caches.collect();
        let merged = merge(&mut caches);
        assert_eq!(merged.len(), CACHES_MAX + 1);
        assert_eq!((merged[0].name, merged[0].slab_bytes), ("cache-499", 500));
        let other = merged[CACHES_MAX];
        assert_eq!((other.name, other.live), (OTHER, 300));
        assert_eq!(
            merged.iter().map(|c| c.slab_bytes).sum::<u64>(),
            500 * 501 / 2
        );
        assert!(merge(&mut []).is_empty());
    }
}
