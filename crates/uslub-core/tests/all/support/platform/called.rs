//! What the allocator calls: memory that is watched, and slots.
//!
//! All orderings are SeqCst: nothing here is measured.

use std::fmt::Arguments;
use std::ptr::{NonNull, null_mut};
use std::sync::PoisonError;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use uslub_core::groups::Groups;
use uslub_core::memory::arena::BLOCK_BYTES;
use uslub_core::percpu::{Slot, Table, try_lock};
use uslub_core::platform::{Backing, FaultSite, Platform, SYSTEM_PAGE_MAX};

use super::super::ranges::Ranges;
use super::super::{Fresh, POISON, Slots, sleep, system, thread};
use super::Virtual;

// SAFETY: memory comes from the system with the promised content (poison is only for tests that
// live with it); slot operations hold the slot's lock bit or the CPU's mutex.
unsafe impl Platform for Virtual {
    fn system_page(&self) -> usize {
        self.setup.page
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let mut memory = self.memory();
        memory.calls.reserve += 1;
        if !self.answer(&mut memory) {
            return None;
        }
        let aligned = system::reserve(bytes, align)?;
        memory.reserved.insert(aligned, aligned + bytes);
        NonNull::new(aligned as *mut u8)
    }

    fn hole(&self, bytes: usize, align: usize) -> Option<usize> {
        self.setup.hole.then(|| system::hole(bytes, align))?
    }

    fn reserve_at(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        if !self.setup.hole {
            return false;
        }
        memory.calls.reserve += 1;
        if !self.answer(&mut memory) || !system::reserve_at(at, bytes) {
            return false;
        }
        memory.reserved.insert(at, at + bytes);
        true
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        assert!(
            memory.reserved.contains(at, at + bytes),
            "release of {at:#x} + {bytes:#x}, which is not reserved"
        );
        // SeqCst: see above.
        if !self.releases.load(SeqCst) {
            return false;
        }
        assert!(memory.reserved.remove(at, at + bytes));
        memory.committed.remove_all(at, at + bytes);
        memory.pages.remove_all(at, at + bytes);
        system::unmap(at, bytes);
        true
    }

    fn is_limited(&self) -> bool {
        self.setup.limited
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        memory.calls.commit += 1;
        assert!(
            memory.reserved.contains(at, at + bytes),
            "commit of {at:#x} + {bytes:#x}, which is not reserved"
        );
        if !self.answer(&mut memory) {
            return false;
        }
        memory.committed.insert(at, at + bytes);
        system::commit(at, bytes);
        if bytes.is_multiple_of(BLOCK_BYTES) {
            memory.pages.insert(at, at + bytes);
            if self.setup.fresh == Fresh::Poisoned {
                // SAFETY: just committed.
                unsafe { start.write_bytes(POISON, bytes) };
            }
        }
        true
    }

    unsafe fn handoff_objects(&self, objects: &[*mut u8]) {
        for object in objects {
            let word = object.cast::<u64>();
            // SAFETY: the caller's, and aligned; under miri it fails where they are not.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        let addresses = objects.iter().map(|&object| object as usize);
        self.memory().offered.extend(addresses);
    }

    fn handoff_lines(&self, array: &mut [*mut u8]) {
        for line in array.chunks_mut(8) {
            let word = &raw mut line[0];
            // SAFETY: borrowed.
            unsafe { word.write_volatile(word.read_volatile()) };
        }
        self.memory().offered_arrays.push(array.len());
    }

    unsafe fn set_backing(&self, start: NonNull<u8>, bytes: usize, backing: Backing) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        let is_usable = |ranges: &Ranges| ranges.contains(at, at + bytes);
        assert!(is_usable(&memory.committed) || is_usable(&memory.mapped));
        memory.backed.push((at, bytes, backing));
        true
    }

    unsafe fn purge(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        // Those of windows are many, and are not counted.
        let mapped = memory.mapped.contains(at, at + bytes);
        memory.calls.purge += usize::from(!mapped);
        assert!(
            mapped || memory.committed.contains(at, at + bytes),
            "purge of {at:#x} + {bytes:#x}, which is not committed"
        );
        // SeqCst: see above.
        if !self.purges.load(SeqCst) {
            return false;
        }
        memory.purged.push((at, bytes));
        let poisoned = self.setup.fresh == Fresh::Poisoned && memory.pages.contains(at, at + 1);
        // SAFETY: committed, and holds nothing of value.
        unsafe { start.write_bytes(if poisoned { POISON } else { 0 }, bytes) };
        true
    }

    fn map(&self, bytes: usize) -> Option<NonNull<u8>> {
        let mut memory = self.memory();
        memory.calls.map += 1;
        if !self.answer(&mut memory) {
            return None;
        }
        self.assert_page_aligned(0, bytes);
        let at = if self.setup.beside {
            // Nobody else's memory lies around it.
            let hole = system::hole(3 * bytes.next_power_of_two(), SYSTEM_PAGE_MAX)?;
            let at = hole + bytes.next_power_of_two();
            system::reserve_at(at, bytes).then(|| system::commit(at, bytes))?;
            at
        } else {
            system::map(bytes, self.setup.page)?
        };
        memory.mapped.insert(at, at + bytes);
        NonNull::new(at as *mut u8)
    }

    // An interpreter's mappings are allocations of their own.
    const JOINS_MAPPINGS: bool = !cfg!(miri);

    fn map_at(&self, start: usize, bytes: usize) -> bool {
        self.assert_page_aligned(start, bytes);
        let mut memory = self.memory();
        if !self.setup.beside || !self.answer(&mut memory) || !system::reserve_at(start, bytes) {
            return false;
        }
        memory.calls.map_at += 1;
        system::commit(start, bytes);
        memory.mapped.insert(start, start + bytes);
        true
    }

