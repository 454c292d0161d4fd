//! A look as JSON: numbers in bytes, objects and seconds. `docs/observing.md` describes it.

use super::target::Target;
use crate::failure::Failure;
use serde::Serialize;
use uslub_inspect::{Bridge, Heap, Snapshot};

/// Version of the format.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Look {
    format: u32,
    pid: Option<i32>,
    program: String,
    resident: Option<Resident>,
    allocators: Vec<Allocator>,
}

/// The bridge; the parts add up to `total_bytes`.
#[derive(Serialize)]
struct Resident {
    total_bytes: u64,
    live_bytes: u64,
    cached_bytes: u64,
    free_slots_bytes: u64,
    kept_bytes: u64,
    tables_bytes: u64,
    files_bytes: u64,
    stack_bytes: u64,
    other_bytes: u64,
}

#[derive(Serialize)]
struct Allocator {
    face: String,
    version: String,
    file: String,
    look_seconds: f64,
    looks: usize,
    live_bytes: u64,
    cached_bytes: u64,
    free_bytes: u64,
    large_objects: u64,
    large_bytes: u64,
    huge_bytes: Option<u64>,
    quarantined: u64,
    quarantined_bytes: u64,
    damaged: u64,
    caches: Vec<Cache>,
}

#[derive(Serialize)]
struct Cache {
    name: String,
    size: u32,
    object_size: u32,
    live: u64,
    live_bytes: u64,
    cached: u64,
    quarantined: u64,
    waiting: u64,
    free: u64,
    slots: u64,
    slabs: u64,
    active_slabs: u64,
    slab_bytes: u64,
    allocs: u64,
    frees: u64,
    uncertain: u64,
}

/// The output for a target.
pub fn text(target: &Target) -> Result<String, Failure> {
    let looks = target.looks()?;
    let (pid, program) = target.identity();
    let bridge = match target {
        Target::Process(process) => {
            Some(Bridge::of(process, &looks).map_err(|error| target.refuse(error))?)
        }
        Target::Core(..) => None,
    };
    let look = Look {
        format: FORMAT,
        pid,
        program,
        resident: bridge.map(resident),
        allocators: looks
            .iter()
            .map(|(heap, look)| allocator(heap, look))
            .collect(),
    };
    pretty(&look)
}

/// A value as JSON for people and programs.
pub fn pretty(value: &impl Serialize) -> Result<String, Failure> {
    match serde_json::to_string_pretty(value) {
        Ok(text) => Ok(text + "\n"),
        Err(error) => Err(Failure::ours(
            format!("cannot write JSON: {error}"),
            "report this as a bug of uslub",
        )),
    }
}

fn resident(bridge: Bridge) -> Resident {
    Resident {
        total_bytes: bridge.resident,
        live_bytes: bridge.live,
        cached_bytes: bridge.cached,
        free_slots_bytes: bridge.free,
        kept_bytes: bridge.kept,
        tables_bytes: bridge.tables,
        files_bytes: bridge.files,
        stack_bytes: bridge.stack,
        other_bytes: bridge.other,
    }
}

fn allocator(heap: &Heap<'_>, look: &Snapshot) -> Allocator {
    let root = heap.root();
    Allocator {
        face: root.face.clone(),
        version: root.version.clone(),
        file: root.file.clone(),
        look_seconds: look.took.as_secs_f64(),
        looks: look.looks,
        live_bytes: look.live_bytes(),
        cached_bytes: look.cached_bytes(),
        free_bytes: look.free_bytes(),
        large_objects: look.pages.large_objects,
        large_bytes: look.pages.large * 4096,
        huge_bytes: look.huge.map(|(live, _)| live),
        quarantined: look.quarantined().0,
        quarantined_bytes: look.quarantined().1,
        damaged: look.damaged as u64 + look.pages.torn,
        caches: look.rows.iter().map(cache).collect(),
    }
}

fn cache(row: &uslub_inspect::snapshot::Row) -> Cache {
    Cache {
        name: row.cache.name.clone(),
        size: row.cache.size,
        object_size: row.cache.object_size,
        live: row.live().unwrap_or(0),
        live_bytes: row.live_bytes().unwrap_or(0),
        cached: row.cached,
        quarantined: row.quarantined,
        waiting: row.waiting,
        free: row.free().unwrap_or(0),
        slots: row.slots,
        slabs: row.slabs,
        active_slabs: row.active_slabs.unwrap_or(0),
        slab_bytes: row.slab_bytes(),
        allocs: row.calls.0,
        frees: row.calls.1,
        uncertain: row.uncertain,
    }
}
