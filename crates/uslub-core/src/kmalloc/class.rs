//! The caches of the size classes: their names and arguments. A cache is created when its class is
//! first used. Callers: `alloc`, and `switch`, which gives classes other caches.

use core::fmt::Write;

use crate::args::CacheArgs;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::text::Name;
use crate::debug::DebugFlags;
use crate::gfp::Gfp;
use crate::percpu::CacheId;
use crate::percpu::sheaf::MAX_CAPACITY;
use crate::platform::{PAGE_SHIFT, PAGE_SIZE, Platform};
use crate::policy::{
    CLASS_GROWING_MAX_BYTES, CLASS_GROWN_BYTES, CLASS_KEPT_BYTES, CLASS_MIN_OBJECTS,
    CLASS_SHEAF_BYTES, INITIAL_CAPACITY_MAX,
};
use crate::size_class::class_size;

/// Name of a cache for objects of `size` bytes: `prefix-size`.
#[inline(never)]
pub(super) fn class_name<const N: usize>(prefix: &str, size: usize) -> Name<N> {
    let mut name = Name::EMPTY;
    let _ = if size.is_multiple_of(1024) {
        write!(name, "{prefix}-{}k", size / 1024)
    } else {
        write!(name, "{prefix}-{size}")
    };
    name
}

impl<P: Platform> Allocator<P> {
    /// The cache that serves a size class; created when it is first needed.
    pub(super) fn class_cache(&self, id: CacheId, gfp: Gfp) -> Option<&KmemCache<P>> {
        match self.cache(id) {
            None if gfp.may_map() => self.create_class(id),
            cache => cache.map(KmemCache::serving),
        }
    }

    /// Creates the cache of a size class.
    #[cold]
    #[inline(never)]
    fn create_class(&self, id: CacheId) -> Option<&KmemCache<P>> {
        let may_debug = self.may_debug_classes();
        let create = |args: &mut CacheArgs<'_>| self.create_at(id, args).ok();
        self.with_class_args(id, may_debug, create)
    }

    /// Calls `create` with the arguments of a size class's cache. A cache that is debugged keeps
    /// the alignment of a plain one.
    #[inline(always)]
    pub(super) fn with_class_args<T>(
        &self,
        id: CacheId,
        may_debug: bool,
        create: impl FnOnce(&mut CacheArgs<'_>) -> T,
    ) -> T {
        let size = class_size(id.index());
        let name = class_name::<16>("kmalloc", size);
        let mut args = CacheArgs::new(name.as_str(), size);
        args.debug = DebugFlags::KMALLOC;
        if may_debug {
            // Metadata would break the natural alignment.
            args.align = 1 << size.trailing_zeros().min(PAGE_SHIFT);
        }
        // Small slabs: a few long-lived objects pin less memory.
        if self.tunables().tuning.slab_min_objects == 0 {
            args.min_objects = Some(CLASS_MIN_OBJECTS);
            // The larger classes fill slabs of sixteen pages.
            if size > PAGE_SIZE {
                args.max_order = Some(self.tunables().tuning.slab_max_order + 1);
            }
        }
        // Many classes share the memory: each keeps little, and the page layer keeps freed pages
        // for a while.
        args.kept_bytes = Some(CLASS_KEPT_BYTES);
        // Objects freed in their order of allocation leave sheaf by sheaf, and slab by slab.
        args.slab_multiple_sheaves = true;
        if self.tunables().tuning.sheaf_capacity == 0 {
            args.sheaf_capacity = Some((CLASS_SHEAF_BYTES / size).clamp(1, INITIAL_CAPACITY_MAX));
            if self.tunables().tuning.sheaf_capacity_max == 0 && size <= CLASS_GROWING_MAX_BYTES {
                // Written in place: a second copy on the stack would need as much again.
                let tuning = args.tuning.insert(self.tunables().tuning);
                tuning.sheaf_capacity_max = (CLASS_GROWN_BYTES / size).min(MAX_CAPACITY) as u32;
            }
        }
        create(&mut args)
    }
}
