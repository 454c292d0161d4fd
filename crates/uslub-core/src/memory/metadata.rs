//! Memory for the allocator's own records: caches, nodes, sheaf windows.
//!
//! The store takes chunks from the system and never unmaps them. Nothing here comes from a slab, so
//! nothing recurses. Free windows form a list. A [purge](MetadataStore::purge) gives the system
//! pages of free windows back. One lock protects the store.
//!
//! The words of a free window:
//!
//! | word | contents |
//! |---|---|
//! | 0 | the next free window |
//! | 1 | n: the number of purged system pages recorded here |
//! | 2 … n + 1 | their addresses |
//!
//! A system page may hold several windows. It is purged as a whole: all of its windows are in the
//! list, and only the first one's address is recorded. When the first one is handed out, the others
//! return to the list. Callers: `cache` (records), `sheaf` and `rcu` (windows, scratch memory).

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::gfp::Gfp;
use crate::percpu::sheaf::{SHEAF_BYTES, Window};
use crate::platform::{FaultSite, Platform};
use crate::policy::{METADATA_CHUNK_BYTES, METADATA_CHUNK_LIMITED_BYTES, SCRATCH_WORDS};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{DeferStack, Lock, RawLock};

/// Purged system pages that one free window records, at most.
const KNOWN: usize = SHEAF_BYTES / 8 - 2;

#[derive(Clone, Copy)]
struct Bump {
    at: usize,
    end: usize,
}

struct Inner {
    records: Bump,
    windows: Bump,
    /// Free windows: linked by their first words.
    free: usize,
    /// Free scratch memory: linked by the first words.
    scratch: usize,
}

/// Temporary memory instead of a large array on the stack.
pub type Scratch = [MaybeUninit<*mut u8>; SCRATCH_WORDS];

/// The rest of a list behind the windows of one system page of `page` bytes. `None` unless the list
/// has all of the page's windows in order from `window` on, and none of them records purged pages.
///
/// # Safety
///
/// The caller owns the list's windows.
unsafe fn behind_page(window: NonNull<usize>, page: usize) -> Option<usize> {
    let start = window.as_ptr() as usize;
    if !start.is_multiple_of(page) {
        return None;
    }
    let mut next = start;
    for expected in (start..start + page).step_by(SHEAF_BYTES) {
        let window = next as *const usize;
        // SAFETY: a window of the list, as its address is the expected one.
        if next != expected || unsafe { window.add(1).read() } > 0 {
            return None;
        }
        // SAFETY: as above.
        next = unsafe { window.read() };
    }
    Some(next)
}

/// Merges two lists of windows, each in order of address.
///
/// # Safety
///
/// The caller owns the windows.
unsafe fn merged(mut a: usize, mut b: usize) -> usize {
    let mut head = 0;
    let mut link: *mut usize = &raw mut head;
    while a != 0 && b != 0 {
        let least = if a < b { &mut a } else { &mut b };
        let window = *least as *mut usize;
        // SAFETY: the list's head, or the first word of a window.
        unsafe {
            link.write(window as usize);
            *least = window.read();
        }
        link = window;
    }
    // SAFETY: as above; one of the lists is empty.
    unsafe { link.write(a | b) };
    head
}

/// Sorts a list of windows by address: a merge sort.
///
/// # Safety
///
/// The caller owns the windows.
unsafe fn sorted(mut list: usize) -> usize {
    // Entry k: empty, or 2^k windows in order.
    let mut runs = [0; usize::BITS as usize];
    while list != 0 {
        let window = list as *mut usize;
        let mut run = list;
        // SAFETY: a window of the list.
        unsafe {
            list = window.read();
            window.write(0);
        }
        let mut k = 0;
        while runs[k] != 0 {
            // SAFETY: windows of the list.
            run = unsafe { merged(core::mem::take(&mut runs[k]), run) };
            k += 1;
        }
        runs[k] = run;
    }
    // SAFETY: windows of the list.
    (runs.into_iter()).fold(0, |all, run| unsafe { merged(all, run) })
}

/// The store of records.
pub struct MetadataStore<P> {
    inner: Lock<P, Inner>,
    used: AtomicUsize,
    /// Windows freed in a context that may not wait, by address.
    pending: DeferStack<0>,
}

