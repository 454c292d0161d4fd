//! Memory pools: the kernel's `mempool_t`.
//!
//! The order of an allocation's steps, and the rules for waiters, are in [`uslub_core::mempool`].
//! Threads share a pool by reference.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

use uslub_core::Gfp;
use uslub_core::mempool::{self, MempoolError, Source};
use uslub_linux::Linux;

use crate::cache::Cache;
use crate::error::AllocError;
use crate::instance::{ALLOCATOR, allocator};
use crate::raw::as_pointers;

/// A pool that reserves `min_nr` elements, so that `min_nr` operations can be in flight when memory
/// has run out.
///
/// An allocation asks the source first, and the reserve if the source fails. A freed element
/// refills the reserve before it goes to the source. With `GFP_KERNEL` an allocation waits for an
/// element if necessary, and never fails. A pool's array comes from [`kmalloc`](crate::kmalloc).
/// Dropping the pool gives the reserve back.
///
/// ```
/// use uslub::{Cache, Mempool};
///
/// struct Request { sector: u64 }
///
/// let requests = Cache::builder("request").limit(32 << 10).build()?;
/// let pool = Mempool::new(&requests, 4)?;
/// // Somebody else uses up all memory.
/// let mut others = Vec::new();
/// while let Ok(other) = requests.alloc(Request { sector: 0 }) {
///     others.push(other);
/// }
/// // Still, four requests can be in flight.
/// let inflight: Vec<_> = (0..4).map(|sector| pool.alloc(Request { sector })).collect();
/// assert_eq!(inflight[3].sector, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mempool<T, S: Source> {
    pool: mempool::Mempool<'static, Linux, S>,
    element: PhantomData<fn(T) -> T>,
}

/// A source of elements that are objects of a [`Cache`] (the kernel's `mempool_alloc_slab`).
///
/// ```
/// use uslub::{Cache, CacheSource, Mempool};
/// struct Disk<'c> {
///     bios: Mempool<u64, CacheSource<'c, u64>>,
/// }
/// let cache = Cache::new("bio")?;
/// let disk = Disk { bios: Mempool::new(&cache, 2)? };
/// assert_eq!(*disk.bios.alloc(2048), 2048);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CacheSource<'c, T> {
    cache: &'c Cache<T>,
}

impl<T> Source for CacheSource<'_, T> {
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        self.cache
            .as_raw()
            .alloc(gfp)
            .map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.cache.as_raw().free(element) };
    }
}

/// A source of elements by two closures; see [`Mempool::from_source`].
///
/// ```
/// use std::ptr::null_mut;
/// use uslub::{FnSource, Mempool, kfree, kmalloc};
/// let source = FnSource::new(
///     |gfp| kmalloc(512, gfp).map_or(null_mut(), |sector| sector.as_ptr()),
///     // SAFETY: an element of the pool, freed once.
///     |sector| unsafe { kfree(sector) },
/// );
/// // SAFETY: elements have 512 bytes, aligned for bytes.
/// let sectors = unsafe { Mempool::<[u8; 512], _>::from_source(1, source)? };
/// assert_eq!(sectors.alloc([9; 512])[511], 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FnSource<A, F> {
    alloc: A,
    free: F,
}

impl<A, F> FnSource<A, F>
where
    A: Fn(Gfp) -> *mut u8,
    F: Fn(*mut u8),
{
    /// A source. `alloc` returns an element or null, and does only what its flags allow. `free`
    /// takes an element back.
    ///
    /// ```
    /// use std::ptr::null_mut;
    /// use uslub::{FnSource, Gfp, Source};
    /// let dry = FnSource::new(|_| null_mut(), |_| unreachable!("it gave nothing"));
    /// assert!(dry.alloc(Gfp::KERNEL).is_null());
    /// ```
    pub fn new(alloc: A, free: F) -> Self {
        Self { alloc, free }
    }
}

impl<A, F> Source for FnSource<A, F>
where
    A: Fn(Gfp) -> *mut u8,
    F: Fn(*mut u8),
{
    fn alloc(&self, gfp: Gfp) -> *mut u8 {
        (self.alloc)(gfp)
    }

    unsafe fn free(&self, element: *mut u8) {
        (self.free)(element);
    }
}

impl<A, F> fmt::Debug for FnSource<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FnSource")
    }
}

