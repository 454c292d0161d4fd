//! Caches and the bridge from resident memory to live objects, for people.

use super::target::Target;
use crate::failure::Failure;
use crate::units;
use std::fmt::Write;
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Bridge, Heap, Snapshot};

/// Caches that are shown without `--all`.
const SHOWN: usize = 12;
/// Characters of a whole bar.
const BAR: u64 = 40;

/// The output for a target.
pub fn text(target: &Target, all: bool) -> Result<String, Failure> {
    let looks = target.looks()?;
    let mut out = String::new();
    for (heap, snapshot) in &looks {
        let root = heap.root();
        let slots = heap.nr_regions();
        let face = match root.face.as_str() {
            "malloc" => "malloc",
            "rust" => "Rust",
            "c" => "C library",
            other => other,
        };
        let looked = match target {
            Target::Process(_) => format!(
                " · looked at in {:.1} ms, nothing stopped",
                snapshot.took.as_secs_f64() * 1e3
            ),
            Target::Core(..) => String::new(),
        };
        let _ = writeln!(
            out,
            "{} on uslub {} ({face}, {slots} {} in use){looked}",
            target.title(),
            root.version,
            units::plural(slots as u64, "CPU slot", "CPU slots"),
        );
    }
    out.push('\n');
    match target {
        Target::Process(process) => {
            let bridge = Bridge::of(process, &looks).map_err(|error| target.refuse(error))?;
            push_bridge(&mut out, &bridge);
        }
        Target::Core(core, _) => {
            let live = looks
                .iter()
                .map(|(_, snapshot)| snapshot.live_bytes())
                .sum();
            let _ = writeln!(out, "live {}", units::size(live));
            if core.is_truncated() {
                out.push_str(
                    "The file ends early: objects in the missing parts count as free or are left \
                     out.\n",
                );
            }
        }
    }
    for (heap, snapshot) in &looks {
        out.push('\n');
        push_caches(&mut out, heap, snapshot, all);
    }
    Ok(out)
}

/// What a part of the bridge means.
fn meaning(part: &str) -> &'static str {
    match part {
        "live" => "objects that the program holds",
        "cached" => "free objects in sheaves, for the next calls",
        "free slots" => "free slots in slabs beside live objects",
        "kept" => "free pages, back to the system soon",
        "tables" => "the allocator's own records",
        "files" => "programs, libraries, mapped files",
        "stack" => "the first thread's stack",
        _ => "not uslub's: other mappings, stacks of threads",
    }
}

fn push_bridge(out: &mut String, bridge: &Bridge) {
    let share = |bytes| units::share(bytes, bridge.resident).unwrap_or_default();
    let _ = writeln!(
        out,
        "{:<12} {:>11} {:>7}",
        "resident",
        units::size(bridge.resident),
        share(bridge.resident)
    );
    for (name, bytes) in bridge.parts() {
        let bar = (BAR * bytes).div_ceil(bridge.resident.max(1)) as usize;
        let _ = writeln!(
            out,
            "  {name:<10} {:>11} {:>7}  {:<40}  {}",
            units::size(bytes),
            share(bytes),
            "#".repeat(bar),
            meaning(name)
        );
    }
}

fn push_caches(out: &mut String, heap: &Heap<'_>, snapshot: &Snapshot, all: bool) {
    let mut rows: Vec<_> = snapshot
        .rows
        .iter()
        .filter(|row| all || row.slabs > 0)
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.slab_bytes(), row.cache.size)));
    let shown = if all { rows.len() } else { SHOWN };
    let width = rows
        .iter()
        .take(shown)
        .map(|row| row.cache.name.chars().count())
        .max();
    let width = width.unwrap_or(0).max(12);
    let _ = writeln!(
        out,
        "{:<width$} {:>12} {:>11} {:>8} {:>11} {:>10} {:>10}",
        "cache", "live", "bytes", "use", "memory", "cached", "free"
    );
    for row in rows.iter().take(shown) {
        push_row(out, row, width);
    }
    if rows.len() > shown {
        let rest = &rows[shown..];
        let bytes = rest.iter().map(|row| row.slab_bytes()).sum();
        let _ = writeln!(
            out,
            "…{} more with {} of slabs (--all)",
            rest.len(),
            units::size(bytes)
        );
    }
    let pages = &snapshot.pages;
    if pages.large_objects > 0 {
        let _ = writeln!(
            out,
            "{:<width$} {:>12} {:>11}",
            "large",
            units::count(pages.large_objects),
            units::size(pages.large * 4096)
        );
    }
    if let Some((live, _)) = snapshot.huge.filter(|&(live, _)| live > 0) {
        let _ = writeln!(
            out,
            "{:<width$} {:>12} {:>11}",
            "huge",
            units::count(snapshot.huge_objects),
            units::size(live)
        );
    }
    let (objects, bytes) = snapshot.quarantined();
    if objects > 0 {
        let _ = writeln!(
            out,
            "{} freed {} with {} in quarantine count as cached",
            units::count(objects),
            units::plural(objects, "object", "objects"),
            units::size(bytes)
        );
    }
    if rows.iter().take(shown).any(|row| is_unsure(row)) {
        out.push_str(
            "~ threads run: objects on their way between sheaves and slabs may count as live\n",
        );
    }
    if snapshot.damaged + pages.torn as usize > 0 {
        let _ = writeln!(
            out,
            "{} records of caches and {} pages could not be understood (made or freed just then, \
             or damaged)",
            snapshot.damaged, pages.torn
        );
    }
    let _ = heap;
}

/// Whether a row may be wrong by more than a hundredth.
fn is_unsure(row: &Row) -> bool {
    row.uncertain > row.live().unwrap_or(0) / 100
}

fn push_row(out: &mut String, row: &Row, width: usize) {
    let live = row.live().unwrap_or(0);
    let unsure = if is_unsure(row) { "~" } else { "" };
    let bytes = row.live_bytes().unwrap_or(0);
    let _ = writeln!(
        out,
        "{:<width$} {:>12} {:>11} {:>8} {:>11} {:>10} {:>10}",
        row.cache.name,
        format!("{unsure}{}", units::count(live)),
        units::size(bytes),
        units::share(bytes, row.slab_bytes()).unwrap_or_default(),
        units::size(row.slab_bytes()),
        units::count(row.cached),
        units::count(row.free().unwrap_or(0)),
    );
}
