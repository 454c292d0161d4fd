//! Objects set aside: the kernel's prefilled sheaves.
//!
//! One thread at a time uses the objects set aside: they are filled, taken one by one, refilled if
//! wanted, and returned at the drop.

use std::fmt;
use std::panic::resume_unwind;
use std::ptr::NonNull;

use uslub_core::Gfp;
use uslub_core::prefill;

use crate::cache::Cache;
use crate::error::AllocError;
use crate::instance::ALLOCATOR;
use crate::object::Object;
use crate::raw::RawCache;

/// Untyped objects that are set aside. [`Prefilled`] has the promise; [`RawCache::prefill`] creates
/// them.
///
/// ```
/// use uslub::{Gfp, RawCache};
/// let cache = RawCache::new("extent", 96)?;
/// let mut aside = cache.prefill(3, Gfp::KERNEL).expect("memory");
/// let object = aside.alloc().expect("one of three");
/// // SAFETY: freed once, and unused.
/// unsafe { cache.free(object.as_ptr()) };
/// # Ok::<(), uslub::CreateError>(())
/// ```
pub struct RawPrefilled<'c> {
    cache: &'c RawCache,
    /// `None` until objects are set aside; then no object can be taken.
    objects: Option<prefill::Prefilled>,
}

impl<'c> RawPrefilled<'c> {
    pub(crate) fn new(cache: &'c RawCache, n: usize, gfp: Gfp) -> Result<Self, AllocError> {
        let mut prefilled = Self {
            cache,
            objects: None,
        };
        // If this fails or panics, the drop gives back what was set aside.
        prefilled.refill(n, gfp)?;
        Ok(prefilled)
    }

    /// Takes an object; `None` if none is left. It never waits, and never fails before.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let extents = RawCache::new("extent", 72)?;
    /// let mut aside = extents.prefill(3, Gfp::KERNEL)?;
    /// let mut held: Vec<_> = std::iter::from_fn(|| aside.alloc()).map(Some).collect();
    /// assert!(held.len() >= 3);
    /// // SAFETY: all are ours, and freed once.
    /// unsafe { extents.free_bulk(&mut held) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn alloc(&mut self) -> Option<NonNull<u8>> {
        let objects = self.objects.as_mut()?;
        NonNull::new(ALLOCATOR.alloc_from(self.cache.kmem_cache(), Gfp::NOSPIN, objects))
    }

    /// Number of objects left, and so of allocations that cannot fail.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("journal", 40)?;
    /// assert!(cache.prefill(5, Gfp::KERNEL)?.remaining() >= 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remaining(&self) -> usize {
        self.objects.as_ref().map_or(0, prefill::Prefilled::size)
    }

    /// Sets more objects aside, until at least `n` are there.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("record", 120)?;
    /// let mut aside = cache.prefill(1, Gfp::KERNEL)?;
    /// aside.refill(50, Gfp::KERNEL)?;
    /// assert!(aside.remaining() >= 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory; then there are as many objects as before, or more.
    ///
    /// # Panics
    ///
    /// If the cache's constructor panics; then the same holds as after an error.
    pub fn refill(&mut self, n: usize, gfp: Gfp) -> Result<(), AllocError> {
        if n <= self.remaining() {
            return Ok(());
        }
        let (cache, objects) = (self.cache.kmem_cache(), &mut self.objects);
        let (done, panic) = self.cache.constructing(gfp, || match objects {
            Some(objects) => ALLOCATOR.refill_prefilled(cache, gfp, objects, n),
            None => {
                *objects = ALLOCATOR.prefill(cache, gfp, n);
                objects.is_some()
            }
        });
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        if done { Ok(()) } else { Err(AllocError(())) }
    }
}

impl Drop for RawPrefilled<'_> {
    fn drop(&mut self) {
        if let Some(objects) = self.objects.take() {
            let cache = self.cache.kmem_cache();
            ALLOCATOR.return_prefilled(cache, cache.free_gfp, objects);
        }
    }
}

impl fmt::Debug for RawPrefilled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawPrefilled")
            .field("cache", &self.cache.name())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// Objects of a cache that are set aside.
///
/// The next [`remaining`](Self::remaining) allocations from it cannot fail, take no lock and make
/// no system call, so they fit into critical sections. (The first touch of a fresh page is a page
/// fault; caches with [`prefault`](crate::Builder::prefault) have it before.) Dropping it gives the
/// other objects back, also while a panic unwinds.
///
/// ```
/// use std::sync::Mutex;
/// use uslub::Cache;
///
/// let nodes = Cache::new("tree_node")?;
/// let tree = Mutex::new(Vec::with_capacity(2));
/// // An insertion may need two nodes. Get them first, so that nothing can fail half-way.
/// let mut aside = nodes.prefill(2)?;
/// {
///     let mut tree = tree.lock().unwrap();
///     tree.push(aside.alloc("left"));
///     tree.push(aside.alloc("right"));
/// }
/// assert_eq!(aside.remaining() * 0, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Prefilled<'c, T> {
    raw: RawPrefilled<'c>,
    cache: &'c Cache<T>,
}

