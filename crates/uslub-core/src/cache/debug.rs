//! Debugged caches, as the calls of `cache` and `kmalloc` see them.
//!
//! | call | what is different |
//! |---|---|
//! | creation | `slab_debug` adds flags; O drops flags that raise the order |
//! | allocation, free | one by one, under the list lock; no sheaf |
//! | size of an object | with U in a size class: what was asked for |
//! | resize | in place while half of the object is used |
//!
//! Any thread may call.

use core::fmt::Write;
use core::ptr::null_mut;

use crate::args::{CacheArgs, Flags, ObjectLayout};
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::debug::DebugFlags;
use crate::debug::options::SlabDebug;
use crate::gfp::Gfp;
use crate::platform::{PAGE_SIZE, Platform, Watch};
use crate::policy::RECLAIM_TRIES;
use crate::slab::debug::depot::STACK_MAX;
use crate::slab::debug::track::Which;
use crate::slab::debug::validate::{GROUPS_MAX, TrackGroup};

/// Why the debugging of a cache was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugError {
    /// The cache is not debugged: its objects may lie in sheaves.
    NotDebugged,
    /// The flags need a layout that the cache does not have.
    NoRoom,
}

impl core::fmt::Display for DebugError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            DebugError::NotDebugged => "the cache is not debugged: create it with F, Z, P, U or T",
            DebugError::NoRoom => {
                "a named cache switches F and T at any time, and U where it began with U"
            }
        })
    }
}

impl core::error::Error for DebugError {}

impl<P: Platform> Allocator<P> {
    /// Sets the value of `slab_debug`, for caches that are created later.
    ///
    /// # Safety
    ///
    /// Before any other thread uses the allocator.
    pub unsafe fn set_slab_debug(&self, options: SlabDebug<'static>) {
        // SAFETY: passed on.
        unsafe { self.debug.set_options(options) };
    }

    /// Whether size classes may be debugged in this process.
    pub(crate) fn may_debug_classes(&self) -> bool {
        let tunables = self.tunables();
        let zeroes = tunables.init_on_alloc == 1 || tunables.init_on_free == 1;
        self.debug.options() != SlabDebug::NONE
            || zeroes
            || tunables.failslab().is_on()
            || self.platform.is_watched()
    }

    /// The flags of a cache with these arguments.
    pub(crate) fn debug_flags_for(&self, args: &CacheArgs<'_>) -> DebugFlags {
        self.debug_flags_by(self.debug.options(), args)
    }

    /// As [`debug_flags_for`](Self::debug_flags_for), by another value of `slab_debug`.
    #[cold]
    #[inline(never)]
    pub(crate) fn debug_flags_by(
        &self,
        options: SlabDebug<'_>,
        args: &CacheArgs<'_>,
    ) -> DebugFlags {
        let tunables = self.tunables();
        let mut flags = options.flags_for(args.name, args.debug);
        let order = |flags| {
            let layout = ObjectLayout::of(&CacheArgs {
                debug: flags,
                ..*args
            });
            let pages = layout.map_or(1, |layout| layout.size.div_ceil(PAGE_SIZE));
            pages.next_power_of_two()
        };
        if options.guards_order() && order(flags) > order(flags - DebugFlags::METADATA) {
            flags -= DebugFlags::METADATA;
        }
        if tunables.init_on_alloc == 1 {
            flags |= DebugFlags::INIT_ON_ALLOC;
        }
        if tunables.init_on_free == 1 {
            flags |= DebugFlags::INIT_ON_FREE;
        }
        let chosen = tunables.failslab_cache == 0 || flags.contains(DebugFlags::FAILSLAB);
        if tunables.failslab().is_on() && chosen {
            flags |= DebugFlags::MAY_FAIL;
        }
        // Readers may look at freed objects of a type-safe cache.
        if self.platform.is_watched() && !args.flags.contains(Flags::TYPESAFE_BY_RCU) {
            flags |= DebugFlags::WATCHED | DebugFlags::RED_ZONE;
            if flags.contains(DebugFlags::KMALLOC) {
                // It keeps the size that was asked for.
                flags |= DebugFlags::STORE_USER;
            }
        }
        flags
    }

    /// Whether this allocation fails by `failslab`. Says so, with the stack, if that is wanted.
    #[cold]
    #[inline(never)]
    pub(crate) fn fails_on_purpose(&self, name: &str, bytes: usize, gfp: Gfp) -> bool {
        let fails = !gfp.contains(Gfp::NOFAIL) && self.debug.fail.should_fail();
        if fails && self.tunables().failslab_trace == 1 {
            self.report_failure(name, bytes);
        }
        fails
    }