impl<P: Platform> MetadataStore<P> {
    /// An empty store.
    pub const fn new() -> Self {
        let none = Bump { at: 0, end: 0 };
        Self {
            inner: Lock::new(Inner {
                records: none,
                windows: none,
                free: 0,
                scratch: 0,
            }),
            used: AtomicUsize::new(0),
            pending: DeferStack::new(),
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
        let mut inner = self.inner.lock_if(gfp.may_spin())?;
        if inner.free == 0 {
            inner.free = self.pending.take_all();
        }
        if let Some(window) = NonNull::new(inner.free as *mut usize) {
            // SAFETY: free windows are ours, with words as the module describes.
            unsafe {
                let known = window.add(1).read();
                if known > 0 {
                    window.add(1).write(known - 1);
                    let first = window.add(1 + known).read();
                    for other in (SHEAF_BYTES..platform.system_page()).step_by(SHEAF_BYTES) {
                        let other = (first + other) as *mut usize;
                        other.write(inner.free);
                        other.add(1).write(0);
                        inner.free = other as usize;
                    }
                    return NonNull::new(first as *mut Window);
                }
                inner.free = window.read();
            }
            return Some(window.cast());
        }
        self.bump(&mut inner.windows, platform, SHEAF_BYTES, SHEAF_BYTES, gfp)
            .map(NonNull::cast)
    }

    /// Takes a window back; with `spin` false it does not wait for the lock.
    pub fn give_window(&self, window: NonNull<Window>, spin: bool) {
        let link = window.cast::<usize>();
        let address = window.as_ptr() as usize;
        // SAFETY: the caller owned the window and gives it to us.
        unsafe { link.add(1).write(0) };
        // SAFETY: as above.
        let link_to = |next| unsafe { link.write(next) };
        if let Some(mut inner) = self.inner.lock_if(spin) {
            link_to(inner.free);
            inner.free = address;
        } else {
            self.pending.push(address, link_to);
        }
    }

    /// Temporary memory, instead of a large array on the caller's stack; `None` without memory, or
    /// if the caller may not wait.
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
    pub fn give_scratch(&self, scratch: NonNull<Scratch>) {
        let mut inner = self.inner.lock();
        // SAFETY: the caller got it from us and gives it back.
        unsafe { scratch.cast::<usize>().write(inner.scratch) };
        inner.scratch = scratch.as_ptr() as usize;
    }

    /// Gives the system pages of free windows back, except for one window in 511: it records the
    /// other 510.
    pub fn purge(&self, platform: &P) {
        let page = platform.system_page();
        let mut inner = self.inner.lock();
        let mut lists = [inner.free, self.pending.take_all()];
        inner.free = 0;
        if page > SHEAF_BYTES {
            // SAFETY: as in `window`; this thread owns the lists.
            lists = unsafe { [merged(sorted(lists[0]), sorted(lists[1])), 0] };
        }
        for mut next in lists {
            while let Some(window) = NonNull::new(next as *mut usize) {
                // SAFETY: as in `window`; this thread owns the window.
                unsafe {
                    let knows_some = window.add(1).read() > 0;
                    match NonNull::new(inner.free as *mut usize) {
                        Some(first) if !knows_some && first.add(1).read() < KNOWN => {
                            if let Some(behind) = behind_page(window, page)
                                && platform.purge(window.cast(), page)
                            {
                                let known = first.add(1).read() + 1;
                                first.add(1).write(known);
                                first.add(1 + known).write(window.as_ptr() as usize);
                                next = behind;
                            } else {
                                next = window.read();
                                window.write(first.read());
                                first.write(window.as_ptr() as usize);
                            }
                        }
                        _ => {
                            next = window.read();
                            window.write(inner.free);
                            inner.free = window.as_ptr() as usize;
                        }
                    }
                }
            }
        }
    }

    /// Bytes handed out.
    pub fn bytes(&self) -> usize {
        // Relaxed: a statistic.
        self.used.load(Relaxed)
    }

    /// The lock without the store, for a fork.
    pub fn raw_lock(&self) -> &RawLock<P> {
        self.inner.raw()
    }
}

impl<P: Platform> Default for MetadataStore<P> {
    fn default() -> Self {
        Self::new()
    }
}
