//! Policy: every threshold of the core, with its unit, its reason and the figure that earned it.
//!
//! Only constants are here. What a user may set is in [`tunables`](crate::tunables); sizes that
//! follow from a layout (words of a region, bytes of a descriptor) stay with their types. Figures
//! are medians of the machines in docs/measurements.md, old to new. A constant without a figure was
//! not measured by itself. Used by all layers.

// Locks.

/// Times that a thread spins for a lock before it sleeps.
pub const LOCK_SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 100 };

/// Milliseconds that a thread waits for a lock held by a fork before it steals the lock. A fork of
/// a process with little memory takes less than a millisecond.
pub const LOCK_STEAL_MS: u32 = 20;

/// Milliseconds of one sleep of this wait.
pub const LOCK_STEAL_STEP_MS: u32 = 2;

/// Milliseconds that a fork waits for locks, in all.
pub const FORK_WAIT_MS: u32 = 100;

// Memory: the range, blocks and runs.

/// Smallest range to reserve in one piece, in bytes.
pub const RANGE_FLOOR_BYTES: usize = 16 << 20;

/// The side ranges have room for this many times the blocks reserved at first.
pub const RANGE_PLANNED_FACTOR: usize = 8;

/// Holes to try.
pub const RANGE_HOLE_TRIES: usize = 8;

/// Blocks by which an ample range is extended at once, at most: 2 GiB.
pub const RANGE_STEP_BLOCKS: usize = 1024;

/// Blocks committed ahead of use, at most; one plus an eighth of the blocks in use if this is less.
/// The side ranges of this many blocks are committed at once, after the first.
/// Figure: 256 MiB of fresh memory: 37.3 to 35.5 ms.
pub const COMMIT_AHEAD_BLOCKS: usize = 32;

/// Blocks whose side ranges are committed first.
/// Figure: what a program that does nothing may access, and a lock counts: 7,672 to 7,292 KiB.
pub const SIDES_FIRST_BLOCKS: usize = 8;

/// A lean arena keeps free blocks: 1, plus 1/16 of the blocks in use.
pub const LEAN_FREE_SHARE: usize = 16;

/// Absent blocks to try before the arena grows.
pub const ABSENT_TRIES: usize = 8;

/// Extra growths of the arena for one request: other threads may take the added blocks.
pub const SEVERAL_BLOCKS_TRIES: usize = 16;

/// Candidate blocks that may fail a request before it tries only blocks that are sure to hold it.
pub const BLOCK_SCAN_MAX: usize = 8;

/// Runs in a batch, at most.
pub const PAGE_RUNS_MAX: usize = 16;

// Memory: the pages that CPUs keep.

/// Lists of pages of CPUs. More CPUs share them.
pub const PCP_LISTS: usize = 64;

/// Runs in a CPU's list, at most; of 16 KiB as many fill `pcp_kb`.
pub const PCP_LIST_RUNS: usize = 64;

/// Longest run that a CPU keeps, in pages (128 KiB).
/// Figure: two threads, 12 KiB allocated and freed: 1,190 to 76 ns; one thread: 210 to 60 ns.
pub const PCP_RUN_MAX_PAGES: usize = 32;

/// Runs that a CPU takes from the zone at once, at most.
/// Figure: two threads, 256 objects of 12 KiB each, a pair: 631 to 217 ns.
pub const PCP_BATCH_MAX: usize = 16;

/// Longest run that is taken with others, in pages (32 KiB): longer ones have too many lengths.
///
/// Figure: with all, one thread, 16 objects of 64 to 128 KiB each, a pair: 335 to 469 ns.
pub const PCP_BATCH_RUN_MAX_PAGES: usize = 8;

/// Frees of large objects on a CPU, of which one looks for memory to give back.
pub const PCP_CHECK_FREES: usize = 8;

/// Bytes of a chunk from the system.
pub const METADATA_CHUNK_BYTES: usize = 64 << 10;

/// As [`METADATA_CHUNK_BYTES`], where a limit counts what is mapped, used or not.
///
/// Figure: a program that may lock 8 MiB has 96 KiB more.
pub const METADATA_CHUNK_LIMITED_BYTES: usize = 16 << 10;

