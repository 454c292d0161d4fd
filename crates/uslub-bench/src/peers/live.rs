//! P3: very many small objects are live at the same time.

use std::alloc::{Layout, alloc};
use std::cell::RefCell;
use std::hint::black_box;

use uslub_core::Gfp;
use uslub_linux::Linux;

use super::child::{self, Work};
use super::face::{Face, OURS};
use super::row::{Aim, PeerRow, Rounds};
use super::{More, Peers, Section, note};
use crate::bench::Bench;
use crate::error::Failure;
use crate::floor::{self, FLOOR, Floor};
use crate::linux::{self, Pinned};
use crate::measure::nanoseconds;
use crate::strategy::Strategy;

/// Sizes of the objects, in bytes, each with the goal for our bulk calls: the largest ratio to the
/// best peer's time.
const SIZES: [(usize, f64); 4] = [(16, 0.3), (64, 0.3), (256, 0.1), (512, 0.1)];
/// Bytes of an object in the rows with fresh memory.
pub const COLD: usize = 256;
/// Minimum objects per slab, for bulk calls: they share the cost of one slab.
const SLABS: &str = "slab_min_objects=64";

/// Bytes of all live objects.
fn bytes(bench: &Bench) -> usize {
    bench.size.pick(1 << 20, 32 << 20, 256 << 20)
}

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let mut rows = Vec::new();
    for (size, part) in SIZES {
        bench.says(&format!("P3, {size} bytes"));
        warm(bench, peers, size, part, &mut rows)?;
    }
    bench.says("P3, fresh memory");
    let count = bytes(bench) / COLD;
    // A virtual machine may return memory to its host after one or two idle seconds. The first
    // competitor of a round was then the slowest, whichever it was. Hence the floor runs before
    // every competitor and leaves it recently used memory. The floor uses one eighth more memory,
    // so that the memory also suffices for the competitor's tables.
    let of = |face| {
        child::run(peers, FLOOR, Work::Cold(count + count / 8))?;
        let report = child::run(peers, face, Work::Cold(count))?;
        Ok(report.nanoseconds / count as f64)
    };
    let first = [OURS, FLOOR].map(|name| -> More<'_> { (name, Box::new(move || of(name))) });
    let rounds = peers.each_and(bench, |face| of(face.name), first.into())?;
    let name = format!("{COLD} B, allocated and written, fresh memory");
    rows.push(PeerRow::new(
        "P3",
        name,
        "ns/object",
        &rounds,
        Aim::ratio(1.0),
    ));
    Ok(Section::new(
        "P3",
        "Very many live objects",
        "All are allocated, then all freed, on one CPU, in memory that the allocator had before; in between a word is \
         written into each. Our bulk calls are for a slab of 64 objects or more at a time, of a cache with such slabs. The floor has 250 \
         objects, and a bulk call undoes each row of them. Last, in a process of its own, in fresh memory, each object is written over; the \
         floor does no more than that, in memory by huge pages, and comes before each as well, so that all find memory that was just used.",
        rows,
    ))
}

/// The result of a round, in nanoseconds per object.
#[derive(Clone, Copy)]
struct Pass {
    alloc: f64,
    free: f64,
}

