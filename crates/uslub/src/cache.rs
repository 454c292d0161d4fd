//! Caches of objects of one type: a typed face of `RawCache`, shared by reference among threads.

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use uslub_core::Gfp;

use crate::builder::Builder;
use crate::ctor;
use crate::error::{AllocError, CreateError, Leaked};
use crate::object::Object;
use crate::prefill::Prefilled;
use crate::raw::RawCache;
use crate::shrinker::Shrinker;
use crate::stats::CacheStats;

/// Objects that [`Cache::free_all`] frees in one bulk.
const BATCH: usize = 64;

/// A cache of objects of type `T`.
///
/// [`alloc`](Self::alloc) gives an [`Object`], which owns its value as a `Box` does. For linked
/// structures there are the raw forms. Threads share a cache by reference; the fast paths take no
/// lock. Dropping the cache destroys it. Objects still in use then (leaked, or held as pointers)
/// are reported on standard error by address, and their memory is never reused.
///
/// ```
/// use uslub::Cache;
///
/// let names = Cache::new("name")?;
/// let name = names.alloc(String::from("slab"))?;
/// assert_eq!(name.len(), 4);
/// drop(name);
/// assert_eq!(names.stats().info.live_objs(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Cache<T> {
    pub(crate) raw: RawCache,
    // A constructed object waits in the cache as one user's `T` and leaves it as another user's. So
    // the lifetimes in `T` must neither shrink nor grow.
    object: PhantomData<fn(T) -> T>,
}

impl<T> Cache<T> {
    /// A cache with its own slabs, with the size and alignment of the type.
    ///
    /// ```
    /// use uslub::Cache;
    /// let requests = Cache::new("request")?;
    /// let request = requests.alloc(("GET", 80u16))?;
    /// assert_eq!((request.0, requests.stats().info.live_objs()), ("GET", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CreateError`]: the name does not have 1 to 31 bytes; the type has no bytes, more than
    /// 65,536 bytes, or an alignment above 4096 bytes; or there is no memory.
    pub fn new(name: &str) -> Result<Self, CreateError> {
        Self::builder(name).build()
    }