    unsafe fn unmap(&self, start: NonNull<u8>, bytes: usize) {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, bytes);
        let mut memory = self.memory();
        memory.calls.unmap += 1;
        if !memory.mapped.remove(at, at + bytes) {
            assert!(
                memory.reserved.remove(at, at + bytes),
                "unmap of {at:#x} + {bytes:#x}, which is not mapped"
            );
            assert!(
                !memory.committed.touches(at, at + bytes),
                "unmap of {at:#x} + {bytes:#x}, which is committed"
            );
        }
        system::unmap(at, bytes);
    }

    unsafe fn remap(&self, start: NonNull<u8>, old: usize, new: usize) -> Option<NonNull<u8>> {
        let at = start.as_ptr() as usize;
        self.assert_page_aligned(at, old);
        self.assert_page_aligned(at, new);
        let mut memory = self.memory();
        memory.calls.remap += 1;
        assert!(
            memory.mapped.contains(at, at + old),
            "remap of {at:#x} + {old:#x}, which is not mapped"
        );
        if !self.answer(&mut memory) {
            return None;
        }
        // It always moves, so that a use of the old address is seen.
        let moved = system::map(new, self.setup.page)?;
        // SAFETY: both are mapped and at least so long.
        unsafe { std::ptr::copy_nonoverlapping(at as *const u8, moved as *mut u8, old.min(new)) };
        assert!(memory.mapped.remove(at, at + old));
        system::unmap(at, old);
        memory.mapped.insert(moved, moved + new);
        NonNull::new(moved as *mut u8)
    }

    fn wait(word: &AtomicU32, value: u32, timeout_ms: Option<u32>) {
        assert!(thread::may_wait(), "waited for a lock where nobody may");
        if let Some(ms) = timeout_ms {
            return sleep::wait(word, value, ms);
        }
        // A lock: its holder is soon done. SeqCst: see above.
        while word.load(SeqCst) == value {
            std::thread::yield_now();
        }
    }

    fn wake(word: &AtomicU32) {
        sleep::wake(word, 1);
    }

    fn wake_all(word: &AtomicU32) {
        sleep::wake(word, i32::MAX);
    }

    fn thread() -> usize {
        thread::number()
    }

    fn now_ms(&self) -> u64 {
        // SeqCst: see above.
        self.clock.load(SeqCst)
    }

    fn random(&self) -> u64 {
        // SeqCst: see above.
        thread::splitmix(self.random.fetch_add(1, SeqCst))
    }

    fn memory_bytes(&self) -> usize {
        1 << 30
    }

    fn nr_nodes(&self) -> usize {
        self.setup.nodes
    }

    fn node(&self) -> usize {
        self.cpu() * self.setup.nodes / self.setup.cpus
    }

    /// Each node has one last-level cache.
    fn make_groups(&self, cpus: usize) -> usize {
        let mut groups = Groups::new(cpus);
        let of: Vec<_> = groups.add(self.setup.cpus / self.setup.nodes).collect();
        *self.groups() = of;
        groups.len()
    }

    fn group(&self) -> usize {
        let groups = self.groups();
        groups[self.cpu() % groups.len()]
    }

    fn node_has_memory(&self, nid: usize) -> bool {
        self.setup.memory >> nid & 1 == 1
    }

    unsafe fn bind(&self, start: NonNull<u8>, bytes: usize, nid: usize) {
        assert!(self.node_has_memory(nid), "bound to a node without memory");
        let mut memory = self.memory();
        memory.bound.push((start.as_ptr() as usize, bytes, nid));
    }

    fn nr_cpu_ids(&self) -> usize {
        self.setup.cpus
    }

    fn nr_cpus(&self) -> usize {
        self.setup.cpus
    }

    fn cpu(&self) -> usize {
        thread::cpu() % self.setup.cpus
    }

    fn percpu_usable(&self) -> bool {
        // SeqCst: see above.
        self.percpu_usable.load(SeqCst)
    }

    unsafe fn pop(&self, table: &Table, slot: Slot) -> *mut u8 {
        // SAFETY: passed on.
        self.on_slot(table, null_mut(), |region| unsafe {
            try_lock::pop(region, slot)
        })
    }

    unsafe fn push(&self, table: &Table, slot: Slot, object: *mut u8) -> bool {
        // SAFETY: passed on.
        self.on_slot(table, false, |region| unsafe {
            try_lock::push(region, slot, object)
        })
    }

    unsafe fn pop_many(&self, table: &Table, slot: Slot, out: &mut [*mut u8]) -> bool {
        // SAFETY: passed on.
        self.on_slot(table, false, |region| unsafe {
            try_lock::pop_many(region, slot, out)
        })
    }

    unsafe fn push_many(&self, table: &Table, slot: Slot, objects: &[*mut u8]) -> bool {
        // SAFETY: passed on.
        self.on_slot(table, false, |region| unsafe {
            try_lock::push_many(region, slot, objects)
        })
    }

    unsafe fn compare_exchange(&self, table: &Table, slot: Slot, old: usize, new: usize) -> bool {
        self.on_slot(table, false, |region| {
            try_lock::compare_exchange(region, slot, old, new)
        })
    }

    fn fence(&self) -> bool {
        for sequence in &self.sequences {
            drop(sequence.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.setup.slots != Slots::WithoutFence
    }

    fn should_fail(&self, site: FaultSite) -> bool {
        self.faults().should_fail(site)
    }

    fn slots_are_locked(&self) -> bool {
        self.setup.slots == Slots::Locked
    }

    fn warn(&self, message: Arguments<'_>) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.push(message.to_string());
    }

    fn fatal(&self, message: Arguments<'_>) -> ! {
        panic!("{message}")
    }
}
