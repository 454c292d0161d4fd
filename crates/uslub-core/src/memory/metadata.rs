//! Memory for the allocator's own records: caches, nodes, sheaf windows.
//!
//! The store takes chunks from the system and never unmaps them. Nothing here comes from a slab, so
//! nothing recurses. One lock protects the store, but for free windows (`windows`).
//!
//! Callers: `cache` (records), `sheaf` and `rcu` (windows, scratch memory).

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::memory::windows::FreeWindows;
use crate::percpu::sheaf::{SHEAF_BYTES, Window};
use crate::platform::{FaultSite, Platform};
use crate::policy::{METADATA_CHUNK_BYTES, METADATA_CHUNK_LIMITED_BYTES, SCRATCH_WORDS};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{Lock, RawLock};

#[derive(Clone, Copy)]
struct Bump {
    at: usize,
    end: usize,
}

struct Inner {
    records: Bump,
    windows: Bump,
    /// Free scratch memory: linked by the first words.
    scratch: usize,
}

/// Temporary memory instead of a large array on the stack.
pub type Scratch = [MaybeUninit<*mut u8>; SCRATCH_WORDS];

/// The store of records.
pub struct MetadataStore<P> {
    inner: Lock<P, Inner>,
    free: FreeWindows<P>,
    used: AtomicUsize,
}

impl<P: Platform> MetadataStore<P> {
    /// An empty store.
    pub(crate) const fn new() -> Self {
        let none = Bump { at: 0, end: 0 };
        Self {
            inner: Lock::new(Inner {
                records: none,
                windows: none,
                scratch: 0,
            }),
            free: FreeWindows::new(),
            used: AtomicUsize::new(0),
        }
    }

    fn bump(
        &self,
        bump: &mut Bump,
        platform: &P,
        bytes: usize,
        align: usize,
        gfp: Gfp,
    ) -> Option<NonNull<u8>> {
        let mut at = bump.at.next_multiple_of(align);
        if bump.at == 0 || at + bytes > bump.end {
            if !gfp.may_map() {
                return None;
            }
            let chunk = if platform.is_limited() {
                METADATA_CHUNK_LIMITED_BYTES
            } else {
                METADATA_CHUNK_BYTES
            };
            let size = platform.whole_pages(chunk.max(bytes));
            at = platform.map(size)?.as_ptr() as usize;
            bump.end = at + size;
        }
        bump.at = at + bytes;
        // Relaxed: a statistic.
        self.used.fetch_add(bytes, Relaxed);
        NonNull::new(at as *mut u8)
    }

    /// Zeroed memory for a record, never freed; `align` is at most 4096 bytes.
    pub fn record(&self, platform: &P, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if platform.should_fail(FaultSite::Record) {
            return None;
        }
        let mut inner = self.inner.lock();
        self.bump(&mut inner.records, platform, bytes, align, Gfp::KERNEL)
    }

    /// A window for a sheaf.
    pub fn window(&self, platform: &P, gfp: Gfp) -> Option<NonNull<Window>> {
        if platform.should_fail(FaultSite::Sheaf) {
            return None;
        }
        if let Some(window) = self.free.take(platform, gfp.may_spin()) {
            return Some(window);
        }
        let mut inner = self.inner.lock_if(gfp.may_spin())?;
        self.bump(&mut inner.windows, platform, SHEAF_BYTES, SHEAF_BYTES, gfp)
            .map(NonNull::cast)
    }

    /// Takes a window back; with `spin` false it does not wait for a lock.
    pub fn give_window(&self, platform: &P, window: NonNull<Window>, spin: bool) {
        self.free.give(platform, window, spin);
    }

    /// Temporary memory, instead of a large array on the caller's stack; `None` without memory, or
    /// if the caller may not wait.
    #[inline(never)]
    pub fn scratch(&self, platform: &P, gfp: Gfp) -> Option<NonNull<Scratch>> {
        if !gfp.may_spin() {
            return None;
        }
        let mut inner = self.inner.lock();
        if let Some(scratch) = NonNull::new(inner.scratch as *mut usize) {
            // SAFETY: what is in the list is ours, and begins with a link.
            inner.scratch = unsafe { scratch.read() };
            return Some(scratch.cast());
        }
        self.bump(&mut inner.records, platform, SCRATCH_WORDS * 8, 64, gfp)
            .map(NonNull::cast)
    }

    /// Takes scratch memory back.
    #[inline(never)]
    pub fn give_scratch(&self, scratch: NonNull<Scratch>) {
        let mut inner = self.inner.lock();
        // SAFETY: the caller got it from us and gives it back.
        unsafe { scratch.cast::<usize>().write(inner.scratch) };
        inner.scratch = scratch.as_ptr() as usize;
    }

    /// Gives the system pages of free windows back, except for one window in 511.
    pub fn purge(&self, platform: &P) {
        self.free.purge(platform);
    }

    /// Bytes handed out.
    pub fn bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.used.load(Relaxed)
    }

    /// The locks without the store, for a fork.
    pub fn raw_locks(&self) -> impl Iterator<Item = &RawLock<P>> {
        self.free.raw_locks().chain([self.inner.raw()])
    }
}
