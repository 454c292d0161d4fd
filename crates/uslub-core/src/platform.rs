//! The platform: the only interface between the core and the system below it.
//!
//! The core names no operating system. A [`Platform`] provides address space, the operations on the
//! running CPU's slots, waiting and waking, a clock, random words, and messages. Linux implements
//! it for real programs. Tests implement it with any number of virtual CPUs.
//!
//! | memory | state | how it changes |
//! |---|---|---|
//! | free | not ours | [`reserve`](Platform::reserve), [`reserve_at`](Platform::reserve_at) |
//! | reserved | ours, unusable | [`commit`](Platform::commit), [`release`](Platform::release) |
//! | committed | zeroed, usable | [`purge`](Platform::purge), [`release`](Platform::release) |
//! | mapped | zeroed, usable | [`purge`](Platform::purge), [`unmap`](Platform::unmap) |
//!
//! [`map`](Platform::map) makes mapped memory out of free memory. The core may call any function on
//! any thread.

use core::fmt::Arguments;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::{Counter, Region, Slot, Table, try_lock};
use crate::sync::atomic::AtomicU32;

/// Bytes of a page, the unit of the page layer. A system page may be longer; see
/// [`Platform::system_page`].
pub const PAGE_SIZE: usize = 4096;
/// Largest system page, in bytes.
pub const SYSTEM_PAGE_MAX: usize = 64 << 10;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// A place where an allocation for the allocator's own use can be made to fail: the kernel's
/// `fail_page_alloc` and `failslab`. Requests to the system (reservations, mappings, commitments)
/// fail in the platform's own functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSite {
    /// A run of pages, for a slab or a large object.
    Pages,
    /// More pages behind a large object, to grow it in place.
    Extend,
    /// A window for a sheaf.
    Sheaf,
    /// Memory for a record: of a cache, or of its nodes.
    Record,
}

impl FaultSite {
    /// All sites.
    pub const ALL: [FaultSite; 4] = [
        FaultSite::Pages,
        FaultSite::Extend,
        FaultSite::Sheaf,
        FaultSite::Record,
    ];
}

/// How memory may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Not at all.
    Closed,
    /// Read only.
    ReadOnly,
    /// Read and written, as all memory at first.
    Open,
}

/// The kind of physical memory of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Base pages, as they are touched.
    BasePages,
    /// Huge pages: a touch of a part brings the whole block.
    HugePages {
        /// Bytes reserved and unused behind the range; the core will ask for them too.
        ahead: usize,
    },
    /// Base pages, although huge pages may have been requested for the reservation: a program may
    /// use little of a large object.
    Sparse,
}

