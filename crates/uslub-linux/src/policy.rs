//! Policy: every threshold of the platform, its unit, its reason and the figure that earned it.
//!
//! Only constants are here. Numbers of the kernel's interface, and bits of a word's layout, stay
//! with their users. Figures are those of docs/measurements.md, old to new.

// Address space.

/// Least address space to reserve without a limit, in bytes: 64 GiB.
///
/// Not measured by itself.
pub(crate) const RESERVE_FLOOR_BYTES: usize = 64 << 30;

/// Address space to reserve without a limit, as a multiple of the machine's memory.
///
/// Not measured by itself.
pub(crate) const RESERVE_MEMORY_FACTOR: usize = 4;

// Huge pages.

/// Threshold of a slow first touch of a huge page, in nanoseconds: about what 512 base pages take.
///
/// Figure: perl, on a host that takes free memory back: 2.35 to 2.16 s.
pub(crate) const HUGE_PAGE_SLOW_NS: u64 = 1_000_000;

/// Huge pages not requested after a slow one. One, because even among huge pages that are present,
/// one in a hundred or two is slow by itself.
///
/// Figure: fresh memory: five slow rounds of forty with pauses of 4, 8, 16 and 32, none with 1, 8
/// and 32 (perhaps by chance).
pub(crate) const HUGE_PAGE_PAUSE_FIRST: u32 = 1;

/// Factor from one pause to the next, if the first touch after the pause is slow again.
///
/// Figure: As above.
pub(crate) const HUGE_PAGE_PAUSE_FACTOR: u32 = 8;

/// Longest pause, in huge pages: the excess cost of the slow one is then a tenth of the cost of the
/// same memory by base pages.
///
/// Figure: As for [`HUGE_PAGE_SLOW_NS`].
pub(crate) const HUGE_PAGE_PAUSE_MAX: u32 = 32;

// Memory that goes back.

/// Most ranges that one turn tries to unmap, of those that the kernel refused to unmap before.
///
/// Not measured by itself.
pub(crate) const REFUSED_TRIES: usize = 64;

/// Refusals that end such a turn.
///
/// Not measured by itself.
pub(crate) const REFUSED_AGAIN_MAX: usize = 8;

/// Most mappings into which replaced ranges may split the memory in use: a quarter of the kernel's
/// default limit of 65,530, because the memory between two pieces is a mapping too.
///
/// Not measured by itself.
pub(crate) const REPLACE_PIECES_MAX: usize = 16 << 10;

/// Upper bound of the least length of a replaced range, in bytes: a block, because every block is
/// empty at some time and can then be replaced.
///
/// Not measured by itself.
pub(crate) const REPLACE_LEAST_MAX_BYTES: usize = 2 << 20;

/// Attempts to fill the hole of a failed replacement before the process ends, 1 ms apart.
///
/// Not measured by itself.
pub(crate) const REPLACE_TRIES: u32 = 1000;

// Between CPUs and tasks.

/// Most lines of an array that are prefetched at once: 2 KiB, a small part of the L1 cache.
///
/// Figure: 4096 of 64 bytes between two CPUs: 1.28–1.41 to 1.09–1.28 × the best peer, by the
/// prefetch. The limit is not measured by itself.
pub(crate) const PREFETCH_LINES_MAX: usize = 32;

/// Most children that share our memory whose end is watched at a time.
///
/// Not measured by itself.
pub(crate) const SHARING_WATCHED_MAX: usize = 64;

/// Loads before a thread that waits for the opener of the slots sleeps: the opener may need this
/// CPU.
///
/// Not measured by itself.
pub(crate) const SHARING_SPINS: u32 = 100;

/// Lists of CPUs that share a cache, at most, that are read at the start; the CPUs of further
/// caches count as neighbours. A list takes the kernel 5 to 10 µs.
///
/// Not measured by itself: enough for 512 CPUs with 8 to a cache.
pub(crate) const CACHE_LISTS_MAX: usize = 64;