/// Shards of the free windows; each has a cache line.
pub const WINDOW_SHARDS: usize = 16;

/// Neighbouring CPUs that share a shard of the free windows.
///
/// Figure: `uslub sim --workload maple --cpus 192 --nodes 4 --warm-ms 400`: 50 to 73 % of the CPU
/// time was waiting for one list; 0.7 % at most with shards.
pub const WINDOW_SHARD_CPUS: usize = 16;

/// Words (8 bytes each) of scratch memory.
///
/// Figure: Bulk frees of 32 objects: 13 to 20 ns before, 1.8 to 2.6 ns with whole slabs.
pub const SCRATCH_WORDS: usize = 640;

// Memory: what stays free.

/// Free dirty pages that may stay for `decay_ms` regardless of use.
///
/// Figure: With the next five: lua's peak memory 1.16 to 1.05 times glibc's.
pub const DECAY_FLOOR_PAGES: usize = 64;

/// Free dirty pages that may stay for `decay_ms`: 1/32 of the pages in use, in addition.
pub const DECAY_SHARE: usize = 32;

/// Free dirty pages that an eviction leaves.
pub const DECAY_EVICTION_LEAVES_PAGES: usize = 16;

/// Pages by which the resident pages must exceed their peak before free pages are evicted; also the
/// smallest number to evict.
pub const DECAY_GROWN_PAGES: usize = 64;

/// Resident pages below which nothing is evicted at a peak: 4 MiB.
///
/// Figure: 12,000 rounds of nine objects of 1 byte to 1 MiB, every other one doubled: 4.5 s at 0,
/// 3.0 s with 2 MiB, 1.2 s with 3 MiB, 0.1 s with 4 MiB.
pub const PEAK_FLOOR_PAGES: usize = 1024;

/// Milliseconds that pages must have been free before an eviction takes them.
pub const DECAY_IDLE_MS: u64 = 2;

/// Blocks that yield no page before an eviction stops.
pub const DECAY_UNFRUITFUL_BLOCKS: usize = 8;

/// Dirty pages above the floor and share stay for `decay_ms` divided by this.
///
/// Figure: jq's peak memory: 5 % less.
pub const DECAY_SURPLUS_PART: u64 = 10;

// Memory: mappings of large objects.

/// Freed objects that are remembered, cached or not.
///
/// Figure: With the next eight, pairs of 1025 KiB, 8 live: 379 to 6 µs; 16 MiB: 8.8 to 0.3 ms.
pub const MAPPING_GHOSTS: usize = 64;

/// Largest total of cached mappings, in bytes, or as many as are live if these are more.
///
/// Figure: 20 buffers of 5 to 25 MiB, replaced at random: with 64 MiB however many are live 1.8 s
/// and 990,000 faults, 0.8 s and 370,000; peak 415 and 420 MiB.
pub const MAPPING_CACHE_BYTES: usize = 64 << 20;

/// Cached mappings may exceed the peak of resident memory by 1/8 of the live mappings.
///
/// Figure: 100 buffers of 0.1 to 5 MiB: 1/16 0.53 s, 1/8 0.38 s, peak + 6 %. Python's is the same.
pub const MAPPING_CACHE_SHARE: usize = 8;

/// Milliseconds that a cached mapping must have been free before growth of other memory evicts it.
/// A loop that takes a buffer a step asks for it sooner.
///
/// Figure: 1 to 500 ms: CPU time, faults and peaks of seven rows of `.ci/large` are the same.
pub const MAPPING_IDLE_MS: u64 = 20;

/// Bytes of a cached mapping that an eviction takes at least. A multiple of every system page.
///
/// Figure: With whole mappings 3.2 million faults for 20 buffers of 5 to 25 MiB, 1.4 million with
/// parts.
pub const MAPPING_PART_BYTES: usize = 256 << 10;

/// A cached mapping is stretched to at most this many times its length.
///
/// Figure: 20 buffers of 5 to 25 MiB, replaced at random: 1.82 s without, 0.82 s; 16: 0.88 s.
pub const MAPPING_STRETCH: usize = 4;

