//! Figures and counters of caches, and the table of all caches. Any thread may ask.

use std::fmt;

use uslub_core::cache::KmemCache;
use uslub_core::cache::info::{CacheInfo, Totals};
use uslub_core::cache::text::Name;
use uslub_core::stats::{STAT_ITEMS, StatItem};
use uslub_linux::Linux;

use crate::instance::{ALLOCATOR, is_ready};
use crate::rcu;

/// Figures and counters of a cache; exact if nobody uses the cache meanwhile.
///
/// ```
/// let cache = uslub::Cache::new("counted")?;
/// let object = cache.alloc(1u64)?;
/// let stats = cache.stats();
/// assert_eq!((stats.info.live_objs(), stats.object_size, stats.slot_size), (1, 8, 8));
/// assert_eq!(stats.counter("alloc_slab"), Some(1));
/// for (name, value) in stats.counters() {
///     println!("{name} {value}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Bytes of an object.
    pub object_size: usize,
    /// Bytes from one object to the next.
    pub slot_size: usize,
    /// Objects in a slab.
    pub objects_per_slab: usize,
    /// Pages of 4096 bytes in a slab.
    pub pages_per_slab: usize,
    /// Objects that a sheaf holds at first.
    pub sheaf_capacity: usize,
    /// Most objects that a sheaf may grow to where a CPU keeps missing.
    pub sheaf_capacity_max: usize,
    /// Most bytes of slabs that the cache may have, in whole slabs; `None` for no limit.
    pub limit: Option<usize>,
    /// Further names of the cache, beyond the first, from merges.
    pub aliases: usize,
    /// Numbers of objects and slabs.
    pub info: CacheInfo,
    counters: [u64; STAT_ITEMS.len()],
}

impl CacheStats {
    pub(crate) fn of(cache: &KmemCache<Linux>) -> Self {
        let slab_bytes = cache.geometry.bytes();
        Self {
            object_size: cache.object_size(),
            slot_size: cache.size as usize,
            objects_per_slab: cache.geometry.objects as usize,
            pages_per_slab: cache.geometry.pages(),
            sheaf_capacity: cache.capacity,
            sheaf_capacity_max: cache.capacity_max.max(cache.capacity),
            limit: (cache.max_slabs < usize::MAX).then(|| cache.max_slabs * slab_bytes),
            aliases: cache.aliases(),
            info: ALLOCATOR.info(cache),
            counters: std::array::from_fn(|i| ALLOCATOR.stat(cache, STAT_ITEMS[i].0)),
        }
    }

    /// Bytes of all slabs.
    ///
    /// ```
    /// let tracks = uslub::Cache::new("track")?;
    /// let track = tracks.alloc([0u8; 700])?;
    /// let stats = tracks.stats();
    /// let slabs = stats.info.num_slabs;
    /// assert_eq!(stats.slab_bytes(), slabs * stats.pages_per_slab * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slab_bytes(&self) -> usize {
        self.info.num_slabs * self.pages_per_slab * PAGE
    }

    /// All counters, with their names in `/sys/kernel/slab/<cache>/`.
    ///
    /// ```
    /// let stats = uslub::Cache::<u64>::new("quiet")?.stats();
    /// assert!(stats.counters().any(|(name, _)| name == "alloc_fastpath"));
    /// assert!(stats.counters().all(|(name, n)| !name.starts_with("free_") || n == 0));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        STAT_ITEMS
            .iter()
            .zip(&self.counters)
            .map(|(&(_, name), &n)| (name, n))
    }

    /// The counter with a name.
    ///
    /// ```
    /// let stats = uslub::Cache::<u64>::new("quiet")?.stats();
    /// assert_eq!((stats.counter("free_slab"), stats.counter("no_such")), (Some(0), None));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters()
            .find(|&(known, _)| known == name)
            .map(|(_, n)| n)
    }

    /// The counter of an item.
    ///
    /// ```
    /// use uslub::{Cache, StatItem};
    /// let hosts = Cache::new("host")?;
    /// let host = hosts.alloc([127u8, 0, 0, 1])?;
    /// assert_eq!(hosts.stats().item(StatItem::AllocSlab), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn item(&self, item: StatItem) -> u64 {
        self.counters[item as usize]
    }
}

const PAGE: usize = uslub_core::platform::PAGE_SIZE;

/// A cache's line in the table of all caches.
///
/// ```
/// let blocks = uslub::Cache::new("block")?;
/// let block = blocks.alloc([0u8; 100])?;
/// let table = uslub::slabinfo();
/// let row: &uslub::SlabRow = table.rows().iter().find(|row| row.name() == "block").unwrap();
/// assert_eq!((row.slot_size, row.info.live_objs()), (104, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SlabRow {
    name: Name<32>,
    /// Numbers of objects and slabs.
    pub info: CacheInfo,
    /// Bytes from one object to the next.
    pub slot_size: usize,
    /// Objects in a slab.
    pub objects_per_slab: usize,
    /// Pages of 4096 bytes in a slab.
    pub pages_per_slab: usize,
}

