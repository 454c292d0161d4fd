//! One look at a process: what the view shows, as plain numbers.

use super::super::json;
use super::super::target::{Target, start_time, stat};
use crate::ending::signal_name;
use crate::failure::{Failure, USAGE};
use std::fs;
use std::time::{Duration, Instant};
use uslub_inspect::fullness::Fullness;
use uslub_inspect::sheaves::Sheaf;
use uslub_inspect::snapshot::Row;
use uslub_inspect::{Heap, Snapshot, proc_text};

/// Ticks of a second in `/proc/PID/stat`: the kernel's `USER_HZ` on x86-64 and aarch64.
const TICKS: u64 = 100;

/// Counters of the slow paths that the details show, and what each counts.
pub const COUNTERS: [(&str, &str); 6] = [
    ("sheaf_refill", "objects from slabs to sheaves"),
    ("sheaf_flush", "objects from sheaves to slabs"),
    ("alloc_slowpath", "objects allocated from slabs"),
    ("alloc_slab", "new slabs"),
    ("free_slab", "slabs given back"),
    ("list_lock_wait", "waits for a list lock"),
];

/// Identifies a cache in several looks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The allocator's place in the list of allocators.
    pub heap: usize,
    /// The cache's index; 0 for objects without a cache.
    pub index: usize,
    /// The cache's name: another cache may get the index of a destroyed one.
    pub name: String,
}

/// One cache in a look.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which cache it is.
    pub key: Key,
    /// Bytes of a slot; 0 for objects without a cache.
    pub size: u64,
    /// Live objects.
    pub live: u64,
    /// Bytes of their slots.
    pub bytes: u64,
    /// Bytes of all slabs.
    pub memory: u64,
    /// Objects in sheaves.
    pub cached: u64,
    /// Free slots of slabs.
    pub free: u64,
    /// Slabs, if they are known.
    pub slabs: Option<u64>,
    /// Allocations and frees so far.
    pub calls: (u64, u64),
    /// Objects by which `live` may be wrong.
    pub uncertain: u64,
}

/// More about one cache.
#[derive(Clone, Debug)]
pub struct Detail {
    /// Which cache it is.
    pub key: Key,
    /// Its sheaves.
    pub sheaves: Vec<Sheaf>,
    /// Its slabs.
    pub fullness: Fullness,
    /// The values of [`COUNTERS`].
    pub counters: [u64; COUNTERS.len()],
}

/// One look.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Number of the process.
    pub pid: i32,
    /// Name and number of the process: a program may replace itself by another one.
    pub title: String,
    /// Time since the first look.
    pub at: Duration,
    /// Time that the look took.
    pub took: Duration,
    /// Time since the process started.
    pub up: Duration,
    /// Resident bytes of the process.
    pub resident: u64,
    /// Bytes of all live objects.
    pub live: u64,
    /// Bytes of the objects in sheaves.
    pub cached: u64,
    /// Bytes of the free slots.
    pub free: u64,
    /// Bytes of free pages that may hold memory.
    pub kept: u64,
    /// The caches.
    pub entries: Vec<Entry>,
    /// More about the cache that was asked for.
    pub detail: Option<Detail>,
}

/// Looks at one process.
pub struct Sampler {
    /// The process.
    pub pid: i32,
    start: u64,
    first: Instant,
}

/// Time since the system started.
fn system_up() -> Option<Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

impl Sampler {
    /// Looks at the process with a number.
    ///
    /// # Errors
    ///
    /// If it is no process, cannot be read, or is not on uslub.
    pub fn open(word: &str) -> Result<Self, Failure> {
        let target = Target::open(word)?;
        let Target::Process(process) = &target else {
            return Err(Failure {
                message: format!("{} does not change any more", target.title()),
                hint: format!("uslub info {word} says what it holds"),
                code: USAGE,
            });
        };
        target.heaps()?;
        Ok(Self {
            pid: process.pid(),
            start: start_time(process.pid()).unwrap_or(0),
            first: Instant::now(),
        })
    }

    /// Looks once, with more about the cache `detail`.
    ///
    /// # Errors
    ///
    /// If the process ended or can no longer be read.
    pub fn look(&self, detail: Option<&Key>) -> Result<Sample, Failure> {
        let begin = Instant::now();
        if start_time(self.pid) != Some(self.start) {
            return Err(Failure::ours("the process ended", "start it again"));
        }
        let target = Target::open(self.pid.to_string())?;
        let looks = target.looks()?;
        let mut sample = Sample {
            pid: self.pid,
            title: target.title(),
            at: begin.duration_since(self.first),
            resident: self.resident(),
            ..Sample::default()
        };
        let start = Duration::from_millis(self.start * (1000 / TICKS));
        sample.up = system_up().map_or(Duration::ZERO, |up| up.saturating_sub(start));
        for (place, (heap, look)) in looks.iter().enumerate() {
            sample.add(place, look);
            if let Some(key) = detail.filter(|key| key.heap == place) {
                sample.detail = detail_of(heap, look, key);
            }
        }
        sample.took = begin.elapsed();
        Ok(sample)
    }

