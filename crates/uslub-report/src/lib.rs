//! What a process on uslub says about itself when it ends.
//!
//! The allocator inside the process writes one file of JSON lines: the first
//! line is a [`Process`], each further line a [`CacheRow`]. The command reads
//! it back. Nothing here allocates, so the writing side can run inside an
//! allocator.

#![no_std]

use serde::{Deserialize, Serialize};

/// Version of the format; a reader refuses another one.
pub const VERSION: u32 = 1;

/// Name of the environment variable that holds the folder (an absolute path)
/// into which each process writes `<pid>.jsonl` when it ends.
pub const REPORT_DIR_VARIABLE: &str = "USLUB_REPORT";

/// Name of the environment variable that holds tunables: `key=value`, separated by commas.
pub const OPTIONS_VARIABLE: &str = "USLUB_OPTIONS";

/// Name of the environment variable that, set to `0`, keeps children off uslub.
pub const FOLLOW_VARIABLE: &str = "USLUB_FOLLOW";

/// Name of the environment variable that, set to `1`, lets the helper thread
/// start once much memory lies empty.
pub const HELPER_VARIABLE: &str = "USLUB_HELPER";

/// The process as a whole. All sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process<'a> {
    /// Format version, [`VERSION`].
    pub version: u32,
    /// Process id.
    pub pid: u32,
    /// How per-CPU sheaves were reached: `rseq mm_cid`, `rseq cpu_id` or `try-lock`.
    pub mode: &'a str,
    /// Resident memory of the whole process now.
    pub rss_bytes: u64,
    /// Largest resident memory of the whole process so far.
    pub peak_rss_bytes: u64,
    /// Bytes in objects that the program holds (slots, page runs and mappings).
    pub live_bytes: u64,
    /// Bytes in objects that wait in sheaves.
    pub cached_bytes: u64,
    /// Bytes of slabs in which no object is live or cached, and of free objects in slabs.
    pub free_bytes: u64,
    /// Bytes of pages in slabs.
    pub slab_bytes: u64,
    /// Bytes of large objects (whole pages).
    pub large_bytes: u64,
    /// Bytes of huge objects (mappings of their own).
    pub huge_bytes: u64,
    /// Bytes of free pages that are kept resident for a while.
    pub dirty_bytes: u64,
    /// Bytes of the allocator's own tables that are in use.
    pub metadata_bytes: u64,
    /// Objects allocated since the start.
    pub allocs: u64,
    /// Objects freed since the start.
    pub frees: u64,
}

/// One object cache: a line of the table. Counts are in objects or slabs as named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheRow<'a> {
    /// Name of the cache, for example `kmalloc-64`.
    pub name: &'a str,
    /// Objects in use, those in sheaves included (the kernel counts so).
    pub active_objs: u64,
    /// Objects in all slabs.
    pub num_objs: u64,
    /// Bytes a slot.
    pub objsize: u32,
    /// Objects a slab.
    pub objperslab: u32,
    /// Pages a slab.
    pub pagesperslab: u32,
    /// Slabs with at least one object in use.
    pub active_slabs: u64,
    /// Slabs.
    pub num_slabs: u64,
    /// Objects that wait in sheaves.
    pub cached_objs: u64,
    /// Objects taken from sheaves.
    pub alloc_fastpath: u64,
    /// Objects taken from slabs directly.
    pub alloc_slowpath: u64,
    /// Objects put into sheaves.
    pub free_fastpath: u64,
    /// Objects freed to slabs directly.
    pub free_slowpath: u64,
    /// Slabs taken from the page layer.
    pub alloc_slab: u64,
    /// Slabs returned to the page layer.
    pub free_slab: u64,
    /// Objects moved into sheaves from slabs.
    pub sheaf_refill: u64,
    /// Objects moved out of sheaves to slabs.
    pub sheaf_flush: u64,
    /// Full sheaves taken from a barn.
    pub barn_get: u64,
    /// Full sheaves wanted while the barn had none.
    pub barn_get_fail: u64,
    /// Full sheaves stored in a barn.
    pub barn_put: u64,
    /// Full sheaves refused by a barn.
    pub barn_put_fail: u64,
}
