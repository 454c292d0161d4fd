//! Builders: the description of a cache before it is created.
//!
//! A builder is a value of one thread. [`RawBuilder::build`] checks the description once and
//! creates the cache.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, needs_drop};
use std::ops::RangeInclusive;

use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor, Flags};
use uslub_core::percpu::sheaf::MAX_CAPACITY;
use uslub_core::tunables::Tuning;

use crate::cache::Cache;
use crate::ctor;
use crate::error::CreateError;
use crate::instance::allocator;
use crate::raw::RawCache;
use crate::rcu;

/// The description of a cache of untyped objects; see [`RawCache::builder`].
///
/// ```
/// use uslub::{Gfp, RawCache};
/// let cache = RawCache::builder("frame", 2048)
///     .align(256)
///     .sheaf_capacity(8..=32)
///     .limit(1 << 20)
///     .prefault(true)
///     .frees(Gfp::NOWAIT)
///     .build()?;
/// assert!(!cache.is_constructed());
/// # Ok::<(), uslub::CreateError>(())
/// ```
#[must_use = "a description is not a cache yet"]
pub struct RawBuilder<'n> {
    pub(crate) args: CacheArgs<'n>,
    align: Option<usize>,
    capacity: Option<RangeInclusive<usize>>,
    ctor: Option<OwnedCtor>,
}

/// A constructor that no cache owns yet.
struct OwnedCtor(Ctor);

impl OwnedCtor {
    /// Passes it to a cache.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for OwnedCtor {
    fn drop(&mut self) {
        // SAFETY: no cache owns it.
        unsafe { ctor::release(self.0) };
    }
}

impl<'n> RawBuilder<'n> {
    pub(crate) fn new(name: &'n str, size: usize) -> Self {
        Self {
            args: CacheArgs::new(name, size),
            align: None,
            capacity: None,
            ctor: None,
        }
    }

    /// Aligns objects to `bytes` bytes, a power of two up to 4096 (8 by default).
    ///
    /// ```
    /// use uslub::{CreateError, RawCache};
    /// assert_eq!(RawCache::builder("dma", 100).align(512).build()?.align(), 512);
    /// let odd = RawCache::builder("odd", 100).align(24).build();
    /// assert_eq!(odd.err(), Some(CreateError::BadAlign));
    /// # Ok::<(), CreateError>(())
    /// ```
    pub fn align(mut self, bytes: usize) -> Self {
        self.align = Some(bytes);
        self
    }

    /// Constructs each object when it first leaves a fresh slab, by a closure that gets its memory.
    /// The constructed state survives a free and the next allocation, so users must free an object
    /// in this state.
    ///
    /// The closure runs inside calls that allocate, on any thread. It never runs in a call with
    /// [`Gfp::NOSPIN`]: such a call gets an object that was constructed before, or none. If the
    /// closure panics, the call panics, and no object is lost.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let cache = RawCache::builder("ones", 16)
    ///     // SAFETY: 16 bytes of a fresh object.
    ///     .constructor(|object| unsafe { object.write_bytes(1, 16) })
    ///     .build()?;
    /// let object = cache.alloc(Gfp::KERNEL).expect("memory");
    /// // SAFETY: constructed, and freed as it was.
    /// unsafe {
    ///     assert_eq!(object.cast::<[u8; 16]>().read(), [1; 16]);
    ///     cache.free(object.as_ptr());
    /// }
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn constructor<F>(mut self, construct: F) -> Self
    where
        F: Fn(*mut u8) + Send + Sync + 'static,
    {
        self.ctor = Some(OwnedCtor(ctor::make(construct)));
        self
    }

