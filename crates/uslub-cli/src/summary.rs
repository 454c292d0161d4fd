//! The text that `uslub run` prints after the program has ended.

use crate::absence::{absence, last_look};
use crate::ending::{Ending, signal_name};
use crate::finished::Finished;
use crate::onlooker::Allocator;
use crate::report::{Children, Report, Unusable};
use crate::units::{count, plural, seconds, share, size};
use crate::wire::CacheRow;
use crate::{caches, children, table, width};
use anstyle::Style;
use std::fmt::Write;
use std::path::Path;

/// The style of the first line on a terminal.
const HEADLINE: Style = Style::new().bold();
/// About a program that does not use ours.
const OWN_MALLOC: &str = "the program has a malloc of its own, which uslub does not replace: \
    the figures cover only what came to uslub";

/// About a program with an allocator of the Rust or C interface that was not seen.
const OWN_USLUB: &str = "the program has an allocator of uslub in it, whose caches are not below: \
    uslub info and uslub top show them while it runs";

/// About a program whose own caches all ended before it.
const OWN_EMPTY: &str = "the program has an allocator of uslub in it, which had no cache with \
    objects when it was looked at";

/// What the summary shows, and how wide.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Every cache and every child, instead of those that matter.
    pub all: bool,
    /// The kernel's table of caches, instead of the table for people.
    pub slabinfo: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// The whole text: the program's ending, its memory, its children, the table of caches.
pub fn summary(
    run: &Finished,
    report: Result<&Report, &Unusable>,
    children: &Children,
    form: Form,
) -> String {
    let mut text = Lines {
        text: String::new(),
        width: form.width,
    };
    let headline = width::wrap(&headline(run), " ", 2, form.width);
    let _ = writeln!(text.text, "{HEADLINE}{headline}{HEADLINE:#}");
    match report {
        Ok(report) => push_process(&mut text, run, report),
        Err(why) => {
            text.push("no report", &[&absence(run, why)]);
            let look = last_look(run);
            if !look.is_empty() {
                let look: Vec<_> = look.iter().map(String::as_str).collect();
                text.push("last seen", &look);
            }
            text.push("memory", &[&peak(run)]);
        }
    }
    push_children(&mut text, children);
    let mut text = text.text;
    let program = report.ok();
    push_block(
        &mut text,
        &children::list(program, children, form.all, form.width),
    );
    let has_own = push_seen(&mut text, run, program.is_none(), form);
    let title = if has_own { "caches of malloc:\n" } else { "" };
    let caches = match program {
        Some(report) if form.slabinfo => format!("{title}{}", table::slabinfo(&report.caches)),
        _ => caches_of(program, children, form, title),
    };
    push_block(&mut text, &caches);
    text
}

/// The allocators of uslub that the program has in it, as far as they were seen.
fn own_tables(run: &Finished) -> impl Iterator<Item = &Allocator> {
    let sights = run.seen.caches.iter();
    sights
        .flat_map(|sight| &sight.allocators)
        .filter(|one| one.is_own())
}

/// Appends the tables of what the onlooker saw: of the program's own allocators, and of malloc too
/// if `all`. Returns whether there are tables.
fn push_seen(text: &mut String, run: &Finished, all: bool, form: Form) -> bool {
    let Some(sight) = &run.seen.caches else {
        return false;
    };
    let mut has_tables = false;
    let when = match sight.at_end {
        true => String::new(),
        false => {
            let before = run.wall.saturating_sub(sight.age);
            format!(", {} before the end", seconds(before))
        }
    };
    for allocator in (sight.allocators.iter()).filter(|one| all || one.is_own()) {
        let report = allocator.report();
        let table = match form.slabinfo {
            true => table::slabinfo(&report.caches),
            false => caches::table(&report, form.all, form.width),
        };
        if !table.is_empty() {
            push_block(
                text,
                &format!("caches of {}{when}:\n{table}", allocator.title()),
            );
            has_tables = true;
        }
    }
    has_tables
}

