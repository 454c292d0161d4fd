//! Debugged caches: the kernel's `slab_debug`.
//!
//! A cache is debugged by [`Builder::debug`], or by `slab_debug` in `USLUB_OPTIONS`. It has no
//! sheaves then, and each call takes a lock. The tunable `slab_debug_fatal` says whether a report
//! ends the process. [`switch_classes`] debugs the size classes of a running process.

use std::fmt;

use uslub_core::args::CreateError;
use uslub_core::slab::debug::track::Which;

use crate::builder::{Builder, RawBuilder};
use crate::cache::Cache;
use crate::instance::{ALLOCATOR, allocator, is_ready};
use crate::raw::RawCache;

pub use uslub_core::cache::debug::DebugError;
pub use uslub_core::debug::DebugFlags;
pub use uslub_core::kmalloc::SwitchError;

/// Where the objects of a cache were allocated or freed; see [`RawCache::alloc_traces`].
#[derive(Clone, Copy)]
pub struct Traces<'a> {
    cache: &'a RawCache,
    which: Which,
}

impl fmt::Display for Traces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ALLOCATOR.write_traces(self.cache.kmem_cache(), self.which, f)
    }
}

impl fmt::Debug for Traces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces")
            .field("which", &self.which)
            .finish_non_exhaustive()
    }
}

/// Writes what is known of a pointer: its cache, its place in a slab, and, if the cache is debugged
/// with U, who allocated and who freed it. False for a pointer into no slab. The kernel's
/// `kmem_dump_obj`.
///
/// ```
/// let cache = uslub::Cache::new("packet")?;
/// let packet = cache.alloc([0u8; 100])?;
/// let mut text = String::new();
/// assert!(uslub::debug::write_object((&raw const *packet).cast(), &mut text));
/// assert!(text.contains("packet"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_object(pointer: *const u8, out: &mut dyn fmt::Write) -> bool {
    is_ready() && ALLOCATOR.write_object(pointer.cast_mut(), out)
}

/// Reports and repairs of all debugged caches so far.
///
/// ```
/// assert_eq!(uslub::debug::errors(), 0);
/// ```
pub fn errors() -> u32 {
    ALLOCATOR.debug.errors()
}

/// Debugs size classes from now on, or stops that: those of [`kmalloc`](crate::kmalloc()) and
/// [`Uslub`](crate::Uslub). A value of `slab_debug` says how: letters, then commas and names of
/// classes. Letters without names are for all classes.
///
/// Objects in use stay where they are, and are checked as they were allocated.
///
/// ```
/// use uslub::{Gfp, kfree, kmalloc};
/// let plain = kmalloc(40, Gfp::KERNEL).expect("memory");
/// uslub::debug::switch_classes("FZPU,kmalloc-48")?;
/// let checked = kmalloc(40, Gfp::KERNEL).expect("memory");
/// // SAFETY: 40 bytes of ours; freed once.
/// unsafe {
///     assert_eq!(checked.read(), 0x6b, "nobody wrote to it yet");
///     kfree(plain.as_ptr());
///     kfree(checked.as_ptr());
/// }
/// uslub::debug::switch_classes("-")?;
/// # Ok::<(), uslub::debug::SwitchError<'static>>(())
/// ```
///
/// # Errors
///
/// If a letter or a name is unknown, there is no memory, or the system refuses `membarrier`. Then
/// nothing is switched.
pub fn switch_classes(value: &str) -> Result<(), SwitchError<'_>> {
    match allocator() {
        Some(allocator) => allocator.switch_classes(value),
        None => Err(SwitchError::Create(CreateError::NoMemory)),
    }
}

impl RawBuilder<'_> {
    /// What is debugged; `slab_debug` of `USLUB_OPTIONS` may add to it.
    ///
    /// ```
    /// use uslub::debug::DebugFlags;
    /// use uslub::{Gfp, RawCache};
    /// let debug = DebugFlags::CONSISTENCY_CHECKS | DebugFlags::POISON;
    /// let frames = RawCache::builder("frame", 64).debug(debug).build()?;
    /// let frame = frames.alloc(Gfp::KERNEL).expect("memory");
    /// // SAFETY: 64 bytes of ours, freed once.
    /// unsafe {
    ///     assert_eq!(frame.read(), 0x6b, "nobody wrote to it yet");
    ///     frames.free(frame.as_ptr());
    /// }
    /// assert_eq!(frames.validate(), Ok(1));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn debug(mut self, flags: DebugFlags) -> Self {
        self.args.debug = flags;
        self
    }
}

