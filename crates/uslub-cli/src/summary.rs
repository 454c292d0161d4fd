//! The text that `uslub run` prints after the program has ended.

use crate::ending::{Ending, signal_name};
use crate::finished::Finished;
use crate::report::{Children, Report, Unusable};
use crate::table;
use crate::units::{count, plural, seconds, share, size};
use crate::wire::{CacheRow, Process};
use anstyle::Style;
use std::fmt::Write;
use std::path::Path;

/// The style of the first line on a terminal.
const HEADLINE: Style = Style::new().bold();

/// The whole text: the program's ending, its memory, the table of caches.
pub fn summary(run: &Finished, report: Result<&Report, &Unusable>, children: &Children) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{HEADLINE}uslub: {}{HEADLINE:#}", headline(run));
    match report {
        Ok(report) => push_process(&mut text, run, &report.process, &report.caches),
        Err(why) => {
            line(&mut text, "no report", &absence(run, why));
            line(&mut text, "memory", &peak(run));
        }
    }
    push_children(&mut text, children);
    if let Ok(report) = report {
        text.push('\n');
        text.push_str(&table::slabinfo(&report.caches));
    }
    text
}

fn line(text: &mut String, label: &str, what: &str) {
    let _ = writeln!(text, "  {label:<9}  {what}");
}

/// The peak of resident memory, as measured by the kernel.
fn peak(run: &Finished) -> String {
    let max = size(run.usage.max_rss_bytes);
    format!("peak {max} (with processes that it waited for)")
}

fn headline(run: &Finished) -> String {
    let name = run.command.first().map(Path::new).and_then(Path::file_name);
    let name = name.unwrap_or_default().to_string_lossy();
    let ending = match run.ending {
        Ending::Exited(code) => format!("exited with {code} in"),
        Ending::Killed(signal) => format!("was killed by {} after", signal_name(signal)),
    };
    let [wall, user, system] = [run.wall, run.usage.user, run.usage.system].map(seconds);
    format!("{name} {ending} {wall} (user {user}, system {system})")
}

fn push_process(text: &mut String, run: &Finished, process: &Process, caches: &[CacheRow]) {
    let p = |bytes| size(bytes);
    let memory = if process.peak_rss_bytes > 0 {
        let [peak, rss] = [process.peak_rss_bytes, process.rss_bytes].map(p);
        format!("peak {peak}, at exit {rss}")
    } else {
        // A sandbox may forbid the process to read its peak.
        peak(run)
    };
    line(text, "memory", &memory);
    line(
        text,
        "objects",
        &format!(
            "live {}, cached in sheaves {}, free in slabs {}",
            p(process.live_bytes),
            p(process.cached_bytes),
            p(process.free_bytes)
        ),
    );
    line(
        text,
        "pages",
        &format!(
            "slabs {}, large {}, huge {}, kept for reuse {}, tables {}",
            p(process.slab_bytes),
            p(process.large_bytes),
            p(process.huge_bytes),
            p(process.dirty_bytes),
            p(process.metadata_bytes)
        ),
    );
    let mut calls = format!(
        "{} {}, {} {}",
        count(process.allocs),
        plural(process.allocs, "allocation", "allocations"),
        count(process.frees),
        plural(process.frees, "free", "frees")
    );
    let sum = |field: fn(&CacheRow) -> u64| caches.iter().map(field).fold(0, u64::saturating_add);
    let fast = sum(|c| c.alloc_fastpath);
    let whole = process
        .allocs
        .max(fast.saturating_add(sum(|c| c.alloc_slowpath)));
    if let Some(share) = share(fast, whole) {
        let _ = write!(calls, "; {share} from sheaves");
    }
    line(text, "calls", &calls);
    line(text, "per-CPU", process.mode);
}

fn push_children(text: &mut String, children: &Children) {
    let (mut number, mut peak, mut allocs) = (0_u64, 0, 0_u64);
    for child in children.processes() {
        number += 1;
        peak = child.peak_rss_bytes.max(peak);
        allocs = allocs.saturating_add(child.allocs);
    }
    if number > 0 {
        let peak = match peak {
            // A sandbox may forbid the processes to read their peak.
            0 => String::new(),
            peak => format!("largest peak {}, ", size(peak)),
        };
        let what = format!(
            "{} on uslub, {peak}{} {}",
            count(number),
            count(allocs),
            plural(allocs, "allocation", "allocations")
        );
        line(text, "children", &what);
    }
    if children.unfinished > 0 {
        let what = format!(
            "{} {} began on uslub and left no report (killed, or ended past the library)",
            count(children.unfinished),
            plural(children.unfinished, "child", "children")
        );
        line(text, "note", &what);
    }
    if children.unusable > 0 {
        let reports = plural(children.unusable, "report", "reports");
        let what = format!(
            "{} {reports} of children cannot be read",
            count(children.unusable)
        );
        line(text, "note", &what);
    }
}

