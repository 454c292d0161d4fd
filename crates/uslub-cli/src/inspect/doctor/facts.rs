//! What the rules look at: several looks at a process, and what the kernel says about it.

use super::super::target::Target;
use super::huge::HugePages;
use crate::failure::Failure;
use std::fs;
use std::time::{Duration, Instant};
use uslub_inspect::counters::Calls;
use uslub_inspect::fullness::SPARSE_PERCENT;
use uslub_inspect::{Bridge, Heap, Process, Snapshot, proc_text};

/// One cache.
#[derive(Clone, Debug, Default)]
pub struct CacheFacts {
    /// Its name.
    pub name: String,
    /// Bytes of a slot, and of the object in it.
    pub size: (u64, u64),
    /// Live objects in each look.
    pub live: Vec<u64>,
    /// Objects by which a look may be wrong.
    pub uncertain: u64,
    /// Bytes of the slabs.
    pub memory: u64,
    /// Bytes of the free slots.
    pub free: u64,
    /// Slabs, and those with at most a quarter of their slots live.
    pub slabs: (u64, u64),
    /// Allocations between the first and the last look.
    pub allocs: u64,
    /// Frees meanwhile.
    pub frees: u64,
    /// Objects that were freed on another CPU slot than they were allocated on meanwhile, at least.
    pub moved: u64,
    /// Objects that were allocated directly from slabs meanwhile.
    pub slow: u64,
    /// Waits for a list lock meanwhile.
    pub waits: u64,
}

impl CacheFacts {
    /// Live objects in the last look.
    pub fn live_now(&self) -> u64 {
        self.live.last().copied().unwrap_or(0)
    }
}

/// A use and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is limited.
    pub what: &'static str,
    /// How the limit is raised.
    pub action: &'static str,
    /// What is used.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
    /// Whether both are bytes.
    pub in_bytes: bool,
}

/// All facts about a process.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub program: String,
    /// Time between the first and the last look.
    pub watched: Duration,
    /// Looks.
    pub looks: usize,
    /// Where the resident memory is, in the last look.
    pub bridge: Bridge,
    /// Bytes of free pages that may hold memory, in the first look and the last.
    pub kept: (u64, u64),
    /// Bytes that are swapped out.
    pub swapped: u64,
    /// Records of caches that made no sense in each look.
    pub damaged: u64,
    /// The caches with slabs.
    pub caches: Vec<CacheFacts>,
    /// Slabs where huge pages were asked for.
    pub huge: HugePages,
    /// Limits that apply.
    pub limits: Vec<Limit>,
    /// The variable `USLUB_OPTIONS` of the process when it started.
    pub options: String,
}

/// The figures of one look that are compared with those of another.
struct Look {
    at: Instant,
    kept: u64,
    damaged: u64,
    /// Of each cache: allocator, index, name, live objects.
    live: Vec<(usize, usize, String, u64)>,
    calls: Vec<(usize, usize, u64)>,
    frees: Vec<(usize, usize, u64)>,
    /// Of each cache: allocator, index, allocations and frees on each CPU slot.
    slots: Vec<(usize, usize, Vec<Calls>)>,
    slow: Vec<(usize, usize, u64)>,
    waits: Vec<(usize, usize, u64)>,
}

