//! The report at the end of real programs, as people read it: the caches that matter, the child that
//! used the memory, terminals of all widths.

mod support;

use nix::pty::{Winsize, openpty};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{put, text, uslub_command};
use tempfile::tempdir;

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs `uslub run` with these words; what it said. The program must succeed.
fn report_of(words: &[&str]) -> String {
    let mut command = uslub_command(&[&["run"], words].concat());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = stderr(&output);
    assert!(output.status.success(), "{words:?}: {said}");
    said
}

/// Whether a program exists here; otherwise says so.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: '{program}' is absent");
    }
    found
}

/// The lines of the table of caches: name, then figures.
fn table(said: &str) -> Vec<Vec<String>> {
    let lines = said.lines().skip_while(|line| !line.starts_with("cache  "));
    let lines = lines.take_while(|line| !line.is_empty() && !line.starts_with("shown: "));
    let words = |line: &str| {
        let cells = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect::<Vec<_>>()
    };
    lines.map(words).collect()
}

/// A size as it is printed, in bytes.
fn bytes(shown: &str) -> f64 {
    let (number, unit) = shown.split_once(' ').unwrap_or_else(|| panic!("{shown}"));
    let power = ["B", "KiB", "MiB", "GiB"]
        .iter()
        .position(|one| *one == unit);
    number.parse::<f64>().unwrap() * 1024_f64.powi(power.unwrap() as i32)
}

#[test]
fn the_largest_caches_come_first_and_hold_nearly_all() {
    let fill = "my %h; $h{$_} = [1 .. 3] for 1 .. 30000";
    for (program, words) in [
        ("perl", vec!["perl", "-e", fill]),
        (
            "python3",
            vec!["python3", "-c", "x = [str(i) * 3 for i in range(60000)]"],
        ),
        (
            "sort",
            vec![
                "sort",
                "/usr/share/dict/words",
                "/etc/services",
                "/etc/passwd",
            ],
        ),
    ] {
        let words: Vec<_> = words
            .into_iter()
            .filter(|word| !word.starts_with('/') || Path::new(word).exists())
            .collect();
        if !has(program) {
            continue;
        }
        let shown = report_of(&words);
        let rows = table(&shown);
        let header = [
            "cache",
            "live objects",
            "live bytes",
            "cached",
            "peak bytes",
            "use",
        ];
        assert_eq!(rows[0], header, "{shown}");
        let is_rest = |row: &&Vec<String>| row[0].ends_with(" others");
        let peaks =
            |rows: &[Vec<String>]| rows.iter().map(|row| bytes(&row[4])).collect::<Vec<_>>();
        let caches: Vec<_> = rows[1..]
            .iter()
            .filter(|row| !is_rest(row))
            .cloned()
            .collect();
        assert!((1..=13).contains(&caches.len()), "{shown}");
        assert!(peaks(&caches).is_sorted_by(|a, b| a >= b), "{shown}");

        let all = report_of(&[&["--all"], &words[..]].concat());
        assert!(
            !all.contains(" others ") && !all.contains("shown: "),
            "{all}"
        );
        let every = table(&all);
        if rows.iter().any(|row| is_rest(&row)) {
            let note = "--all shows every cache";
            assert!(shown.contains("caches with 95 % of the peak bytes,") && shown.contains(note));
            assert!(every.len() > rows.len(), "{all}");
        }
        let sum = |rows| peaks(rows).iter().sum::<f64>();
        if caches.len() < 12 {
            assert!(sum(&caches) >= 0.94 * sum(&every[1..]), "{shown}\n{all}");
        }
    }
}