/// What the core needs from the system below.
///
/// # Safety
///
/// Implementors promise two things. Memory from [`map`](Platform::map) and committed memory is
/// readable, writable and zeroed, and belongs to no other user. The slot operations act on the
/// slots of the CPU they run on as if they were atomic, also against signal handlers and remote
/// drains. Of [`pop`](Platform::pop), `push`, `pop_many`, `push_many` and `compare_exchange`, they
/// implement all, or none: without an implementation, a slot's [lock bit](try_lock) guards it.
pub unsafe trait Platform: Sync + 'static {
    /// Bytes of a system page, the unit of [`commit`](Self::commit), [`purge`](Self::purge),
    /// [`map`](Self::map), [`unmap`](Self::unmap) and [`remap`](Self::remap): a power of two from
    /// [`PAGE_SIZE`] to [`SYSTEM_PAGE_MAX`]. "Page-aligned" below means that both ends are aligned
    /// to it.
    fn system_page(&self) -> usize {
        PAGE_SIZE
    }

    /// A length rounded up to whole system pages; at most `isize::MAX` bytes.
    fn whole_pages(&self, bytes: usize) -> usize {
        let last = self.system_page() - 1;
        (bytes + last) & !last
    }

    /// Reserves `bytes` of address space, aligned to `align` bytes; unusable until committed.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// An address, aligned to `align` bytes, of `bytes` bytes of address space that are most likely
    /// free and stay free: far from where the system places mappings itself. Reserves nothing. Each
    /// call gives another answer.
    fn hole(&self, _bytes: usize, _align: usize) -> Option<usize> {
        None
    }

    /// Reserves exactly this range, unusable until committed. False, with nothing changed, if a
    /// part of it is in use or the system refuses.
    fn reserve_at(&self, _start: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    /// Unmaps a part of a reservation, committed or not. False, with nothing changed, if the system
    /// refuses.
    ///
    /// # Safety
    ///
    /// The range must be page-aligned, reserved and unused.
    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.unmap(start, bytes) };
        true
    }

    /// Whether a limit of the process counts memory that is reserved or committed but unused. Makes
    /// no system call.
    fn is_limited(&self) -> bool {
        false
    }

    /// Makes reserved memory readable, writable and zero.
    ///
    /// # Safety
    ///
    /// The range must lie inside one reservation and be page-aligned.
    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool;

    /// Gives back the physical memory of a committed or [mapped](Self::map) range, which then reads
    /// zero. Returns whether it did.
    ///
    /// # Safety
    ///
    /// The range must be committed or mapped, page-aligned, and hold nothing of value.
    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool;

    /// Changes how a committed or [mapped](Self::map) range may be accessed; returns whether it
    /// did. A platform without such a protection refuses.
    ///
    /// # Safety
    ///
    /// Whole system pages that the caller owns. Nobody accesses them otherwise before they are open
    /// again.
    unsafe fn protect(&self, _start: NonNull<u8>, _bytes: usize, access: Access) -> bool {
        access == Access::Open
    }

    /// Sets the kind of physical memory of a committed or [mapped](Self::map) range. Returns
    /// whether it did. A platform refuses huge pages if base pages are cheaper.
    ///
    /// # Safety
    ///
    /// The range must be committed or mapped, and page-aligned. For huge pages, the range and the
    /// reserved bytes ahead must be unused.
    unsafe fn set_backing(&self, _start: NonNull<u8>, _bytes: usize, backing: Backing) -> bool {
        backing == Backing::BasePages
    }

    /// Maps fresh zeroed memory; `bytes` must be whole system pages.
    fn map(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Whether adjacent mappings are as one: they may be used, [remapped](Self::remap) and
    /// [unmapped](Self::unmap) together.
    const JOINS_MAPPINGS: bool = false;

    /// Maps fresh zeroed memory at this address, if nothing is mapped there; returns whether it
    /// did. Only a platform that [joins mappings](Self::JOINS_MAPPINGS) may. `start` and `bytes`
    /// must be whole system pages.
    fn map_at(&self, _start: usize, _bytes: usize) -> bool {
        false
    }

    /// Unmaps memory of [`map`](Platform::map) or [`reserve`](Platform::reserve), or a part of it.
    ///
    /// # Safety
    ///
    /// The range must be page-aligned, mapped, unused and not empty.
    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize);

    /// Grows or shrinks a mapping, and moves it without a copy if necessary. After a success the
    /// old address is invalid; after a failure the mapping is unchanged.
    ///
    /// # Safety
    ///
    /// The range must come from [`map`](Platform::map); it may be a part of such a mapping.
    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>>;

    /// Whether [`remap`](Platform::remap) may stretch a cached mapping for a new object, or only
    /// change the size of a live object.
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

    /// This thread's tag as the owner of a lock; 29 bits count. Tags of different small numbers
    /// differ, and tags of addresses in different pages of the same 2 TiB.
    #[inline]
    fn lock_tag() -> u32 {
        let thread = Self::thread();
        (thread ^ (thread >> 12)) as u32
    }

    /// Milliseconds of a monotonic clock.
    fn now_ms(&self) -> u64;

    /// A word that an attacker cannot predict.
    fn random(&self) -> u64;

    /// Estimate of the physical memory of the machine, in bytes.
    fn memory_bytes(&self) -> usize;

    /// All CPU indices are below this number.
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

    /// Divides the CPUs of each node into groups of `cpus` at most. The CPUs of a group share
    /// barns. Returns the largest number of groups in a node, 1 to
    /// [`MAX_GROUPS`](crate::groups::MAX_GROUPS). Called once, before any other thread uses the
    /// platform.
    fn make_groups(&self, _cpus: usize) -> usize {
        1
    }

    /// Group, within its node, of the CPU that this thread runs on; a hint.
    fn group(&self) -> usize {
        0
    }

    /// Whether a node has memory of its own.
    fn node_has_memory(&self, _nid: usize) -> bool {
        true
    }

    /// Distance from one node to another; 10 for a node to itself.
    fn distance(&self, from: usize, to: usize) -> u32 {
        10 + 10 * from.abs_diff(to) as u32
    }

    /// Requests that the memory of a committed range come from a node; best effort.
    ///
    /// # Safety
    ///
    /// The range must be committed and page-aligned.
    unsafe fn bind(&self, _start: NonNull<u8>, _bytes: usize, _nid: usize) {}

    /// Index of the CPU (or concurrency id) that this thread runs on; a hint.
    fn cpu(&self) -> usize;

    /// Whether this thread may use per-CPU slots now. (A child of `vfork` may not: it shares its
    /// parent's memory.)
    fn percpu_usable(&self) -> bool {
        true
    }

    /// The region of the running CPU, for a peek. `None` if slots [cannot be
    /// used](Platform::percpu_usable), or if finding the region costs more than a peek.
    #[inline]
    fn region_here<'a>(&self, table: &'a Table) -> Option<&'a Region> {
        self.percpu_usable().then(|| table.here(self.cpu()))
    }

    /// Pops the newest object of the sheaf in this CPU's `slot`. Null if the sheaf is empty or
    /// detached, or if the operation was interrupted.
    ///
    /// # Safety
    ///
    /// `table` must be the allocator's table.
    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { try_lock::pop(table.here(self.cpu()), slot) }
    }

    /// Pushes `object` onto the sheaf in this CPU's `slot`. False if the sheaf is full or detached,
    /// or if the operation was interrupted.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Platform::pop); `object` must be a free object of the slot's cache.
    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: passed on.
        unsafe { try_lock::push(table.here(self.cpu()), slot, object) }
    }

    /// Pops the newest `out.len()` objects (at least 1) of the sheaf in this CPU's `slot`, all or
    /// none. False if the sheaf has fewer or is detached, or if the operation was interrupted.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Platform::pop).
    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        // SAFETY: passed on.
        unsafe { try_lock::pop_many(table.here(self.cpu()), slot, out) }
    }

    /// Pushes all `objects` (at least 1) onto the sheaf in this CPU's `slot`, or none. False if the
    /// sheaf lacks room or is detached, or if the operation was interrupted.
    ///
    /// # Safety
    ///
    /// As for [`push`](Platform::push).
    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        // SAFETY: passed on.
        unsafe { try_lock::push_many(table.here(self.cpu()), slot, objects) }
    }

    /// As [`push_many`](Platform::push_many), if all `objects` lie between the two `bounds`, both
    /// included. False, with nothing done, also if an object lies outside, or if the platform
    /// cannot check this during the copy.
    ///
    /// # Safety
    ///
    /// As for [`push_many`](Platform::push_many).
    #[inline]
    unsafe fn push_many_checked(
        &self,
        _table: &Table,
        _slot: Slot,
        _objects: &[*mut u8],
        _bounds: (usize, usize),
    ) -> bool {
        false
    }

    /// Compare-and-swap of this CPU's `slot` from `old` to `new`. False if it holds another value,
    /// or if the operation was interrupted.
    ///
    /// # Safety
    ///
    /// As for [`pop`](Platform::pop). The caller owns the sheaf of `new`, and gets the sheaf of
    /// `old`.
    unsafe fn compare_exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool {
        try_lock::compare_exchange(table.here(self.cpu()), slot, old, new)
    }

    /// Prefetches the cache lines of an array for writing; a hint.
    #[inline]
    fn prefetch_lines(&self, _array: &[*mut u8]) {}

    /// Prefetches the cache line of an address for writing; a hint, any address is allowed.
    #[inline]
    fn prefetch_line(&self, _address: *const u8) {}

    /// Hands off the first cache line of each object: rewrites its contents, as another CPU will
    /// write to it next. A hint, for processors on which a line comes faster from its last writer
    /// than from a reader.
    ///
    /// # Safety
    ///
    /// The caller owns the objects, which have at least eight bytes and are aligned to eight bytes.
    #[inline]
    unsafe fn handoff_objects(&self, _objects: &[*mut u8]) {}

    /// Hands off each cache line of an array: rewrites its contents, as another CPU will fill it
    /// next. A hint, for the same processors as [`handoff_objects`](Self::handoff_objects).
    #[inline]
    fn handoff_lines(&self, _array: &mut [*mut u8]) {}

    /// Fills an array with the addresses `offsets` bytes behind `base`; there must be enough
    /// offsets.
    #[inline]
    fn write_at(&self, base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) {
        write_one_by_one(base, offsets, out);
    }

    /// Called once, when the table's slots are ready: from then on [`pop`](Platform::pop) and the
    /// other operations may be called at any time.
    fn slots_are_ready(&self) {}

    /// Adds to a counter of the running CPU, or of another one if the thread migrates.
    fn count(&self, table: &Table, counter: Counter, n: usize) {
        // Relaxed: statistics.
        table
            .here(self.cpu())
            .counter(counter)
            .fetch_add(n as u64, Relaxed);
    }

    /// Waits until no thread is inside an operation on a region that it found through the table
    /// before this call. Returns false if the platform cannot do this.
    fn fence(&self) -> bool;

    /// Whether an allocation at a site must fail for a test; asked on slow paths only.
    #[inline]
    fn should_fail(&self, _site: FaultSite) -> bool {
        false
    }

    /// Whether slots are guarded by their lock bit (true) or by restartable sequences (false).
    fn slots_are_locked(&self) -> bool {
        true
    }

    /// Called before each guarded object, so that its faults are reported. False if it must not be
    /// made, because the process may not ask the system for what it takes.
    fn watch_faults(&self) -> bool {
        true
    }

    /// Writes one line of a report about a debugged cache.
    fn report(&self, line: Arguments<'_>) {
        self.warn(line);
    }

    /// Number of this thread, for reports.
    fn tid(&self) -> u32 {
        0
    }

    /// The process, for reports.
    fn identity(&self) -> Identity {
        Identity::NONE
    }

    /// Return addresses of this thread's callers, the nearest first; returns how many were written.
    fn callers(&self, _out: &mut [usize]) -> usize {
        0
    }

    /// Where an address of code lies, for reports: its object and the offset in it.
    fn place(&self, address: usize) -> Place {
        Place {
            address,
            object: [0; 32],
            offset: 0,
        }
    }

    /// Whether a checker of memory runs the process, and wants to be told of objects by
    /// [`watch`](Self::watch). Constant.
    fn is_watched(&self) -> bool {
        false
    }

    /// Tells the checker what happens to memory of a debugged cache.
    fn watch(&self, _event: Watch) {}

    /// Reports misuse that can be survived.
    fn warn(&self, message: Arguments<'_>);

    /// Reports misuse or corruption and ends the process.
    fn fatal(&self, message: Arguments<'_>) -> !;
}

/// What a checker of memory (valgrind, a sanitizer) is told. All ranges are of one cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The allocator itself reads and writes, on this thread, until [`Leave`](Self::Leave).
    Enter,
    /// The allocator is done.
    Leave,
    /// The allocator writes to these bytes.
    Open(Block),
    /// Nobody may touch these bytes.
    Close(Block),
    /// The pages are no slab any longer.
    Gone(Block),
    /// The program gets an object; the block around it is its slot.
    Alloc {
        /// The object, as long as was asked for.
        object: Block,
        /// The slot.
        slot: Block,
        /// Whether its bytes have a value: a constructor wrote them.
        is_constructed: bool,
    },
    /// The program gives an object back; it may have done so before.
    Free {
        /// The object.
        object: *mut u8,
        /// Bytes in front of the object that belong to its slot.
        left: usize,
    },
    /// An object changes its size in place.
    Resize {
        /// The object, as long as it becomes.
        object: Block,
        /// Bytes that it had.
        old: usize,
        /// The slot.
        slot: Block,
    },
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first byte.
    pub start: *mut u8,
    /// How many.
    pub bytes: usize,
}

/// A process, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number of the process.
    pub pid: u32,
    /// Name of the program, with zeroes behind it.
    pub comm: [u8; 16],
}

impl Identity {
    /// A process that is not known.
    pub const NONE: Self = Self {
        pid: 0,
        comm: [0; 16],
    };

    /// Name of the program; empty if it is not known.
    pub fn comm(&self) -> &str {
        text_of(&self.comm)
    }
}

/// Where an address of code lies: `object+0xoffset`, or the address itself if no object is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address.
    pub address: usize,
    /// The end of the object's name, with zeroes behind it.
    pub object: [u8; 32],
    /// The offset in the object's file.
    pub offset: usize,
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match text_of(&self.object) {
            "" => write!(f, "{:#x}", self.address),
            object => write!(f, "{object}+{:#x} [{:#x}]", self.offset, self.address),
        }
    }
}

/// The text before the first zero byte.
fn text_of(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    core::str::from_utf8(&bytes[..end]).unwrap_or("?")
}

/// [`Platform::write_at`], one address after another.
#[inline]
pub fn write_one_by_one(base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) {
    for (place, &offset) in out.iter_mut().zip(offsets) {
        *place = base.wrapping_add(offset as usize);
    }
}
