//! Linux as the core's [`Platform`]: each operation, by the parts of [`Linux`].
//!
//! Any thread may call any of them. Operations on per-CPU slots decide by `Linux::open`; where it
//! is closed, `slots_fallback.rs` takes over.

use core::fmt::Arguments;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};

use uslub_core::percpu::try_lock;
use uslub_core::percpu::{Counter, Region, Slot, Table};
use uslub_core::platform::{Access, Backing, Identity, Place, Platform, Watch, write_one_by_one};
use uslub_rseq::Area;

use crate::huge_pages::split_huge_pages;
use crate::policy::PREFETCH_LINES_MAX;
use crate::slots::{pop, pop_many, push, push_many, push_many_checked};
use crate::{CLOSED, LINE, Linux, callers, clock, complain, fault, mix, space, sys, traces, watch};

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
        self.advice.is_limited()
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

    unsafe fn protect(&self, start: NonNull<u8>, bytes: usize, access: Access) -> bool {
        let protection = match access {
            Access::Closed => libc::PROT_NONE,
            Access::ReadOnly => libc::PROT_READ,
            Access::Open => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: passed on.
        unsafe { sys::mprotect(start.as_ptr() as usize, bytes, protection) }
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

    const JOINS_MAPPINGS: bool = true;

    fn map_at(&self, start: usize, bytes: usize) -> bool {
        let flags = libc::MAP_FIXED_NOREPLACE;
        let mapped = sys::mmap(start, bytes, libc::PROT_READ | libc::PROT_WRITE, flags);
        let Some(mapped) = mapped.filter(|&mapped| mapped != start) else {
            return mapped.is_some();
        };
        // Linux before 4.17 takes the address as a hint. SAFETY: just mapped, unused.
        unsafe { self.refused.unmap(mapped, bytes, !self.is_sandboxed()) };
        false
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

    fn make_groups(&self, cpus: usize) -> usize {
        // Few CPUs, or few that the process may use: no file is read.
        match self.nr_cpus() <= cpus {
            true => 1,
            false => self.cpu_groups.make(cpus, self.nodes.nr()),
        }
    }

    fn group(&self) -> usize {
        let cpu = match self.area() {
            Some(area) => area.cpu_here() as usize,
            None => clock::cpu(self.advice.may_advise()),
        };
        self.cpu_groups.of(cpu)
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

    fn watch_faults(&self) -> bool {
        if self.is_sandboxed() {
            return false;
        }
        fault::stay_in_front();
        true
    }

    fn report(&self, line: Arguments<'_>) {
        traces::report(line);
    }

    fn is_watched(&self) -> bool {
        watch::is_watched()
    }

    fn watch(&self, event: Watch) {
        watch::tell(event);
    }

    fn tid(&self) -> u32 {
        if self.is_sandboxed() {
            return 0;
        }
        callers::tid()
    }

    fn identity(&self) -> Identity {
        callers::identity()
    }

    fn callers(&self, out: &mut [usize]) -> usize {
        if self.is_sandboxed() {
            // It asks the kernel what a filter may forbid.
            return 0;
        }
        callers::callers(out, self.now_ms())
    }

    fn place(&self, address: usize) -> Place {
        callers::place(address, self.now_ms())
    }

    fn warn(&self, message: Arguments<'_>) {
        complain(message);
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        complain(message);
        sys::abort()
    }
}