fn warm(
    bench: &Bench,
    peers: &Peers,
    size: usize,
    part: f64,
    rows: &mut Vec<PeerRow>,
) -> Result<(), Failure> {
    let objects = RefCell::new(vec![std::ptr::null_mut(); bytes(bench) / size]);
    let one_by_one = |face: &Face| malloc(face, size, &mut objects.borrow_mut());
    let count = bytes(bench) / size;
    let floor = Floor::here()?
        .map(|floor| -> More<'_, Pass> { (FLOOR, Box::new(move || Ok(rows_of(floor, count)))) });
    let passes = peers.each_of(bench, one_by_one, floor.into_iter().collect())?;
    let of = |part: fn(&Pass) -> f64| {
        let each = passes.iter();
        let each = each.map(|(name, p)| (*name, p.iter().map(part).collect()));
        Rounds::of(each.collect())
    };
    let (allocs, frees) = (of(|p| p.alloc), of(|p| p.free));
    let mut push = |what: &str, rounds: &Rounds, aim| {
        let name = format!("{size} B, {what}");
        rows.push(PeerRow::new("P3", name, "ns/object", rounds, aim));
    };
    let aim = Aim::ratio(1.0).tie(0.3);
    push("malloc", &allocs, aim);
    push("free", &frees, aim);
    let cache = Strategy::new(linux::steady()?, size, &[SLABS])?;
    let count = cache.slab_objects();
    let mut own: Vec<Pass> = Vec::new();
    for round in 0..=bench.rounds() {
        let pass = bulk(&cache, count, &mut objects.borrow_mut())?;
        note(bench, round, &mut own, pass);
    }
    let with = |peers: Rounds, part: fn(&Pass) -> f64| Rounds {
        ours: own.iter().map(part).collect(),
        floor: Vec::new(),
        ..peers
    };
    let (allocs, frees) = (with(allocs, |p| p.alloc), with(frees, |p| p.free));
    let what = format!("bulk allocation, {count} at a time");
    push(&what, &allocs, Aim::ratio(part));
    let what = format!("bulk free, {count} at a time");
    push(&what, &frees, Aim::ratio(1.0));
    Ok(())
}

/// The time of single calls.
fn malloc(face: &Face, size: usize, objects: &mut [*mut u8]) -> Result<Pass, Failure> {
    face.enter();
    let n = objects.len() as f64;
    let (alloc, ()) = nanoseconds(|| {
        for object in objects.iter_mut() {
            *object = face.alloc(size);
        }
    });
    let there = touch(objects);
    let (free, ()) = nanoseconds(|| {
        for &mut object in objects {
            // SAFETY: the object is of this allocator and is freed once.
            unsafe { face.free(object) };
        }
    });
    there
        .then_some(Pass {
            alloc: alloc / n,
            free: free / n,
        })
        .ok_or(Failure::NoMemory("for live objects"))
}

/// Runs of pops, and runs of pushes by address, over the floor's objects. A bulk call undoes each
/// run, at a cost of a tenth of a nanosecond per object.
fn rows_of(floor: &'static Floor, objects: usize) -> Pass {
    // Called through pointers unknown to the compiler, like the functions of all allocators.
    let face = black_box(Face::of_floor(floor));
    let mut array = [std::ptr::null_mut(); floor::CAPACITY];
    let runs = objects.div_ceil(array.len());
    let (alloc, ()) = nanoseconds(|| {
        for _ in 0..runs {
            array.fill_with(|| face.alloc(floor::SIZES[1]));
            floor.push_many(black_box(&array));
        }
    });
    let (free, ()) = nanoseconds(|| {
        for _ in 0..runs {
            floor.pop_many(black_box(&mut array));
            for &object in &array {
                // SAFETY: the object was popped above.
                unsafe { face.free(object) };
            }
        }
    });
    let n = (runs * array.len()) as f64;
    Pass {
        alloc: alloc / n,
        free: free / n,
    }
}

/// Writes a word into each object, so that its memory is resident; returns whether none is null.
fn touch(objects: &[*mut u8]) -> bool {
    for object in objects.iter().filter(|object| !object.is_null()) {
        // SAFETY: the object has at least 8 bytes, is aligned and is ours.
        unsafe { object.cast::<u64>().write(1) };
    }
    objects.iter().all(|object| !object.is_null())
}

/// The time of bulk calls.
fn bulk(
    cache: &Strategy<'_, Linux>,
    count: usize,
    objects: &mut [*mut u8],
) -> Result<Pass, Failure> {
    let Strategy { slub, cache } = cache;
    let n = objects.len() as f64;
    let (alloc, done) = nanoseconds(|| {
        let mut chunks = objects.chunks_mut(count);
        chunks.all(|chunk| slub.alloc_bulk(cache, Gfp::KERNEL, chunk))
    });
    if !done {
        return Err(Failure::NoMemory("for live objects"));
    }
    touch(objects);
    let (free, ()) = nanoseconds(|| {
        for chunk in objects.chunks_mut(count) {
            // SAFETY: the objects are of this cache and are freed once.
            unsafe { slub.free_bulk_unchecked(cache, chunk) };
        }
    });
    Ok(Pass {
        alloc: alloc / n,
        free: free / n,
    })
}

/// Runs in a child process: allocates `count` objects in fresh memory and writes over each. Returns
/// the total time in nanoseconds.
pub fn cold(face: &Face, count: usize) -> f64 {
    face.enter();
    let mut objects = vec![std::ptr::null_mut(); count];
    objects.fill(std::ptr::dangling_mut());
    let (time, ()) = nanoseconds(|| {
        for object in &mut objects {
            *object = face.alloc(COLD);
            if !object.is_null() {
                // SAFETY: the object has `COLD` bytes.
                unsafe { object.write_bytes(1, COLD) };
            }
        }
    });
    time
}

/// Like [`cold`], without an allocator. The objects lie in order in one block of memory, with huge
/// pages if the system has them.
///
/// # Errors
///
/// If there is no memory for the block.
pub fn cold_floor(count: usize) -> Result<f64, Failure> {
    const HUGE: usize = 2 << 20;
    let wrong = |_| Failure::Wrong(format!("{count} objects are no piece of memory"));
    let layout = Layout::from_size_align(count.max(1) * COLD, HUGE).map_err(wrong)?;
    // SAFETY: the layout is not empty, and the block is used until the process ends.
    let memory = unsafe { alloc(layout) };
    if memory.is_null() {
        return Err(Failure::System("no memory for the floor".into()));
    }
    // SAFETY: the block is ours; the advice changes no data.
    unsafe { libc::madvise(memory.cast(), layout.size(), libc::MADV_HUGEPAGE) };
    let mut objects = vec![std::ptr::null_mut(); count];
    objects.fill(std::ptr::dangling_mut());
    let (time, ()) = nanoseconds(|| {
        for (i, object) in objects.iter_mut().enumerate() {
            *object = memory.wrapping_add(i * COLD);
            // SAFETY: the object lies inside the block.
            unsafe { object.write_bytes(1, COLD) };
        }
    });
    black_box(&objects);
    Ok(time)
}