    /// Begins each object at a cache line; small objects at a fraction of a line that fits them.
    ///
    /// ```
    /// let flows = uslub::RawCache::builder("flow", 100).hwcache_align().build()?;
    /// assert_eq!(flows.align(), 64);
    /// let marks = uslub::RawCache::builder("mark", 16).hwcache_align().build()?;
    /// assert_eq!(marks.align(), 16, "four to a line");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn hwcache_align(mut self) -> Self {
        self.args.flags.insert(Flags::HWCACHE_ALIGN);
        self
    }

    /// Keeps the type of freed objects for readers. A freed object may be reused at once, but its
    /// slab serves no other cache before a grace period. A reader that finds an object must then
    /// check that it is still the object it looked for.
    ///
    /// Installs [`Epoch`](crate::Epoch) unless [`set_grace_period`](crate::set_grace_period) came
    /// first.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let inodes = RawCache::builder("inode", 64).typesafe_by_rcu().build()?;
    /// let reader = crossbeam_epoch::pin();
    /// let inode = inodes.alloc(Gfp::KERNEL | Gfp::ZERO).expect("memory");
    /// // SAFETY: freed once; as we are pinned, it is still memory of an inode, and nobody took it.
    /// unsafe {
    ///     inodes.free(inode.as_ptr());
    ///     assert_eq!(inode.cast::<u64>().read(), 0);
    /// }
    /// drop(reader);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn typesafe_by_rcu(mut self) -> Self {
        self.args.flags.insert(Flags::TYPESAFE_BY_RCU);
        self
    }

    /// Objects that a sheaf holds: the minimum and the maximum. By default the number depends on
    /// the object's size. Sheaves start at the minimum, grow where a CPU keeps missing, and shrink
    /// where it is idle. They stay within the range and within the process's budget
    /// (`sheaf_budget_mb` in `USLUB_OPTIONS`). No sheaf holds more than 500 objects.
    ///
    /// ```
    /// use uslub::{CreateError, RawCache};
    /// let stats = RawCache::builder("skb", 232).sheaf_capacity(16..=64).build()?.stats();
    /// assert_eq!((stats.sheaf_capacity, stats.sheaf_capacity_max), (16, 64));
    /// let none = RawCache::builder("skb", 232).sheaf_capacity(0..=64).build();
    /// assert_eq!(none.err(), Some(CreateError::BadCapacity));
    /// # Ok::<(), CreateError>(())
    /// ```
    pub fn sheaf_capacity(mut self, range: RangeInclusive<usize>) -> Self {
        self.capacity = Some(range);
        self
    }

    /// Most bytes of slabs that the cache may have: at least one slab. When they are used up, its
    /// shrinkers run; if they do not help, allocations fail.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let jobs = RawCache::builder("job", 4096).limit(64 << 10).build()?;
    /// let mut held: Vec<_> = std::iter::from_fn(|| jobs.alloc(Gfp::KERNEL)).map(Some).collect();
    /// assert!(held.len() <= 16);
    /// // SAFETY: all are ours, and freed once.
    /// unsafe { jobs.free_bulk(&mut held) };
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn limit(mut self, bytes: usize) -> Self {
        self.args.limit = Some(bytes);
        self
    }

    /// Whether the cache may share the slabs of another cache whose slots fit. By default it does
    /// not, so that the table of caches lists both. A cache with a constructor, a limit, a sheaf
    /// capacity, a tuning, a context for frees, type safety or prefaulting never shares.
    ///
    /// ```
    /// use uslub::RawCache;
    /// let one = RawCache::builder("one", 776).merge(true).build()?;
    /// let two = RawCache::builder("two", 776).merge(true).build()?;
    /// let apart = RawCache::builder("apart", 776).merge(false).build()?;
    /// assert_eq!((two.name(), apart.name()), (one.name(), "apart"));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn merge(mut self, merge: bool) -> Self {
        self.args.flags.set(Flags::NO_MERGE, !merge);
        self
    }

    /// Whether the pages of a slab are touched when the slab is taken, so that no later touch
    /// enters the kernel.
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let ticks = RawCache::builder("tick", 128).prefault(true).build()?;
    /// let mut aside = ticks.prefill(8, Gfp::KERNEL)?;
    /// // Writing to it now is no page fault either.
    /// let tick = aside.alloc().expect("one of eight");
    /// // SAFETY: 128 bytes of ours, freed once.
    /// unsafe {
    ///     tick.write_bytes(0, 128);
    ///     ticks.free(tick.as_ptr());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault(mut self, prefault: bool) -> Self {
        self.args.flags.set(Flags::PREFAULT, prefault);
        self
    }

    /// What a plain free may do (by default all: [`Gfp::KERNEL`]).
    ///
    /// ```
    /// use uslub::{Gfp, RawCache};
    /// let events = RawCache::builder("event", 48).frees(Gfp::NOSPIN).build()?;
    /// let event = events.alloc(Gfp::KERNEL).expect("memory");
    /// // SAFETY: freed once. This waits for no lock.
    /// unsafe { events.free(event.as_ptr()) };
    /// assert_eq!(events.stats().info.live_objs(), 0);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn frees(mut self, gfp: Gfp) -> Self {
        self.args.free_gfp = gfp;
        self
    }

    /// Creates the cache.
    ///
    /// ```
    /// use uslub::{CreateError, RawCache};
    /// assert_eq!(RawCache::builder("route", 80).build()?.object_size(), 80);
    /// assert_eq!(RawCache::builder("huge", 65_537).build().err(), Some(CreateError::BadSize));
    /// # Ok::<(), CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CreateError`].
    ///
    /// # Panics
    ///
    /// For a type-safe cache if no grace period was set and the feature `crossbeam-epoch` is off.
    pub fn build(self) -> Result<RawCache, CreateError> {
        let allocator = allocator().ok_or(CreateError::NoMemory)?;
        let mut args = self.args;
        if let Some(align) = self.align {
            if !align.is_power_of_two() {
                return Err(CreateError::BadAlign);
            }
            args.align = align;
        }
        args.ctor = self.ctor.as_ref().map(|ctor| ctor.0);
        if let Some(range) = self.capacity {
            let (least, most) = checked(range)?;
            args.sheaf_capacity = Some(least);
            args.tuning = Some(Tuning {
                sheaf_capacity_max: most as u32,
                ..args.tuning.unwrap_or(allocator.tunables().tuning)
            });
        }
        if args.flags.contains(Flags::TYPESAFE_BY_RCU) {
            rcu::require();
        }
        let cache = allocator.create(&args)?;
        if let Some(ctor) = self.ctor {
            ctor.keep();
        }
        Ok(RawCache::of(cache))
    }
}

