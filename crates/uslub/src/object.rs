//! A pointer that owns an object of a cache, as a `Box` owns its value.

use std::fmt;
use std::mem::{ManuallyDrop, needs_drop, replace};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use crate::cache::Cache;

/// An object of a cache, owned as by a `Box`: dropping it drops the value and frees the memory.
///
/// In a cache with a constructor the value is not dropped: the next user gets it. The functions
/// that are not `Deref`'s take the object as an argument, so that they hide no method of `T`.
///
/// ```
/// use uslub::{Cache, Object};
/// let points = Cache::new("point")?;
/// let mut point = points.alloc((1, 2))?;
/// point.1 = 5;
/// assert_eq!(format!("{point:?}"), "(1, 5)");
/// assert_eq!(Object::into_inner(point), (1, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Object<'c, T> {
    object: NonNull<T>,
    cache: &'c Cache<T>,
}

// SAFETY: it owns its value, as a `Box` does, and threads share caches.
unsafe impl<T: Send> Send for Object<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Object<'_, T> {}

impl<'c, T> Object<'c, T> {
    /// The object behind a pointer from [`into_raw`](Self::into_raw), or in memory from
    /// [`Cache::alloc_raw`] that holds a value.
    ///
    /// ```
    /// use uslub::{Cache, Gfp, Object};
    /// let words = Cache::new("word")?;
    /// let memory = words.alloc_raw(Gfp::KERNEL).expect("memory");
    /// // SAFETY: of this cache, ours, and written first.
    /// let word = unsafe {
    ///     memory.write(String::from("owned"));
    ///     Object::from_raw(memory, &words)
    /// };
    /// assert_eq!(*word, "owned");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The object is of this cache, holds a valid `T`, and has no other owner.
    #[inline]
    pub unsafe fn from_raw(object: NonNull<T>, cache: &'c Cache<T>) -> Self {
        Self { object, cache }
    }

    /// The bare pointer, for structures that own their objects in another way. Frees nothing.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let cache = Cache::new("bare")?;
    /// let bare = Object::into_raw(cache.alloc(3u8)?);
    /// // SAFETY: as it was given up just now.
    /// assert_eq!(*unsafe { Object::from_raw(bare, &cache) }, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn into_raw(this: Self) -> NonNull<T> {
        ManuallyDrop::new(this).object
    }

    /// Keeps the value as long as its cache lives. The cache will report it as leaked.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let cache = Cache::new("kept")?;
    /// let value: &mut u64 = Object::leak(cache.alloc(9)?);
    /// *value += 1;
    /// assert_eq!(cache.destroy().unwrap_err().addresses().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leak(this: Self) -> &'c mut T {
        // SAFETY: owned by this value, and never freed, not even at the end of the cache.
        unsafe { Self::into_raw(this).as_mut() }
    }

    /// Moves the value out and frees the memory.
    ///
    /// In a cache with a constructor a new value is constructed in its place first.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let parcels = Cache::new("parcel")?;
    /// let parcel: String = Object::into_inner(parcels.alloc(String::from("book"))?);
    /// assert_eq!((parcel.as_str(), parcels.stats().info.live_objs()), ("book", 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the constructor panics; then the object is dropped with its value.
    pub fn into_inner(mut this: Self) -> T {
        if let Some(new) = this.cache.construct() {
            return replace(&mut *this, new);
        }
        let this = ManuallyDrop::new(this);
        // SAFETY: the value is owned. It leaves its memory, whose contents are undefined
        // afterwards.
        unsafe {
            let value = this.object.read();
            this.cache.free_raw(this.object);
            value
        }
    }

    /// Frees the object after a grace period. Until then a reader may read it that found it before,
    /// by a pointer that the owner has since removed from a shared structure.
    ///
    /// Types that need a drop do not compile. A value is not dropped while readers read it, and
    /// after the grace period only its memory is left.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let routes = Cache::new("route")?;
    /// Object::free_rcu(routes.alloc([10u8, 0, 0, 1])?);
    /// uslub::rcu_barrier();
    /// assert_eq!(routes.stats().info.live_objs(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// ```compile_fail
    /// use uslub::{Cache, Object};
    /// let names = Cache::new("name").unwrap();
    /// Object::free_rcu(names.alloc(String::new()).unwrap());
    /// ```
    ///
    /// # Panics
    ///
    /// If no grace period was set and the feature `crossbeam-epoch` is off.
    pub fn free_rcu(this: Self) {
        const { assert!(!needs_drop::<T>(), "free_rcu is for types without drop") };
        let cache = this.cache;
        // SAFETY: it was owned, so no new reader finds it, and it stays a valid `T`.
        unsafe { cache.free_rcu(Self::into_raw(this)) };
    }

    /// Address of the value, which does not move as long as the object lives.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let cells = Cache::new("cell")?;
    /// let cell = cells.alloc(1u64)?;
    /// let before = Object::as_ptr(&cell);
    /// let moved = Some(cell);
    /// assert_eq!(moved.as_ref().map(Object::as_ptr), Some(before));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn as_ptr(this: &Self) -> NonNull<T> {
        this.object
    }

    /// Whether the object is of this cache.
    pub(crate) fn is_of(&self, cache: &Cache<T>) -> bool {
        ptr::eq(
            self.cache.as_raw().kmem_cache(),
            cache.as_raw().kmem_cache(),
        )
    }
}

impl<T> Deref for Object<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: owned by this value, and valid.
        unsafe { self.object.as_ref() }
    }
}

impl<T> DerefMut for Object<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: owned by this value alone, and valid.
        unsafe { self.object.as_mut() }
    }
}

impl<T> Drop for Object<'_, T> {
    #[inline]
    fn drop(&mut self) {
        /// Frees the memory even if the drop of the value panics.
        struct Memory<'a, T>(NonNull<T>, &'a Cache<T>);
        impl<T> Drop for Memory<'_, T> {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: it was owned, and its value is dropped.
                unsafe { self.1.free_own(self.0) };
            }
        }
        let memory = Memory(self.object, self.cache);
        if needs_drop::<T>() {
            // SAFETY: owned by this value, and dropped once. A type that needs a drop has no
            // constructor.
            unsafe { memory.0.drop_in_place() };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Object<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for Object<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
