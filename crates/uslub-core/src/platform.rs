//! The one seam between the core and the world below it.
//!
//! The core never names an operating system. What it needs is here: address
//! space, the running CPU's slots, waiting and waking, a clock, random words and
//! a voice. Linux implements it for real programs; tests implement it with any
//! number of virtual CPUs.

use core::fmt::Arguments;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::{Counter, Region, Slot, Table};
use crate::sync::atomic::AtomicU32;

/// Bytes of a page, the unit of the page layer. A page of the system may be longer: see
/// [`Platform::system_page`].
pub const PAGE_SIZE: usize = 4096;
/// Most bytes of a page of the system.
pub const SYSTEM_PAGE_MAX: usize = 64 << 10;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// Where an allocation of the allocator's own can be made to fail: the kernel's `fail_page_alloc`
/// and `failslab`, one site each. What is asked of the system itself (reservations, mappings,
/// commitments) fails in the platform's own functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSite {
    /// A run of pages, for a slab or a large object.
    Pages,
    /// More pages behind a large object.
    Extend,
    /// A window for a sheaf.
    Sheaf,
    /// A record: a cache, its nodes.
    Record,
}

impl FaultSite {
    /// All of them.
    pub const ALL: [FaultSite; 4] = [
        FaultSite::Pages,
        FaultSite::Extend,
        FaultSite::Sheaf,
        FaultSite::Record,
    ];
}

/// What physical memory a range is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Page by page, as they are touched.
    Small,
    /// By huge pages: all of a block as soon as a part of it is touched.
    Huge {
        /// Bytes of the reservation behind the range, none of them in use: what follows there is
        /// going to be asked for in turn.
        ahead: usize,
    },
    /// Page by page, though huge pages may have been asked for what is reserved: a program may use
    /// little of a large object.
    Sparse,
}