impl fmt::Debug for RawBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBuilder")
            .field("name", &self.args.name)
            .field("size", &self.args.size)
            .finish_non_exhaustive()
    }
}

/// The bounds of a range of capacities, checked.
fn checked(range: RangeInclusive<usize>) -> Result<(usize, usize), CreateError> {
    let (least, most) = range.into_inner();
    if least == 0 || least > most || least > MAX_CAPACITY {
        return Err(CreateError::BadCapacity);
    }
    Ok((least, most.min(MAX_CAPACITY)))
}

/// The description of a cache of objects of type `T`; see [`Cache::builder`].
///
/// ```
/// use uslub::Cache;
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Order {
///     price: u64,
///     quantity: u32,
/// }
///
/// let orders = Cache::<Order>::builder("order").hwcache_align().limit(64 << 20).build()?;
/// let order = orders.alloc(Order { price: 101, quantity: 5 })?;
/// assert_eq!(order.quantity, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a description is not a cache yet"]
pub struct Builder<'n, T> {
    raw: RawBuilder<'n>,
    object: PhantomData<fn(T) -> T>,
}

impl<'n, T> Builder<'n, T> {
    pub(crate) fn new(name: &'n str) -> Self {
        Self {
            raw: RawBuilder::new(name, size_of::<T>()).align(align_of::<T>()),
            object: PhantomData,
        }
    }

