//! The figures of this process as OpenMetrics text.

use std::fmt;

use uslub_core::platform::PAGE_SIZE;
use uslub_report::openmetrics::{CacheFigures, Figures, Writer, merge};

use crate::instance::{ALLOCATOR, is_ready};
use crate::stats::{slabinfo, totals};

/// Writes the figures of this process as OpenMetrics text, for programs with an endpoint of their
/// own.
///
/// `uslub metrics PID` prints the same series from outside, and adds where the resident memory is.
///
/// The text is families without the end mark, so a program can write its own families before or
/// behind it. The last line of the whole text must be `# EOF`. Without an endpoint, and in tests:
///
/// ```
/// let cache = uslub::Cache::new("request")?;
/// let request = cache.alloc([0u8; 300])?;
/// let mut text = String::new();
/// uslub::metrics(&mut text)?;
/// text.push_str("# EOF\n");
/// let is_live = |line: &&str| line.contains(r#"cache="request",state="live"} 1"#);
/// assert!(text.lines().any(|line| is_live(&line)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A scrape walks the lists of each cache and takes their locks: some microseconds a cache. At most
/// 200 caches have series of their own, the largest ones.
///
/// # Errors
///
/// If `out` refuses the text.
pub fn metrics(out: &mut impl fmt::Write) -> fmt::Result {
    let table = slabinfo();
    let figures = table.rows().iter().map(|row| CacheFigures {
        name: row.name(),
        live: row.info.live_objs() as u64,
        cached: row.info.cached_objs as u64,
        free: row.info.num_objs.saturating_sub(row.info.active_objs) as u64,
        slab_bytes: (row.info.num_slabs * row.pages_per_slab * PAGE_SIZE) as u64,
        allocs: row.info.allocs,
        frees: row.info.frees,
    });
    let mut caches: Vec<_> = figures.collect();
    let totals = totals();
    let pid = std::process::id().to_string();
    Writer::new(out).all(&[Figures {
        pid: &pid,
        face: "rust",
        version: env!("CARGO_PKG_VERSION"),
        caches: merge(&mut caches),
        large_bytes: totals.large as u64,
        huge_bytes: Some(totals.huge as u64),
    }])
}

/// How full the slab of an object is: slots in use, including objects in sheaves, and all slots.
/// `None` for an address in no slab. An object of more than 8 KiB has its pages alone: 1 of 1.
///
/// A program that moves its objects (active defragmentation) learns which ones to move. Takes no
/// lock for an object of at most 8 KiB.
///
/// ```
/// let cache = uslub::Cache::new("node")?;
/// let node = cache.alloc([0u8; 100])?;
/// let slab = uslub::slab_use((&raw const *node).cast()).expect("a slab");
/// assert!(slab.used >= 1 && slab.used <= slab.slots);
/// assert_eq!(uslub::slab_use((&raw const slab).cast()), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn slab_use(object: *const u8) -> Option<uslub_core::cache::info::SlabUse> {
    is_ready().then(|| ALLOCATOR.slab_use(object)).flatten()
}
