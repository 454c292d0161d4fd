//! Caches of objects of a type.

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

/// Objects that are freed at a time by [`Cache::free_all`].
const BATCH: usize = 64;

/// A cache of objects of type `T`.
///
/// [`alloc`](Self::alloc) gives an [`Object`], which owns its value as a `Box` does. For linked structures there are the raw
/// forms. A cache is shared by reference among threads; the fast paths take no lock. Dropping it
/// destroys it; objects still in use then (leaked ones, or those held as pointers) are reported to
/// standard error by address, and their memory is kept for ever.
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
    raw: RawCache,
    // Objects of a constructor wait in the cache as one user's `T` and leave it as another's:
    // neither shorter nor longer lifetimes will do.
    object: PhantomData<fn(T) -> T>,
}

impl<T> Cache<T> {
    /// A cache with slabs of its own, of the type's size and alignment.
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
    /// [`CreateError`]: the name has not 1 to 31 bytes, the type has no bytes or more than 65,536 or an alignment above 4096 bytes,
    /// or there is no memory.
    pub fn new(name: &str) -> Result<Self, CreateError> {
        Self::builder(name).build()
    }

    /// Begins a cache that is to be like no other.
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
    /// Its objects are memory of a `T`; one that is freed to a cache with a constructor must be a
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

    /// Name of the cache; if it shares another's slabs, the other's.
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
    /// [`AllocError`] with the value when there is no memory or the cache's limit is reached.
    ///
    /// # Panics
    ///
    /// When the cache's constructor panics; nothing is lost then.
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
    /// [`AllocError`] with the value when there is no memory, or `gfp` forbids to get it.
    ///
    /// # Panics
    ///
    /// As there.
    #[inline]
    pub fn try_alloc(&self, value: T, gfp: Gfp) -> Result<Object<'_, T>, AllocError<T>> {
        let Some(object) = self.alloc_raw(gfp) else {
            return Err(AllocError(value));
        };
        // SAFETY: memory for a `T`, ours.
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
    /// [`AllocError`] when there is no memory or the cache's limit is reached.
    ///
    /// # Panics
    ///
    /// When the cache has no constructor. When the constructor panics; nothing is lost then.
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
    /// [`AllocError`] when there is no memory, or `gfp` forbids to get it.
    ///
    /// # Panics
    ///
    /// As there.
    #[inline]
    pub fn try_alloc_constructed(&self, gfp: Gfp) -> Result<Object<'_, T>, AllocError> {
        self.must_be_constructed();
        let object = self.alloc_raw(gfp).ok_or(AllocError(()))?;
        // SAFETY: constructed, and a valid `T` whenever it was freed since; ours.
        Ok(unsafe { Object::from_raw(object, self) })
    }

    /// A fresh value of the constructor, if there is one.
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

    /// Allocates memory for an object, with nothing in it (or what the constructor or the last user
    /// left); `None` when there is none. For linked structures, whose objects nobody owns alone.
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
    /// When the cache's constructor panics; nothing is lost then.
    #[inline]
    pub fn alloc_raw(&self, gfp: Gfp) -> Option<NonNull<T>> {
        self.raw.alloc(gfp).map(NonNull::cast)
    }

    /// As [`free_raw`](Self::free_raw), of an object that came from this cache for sure.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub(crate) unsafe fn free_own(&self, object: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.raw.free_own(object.as_ptr().cast()) };
    }

    /// Frees the memory of an object, without dropping what is in it.
    ///
    /// An object of another cache is not freed: a warning names both caches, and it leaks.
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
    /// Nobody uses the object any more (but readers of a type-safe cache). With a constructor it is
    /// a valid `T`.
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
    /// As there.
    #[inline]
    pub unsafe fn free_raw_with(&self, object: NonNull<T>, gfp: Gfp) {
        // SAFETY: passed on.
        unsafe { self.raw.free_with(object.cast().as_ptr(), gfp) };
    }

    /// Fills a slice with memory for objects, all or none. What the entries held before is
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
    /// [`AllocError`] when there is no memory for all; nothing is taken then.
    ///
    /// # Panics
    ///
    /// When the cache's constructor panics; nothing is taken then.
    pub fn alloc_bulk(
        &self,
        objects: &mut [Option<NonNull<T>>],
        gfp: Gfp,
    ) -> Result<(), AllocError> {
        self.raw.alloc_bulk(untyped(objects), gfp)
    }

    /// Frees the memory of all objects of a slice, without dropping what is in them, and sets its
    /// entries to `None`; those that are `None` already are passed over.
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
    /// As for [`free_raw`](Self::free_raw), and no object is there twice.
    pub unsafe fn free_bulk(&self, objects: &mut [Option<NonNull<T>>]) {
        // SAFETY: passed on.
        unsafe { self.raw.free_bulk(untyped(objects)) };
    }

    /// Drops objects and frees their memory in batches.
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
    /// When an object is of another cache, or its drop panics: the batch at hand then leaks.
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
    /// [`AllocError`] when there is no memory for all; nothing is taken then.
    ///
    /// # Panics
    ///
    /// When the cache's constructor panics; nothing is taken then.
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
    /// As there.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn try_prefill(&self, n: usize, gfp: Gfp) -> Result<Prefilled<'_, T>, AllocError> {
        Prefilled::new(self, n, gfp)
    }

    /// Frees the memory of an object after a grace period, without dropping what is in it. Until
    /// then readers that found it before may look at it. [`Object::free_rcu`] is the safe form.
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
    /// As for [`free_raw`](Self::free_raw), and nobody new finds the object.
    ///
    /// # Panics
    ///
    /// When no grace period was set and the feature `crossbeam-epoch` is off.
    pub unsafe fn free_rcu(&self, object: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.raw.free_rcu(object.cast().as_ptr()) };
    }

    /// Gives all that the cache does not need back: the objects in sheaves to their slabs, and
    /// empty slabs to the page layer. Returns whether slabs remain.
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

    /// Puts the objects in the sheaves of all CPUs back to their slabs.
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

    /// Registers a function that frees objects of the cache when memory, or its limit, is reached;
    /// see [`Shrinker`].
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
    /// [`Leaked`] when objects are still in use (leaked ones, or those held as pointers); their memory, and the cache, are kept for
    /// ever.
    ///
    /// # Panics
    ///
    /// Inside a read-side section of [`Epoch`](crate::Epoch), when objects or slabs of the cache
    /// may wait for it.
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
    // SAFETY: pointers of all types are laid out alike, and so are their options.
    unsafe { std::slice::from_raw_parts_mut(first.cast(), len) }
}