/// Cached mappings that a request tries to stretch.
///
/// Figure: the same buffers: with one 1.00 s and 451,000 faults, 0.82 s and 371,000; 16: the same.
pub const MAPPING_STRETCH_TRIES: usize = 4;

/// Milliseconds for which unmapping counts as wrong if a mapping is made again.
///
/// Figure: 50 to 4,000 ms: no difference, as for [`MAPPING_IDLE_MS`].
pub const MAPPING_DEMAND_MS: u64 = 500;

/// Live mappings from which on objects come from the arena if it can hold them. Few compared with
/// the 65,530 mappings that Linux allows a process by default.
///
/// Figure: glibc has 32,791 mappings at most in the same program.
pub const MAPPINGS_MAX: usize = 1024;

// Slabs.

/// Pauses after a failed compare-and-swap: together about as long as a cache line takes from CPU to
/// CPU. None in models, which try a failed compare-and-swap again in every order.
///
/// Figure: Two CPUs on one slab: 14 to 17 ns before, 7.2 ns with pauses.
pub const CAS_PAUSES: usize = if cfg!(any(loom, shuttle)) { 0 } else { 3 };

/// Distance in objects at which a free prefetches cache lines.
///
/// Figure: Scattered frees: 53 to 83 ns before, 48 to 68 ns with prefetches.
pub const FREE_PREFETCH_DISTANCE: usize = 4;

/// Lists that share one hold of the list lock, at most.
///
/// Figure: with 6 lists a free keeps to 1 KiB of stack, with 8 it does not.
pub const PENDING_LISTS: usize = 6;

/// Slabs freed during one hold of the list lock, at most.
pub const SURPLUS_BATCH_SLABS: usize = 32;

/// Slabs whose pages are taken at once, at most.
///
/// Figure: With the next: bulks from fresh slabs: 2.22 to 1.74 ns an object.
pub const PAGE_BATCH_SLABS: usize = 64;

/// Of how many slabs one may be taken ahead.
pub const PAGE_BATCH_SHARE: usize = 64;

/// Ready slabs at most: empty slabs that a thread takes without the list lock.
///
/// Figure: Thread 1: 35 % fewer list locks, with the reserve below.
pub const READY_SLABS: usize = 4;

/// Empty slabs that are always kept.
///
/// Figure: The kernel's `min_partial`.
pub const RESERVE_FLOOR_SLABS: usize = 5;

/// Bytes of empty slabs that one cache keeps on one node, at most; [`RESERVE_FLOOR_SLABS`] slabs
/// may be more.
pub const RESERVE_BYTES: usize = 64 << 20;

/// Shortest window, in milliseconds.
pub const RESERVE_WINDOW_MIN_MS: u32 = 10;

/// Longest window, in milliseconds.
pub const RESERVE_WINDOW_MAX_MS: u32 = 80;

/// Most objects of a sheaf that has not grown and whose cache asks for no capacity.
///
/// Not measured by itself: half of what a window holds.
pub const INITIAL_CAPACITY_MAX: usize = 250;

/// With at most this many objects in a slab, a sheaf need not hold whole slabs: the remainder is
/// small, and the room in the sheaf is worth more.
///
/// Figure: 16 bytes freed singly: 3.5 to 2.6 ns.
pub const SLAB_MULTIPLE_MIN_OBJECTS: usize = 16;

/// Objects of the longest strided run that is not recorded as a run.
///
/// Figure: Random order: 9.9 to 7.0 ns an object.
pub const RUN_MIN_OBJECTS: usize = 8;

/// Addresses from which on the quick test is worth its cost.
pub const RANGE_CHECK_MIN: usize = 4;

// Per-CPU words, sheaves and barns.

/// Regions of CPUs mapped at a time, at most: 44 MiB of address space. A call that may not ask the
/// system uses them.
///
/// Figure: `GFP_NOWAIT` on a new CPU: 98 % of the objects from slabs to none.
pub const REGIONS_AHEAD: usize = 64;

