//! The onlooker: looks at the program's caches now and then, and at its end, from outside.
//!
//! | look | what for |
//! |---|---|
//! | after 0.1 s, then once a second | a program that is killed; caches that it destroys |
//! | at the end, of which the program tells | last figures of the allocators in it |
//!
//! The library reports on malloc itself, so these looks count for malloc only without a report. A
//! look stops nothing, and all looks together take at most a 200th of the time. `run` starts the
//! onlooker; `summary` and `record` tell what it saw.

use crate::inspect::target::Target;
use crate::report::Report;
use crate::wire::{CacheRow, Process};
use nix::unistd::Pid;
use serde::Serialize;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Heap, Process as Memory, Snapshot};

/// Age of the program at the first look.
const FIRST: Duration = Duration::from_millis(100);
/// Least time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Part of the time that looks may take.
const SHARE: u32 = 200;

/// What was seen of the caches of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sight {
    /// Age of the program at the last look.
    pub age: Duration,
    /// Whether the program was at its end then.
    pub at_end: bool,
    /// Its allocators.
    pub allocators: Vec<Allocator>,
}

/// An allocator as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Allocator {
    /// The interface that made it: `malloc`, `rust` or `c`.
    pub face: String,
    version: String,
    file: String,
    large_objs: u64,
    large_bytes: u64,
    huge_bytes: u64,
    peak_large_bytes: u64,
    /// The caches that have or had a slab.
    pub caches: Vec<Seen>,
}

/// A cache as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Seen {
    name: String,
    live_objs: u64,
    live_bytes: u64,
    cached_bytes: u64,
    slab_bytes: u64,
    peak_bytes: u64,
    active_objs: u64,
    num_objs: u64,
    objsize: u32,
    objperslab: u32,
    pagesperslab: u32,
    active_slabs: u64,
    num_slabs: u64,
    cached_objs: u64,
    /// Whether the program destroyed it before the last look.
    destroyed: bool,
    /// The name in the table.
    #[serde(skip)]
    label: String,
}

impl Sight {
    /// Adds a later look. Caches that are gone stay, with what they had at most.
    fn add(&mut self, mut now: Vec<Allocator>) {
        for allocator in &mut now {
            let same =
                |old: &&mut Allocator| (&old.face, &old.file) == (&allocator.face, &allocator.file);
            if let Some(before) = self.allocators.iter_mut().find(same) {
                allocator.remember(std::mem::take(&mut before.caches));
            }
        }
        self.allocators = now;
    }
}

impl Allocator {
    fn new(heap: &Heap<'_>, snapshot: &Snapshot) -> Self {
        let (root, pages) = (heap.root(), &snapshot.pages);
        let (large, huge) = (
            pages.large * 4096,
            snapshot.huge.map_or(0, |(live, _)| live),
        );
        let mut caches: Vec<Seen> = Vec::new();
        for row in snapshot.rows.iter().filter(|row| row.peak_bytes() > 0) {
            let seen = Seen::new(row);
            match caches.iter_mut().find(|cache| cache.is_like(&seen)) {
                Some(cache) => cache.join(&seen),
                None => caches.push(seen),
            }
        }
        Allocator {
            face: root.face.clone(),
            version: root.version.clone(),
            file: root.file.clone(),
            large_objs: pages.large_objects + snapshot.huge_objects,
            large_bytes: large,
            huge_bytes: huge,
            peak_large_bytes: snapshot.peak_large.unwrap_or(0).max(large + huge),
            caches,
        }
    }

    /// Takes over what an earlier look saw.
    fn remember(&mut self, before: Vec<Seen>) {
        for old in before {
            match self.caches.iter_mut().find(|cache| cache.is_like(&old)) {
                Some(cache) => cache.peak_bytes = cache.peak_bytes.max(old.peak_bytes),
                None => self.caches.push(old.gone()),
            }
        }
    }

    /// Whether the program has it in it.
    pub fn is_own(&self) -> bool {
        self.face != "malloc"
    }

    /// The interface, for people.
    pub fn title(&self) -> &str {
        match self.face.as_str() {
            "rust" => "the program itself, on uslub for Rust",
            "c" => "the program itself, on uslub for C",
            other => other,
        }
    }