impl<'c, T> Mempool<T, CacheSource<'c, T>> {
    /// A pool that reserves `min_nr` objects of a cache; it takes them at once.
    ///
    /// ```
    /// use uslub::{Cache, Mempool};
    /// let cache = Cache::<[u8; 256]>::new("command")?;
    /// let commands = Mempool::new(&cache, 4)?;
    /// assert_eq!((commands.curr_nr(), cache.stats().info.live_objs()), (4, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; then the elements taken so far go back.
    ///
    /// # Panics
    ///
    /// If the cache has a constructor: elements in a reserve lose their constructed state.
    pub fn new(cache: &'c Cache<T>, min_nr: usize) -> Result<Self, MempoolError> {
        assert!(
            !cache.is_constructed(),
            "a pool of cache '{}', which has a constructor",
            cache.name()
        );
        // SAFETY: objects of the cache are memory for a `T`.
        unsafe { Self::from_source(min_nr, CacheSource { cache }) }
    }
}

impl<T, S: Source> Mempool<T, S> {
    /// A pool over the elements of any source.
    ///
    /// ```
    /// use uslub::{FnSource, Mempool, kfree, kmalloc};
    /// let source = FnSource::new(
    ///     |gfp| kmalloc(4096, gfp).map_or(std::ptr::null_mut(), |page| page.as_ptr()),
    ///     // SAFETY: an element of the pool, freed once.
    ///     |page| unsafe { kfree(page) },
    /// );
    /// // SAFETY: elements are as large as a page, and aligned for bytes.
    /// let pool = unsafe { Mempool::<[u8; 4096], _>::from_source(2, source)? };
    /// let page = pool.alloc([0; 4096]);
    /// assert_eq!((pool.min_nr(), page.len()), (2, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// Each element of the source is memory for a `T`, and no other code uses it until the source
    /// takes it back. The source does not panic.
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; then the elements taken so far go back.
    pub unsafe fn from_source(min_nr: usize, source: S) -> Result<Self, MempoolError> {
        allocator().ok_or(MempoolError::NoMemory)?;
        Ok(Self {
            pool: mempool::Mempool::new(&ALLOCATOR, min_nr, source)?,
            element: PhantomData,
        })
    }