impl<'c, T> Prefilled<'c, T> {
    pub(crate) fn new(cache: &'c Cache<T>, n: usize, gfp: Gfp) -> Result<Self, AllocError> {
        Ok(Self {
            raw: RawPrefilled::new(cache.as_raw(), n, gfp)?,
            cache,
        })
    }

    /// Takes an object and moves a value into it.
    ///
    /// ```
    /// let locks = uslub::Cache::new("lock")?;
    /// let mut aside = locks.prefill(2)?;
    /// let (read, write) = (aside.alloc("read"), aside.alloc("write"));
    /// assert_eq!((*read, *write), ("read", "write"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If no object is left.
    #[inline]
    #[track_caller]
    pub fn alloc(&mut self, value: T) -> Object<'c, T> {
        match self.try_alloc(value) {
            Ok(object) => object,
            Err(_) => panic!(
                "cache '{}': more objects than were set aside",
                self.cache.name()
            ),
        }
    }

    /// Takes an object, if one is left, and moves a value into it.
    ///
    /// ```
    /// let cache = uslub::Cache::new("one")?;
    /// let mut aside = cache.prefill(1)?;
    /// # while aside.remaining() > 1 { aside.alloc(0); }
    /// let first = aside.alloc(1);
    /// assert_eq!(aside.try_alloc(2).unwrap_err().into_inner(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] with the value if no object is left.
    #[inline]
    pub fn try_alloc(&mut self, value: T) -> Result<Object<'c, T>, AllocError<T>> {
        let Some(object) = self.alloc_raw() else {
            return Err(AllocError(value));
        };
        // SAFETY: memory for a `T`, which this function owns.
        unsafe {
            object.write(value);
            Ok(Object::from_raw(object, self.cache))
        }
    }

    /// Takes an object as the constructor or its last user left it; `None` if none is left.
    ///
    /// ```
    /// let leases = uslub::Cache::builder("lease").constructor(|| 3600u32).build()?;
    /// let mut aside = leases.prefill(1)?;
    /// let lease = aside.alloc_constructed().expect("one was asked for");
    /// assert_eq!(*lease, 3600);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the cache has no constructor.
    #[inline]
    pub fn alloc_constructed(&mut self) -> Option<Object<'c, T>> {
        self.cache.must_be_constructed();
        let object = self.alloc_raw()?;
        // SAFETY: constructed, a valid `T` at each free since, and owned by this function.
        Some(unsafe { Object::from_raw(object, self.cache) })
    }

    /// Takes memory for an object, with undefined contents; `None` if none is left.
    /// [`Cache::free_raw`] frees it.
    ///
    /// ```
    /// let leaves = uslub::Cache::<[u64; 8]>::new("leaf")?;
    /// let mut aside = leaves.prefill(1)?;
    /// let leaf = aside.alloc_raw().expect("one was asked for");
    /// assert!(leaf.is_aligned());
    /// // SAFETY: freed once, and unused.
    /// unsafe { leaves.free_raw(leaf) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn alloc_raw(&mut self) -> Option<NonNull<T>> {
        self.raw.alloc().map(NonNull::cast)
    }

    /// Number of objects left. At least the number requested less the number taken, because a sheaf
    /// is filled completely.
    ///
    /// ```
    /// let votes = uslub::Cache::new("vote")?;
    /// let mut aside = votes.prefill(10)?;
    /// let vote = aside.alloc(true);
    /// assert!(aside.remaining() >= 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remaining(&self) -> usize {
        self.raw.remaining()
    }

    /// Sets more objects aside, until at least `n` are there.
    ///
    /// ```
    /// let cache = uslub::Cache::new("stock")?;
    /// let mut aside = cache.prefill(4)?;
    /// let object = aside.alloc(1u32);
    /// aside.refill(200)?;
    /// assert!(aside.remaining() >= 200);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory; then there are as many objects as before, or more.
    ///
    /// # Panics
    ///
    /// If the cache's constructor panics; then the same holds as after an error.
    pub fn refill(&mut self, n: usize) -> Result<(), AllocError> {
        self.raw.refill(n, Gfp::KERNEL)
    }

    /// As [`refill`](Self::refill), in a context of the caller's choice.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let moves = Cache::<[u8; 32]>::new("move")?;
    /// let mut aside = moves.prefill(2)?;
    /// // Never maps memory, and takes nothing away when it fails.
    /// let _ = aside.try_refill(20, Gfp::NOWAIT);
    /// assert!(aside.remaining() >= 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`refill`](Self::refill).
    ///
    /// # Panics
    ///
    /// As for [`refill`](Self::refill).
    pub fn try_refill(&mut self, n: usize, gfp: Gfp) -> Result<(), AllocError> {
        self.raw.refill(n, gfp)
    }
}

impl<T> fmt::Debug for Prefilled<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
