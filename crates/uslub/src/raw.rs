//! Caches of untyped objects: the kernel's `kmem_cache`. Threads share a cache by reference.

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::ptr::{self, NonNull};

use uslub_core::Gfp;
use uslub_core::args::Flags;
use uslub_core::cache::KmemCache;
use uslub_linux::Linux;

use crate::builder::RawBuilder;
use crate::ctor::{self, Panic};
use crate::error::{AllocError, CreateError};
use crate::instance::ALLOCATOR;
use crate::prefill::RawPrefilled;
use crate::rcu;
use crate::shrinker::Shrinker;
use crate::stats::CacheStats;

/// A cache of objects of one size, without a type: the kernel's `kmem_cache`.
///
/// For objects whose layout is known at run time only, and for callers from other languages.
/// [`Cache`](crate::Cache) adds a type. Dropping the cache destroys it. Objects still in use then
/// are reported on standard error by address, and their memory is never reused.
///
/// ```
/// use uslub::{Gfp, RawCache};
/// let cache = RawCache::new("packet", 1500)?;
/// let packet = cache.alloc(Gfp::KERNEL).expect("memory");
/// // SAFETY: 1500 bytes that are ours until they are freed.
/// unsafe {
///     packet.write_bytes(0xab, 1500);
///     cache.free(packet.as_ptr());
/// }
/// # Ok::<(), uslub::CreateError>(())
/// ```
pub struct RawCache {
    cache: &'static KmemCache<Linux>,
}

