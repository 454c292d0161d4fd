//! Looks at a process whose threads never rest: each figure is within the bound that the look states.
//! By hand, the long form: `cargo test -p uslub-cli --test looking ten_thousand -- --ignored
//! --nocapture`.

use crate::start;
use std::time::Duration;
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Depth, Heap, Process, root};

/// Threads, objects that they share, and objects that a thread has less for a moment.
const THREADS: u64 = 4;
const SHARED: u64 = 4096;
const BURST: u64 = 150;
/// Objects that nobody touches, of the same size and of another one.
const KEPT: u64 = 20_000;
const QUIET: u64 = 5000;

/// Each thread frees a burst of shared objects, which others allocated too, and replaces them.
const CHURNS: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
static _Atomic(void *) shared[4096];
static void *churn(void *seed)
{
    unsigned long dice = (unsigned long)seed * 2654435761u + 1;
    for (;;) {
        int at[150];
        for (int i = 0; i < 150; i++) {
            dice = dice * 6364136223846793005u + 1442695040888963407u;
            at[i] = dice >> 52;
            void *object = atomic_exchange(&shared[at[i]], NULL);
            if (!object)
                at[i] = -1; /* another thread has just taken it */
            else
                free(object);
        }
        for (int i = 0; i < 150; i++)
            if (at[i] >= 0)
                atomic_store(&shared[at[i]], malloc(176));
    }
}
int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < 4096; i++)
        shared[i] = malloc(176);
    for (int i = 0; i < 20000; i++)
        *(volatile char *)malloc(176) = 1;
    for (int i = 0; i < 5000; i++)
        *(volatile char *)malloc(368) = 1;
    for (long i = 0; i < 4; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, churn, (void *)i))
            return 1;
    }
    puts("ready");
    getchar();
    return 0;
}
"#;

/// What the looks at one cache showed.
#[derive(Debug, Default)]
struct Seen {
    looks: u64,
    exact: u64,
    /// Objects by which a look was wrong, at most, and objects that it stated, at most.
    wrong: u64,
    stated: u64,
}

impl Seen {
    /// Adds a row of a cache that has from `least` to `most` live objects.
    fn add(&mut self, row: &Row, least: u64, most: u64) {
        let (inuse, cached) = (row.inuse.expect("a full look"), row.cached);
        // Never negative: no more objects are cached than are in use and uncertain.
        assert!(inuse + row.uncertain >= cached, "{row:?}");
        let live = row.live().expect("a full look");
        let wrong = least.saturating_sub(live).max(live.saturating_sub(most));
        assert!(
            wrong <= row.uncertain,
            "{live}, not {least} to {most}: {row:?}"
        );
        self.looks += 1;
        self.exact += u64::from(wrong == 0);
        self.wrong = self.wrong.max(wrong);
        self.stated = self.stated.max(row.uncertain);
    }
}

fn check(looks: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(running) = start(&folder, "churns", CHURNS) else {
        return;
    };
    let pid = running.pid().parse().expect("a number");
    let (mut busy, mut quiet) = (Seen::default(), Seen::default());
    let mut left = looks;
    while left > 0 {
        let process = Process::open(pid).expect("the process");
        let roots = root::find(&process).expect("a root");
        let root = roots.into_iter().next().expect("a root");
        let mut heap = Heap::open(&process, root).expect("a heap");
        // The list of mappings is read anew from time to time, as a command does at its start.
        for _ in 0..left.min(100) {
            left -= 1;
            let look = heap.look(Depth::Full).expect("a look");
            assert_eq!(look.damaged, 0);
            let row = |name: &str| {
                let row = look.rows.iter().find(|row| row.cache.name == name);
                row.unwrap_or_else(|| panic!("no '{name}'"))
            };
            let all = KEPT + SHARED;
            busy.add(row("kmalloc-176"), all - THREADS * BURST, all);
            quiet.add(row("kmalloc-368"), QUIET, QUIET);
        }
    }
    assert_eq!(busy.looks, looks as u64);
    println!("busy cache {busy:?}\nquiet cache {quiet:?}");
}

#[test]
fn looks_at_a_busy_process_are_within_their_bound() {
    check(200);
}

#[test]
#[ignore = "long; by name"]
fn ten_thousand_looks_at_a_busy_process_are_within_their_bound() {
    check(10_000);
}

/// Keeps objects of 96 bytes.
const KEEPS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < OBJECTS; i++)
        if (!malloc(96))
            return 1;
    puts("ready");
    getchar();
    return 0;
}
"#;

/// Looks of which the quickest counts: other programs use the machine too.
const LIGHT_LOOKS: usize = 50;

#[test]
fn a_light_look_takes_a_millisecond_at_any_size() {
    let folder = tempfile::tempdir().expect("a folder");
    // 9, 96 and 768 MiB in slabs.
    for objects in [100_000, 1_000_000, 8_000_000] {
        let source = KEEPS.replace("OBJECTS", &objects.to_string());
        let Some(running) = start(&folder, "keeps", &source) else {
            return;
        };
        let running = running.at_rest();
        let pid = running.pid().parse().expect("a number");
        let process = Process::open(pid).expect("the process");
        let root = root::find(&process).expect("a root").into_iter().next();
        let mut heap = Heap::open(&process, root.expect("a root")).expect("a heap");
        let looks = (0..LIGHT_LOOKS).map(|_| heap.look(Depth::Light).expect("a look").took);
        let quickest = looks.min().expect("looks");
        eprintln!("{objects} objects: the quickest of {LIGHT_LOOKS} light looks took {quickest:?}");
        // A build without optimization takes five to ten times as long.
        let most = Duration::from_millis(if cfg!(debug_assertions) { 10 } else { 1 });
        assert!(quickest <= most, "{objects} objects: {quickest:?}");
    }
}
