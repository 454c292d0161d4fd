//! OpenMetrics text, for a collector that reads a command's output.

use super::target::Target;
use crate::failure::Failure;
use std::fmt::{Display, Write};
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Bridge, Snapshot};

/// Caches of an allocator that get series of their own; the others are summed as `(other)`.
const CACHES_MAX: usize = 200;

/// A label's value: backslash, quote and line end are escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// One metric family.
struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
    suffix: &'static str,
}

impl<'a> Family<'a> {
    fn new(out: &'a mut String, name: &'static str, kind: &str, help: &str) -> Self {
        let _ = writeln!(out, "# TYPE {name} {kind}");
        if name.ends_with("_bytes") {
            let _ = writeln!(out, "# UNIT {name} bytes");
        }
        let _ = writeln!(out, "# HELP {name} {help}");
        let suffix = if kind == "counter" { "_total" } else { "" };
        Self { out, name, suffix }
    }

    fn add(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<_> = (labels.iter())
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        let (name, suffix) = (self.name, self.suffix);
        let _ = writeln!(self.out, "{name}{suffix}{{{}}} {value}", labels.join(","));
    }
}

/// The figures of one series.
#[derive(Clone, Default)]
struct Figures {
    live: u64,
    cached: u64,
    free: u64,
    slabs: u64,
    calls: (u64, u64),
}

impl Figures {
    fn add(&mut self, row: &Row) {
        self.live += row.live().unwrap_or(0);
        self.cached += row.cached;
        self.free += row.free().unwrap_or(0);
        self.slabs += row.slab_bytes();
        self.calls.0 = self.calls.0.wrapping_add(row.calls.0);
        self.calls.1 = self.calls.1.wrapping_add(row.calls.1);
    }
}

/// The series of an allocator: the largest caches, then the rest.
fn series(snapshot: &Snapshot) -> Vec<(String, Figures)> {
    let mut rows: Vec<_> = snapshot.rows.iter().filter(|row| row.slots > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.slab_bytes()));
    let mut all: Vec<(String, Figures)> = Vec::new();
    for (i, row) in rows.into_iter().enumerate() {
        let name = if i < CACHES_MAX {
            &row.cache.name
        } else {
            "(other)"
        };
        let place = match all.iter().position(|(known, _)| known == name) {
            Some(place) => place,
            None => {
                all.push((name.to_owned(), Figures::default()));
                all.len() - 1
            }
        };
        all[place].1.add(row);
    }
    all
}

/// The output for a target.
pub fn text(target: &Target) -> Result<String, Failure> {
    let looks = target.looks()?;
    let mut out = String::new();
    let pid = match target {
        Target::Process(process) => process.pid().to_string(),
        Target::Core(core, _) => core
            .program()
            .map_or("0".to_owned(), |(_, pid)| pid.to_string()),
    };
    let pid = ("pid", pid.as_str());
    if let Target::Process(process) = target {
        let bridge = Bridge::of(process, &looks).map_err(|error| target.refuse(error))?;
        let help = "Resident memory by what it holds.";
        let mut family = Family::new(&mut out, "uslub_resident_bytes", "gauge", help);
        for (part, bytes) in bridge.parts() {
            family.add(&[pid, ("state", &part.replace(' ', "_"))], bytes);
        }
    }
    let all: Vec<_> = (looks.iter())
        .flat_map(|(heap, look)| {
            let face = heap.root().face.clone();
            series(look)
                .into_iter()
                .map(move |(name, figures)| (face.clone(), name, figures))
        })
        .collect();
    let mut family = Family::new(
        &mut out,
        "uslub_cache_objects",
        "gauge",
        "Slots of a cache by state.",
    );
    for (face, name, figures) in &all {
        let states = [
            ("live", figures.live),
            ("cached", figures.cached),
            ("free", figures.free),
        ];
        for (state, value) in states {
            family.add(
                &[pid, ("face", face), ("cache", name), ("state", state)],
                value,
            );
        }
    }
    let help = "Bytes of a cache's slabs.";
    let mut family = Family::new(&mut out, "uslub_cache_slab_bytes", "gauge", help);
    for (face, name, figures) in &all {
        family.add(&[pid, ("face", face), ("cache", name)], figures.slabs);
    }
    let help = "Objects allocated so far.";
    let mut family = Family::new(&mut out, "uslub_cache_allocations", "counter", help);
    for (face, name, figures) in &all {
        family.add(&[pid, ("face", face), ("cache", name)], figures.calls.0);
    }
    let mut family = Family::new(
        &mut out,
        "uslub_cache_frees",
        "counter",
        "Objects freed so far.",
    );
    for (face, name, figures) in &all {
        family.add(&[pid, ("face", face), ("cache", name)], figures.calls.1);
    }
    let mut family = Family::new(
        &mut out,
        "uslub_large_bytes",
        "gauge",
        "Live large objects.",
    );
    for (heap, look) in &looks {
        family.add(&[pid, ("face", &heap.root().face)], look.pages.large * 4096);
    }
    let mut family = Family::new(&mut out, "uslub_build", "info", "The version of uslub.");
    family.suffix = "_info";
    for (heap, _) in &looks {
        let root = heap.root();
        family.add(&[pid, ("face", &root.face), ("version", &root.version)], 1);
    }
    out.push_str("# EOF\n");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut out = String::new();
        let mut family = Family::new(&mut out, "a_bytes", "counter", "Help.");
        family.add(&[("x", "a\"b\\c\nd")], 7);
        assert_eq!(
            out,
            "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes Help.\n\
             a_bytes_total{x=\"a\\\"b\\\\c\\nd\"} 7\n"
        );
    }
}