#[test]
fn a_peak_is_told_although_all_was_freed() {
    if !has("perl") {
        return;
    }
    // 40 000 arrays, freed before the end, and a string of 20 MiB.
    let script = "{ my @a = map { [$_] } 1 .. 40000; my $s = 'x' x (20 << 20); }";
    let said = report_of(&["--all", "perl", "-e", script]);
    let rows = table(&said);
    let row = |name: &str| {
        rows.iter()
            .find(|row| row[0] == name)
            .unwrap_or_else(|| panic!("{said}"))
    };
    let [live, peak] = [2, 4].map(|column| bytes(&row("large objects")[column]));
    assert!(peak >= f64::from(20 << 20) && live < peak / 2.0, "{said}");
    let most = rows[1..]
        .iter()
        .filter(|row| row[0].starts_with("kmalloc-"));
    let most = most.map(|row| bytes(&row[4])).fold(0.0, f64::max);
    assert!(most >= 40_000.0 * 24.0, "{said}");
}

#[test]
fn the_kernels_table_is_there_for_tools() {
    let said = report_of(&["--slabinfo", "sh", "-c", "/bin/ls / > /dev/null; true"]);
    assert!(
        said.contains("\n\nslabinfo - version: 2.1\n# name "),
        "{said}"
    );
    assert!(!said.contains("live objects"), "{said}");
    let rows = said
        .lines()
        .skip_while(|line| !line.starts_with("# name "))
        .skip(1);
    // The table is last: a parser reads to the end.
    assert!(rows.clone().count() > 2);
    assert!(
        rows.clone().all(|row| row.starts_with("kmalloc-")),
        "{said}"
    );
}

#[test]
fn a_driver_points_to_the_child_that_used_the_memory() {
    if !has("g++") {
        return;
    }
    let folder = tempdir().unwrap();
    let at = folder.path();
    put(
        &at.join("a.cpp"),
        "#include <string>\nint main() { return 0; }\n",
        0o644,
    );
    put(&at.join("Makefile"), "a: a.cpp\n\tg++ -o a a.cpp\n", 0o644);
    for driver in ["g++", "make"] {
        if !has(driver) {
            continue;
        }
        let source = at.join("a.cpp");
        let target = at.join("b");
        let said = match driver {
            "make" => report_of(&["make", "-C", text(at)]),
            _ => report_of(&["g++", "-o", text(&target), text(&source)]),
        };
        let list: Vec<_> = said
            .lines()
            .skip_while(|line| !line.contains(" started by "))
            .collect();
        let words: Vec<_> = list[1].split_whitespace().collect();
        assert_eq!(words[3], "cc1plus", "the largest is first: {said}");
        assert_eq!(words[4], "g++", "its parent is named: {said}");
        let names = ["as", "ld", "collect2"];
        assert!(
            names
                .iter()
                .all(|name| said.contains(&format!("  {name}  "))),
            "{said}"
        );
        let about = format!("\ncc1plus (pid {}) used the most memory:\ncache ", words[2]);
        assert!(said.contains(&about), "{said}");
        // gcc collects its garbage itself.
        assert!(
            said.contains("came from malloc: the rest is code, stacks,"),
            "{said}"
        );
        assert!(said.lines().count() < 45, "it stays short: {said}");
    }
}

#[test]
fn children_are_listed_with_their_parents_and_forks_are_marked() {
    let said = report_of(&[
        "sh",
        "-c",
        "/bin/sh -c '/bin/ls / > /dev/null; true'; (:); true",
    ]);
    let ls = said
        .lines()
        .find(|line| line.contains(" ls "))
        .unwrap_or_else(|| panic!("{said}"));
    assert!(ls.contains("  sh "), "{said}");
    assert!(said.contains("  sh (fork)  sh "), "{said}");
    assert!(
        said.contains("\n  children   3 on uslub, largest peak "),
        "{said}"
    );
    // None of them used more than the shell: the table is the shell's.
    assert!(!said.contains("used the most memory"), "{said}");
}