/// What the core needs from the world below.
///
/// # Safety
///
/// Implementors promise: memory from [`map`](Platform::map) and committed
/// memory is readable, writable, zeroed, and nobody else's; the slot
/// operations act on the slots of the CPU they run on as if indivisible, also
/// against signal handlers and remote drains.
pub unsafe trait Platform: Sync + 'static {
    /// Bytes of a page of the system, the unit of [`commit`](Self::commit), [`purge`](Self::purge),
    /// [`map`](Self::map), [`unmap`](Self::unmap) and [`remap`](Self::remap): a power of two from
    /// [`PAGE_SIZE`] to [`SYSTEM_PAGE_MAX`]. "Page-aligned" below means aligned to it, both ends.
    fn system_page(&self) -> usize {
        PAGE_SIZE
    }

    /// A length rounded up to whole pages of the system. It must be at most `isize::MAX`.
    fn whole_pages(&self, bytes: usize) -> usize {
        let last = self.system_page() - 1;
        (bytes + last) & !last
    }

    /// Reserves `bytes` of address space, aligned to `align` bytes, unusable until committed.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// An address aligned to `align` bytes with `bytes` bytes of address space behind it that are
    /// most likely free, and stay free: far from where the system places mappings by itself.
    /// Nothing is reserved. Another answer each time.
    fn hole(&self, _bytes: usize, _align: usize) -> Option<usize> {
        None
    }

    /// Reserves exactly this range, unusable until committed; false, and nothing happens, if any of
    /// it is in use or the system refuses.
    fn reserve_at(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Unmaps a part of a reservation, committed or not; false, and nothing changes, if the system
    /// refuses.
    ///
    /// # Safety
    ///
    /// The range must be page-aligned, reserved, and used by no one.
    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.unmap(start, bytes) };
        true
    }

    /// Whether a limit of the process counts reserved or committed memory that is not in use.
    fn is_limited(&self) -> bool {
        false
    }

    /// Makes reserved memory readable, writable and zero.
    ///
    /// # Safety
    ///
    /// The range must lie inside one reservation and be page-aligned.
    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool;

    /// Gives the physical memory of a committed or [mapped](Self::map) range back; it reads zero
    /// afterwards. Returns whether that was done.
    ///
    /// # Safety
    ///
    /// The range must be committed or mapped, page-aligned, and hold nothing of value.
    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool;

    /// Says what physical memory a committed range is to have from now on; returns whether that is
    /// so. A platform refuses huge pages where small ones are cheaper.
    ///
    /// # Safety
    ///
    /// The range must be committed and page-aligned; for huge pages, nobody's yet, like the
    /// reserved memory ahead.
    unsafe fn back(&self, _start: NonNull<u8>, _bytes: usize, backing: Backing) -> bool {
        backing == Backing::Small
    }

    /// Maps fresh zeroed memory of its own; `bytes` are whole pages.
    fn map(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Unmaps memory that [`map`](Platform::map) or [`reserve`](Platform::reserve) gave, or a part
    /// of it.
    ///
    /// # Safety
    ///
    /// The range must be page-aligned, mapped, and used by no one.
    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize);

    /// Grows or shrinks a mapping, moving it when needed without copying; the old
    /// address is invalid after a success and the mapping unchanged after a failure.
    ///
    /// # Safety
    ///
    /// The range must come from [`map`](Platform::map), and may be a part of what that returned.
    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>>;

    /// Whether [`remap`](Platform::remap) may serve a new object too, rather than an old one that
    /// changes its size.
    fn may_remap_kept(&self) -> bool {
        true
    }

    /// Waits while `*word == value`, at most `timeout_ms` milliseconds; may return early.
    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>);

    /// Wakes one waiter of `word`.
    fn wake(word: &AtomicU32);

    /// Wakes all waiters of `word`.
    fn wake_all(word: &AtomicU32);

    /// A number, never 0, that no other running thread has.
    fn thread() -> usize;

    /// This thread as the owner of a lock, of which 29 bits count. They tell small numbers apart,
    /// and addresses that lie in different pages of 2 TiB.
    #[inline]
    fn lock_tag() -> u32 {
        let thread = Self::thread();
        (thread ^ (thread >> 12)) as u32
    }

    /// Milliseconds on a clock that never goes back.
    fn now_ms(&self) -> u64;

    /// A word that an attacker cannot predict.
    fn random(&self) -> u64;

    /// Bytes of physical memory in the machine, an estimate.
    fn memory_bytes(&self) -> usize;

    /// CPU indices are below this number.
    fn nr_cpu_ids(&self) -> usize;

    /// CPUs that can run at once, for the order computation.
    fn nr_cpus(&self) -> usize;

    /// Number of memory nodes.
    fn nr_nodes(&self) -> usize {
        1
    }

    /// Memory node of the CPU that this thread runs on; a hint.
    fn node(&self) -> usize {
        0
    }

    /// Whether a node has memory of its own.
    fn node_has_memory(&self, _nid: usize) -> bool {
        true
    }

    /// How far it is from one node to another; 10 for a node to itself.
    fn distance(&self, from: usize, to: usize) -> u32 {
        10 + 10 * from.abs_diff(to) as u32
    }

    /// Asks that the memory of a committed range come from a node; best effort.
    ///
    /// # Safety
    ///
    /// The range must be committed and page-aligned.
    unsafe fn bind(&self, _start: NonNull<u8>, _bytes: usize, _nid: usize) {}

    /// Index of the CPU (or concurrency id) that this thread runs on; a hint.
    fn cpu(&self) -> usize;

    /// Whether this thread may use per-CPU slots now (not so in a child that shares
    /// its parent's memory after `vfork`).
    fn percpu_usable(&self) -> bool {
        true
    }

    /// The region of the CPU that runs, for a glance; `None` where slots [cannot be
    /// used](Platform::percpu_usable), or where to tell would take more than a glance.
    #[inline]
    fn region_here<'a>(&self, table: &'a Table) -> Option<&'a Region> {
        self.percpu_usable().then(|| table.here(self.cpu()))
    }

    /// Pops the newest object off the sheaf in this CPU's `slot`; null when it is empty,
    /// being moved, or the operation was disturbed.
    ///
    /// # Safety
    ///
    /// `table` must be the allocator's table.
    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8;

    /// Pushes `object` onto the sheaf in this CPU's `slot`; false when it is full,
    /// being moved, or the operation was disturbed.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Platform::pop); `object` must be a free object of the slot's cache.
    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool;

    /// Pops the newest `out.len()` objects (at least 1) off the sheaf in this CPU's `slot`, all or
    /// none; false when it has fewer, is being moved, or the operation was disturbed.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Platform::pop).
    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool;

    /// Pushes all `objects` (at least 1) onto the sheaf in this CPU's `slot`, or none; false when
    /// it has not the room, is being moved, or the operation was disturbed.
    ///
    /// # Safety
    ///
    /// As for [`push`](Platform::push).
    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool;

    /// As [`push_many`](Platform::push_many), where all `objects` lie between the two `bounds`,
    /// both included; false too where one does not, and where there is no way to see that in
    /// passing. Then nothing is done.
    ///
    /// # Safety
    ///
    /// As for [`push_many`](Platform::push_many).
    #[inline]
    unsafe fn push_many_within(
        &self,
        _table: &Table,
        _slot: Slot,
        _objects: &[*mut u8],
        _bounds: (usize, usize),
    ) -> bool {
        false
    }

    /// Replaces `old` by `new` in this CPU's `slot`; false when it holds something
    /// else or the operation was disturbed.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Platform::pop); the caller owns what `new` points to and comes to own what
    /// `old` points to.
    unsafe fn exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool;

    /// Asks for the cache lines of an array that is about to be written; a hint.
    #[inline]
    fn fetch(&self, _array: &[*mut u8]) {}

    /// Asks for the cache line of an address that is about to be written; a hint, any address will
    /// do.
    #[inline]
    fn fetch_line(&self, _address: *const u8) {}

    /// Writes to the first line of each object what is there, as another CPU will write to it next.
    /// A hint, for processors on which a line comes sooner from who wrote to it last than from who
    /// read it.
    ///
    /// # Safety
    ///
    /// The objects have eight bytes and more, are aligned to as many, and are the caller's.
    #[inline]
    unsafe fn offer(&self, _objects: &[*mut u8]) {}

    /// Writes to each line of an array what is there, as another CPU will fill it next. A hint, for
    /// the processors that
    /// [`offer`](Self::offer) is for.
    #[inline]
    fn offer_array(&self, _array: &mut [*mut u8]) {}

    /// Writes the addresses that lie `offsets` bytes behind `base` into an array, as many as it
    /// holds; there are no fewer offsets.
    #[inline]
    fn write_at(&self, base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) {
        write_one_by_one(base, offsets, out);
    }

    /// Called once, when the table has its slots: from then on [`pop`](Platform::pop) and the
    /// others may be called at any time.
    fn slots_are_ready(&self) {}

    /// Adds to a counter of the CPU that runs, whichever that is.
    fn count(&self, table: &Table, counter: Counter, n: usize) {
        // Relaxed: statistics.
        table
            .here(self.cpu())
            .counter(counter)
            .fetch_add(n as u64, Relaxed);
    }

    /// Makes sure that no thread is still inside an operation on a region that it
    /// found through the table before this call. Returns false when that cannot be done.
    fn fence(&self) -> bool;

    /// Whether an allocation at a site is to fail although it need not; asked on slow paths only.
    #[inline]
    fn should_fail(&self, _site: FaultSite) -> bool {
        false
    }

    /// Whether slots are guarded by their lock bit (true) or by restartable sequences (false).
    fn slots_are_locked(&self) -> bool;

    /// Reports misuse that can be survived.
    fn warn(&self, message: Arguments<'_>);

    /// Reports misuse or corruption and ends the process.
    fn fatal(&self, message: Arguments<'_>) -> !;
}

/// [`Platform::write_at`], one address after the other.
#[inline]
pub fn write_one_by_one(base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) {
    for (place, &offset) in out.iter_mut().zip(offsets) {
        *place = base.wrapping_add(offset as usize);
    }
}
