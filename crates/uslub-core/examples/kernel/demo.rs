//! What a kernel does with the core: objects until the memory is used up, and again.

use core::fmt::{Result, Write};
use core::ptr::null_mut;

use uslub_core::args::CacheArgs;
use uslub_core::cache::KmemCache;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::platform::PAGE_SIZE;
use uslub_core::tunables::Tunables;
use uslub_core::{Allocator, Gfp};

use crate::platform::{Kernel, MEMORY_BYTES};

/// Bytes of the arena.
const ARENA: usize = 16 << 20;
/// Objects of a bulk call.
const BATCH: usize = 64;

/// What the objects are: an inode, linked to the one that was allocated before it.
#[repr(C)]
struct Inode {
    older: *mut Inode,
    number: usize,
    blocks: [u64; 30],
}

/// Constructed at compile time, set up at boot: an allocator is a value, wherever it is.
static SLUB: Allocator<Kernel> = Allocator::new(Kernel::new());

/// Runs the example once in the life of the program and says on `out` what it sees.
pub fn run(out: &mut impl Write) -> Result {
    // SAFETY: nobody else uses the allocator yet.
    assert!(unsafe { SLUB.init(ARENA, Tunables::DEFAULT) });
    SLUB.keep_indices(NR_CLASSES + 1);
    let args = CacheArgs::new("inode", size_of::<Inode>());
    let inodes = SLUB.create(&args).expect("there is memory for a cache");
    writeln!(
        out,
        "memory   {} MiB, of which {} MiB for objects",
        MEMORY_BYTES >> 20,
        ARENA >> 20
    )?;
    for round in 1..=2 {
        writeln!(out, "round    {round}")?;
        let newest = exhaust(inodes);
        let count = newest_number(newest);
        writeln!(out, "  filled {count} inodes, then null")?;
        table(out)?;
        free_all(inodes, newest);
        validate();
        SLUB.trim();
        validate();
        writeln!(out, "  freed  all in batches of {BATCH}")?;
        table(out)?;
    }
    writeln!(out, "handler  {}", interrupt(inodes))?;
    writeln!(out, "other    {} pages from kmalloc", other_sizes())?;
    SLUB.trim();
    validate();
    writeln!(
        out,
        "in use   {} KiB, {} KiB of it for records; {} warnings",
        Kernel::used_bytes() >> 10,
        SLUB.metadata_bytes() >> 10,
        SLUB.platform.warnings()
    )
}

/// Allocates until there is no memory, and returns the newest object of the list.
fn exhaust(inodes: &KmemCache<Kernel>) -> *mut Inode {
    let mut newest = null_mut();
    let mut number = 0;
    loop {
        let inode = SLUB.alloc(inodes, Gfp::KERNEL).cast::<Inode>();
        if inode.is_null() {
            return newest;
        }
        number += 1;
        // SAFETY: just allocated, and so large.
        unsafe {
            inode.write(Inode {
                older: newest,
                number,
                blocks: [number as u64; 30],
            });
        }
        newest = inode;
    }
}

fn newest_number(newest: *mut Inode) -> usize {
    // SAFETY: null, or the first of our list.
    unsafe { newest.as_ref() }.map_or(0, |inode| inode.number)
}

/// Frees a list, and finds each object as it was left.
fn free_all(inodes: &KmemCache<Kernel>, mut newest: *mut Inode) {
    let mut number = newest_number(newest);
    while !newest.is_null() {
        let mut batch = [null_mut(); BATCH];
        let mut n = 0;
        while n < BATCH
            // SAFETY: null, or an object of our list that is not in the batch yet.
            && let Some(inode) = unsafe { newest.as_ref() }
        {
            assert!(inode.number == number && inode.blocks == [number as u64; 30]);
            batch[n] = newest.cast();
            (n, number, newest) = (n + 1, number - 1, inode.older);
        }
        // SAFETY: all live, each freed once.
        unsafe { SLUB.free_bulk(inodes, &mut batch[..n]) };
    }
    assert_eq!(number, 0);
}

fn validate() {
    if let Err(invalid) = SLUB.validate() {
        panic!("cache {}: {}", invalid.cache, invalid.what);
    }
}

fn table(out: &mut impl Write) -> Result {
    writeln!(
        out,
        "  {:<8} {:>6} {:>6} {:>7} {:>6}",
        "# name", "active", "total", "objsize", "slabs"
    )?;
    for cache in SLUB.caches() {
        let info = SLUB.info(cache);
        let (active, total, slabs) = (info.live_objs(), info.num_objs, info.num_slabs);
        let size = cache.object_size();
        writeln!(
            out,
            "  {:<8} {active:>6} {total:>6} {size:>7} {slabs:>6}",
            cache.name()
        )?;
    }
    Ok(())
}

/// An interrupt at the worst moment: the thread that it stopped holds every lock.
fn interrupt(inodes: &KmemCache<Kernel>) -> &'static str {
    let warm = SLUB.alloc(inodes, Gfp::KERNEL);
    // SAFETY: just allocated, freed once.
    unsafe { SLUB.free(inodes, warm) };
    SLUB.for_each_lock(|lock| lock.acquire());
    let inode = SLUB.alloc(inodes, Gfp::NOSPIN);
    // SAFETY: taken above.
    SLUB.for_each_lock(|lock| unsafe { lock.release() });
    if inode.is_null() {
        return "got null";
    }
    // SAFETY: just allocated, freed once.
    unsafe { SLUB.free(inodes, inode) };
    "got an inode while every lock was held"
}

/// Allocates one object of each kind of size; returns their pages.
fn other_sizes() -> usize {
    let sizes = [24, 3000, 5 * PAGE_SIZE, 100 * PAGE_SIZE];
    let objects = sizes.map(|bytes| SLUB.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO));
    for (&object, bytes) in objects.iter().zip(sizes) {
        assert!(!object.is_null() && SLUB.ksize(object) >= bytes);
        // SAFETY: live and so long, and freed once.
        unsafe {
            assert!((0..bytes).all(|i| *object.add(i) == 0));
            object.write_bytes(0xff, bytes);
            SLUB.kfree(object);
        }
    }
    sizes.iter().map(|bytes| bytes.div_ceil(PAGE_SIZE)).sum()
}
