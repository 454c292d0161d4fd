//! Linux as the allocator's [`Platform`]: address space, CPUs, clock, waiting and warnings.
//!
//! [`start::set_up`] probes the machine once, before any other use. Then any thread may call. The
//! word `Linux::open` tells fast paths how to reach per-CPU slots:
//!
//! | value of `open` | per-CPU slots |
//! |---|---|
//! | an area's offset, in bytes | by restartable sequences, without further checks |
//! | `CLOSED` | slow paths decide: no slots yet, or no sequences (`slots_fallback.rs`) |
//! | either, less `VFORK` for each child that shares memory | slow paths decide (`sharing.rs`) |

#![no_std]

mod advice;
mod clock;
pub mod environment;
mod huge_pages;
mod line_handoff;
mod message;
mod mode;
pub mod numa;
mod page;
mod policy;
mod refused;
mod sharing;
mod slots;
mod slots_fallback;
mod space;
pub mod start;
pub mod sys;

use core::fmt::Arguments;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize};

use uslub_core::Allocator;
use uslub_core::percpu::sheaf::SHEAF_BYTES;
use uslub_core::percpu::try_lock;
use uslub_core::percpu::{APART, Counter, Region, Slot, Table};
use uslub_core::platform::{Backing, PAGE_SIZE, Platform, write_one_by_one};
use uslub_rseq::{Area, Index, initial};

use crate::advice::Advice;
use crate::huge_pages::{HugePages, split_huge_pages};
use crate::line_handoff::LineHandoff;
use crate::numa::Nodes;
use crate::page::SystemPage;
use crate::policy::PREFETCH_LINES_MAX;
use crate::refused::Refused;
use crate::sharing::Sharing;
use crate::slots::{pop, pop_many, push, push_many, push_many_checked};

pub use message::{Text, complain};
pub use mode::Mode;

const _: () = assert!(SHEAF_BYTES == uslub_rseq::SHEAF_BYTES);

/// Value of the tunable `rseq` by which sequences find a CPU's slots by the CPU's number.
const BY_CPU_NUMBER: u32 = 2;

/// Whether fast paths write nothing at this offset of other pages, so that a load of the word waits
/// for no store. See [`Allocator`].
const fn lies_apart(offset: usize) -> bool {
    let offset = offset % PAGE_SIZE;
    APART <= offset && offset % 32 != 8
}

const _: () = assert!(
    lies_apart(offset_of!(Allocator<Linux>, table) + Table::ACTIVE)
        && lies_apart(offset_of!(Allocator<Linux>, platform.open))
        && lies_apart(offset_of!(Allocator<Linux>, platform.index_offset))
        && lies_apart(offset_of!(Allocator<Linux>, zone.arena))
);

/// The platform.
#[repr(C, align(32))]
pub struct Linux {
    /// Read by fast paths: the area's offset if sequences may run without further checks;
    /// [`CLOSED`] without sequences and before there are slots. Less by [`sharing::VFORK`] for each
    /// child that shares our memory.
    open: AtomicI64,
    offset: AtomicIsize,
    /// Read by fast paths too.
    index_offset: AtomicIsize,
    rseq: AtomicBool,
    index_is_cid: AtomicBool,
    line_handoff: LineHandoff,
    area_is_own: AtomicBool,
    system_page: SystemPage,
    nr_cpu_ids: AtomicUsize,
    nr_cpus: AtomicUsize,
    random: AtomicU64,
    /// [`open`](Self::open) without what `vfork` subtracts.
    at_rest: AtomicI64,
    pid: AtomicU32,
    advice: Advice,
    nodes: Nodes,
    huge_pages: HugePages,
    sharing: Sharing,
    refused: Refused,
}

impl Linux {
    /// A platform that is not probed yet.
    pub const fn new() -> Self {
        Self {
            rseq: AtomicBool::new(false),
            offset: AtomicIsize::new(0),
            index_offset: AtomicIsize::new(0),
            index_is_cid: AtomicBool::new(false),
            line_handoff: LineHandoff::new(),
            area_is_own: AtomicBool::new(false),
            system_page: SystemPage::new(),
            nr_cpu_ids: AtomicUsize::new(1),
            nr_cpus: AtomicUsize::new(1),
            random: AtomicU64::new(0),
            open: AtomicI64::new(CLOSED),
            at_rest: AtomicI64::new(CLOSED),
            pid: AtomicU32::new(0),
            advice: Advice::new(),
            nodes: Nodes::new(),
            huge_pages: HugePages::new(),
            sharing: Sharing::new(),
            refused: Refused::new(),
        }
    }