/// Attempts of a slow path before it goes to the slabs directly.
pub const SLOT_TRIES: usize = 4;

/// Attempts of a free before its object waits alone.
pub const RCU_SLOT_TRIES: usize = 4;

/// Largest object whose cache line is [handed off](crate::platform::Platform::handoff_objects), in
/// bytes. An object of four lines gains little from the handoff of one.
///
/// Figure: With the next: 4096 objects of 64 bytes from CPU to CPU: 1.15 to 1.39 times the best
/// peer before, 1.02 to 1.10 with.
pub const HANDOFF_OBJECT_BYTES: usize = 64;

/// Full sheaves that a barn must hold before lines are handed off. For a sheaf that is taken at
/// once, the handoff costs more than it saves.
pub const HANDOFF_SHEAVES: usize = 4;

/// Possible target capacities in objects: the kernel's, and three more.
///
/// Figure: Thread 4: 111 to 33.9 MB at equal speed, with the next five.
pub const CAPACITY_STEPS: [usize; 7] = [4, 12, 28, 60, 124, 250, 500];

/// Below this capacity, in objects, one miss is enough to grow.
///
/// Figure: As above; docs/adaptive.md has the trials.
pub const CAPACITY_QUICK_OBJECTS: usize = 28;

/// Misses within a window that make a larger sheaf grow.
pub const CAPACITY_MISSES: u8 = 2;

/// Barn accesses, including swaps with the spare, that count as one miss.
pub const CAPACITY_ACCESSES: u8 = 63;

/// Milliseconds of a window of misses.
pub const CAPACITY_WINDOW_MS: u32 = 10;

/// Milliseconds without a barn access that lower the target.
pub const CAPACITY_QUIET_MS: u32 = 40;

/// Milliseconds between two checks for cold caches.
///
/// Figure: With the next: gawk's peak memory: 1.15 to 1.12 times glibc's.
pub const COLD_CHECK_MS: u64 = 10;

/// Checks without a use after which a cache is cold.
pub const COLD_CHECKS: u32 = 2;

/// Milliseconds between two checks whether other threads' flushes are finished.
pub const FLUSH_POLL_MS: u32 = 1;

/// A shrink sorts the partial slabs with at most this many free slots.
///
/// Figure: The kernel's `SHRINK_PROMOTE_MAX`.
pub const SHRINK_SORTED_FREE: u32 = 32;

/// Full sheaves in a barn, at most, as in the kernel.
///
/// Figure: The kernel's `MAX_FULL_SHEAVES`.
pub const BARN_FULL: usize = 10;

/// Full sheaves in a new barn of adaptive sheaves, at most; kmalloc's classes have more. Unneeded
/// objects are cold when they are flushed.
///
/// Figure: With the next three: hand-over of objects 27.8 to 24.3 ns.
pub const BARN_NARROW: usize = 4;

/// Full sheaves in a grown barn of adaptive sheaves, at most, for sheaves of
/// [`INITIAL_CAPACITY_MAX`] objects. They are cheap there, and trimmed.
pub const BARN_WIDE: usize = 20;

/// Bytes of objects in such a barn up to which it may hold twice as many sheaves.
pub const BARN_WIDE_BYTES: usize = 512 << 10;

/// Bytes of full sheaves in a barn of a kmalloc class, at most.
pub const CLASS_BARN_BYTES: usize = 64 << 10;

/// Bytes of objects in a grown sheaf, at most.
pub const SHEAF_GROWN_BYTES: usize = 256 << 10;

/// Number of different fill skews.
///
/// Figure: Two classes in turn: 7.2 to 7.4 ns before, 6.0 to 7.2 ns with.
pub const FILL_SKEWS: usize = 13;

// Caches.

/// A bulk that lacks at most this part of a sheaf (a quarter) refills a sheaf.
pub const BULK_REFILL_PART: usize = 4;

/// Least number of objects for which the range check runs during the copy.
///
/// Figure: Checked bulks of 250: 0.50 to 0.23 ns an object.
pub const BULK_COPY_CHECK_MIN: usize = 8;