impl RawCache {
    /// A cache of objects of `size` bytes (1 to 65,536), aligned to 8 bytes.
    ///
    /// ```
    /// use uslub::{CreateError, RawCache};
    /// assert_eq!(RawCache::new("dentry", 192)?.object_size(), 192);
    /// assert_eq!(RawCache::new("empty", 0).err(), Some(CreateError::BadSize));
    /// # Ok::<(), CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    pub fn new(name: &str, size: usize) -> Result<Self, CreateError> {
        Self::builder(name, size).build()
    }

    /// Begins the description of a cache of objects of `size` bytes.
    ///
    /// ```
    /// let cache = uslub::RawCache::builder("line", 100).align(64).build()?;
    /// assert_eq!((cache.object_size(), cache.align()), (100, 64));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn builder(name: &str, size: usize) -> RawBuilder<'_> {
        RawBuilder::new(name, size)
    }

    pub(crate) fn of(cache: &'static KmemCache<Linux>) -> Self {
        Self { cache }
    }

    pub(crate) fn kmem_cache(&self) -> &'static KmemCache<Linux> {
        self.cache
    }

    /// Name of the cache. If it shares another cache's slabs, the name of the other cache.
    ///
    /// ```
    /// assert_eq!(uslub::RawCache::new("dentry", 192)?.name(), "dentry");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn name(&self) -> &str {
        self.cache.name()
    }

    /// Bytes of an object.
    ///
    /// ```
    /// let tuples = uslub::RawCache::new("tuple", 37)?;
    /// assert_eq!(tuples.object_size(), 37, "though slots are larger");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn object_size(&self) -> usize {
        self.cache.object_size()
    }

    /// Alignment of an object in bytes.
    ///
    /// ```
    /// assert_eq!(uslub::RawCache::new("tuple", 37)?.align(), 8);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn align(&self) -> usize {
        self.cache.align as usize
    }

    /// Whether the cache has a constructor.
    ///
    /// ```
    /// let plain = uslub::RawCache::new("plain", 64)?;
    /// assert!(!plain.is_constructed());
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn is_constructed(&self) -> bool {
        self.cache.ctor.is_some()
    }

    /// Whether freed objects keep their type for readers.
    pub(crate) fn is_typesafe(&self) -> bool {
        self.cache.flags.contains(Flags::TYPESAFE_BY_RCU)
    }

    /// Runs `work`, which may construct objects. Returns its result, and the constructor's panic.
    #[inline]
    pub(crate) fn constructing<R>(&self, gfp: Gfp, work: impl FnOnce() -> R) -> (R, Option<Panic>) {
        match self.cache.ctor {
            None => (work(), None),
            Some(ctor) => ctor::during(ctor, gfp, work),
        }
    }

    /// One object from `work`. If the constructor panics, the object goes back and the panic
    /// resumes here.
    #[inline]
    fn one(&self, gfp: Gfp, work: impl FnOnce() -> *mut u8) -> Option<NonNull<u8>> {
        let (object, panic) = self.constructing(gfp, work);
        if let Some(panic) = panic {
            self.undo(&mut [NonNull::new(object)], panic);
        }
        NonNull::new(object)
    }

    /// Frees objects that were just allocated, and resumes the panic of their constructor.
    #[cold]
    #[inline(never)]
    fn undo(&self, objects: &mut [Option<NonNull<u8>>], panic: Panic) -> ! {
        // SAFETY: just allocated, and unused.
        unsafe { self.free_bulk(objects) };
        resume_unwind(panic);
    }

    /// Allocates an object; `None` if there is no memory. Its contents are those that the
    /// constructor and later users left; without a constructor they are undefined.
    ///
    /// With [`Gfp::ZERO`] the bytes are zero. A cache with a constructor refuses this flag, after a
    /// warning.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let vmas = RawCache::new("vma", 200)?;
    /// let vma = vmas.alloc(Gfp::KERNEL | Gfp::ZERO).expect("memory");
    /// // SAFETY: 200 bytes of ours, freed once.
    /// unsafe {
    ///     assert_eq!(vma.cast::<[u8; 200]>().read(), [0; 200]);
    ///     vmas.free(vma.as_ptr());
    /// }
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the constructor panics; no object is lost then.
    #[inline]
    pub fn alloc(&self, gfp: Gfp) -> Option<NonNull<u8>> {
        let fast = match gfp.contains(Gfp::ZERO) {
            // Every object in a sheaf is constructed.
            false => NonNull::new(ALLOCATOR.alloc_fast(self.cache)),
            true => None,
        };
        fast.or_else(|| self.alloc_slow(gfp))
    }

    #[cold]
    #[inline(never)]
    fn alloc_slow(&self, gfp: Gfp) -> Option<NonNull<u8>> {
        self.one(gfp, || ALLOCATOR.alloc(self.cache, gfp))
    }

    /// As [`alloc`](Self::alloc), from a memory node if it has memory; with [`Gfp::THISNODE`] from
    /// no other node.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("near", 64)?;
    /// let object = cache.alloc_node(Gfp::KERNEL, 0).expect("memory");
    /// // SAFETY: freed once, and unused.
    /// unsafe { cache.free(object.as_ptr()) };
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_node(&self, gfp: Gfp, nid: usize) -> Option<NonNull<u8>> {
        self.one(gfp, || ALLOCATOR.alloc_node(self.cache, gfp, nid))
    }

    /// Allocates an object whose bytes are zero. `None` if there is no memory, and for a cache with
    /// a constructor, because a zeroed object is not a constructed object.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("blank", 64)?;
    /// let object = cache.alloc_zeroed(Gfp::KERNEL).expect("memory");
    /// // SAFETY: 64 bytes of ours, freed once.
    /// unsafe {
    ///     assert_eq!(object.cast::<[u8; 64]>().read(), [0; 64]);
    ///     cache.free(object.as_ptr());
    /// }
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn alloc_zeroed(&self, gfp: Gfp) -> Option<NonNull<u8>> {
        NonNull::new(ALLOCATOR.alloc(self.cache, gfp | Gfp::ZERO))
    }

    /// Frees an object; null is ignored. [`RawBuilder::frees`] says what the free may do.
    ///
    /// An object of another cache is not freed: a warning names both caches, and the object leaks.
    /// Any other pointer that is no object ends the process with a message.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let files = RawCache::new("file", 256)?;
    /// let file = files.alloc(Gfp::KERNEL).expect("memory");
    /// // SAFETY: freed once.
    /// unsafe { files.free(file.as_ptr()) };
    /// assert_eq!(files.stats().info.live_objs(), 0);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Nobody uses the object any longer, except readers of a type-safe cache. In a cache with a
    /// constructor it has its constructed state.
    #[inline]
    pub unsafe fn free(&self, object: *mut u8) {
        // SAFETY: passed on.
        if !unsafe { ALLOCATOR.free_fast(self.cache, object, self.cache.free_gfp) } {
            self.free_as_said(object);
        }
    }

    /// As [`free`](Self::free), of an object that is known to be of this cache.
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    #[inline]
    pub(crate) unsafe fn free_own(&self, object: *mut u8) {
        // SAFETY: passed on.
        if !unsafe { ALLOCATOR.free_own_fast(self.cache, object) } {
            self.free_as_said(object);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_as_said(&self, object: *mut u8) {
        self.free_slow(object, self.cache.free_gfp);
    }

    /// As [`free`](Self::free), in a context of the caller's choice.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let signals = RawCache::new("signal", 80)?;
    /// let signal = signals.alloc(Gfp::KERNEL).expect("memory");
    /// // SAFETY: freed once. It waits for no lock.
    /// unsafe { signals.free_with(signal.as_ptr(), Gfp::NOSPIN) };
    /// assert_eq!(signals.stats().info.live_objs(), 0);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free).
    #[inline]
    pub unsafe fn free_with(&self, object: *mut u8, gfp: Gfp) {
        // SAFETY: passed on.
        if !unsafe { ALLOCATOR.free_fast(self.cache, object, gfp) } {
            self.free_slow(object, gfp);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_slow(&self, object: *mut u8, gfp: Gfp) {
        ALLOCATOR.free_checked(self.cache, object, gfp);
        self.hand_over(gfp);
    }

    /// Makes empty slabs of a type-safe cache begin their wait for readers.
    fn hand_over(&self, gfp: Gfp) {
        if gfp.may_spin() && self.is_typesafe() {
            rcu::hand_over();
        }
    }

    /// Fills a slice with objects, all or none. The entries' previous values are overwritten; after
    /// an error all are `None`.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("many", 256)?;
    /// let mut objects = [None; 100];
    /// cache.alloc_bulk(&mut objects, Gfp::KERNEL).expect("memory");
    /// // SAFETY: all are ours, and freed once.
    /// unsafe { cache.free_bulk(&mut objects) };
    /// assert_eq!(objects, [None; 100]);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory for all; nothing is taken then.
    ///
    /// # Panics
    ///
    /// If the constructor panics; nothing is taken then.
    pub fn alloc_bulk(
        &self,
        objects: &mut [Option<NonNull<u8>>],
        gfp: Gfp,
    ) -> Result<(), AllocError> {
        if self.cache.ctor.is_some() {
            return self.alloc_bulk_constructing(objects, gfp);
        }
        if ALLOCATOR.alloc_bulk(self.cache, gfp, as_pointers(objects)) {
            return Ok(());
        }
        // The entries may hold pointers, but no objects of the caller's.
        objects.fill(None);
        Err(AllocError(()))
    }

    /// [`alloc_bulk`](Self::alloc_bulk) of a cache with a constructor. Not inlined, because it
    /// takes more stack.
    #[inline(never)]
    fn alloc_bulk_constructing(
        &self,
        objects: &mut [Option<NonNull<u8>>],
        gfp: Gfp,
    ) -> Result<(), AllocError> {
        let (done, panic) = self.constructing(gfp, || {
            ALLOCATOR.alloc_bulk(self.cache, gfp, as_pointers(objects))
        });
        if !done {
            // The entries may hold pointers, but no objects of the caller's.
            objects.fill(None);
        }
        if let Some(panic) = panic {
            self.undo(objects, panic);
        }
        if done { Ok(()) } else { Err(AllocError(())) }
    }

    /// Frees all objects in a slice, and sets the entries to `None`. Entries that are already
    /// `None` are skipped.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let pages = RawCache::new("page", 4096)?;
    /// let mut held = [pages.alloc(Gfp::KERNEL), None];
    /// // SAFETY: ours, and freed once.
    /// unsafe { pages.free_bulk(&mut held) };
    /// assert_eq!(held, [None; 2]);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), and no object is in the slice twice.
    pub unsafe fn free_bulk(&self, objects: &mut [Option<NonNull<u8>>]) {
        // SAFETY: passed on.
        unsafe { ALLOCATOR.free_bulk(self.cache, as_pointers(objects)) };
        objects.fill(None);
        self.hand_over(self.cache.free_gfp);
    }

    /// Sets `n` objects aside, so that `n` allocations cannot fail; see [`RawPrefilled`].
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let nodes = RawCache::new("maple_node", 256)?;
    /// let aside = nodes.prefill(12, Gfp::KERNEL)?;
    /// assert!(aside.remaining() >= 12);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory for all; nothing is taken then.
    ///
    /// # Panics
    ///
    /// If the constructor panics; nothing is taken then.
    pub fn prefill(&self, n: usize, gfp: Gfp) -> Result<RawPrefilled<'_>, AllocError> {
        RawPrefilled::new(self, n, gfp)
    }

    /// Frees an object after a grace period; null is ignored. Until then readers that found the
    /// object before may read it.
    ///
    /// Objects wait in per-CPU sheaves. After [`rcu_barrier`](crate::rcu_barrier) all of them are
    /// free.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let rules = RawCache::new("rule", 96)?;
    /// let rule = rules.alloc(Gfp::KERNEL).expect("memory");
    /// // SAFETY: freed once, and nobody finds it any more.
    /// unsafe { rules.free_rcu(rule.as_ptr()) };
    /// uslub::rcu_barrier();
    /// assert_eq!(rules.stats().info.live_objs(), 0);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free`](Self::free), and no new reader finds the object.
    ///
    /// # Panics
    ///
    /// If no grace period was set and the feature `crossbeam-epoch` is off.
    pub unsafe fn free_rcu(&self, object: *mut u8) {
        rcu::require();
        // SAFETY: passed on.
        unsafe { ALLOCATOR.free_rcu(self.cache, object) };
        rcu::hand_over();
    }

    /// Gives back all that the cache does not need: objects in sheaves go to their slabs, and empty
    /// slabs to the page layer. Returns whether slabs remain.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("burst", 512)?;
    /// let object = cache.alloc(Gfp::KERNEL).expect("memory");
    /// assert!(cache.shrink(), "one slab is in use");
    /// // SAFETY: freed once.
    /// unsafe { cache.free(object.as_ptr()) };
    /// assert!(!cache.shrink());
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn shrink(&self) -> bool {
        let remain = ALLOCATOR.shrink(self.cache);
        rcu::hand_over();
        remain
    }

    /// Returns the objects in the sheaves of all CPUs to their slabs.
    ///
    /// ```
    /// # use uslub::{Gfp, RawCache};
    /// let cache = RawCache::new("idle", 64)?;
    /// drop(cache.prefill(20, Gfp::KERNEL)?);
    /// cache.flush();
    /// assert_eq!(cache.stats().info.cached_objs, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) {
        ALLOCATOR.flush(self.cache);
        rcu::hand_over();
    }

    /// Figures and counters of the cache.
    ///
    /// ```
    /// let stats = uslub::RawCache::new("fresh", 64)?.stats();
    /// assert_eq!((stats.object_size, stats.slab_bytes()), (64, 0));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn stats(&self) -> CacheStats {
        CacheStats::of(self.cache)
    }

    /// Registers a function that frees objects of the cache when memory is short or the cache's
    /// limit is reached; see [`Shrinker`].
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let logs = RawCache::builder("log", 2048).limit(64 << 10).build()?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let _shrinker = logs.shrinker(move |wanted| tell.send(wanted).map_or(0, |()| 0))?;
    /// let mut held: Vec<_> = std::iter::from_fn(|| logs.alloc(Gfp::KERNEL)).map(Some).collect();
    /// assert!(told.try_recv().is_ok(), "it was asked before an allocation failed");
    /// // SAFETY: all are ours, and freed once.
    /// unsafe { logs.free_bulk(&mut held) };
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
        Shrinker::register(Some(self.cache), scan)
    }

    /// The cache as a bare word, for callers that cannot hold a Rust value.
    ///
    /// ```
    /// use uslub::RawCache;
    /// let raw = RawCache::new("abroad", 64)?.into_raw();
    /// // SAFETY: once for each.
    /// let cache = unsafe { RawCache::from_raw(raw) };
    /// assert_eq!(cache.name(), "abroad");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn into_raw(self) -> *const () {
        let this = ManuallyDrop::new(self);
        ptr::from_ref(this.cache).cast()
    }

    /// The cache behind a word from [`into_raw`](Self::into_raw).
    ///
    /// ```
    /// use std::mem::ManuallyDrop;
    /// use uslub::RawCache;
    /// extern "C" fn cache_object_size(cache: *const ()) -> usize {
    ///     // SAFETY: a live cache's word. It is only looked at, so the handle must not destroy it.
    ///     ManuallyDrop::new(unsafe { RawCache::from_raw(cache) }).object_size()
    /// }
    /// let word = RawCache::new("abroad", 640)?.into_raw();
    /// assert_eq!(cache_object_size(word), 640);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The word came from [`into_raw`](Self::into_raw), and the cache lives. A second destruction,
    /// or a use after the end, normally ends the process with a message, but not if a new cache has
    /// taken the cache's place.
    pub unsafe fn from_raw(raw: *const ()) -> Self {
        // SAFETY: records of caches are never freed.
        Self::of(unsafe { &*raw.cast() })
    }
}

impl fmt::Debug for RawCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawCache")
            .field("name", &self.name())
            .field("object_size", &self.object_size())
            .finish()
    }
}

/// A slice of objects in the core's form.
pub(crate) fn as_pointers<T>(objects: &mut [Option<NonNull<T>>]) -> &mut [*mut u8] {
    let (first, len) = (objects.as_mut_ptr(), objects.len());
    // SAFETY: `Option<NonNull<T>>` has the layout of `*mut T`, with null for `None`. Every value of
    // one type is a value of the other.
    unsafe { std::slice::from_raw_parts_mut(first.cast(), len) }
}
