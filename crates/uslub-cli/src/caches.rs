//! The table of caches for people: the caches that matter, sorted by the memory that they took.
//!
//! | column | meaning |
//! |---|---|
//! | live objects, live bytes | what the program holds at its end |
//! | cached | bytes of objects in sheaves, which wait for the next call |
//! | peak bytes | most memory in slabs at once |
//! | use | share of the slabs' memory that live objects fill at the end |
//!
//! A terminal that is too narrow loses *cached* first, then *live objects*. `summary` calls
//! [`table`].

use crate::report::Report;
use crate::units::{count, share, size};
use comfy_table::{CellAlignment, Table, presets};
use std::cmp::Reverse;

/// Per cent of the peak bytes that the shown caches have together. The rest of a program's sizes
/// is noise: of the 59 classes, perl uses 41 and python3 44, and nine of them have 95 %.
pub const SHOWN_SHARE: u64 = 95;
/// Most caches that are shown: half of a terminal of 24 lines.
pub const SHOWN_MAX: usize = 12;
/// Least peak of a process in bytes for a word about memory that is not malloc's. Code and stacks
/// of most programs have less, for example 10 MiB in python3.
const ELSEWHERE_MIN: u64 = 32 << 20;
/// Name of the line of objects without a class.
const LARGE: &str = "large objects";

/// A line of the table.
pub struct Row {
    /// Name of the cache.
    pub name: String,
    live_objs: u64,
    live_bytes: u64,
    cached_bytes: u64,
    /// Bytes of the slabs at the end.
    held_bytes: u64,
    /// Most bytes at once.
    pub peak_bytes: u64,
}

/// The lines of a process, the largest peak first. Objects without a cache are one line.
pub fn rows(report: &Report) -> Vec<Row> {
    let rows = report.caches.iter().map(|cache| Row {
        name: printable(cache.name),
        live_objs: cache.live_objs,
        live_bytes: cache.live_bytes,
        cached_bytes: cache.cached_bytes,
        held_bytes: cache.slab_bytes,
        peak_bytes: cache.peak_bytes,
    });
    let mut rows: Vec<_> = rows.collect();
    let process = &report.process;
    let large = process.large_bytes.saturating_add(process.huge_bytes);
    rows.push(Row {
        name: LARGE.to_owned(),
        live_objs: process.large_objs,
        live_bytes: large,
        cached_bytes: 0,
        held_bytes: large,
        peak_bytes: process.peak_large_bytes,
    });
    rows.retain(|row| row.peak_bytes > 0);
    rows.sort_by_key(|row| Reverse(row.peak_bytes));
    rows
}

/// A name without characters that would move the cursor.
fn printable(name: &str) -> String {
    name.replace(uslub_inspect::root::steers, "?")
}

/// How many lines are shown: as many as have [`SHOWN_SHARE`] per cent of the peak bytes.
fn shown(rows: &[Row]) -> usize {
    let sum = |rows: &[Row]| {
        rows.iter()
            .map(|row| u128::from(row.peak_bytes))
            .sum::<u128>()
    };
    let enough = sum(rows) * u128::from(SHOWN_SHARE);
    let mut all = 1..=rows.len();
    let wanted = all.find(|&n| sum(&rows[..n]) * 100 >= enough);
    let wanted = wanted.unwrap_or(rows.len()).min(SHOWN_MAX);
    // A line about the rest is no shorter than the only line that it stands for.
    if wanted + 1 == rows.len() {
        rows.len()
    } else {
        wanted
    }
}

/// The table in lines of at most `width` columns where its names allow, and a line about the
/// caches that are left out. `all` leaves none out. Empty if no cache ever had a slab.
pub fn table(report: &Report, all: bool, width: usize) -> String {
    let mut rows = rows(report);
    if rows.is_empty() {
        return String::new();
    }
    let number = if all { rows.len() } else { shown(&rows) };
    let rest = rows.split_off(number);
    let left_out = rest.len();
    if left_out > 0 {
        rows.push(together(&rest));
    }
    let mut text = [&[][..], &[2], &[2, 0]]
        .into_iter()
        .map(|without| render(&rows, without))
        .find(|text| text.lines().all(|line| line.chars().count() <= width))
        .unwrap_or_else(|| render(&rows, &[2, 0]));
    if left_out > 0 {
        let rule = format!("shown: caches with {SHOWN_SHARE} % of the peak bytes,");
        let rule = [
            &*rule,
            &format!("at most {SHOWN_MAX};"),
            "--all shows every cache",
        ];
        text.push_str(&crate::width::wrap(&rule, " ", 0, width));
        text.push('\n');
    }
    text
}

/// That most of a process's memory did not come from malloc, if it is so. The peaks of the caches
/// were at different times, so their sum is an upper bound.
pub fn elsewhere(report: &Report) -> Option<String> {
    let process = &report.process;
    let rows = rows(report);
    let ours = rows
        .iter()
        .map(|row| row.peak_bytes)
        .fold(0, u64::saturating_add);
    let ours = ours.saturating_add(process.metadata_bytes);
    let peak = process.peak_rss_bytes;
    let is_much = peak > ELSEWHERE_MIN && ours < peak / 2;
    is_much.then(|| {
        let [ours, peak] = [ours, peak].map(size);
        format!(
            "at most {ours} of its peak of {peak} came from malloc: the rest is code, stacks, and \
             mappings that the program made itself"
        )
    })
}