    /// Number of elements that the pool reserves.
    ///
    /// ```
    /// # use uslub::{Cache, Mempool};
    /// let cache = Cache::<u64>::new("reply")?;
    /// assert_eq!(Mempool::new(&cache, 16)?.min_nr(), 16);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn min_nr(&self) -> usize {
        self.pool.min_nr()
    }

    /// Number of elements in the reserve now.
    ///
    /// ```
    /// # use uslub::{Cache, Mempool};
    /// # let cache = Cache::new("write")?;
    /// let writes = Mempool::new(&cache, 3)?;
    /// let write = writes.alloc(4096u64);
    /// assert!(writes.curr_nr() <= 3);
    /// drop(write);
    /// assert_eq!(writes.curr_nr(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn curr_nr(&self) -> usize {
        self.pool.curr_nr()
    }

    /// The source of the elements.
    ///
    /// ```
    /// use uslub::{Cache, Gfp, Mempool, Source};
    /// let cache = Cache::<u64>::new("ticket")?;
    /// let tickets = Mempool::new(&cache, 1)?;
    /// // Past the reserve:
    /// let ticket = tickets.source().alloc(Gfp::KERNEL);
    /// assert_eq!(tickets.curr_nr(), 1);
    /// // SAFETY: of this source, freed once.
    /// unsafe { tickets.source().free(ticket) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn source(&self) -> &S {
        self.pool.source()
    }

    /// Allocates an element and moves a value into it. Waits for an element if necessary, so it
    /// never fails.
    ///
    /// Do not call it if the next element to be freed is the caller's own: the wait would never
    /// end.
    ///
    /// ```
    /// # use uslub::{Cache, Mempool};
    /// let cache = Cache::new("ack")?;
    /// let acks = Mempool::new(&cache, 1)?;
    /// for sequence in 0..1000u32 {
    ///     assert_eq!(*acks.alloc(sequence), sequence);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alloc(&self, value: T) -> Element<'_, T, S> {
        loop {
            // Null never comes. If it did, the loop would be the wait.
            if let Some(element) = self.alloc_raw(Gfp::KERNEL) {
                // SAFETY: memory for a `T`, which this function owns.
                return unsafe { Element::new(element, value, self) };
            }
        }
    }

    /// As [`alloc`](Self::alloc), in a context of the caller's choice.
    ///
    /// ```
    /// use uslub::{Cache, Gfp, Mempool};
    /// let cache = Cache::new("bio")?;
    /// let pool = Mempool::new(&cache, 1)?;
    /// let bio = pool.try_alloc(5u32, Gfp::NOWAIT)?;
    /// assert_eq!(*bio, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AllocError`] with the value if source and reserve have no element and `gfp` does not allow
    /// waiting. Always with [`Gfp::ZERO`], because an element of the reserve has its old contents.
    pub fn try_alloc(&self, value: T, gfp: Gfp) -> Result<Element<'_, T, S>, AllocError<T>> {
        match self.alloc_raw(gfp) {
            // SAFETY: memory for a `T`, which this function owns.
            Some(element) => Ok(unsafe { Element::new(element, value, self) }),
            None => Err(AllocError(value)),
        }
    }

    /// Allocates memory for an element, with undefined contents. `None` if source and reserve have
    /// no element and `gfp` does not allow waiting.
    ///
    /// ```
    /// use uslub::{Cache, Gfp, Mempool};
    /// let cache = Cache::<u32>::new("slot")?;
    /// let slots = Mempool::new(&cache, 1)?;
    /// let slot = slots.alloc_raw(Gfp::NOWAIT).expect("the reserve's, if need be");
    /// // SAFETY: ours, written before it is read, freed once.
    /// unsafe {
    ///     slot.write(6);
    ///     assert_eq!(slot.read(), 6);
    ///     slots.free_raw(slot);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alloc_raw(&self, gfp: Gfp) -> Option<NonNull<T>> {
        NonNull::new(self.pool.alloc(gfp).cast())
    }

    /// Frees the memory of an element without dropping its contents.
    ///
    /// ```
    /// use uslub::{Cache, Element, Mempool};
    /// let cache = Cache::new("frame")?;
    /// let frames = Mempool::new(&cache, 2)?;
    /// let frame = Element::into_raw(frames.alloc([0u8; 64]));
    /// // SAFETY: of this pool, freed once.
    /// unsafe { frames.free_raw(frame) };
    /// assert_eq!(frames.curr_nr(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The element came from this pool or its source, and nobody uses it any longer.
    pub unsafe fn free_raw(&self, element: NonNull<T>) {
        // SAFETY: passed on.
        unsafe { self.pool.free(element.as_ptr().cast()) };
    }

    /// Allocates memory for each entry that is `None`.
    ///
    /// The reserve is used only if it has all elements that the source did not give. So two
    /// requests never hold a part of it each and wait for each other.
    ///
    /// ```
    /// use uslub::{Cache, Gfp, Mempool};
    /// let cache = Cache::<u64>::new("segment")?;
    /// let pool = Mempool::new(&cache, 8)?;
    /// let mut segments = [None; 8];
    /// pool.alloc_bulk(Gfp::KERNEL, &mut segments)?;
    /// // SAFETY: all are the pool's, and freed once.
    /// unsafe { pool.free_bulk(&mut segments) };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MempoolError::TooMany`] for more entries than `min_nr`, [`MempoolError::Zero`] for
    /// [`Gfp::ZERO`], and [`MempoolError::NoMemory`], but never with `GFP_KERNEL`. Entries that
    /// were filled before an error stay filled.
    pub fn alloc_bulk(
        &self,
        gfp: Gfp,
        elements: &mut [Option<NonNull<T>>],
    ) -> Result<(), MempoolError> {
        self.pool.alloc_bulk(gfp, as_pointers(elements))
    }

    /// Frees the memory of elements without dropping their contents, and sets the entries to
    /// `None`. Entries that are already `None` are skipped. Returns how many elements went to the
    /// reserve.
    ///
    /// ```
    /// use uslub::{Cache, Gfp, Mempool};
    /// let cache = Cache::<u64>::new("page_ref")?;
    /// let refs = Mempool::new(&cache, 4)?;
    /// let mut held = [None; 3];
    /// refs.alloc_bulk(Gfp::KERNEL, &mut held)?;
    /// // SAFETY: all are the pool's, and freed once.
    /// let kept = unsafe { refs.free_bulk(&mut held) };
    /// assert!(kept <= 3 && held == [None; 3] && refs.curr_nr() == 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// As for [`free_raw`](Self::free_raw), and no element is in the slice twice.
    pub unsafe fn free_bulk(&self, elements: &mut [Option<NonNull<T>>]) -> usize {
        // SAFETY: passed on.
        let kept = unsafe { self.pool.free_bulk(as_pointers(elements)) };
        elements.fill(None);
        kept
    }

    /// Changes how many elements the pool reserves; other threads may use the pool meanwhile.
    ///
    /// ```
    /// use uslub::{Cache, Mempool};
    /// let cache = Cache::<u64>::new("inflight")?;
    /// let inflight = Mempool::new(&cache, 2)?;
    /// inflight.resize(10)?;
    /// assert_eq!((inflight.min_nr(), inflight.curr_nr()), (10, 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`MempoolError::NoMemory`]; then the pool is unchanged. Shrinking does not fail.
    pub fn resize(&self, min_nr: usize) -> Result<(), MempoolError> {
        self.pool.resize(min_nr)
    }
}