impl<T> Builder<'_, T> {
    /// What is debugged; see [`RawBuilder::debug`].
    ///
    /// ```
    /// use uslub::Cache;
    /// use uslub::debug::DebugFlags;
    /// let orders = Cache::builder("order").debug(DebugFlags::DEFAULT).build()?;
    /// let order = orders.alloc([7u64; 4])?;
    /// assert!(orders.alloc_traces().to_string().contains("      1 "));
    /// drop(order);
    /// assert_eq!(orders.validate(), Ok(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn debug(self, flags: DebugFlags) -> Self {
        self.with(|raw| raw.debug(flags))
    }
}

impl RawCache {
    /// Checks and repairs all slabs of a debugged cache; returns how many were looked at. Never
    /// ends the process; [`errors`] tells what was found.
    ///
    /// ```
    /// let plain = uslub::RawCache::new("plain", 64)?;
    /// assert!(plain.validate().is_err(), "it is not debugged");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DebugError::NotDebugged`].
    pub fn validate(&self) -> Result<usize, DebugError> {
        ALLOCATOR.validate_slabs_of(self.kmem_cache())
    }

    /// Switches F, T and U while the cache is used: those in `flags` on, the others off.
    ///
    /// ```
    /// use uslub::RawCache;
    /// use uslub::debug::{DebugError, DebugFlags};
    /// let cache = RawCache::builder("zoned", 64).debug(DebugFlags::RED_ZONE).build()?;
    /// assert_eq!(cache.set_debug(DebugFlags::CONSISTENCY_CHECKS), Ok(()));
    /// assert_eq!(cache.set_debug(DebugFlags::POISON), Err(DebugError::NoRoom));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the cache is not debugged, or its slots have no room for what `flags` needs.
    pub fn set_debug(&self, flags: DebugFlags) -> Result<(), DebugError> {
        ALLOCATOR.set_debug(self.kmem_cache(), flags)
    }

    /// Where the objects in use were allocated: a block for each caller, the most objects first.
    /// "No data" without U.
    ///
    /// ```
    /// let plain = uslub::RawCache::new("untracked", 64)?;
    /// assert_eq!(plain.alloc_traces().to_string(), "No data\n");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn alloc_traces(&self) -> Traces<'_> {
        Traces {
            cache: self,
            which: Which::Alloc,
        }
    }

    /// Where the slots of the objects in use were freed before.
    ///
    /// ```
    /// use uslub::debug::DebugFlags;
    /// use uslub::{Gfp, RawCache};
    /// let cache = RawCache::builder("seen", 64).debug(DebugFlags::STORE_USER).build()?;
    /// let object = cache.alloc(Gfp::KERNEL).expect("memory");
    /// assert!(cache.free_traces().to_string().contains("<not-available>"));
    /// // SAFETY: freed once.
    /// unsafe { cache.free(object.as_ptr()) };
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn free_traces(&self) -> Traces<'_> {
        Traces {
            cache: self,
            which: Which::Free,
        }
    }
}

impl<T> Cache<T> {
    /// Checks and repairs all slabs; see [`RawCache::validate`].
    ///
    /// ```
    /// let cache = uslub::Cache::<u64>::new("plain")?;
    /// assert!(cache.validate().is_err(), "it is not debugged");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`DebugError::NotDebugged`].
    pub fn validate(&self) -> Result<usize, DebugError> {
        self.raw.validate()
    }

    /// Where the objects in use were allocated; see [`RawCache::alloc_traces`].
    ///
    /// ```
    /// let cache = uslub::Cache::<u64>::new("untracked")?;
    /// assert_eq!(cache.alloc_traces().to_string(), "No data\n");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn alloc_traces(&self) -> Traces<'_> {
        self.raw.alloc_traces()
    }
}