/// A counter of each cache: allocator, index, value.
fn counters(looks: &[(Heap<'_>, Snapshot)], name: &'static str) -> Vec<(usize, usize, u64)> {
    let heaps = looks.iter().enumerate();
    let values = heaps.flat_map(|(place, (heap, look))| {
        let caches: Vec<_> = look.rows.iter().map(|row| row.cache.clone()).collect();
        let values = heap.counter(&caches, name).unwrap_or_default();
        let indices = caches.into_iter().map(move |cache| (place, cache.index));
        indices.zip(values).map(|((place, i), n)| (place, i, n))
    });
    values.collect()
}

/// The calls of each cache on each CPU slot: allocator, index, calls.
fn slots(looks: &[(Heap<'_>, Snapshot)]) -> Vec<(usize, usize, Vec<Calls>)> {
    let heaps = looks.iter().enumerate();
    let calls = heaps.flat_map(|(place, (heap, look))| {
        let caches: Vec<_> = look.rows.iter().map(|row| row.cache.clone()).collect();
        let calls = heap.calls_by_slot(&caches).into_iter().zip(caches);
        calls.map(move |(calls, cache)| (place, cache.index, calls))
    });
    calls.collect()
}

/// Objects that were freed on another CPU slot than they were allocated on, at least. A slot with
/// more allocations than frees gives objects away, and one with more frees takes them. What both
/// sides have in common went from one to the other. The rest stays live, or was live before.
fn moved(first: &[Calls], last: &[Calls]) -> u64 {
    let (mut given, mut taken) = (0_u64, 0_u64);
    for (slot, &(allocs, frees)) in last.iter().enumerate() {
        let before = first.get(slot).copied().unwrap_or((0, 0));
        let allocs = allocs.saturating_sub(before.0);
        let frees = frees.saturating_sub(before.1);
        given = given.saturating_add(allocs.saturating_sub(frees));
        taken = taken.saturating_add(frees.saturating_sub(allocs));
    }
    given.min(taken)
}

/// By how much a counter of a cache rose; 0 if it went back or is new.
fn rise(first: &[(usize, usize, u64)], last: &[(usize, usize, u64)], key: (usize, usize)) -> u64 {
    let value = |all: &[(usize, usize, u64)]| {
        let found = all.iter().find(|&&(place, index, _)| (place, index) == key);
        found.map(|&(.., n)| n)
    };
    match (value(first), value(last)) {
        (Some(first), Some(last)) => last.saturating_sub(first),
        _ => 0,
    }
}

fn look(looks: &[(Heap<'_>, Snapshot)]) -> Look {
    let at = Instant::now();
    let rows = || {
        let heaps = looks.iter().enumerate();
        heaps.flat_map(|(place, (_, look))| look.rows.iter().map(move |row| (place, row)))
    };
    Look {
        at,
        kept: looks.iter().map(|(_, look)| look.pages.dirty * 4096).sum(),
        damaged: looks.iter().map(|(_, look)| look.damaged as u64).sum(),
        live: rows()
            .map(|(place, row)| {
                let cache = &row.cache;
                let live = row.live().unwrap_or(0);
                (place, cache.index, cache.name.clone(), live)
            })
            .collect(),
        calls: rows()
            .map(|(place, row)| (place, row.cache.index, row.calls.0))
            .collect(),
        frees: rows()
            .map(|(place, row)| (place, row.cache.index, row.calls.1))
            .collect(),
        slots: slots(looks),
        slow: counters(looks, "alloc_slowpath"),
        waits: counters(looks, "list_lock_wait"),
    }
}

impl Facts {
    /// Looks `count` times, with `pause` between two looks.
    ///
    /// # Errors
    ///
    /// If the process ends meanwhile, or cannot be read.
    pub fn gather(word: &str, count: usize, pause: Duration) -> Result<Self, Failure> {
        let mut all = Vec::new();
        for _ in 1..count {
            let target = Target::open(word)?;
            all.push(look(&target.looks()?));
            std::thread::sleep(pause);
        }
        let target = Target::open(word)?;
        let looks = target.looks()?;
        let last = look(&looks);
        let Target::Process(process) = &target else {
            return Err(Failure::usage(
                format!("{} does not change any more", target.title()),
                format!("uslub info {word} says what it holds"),
            ));
        };
        let refuse = |error| target.refuse(error);
        let first = all.first().unwrap_or(&last);
        let mut facts = Self {
            pid: process.pid(),
            program: process.name().to_owned(),
            watched: last.at.duration_since(first.at),
            looks: count,
            bridge: Bridge::of(process, &looks).map_err(refuse)?,
            kept: (first.kept, last.kept),
            damaged: (all.iter().map(|look| look.damaged)).fold(last.damaged, u64::min),
            options: options(process),
            ..Self::default()
        };
        for (place, (heap, look)) in looks.iter().enumerate() {
            let fullness = heap.fullness(None);
            for row in look.rows.iter().filter(|row| row.slabs > 0) {
                let key = (place, row.cache.index);
                let full = fullness.iter().find(|f| f.cache.index == row.cache.index);
                let live_in = |look: &Look| {
                    let mut live = look.live.iter();
                    let name = &row.cache.name;
                    let found = live.find(|(p, i, n, _)| (*p, *i) == key && n == name);
                    found.map(|&(.., live)| live)
                };
                let slots_in = |look: &Look| {
                    let mut slots = look.slots.iter();
                    let found = slots.find(|(p, i, _)| (*p, *i) == key);
                    found.map_or_else(Vec::new, |(.., slots)| slots.clone())
                };
                let looks = all.iter().chain([&last]);
                facts.caches.push(CacheFacts {
                    name: row.cache.name.clone(),
                    size: (row.cache.size.into(), row.cache.object_size.into()),
                    live: looks.filter_map(live_in).collect(),
                    uncertain: row.uncertain,
                    memory: row.slab_bytes(),
                    free: row.free().unwrap_or(0) * u64::from(row.cache.size),
                    slabs: full.map_or((0, 0), |f| (f.total(), f.at_most(SPARSE_PERCENT))),
                    allocs: rise(&first.calls, &last.calls, key),
                    frees: rise(&first.frees, &last.frees, key),
                    moved: moved(&slots_in(first), &slots_in(&last)),
                    slow: rise(&first.slow, &last.slow, key),
                    waits: rise(&first.waits, &last.waits, key),
                });
            }
        }
        let smaps = proc_text::smaps(&process.text("smaps").map_err(refuse)?);
        let status = process.text("status").map_err(refuse)?;
        // A program may forbid itself huge pages, as redis does: then nothing is missing.
        if proc_text::status(&status, "THP_enabled") != Some("0") {
            facts.huge = HugePages::of(&smaps, &looks);
        }
        facts.swapped = of_status(&status, "VmSwap").unwrap_or(0);
        facts.limits = limits(process, &status);
        Ok(facts)
    }
}

/// Bytes of a line of `status`.
fn of_status(status: &str, key: &str) -> Option<u64> {
    let kib = proc_text::status(status, key)?.strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The variable `USLUB_OPTIONS` of a process when it started.
fn options(process: &Process) -> String {
    let text = process.text("environ").unwrap_or_default();
    let mut words = text.split('\0');
    let found = words.find_map(|word| word.strip_prefix("USLUB_OPTIONS="));
    uslub_inspect::root::printable(found.unwrap_or("").as_bytes())
}

/// The soft limit of a line of `/proc/PID/limits`; `None` if there is none.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find(|line| line.starts_with(name))?;
    line[name.len()..]
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()
}

/// The limits that apply to a process, with what it uses of each.
fn limits(process: &Process, status: &str) -> Vec<Limit> {
    let mut found = Vec::new();
    let limits = process.text("limits").unwrap_or_default();
    let of_process = [
        ("Max address space", "VmSize", "address space (ulimit -v)"),
        ("Max data size", "VmData", "data (ulimit -d)"),
    ];
    for (line, key, what) in of_process {
        let used = of_status(status, key);
        if let (Some(limit), Some(used)) = (soft_limit(&limits, line), used) {
            found.push(Limit {
                what,
                action: "start the program with a higher limit",
                used,
                limit,
                in_bytes: true,
            });
        }
    }
    let maps = process.text("maps").map_or(0, |text| text.lines().count());
    let most = number_in("/proc/sys/vm/max_map_count");
    found.extend(most.map(|limit| Limit {
        what: "mappings (vm.max_map_count)",
        action: "raise it: sysctl vm.max_map_count=262144",
        used: maps as u64,
        limit,
        in_bytes: false,
    }));
    let groups = process.text("cgroup").unwrap_or_default();
    found.extend(group_limit(&groups));
    found
}

fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The memory limit of a control group, of either version of the interface.
fn group_limit(groups: &str) -> Option<Limit> {
    let limit = |used, limit| Limit {
        what: "memory of the control group",
        action: "raise the group's limit, or expect the kernel to end a process",
        used,
        limit,
        in_bytes: true,
    };
    for line in groups.lines() {
        let mut words = line.splitn(3, ':').skip(1);
        let (kind, path) = (words.next()?, words.next()?);
        // Use, limit, and the line of `memory.stat` with pages of files that nobody used lately:
        // the kernel takes them back before the limit hurts.
        let files = match kind {
            "" => ["memory.current", "memory.max", "inactive_file"],
            "memory" => [
                "memory.usage_in_bytes",
                "memory.limit_in_bytes",
                "total_inactive_file",
            ],
            _ => continue,
        };
        // In a container the group may be the root of what is visible.
        for folder in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"] {
            for path in [path, ""] {
                let file = |name| format!("{folder}{path}/{name}");
                let (used, most) = (number_in(&file(files[0])), number_in(&file(files[1])));
                // An unlimited group of version 1 has a limit near 2^63.
                if let (Some(used), Some(most)) = (used, most)
                    && most < 1 << 60
                {
                    let stat = fs::read_to_string(file("memory.stat")).unwrap_or_default();
                    return Some(limit(used.saturating_sub(of_stat(&stat, files[2])), most));
                }
            }
        }
    }
    None
}

/// The number of a line of `memory.stat`; 0 if there is none.
fn of_stat(stat: &str, key: &str) -> u64 {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(name, _)| *name == key);
    found
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_kernels_text() {
        let text = "\
Limit                     Soft Limit           Hard Limit           Units
Max data size             unlimited            unlimited            bytes
Max address space         4294967296           unlimited            bytes
";
        assert_eq!(soft_limit(text, "Max address space"), Some(4 << 30));
        assert_eq!(soft_limit(text, "Max data size"), None);
        assert_eq!(soft_limit(text, "Max stack size"), None);
        let status = "VmSize:\t    1024 kB\nVmSwap:\t       0 kB\n";
        assert_eq!(of_status(status, "VmSize"), Some(1 << 20));
        assert_eq!(of_status(status, "VmData"), None);
        let stat = "anon 4096\ninactive_file 8192\n";
        assert_eq!(
            (of_stat(stat, "inactive_file"), of_stat(stat, "file")),
            (8192, 0)
        );
    }

    #[test]
    fn a_counter_that_goes_back_did_not_rise() {
        let first = [(0, 1, 10), (0, 2, 10)];
        let last = [(0, 1, 25), (0, 2, 9), (0, 3, 7)];
        let rises = [1, 2, 3, 4].map(|index| rise(&first, &last, (0, index)));
        assert_eq!(rises, [15, 0, 0, 0]);
    }

    #[test]
    fn objects_that_one_slot_gives_and_another_takes_have_moved() {
        let none = [(0, 0), (0, 0)];
        assert_eq!(moved(&none, &[(100, 100), (50, 50)]), 0);
        assert_eq!(moved(&none, &[(100, 0), (0, 90)]), 90);
        // What is still live, and what was live before.
        assert_eq!(moved(&none, &[(100, 0), (0, 0)]), 0);
        assert_eq!(moved(&none, &[(0, 100), (0, 0)]), 0);
        assert_eq!(moved(&[(70, 0), (0, 0)], &[(100, 10), (0, 90)]), 20);
        // A slot that is new.
        assert_eq!(moved(&none[..1], &[(100, 0), (0, 60)]), 60);
    }
}
