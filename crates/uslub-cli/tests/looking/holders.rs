//! `uslub holders` against a search by brute force, and against what the program knows.

use crate::inspected::{Paused, said, uslub};
use crate::start;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Pointers to an object in every kind of place; `old` ones in freed memory.
pub const HOLDS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void *in_bss;
void *in_data = (void *)1;
static void *dangling;
static void *object;
static int tell[2];
static void *wait(void *argument)
{
    void *volatile on_stack[4] = { argument, argument, 0, 0 };
    printf("holder thread = %zu\n", (size_t)&on_stack[1]);
    if (write(tell[1], "x", 1) != 1)
        return 0;
    pause();
    return on_stack[0];
}
int main(void)
{
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IONBF, 0);
    object = malloc(176);
    in_bss = object;
    in_data = (char *)object + 8;
    void **live = malloc(368), **old = malloc(368), **large = malloc(20000);
    void **huge = malloc(1 << 20);
    void **mapped = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *volatile on_stack = object;
    live[3] = object;
    live[4] = (char *)object + 176; /* behind it */
    *(void **)((char *)live + 300) = object; /* not at a multiple of 8 */
    large[700] = object;
    huge[100000] = (char *)object + 175;
    mapped[4099] = object;
    for (int i = 0; i < 46; i++)
        old[i] = object;
    free(old);
    printf("holder bss = %zu\n", (size_t)&in_bss);
    printf("holder data = %zu\n", (size_t)&in_data);
    printf("holder static = %zu\n", (size_t)&object);
    printf("holder live = %zu\n", (size_t)&live[3]);
    printf("holder large = %zu\n", (size_t)&large[700]);
    printf("holder huge = %zu\n", (size_t)&huge[100000]);
    printf("holder mapped = %zu\n", (size_t)&mapped[4099]);
    printf("holder stack = %zu\n", (size_t)&on_stack);
    printf("old = %zu\nnot = %zu\n", (size_t)&old[40], (size_t)&live[4]);
    pthread_t thread;
    if (pipe(tell) || pthread_create(&thread, 0, wait, object))
        return 1;
    char c;
    if (read(tell[0], &c, 1) != 1)
        return 1;
    dangling = malloc(1248);
    printf("object = %zu\ndangling = %zu\n", (size_t)object, (size_t)dangling);
    printf("holds dangling = %zu\n", (size_t)&dangling);
    free(dangling);
    void *volatile nobody = malloc(1500);
    *(char *)nobody = 1;
    printf("nobody = %zu\n", (size_t)nobody ^ 0x5555555555555555);
    nobody = 0;
    puts("ready");
    getchar();
    return 0;
}
"#;

/// All words of writable memory with a value in a range, read page by page.
fn by_brute_force(pid: &str, object: std::ops::Range<u64>) -> BTreeMap<u64, u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("memory");
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).expect("pagemap");
    let mut words = BTreeMap::new();
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').expect("a range");
        if !rest.starts_with("rw") {
            continue;
        }
        let (start, end) = range.split_once('-').expect("two addresses");
        let number = |hex| u64::from_str_radix(hex, 16).expect("an address");
        let (start, end) = (number(start), number(end));
        let mut entries = vec![0; 8 << 16];
        for part in (start..end).step_by(4096 << 16) {
            let pages = (end - part).div_ceil(4096).min(1 << 16) as usize;
            let entries = &mut entries[..8 * pages];
            pagemap.read_exact_at(entries, part / 512).expect("entries");
            for (i, entry) in entries.chunks_exact(8).enumerate() {
                let mut page = [0; 4096];
                let at = part + 4096 * i as u64;
                // The two highest bits: in memory, or swapped out.
                if entry[7] & 0xc0 == 0 || memory.read_exact_at(&mut page, at).is_err() {
                    continue;
                }
                for (k, word) in page.chunks_exact(8).enumerate() {
                    let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                    if object.contains(&word) {
                        words.insert(at + 8 * k as u64, word);
                    }
                }
            }
        }
    }
    words
}

fn hex(value: &Value) -> u64 {
    let text = value.as_str().expect("text");
    u64::from_str_radix(&text[2..], 16).expect("an address")
}

/// The words that the command found, with whether they hold the object.
fn found(paused: &Paused, address: u64, options: &[&str]) -> BTreeMap<u64, (u64, bool)> {
    let (pid, address) = (paused.pid(), format!("{address:#x}"));
    let base = ["holders", &pid, &address, "--json", "--limit", "1000000"];
    let report: Value = serde_json::from_str(&said(&[&base, options].concat())).expect("JSON");
    assert_eq!(
        (&report["format"], &report["complete"]),
        (&1.into(), &true.into())
    );
    let words = report["words"].as_array().expect("words");
    let words = words.iter().map(|word| {
        let holds = word["holds"].as_bool().expect("a truth");
        (hex(&word["at"]), (hex(&word["value"]), holds))
    });
    words.collect()
}

