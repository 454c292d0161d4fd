//! The child processes in the summary: which of them used the memory, and for what.
//!
//! A driver such as `make` or `g++` uses little itself. So the children are sorted by their peaks,
//! and each line names the process that started it. `summary` calls [`push`] and [`largest`].

use crate::caches;
use crate::report::{Children, Report};
use crate::units::{count, plural, size};
use crate::width::wrap;
use crate::wire::Process;
use comfy_table::{CellAlignment, Table, presets};
use std::collections::HashMap;

/// Children that are listed without `--all`: with the header and the rest they fill a third of a
/// terminal of 24 lines.
pub const LISTED: usize = 6;
/// Children whose caches are kept for `--all` and `--report`: 7 MB of values. A build has tens of
/// thousands of children.
pub const DETAILED: usize = 100;
/// A child with this many times the program's peak is what the table of caches is about. Below,
/// the program is more than a driver; processes that do nothing differ by a tenth.
const DRIVER_FACTOR: u64 = 2;
/// The peak of a program that left no report, for this comparison: a shell takes 3 MiB.
const UNKNOWN_PEAK: u64 = 8 << 20;
/// Caches that are named for a child, at most.
const NAMED: usize = 3;

/// The child that used most memory, if the program is only its driver.
pub fn largest<'a>(program: Option<&Report>, children: &'a Children) -> Option<Report<'a>> {
    let largest = children.reports().next()?;
    let own = program.map_or(UNKNOWN_PEAK, |report| report.process.peak_rss_bytes);
    let is_driven = largest.process.peak_rss_bytes >= own.saturating_mul(DRIVER_FACTOR);
    (is_driven && !largest.caches.is_empty()).then_some(largest)
}

/// The name of a process, and its id.
pub fn name(process: &Process) -> String {
    let name = match process.program {
        "" => "a process",
        name => name,
    };
    format!("{name} (pid {})", process.pid)
}

/// A line of the list: the figures of a process, and its largest caches.
struct Entry {
    cells: [String; 4],
    caches: Vec<String>,
}

impl Entry {
    fn new(report: &Report, names: &HashMap<u32, String>) -> Self {
        let process = &report.process;
        let parent = process.parent_pid;
        let parent = match names.get(&parent) {
            Some(name) => format!("{name} {parent}"),
            None => parent.to_string(),
        };
        let program = match process.birth {
            "fork" => format!("{} (fork)", process.program),
            _ => process.program.to_owned(),
        };
        let peak = match process.peak_rss_bytes {
            // A sandbox may forbid the process to read its peak.
            0 => "unknown".to_owned(),
            peak => size(peak),
        };
        let most = caches::rows(report).into_iter().take(NAMED);
        let most = most.map(|row| format!("{} {}", row.name, size(row.peak_bytes)));
        Entry {
            cells: [peak, process.pid.to_string(), program, parent],
            caches: match process.own_malloc {
                0 => most.collect(),
                _ => vec!["a malloc of its own".to_owned()],
            },
        }
    }
}

/// The children with the largest peaks, in lines of at most `width` columns where their names
/// allow; `all` lists every child. Empty without children.
pub fn list(program: Option<&Report>, children: &Children, all: bool, width: usize) -> String {
    let number = children.reports().count();
    if number == 0 {
        return String::new();
    }
    let known = program.into_iter().map(|report| &report.process).cloned();
    let known = known.chain(children.reports().map(|report| report.process));
    let names = known.map(|process| (process.pid, process.program.to_owned()));
    let names: HashMap<_, _> = names.collect();
    let listed = if all { number } else { LISTED };
    let entries: Vec<_> = (children.reports().take(listed))
        .map(|child| Entry::new(&child, &names))
        .collect();
    // (columns of figures, names of caches)
    let forms = [(4, 3), (4, 2), (4, 1), (4, 0), (3, 0)];
    let mut text = forms
        .map(|(columns, named)| render(&entries, columns, named))
        .into_iter()
        .find(|text| text.lines().all(|line| line.chars().count() <= width))
        .unwrap_or_else(|| render(&entries, 3, 0));
    if number > listed {
        let rest = children.reports().skip(listed).map(|child| child.process);
        let (mut allocs, mut peak) = (0_u64, 0);
        for process in rest {
            allocs = allocs.saturating_add(process.allocs);
            peak = peak.max(process.peak_rss_bytes);
        }
        let more = count((number - listed) as u64);
        let words = [
            &*format!("{more} more children,"),
            &*format!("peak at most {},", size(peak)),
            &*format!(
                "{} {};",
                count(allocs),
                plural(allocs, "allocation", "allocations")
            ),
            "--all lists every child",
        ];
        text.push_str(&wrap(&words, " ", 0, width));
        text.push('\n');
    }
    text
}