impl SlabRow {
    fn of(cache: &KmemCache<Linux>) -> Self {
        use fmt::Write;
        let mut name = Name::EMPTY;
        // A cache's name is shorter than this.
        let _ = name.write_str(cache.name());
        Self {
            name,
            info: ALLOCATOR.info(cache),
            slot_size: cache.size as usize,
            objects_per_slab: cache.geometry.objects as usize,
            pages_per_slab: cache.geometry.pages(),
        }
    }

    /// Name of the cache.
    ///
    /// ```
    /// # let cache = uslub::Cache::new("visitor")?;
    /// let visitor = cache.alloc(1u64)?;
    /// assert!(uslub::slabinfo().rows().iter().any(|row| row.name() == "visitor"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(&self) -> &str {
        self.name.as_str()
    }
}

/// The table of all caches of this process that have slabs. It prints in the format of
/// `/proc/slabinfo`, version 2.1.
///
/// ```
/// let printed = uslub::SlabInfo::default().to_string();
/// assert!(printed.starts_with("slabinfo - version: 2.1\n# name "));
/// assert_eq!(printed.lines().count(), 2, "no caches, no lines but the heads");
/// ```
#[derive(Clone, Debug, Default)]
pub struct SlabInfo {
    rows: Vec<SlabRow>,
}

impl SlabInfo {
    /// A line for each cache, in the order of the caches' numbers.
    ///
    /// ```
    /// let stages = [uslub::Cache::new("early")?, uslub::Cache::new("late")?];
    /// let held = [stages[0].alloc(1u64)?, stages[1].alloc(2)?];
    /// let table = uslub::slabinfo();
    /// let place = |name| table.rows().iter().position(|row| row.name() == name);
    /// assert!(place("early").is_some() && place("early") < place("late"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rows(&self) -> &[SlabRow] {
        &self.rows
    }
}

impl fmt::Display for SlabInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "slabinfo - version: 2.1\n\
             # name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> \
             : tunables <limit> <batchcount> <sharedfactor> \
             : slabdata <active_slabs> <num_slabs> <sharedavail>\n",
        )?;
        for row in &self.rows {
            // A blank in a name would add a column.
            let is_blank = |c: char| c.is_whitespace() || c.is_control();
            writeln!(
                f,
                "{:<17} {:6} {:6} {:6} {:4} {:4} : tunables    0    0    0 : slabdata {:6} {:6}      0",
                row.name().replace(is_blank, "_"),
                row.info.active_objs,
                row.info.num_objs,
                row.slot_size,
                row.objects_per_slab,
                row.pages_per_slab,
                row.info.active_slabs,
                row.info.num_slabs,
            )?;
        }
        Ok(())
    }
}

/// The table of all caches of this process that have slabs.
///
/// ```
/// let cache = uslub::Cache::new("session")?;
/// let session = cache.alloc([0u8; 300])?;
/// let table = uslub::slabinfo();
/// let row = table.rows().iter().find(|row| row.name() == "session").unwrap();
/// assert!(row.info.num_slabs > 0);
/// println!("{table}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn slabinfo() -> SlabInfo {
    if !is_ready() {
        return SlabInfo::default();
    }
    let mut count = 0;
    ALLOCATOR.for_each_cache(|_| count += 1);
    // Room for some new caches, because nothing may be allocated inside `for_each_cache`.
    let mut rows = Vec::with_capacity(count + 32);
    ALLOCATOR.for_each_cache(|cache| {
        if cache.nr_slabs() > 0 && rows.len() < rows.capacity() {
            rows.push(SlabRow::of(cache));
        }
    });
    SlabInfo { rows }
}

/// Figures of all memory that this crate manages, in bytes.
///
/// ```
/// let object = uslub::kmalloc(1000, uslub::Gfp::KERNEL).expect("memory");
/// assert!(uslub::totals().live >= 1000);
/// // SAFETY: freed once.
/// unsafe { uslub::kfree(object.as_ptr()) };
/// ```
pub fn totals() -> Totals {
    if is_ready() {
        ALLOCATOR.totals()
    } else {
        Totals::default()
    }
}

/// Gives as much memory back to the system as possible: flushes all sheaves, and frees empty slabs
/// and free pages. Returns whether it gave memory back.
///
/// ```
/// let object = uslub::kmalloc(100_000, uslub::Gfp::KERNEL).expect("memory");
/// // SAFETY: freed once.
/// unsafe { uslub::kfree(object.as_ptr()) };
/// uslub::trim();
/// assert_eq!(uslub::totals().dirty, 0);
/// ```
pub fn trim() -> bool {
    let any = is_ready() && ALLOCATOR.trim();
    rcu::hand_over();
    any
}