    /// The figures of the process as JSON, as `uslub info --json` writes them.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    pub fn json(&self) -> Result<String, Failure> {
        if start_time(self.pid) != Some(self.start) {
            return Err(Failure::ours("the process ended", "start it again"));
        }
        json::text(&Target::open(self.pid.to_string())?)
    }

    fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let mut lines = status.lines();
        lines
            .find_map(|line| proc_text::kib(line, "VmRSS:"))
            .unwrap_or(0)
            * 1024
    }

    /// Why a look failed: the process ended, or what the failure says.
    pub fn why(&self, failure: &Failure) -> (String, bool) {
        match stat(self.pid) {
            Some(fields) if fields.get(19).and_then(|t| t.parse().ok()) == Some(self.start) => {
                match fields.first().map(String::as_str) {
                    // The last field is the status that its parent has not fetched yet.
                    Some("Z" | "X") => (ended(fields.last()), true),
                    _ => (failure.message.clone(), false),
                }
            }
            _ => ("it has ended".to_owned(), true),
        }
    }
}

/// How a process ended whose parent has not fetched its status.
fn ended(status: Option<&String>) -> String {
    let status: i32 = status.and_then(|status| status.parse().ok()).unwrap_or(0);
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) => "it has ended".to_owned(),
        (0, code) => format!("it has ended with status {code}"),
        (signal, _) => format!("it was killed by {}", signal_name(signal)),
    }
}

impl Sample {
    /// Adds a look at one allocator.
    fn add(&mut self, heap: usize, look: &Snapshot) {
        self.live = self.live.saturating_add(look.live_bytes());
        self.cached = self.cached.saturating_add(look.cached_bytes());
        self.free = self.free.saturating_add(look.free_bytes());
        self.kept = self.kept.saturating_add(look.pages.dirty * 4096);
        let with_slabs = look.rows.iter().filter(|row| row.slabs > 0);
        self.entries.extend(with_slabs.map(|row| entry(heap, row)));
        let huge = look.huge.map_or(0, |(live, _)| live);
        let bytes = (look.pages.large * 4096).saturating_add(huge);
        let live = look.pages.large_objects + look.huge_objects;
        if live > 0 || look.large_calls.0 > 0 {
            self.entries.push(Entry {
                key: Key {
                    heap,
                    index: 0,
                    name: "(large objects)".to_owned(),
                },
                size: 0,
                live,
                bytes,
                memory: bytes,
                cached: 0,
                free: 0,
                slabs: Some(0),
                calls: look.large_calls,
                uncertain: 0,
            });
        }
    }
}

fn entry(heap: usize, row: &Row) -> Entry {
    Entry {
        key: Key {
            heap,
            index: row.cache.index,
            name: row.cache.name.clone(),
        },
        size: row.cache.size.into(),
        live: row.live().unwrap_or(0),
        bytes: row.live_bytes().unwrap_or(0),
        memory: row.slab_bytes(),
        cached: row.cached,
        free: row.free().unwrap_or(0),
        slabs: Some(row.slabs),
        calls: row.calls,
        uncertain: row.uncertain,
    }
}

/// More about one cache of an allocator; `None` if it is gone.
fn detail_of(heap: &Heap<'_>, look: &Snapshot, key: &Key) -> Option<Detail> {
    let mut rows = look.rows.iter();
    let row = rows.find(|row| row.cache.index == key.index && row.cache.name == key.name)?;
    let mut all = heap.fullness(Some(&key.name)).into_iter();
    let fullness = all.find(|one| one.cache.index == key.index)?;
    let one = std::slice::from_ref(&row.cache);
    let counter = |name| heap.counter(one, name).map_or(0, |values| values[0]);
    Some(Detail {
        key: key.clone(),
        sheaves: heap.sheaves_of(&row.cache),
        fullness,
        counters: COUNTERS.map(|(name, _)| counter(name)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_how_a_process_ended() {
        for (status, text) in [
            ("0", "it has ended"),
            ("768", "it has ended with status 3"),
            ("9", "it was killed by SIGKILL"),
            ("139", "it was killed by SIGSEGV"),
        ] {
            assert_eq!(ended(Some(&status.to_owned())), text);
        }
        assert_eq!(ended(None), "it has ended");
    }

    #[test]
    fn a_process_knows_when_it_started() {
        let start = start_time(std::process::id() as i32).expect("a start");
        let up = system_up().expect("the time since the start of the system");
        assert!(start / TICKS <= up.as_secs());
    }
}