    pub(crate) fn with(self, change: impl FnOnce(RawBuilder<'n>) -> RawBuilder<'n>) -> Self {
        Self {
            raw: change(self.raw),
            object: PhantomData,
        }
    }

    /// Aligns objects to `bytes` bytes, a power of two up to 4096, if this is more than the type
    /// needs.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let rings = Cache::builder("ring").align(1024).build()?;
    /// let ring = rings.alloc([0u32; 20])?;
    /// assert_eq!(Object::as_ptr(&ring).as_ptr() as usize % 1024, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn align(self, bytes: usize) -> Self {
        let least = align_of::<T>();
        self.with(|raw| {
            raw.align(if bytes.is_power_of_two() {
                bytes.max(least)
            } else {
                bytes
            })
        })
    }

    /// Constructs each object when it first leaves a fresh slab; [`Cache::alloc_constructed`] hands
    /// it out. A user's changes stay in the object when it is dropped, and the next user finds
    /// them, as with the kernel's constructors.
    ///
    /// The closure runs inside calls that allocate, on any thread, but never in a call with
    /// [`Gfp::NOSPIN`]. If it panics, the call panics, and no object is lost. `T` must not need a
    /// drop: [`build`](Self::build) refuses such a type.
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use uslub::Cache;
    ///
    /// let buffers = Cache::builder("buffer").constructor(|| Mutex::new([0u8; 512])).build()?;
    /// let buffer = buffers.alloc_constructed()?;
    /// buffer.lock().unwrap()[0] = 1;
    /// drop(buffer);
    /// assert_eq!(buffers.alloc_constructed()?.lock().unwrap()[0], 1, "as it was left");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn constructor<F>(self, construct: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Send,
    {
        self.with(|raw| {
            // SAFETY: memory for a `T`, which only the constructor uses.
            raw.constructor(move |object| unsafe { object.cast::<T>().write(construct()) })
        })
    }

    /// As [`constructor`](Self::constructor), but writes the object in place, without a copy on the
    /// stack.
    ///
    /// ```
    /// use uslub::Cache;
    /// let pages = Cache::<[u8; 4096]>::builder("page");
    /// // SAFETY: the closure writes all bytes.
    /// let pages = unsafe { pages.constructor_in_place(|page| {
    ///     page.as_mut_ptr().write_bytes(0x5a, 1);
    /// }) };
    /// let pages = pages.build()?;
    /// assert_eq!(pages.alloc_constructed()?[4095], 0x5a);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// When the closure returns, the object is a valid `T`.
    pub unsafe fn constructor_in_place<F>(self, construct: F) -> Self
    where
        F: Fn(&mut MaybeUninit<T>) + Send + Sync + 'static,
        T: Send,
    {
        self.with(|raw| {
            // SAFETY: memory for a `T`, which only the constructor uses.
            raw.constructor(move |object| construct(unsafe { &mut *object.cast() }))
        })
    }