    /// Examines the machine. `rseq` is the tunable of this name: whether restartable sequences may
    /// be used, and by which index. Call it before any other use.
    pub fn probe(&self, rseq: u32) {
        let mut set = [0u8; 1024];
        let bytes = sys::affinity(&mut set);
        let cpus: u32 = set[..bytes].iter().map(|b| b.count_ones()).sum();
        // Relaxed, here and below: no other thread uses the platform yet.
        self.nr_cpu_ids.store((bytes * 8).max(64), Relaxed);
        self.nr_cpus.store((cpus as usize).max(1), Relaxed);
        self.nodes.probe();
        let mut seed = [0u8; 8];
        if !sys::getrandom(&mut seed) {
            let bytes = initial::auxiliary(libc::AT_RANDOM as usize) as *const u64;
            if !bytes.is_null() {
                // SAFETY: the kernel points `AT_RANDOM` at 16 random bytes.
                seed = mix(unsafe { bytes.read_unaligned() }).to_ne_bytes();
            }
        }
        // Relaxed, here and below: as above.
        self.random.store(u64::from_ne_bytes(seed), Relaxed);
        self.pid.store(sys::getpid(), Relaxed);
        clock::probe();
        self.line_handoff.probe();
        if rseq != 0
            && let Some(mut area) = Area::adopt().or_else(Area::register_own)
        {
            if rseq == BY_CPU_NUMBER {
                area = area.with_index(Index::CpuId);
            }
            // Relaxed: the store of `rseq` publishes them.
            self.offset.store(area.offset, Relaxed);
            self.index_offset.store(area.index_offset, Relaxed);
            self.index_is_cid.store(area.index == Index::MmCid, Relaxed);
            self.area_is_own.store(area.own, Relaxed);
            uslub_rseq::move_wide(true);
            // Release: publishes the area's fields.
            self.rseq.store(true, Release);
        }
    }

    /// How per-CPU slots are reached.
    pub fn mode(&self) -> Mode {
        match self.area().map(|area| area.index) {
            Some(Index::MmCid) => Mode::RseqMmCid,
            Some(Index::CpuId) => Mode::RseqCpuId,
            None => Mode::TryLock,
        }
    }

    /// The area that sequences use; `None` if they are not used.
    #[inline]
    pub fn area(&self) -> Option<Area> {
        // Acquire: pairs with `probe`. Relaxed: stored before `rseq`.
        self.rseq.load(Acquire).then(|| Area {
            offset: self.offset.load(Relaxed),
            index_offset: self.index_offset.load(Relaxed),
            index: if self.index_is_cid.load(Relaxed) {
                Index::MmCid
            } else {
                Index::CpuId
            },
            // Relaxed: stored before `rseq`.
            own: self.area_is_own.load(Relaxed),
        })
    }

    /// The area, if sequences may use it without further checks.
    #[inline]
    fn open_area(&self) -> Option<Area> {
        // Acquire: pairs with `slots_are_ready`.
        let offset = self.open.load(Acquire);
        (offset >= FARTHEST).then(|| Area {
            offset: offset as isize,
            // Relaxed: stored before `open`.
            index_offset: self.index_offset.load(Relaxed),
            // Sequences do not read these.
            index: Index::MmCid,
            own: false,
        })
    }

    /// The area; `None` where slots are locked instead; `Err` in a child that shares its parent's
    /// memory, where no slot may be used.
    #[inline]
    fn any_area(&self) -> Result<Option<Area>, ()> {
        match self.open_area() {
            None if self.is_vfork_child() => Err(()),
            None => Ok(self.area()),
            area => Ok(area),
        }
    }

    fn region<'a>(&self, table: &'a Table) -> &'a Region {
        table.here(self.cpu())
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

/// Pointers in a cache line.
const LINE: usize = 64 / size_of::<*mut u8>();
/// Least offset of an area from the thread pointer, in bytes.
const FARTHEST: i64 = i32::MIN as i64;
/// Below every offset.
const CLOSED: i64 = FARTHEST - 1;
/// One round of splitmix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn pointer(address: usize) -> Option<NonNull<u8>> {
    NonNull::new(address as *mut u8)
}

// SAFETY: mappings are private and anonymous. Each slot operation is a restartable sequence, or
// holds the slot's lock bit.
unsafe impl Platform for Linux {
    fn system_page(&self) -> usize {
        self.system_page.bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        pointer(space::reserve(bytes, align)?)
    }

    fn hole(&self, bytes: usize, align: usize) -> Option<usize> {
        space::hole(bytes, align, self.random())
    }

    fn reserve_at(&self, start: NonNull<u8>, bytes: usize) -> bool {
        space::reserve_at(start.as_ptr() as usize, bytes)
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: passed on.
        unsafe { sys::munmap(start.as_ptr() as usize, bytes) }
    }