/// The tables for people: of the program, below `title`, or of the child that used the memory.
fn caches_of(program: Option<&Report>, children: &Children, form: Form, title: &str) -> String {
    let table = |report: &Report| {
        let mut text = caches::table(report, form.all, form.width);
        if let Some(sentence) = caches::elsewhere(report) {
            let words: Vec<_> = sentence.split(' ').collect();
            let _ = writeln!(text, "{}", width::wrap(&words, " ", 0, form.width));
        }
        text
    };
    let Some(child) = children::largest(program, children) else {
        let table = program.map(table).filter(|table| !table.is_empty());
        return table
            .map(|table| format!("{title}{table}"))
            .unwrap_or_default();
    };
    let name = children::name(&child.process);
    let mut text = format!("{name} used the most memory:\n{}", table(&child));
    if let Some(program) = program.filter(|_| form.all) {
        let name = children::name(&program.process);
        let _ = write!(text, "\n{name}:\n{}", table(program));
    }
    text
}

/// Appends a block of lines, after an empty line.
fn push_block(text: &mut String, block: &str) {
    if !block.is_empty() {
        text.push('\n');
        text.push_str(block);
    }
}

/// Lines with a label each.
struct Lines {
    text: String,
    width: usize,
}

impl Lines {
    /// Columns before what a line says.
    const INDENT: usize = 13;

    /// Appends the parts of a line, with commas between them. Parts that do not fit continue in
    /// the next line.
    fn push(&mut self, label: &str, parts: &[&str]) {
        let what = match parts {
            [sentence] => {
                let words: Vec<_> = sentence.split(' ').collect();
                width::wrap(&words, " ", Self::INDENT, self.width)
            }
            _ => width::wrap(parts, ", ", Self::INDENT, self.width),
        };
        let _ = writeln!(self.text, "  {label:<9}  {what}");
    }
}

/// The peak of resident memory, as measured by the kernel.
fn peak(run: &Finished) -> String {
    let max = size(run.usage.max_rss_bytes);
    format!("peak {max} (with processes that it waited for)")
}

fn headline(run: &Finished) -> [String; 3] {
    let name = run.command.first().map(Path::new).and_then(Path::file_name);
    let name = name.unwrap_or_default().to_string_lossy();
    let ending = match run.ending {
        Ending::Exited(code) => format!("exited with {code} in"),
        Ending::Killed(signal) => format!("was killed by {} after", signal_name(signal)),
    };
    let [wall, user, system] = [run.wall, run.usage.user, run.usage.system].map(seconds);
    [
        format!("uslub: {name} {ending} {wall}"),
        format!("(user {user},"),
        format!("system {system})"),
    ]
}

fn push_process(text: &mut Lines, run: &Finished, report: &Report) {
    let (process, p) = (&report.process, size);
    if process.own_malloc == 1 {
        text.push("note", &[OWN_MALLOC]);
    }
    if own_tables(run).any(|own| own.caches.is_empty()) {
        text.push("note", &[OWN_EMPTY]);
    } else if run.has_allocator && own_tables(run).next().is_none() {
        text.push("note", &[OWN_USLUB]);
    }
    if process.peak_rss_bytes > 0 {
        let [peak, rss] = [process.peak_rss_bytes, process.rss_bytes].map(p);
        let parts = [format!("peak {peak}"), format!("at exit {rss}")];
        text.push("memory", &[&parts[0], &parts[1]]);
    } else {
        // A sandbox may forbid the process to read its peak.
        text.push("memory", &[&peak(run)]);
    }
    let parts = [
        format!("live {}", p(process.live_bytes)),
        format!("cached in sheaves {}", p(process.cached_bytes)),
        format!("free in slabs {}", p(process.free_bytes)),
    ];
    text.push("objects", &parts.each_ref().map(String::as_str));
    let parts = [
        format!("slabs {}", p(process.slab_bytes)),
        format!("large {}", p(process.large_bytes)),
        format!("huge {}", p(process.huge_bytes)),
        format!("kept for reuse {}", p(process.dirty_bytes)),
        format!("tables {}", p(process.metadata_bytes)),
    ];
    text.push("pages", &parts.each_ref().map(String::as_str));
    push_calls(text, report);
    text.push("per-CPU", &[process.mode]);
}