#[test]
fn holders_are_exactly_those_of_a_search_by_brute_force() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = start(&folder, "holds", HOLDS).map(Paused::at_rest) else {
        return;
    };
    for (name, bytes) in [("object", 176), ("dangling", 1248)] {
        let object = paused.own(name);
        let expected = by_brute_force(&paused.pid(), object..object + bytes);
        let all = found(&paused, object + 5, &["--all"]);
        let values: BTreeMap<_, _> = all.iter().map(|(&at, &(value, _))| (at, value)).collect();
        assert_eq!(values, expected, "{name}");
        let holding: BTreeMap<_, _> = all.into_iter().filter(|(_, (_, holds))| *holds).collect();
        assert_eq!(found(&paused, object + 5, &[]), holding, "{name}");
        let exact = found(&paused, object, &["--all", "--exact"]);
        let expected = expected.iter().filter(|(_, value)| **value == object);
        assert!(exact.keys().eq(expected.map(|(at, _)| at)), "{name}");
    }

    let object = paused.own("object");
    let all = found(&paused, object, &["--all"]);
    let places = paused
        .lines
        .iter()
        .filter(|line| line.starts_with("holder "));
    let mut n = 0;
    for line in places {
        let at = paused.own(line.split(" = ").next().expect("a name"));
        assert!(all.get(&at).is_some_and(|(_, holds)| *holds), "{line}");
        n += 1;
    }
    assert_eq!(n, 9);
    assert!(all.get(&paused.own("old")).is_some_and(|(_, holds)| !holds));
    assert!(!all.contains_key(&paused.own("not")));
    let freed = found(&paused, paused.own("dangling"), &["--all"]);
    assert!(freed[&paused.own("holds dangling")].1);
    // The freed object's own address is in a sheaf, which does not count.
    assert!(freed.values().any(|(_, holds)| !holds));
}

#[test]
fn a_search_leaves_the_process_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = start(&folder, "holds", HOLDS).map(Paused::at_rest) else {
        return;
    };
    let cost = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", paused.pid())).expect("stat");
        let words = stat.rsplit(')').next().expect("fields").split_whitespace();
        // Minor and major faults.
        let words: Vec<_> = words
            .skip(7)
            .step_by(2)
            .take(2)
            .map(str::to_owned)
            .collect();
        (paused.status("VmRSS"), paused.status("VmPTE"), words)
    };
    let before = cost();
    let (pid, object) = (paused.pid(), format!("{:#x}", paused.own("object")));
    for _ in 0..3 {
        said(&["holders", &pid, &object]);
    }
    assert_eq!(cost(), before);
}

#[test]
fn places_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = start(&folder, "holds", HOLDS).map(Paused::at_rest) else {
        return;
    };
    let (pid, object) = (paused.pid(), format!("{:#x}", paused.own("object")));
    let text = said(&["holders", &pid, &object, "--limit", "100"]);
    let first = format!("{object} is the start of a live object of cache 'kmalloc-176'");
    assert!(text.starts_with(&first), "{text}");
    let line_of = |name: &str| {
        let at = format!("{:#014x} ", paused.own(&format!("holder {name}")));
        let mut lines = text.lines();
        let line = lines.find(|line| line.trim_start().starts_with(&at));
        line.unwrap_or_else(|| panic!("no line for {name} at {at}: {text}"))
    };
    for (name, words) in [
        ("bss", "→ +0      in holds: in_bss"),
        ("data", "→ +8      in holds: in_data"),
        ("live", "in 'kmalloc-368' 0x"),
        ("live", " +24, live"),
        ("large", "in large object 0x"),
        ("huge", "→ +175    in huge object 0x"),
        ("stack", "in the first thread's stack"),
        ("mapped", "an"),
    ] {
        assert!(line_of(name).contains(words), "{}", line_of(name));
    }
    let thread = line_of("thread");
    assert!(
        thread.contains("in the stack of thread ") && thread.ends_with("(holds)"),
        "{thread}"
    );
    assert!(
        text.contains("not counted: ") && text.contains("not searched: registers"),
        "{text}"
    );

    let few = said(&["holders", &pid, &object, "--limit", "1"]);
    assert!(few.contains(" more (--limit)"), "{few}");
    // Nobody points to it, but for what the calls left over on the stack.
    let nobody = paused.own("nobody") ^ 0x5555_5555_5555_5555;
    let text = said(&["holders", &pid, &format!("{nobody:#x}")]);
    let is_lost = text.contains("nobody points to it: lost");
    let is_on_stack = text.contains("the first thread's stack");
    assert!(is_lost || is_on_stack, "{text}");
}

#[test]
fn addresses_without_an_object_are_searched_as_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(paused) = start(&folder, "holds", HOLDS).map(Paused::at_rest) else {
        return;
    };
    let pid = paused.pid();
    let text = said(&["holders", &pid, "0xffff800000000000"]);
    assert!(
        text.contains("no address of a program") && text.contains("held by 0 words"),
        "{text}"
    );
    let output = uslub(&["holders", &pid, "nine"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("'nine' is no address"));
}