/// Objects of a slab from which on freeing it whole is cheaper than sending its objects through
/// sheaves, even if another CPU is at the node too.
///
/// Figure: Bulks of large slabs: 13.0 to 11.0 ns an object.
pub const BULK_WHOLE_SLAB_MIN: usize = 64;

/// Records of destroyed caches that wait before their reuse, so that a use after the destruction is
/// not taken for a use of another cache.
pub const QUARANTINE_CACHES: usize = 16;

/// Attempts to reclaim memory for one allocation.
///
/// Figure: The kernel's `MAX_RECLAIM_RETRIES`.
pub const RECLAIM_TRIES: usize = 16;

/// Objects that a shrinker is asked to free in one call.
///
/// Figure: The kernel's `SHRINK_BATCH`.
pub const SHRINKER_BATCH: usize = 128;

/// Milliseconds between two attempts of an allocation that must not fail.
pub const RECLAIM_RETRY_MS: u32 = 10;

/// Milliseconds that an allocation waits for a free before it asks the source again.
///
/// Figure: The kernel's 5 seconds.
pub const MEMPOOL_WAIT_MS: u32 = 5000;

// Size classes and large objects.

/// Least number of objects in a slab of a class.
pub const CLASS_MIN_OBJECTS: usize = 4;

/// Bytes of empty slabs that a class keeps on a node, at most.
pub const CLASS_KEPT_BYTES: usize = 16 << 10;

/// Bytes of objects in a sheaf of a class.
pub const CLASS_SHEAF_BYTES: usize = 8 << 10;

/// Bytes of objects in a sheaf of a class that has grown, at most.
pub const CLASS_GROWN_BYTES: usize = 64 << 10;

/// Largest object whose sheaves may grow, in bytes.
pub const CLASS_GROWING_MAX_BYTES: usize = 512;

/// Largest object in the arena, in bytes. A larger one earns its mapping even when there are many.
pub const ARENA_OBJECT_MAX_BYTES: usize = 1 << 30;

/// Bytes. A refusal of at most this much means that memory is short: the arena stays lean.
pub const LARGE_MODEST_BYTES: usize = 64 << 20;

/// Searches of barns and slabs for an object with a free object's mark, that found nothing, after
/// which only the CPU's own sheaves are searched. A search takes about a microsecond. A program
/// that frees objects of bulks one by one and writes nothing into them would pay it for each.
pub const FRUITLESS_SEARCHES: usize = 1000;

/// The word that marks a free object: not the first byte of a letter or of a usual number, and a
/// constant that fits an instruction of x86-64. It need not be secret, because a marked object is
/// searched for.
pub const MARK: u64 = 0xffff_ffff_d3a9_5e96;

/// Places of the hardened mode's quarantine: a freed small object waits for three to five quarters
/// as many frees. 256 objects of 8 KiB are 2 MiB, about what a CPU's cache holds.
pub const QUARANTINE_SMALL: usize = 256;

/// The same for large objects, of which each keeps two mappings of its own.
pub const QUARANTINE_LARGE: usize = 32;

/// Largest object with guards that goes into quarantine, in bytes; 32 of them are 32 MiB.
pub const QUARANTINE_LARGE_BYTES: usize = 1 << 20;

/// Part of its size by which a hardened large object that `realloc` made larger may grow in place.
/// Figure: 1,166,674 to 7,703 changes of pages' protection in python3.
pub const HARDENED_ROOM_PART: usize = 8;

// Guarded objects.

/// Slots of guarded objects, as in the kernel: 2 MiB of address space, 1 MiB of memory at most.
pub const GUARD_SLOTS: usize = 255;

/// Microseconds whose guarded objects may come late: the coarse clock's step is up to 10 ms.
pub const GUARD_BURST_US: u64 = 10_000;

/// Part of the slots in use from which on a caller with an object in use gets no other one: the
/// kernel's 75 %. Otherwise long-lived objects of one caller fill the pool.
pub const GUARD_COVERED_PART: (usize, usize) = (3, 4);

/// Nearest frames that make two callers the same, as in the kernel.
pub const GUARD_COVERED_FRAMES: usize = 8;