    fn is_limited(&self) -> bool {
        space::is_limited()
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        self.advice.note_committed(bytes);
        // SAFETY: passed on.
        unsafe {
            sys::mprotect(
                start.as_ptr() as usize,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        }
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        self.refused.retry();
        let address = start.as_ptr() as usize;
        if !self.advice.may_advise() {
            let advised = self.huge_pages.is_advised(address);
            // SAFETY: passed on.
            return unsafe { self.advice.replace(address, bytes, advised) };
        }
        // SAFETY: passed on.
        unsafe { sys::madvise(address, bytes, libc::MADV_DONTNEED) }
    }

    unsafe fn set_backing(&self, start: NonNull<u8>, bytes: usize, backing: Backing) -> bool {
        let address = start.as_ptr() as usize;
        let may_advise = self.advice.may_advise();
        match backing {
            // With longer system pages a huge page is longer than a block.
            _ if !self.system_page.is_ours() => false,
            Backing::HugePages { ahead } if may_advise => {
                // SAFETY: passed on.
                unsafe { self.huge_pages.request(start, bytes, ahead) }
            }
            // SAFETY: passed on.
            Backing::HugePages { .. } => unsafe { self.huge_pages.request_unadvised(start, bytes) },
            // SAFETY: passed on.
            Backing::Sparse if !may_advise => unsafe {
                self.huge_pages.except_unadvised(start, bytes)
            },
            _ if !may_advise => false,
            Backing::BasePages => {
                // SAFETY: passed on; the contents stay.
                let done = unsafe { sys::madvise(address, bytes, libc::MADV_NOHUGEPAGE) };
                split_huge_pages(address, bytes);
                done
            }
            // SAFETY: passed on.
            Backing::Sparse => unsafe { self.huge_pages.except(start, bytes) },
        }
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.refused.retry();
        pointer(sys::mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)?)
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        let may_advise = !self.is_sandboxed();
        // SAFETY: passed on.
        unsafe {
            self.refused
                .unmap(start.as_ptr() as usize, bytes, may_advise)
        };
    }

    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
        pointer(unsafe { sys::mremap(start.as_ptr() as usize, old, new)? })
    }

    fn may_remap_kept(&self) -> bool {
        // Ordinary allocators call `mremap` only where an object grows.
        self.advice.may_advise()
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        match timeout_ms {
            Some(ms) => sys::futex_wait_for(word.as_ptr(), value, u64::from(ms)),
            None => sys::futex_wait(word.as_ptr(), value),
        }
    }

    fn wake(word: &AtomicU32) {
        sys::futex_wake(word.as_ptr(), 1);
    }

    fn wake_all(word: &AtomicU32) {
        // The kernel reads the count as an `int`.
        sys::futex_wake(word.as_ptr(), i32::MAX as usize);
    }

    fn thread() -> usize {
        uslub_rseq::thread_pointer()
    }

    fn now_ms(&self) -> u64 {
        clock::nanoseconds(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
    }

    fn random(&self) -> u64 {
        // Relaxed: the addition alone gives each caller its own number.
        mix(self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }

    fn memory_bytes(&self) -> usize {
        // SAFETY: all-zero is a valid value.
        let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
        // SAFETY: only writes the record.
        if unsafe { sys::call(libc::SYS_sysinfo, [&raw mut info as usize, 0, 0, 0, 0, 0]) } != 0 {
            return 0;
        }
        (info.totalram as usize).saturating_mul(info.mem_unit as usize)
    }

    fn nr_nodes(&self) -> usize {
        self.nodes.nr()
    }

    fn node(&self) -> usize {
        match self.area().and_then(|area| area.node_here()) {
            Some(node) => node as usize,
            None if self.advice.may_advise() => sys::node(),
            // Unbound memory comes from the node of the thread that touches it first.
            None => 0,
        }
    }

    fn node_has_memory(&self, nid: usize) -> bool {
        self.nodes.has_memory(nid)
    }

    fn distance(&self, from: usize, to: usize) -> u32 {
        self.nodes.distance(from, to)
    }

    unsafe fn bind(&self, start: NonNull<u8>, bytes: usize, nid: usize) {
        if self.advice.may_advise() {
            // SAFETY: passed on.
            unsafe { self.nodes.bind(start.as_ptr() as usize, bytes, nid) };
        }
    }

    fn nr_cpu_ids(&self) -> usize {
        // Relaxed: set by `probe`.
        self.nr_cpu_ids.load(Relaxed)
    }

    fn nr_cpus(&self) -> usize {
        // Relaxed: set by `probe`.
        self.nr_cpus.load(Relaxed)
    }

    #[inline]
    fn cpu(&self) -> usize {
        let cpu = match self.open_area().or_else(|| self.area()) {
            Some(area) => area.index_here() as usize,
            None => clock::cpu(self.advice.may_advise()),
        };
        let nr = self.nr_cpu_ids();
        if cpu < nr { cpu } else { cpu % nr }
    }

    #[inline]
    fn percpu_usable(&self) -> bool {
        self.open_area()
            .is_some_and(|area| area.is_registered_here())
            || !self.is_vfork_child() && self.area().is_none_or(|area| self.register(area))
    }

    #[inline]
    fn region_here<'a>(&self, table: &'a Table) -> Option<&'a Region> {
        let area = self.open_area()?;
        area.is_registered_here()
            .then(|| table.here(area.index_here() as usize))
    }

    #[inline]
    fn prefetch_lines(&self, array: &[*mut u8]) {
        let (start, lines) = (
            array.as_ptr(),
            array.len().div_ceil(LINE).min(PREFETCH_LINES_MAX),
        );
        (0..lines)
            .for_each(|line| uslub_rseq::prefetch_write(start.wrapping_add(line * LINE).cast()));
    }

    #[inline]
    fn prefetch_line(&self, address: *const u8) {
        uslub_rseq::prefetch_write(address);
    }

    #[inline]
    unsafe fn handoff_objects(&self, objects: &[*mut u8]) {
        // SAFETY: passed on.
        unsafe { self.line_handoff.objects(objects) }
    }

    #[inline]
    fn handoff_lines(&self, array: &mut [*mut u8]) {
        self.line_handoff.lines(array);
    }

    #[inline]
    fn write_at(&self, base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) {
        if !uslub_rseq::write_at(base, offsets, out) {
            write_one_by_one(base, offsets, out);
        }
    }

    fn slots_are_ready(&self) {
        let Some(area) = self.area() else {
            return;
        };
        let offset = area.offset as i64;
        // Relaxed: for forks, and none is in progress yet.
        self.at_rest.store(offset, Relaxed);
        // Release: publishes the slots.
        self.open.fetch_add(offset - CLOSED, Release);
    }

    #[inline(always)]
    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        match self.open_area() {
            // SAFETY: the table's regions have tops in their slots.
            Some(area) => unsafe { pop(&area, table, slot) },
            None => self.pop_fallback(table, slot),
        }
    }

    #[inline(always)]
    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        match self.open_area() {
            // SAFETY: as in `pop`.
            Some(area) => unsafe { push(&area, table, slot, object) },
            None => self.push_fallback(table, slot, object),
        }
    }

    #[inline]
    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        match self.open_area() {
            // SAFETY: as in `pop`.
            Some(area) => unsafe { pop_many(&area, table, slot, out) },
            None => self.pop_many_fallback(table, slot, out),
        }
    }

    #[inline]
    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        match self.open_area() {
            // SAFETY: as in `pop`.
            Some(area) => unsafe { push_many(&area, table, slot, objects) },
            None => self.push_many_fallback(table, slot, objects),
        }
    }

    #[inline]
    unsafe fn push_many_checked(
        &self,
        table: &Table,
        slot: Slot,
        objects: &[*mut u8],
        bounds: (usize, usize),
    ) -> bool {
        let within = |area: Area| {
            // SAFETY: as in `pop`.
            unsafe { push_many_checked(&area, table, slot, objects, bounds) }
        };
        self.open_area().and_then(within) == Some(true)
    }

    #[inline]
    unsafe fn compare_exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool {
        let Ok(area) = self.any_area() else {
            return false;
        };
        // SAFETY: as in `pop`.
        unsafe {
            match area {
                Some(area) => {
                    uslub_rseq::exchange(&area, table.active().cast(), slot.offset(), old, new)
                }
                None => try_lock::compare_exchange(self.region(table), slot, old, new),
            }
        }
    }

    /// Adds by one instruction inside a sequence, so no other CPU can interfere. Adds atomically
    /// where no sequence may run.
    #[inline]
    fn count(&self, table: &Table, counter: Counter, n: usize) {
        let (active, stopped) = (table.active().cast(), table.stopped().cast());
        let add = |area: Area| {
            // SAFETY: the table's regions have the counter there.
            unsafe { uslub_rseq::add(&area, active, counter.offset(), n, stopped) }
        };
        if !self.open_area().is_some_and(add) {
            self.count_atomically(table, counter, n);
        }
    }

    fn fence(&self) -> bool {
        self.advice.is_alone() || self.advice.may_fence() && uslub_rseq::fence()
    }

    fn slots_are_locked(&self) -> bool {
        self.area().is_none()
    }

    fn warn(&self, message: Arguments<'_>) {
        complain(message);
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        complain(message);
        sys::abort()
    }
}