fn push_calls(text: &mut Lines, report: &Report) {
    let (process, caches) = (&report.process, &report.caches);
    let allocs = plural(process.allocs, "allocation", "allocations");
    let allocs = format!("{} {allocs}", count(process.allocs));
    let mut frees = format!(
        "{} {}",
        count(process.frees),
        plural(process.frees, "free", "frees")
    );
    let sum = |field: fn(&CacheRow) -> u64| caches.iter().map(field).fold(0, u64::saturating_add);
    let fast = sum(|c| c.alloc_fastpath);
    let whole = process
        .allocs
        .max(fast.saturating_add(sum(|c| c.alloc_slowpath)));
    if let Some(share) = share(fast, whole) {
        let _ = write!(frees, "; {share} from sheaves");
    }
    text.push("calls", &[&allocs, &frees]);
}

fn push_children(text: &mut Lines, children: &Children) {
    let (mut number, mut allocs) = (0_u64, 0_u64);
    for child in children.reports() {
        number += 1;
        allocs = allocs.saturating_add(child.process.allocs);
    }
    if let Some(largest) = children.reports().next() {
        let on = format!("{} on uslub", count(number));
        // A sandbox may forbid the processes to read their peak.
        let peak = match largest.process.peak_rss_bytes {
            0 => "peak unknown".to_owned(),
            peak => format!("largest peak {}", size(peak)),
        };
        let calls = plural(allocs, "allocation", "allocations");
        let calls = format!("{} {calls}", count(allocs));
        text.push("children", &[&on, &peak, &calls]);
    }
    if children.unfinished > 0 {
        let what = format!(
            "{} {} began on uslub and left no report (killed, or became a program without uslub)",
            count(children.unfinished),
            plural(children.unfinished, "child", "children")
        );
        text.push("note", &[&what]);
    }
    if children.unusable > 0 {
        let reports = plural(children.unusable, "report", "reports");
        let what = format!(
            "{} {reports} of children cannot be read",
            count(children.unusable)
        );
        text.push("note", &[&what]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Usage;
    use crate::watcher::Seen;
    use crate::wire::Process;
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
            has_allocator: false,
            seen: Seen::default(),
        }
    }

    const FORM: Form = Form {
        all: false,
        slabinfo: false,
        width: 100,
    };

    fn plain_in(
        form: Form,
        run: &Finished,
        report: Result<&Report, &Unusable>,
        children: &Children,
    ) -> String {
        anstream::adapter::strip_str(&summary(run, report, children, form)).to_string()
    }

    fn plain(run: &Finished, report: Result<&Report, &Unusable>, children: &Children) -> String {
        plain_in(FORM, run, report, children)
    }

    fn sorted() -> Report<'static> {
        let process = Process {
            mode: "rseq mm_cid",
            program: "sort",
            peak_rss_bytes: 12_897_485,
            rss_bytes: 10 << 20,
            live_bytes: 3 << 20,
            cached_bytes: 300 << 10,
            free_bytes: 400 << 10,
            slab_bytes: 1 << 20,
            large_bytes: 2 << 20,
            large_objs: 4,
            peak_large_bytes: 3 << 20,
            dirty_bytes: 64 << 10,
            metadata_bytes: 100 << 10,
            allocs: 1_234_567,
            frees: 1_234_000,
            ..Process::default()
        };
        let caches = vec![CacheRow {
            name: "kmalloc-64",
            live_objs: 16_000,
            live_bytes: 1_024_000,
            cached_bytes: 2048,
            slab_bytes: 1 << 20,
            peak_bytes: 2 << 20,
            active_objs: 16_032,
            num_objs: 16_384,
            objsize: 64,
            objperslab: 64,
            pagesperslab: 1,
            active_slabs: 255,
            num_slabs: 256,
            alloc_fastpath: 1_226_000,
            alloc_slowpath: 8_567,
            ..CacheRow::default()
        }];
        Report { process, caches }
    }

    #[test]
    fn the_summary_is_aligned_and_ends_with_the_table() {
        let run = run(Ending::Exited(0));
        assert_eq!(
            plain(&run, Ok(&sorted()), &Children::default()),
            "\
uslub: sort exited with 0 in 0.21 s (user 0.18 s, system 0.02 s)
  memory     peak 12.3 MiB, at exit 10.0 MiB
  objects    live 3.0 MiB, cached in sheaves 300.0 KiB, free in slabs 400.0 KiB
  pages      slabs 1.0 MiB, large 2.0 MiB, huge 0 B, kept for reuse 64.0 KiB, tables 100.0 KiB
  calls      1 234 567 allocations, 1 234 000 frees; 99.3 % from sheaves
  per-CPU    rseq mm_cid

cache          live objects  live bytes   cached  peak bytes     use
large objects             4     2.0 MiB      0 B     3.0 MiB   100 %
kmalloc-64           16 000  1000.0 KiB  2.0 KiB     2.0 MiB  97.6 %
"
        );
        let form = Form {
            slabinfo: true,
            ..FORM
        };
        let text = plain_in(form, &run, Ok(&sorted()), &Children::default());
        let (_, table) = text.split_once("\n\n").unwrap();
        assert_eq!(
            table,
            format!(
                "{}kmalloc-64         16032  16384     64   64    1 : tunables    0    0    0 : slabdata    255    256      0\n",
                table::HEADER
            )
        );
    }

    #[test]
    fn a_terminal_of_sixty_columns_is_not_exceeded() {
        let form = Form { width: 60, ..FORM };
        let run = run(Ending::Killed(9));
        let text = plain_in(form, &run, Ok(&sorted()), &Children::default());
        let broken =
            "\n  pages      slabs 1.0 MiB, large 2.0 MiB, huge 0 B,\n             kept for reuse ";
        assert!(text.contains(broken), "{text}");
        for text in [
            text,
            plain_in(form, &run, Err(&Unusable::Missing), &Children::default()),
        ] {
            for line in text.lines() {
                assert!(line.chars().count() <= 60, "{line}");
            }
        }
    }

    #[test]
    fn a_program_with_a_malloc_of_its_own_is_told_so() {
        let mut report = sorted();
        report.process.own_malloc = 1;
        let text = plain(&run(Ending::Exited(0)), Ok(&report), &Children::default());
        let note =
            "\n  note       the program has a malloc of its own, which uslub does not replace: ";
        assert!(text.contains(note), "{text}");
    }

    #[test]
    fn the_reason_for_a_missing_report_is_told() {
        for (ending, why, words) in [
            (
                Ending::Killed(9),
                Unusable::Missing,
                "killed by SIGKILL before it could report",
            ),
            (
                Ending::Exited(0),
                Unusable::Missing,
                "ended without running the library",
            ),
            (Ending::Exited(0), Unusable::Unfinished, "it began on uslub"),
            (Ending::Exited(0), Unusable::Empty, "the report is empty"),
        ] {
            let form = Form {
                width: 1000,
                ..FORM
            };
            let text = plain_in(form, &run(ending), Err(&why), &Children::default());
            assert!(text.contains(words), "{text}");
            let peak = "\n  memory     peak 3.0 MiB (with processes that it waited for)\n";
            assert!(text.ends_with(peak), "{text}");
        }
    }

    #[test]
    fn children_are_summed_up_and_the_largest_has_the_table() {
        let child = |pid: u32, program| Process {
            version: uslub_report::VERSION,
            pid,
            parent_pid: 77,
            program,
            birth: "exec",
            peak_rss_bytes: u64::from(pid) << 20,
            allocs: 500,
            ..Process::default()
        };
        let caches = sorted().caches;
        let (folder, _) = crate::report::tests::children(&[
            (child(20, "sh"), caches.clone()),
            (child(300, "cc1plus"), caches),
        ]);
        std::fs::write(folder.path().join("4.json"), "").unwrap();
        let children = Children::read(folder.path(), 77, 9);
        let text = plain(&run(Ending::Exited(0)), Ok(&sorted()), &children);
        let (_, text) = text.split_once("  children ").unwrap();
        assert_eq!(
            text,
            "  2 on uslub, largest peak 300.0 MiB, 1 000 allocations
  note       1 report of children cannot be read

     peak  pid  program  started by  peak bytes, most in
300.0 MiB  300  cc1plus  77          kmalloc-64 2.0 MiB
 20.0 MiB   20  sh       77          kmalloc-64 2.0 MiB

cc1plus (pid 300) used the most memory:
cache       live objects  live bytes   cached  peak bytes     use
kmalloc-64        16 000  1000.0 KiB  2.0 KiB     2.0 MiB  97.6 %
at most 2.0 MiB of its peak of 300.0 MiB came from malloc: the rest is code, stacks, and mappings
that the program made itself
"
        );
    }
}
