//! A slot of a guarded object: its state, its object, and who allocated and freed it.
//!
//! Only the thread that made a slot `BUSY` writes the other fields; anybody may read them. Callers:
//! `guard` and `guard_report`.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use crate::platform::Platform;
use crate::policy::GUARD_COVERED_FRAMES;
use crate::slab::debug::depot::{STACK_MAX, hash};

/// State of a slot.
pub(crate) const UNUSED: u32 = 0;
const BUSY: u32 = 1;
pub(crate) const IN_USE: u32 = 2;
pub(crate) const FREED: u32 = 3;

/// Who allocated or freed a guarded object. Written by the thread that made the slot `BUSY`.
pub(crate) struct Trace {
    tid: AtomicU32,
    cpu: AtomicU32,
    /// Milliseconds.
    time: AtomicU64,
    len: AtomicUsize,
    frames: [AtomicUsize; STACK_MAX],
}

/// A copy of a [`Trace`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) time: u64,
    len: usize,
    frames: [usize; STACK_MAX],
}

impl Stack {
    /// The caller's stack.
    #[inline(never)]
    pub(crate) fn here(platform: &impl Platform) -> Self {
        let mut frames = [0; STACK_MAX];
        let len = platform.callers(&mut frames).min(STACK_MAX);
        Self::of(platform, &frames[..len])
    }

    /// A stack with these frames, of this thread.
    pub(crate) fn of(platform: &impl Platform, from: &[usize]) -> Self {
        let (mut frames, len) = ([0; STACK_MAX], from.len().min(STACK_MAX));
        frames[..len].copy_from_slice(&from[..len]);
        Self {
            tid: platform.tid(),
            cpu: platform.cpu() as u32,
            time: platform.now_ms(),
            len,
            frames,
        }
    }

    pub(crate) fn frames(&self) -> &[usize] {
        &self.frames[..self.len]
    }

    /// A hash of the nearest frames; 0 without frames.
    pub(super) fn hash(&self) -> u64 {
        hash(&self.frames()[..self.len.min(GUARD_COVERED_FRAMES)])
    }
}

impl Trace {
    // Relaxed, all below: published by the slot's state. A report that races with a reuse may mix
    // two stacks, and is no worse for it than the program that it is about.
    pub(super) fn set(&self, stack: &Stack) {
        self.tid.store(stack.tid, Relaxed);
        self.cpu.store(stack.cpu, Relaxed);
        self.time.store(stack.time, Relaxed);
        self.len.store(stack.len, Relaxed);
        for (to, &from) in self.frames.iter().zip(&stack.frames) {
            // Relaxed: as above.
            to.store(from, Relaxed);
        }
    }

    pub(crate) fn get(&self) -> Stack {
        let mut frames = [0; STACK_MAX];
        for (to, from) in frames.iter_mut().zip(&self.frames) {
            // Relaxed: as above.
            *to = from.load(Relaxed);
        }
        // Relaxed: as above.
        let (tid, cpu) = (self.tid.load(Relaxed), self.cpu.load(Relaxed));
        let (time, len) = (self.time.load(Relaxed), self.len.load(Relaxed));
        Stack {
            tid,
            cpu,
            time,
            len: len.min(STACK_MAX),
            frames,
        }
    }
}

/// What is known of a slot. All zero at first.
pub(crate) struct Slot {
    pub(super) state: AtomicU32,
    /// Identity of the object's cache.
    cache: AtomicU32,
    object: AtomicUsize,
    size: AtomicUsize,
    /// When it was freed, as a number that counts frees: the smallest is used next.
    pub(super) turn: AtomicU64,
    /// Hash of the allocation's stack.
    pub(super) hash: AtomicU64,
    /// 1 once a fault of the present object, or of its last one, was reported.
    reported: AtomicU32,
    /// Neighbouring closed pages that a fault opened: 1 the left one, 2 the right one.
    pub(super) opened: AtomicU32,
    pub(crate) allocated: Trace,
    pub(crate) freed: Trace,
}

impl Slot {
    /// The state now; a slot that another thread changes counts as freed.
    pub(crate) fn state(&self) -> u32 {
        // Acquire: pairs with the end of the change.
        match self.state.load(Acquire) {
            BUSY => FREED,
            state => state,
        }
    }

    // Relaxed, below: published by the state.
    pub(crate) fn object(&self) -> usize {
        self.object.load(Relaxed)
    }

    pub(crate) fn size(&self) -> usize {
        // Relaxed: as above.
        self.size.load(Relaxed)
    }

    pub(crate) fn cache(&self) -> u16 {
        // Relaxed: as above.
        self.cache.load(Relaxed) as u16
    }

    /// Notes a new object and who allocated it.
    pub(super) fn describe(&self, object: usize, request: Request, stack: &Stack) {
        // Relaxed, all: published by the state.
        self.cache.store(u32::from(request.cache), Relaxed);
        self.object.store(object, Relaxed);
        self.size.store(request.bytes, Relaxed);
        self.hash.store(stack.hash(), Relaxed);
        self.reported.store(0, Relaxed);
        self.allocated.set(stack);
    }

    /// Whether this is the first report of the object.
    pub(crate) fn is_first_report(&self) -> bool {
        // Relaxed: decides only who reports.
        self.reported.swap(1, Relaxed) == 0
    }

    pub(super) fn begin(&self, from: u32) -> bool {
        // AcqRel: the last owner's writes are seen, and ours come later. Relaxed: a failure is
        // not followed by reads.
        (self.state.compare_exchange(from, BUSY, AcqRel, Relaxed)).is_ok()
    }

    pub(super) fn end(&self, state: u32) {
        // Release: publishes the other fields.
        self.state.store(state, Release);
    }
}

/// A request for a guarded object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: usize,
    /// A power of two of at least 8, at most a page.
    pub(crate) align: usize,
    /// Identity of the cache.
    pub(crate) cache: u16,
}
