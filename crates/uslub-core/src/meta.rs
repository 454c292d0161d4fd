//! Memory for the allocator's own records: caches, nodes, sheaf windows.
//!
//! It is taken from the system in chunks and never unmapped; windows are
//! reused through a list, and the pages of those in it go back to the system when memory is
//! [given back](Meta::purge). Nothing here comes from a slab, so nothing recurses.
//!
//! A window in the list says in its first word which is the next, and in its second how many windows without pages it knows; their addresses
//! follow.

use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::atomic::AtomicUsize;
use crate::gfp::Gfp;
use crate::platform::{FaultSite, Platform};
use crate::sheaf::{SHEAF_BYTES, Window};
use crate::sync::Lock;

const CHUNK: usize = 64 << 10;
/// Windows without pages that one in the list knows, at most.
const KNOWN: usize = SHEAF_BYTES / 8 - 2;

#[derive(Clone, Copy)]
struct Bump {
    at: usize,
    end: usize,
}

struct Inner {
    records: Bump,
    windows: Bump,
    /// Windows given up.
    free: usize,
    /// Scratch memory that nobody uses: linked by the first words.
    scratch: usize,
}

/// Words of scratch memory.
pub const SCRATCH: usize = 640;
/// Scratch memory.
pub type Scratch = [MaybeUninit<*mut u8>; SCRATCH];

/// The store of records.
pub struct Meta<P> {
    inner: Lock<P, Inner>,
    used: AtomicUsize,
    /// Windows given up where nothing may be waited for.
    strays: AtomicUsize,
}

impl<P: Platform> Meta<P> {
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
            strays: AtomicUsize::new(0),
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
            let size = CHUNK.max(bytes.next_multiple_of(4096));
            at = platform.map(size)?.as_ptr() as usize;
            bump.end = at + size;
        }
        bump.at = at + bytes;
        // Relaxed: a figure.
        self.used.fetch_add(bytes, Relaxed);
        NonNull::new(at as *mut u8)
    }

    /// Zeroed memory for a record, for ever; `align` is at most 4096 bytes.
    pub fn record(&self, platform: &P, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if platform.should_fail(FaultSite::Record) {
            return None;
        }
        let mut inner = self.inner.lock();
        let mut records = inner.records;
        let memory = self.bump(&mut records, platform, bytes, align, Gfp::KERNEL);
        inner.records = records;
        memory
    }

    /// A window for a sheaf.
    pub fn window(&self, platform: &P, gfp: Gfp) -> Option<NonNull<Window>> {
        if platform.should_fail(FaultSite::Sheaf) {
            return None;
        }
        let mut inner = self.inner.lock_if(gfp.may_spin())?;
        if inner.free == 0 {
            // Acquire: the links. All at once, so nothing can come back meanwhile.
            inner.free = self.strays.swap(0, Acquire);
        }
        if let Some(window) = NonNull::new(inner.free as *mut usize) {
            // SAFETY: windows in the list are ours, and say in their words what the module says.
            unsafe {
                let known = window.add(1).read();
                if known > 0 {
                    window.add(1).write(known - 1);
                    return NonNull::new(window.add(1 + known).read() as *mut Window);
                }
                inner.free = window.read();
            }
            return Some(window.cast());
        }
        let mut windows = inner.windows;
        let memory = self.bump(&mut windows, platform, SHEAF_BYTES, SHEAF_BYTES, gfp);
        inner.windows = windows;
        memory.map(NonNull::cast)
    }

    /// Takes a window back; without waiting where `spin` is false.
    pub fn give_window(&self, window: NonNull<Window>, spin: bool) {
        let link = window.cast::<usize>();
        let address = window.as_ptr() as usize;
        // SAFETY: the caller owned the window and gives it to us.
        unsafe { link.add(1).write(0) };
        if let Some(mut inner) = self.inner.lock_if(spin) {
            // SAFETY: the caller owned the window and gives it to us.
            unsafe { link.write(inner.free) };
            inner.free = address;
            return;
        }
        // Relaxed: confirmed by the exchange.
        let mut head = self.strays.load(Relaxed);
        loop {
            // SAFETY: as above.
            unsafe { link.write(head) };
            // Release: whoever takes it sees the link.
            match self
                .strays
                .compare_exchange_weak(head, address, Release, Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Memory for a moment, instead of a large array on a caller's stack; `None` for callers that must not wait.
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
        let mut records = inner.records;
        let memory = self.bump(&mut records, platform, SCRATCH * 8, 64, gfp);
        inner.records = records;
        memory.map(NonNull::cast)
    }

    /// Takes scratch memory back.
    pub fn give_scratch(&self, scratch: NonNull<Scratch>) {
        let mut inner = self.inner.lock();
        // SAFETY: the caller had it from us and gives it back.
        unsafe { scratch.cast::<usize>().write(inner.scratch) };
        inner.scratch = scratch.as_ptr() as usize;
    }

    /// Gives the pages of windows in the list back to the system, all but one for each 510 of them.
    pub fn purge(&self, platform: &P) {
        let mut inner = self.inner.lock();
        // Acquire: the links.
        let lists = [inner.free, self.strays.swap(0, Acquire)];
        inner.free = 0;
        for mut next in lists {
            while let Some(window) = NonNull::new(next as *mut usize) {
                // SAFETY: as in `window`; nobody else has it.
                unsafe {
                    next = window.read();
                    let knows_some = window.add(1).read() > 0;
                    match NonNull::new(inner.free as *mut usize) {
                        Some(first) if !knows_some && first.add(1).read() < KNOWN => {
                            if platform.purge(window.cast(), SHEAF_BYTES) {
                                let known = first.add(1).read() + 1;
                                first.add(1).write(known);
                                first.add(1 + known).write(window.as_ptr() as usize);
                            } else {
                                window.write(first.read());
                                first.write(window.as_ptr() as usize);
                            }
                        }
                        _ => {
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
        // Relaxed: a figure.
        self.used.load(Relaxed)
    }

    /// The lock, for a fork.
    pub fn lock_for_fork(&self) {
        self.inner.acquire();
    }

    /// Releases it in the parent.
    ///
    /// # Safety
    ///
    /// On the thread that took it.
    pub unsafe fn unlock_after_fork(&self) {
        // SAFETY: passed on.
        unsafe { self.inner.release() }
    }

    /// Makes it free in the child.
    ///
    /// # Safety
    ///
    /// In the child of a fork whose parent held it.
    pub unsafe fn reset_after_fork(&self) {
        // SAFETY: passed on.
        unsafe { self.inner.reset() }
    }
}

impl<P: Platform> Default for Meta<P> {
    fn default() -> Self {
        Self::new()
    }
}