/// The entries below their header: the first `columns` figures, and the names of up to `named`
/// caches.
fn render(entries: &[Entry], columns: usize, named: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let header = ["peak", "pid", "program", "started by"]
        .into_iter()
        .take(columns);
    table.set_header(header.chain((named > 0).then_some("peak bytes, most in")));
    for entry in entries {
        let mut cells = entry.cells[..columns].to_vec();
        if named > 0 {
            let caches = &entry.caches[..named.min(entry.caches.len())];
            cells.push(caches.join(", "));
        }
        table.add_row(cells);
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 0 } else { 2 }, 0));
        if i < 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{children, report};
    use crate::wire::CacheRow;

    /// `make` 10, its `g++` 11, and that one's `cc1plus` 12, which used the memory.
    fn tree() -> (tempfile::TempDir, Children) {
        let process = |pid, parent_pid, program, peak: u64| Process {
            version: uslub_report::VERSION,
            pid,
            parent_pid,
            program,
            birth: "exec",
            peak_rss_bytes: peak << 20,
            allocs: 7,
            ..Process::default()
        };
        let cache = |name, peak_bytes| CacheRow {
            name,
            peak_bytes,
            ..CacheRow::default()
        };
        let caches = [cache("kmalloc-64", 3 << 20), cache("kmalloc-4k", 30 << 20)];
        children(&[
            (process(11, 10, "g++", 4), caches[..1].to_vec()),
            (process(12, 11, "cc1plus", 90), caches.to_vec()),
        ])
    }

    #[test]
    fn the_child_that_used_the_memory_comes_first_with_its_caches_and_its_parent() {
        let (_folder, children) = tree();
        let driver = report(Process {
            pid: 10,
            program: "make",
            peak_rss_bytes: 3 << 20,
            ..Process::default()
        });
        assert_eq!(
            list(Some(&driver), &children, false, 100),
            "    peak  pid  program  started by  peak bytes, most in
90.0 MiB   12  cc1plus  g++ 11      kmalloc-4k 30.0 MiB, kmalloc-64 3.0 MiB
 4.0 MiB   11  g++      make 10     kmalloc-64 3.0 MiB
"
        );
        let most = largest(Some(&driver), &children).unwrap();
        assert_eq!(name(&most.process), "cc1plus (pid 12)");
        let more = report(Process {
            peak_rss_bytes: 46 << 20,
            ..Process::default()
        });
        assert!(largest(Some(&more), &children).is_none());
    }

    #[test]
    fn a_narrow_list_loses_its_caches_and_then_the_parents() {
        let (_folder, children) = tree();
        for (width, header) in [
            (60, "peak pid program started by peak bytes, most in"),
            (40, "peak pid program started by"),
            (30, "peak pid program"),
        ] {
            let text = list(None, &children, false, width);
            let first: Vec<_> = text.lines().next().unwrap().split_whitespace().collect();
            assert_eq!(first.join(" "), header);
            assert!(text.lines().all(|line| line.len() <= width), "{text}");
        }
    }

    #[test]
    fn many_children_take_a_few_lines() {
        let one = |pid| Process {
            version: uslub_report::VERSION,
            pid,
            program: "true",
            birth: "fork",
            allocs: 1000,
            ..Process::default()
        };
        let many: Vec<_> = (1..=500).map(|pid| (one(pid), Vec::new())).collect();
        let (_folder, children) = children(&many);
        let text = list(None, &children, false, 100);
        assert_eq!(text.lines().count(), 1 + LISTED + 1, "{text}");
        assert!(text.contains("unknown    1  true (fork)  0"), "{text}");
        let rest =
            "494 more children, peak at most 0 B, 494 000 allocations; --all lists every child\n";
        assert!(text.ends_with(rest), "{text}");
        assert_eq!(list(None, &children, true, 100).lines().count(), 501);
    }
}
