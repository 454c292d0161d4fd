//! Objects that share the ownership of their cache.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::cache::Cache;
use crate::error::AllocError;
use crate::object::Object;

/// An object that keeps its cache alive: an [`Object`] without a lifetime.
///
/// It holds an [`Arc`] of its cache, so it costs a count up and a count down, and has one word
/// more. If many threads allocate and free, all of them share the counter. A
/// [`LazyCache`](crate::LazyCache) in a `static` has no such cost.
///
/// ```
/// use std::sync::Arc;
/// use uslub::{Cache, OwnedObject};
///
/// fn first() -> Result<OwnedObject<String>, Box<dyn std::error::Error>> {
///     let names = Arc::new(Cache::new("owned_name")?);
///     Ok(OwnedObject::new(&names, String::from("slab"))?)
/// }
///
/// // The cache lives as long as the object.
/// let name = first()?;
/// assert_eq!(std::thread::spawn(move || name.len()).join().unwrap(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct OwnedObject<T> {
    object: NonNull<T>,
    cache: Arc<Cache<T>>,
}

// SAFETY: it owns its value, as a `Box` does, and threads share caches.
unsafe impl<T: Send> Send for OwnedObject<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for OwnedObject<T> {}

impl<T> OwnedObject<T> {
    /// Allocates an object and moves a value into it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use uslub::{Cache, OwnedObject};
    /// let cells = Arc::new(Cache::new("owned_cell")?);
    /// let mut cell = OwnedObject::new(&cells, 1u64)?;
    /// *cell += 1;
    /// assert_eq!((*cell, cells.stats().info.live_objs()), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Cache::alloc`].
    ///
    /// # Panics
    ///
    /// As for [`Cache::alloc`].
    #[inline]
    pub fn new(cache: &Arc<Cache<T>>, value: T) -> Result<Self, AllocError<T>> {
        let object = Object::into_raw(cache.alloc(value)?);
        let cache = Arc::clone(cache);
        Ok(Self { object, cache })
    }

    /// Moves the value out and frees the memory.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use uslub::{Cache, OwnedObject};
    /// let parcels = Arc::new(Cache::new("owned_parcel")?);
    /// let parcel = OwnedObject::new(&parcels, String::from("book"))?;
    /// assert_eq!(OwnedObject::into_inner(parcel), "book");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As for [`Object::into_inner`].
    pub fn into_inner(this: Self) -> T {
        let this = ManuallyDrop::new(this);
        // SAFETY: `this` is not dropped, so the reference has one owner.
        let cache = unsafe { (&raw const this.cache).read() };
        // SAFETY: of this cache, valid, and owned by `this`, which is not dropped.
        Object::into_inner(unsafe { Object::from_raw(this.object, &cache) })
    }

    /// The cache of the object.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use uslub::{Cache, OwnedObject};
    /// let cells = Arc::new(Cache::new("owner")?);
    /// let cell = OwnedObject::new(&cells, 1u64)?;
    /// assert!(Arc::ptr_eq(OwnedObject::cache(&cell), &cells));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cache(this: &Self) -> &Arc<Cache<T>> {
        &this.cache
    }

    /// Address of the value, which does not move as long as the object lives.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use uslub::{Cache, OwnedObject};
    /// let cells = Arc::new(Cache::new("address")?);
    /// let cell = OwnedObject::new(&cells, 5u64)?;
    /// let before = OwnedObject::as_ptr(&cell);
    /// let moved = Some(cell);
    /// assert_eq!(moved.as_ref().map(OwnedObject::as_ptr), Some(before));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn as_ptr(this: &Self) -> NonNull<T> {
        this.object
    }
}

impl<T> Deref for OwnedObject<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: owned by this value, and valid.
        unsafe { self.object.as_ref() }
    }
}

impl<T> DerefMut for OwnedObject<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: owned by this value alone, and valid.
        unsafe { self.object.as_mut() }
    }
}

impl<T> Drop for OwnedObject<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: of this cache, valid, and owned by this value, which ends. The cache is dropped
        // after this.
        drop(unsafe { Object::from_raw(self.object, &self.cache) });
    }
}

impl<T: fmt::Debug> fmt::Debug for OwnedObject<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for OwnedObject<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
