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

#[cfg(feature = "own-libc")]
extern crate libc_own as libc;

mod advice;
mod arch;
mod callers;
mod clock;
mod cpu_groups;
pub mod environment;
pub mod fault;
mod huge_pages;
mod line_handoff;
mod message;
mod mode;
pub mod numa;
mod page;
mod peek;
mod platform;
mod policy;
mod refused;
mod registers;
mod sharing;
mod slots;
mod slots_fallback;
mod space;
pub mod start;
pub mod switch;
pub mod sys;
pub mod traces;
mod unwind;
mod vdso;
pub mod watch;

use core::mem::offset_of;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicU32, AtomicU64, AtomicUsize};

use uslub_core::Allocator;
use uslub_core::percpu::sheaf::SHEAF_BYTES;
use uslub_core::percpu::{APART, Region, Table};
use uslub_core::platform::{PAGE_SIZE, Platform};
use uslub_rseq::{Area, Index, initial};

use crate::advice::Advice;
use crate::cpu_groups::CpuGroups;
use crate::huge_pages::HugePages;
use crate::line_handoff::LineHandoff;
use crate::numa::Nodes;
use crate::page::SystemPage;
use crate::refused::Refused;
use crate::sharing::Sharing;

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
    lies_apart(offset_of!(Allocator<Linux>, base.table) + Table::ACTIVE)
        && lies_apart(offset_of!(Allocator<Linux>, base.platform.open))
        && lies_apart(offset_of!(Allocator<Linux>, base.platform.index_offset))
        && lies_apart(offset_of!(Allocator<Linux>, base.memory.zone.arena))
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
    cpu_groups: CpuGroups,
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
            cpu_groups: CpuGroups::new(),
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
        self.advice.set_limited(space::is_limited());
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

/// Sets `errno`, for the C functions of a face.
pub fn set_errno(number: libc::c_int) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = number };
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