/// One line for all of `rows`.
fn together(rows: &[Row]) -> Row {
    let sum = |field: fn(&Row) -> u64| rows.iter().map(field).fold(0, u64::saturating_add);
    Row {
        name: format!("{} others", rows.len()),
        live_objs: sum(|row| row.live_objs),
        live_bytes: sum(|row| row.live_bytes),
        cached_bytes: sum(|row| row.cached_bytes),
        held_bytes: sum(|row| row.held_bytes),
        peak_bytes: sum(|row| row.peak_bytes),
    }
}

/// The rows below their header, without the figures of these numbers.
fn render(rows: &[Row], without: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let kept = |cells: [String; 5]| {
        let cells = cells.into_iter().enumerate();
        let cells = cells.filter(|(i, _)| !without.contains(i));
        cells.map(|(_, cell)| cell).collect::<Vec<_>>()
    };
    let line = |name: &str, cells| [vec![name.to_owned()], kept(cells)].concat();
    let header = ["live objects", "live bytes", "cached", "peak bytes", "use"];
    table.set_header(line("cache", header.map(str::to_owned)));
    for row in rows {
        let used = share(row.live_bytes, row.held_bytes);
        let cells = [
            count(row.live_objs),
            size(row.live_bytes),
            size(row.cached_bytes),
            size(row.peak_bytes),
            used.unwrap_or_else(|| "-".to_owned()),
        ];
        table.add_row(line(&row.name, cells));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if i == 0 { 0 } else { 2 }, 0));
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CacheRow, Process};

    fn report(peaks: &[u64]) -> Report<'static> {
        const NAMES: [&str; 4] = ["kmalloc-64", "kmalloc-96", "kmalloc-512", "kmalloc-8"];
        let caches = peaks.iter().enumerate().map(|(i, &peak)| CacheRow {
            name: NAMES[i % 4],
            live_objs: 1000 * peak,
            live_bytes: 1000 * peak,
            cached_bytes: 512,
            slab_bytes: 1500 * peak,
            peak_bytes: 4096 * peak,
            ..CacheRow::default()
        });
        Report {
            process: Process::default(),
            caches: caches.collect(),
        }
    }

    #[test]
    fn the_caches_with_nearly_all_bytes_come_first_and_the_rest_is_one_line() {
        let mut report = report(&[2, 300, 90, 1]);
        report.process.large_objs = 3;
        report.process.huge_bytes = 2 << 20;
        report.process.peak_large_bytes = 3 << 20;
        assert_eq!(
            table(&report, false, 80),
            "\
cache          live objects  live bytes   cached  peak bytes     use
large objects             3     2.0 MiB      0 B     3.0 MiB   100 %
kmalloc-96          300 000   293.0 KiB    512 B     1.2 MiB  66.6 %
kmalloc-512          90 000    87.9 KiB    512 B   360.0 KiB  66.6 %
2 others              3 000     2.9 KiB  1.0 KiB    12.0 KiB  66.6 %
shown: caches with 95 % of the peak bytes, at most 12; --all shows every cache
"
        );
        let all = table(&report, true, 80);
        assert!(
            all.contains("\nkmalloc-8 ") && !all.contains("others"),
            "{all}"
        );
    }

    #[test]
    fn no_more_than_twelve_are_shown_and_one_line_is_not_hidden() {
        let many = table(&report(&[7; 30]), false, 100);
        assert_eq!(many.lines().count(), 1 + SHOWN_MAX + 1 + 1, "{many}");
        assert!(many.contains("\n18 others "), "{many}");
        let few = table(&report(&[1000, 1]), false, 100);
        assert!(!few.contains("others"), "{few}");
        assert_eq!(table(&report(&[]), false, 100), "");
    }

    #[test]
    fn a_narrow_table_loses_columns_in_a_fixed_order() {
        let report = report(&[1, 2]);
        for (width, columns) in [
            (80, "live objects live bytes cached peak bytes use"),
            (60, "live objects live bytes peak bytes use"),
            (45, "live bytes peak bytes use"),
        ] {
            let text = table(&report, false, width);
            let header: Vec<_> = text.lines().next().unwrap().split_whitespace().collect();
            assert_eq!(header.join(" "), format!("cache {columns}"));
            assert!(text.lines().all(|line| line.len() <= width), "{text}");
        }
    }

    #[test]
    fn memory_that_is_not_from_malloc_is_told_where_it_is_most() {
        let mut report = report(&[1000]);
        for (mib, told) in [(0, false), (8, false), (30, false), (90, true)] {
            report.process.peak_rss_bytes = mib << 20;
            assert_eq!(elsewhere(&report).is_some(), told, "{mib} MiB");
        }
        let text = elsewhere(&report).unwrap();
        assert!(
            text.starts_with("at most 3.9 MiB of its peak of 90.0 MiB came"),
            "{text}"
        );
    }

    #[test]
    fn a_name_moves_no_cursor() {
        let mut odd = report(&[1]);
        odd.caches[0].name = "a\u{1b}[2Jb\n";
        assert!(table(&odd, false, 80).contains("a?[2Jb? "));
    }
}