    /// Begins each object at a cache line; small objects at a fraction of a line that fits them.
    ///
    /// ```
    /// let counters = uslub::Cache::<[u64; 5]>::builder("counter").hwcache_align().build()?;
    /// assert_eq!(counters.as_raw().align(), 64);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn hwcache_align(self) -> Self {
        self.with(RawBuilder::hwcache_align)
    }

    /// Keeps the type of freed objects for readers; see [`RawBuilder::typesafe_by_rcu`].
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// let sockets = uslub::Cache::builder("socket").typesafe_by_rcu().build()?;
    /// let reader = crossbeam_epoch::pin();
    /// let socket = uslub::Object::into_raw(sockets.alloc(AtomicU32::new(443))?);
    /// // SAFETY: freed once; as we are pinned, it stays a socket, if perhaps another's.
    /// unsafe {
    ///     sockets.free_raw(socket);
    ///     assert_eq!(socket.as_ref().load(Ordering::Acquire), 443);
    /// }
    /// drop(reader);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn typesafe_by_rcu(self) -> Self {
        self.with(RawBuilder::typesafe_by_rcu)
    }

    /// Objects that a sheaf holds, minimum and maximum; see [`RawBuilder::sheaf_capacity`].
    ///
    /// ```
    /// let hops = uslub::Cache::<[u32; 8]>::builder("hop").sheaf_capacity(4..=4).build()?;
    /// assert_eq!(hops.stats().sheaf_capacity_max, 4, "it does not grow");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn sheaf_capacity(self, range: RangeInclusive<usize>) -> Self {
        self.with(|raw| raw.sheaf_capacity(range))
    }

    /// Most bytes of slabs that the cache may have; see [`RawBuilder::limit`].
    ///
    /// ```
    /// let uploads = uslub::Cache::builder("upload").limit(128 << 10).build()?;
    /// let mut held = Vec::new();
    /// while let Ok(upload) = uploads.alloc([0u8; 8192]) {
    ///     held.push(upload);
    /// }
    /// assert!(uploads.stats().slab_bytes() <= 128 << 10);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn limit(self, bytes: usize) -> Self {
        self.with(|raw| raw.limit(bytes))
    }

    /// Whether the cache may share the slabs of another cache whose slots fit; see
    /// [`RawBuilder::merge`].
    ///
    /// ```
    /// use uslub::Cache;
    /// let red = Cache::<[u8; 776]>::builder("red").merge(true).build()?;
    /// let black = Cache::<[u8; 776]>::builder("black").merge(true).build()?;
    /// assert_eq!((black.name(), red.stats().aliases), ("red", 1));
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn merge(self, merge: bool) -> Self {
        self.with(|raw| raw.merge(merge))
    }

    /// Whether the pages of a slab are touched when the slab is taken, so that no later touch
    /// enters the kernel.
    ///
    /// ```
    /// let orders = uslub::Cache::builder("order").prefault(true).build()?;
    /// let mut aside = orders.prefill(16)?;
    /// // The first write to this one enters the kernel no more than the second.
    /// assert_eq!(*aside.alloc((101u64, 5u32)), (101, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefault(self, prefault: bool) -> Self {
        self.with(|raw| raw.prefault(prefault))
    }

    /// What a plain free may do (by default all: [`Gfp::KERNEL`]).
    ///
    /// ```
    /// use uslub::{Cache, Gfp};
    /// let samples = Cache::builder("sample").frees(Gfp::NOSPIN).build()?;
    /// let sample = samples.alloc(0.5f64)?;
    /// drop(sample); // which waits for no lock
    /// assert_eq!(samples.stats().info.live_objs(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn frees(self, gfp: Gfp) -> Self {
        self.with(|raw| raw.frees(gfp))
    }

    /// Creates the cache.
    ///
    /// ```
    /// use uslub::{Cache, CreateError};
    /// assert_eq!(Cache::<u128>::builder("address").build()?.name(), "address");
    /// let hosts = Cache::builder("host").constructor(String::new).build();
    /// assert_eq!(hosts.err(), Some(CreateError::NeedsDrop));
    /// # Ok::<(), CreateError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CreateError`]. Among other reasons: a type without bytes, or a constructor of a type that
    /// needs a drop.
    ///
    /// # Panics
    ///
    /// For a type-safe cache if no grace period was set and the feature `crossbeam-epoch` is off.
    pub fn build(self) -> Result<Cache<T>, CreateError> {
        if size_of::<T>() == 0 {
            return Err(CreateError::ZeroSized);
        }
        if needs_drop::<T>() && self.raw.ctor.is_some() {
            return Err(CreateError::NeedsDrop);
        }
        Ok(Cache::of(self.raw.build()?))
    }
}

impl<T> fmt::Debug for Builder<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