    /// Allocates `bytes` bytes from a debugged cache; null without memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_debugged(&self, cache: &KmemCache<P>, bytes: usize, gfp: Gfp) -> *mut u8 {
        self.check_not_ended(cache);
        if gfp.may_spin() {
            self.drain_deferred(cache);
        }
        let may_fail = cache.debug.get().contains(DebugFlags::MAY_FAIL);
        if may_fail && self.fails_on_purpose(cache.name(), bytes, gfp) {
            return null_mut();
        }
        let nid = self.memory_node(self.nid());
        let mut object = null_mut();
        for attempt in 0.. {
            object = self.debug_alloc(cache, bytes, gfp, nid);
            if !object.is_null()
                || (attempt >= RECLAIM_TRIES && !gfp.contains(Gfp::NOFAIL))
                || !self.reclaim_for(cache, gfp)
            {
                break;
            }
        }
        self.end_allocation(gfp);
        object
    }

    /// Allocates `bytes` bytes from a debugged size class. A caller that zeroes the object zeroes
    /// all of it, so its size is the class's.
    #[cold]
    #[inline(never)]
    pub(crate) fn kmalloc_debugged(&self, cache: &KmemCache<P>, bytes: usize, gfp: Gfp) -> *mut u8 {
        let whole = gfp.contains(Gfp::ZERO);
        let asked = if whole { cache.object_size() } else { bytes };
        self.alloc_debugged(cache, asked, gfp)
    }

    /// As [`alloc`](Self::alloc), for a caller that needs only `bytes` bytes of the object: with Z
    /// and U, the rest of a size class's object is a red zone. Not zeroed.
    pub fn alloc_for(&self, cache: &KmemCache<P>, bytes: usize, gfp: Gfp) -> *mut u8 {
        if cache.is_debugged() {
            self.alloc_debugged(cache, bytes.min(cache.object_size()), gfp)
        } else {
            self.alloc(cache, gfp - Gfp::ZERO)
        }
    }

    /// Allocates an object of a debugged cache on a node.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_on_debugged(&self, cache: &KmemCache<P>, gfp: Gfp, nid: usize) -> *mut u8 {
        let object = self.debug_alloc(cache, cache.object_size(), gfp, nid);
        if gfp.contains(Gfp::ZERO) && !object.is_null() {
            self.zero_object(cache, object);
        }
        self.end_allocation(gfp);
        object
    }

    /// Usable bytes of an object of a debugged cache.
    pub(crate) fn size_of_debugged(&self, cache: &KmemCache<P>, object: *mut u8) -> usize {
        match cache.layout.asked {
            0 => cache.object_size(),
            _ => self.asked_for(cache, object),
        }
    }

    /// Allocates a whole object from a debugged cache. A function of its own, so that its caller
    /// keeps its frame.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_whole_debugged(&self, cache: &KmemCache<P>, gfp: Gfp) -> *mut u8 {
        self.alloc_debugged(cache, cache.object_size(), gfp)
    }

    /// Allocates an array of objects from a debugged cache, all or none.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_bulk_debugged(
        &self,
        cache: &KmemCache<P>,
        gfp: Gfp,
        out: &mut [*mut u8],
    ) -> bool {
        for at in 0..out.len() {
            out[at] = self.alloc_debugged(cache, cache.object_size(), gfp);
            if out[at].is_null() {
                for &object in &out[..at] {
                    self.debug_free(cache, object, gfp);
                }
                return false;
            }
            if gfp.contains(Gfp::ZERO) {
                self.zero_object(cache, out[at]);
            }
        }
        true
    }

    /// Frees an array of objects to a debugged cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_bulk_debugged(&self, cache: &KmemCache<P>, objects: &[*mut u8], gfp: Gfp) {
        for &object in objects {
            if self.is_object_of(cache, object) {
                self.debug_free(cache, object, gfp);
            }
        }
    }

    /// Resizes an object of a debugged size class in place. `None` for any other object; the size
    /// of the object as the error if it must be copied.
    pub(crate) fn resize_debugged(
        &self,
        object: *mut u8,
        bytes: usize,
        gfp: Gfp,
    ) -> Option<Result<*mut u8, usize>> {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(object as usize) else {
            return self.resize_guarded(object, bytes);
        };
        let id = arena.cache_of(page)?;
        let cache = self.cache(id).filter(|cache| cache.is_debugged())?;
        let slab = cache.slab_of(arena, page);
        if !cache.is_debug_slot(self.slab_base(slab), object) {
            return None;
        }
        let (size, old) = (cache.object_size(), self.asked_for(cache, object));
        if bytes > size || bytes < size / 2 {
            return Some(Err(old));
        }
        self.debug_resize(cache, (slab, object), bytes, gfp.contains(Gfp::ZERO));
        Some(Ok(object))
    }

    /// Switches F, T and U of a debugged cache on or off: those in `on` are set, the others
    /// cleared. Z and P stay as they are.
    ///
    /// # Errors
    ///
    /// If the cache is not debugged, or U is asked for and the cache began without it.
    pub fn set_debug(&self, cache: &KmemCache<P>, on: DebugFlags) -> Result<(), DebugError> {
        let switched = DebugFlags::CONSISTENCY_CHECKS | DebugFlags::TRACE | DebugFlags::STORE_USER;
        if !cache.is_debugged() {
            return Err(DebugError::NotDebugged);
        }
        let fixed = DebugFlags::RED_ZONE | DebugFlags::POISON;
        let more = (on & fixed) - cache.debug.get();
        let users = on.contains(DebugFlags::STORE_USER) && cache.layout.tracks == 0;
        if !more.is_empty() || users {
            return Err(DebugError::NoRoom);
        }
        cache
            .debug
            .set((cache.debug.get() - switched) | (on & switched));
        Ok(())
    }

    /// Validates a debugged cache: checks every slab and every object, and repairs. Returns the
    /// slabs that were looked at; each report and each repair counts in
    /// [`errors`](crate::slab::debug::state::DebugState::errors). Never ends the process.
    ///
    /// # Errors
    ///
    /// If the cache has nothing to validate.
    pub fn validate_slabs_of(&self, cache: &KmemCache<P>) -> Result<usize, DebugError> {
        if !cache.debug.get().is_checked() || !cache.is_debugged() {
            return Err(DebugError::NotDebugged);
        }
        self.drain_deferred(cache);
        Ok(self.validate_debugged(cache))
    }

    /// Writes where the objects in use were allocated, or where their slots were freed last, one
    /// block a caller, the most objects first: the kernel's `alloc_traces` and `free_traces`.
    ///
    /// # Errors
    ///
    /// If `out` refuses.
    pub fn write_traces(
        &self,
        cache: &KmemCache<P>,
        which: Which,
        out: &mut dyn Write,
    ) -> core::fmt::Result {
        let mut groups = [TrackGroup::default(); GROUPS_MAX];
        let n = if cache.layout.tracks == 0 {
            0
        } else {
            self.group_tracks(cache, which, &mut groups)
        };
        for group in &groups[..n] {
            self.write_group(group, out)?;
        }
        if n == 0 {
            out.write_str("No data\n")?;
        }
        Ok(())
    }

    fn write_group(&self, group: &TrackGroup, out: &mut dyn Write) -> core::fmt::Result {
        let TrackGroup {
            caller,
            stack,
            count,
            waste,
            ..
        } = *group;
        if !group.is_known {
            return writeln!(out, "{count:7} <not-available>\n");
        }
        write!(out, "{count:7} {}", self.platform.place(caller))?;
        if waste > 0 {
            write!(out, " waste={waste}/{}", waste / count)?;
        }
        let (min, max, sum) = group.age;
        write!(out, " age={min}")?;
        if sum != u64::from(min) * count as u64 {
            write!(out, "/{}/{max}", sum / count as u64)?;
        }
        let (low, high) = group.tids;
        write!(out, " pid={low}")?;
        if high != low {
            write!(out, "-{high}")?;
        }
        out.write_str("\n")?;
        self.write_stack(stack, "        ", out)?;
        out.write_str("\n")
    }

    /// Writes the frames of a stack of the depot, one a line, behind an indent.
    fn write_stack(&self, stack: u32, indent: &str, out: &mut dyn Write) -> core::fmt::Result {
        let mut frames = [0; STACK_MAX];
        let len = self.debug.depot.get(stack, &mut frames);
        (frames[..len].iter())
            .try_for_each(|&frame| writeln!(out, "{indent}{}", self.platform.place(frame)))
    }

    /// Writes what is known of a pointer, in one line and its stacks: the kernel's
    /// `kmem_dump_obj`. False for a pointer into no slab.
    pub fn write_object(&self, pointer: *mut u8, out: &mut dyn Write) -> bool {
        let arena = &self.zone.arena;
        let Some(page) = arena.page_of(pointer as usize) else {
            return false;
        };
        let Some(cache) = arena.cache_of(page).and_then(|id| self.cache(id)) else {
            return false;
        };
        let base = self.slab_base(cache.slab_of(arena, page));
        let slot = cache.slot_at(pointer as usize - base as usize);
        let object = base.wrapping_add(slot * cache.size as usize);
        let object = object.wrapping_add(cache.layout.left as usize);
        let offset = (pointer as usize).wrapping_sub(object as usize) as isize;
        let (name, left, size) = (cache.name(), cache.layout.left, cache.object_size());
        let _ = write!(out, " slab {name} start {object:p} data offset {left}");
        let _ = write!(out, " pointer offset {offset} size {size}");
        self.watch(cache, Watch::Enter);
        for (which, verb) in [
            (Which::Alloc, " allocated at"),
            (Which::Free, " Free path:"),
        ] {
            if let Some(track) = cache.track(object, which) {
                let _ = writeln!(out, "{verb} {}", self.platform.place(track.caller));
                let _ = self.write_stack(track.stack, "    ", out);
            }
        }
        self.watch(cache, Watch::Leave);
        let _ = out.write_str("\n");
        true
    }
}