    /// The same figures in the form of a report.
    pub fn report(&self) -> Report<'_> {
        Report {
            process: Process {
                large_objs: self.large_objs,
                large_bytes: self.large_bytes,
                huge_bytes: self.huge_bytes,
                peak_large_bytes: self.peak_large_bytes,
                ..Process::default()
            },
            caches: self.caches.iter().map(Seen::row).collect(),
        }
    }
}

impl Seen {
    fn new(row: &Row) -> Self {
        let inuse = row.inuse.unwrap_or(0);
        Seen {
            name: row.cache.name.clone(),
            live_objs: row.live().unwrap_or(0),
            live_bytes: row.live_bytes().unwrap_or(0),
            cached_bytes: row.cached_bytes(),
            slab_bytes: row.slab_bytes(),
            peak_bytes: row.peak_bytes(),
            active_objs: inuse,
            num_objs: row.slots,
            objsize: row.cache.size,
            objperslab: row.cache.objects,
            pagesperslab: row.cache.slab_pages() as u32,
            active_slabs: row.active_slabs.unwrap_or(0),
            num_slabs: row.slabs,
            cached_objs: row.cached,
            destroyed: false,
            label: row.cache.name.clone(),
        }
    }

    /// Whether another cache has the same line in the output.
    fn is_like(&self, other: &Seen) -> bool {
        (&self.name, self.objsize) == (&other.name, other.objsize)
    }

    /// Adds the figures of another cache of the same name.
    fn join(&mut self, other: &Seen) {
        for (sum, more) in [
            (&mut self.live_objs, other.live_objs),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.cached_bytes, other.cached_bytes),
            (&mut self.slab_bytes, other.slab_bytes),
            (&mut self.peak_bytes, other.peak_bytes),
            (&mut self.active_objs, other.active_objs),
            (&mut self.num_objs, other.num_objs),
            (&mut self.active_slabs, other.active_slabs),
            (&mut self.num_slabs, other.num_slabs),
            (&mut self.cached_objs, other.cached_objs),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// The same cache after its end.
    fn gone(self) -> Self {
        Seen {
            label: format!("{} (destroyed)", self.name),
            name: self.name,
            objsize: self.objsize,
            objperslab: self.objperslab,
            pagesperslab: self.pagesperslab,
            peak_bytes: self.peak_bytes,
            destroyed: true,
            ..Seen::default()
        }
    }

    fn row(&self) -> CacheRow<'_> {
        CacheRow {
            name: &self.label,
            live_objs: self.live_objs,
            live_bytes: self.live_bytes,
            cached_bytes: self.cached_bytes,
            slab_bytes: self.slab_bytes,
            peak_bytes: self.peak_bytes,
            active_objs: self.active_objs,
            num_objs: self.num_objs,
            objsize: self.objsize,
            objperslab: self.objperslab,
            pagesperslab: self.pagesperslab,
            active_slabs: self.active_slabs,
            num_slabs: self.num_slabs,
            cached_objs: self.cached_objs,
            ..CacheRow::default()
        }
    }
}

/// The program that is looked at, and what was seen of it.
struct Watched {
    pid: i32,
    start: Option<Instant>,
    sight: Option<Sight>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched {
    pid: 0,
    start: None,
    sight: None,
});

fn watched() -> MutexGuard<'static, Watched> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    fn look(&mut self, at_end: bool) {
        let Some((start, now)) = self.start.zip(look(self.pid)) else {
            return;
        };
        let sight = self.sight.get_or_insert_default();
        sight.add(now);
        (sight.age, sight.at_end) = (start.elapsed(), at_end);
    }
}

/// Looks at all allocators of a process; `None` if it cannot be read.
fn look(pid: i32) -> Option<Vec<Allocator>> {
    let target = Target::Process(Memory::open(pid).ok()?);
    let looks = target.looks().ok()?;
    let seen = looks
        .iter()
        .map(|(heap, snapshot)| Allocator::new(heap, snapshot));
    let seen = seen.collect();
    // What ends during a look is seen in part.
    Memory::open(pid).is_ok().then_some(seen)
}