/// Why the report is missing, in words for the user.
fn absence(run: &Finished, why: &Unusable) -> String {
    match (why, run.ending) {
        (Unusable::Missing | Unusable::Unfinished, Ending::Killed(signal)) => {
            format!(
                "it was killed by {} before it could report",
                signal_name(signal)
            )
        }
        (Unusable::Unfinished, Ending::Exited(_)) => {
            "it began on uslub, but ended past the library: by a bare system call, from a signal handler \
             that interrupted the allocator, or as another program that it became"
                .to_owned()
        }
        (Unusable::Missing, Ending::Exited(_)) => {
            "it ended without running the library, or in a place where no report can be written: it is or \
             became another program (statically linked, set-user-ID, or without our environment)"
                .to_owned()
        }
        _ => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Usage;
    use std::time::Duration;

    fn run(ending: Ending) -> Finished {
        Finished {
            command: vec!["/usr/bin/sort".into(), "-u".into()],
            ending,
            wall: Duration::from_millis(210),
            usage: Usage {
                user: Duration::from_millis(180),
                system: Duration::from_millis(20),
                max_rss_bytes: 3 << 20,
            },
        }
    }

    fn plain(run: &Finished, report: Result<&Report, &Unusable>, children: &Children) -> String {
        anstream::adapter::strip_str(&summary(run, report, children)).to_string()
    }

    #[test]
    fn the_summary_is_aligned_and_ends_with_the_table() {
        let process = Process {
            mode: "rseq mm_cid",
            peak_rss_bytes: 12_897_485,
            rss_bytes: 10 << 20,
            live_bytes: 3 << 20,
            cached_bytes: 300 << 10,
            free_bytes: 400 << 10,
            slab_bytes: 1 << 20,
            large_bytes: 2 << 20,
            dirty_bytes: 64 << 10,
            metadata_bytes: 100 << 10,
            allocs: 1_234_567,
            frees: 1_234_000,
            ..Process::default()
        };
        let caches = vec![CacheRow {
            name: "kmalloc-64",
            active_objs: 1,
            num_objs: 64,
            objsize: 64,
            objperslab: 64,
            pagesperslab: 1,
            active_slabs: 1,
            num_slabs: 1,
            alloc_fastpath: 1_226_000,
            alloc_slowpath: 8_567,
            ..CacheRow::default()
        }];
        let report = Report { process, caches };
        assert_eq!(
            plain(&run(Ending::Exited(0)), Ok(&report), &Children::default()),
            format!(
                "\
uslub: sort exited with 0 in 0.21 s (user 0.18 s, system 0.02 s)
  memory     peak 12.3 MiB, at exit 10.0 MiB
  objects    live 3.0 MiB, cached in sheaves 300.0 KiB, free in slabs 400.0 KiB
  pages      slabs 1.0 MiB, large 2.0 MiB, huge 0 B, kept for reuse 64.0 KiB, tables 100.0 KiB
  calls      1 234 567 allocations, 1 234 000 frees; 99.3 % from sheaves
  per-CPU    rseq mm_cid

{}\
kmalloc-64             1     64     64   64    1 : tunables    0    0    0 : slabdata      1      1      0
",
                table::HEADER
            )
        );
    }

    #[test]
    fn a_killed_program_without_a_report_says_what_wait_tells() {
        let text = plain(
            &run(Ending::Killed(9)),
            Err(&Unusable::Missing),
            &Children::default(),
        );
        assert_eq!(
            text,
            "uslub: sort was killed by SIGKILL after 0.21 s (user 0.18 s, system 0.02 s)\n  \
             no report  it was killed by SIGKILL before it could report\n  \
             memory     peak 3.0 MiB (with processes that it waited for)\n"
        );
    }

    #[test]
    fn the_reason_for_a_missing_report_is_told() {
        let ended = run(Ending::Exited(0));
        let text = plain(&ended, Err(&Unusable::Missing), &Children::default());
        assert!(text.contains("ended without running the library"), "{text}");
        let text = plain(&ended, Err(&Unusable::Unfinished), &Children::default());
        assert!(text.contains("it began on uslub"), "{text}");
        let text = plain(&ended, Err(&Unusable::Empty), &Children::default());
        assert!(text.contains("the report is empty"), "{text}");
    }

    #[test]
    fn children_are_summed_up_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        for pid in 1..=3 {
            let child = Process {
                version: uslub_report::VERSION,
                pid,
                peak_rss_bytes: u64::from(pid) << 20,
                allocs: 500,
                ..Process::default()
            };
            let file = folder.path().join(format!("{pid}.jsonl"));
            std::fs::write(file, serde_json::to_string(&child).unwrap()).unwrap();
        }
        std::fs::write(folder.path().join("4.jsonl"), "").unwrap();
        let children = Children::read(folder.path(), 77);
        let text = plain(&run(Ending::Exited(0)), Err(&Unusable::Missing), &children);
        assert!(
            text.ends_with(
                "  children   3 on uslub, largest peak 3.0 MiB, 1 500 allocations\n  \
                 note       1 report of children cannot be read\n"
            ),
            "{text}"
        );
    }
}