#[test]
fn many_children_take_a_few_lines_unless_all_are_asked_for() {
    let script = "n=0; while [ $n -lt 20 ]; do /bin/true; n=$((n + 1)); done";
    let said = report_of(&["sh", "-c", script]);
    assert!(said.contains("\n14 more children, peak at most "), "{said}");
    assert!(said.contains("; --all lists every child\n"), "{said}");
    let all = report_of(&["--all", "sh", "-c", script]);
    let listed = all
        .lines()
        .filter(|line| line.contains("  true     sh "))
        .count();
    assert_eq!(listed, 20, "{all}");
}

/// Runs `uslub run` with its standard error at a terminal of so many columns; what it showed.
fn at_terminal(columns: u16, variables: &[(&str, &str)], words: &[&str]) -> String {
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = openpty(Some(&size), None).unwrap();
    let mut command = uslub_command(&[&["run"], words].concat());
    command
        .env_remove("NO_COLOR")
        .env_remove("CI")
        .env("TERM", "xterm")
        .envs(variables.iter().copied());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(terminal.slave);
    let status = command.status().unwrap();
    // The last copy of the program's side.
    drop(command);
    assert!(status.success());
    let mut shown = Vec::new();
    // A terminal that is hung up ends by an error.
    let _ = File::from(terminal.master).read_to_end(&mut shown);
    String::from_utf8(shown).unwrap().replace('\r', "")
}

#[test]
fn narrow_terminals_get_narrow_lines() {
    let words = ["sh", "-c", "/bin/ls /; ls / | sort; true"];
    for columns in [60, 80, 100] {
        let shown = at_terminal(columns, &[("NO_COLOR", "1")], &words);
        assert!(
            shown.contains("\ncache ") && shown.contains(" pid  program "),
            "{shown}"
        );
        for line in shown.lines() {
            assert!(
                line.chars().count() <= usize::from(columns),
                "{columns}: {line}"
            );
        }
    }
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let escapes = |shown: &str| shown.matches('\u{1b}').count();
    assert!(escapes(&at_terminal(80, &[], &["true"])) > 0);
    for variables in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let shown = at_terminal(80, &[variables], &["true"]);
        assert_eq!(escapes(&shown), 0, "{variables:?}: {shown}");
    }
    let piped = report_of(&["sh", "-c", "/bin/true; true"]);
    assert!(piped.is_ascii(), "{piped}");
    assert_eq!(escapes(&piped), 0, "{piped}");
}

#[test]
fn a_program_with_its_own_malloc_is_told_so() {
    let folder = tempdir().unwrap();
    let program = folder.path().join("own");
    let source = "#include <stddef.h>\n#include <string.h>\n\
        static char pool[1 << 20]; static size_t used;\n\
        void *malloc(size_t n) { void *p = pool + used; used += (n + 15) & ~15ul; return p; }\n\
        void free(void *p) { (void)p; }\n\
        void *calloc(size_t a, size_t b) { return malloc(a * b); }\n\
        void *realloc(void *p, size_t n) { (void)p; return malloc(n); }\n\
        int main(void) { return strlen(malloc(16)) != 0; }\n";
    if !support::compile(source, &["-fno-builtin", "-Wl,-E"], &program) {
        return;
    }
    let said = report_of(&[text(&program)]);
    let sentence = "note       the program has a malloc of its own, which uslub does not replace:";
    assert!(said.contains(sentence), "{said}");
    let script = format!("{}; true", text(&program));
    let said = report_of(&["sh", "-c", &script]);
    assert!(
        said.contains("  own      sh ") && said.contains("a malloc of its own"),
        "{said}"
    );
    let plain = report_of(&["ls", "/"]);
    assert!(!plain.contains("malloc of"), "{plain}");
    fs::remove_file(program).unwrap();
}

#[test]
fn a_program_with_caches_of_its_own_is_told_where_to_see_them() {
    let sentence = "note       the program has an allocator of uslub in it";
    // The command brings the allocator of the Rust interface for its benches.
    let own = report_of(&[text(&support::uslub()), "--version"]);
    assert!(own.contains(sentence), "{own}");
    let plain = report_of(&["ls", "/"]);
    assert!(!plain.contains("note"), "{plain}");
}