/// Looks at a program, on a thread of its own.
pub struct Onlooker {
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

/// The time from before a program begins until its id is known. Its end waits for that.
pub struct Expected {
    watched: MutexGuard<'static, Watched>,
}

impl Onlooker {
    /// Lets the program say when it ends. Call it before the program gets its environment.
    pub fn prepare() {
        uslub_witness::watch_ends(|pid| {
            let mut watched = watched();
            if watched.pid != 0 && watched.pid as u32 == pid {
                watched.look(true);
            }
        });
    }

    /// Expects a program. Call it before the program begins.
    pub fn expect() -> Expected {
        Expected { watched: watched() }
    }

    /// What was seen, after the end of the child.
    pub fn finish(self) -> Option<Sight> {
        if let Some((stop, thread)) = self.thread {
            drop(stop);
            let _ = thread.join();
        }
        let mut watched = watched();
        watched.pid = 0;
        watched.sight.take()
    }
}

impl Expected {
    /// Looks at the child `pid`, which has just begun.
    pub fn start(mut self, pid: Pid) -> Onlooker {
        *self.watched = Watched {
            pid: pid.as_raw(),
            start: Some(Instant::now()),
            sight: None,
        };
        drop(self.watched);
        let (stop, stopped) = channel::<()>();
        let looks = move || {
            let mut wait = FIRST;
            while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let begin = Instant::now();
                let mut watched = watched();
                if watched.sight.as_ref().is_some_and(|sight| sight.at_end) {
                    break;
                }
                watched.look(false);
                drop(watched);
                wait = EVERY.max(begin.elapsed() * SHARE);
            }
        };
        let thread = thread::Builder::new().name("onlooker".to_owned());
        let thread = thread.spawn(looks).ok();
        Onlooker {
            thread: thread.map(|thread| (stop, thread)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str, objsize: u32, slabs: u64) -> Seen {
        Seen {
            name: name.to_owned(),
            label: name.to_owned(),
            objsize,
            live_objs: 10 * slabs,
            num_slabs: slabs,
            slab_bytes: 4096 * slabs,
            peak_bytes: 4096 * slabs,
            ..Seen::default()
        }
    }

    fn allocator(face: &str, caches: Vec<Seen>) -> Allocator {
        Allocator {
            face: face.to_owned(),
            caches,
            ..Allocator::default()
        }
    }

    #[test]
    fn a_cache_that_is_gone_keeps_what_it_had_at_most() {
        let mut sight = Sight::default();
        sight.add(vec![allocator(
            "c",
            vec![cache("a", 64, 9), cache("b", 64, 5)],
        )]);
        // Made again, and smaller; the same name with another size is another cache.
        sight.add(vec![allocator(
            "c",
            vec![cache("a", 64, 2), cache("a", 32, 1)],
        )]);
        sight.add(vec![allocator("c", vec![cache("a", 64, 3)])]);
        let [ref own] = sight.allocators[..] else {
            panic!("{sight:?}");
        };
        let lines = own.report();
        let lines = lines
            .caches
            .iter()
            .map(|row| (row.name, row.objsize, row.peak_bytes >> 12));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                ("a", 64, 9),
                ("a (destroyed)", 32, 1),
                ("b (destroyed)", 64, 5)
            ]
        );
        let live: Vec<_> = own.caches.iter().map(|cache| cache.live_objs).collect();
        assert_eq!(live, [30, 0, 0]);
        // A cache that is made again is no longer gone.
        sight.add(vec![allocator("c", vec![cache("b", 64, 1)])]);
        let caches = &sight.allocators[0].caches;
        let b = caches.iter().find(|cache| cache.name == "b").unwrap();
        assert!(!b.destroyed && b.peak_bytes == 5 << 12, "{caches:?}");
        // Another program has other allocators.
        sight.add(vec![allocator("malloc", Vec::new())]);
        assert!(sight.allocators.len() == 1 && sight.allocators[0].caches.is_empty());
    }

    #[test]
    fn caches_of_one_name_are_one_line() {
        let mut one = cache("a", 64, 2);
        one.join(&cache("a", 64, 3));
        assert_eq!(one, cache("a", 64, 5));
    }

    #[test]
    fn a_process_that_ended_is_not_seen() {
        assert_eq!(look(1 << 23), None);
    }
}