    /// Begins the description of a cache with other properties than [`new`](Self::new) gives.
    ///
    /// ```
    /// let leaves = uslub::Cache::<[u64; 15]>::builder("leaf").hwcache_align().build()?;
    /// assert_eq!((leaves.name(), leaves.stats().object_size), ("leaf", 120));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn builder(name: &str) -> Builder<'_, T> {
        Builder::new(name)
    }

    pub(crate) fn of(raw: RawCache) -> Self {
        Self {
            raw,
            object: PhantomData,
        }
    }

    /// The cache without its type.
    ///
    /// Its objects are memory of a `T`. An object freed to a cache with a constructor must be a
    /// valid `T`.
    ///
    /// ```
    /// let timers = uslub::Cache::<(u64, u32)>::new("timer")?;
    /// assert_eq!((timers.as_raw().object_size(), timers.as_raw().align()), (16, 8));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn as_raw(&self) -> &RawCache {
        &self.raw
    }

    /// Name of the cache. If it shares another cache's slabs, the name of the other cache.
    ///
    /// ```
    /// let peers = uslub::Cache::<u64>::new("peer")?;
    /// assert_eq!(peers.name(), "peer");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// Whether the cache has a constructor.
    ///
    /// ```
    /// use uslub::Cache;
    /// assert!(Cache::builder("lease").constructor(|| 60u32).build()?.is_constructed());
    /// assert!(!Cache::<u32>::new("bare")?.is_constructed());
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn is_constructed(&self) -> bool {
        self.raw.is_constructed()
    }

    /// Allocates an object and moves a value into it.
    ///
    /// ```
    /// let sessions = uslub::Cache::new("session")?;
    /// let mut session = sessions.alloc(vec!["hello"])?;
    /// session.push("world");
    /// assert_eq!(session.join(" "), "hello world");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] with the value if there is no memory or the cache's limit is reached.
    ///
    /// # Panics
    ///
    /// If the cache's constructor panics; no object is lost then.
    #[inline]
    pub fn alloc(&self, value: T) -> Result<Object<'_, T>, AllocError<T>> {
        self.try_alloc(value, Gfp::KERNEL)
    }

    /// As [`alloc`](Self::alloc), in a context of the caller's choice.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let events = Cache::new("event")?;
    /// // Never maps memory: what the cache has, or nothing.
    /// match events.try_alloc(7u64, Gfp::NOWAIT) {
    ///     Ok(event) => assert_eq!(*event, 7),
    ///     Err(error) => assert_eq!(error.into_inner(), 7),
    /// }
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] with the value if there is no memory, or if `gfp` does not allow getting it.
    ///
    /// # Panics
    ///
    /// As for [`alloc`](Self::alloc).
    #[inline]
    pub fn try_alloc(&self, value: T, gfp: Gfp) -> Result<Object<'_, T>, AllocError<T>> {
        let Some(object) = self.alloc_raw(gfp) else {
            return Err(AllocError(value));
        };
        // SAFETY: memory for a `T`, which this function owns.
        unsafe {
            object.write(value);
            Ok(Object::from_raw(object, self))
        }
    }

    /// Allocates an object as the constructor, or its last user, left it.
    ///
    /// ```
    /// let tables = uslub::Cache::builder("table").constructor(|| [u16::MAX; 32]).build()?;
    /// let table = tables.alloc_constructed()?;
    /// assert_eq!(*table, [u16::MAX; 32]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory or the cache's limit is reached.
    ///
    /// # Panics
    ///
    /// If the cache has no constructor, or if the constructor panics; no object is lost then.
    #[inline]
    pub fn alloc_constructed(&self) -> Result<Object<'_, T>, AllocError> {
        self.try_alloc_constructed(Gfp::KERNEL)
    }

    /// As [`alloc_constructed`](Self::alloc_constructed), in a context of the caller's choice.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let masks = Cache::builder("mask").constructor(|| !0u64).build()?;
    /// assert_eq!(*masks.try_alloc_constructed(Gfp::KERNEL)?, !0);
    /// // Constructs nothing: one that was constructed before, or none.
    /// if let Ok(mask) = masks.try_alloc_constructed(Gfp::NOSPIN) {
    ///     assert_eq!(*mask, !0);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory, or if `gfp` does not allow getting it.
    ///
    /// # Panics
    ///
    /// As for [`alloc_constructed`](Self::alloc_constructed).
    #[inline]
    pub fn try_alloc_constructed(&self, gfp: Gfp) -> Result<Object<'_, T>, AllocError> {
        self.must_be_constructed();
        let object = self.alloc_raw(gfp).ok_or(AllocError(()))?;
        // SAFETY: constructed, a valid `T` at each free since, and owned by this function.
        Ok(unsafe { Object::from_raw(object, self) })
    }

    /// A new value from the constructor, if there is one.
    pub(crate) fn construct(&self) -> Option<T> {
        let ctor = self.raw.kmem_cache().ctor?;
        let mut value = MaybeUninit::<T>::uninit();
        ctor::construct(ctor, value.as_mut_ptr().cast());
        // SAFETY: just constructed.
        Some(unsafe { value.assume_init() })
    }

    pub(crate) fn must_be_constructed(&self) {
        assert!(
            self.is_constructed(),
            "cache '{}' has no constructor",
            self.name()
        );
    }

    /// Allocates memory for an object. Its contents are undefined, or those that the constructor or
    /// the last user left. `None` if there is no memory. For linked structures, whose objects have
    /// no single owner.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let nodes = Cache::<(u32, u32)>::new("node")?;
    /// let node = nodes.alloc_raw(Gfp::KERNEL).expect("memory");
    /// // SAFETY: ours, written before it is read, freed once.
    /// unsafe {
    ///     node.write((1, 2));
    ///     assert_eq!(node.read().1, 2);
    ///     nodes.free_raw(node);
    /// }
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the cache's constructor panics; no object is lost then.
    #[inline]
    pub fn alloc_raw(&self, gfp: Gfp) -> Option<NonNull<T>> {
        self.raw.alloc(gfp).map(NonNull::cast)
    }

    /// As [`free_raw`](Self::free_raw), of an object that is known to be of this cache.
    ///
    /// # Safety
    ///
    /// As for [`free_raw`](Self::free_raw).
    #[inline]
    pub(crate) unsafe fn free_own(&self, object: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.raw.free_own(object.as_ptr().cast()) };
    }

    /// Frees the memory of an object without dropping its contents.
    ///
    /// An object of another cache is not freed: a warning names both caches, and the object leaks.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let nodes = Cache::new("list_node")?;
    /// let node = Object::into_raw(nodes.alloc(17u64)?);
    /// // SAFETY: freed once, and nothing in it wants a drop.
    /// unsafe { nodes.free_raw(node) };
    /// assert_eq!(nodes.stats().info.live_objs(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Nobody uses the object any longer, except readers of a type-safe cache. In a cache with a
    /// constructor it is a valid `T`.
    #[inline]
    pub unsafe fn free_raw(&self, object: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.raw.free(object.cast().as_ptr()) };
    }

    /// As [`free_raw`](Self::free_raw), in a context of the caller's choice.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let packets = Cache::<[u8; 1500]>::new("packet")?;
    /// let packet = packets.alloc_raw(Gfp::KERNEL).expect("memory");
    /// // SAFETY: freed once. It waits for no lock.
    /// unsafe { packets.free_raw_with(packet, Gfp::NOSPIN) };
    /// assert_eq!(packets.stats().info.live_objs(), 0);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free_raw`](Self::free_raw).
    #[inline]
    pub unsafe fn free_raw_with(&self, object: NonNull<T>, gfp: Gfp) {
        // SAFETY: passed on.
        unsafe { self.raw.free_with(object.cast().as_ptr(), gfp) };
    }

    /// Fills a slice with memory for objects, all or none. The entries' previous values are
    /// overwritten; after an error all are `None`.
    ///
    /// [`prefill`](Self::prefill) gives many objects at once that own themselves.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let packets = Cache::<[u8; 256]>::new("packets")?;
    /// let mut batch = [None; 32];
    /// packets.alloc_bulk(&mut batch, Gfp::KERNEL).expect("memory");
    /// assert!(batch.iter().all(Option::is_some));
    /// // SAFETY: all are ours, and freed once.
    /// unsafe { packets.free_bulk(&mut batch) };
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory for all; nothing is taken then.
    ///
    /// # Panics
    ///
    /// If the cache's constructor panics; nothing is taken then.
    pub fn alloc_bulk(
        &self,
        objects: &mut [Option<NonNull<T>>],
        gfp: Gfp,
    ) -> Result<(), AllocError> {
        self.raw.alloc_bulk(untyped(objects), gfp)
    }

    /// Frees the memory of all objects in a slice without dropping their contents, and sets the
    /// entries to `None`. Entries that are already `None` are skipped.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let edges = Cache::<(u32, u32)>::new("edge")?;
    /// let mut held = [edges.alloc_raw(Gfp::KERNEL), None, edges.alloc_raw(Gfp::KERNEL)];
    /// // SAFETY: both are ours, and freed once.
    /// unsafe { edges.free_bulk(&mut held) };
    /// assert_eq!((held, edges.stats().info.live_objs()), ([None; 3], 0));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free_raw`](Self::free_raw), and no object is in the slice twice.
    pub unsafe fn free_bulk(&self, objects: &mut [Option<NonNull<T>>]) {
        // SAFETY: passed on.
        unsafe { self.raw.free_bulk(untyped(objects)) };
    }

    /// Drops objects and frees their memory in bulks.
    ///
    /// ```
    /// let cache = uslub::Cache::new("batch")?;
    /// let objects: Vec<_> = (0..100u64).map(|n| cache.alloc(n)).collect::<Result<_, _>>()?;
    /// cache.free_all(objects);
    /// assert_eq!(cache.stats().info.live_objs(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If an object is of another cache, or its drop panics: then the current bulk leaks.
    pub fn free_all<'c>(&'c self, objects: impl IntoIterator<Item = Object<'c, T>>) {
        let mut batch = [None; BATCH];
        let mut n = 0;
        for object in objects {
            assert!(object.is_of(self), "an object of another cache");
            let object = Object::into_raw(object);
            // SAFETY: it was owned, and is dropped once.
            unsafe { object.drop_in_place() };
            batch[n] = Some(object);
            n += 1;
            if n == BATCH {
                // SAFETY: all were owned, and are dropped.
                unsafe { self.free_bulk(&mut batch) };
                n = 0;
            }
        }
        // SAFETY: as above.
        unsafe { self.free_bulk(&mut batch[..n]) };
    }

    /// Sets `n` objects aside; see [`Prefilled`].
    ///
    /// ```
    /// let nodes = uslub::Cache::new("rb_node")?;
    /// let mut aside = nodes.prefill(2)?;
    /// let (left, right) = (aside.alloc(1u64), aside.alloc(2));
    /// assert_eq!(*left + *right, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory for all; nothing is taken then.
    ///
    /// # Panics
    ///
    /// If the cache's constructor panics; nothing is taken then.
    pub fn prefill(&self, n: usize) -> Result<Prefilled<'_, T>, AllocError> {
        self.try_prefill(n, Gfp::KERNEL)
    }

    /// As [`prefill`](Self::prefill), in a context of the caller's choice.
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let replies = Cache::<[u8; 64]>::new("reply")?;
    /// // Never maps memory: all four, or nothing.
    /// if let Ok(aside) = replies.try_prefill(4, Gfp::NOWAIT) {
    ///     assert!(aside.remaining() >= 4);
    /// }
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`prefill`](Self::prefill).
    ///
    /// # Panics
    ///
    /// As for [`prefill`](Self::prefill).
    pub fn try_prefill(&self, n: usize, gfp: Gfp) -> Result<Prefilled<'_, T>, AllocError> {
        Prefilled::new(self, n, gfp)
    }

    /// Frees the memory of an object after a grace period, without dropping its contents. Until
    /// then readers that found the object before may read it. [`Object::free_rcu`] is the safe
    /// form.
    ///
    /// ```
    /// use crossbeam_epoch as epoch;
    /// use std::ptr::NonNull;
    /// use std::sync::atomic::{AtomicPtr, Ordering};
    /// use uslub::{Cache, Object};
    ///
    /// let settings = Cache::new("settings")?;
    /// let current = AtomicPtr::new(Object::into_raw(settings.alloc(1u64)?).as_ptr());
    ///
    /// // A reader:
    /// let guard = epoch::pin();
    /// // SAFETY: while we are pinned, what we find is not freed.
    /// assert_eq!(unsafe { *current.load(Ordering::Acquire) }, 1);
    /// drop(guard);
    ///
    /// // The writer:
    /// let new = Object::into_raw(settings.alloc(2u64)?).as_ptr();
    /// let old = current.swap(new, Ordering::AcqRel);
    /// // SAFETY: nobody finds the old one any more.
    /// unsafe { settings.free_rcu(NonNull::new(old).unwrap()) };
    ///
    /// // The end:
    /// // SAFETY: there are no readers any more.
    /// unsafe { settings.free_raw(NonNull::new(current.into_inner()).unwrap()) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free_raw`](Self::free_raw), and no new reader finds the object.
    ///
    /// # Panics
    ///
    /// If no grace period was set and the feature `crossbeam-epoch` is off.
    pub unsafe fn free_rcu(&self, object: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.raw.free_rcu(object.cast().as_ptr()) };
    }

    /// Gives back all that the cache does not need: objects in sheaves go to their slabs, and empty
    /// slabs to the page layer. Returns whether slabs remain.
    ///
    /// ```
    /// let cache = uslub::Cache::new("brief")?;
    /// drop(cache.alloc(1u64)?);
    /// assert!(!cache.shrink());
    /// assert_eq!(cache.stats().slab_bytes(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shrink(&self) -> bool {
        self.raw.shrink()
    }

    /// Returns the objects in the sheaves of all CPUs to their slabs.
    ///
    /// ```
    /// let spans = uslub::Cache::new("span")?;
    /// drop(spans.alloc(0u64..10)?);
    /// spans.flush();
    /// assert_eq!(spans.stats().info.cached_objs, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) {
        self.raw.flush();
    }

    /// Figures and counters of the cache.
    ///
    /// ```
    /// let users = uslub::Cache::new("user")?;
    /// let held = [users.alloc(1001u64)?, users.alloc(1002)?];
    /// assert_eq!(users.stats().info.live_objs(), held.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> CacheStats {
        self.raw.stats()
    }

    /// Registers a function that frees objects of the cache when memory is short or the cache's
    /// limit is reached; see [`Shrinker`].
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    /// static WANTED: AtomicUsize = AtomicUsize::new(0);
    /// let tiles = uslub::Cache::builder("tile").limit(64 << 10).build()?;
    /// let _shrinker = tiles.shrinker(|wanted| {
    ///     WANTED.fetch_add(wanted, Relaxed);
    ///     0 // none can go
    /// })?;
    /// let held: Vec<_> = std::iter::from_fn(|| tiles.alloc([0u8; 2048]).ok()).collect();
    /// assert!(WANTED.load(Relaxed) > 0, "the limit is reached with {} tiles", held.len());
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CreateError::TooManyShrinkers`].
    pub fn shrinker<F>(&self, scan: F) -> Result<Shrinker<'_>, CreateError>
    where
        F: FnMut(usize) -> usize + Send + 'static,
    {
        self.raw.shrinker(scan)
    }

    /// Destroys the cache.
    ///
    /// ```
    /// let drafts = uslub::Cache::new("draft")?;
    /// drop(drafts.alloc(String::from("Dear Sir"))?);
    /// assert_eq!(drafts.destroy(), Ok(()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Leaked`] if objects are still in use (leaked, or held as pointers). Their memory and the
    /// cache stay.
    ///
    /// # Panics
    ///
    /// Inside a read-side section of [`Epoch`](crate::Epoch), if objects or slabs of the cache may
    /// wait for it.
    pub fn destroy(self) -> Result<(), Leaked> {
        self.raw.destroy()
    }
}

impl<T> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("name", &self.name())
            .field("object_size", &self.raw.object_size())
            .finish()
    }
}

/// A slice of objects without their type.
fn untyped<T>(objects: &mut [Option<NonNull<T>>]) -> &mut [Option<NonNull<u8>>] {
    let (first, len) = (objects.as_mut_ptr(), objects.len());
    // SAFETY: pointers of all types have the same layout, and so have their options.
    unsafe { std::slice::from_raw_parts_mut(first.cast(), len) }
}
