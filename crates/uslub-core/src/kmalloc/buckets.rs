//! Buckets: a caller's own set of size classes, the kernel's `kmem_buckets`.
//!
//! They keep objects whose size comes from outside apart from all others, with caches of their own
//! names. Each class has a cache `prefix-size`, created when first needed. Objects above the
//! largest class come from pages, as kmalloc's do. `kfree` frees all of them. Any thread may call;
//! a lock serialises the creation of caches.

use core::fmt::Write;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::args::{CacheArgs, CreateError, NAME_MAX};
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::text::Name;
use crate::gfp::Gfp;
use crate::kmalloc::class::class_name;
use crate::kmalloc::{CLASS_MAX, NR_CLASSES, class_of, class_size};
use crate::platform::Platform;
use crate::size_class::aligned_class;
use crate::sync::Lock;
use crate::sync::atomic::AtomicPtr;

/// Longest prefix, in bytes: a suffix such as `-8k` must fit behind it.
pub const PREFIX_MAX: usize = NAME_MAX - 5;

/// A set of size classes.
pub struct Buckets<P: Platform> {
    prefix: Name<NAME_MAX>,
    caches: [AtomicPtr<KmemCache<P>>; NR_CLASSES + 1],
    creating: Lock<P, ()>,
}

impl<P: Platform> Buckets<P> {
    /// A set without caches.
    ///
    /// # Errors
    ///
    /// If the prefix is empty or longer than [`PREFIX_MAX`] bytes.
    pub fn new(prefix: &str) -> Result<Self, CreateError> {
        let mut name = Name::EMPTY;
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || name.write_str(prefix).is_err() {
            return Err(CreateError::BadName);
        }
        Ok(Self {
            prefix: name,
            caches: [const { AtomicPtr::new(null_mut()) }; NR_CLASSES + 1],
            creating: Lock::new(()),
        })
    }

    /// The caches that exist.
    pub fn caches(&self) -> impl Iterator<Item = &KmemCache<P>> {
        // Acquire: pairs with the creation. SAFETY: records of caches are never freed.
        self.caches
            .iter()
            .filter_map(|cache| unsafe { cache.load(Acquire).as_ref() })
    }

    /// Allocates `bytes` (0 counts as 1), aligned as by kmalloc; null without memory.
    pub fn alloc(&self, allocator: &Allocator<P>, bytes: usize, gfp: Gfp) -> *mut u8 {
        if bytes > CLASS_MAX {
            return allocator.kmalloc(bytes, gfp);
        }
        let class = class_of(bytes).index();
        match self.cache(allocator, class, gfp) {
            Some(cache) => allocator.alloc(cache, gfp),
            None => null_mut(),
        }
    }

    /// As [`alloc`](Self::alloc), aligned to `align` bytes (a power of two).
    pub fn alloc_aligned(
        &self,
        allocator: &Allocator<P>,
        bytes: usize,
        align: usize,
        gfp: Gfp,
    ) -> *mut u8 {
        match aligned_class(bytes, align) {
            Some(class) => self.alloc(allocator, class_size(class), gfp),
            None => allocator.kmalloc_aligned(bytes.max(CLASS_MAX + 1), align, gfp),
        }
    }

    fn cache<'a>(
        &'a self,
        allocator: &Allocator<P>,
        class: usize,
        gfp: Gfp,
    ) -> Option<&'a KmemCache<P>> {
        let place = &self.caches[class];
        // Acquire: pairs with the creation. SAFETY: records of caches are never freed.
        if let Some(cache) = unsafe { place.load(Acquire).as_ref() } {
            return Some(cache);
        }
        if !gfp.may_map() {
            return None;
        }
        let _creating = self.creating.lock();
        // Relaxed: under the lock.
        if place.load(Relaxed).is_null() {
            let size = class_size(class);
            let name = class_name::<NAME_MAX>(self.prefix.as_str(), size);
            let mut args = CacheArgs::new(name.as_str(), size);
            // Aligned as kmalloc's classes.
            args.align = 1 << size.trailing_zeros().min(12);
            let cache = allocator.create(&args).ok()?;
            // Release: a thread that finds the cache sees its record.
            place.store(core::ptr::from_ref(cache).cast_mut(), Release);
        }
        // Relaxed: under the lock. SAFETY: records of caches are never freed.
        unsafe { place.load(Relaxed).as_ref() }
    }

    /// Destroys all caches; calls `leaked` with each object still in use (its cache stays), and
    /// returns the number of these objects.
    ///
    /// # Safety
    ///
    /// Nobody uses the set any longer, unless objects leaked.
    pub unsafe fn destroy(
        &self,
        allocator: &Allocator<P>,
        mut leaked: impl FnMut(*mut u8),
    ) -> usize {
        let mut count = 0;
        for place in &self.caches {
            // Acquire: pairs with the creation. SAFETY: records of caches are never freed.
            if let Some(cache) = unsafe { place.swap(null_mut(), Acquire).as_ref() } {
                // SAFETY: passed on.
                count += unsafe { allocator.destroy(cache, &mut leaked) };
            }
        }
        count
    }
}
