//! Programs of other authors in each mode that checks: the same output as alone, and no report.

use uslub_tests::Run;
use uslub_tests::subject::{plain, subject};
use uslub_tests::tools::{say_skipped, shared, tool};

const LUA: &str = "local t = {} for i = 1, 60000 do t['k' .. i] = ('v'):rep(i % 50) \
    if i > 1000 then t['k' .. i - 1000] = nil end end \
    local n = 0 for _, v in pairs(t) do n = n + #v end print(n)";
const AWK: &str = "BEGIN { for (i = 0; i < 60000; i++) { \
    a[i % 5000 \"x\"] = a[i % 4000 \"x\"] i % 7; \
    if (length(a[i % 4000 \"x\"]) > 90) delete a[i % 4000 \"x\"] } \
    for (k in a) n += length(a[k]); print n }";
const JQ: &str = "[range(1000) | {key: tostring, value: [range(. % 9)]}] | from_entries | \
    map_values(length) | add";
const PERL: &str = "my %h; for my $i (1..60000) { $h{\"k$i\"} = 'v' x ($i % 50); \
    delete $h{'k' . ($i - 1000)} if $i > 1000; } print join ',', sort keys %h;";
const PYTHON: &str = "import json, re\nd = {str(i): [i] * (i % 20) for i in range(20000)}\n\
    print(len(json.dumps(d)), len(re.findall('1+', repr(d))))";
const SQLITE: &str = "create table t(a, b); with recursive c(x) as (select 1 union all \
    select x + 1 from c where x < 50000) insert into t select x, 'v' || x from c; \
    select count(*), sum(length(b)) from t where b like '%7%';";
const C: &str = "#include <stdio.h>\nint main(void) { return puts(\"built\") < 0; }\n";
const JAVA: &str = "public class Null { public static void main(String[] a) { int n = 0; \
    for (int i = 0; i < 200000; i++) { Object o = i % 2 == 0 ? null : \"\"; \
    try { n += o.hashCode() + 1; } catch (NullPointerException e) { n += 2; } } \
    System.out.println(n); } }";

/// Runs each program by `uslub run` with this option.
fn check(mode: &str) {
    if plain() {
        return say_skipped("checked: only uslub has these modes");
    }
    let _shared = shared();
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("a source");
        path.display().to_string()
    };
    let (java, source) = (put("Null.java", JAVA), put("built.c", C));
    let programs: [(&str, &[&str]); 8] = [
        ("lua5.4", &["-e", LUA]),
        ("gawk", &[AWK]),
        ("jq", &["-n", JQ]),
        ("perl", &["-e", PERL]),
        ("python3", &["-c", PYTHON]),
        ("sqlite3", &[":memory:", SQLITE]),
        // The compiler, the assembler and the linker are children.
        ("cc", &["-O2", "-o", "/dev/null", &source]),
        // A virtual machine that takes null pointers by SIGSEGV.
        ("java", &["-XX:-UsePerfData", &java]),
    ];
    for (name, arguments) in programs {
        let Some(path) = tool(name) else {
            continue;
        };
        let alone = Run::of(&path)
            .args(arguments)
            .variable("PYTHONMALLOC", "malloc");
        let alone = alone.plainly().succeeded();
        let checked = Run::of(&subject().command)
            .args(["run", "-q", mode, "--"])
            .args([path.as_os_str()])
            .args(arguments)
            .variable("PYTHONMALLOC", "malloc")
            .variable("USLUB_LIBRARY", &subject().library)
            .plainly();
        let described = checked.describe();
        assert!(checked.status.success(), "{described}");
        assert_eq!(checked.stdout, alone.stdout, "{name}");
        assert_eq!(checked.stderr, alone.stderr, "{name}");
    }
}

#[test]
fn real_programs_are_right_under_fzpu() {
    check("--debug=FZPU");
}

#[test]
fn real_programs_are_right_with_guarded_objects() {
    check("--guard=100");
}

#[test]
fn real_programs_are_right_when_hardened() {
    check("--hardened");
}