impl<T, S: Source> fmt::Debug for Mempool<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool")
            .field("min_nr", &self.min_nr())
            .field("curr_nr", &self.curr_nr())
            .finish()
    }
}

/// An element of a pool, owned. Dropping it drops the value and gives the memory back to the pool,
/// which may wake a waiter.
///
/// ```
/// use uslub::{Cache, Element, Mempool};
/// let cache = Cache::new("handshake")?;
/// let pool = Mempool::new(&cache, 1)?;
/// let mut handshake: Element<'_, String, _> = pool.alloc(String::from("syn"));
/// handshake.push_str("-ack");
/// assert_eq!(*handshake, "syn-ack");
/// drop(handshake);
/// assert_eq!(pool.curr_nr(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Element<'p, T, S: Source> {
    element: NonNull<T>,
    pool: &'p Mempool<T, S>,
}

// SAFETY: it owns its value; threads share a pool whose source may be shared.
unsafe impl<T: Send, S: Source + Sync> Send for Element<'_, T, S> {}
// SAFETY: as above.
unsafe impl<T: Sync, S: Source + Sync> Sync for Element<'_, T, S> {}

impl<'p, T, S: Source> Element<'p, T, S> {
    /// The element is memory of the pool, and the caller owns it.
    unsafe fn new(element: NonNull<T>, value: T, pool: &'p Mempool<T, S>) -> Self {
        // SAFETY: by the caller's promise.
        unsafe { element.write(value) };
        Self { element, pool }
    }

    /// The bare pointer; [`Mempool::free_raw`] frees it.
    ///
    /// ```
    /// use uslub::{Cache, Element, Mempool};
    /// # let cache = Cache::new("cmd")?;
    /// let pool = Mempool::new(&cache, 1)?;
    /// let command = Element::into_raw(pool.alloc(0x28u8));
    /// // SAFETY: still ours, and freed once.
    /// unsafe {
    ///     assert_eq!(command.read(), 0x28);
    ///     pool.free_raw(command);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_raw(this: Self) -> NonNull<T> {
        ManuallyDrop::new(this).element
    }
}

impl<T, S: Source> Deref for Element<'_, T, S> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: owned by this value, and valid.
        unsafe { self.element.as_ref() }
    }
}

impl<T, S: Source> DerefMut for Element<'_, T, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: owned by this value alone, and valid.
        unsafe { self.element.as_mut() }
    }
}

impl<T, S: Source> Drop for Element<'_, T, S> {
    fn drop(&mut self) {
        /// Frees the memory even if the drop of the value panics.
        struct Memory<'a, T, S: Source>(NonNull<T>, &'a Mempool<T, S>);
        impl<T, S: Source> Drop for Memory<'_, T, S> {
            fn drop(&mut self) {
                // SAFETY: it was owned, and its value is dropped.
                unsafe { self.1.free_raw(self.0) };
            }
        }
        let memory = Memory(self.element, self.pool);
        // SAFETY: owned by this value, and dropped once.
        unsafe { memory.0.drop_in_place() };
    }
}

impl<T: fmt::Debug, S: Source> fmt::Debug for Element<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
