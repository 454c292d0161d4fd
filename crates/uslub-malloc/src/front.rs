//! malloc and free as most calls see them.
//!
//! Both are one restartable sequence each (see `uslub-rseq`), written out
//! so that there is no frame, no call and no lock: the class (or the cache of
//! the page), the CPU's region, the top, the object, one store. Whatever does not fit that goes to
//! the slow functions with the argument untouched: other sizes, empty or full
//! sheaves, aborted sequences, and everything while [`FRONT`] is closed (its bounds are 0): before
//! set-up, without restartable sequences, and while a `vfork` is under way.

use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};

use uslub_core::kmalloc::{CLASS_MAX, CLASS_TABLE};
use uslub_core::percpu::{Region, SPARE_OFFSET};
use uslub_core::platform::PAGE_SIZE;

use crate::ALLOCATOR;

/// Most CPUs for which the fast paths open: as many as the kernel can have.
const CPUS: usize = 8192;

/// Where in its page the line lies that the fast paths look at, and where the regions begin: where a region has the words of spare
/// sheaves, which they do not write. A processor takes a load for one of what was just stored at the same place of another page,
/// and waits; with a store and a load of that kind in each call, rows of calls take a quarter longer.
const APART: usize = SPARE_OFFSET;

/// What the fast paths look at; one cache line, then the table of classes and that of regions. All zeros at first, so that the
/// library's file has none of it.
///
/// They also write to the second word of the thread's area, which is aligned to 32 bytes and may lie anywhere in its page: second
/// words of 32 bytes are left empty.
#[repr(C, align(4096))]
pub(crate) struct Front {
    _before: [u8; APART],
    /// Address of the arena's page 0.
    base: AtomicUsize,
    _written: usize,
    /// The page → cache array.
    map: AtomicUsize,
    /// Sizes below it have a class; 0 closes `malloc`.
    limit: AtomicUsize,
    /// Offset of the thread's area from the thread pointer.
    offset: AtomicUsize,
    _written_too: usize,
    /// Pages that `map` covers; 0 closes `free`.
    pages: AtomicUsize,
    /// Offset of the area's index field.
    index_offset: AtomicUsize,
    /// Class by size in words.
    classes: [AtomicU8; CLASS_MAX / 8 + 1],
    _between: [u8; PAGE_SIZE - 64 - (CLASS_MAX / 8 + 1)],
    /// Regions by index.
    regions: [AtomicPtr<Region>; CPUS],
}

const _: () = assert!(offset_of!(Front, regions) % PAGE_SIZE == APART);

pub(crate) static FRONT: Front = Front {
    _before: [0; APART],
    base: AtomicUsize::new(0),
    _written: 0,
    map: AtomicUsize::new(0),
    limit: AtomicUsize::new(0),
    offset: AtomicUsize::new(0),
    _written_too: 0,
    pages: AtomicUsize::new(0),
    index_offset: AtomicUsize::new(0),
    classes: [const { AtomicU8::new(0) }; CLASS_MAX / 8 + 1],
    _between: [0; PAGE_SIZE - 64 - (CLASS_MAX / 8 + 1)],
    regions: [const { AtomicPtr::new(null_mut()) }; CPUS],
};

impl Front {
    /// Where the allocator is to list its regions.
    pub(crate) const fn regions(&self) -> &[AtomicPtr<Region>] {
        &self.regions
    }

    /// Fills the table of classes, before the fast paths are opened for the first time.
    pub(crate) fn set_up(&self) {
        for (place, class) in self.classes.iter().zip(CLASS_TABLE) {
            // Relaxed: published by the bounds.
            place.store(class, Relaxed);
        }
    }

    /// Opens the fast paths, if there are restartable sequences and no `vfork` is under way.
    pub(crate) fn open(&self) {
        let Some(area) = ALLOCATOR.platform.area() else {
            return;
        };
        let has_place = core::ptr::eq(ALLOCATOR.table.active(), self.regions.as_ptr());
        if ALLOCATOR.platform.in_vfork() || !has_place {
            return;
        }
        let arena = &ALLOCATOR.zone.arena;
        // Relaxed: published by the two that follow.
        self.base.store(arena.base(), Relaxed);
        self.map.store(arena.map() as usize, Relaxed);
        self.offset.store(area.offset as usize, Relaxed);
        self.index_offset.store(area.index_offset as usize, Relaxed);
        // Release: the bounds open what is above. With several memory nodes a free must look where its object belongs.
        self.pages.store(arena.parkable(), Release);
        // Release: as above.
        self.limit.store(CLASS_MAX + 1, Release);
        // Another thread's `vfork` may have begun since.
        if ALLOCATOR.platform.in_vfork() {
            self.close();
        }
    }

    /// Closes the fast paths for calls that begin later.
    pub(crate) fn close(&self) {
        // Relaxed: the only thread that must not slip through is born after it, on this one.
        self.pages.store(0, Relaxed);
        self.limit.store(0, Relaxed);
    }

    /// Lets `free` know pages that the arena has won since.
    #[inline]
    pub(crate) fn follow(&self) {
        let limit = ALLOCATOR.zone.arena.parkable();
        // Acquire: a closed front stays closed.
        let pages = self.pages.load(Acquire);
        if pages != 0 && pages < limit {
            // Release: with the map of those pages. A race with `close` is lost by the exchange.
            let _ = self.pages.compare_exchange(pages, limit, Release, Relaxed);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use core::arch::{global_asm, naked_asm};
    use core::ffi::c_void;
    use core::mem::offset_of;

    use uslub_core::percpu::{ALLOCS_OFFSET, FREES_OFFSET};
    use uslub_core::sheaf::SHEAF_BYTES;

    use super::{APART, FRONT, Front};
    use crate::api::{free_slow, free_twice, malloc_slow};

    // Both functions begin a cache line.
    global_asm!(
        ".pushsection .text.uslub_malloc, \"ax\"",
        ".p2align 6",
        ".popsection",
        ".pushsection .text.uslub_free, \"ax\"",
        ".p2align 6",
        ".popsection",
    );

    /// Allocates `bytes`; null with `errno` = `ENOMEM` when memory cannot be had.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    #[unsafe(link_section = ".text.uslub_malloc")]
    pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
        naked_asm!(
            "lea rsi, [rip + {front} + {apart}]",
            "cmp rdi, [rsi + {limit}]",
            "jae {slow}",
            "lea eax, [rdi + 7]",
            "shr eax, 3",
            "movzx eax, byte ptr [rsi + rax + {classes}]",
            "mov rdx, [rsi + {offset}]",
            // A thread that the kernel does not know has a negative id here.
            "cmp dword ptr fs:[rdx + 4], 0",
            "js {slow}",
            "mov r9, [rsi + {index}]",
            "lea rcx, [rip + 50f]",
            "mov fs:[rdx + 8], rcx",
            "20:",
            "mov ecx, fs:[r9]",
            "mov rcx, [rsi + rcx * 8 + {regions}]",
            "lea rcx, [rcx + rax * 8]",
            "mov r8, [rcx]",
            "mov rax, [r8]",
            "test rax, rax",
            "jz {slow}",
            "sub r8, 8",
            "mov [rcx], r8",
            "30:",
            "inc qword ptr [rcx + {count}]",
            "ret",
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "50:",
            ".long 0, 0",
            ".quad 20b, 30b - 20b, 40f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "40:",
            "jmp {slow}",
            ".popsection",
            front = sym FRONT,
            apart = const APART,
            limit = const offset_of!(Front, limit) - APART,
            classes = const offset_of!(Front, classes) - APART,
            offset = const offset_of!(Front, offset) - APART,
            index = const offset_of!(Front, index_offset) - APART,
            regions = const offset_of!(Front, regions) - APART,
            count = const ALLOCS_OFFSET,
            slow = sym malloc_slow,
        )
    }

    /// Frees an object; null is ignored. What is no object ends the process with a message.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    #[unsafe(link_section = ".text.uslub_free")]
    pub unsafe extern "C" fn free(object: *mut c_void) {
        naked_asm!(
            "lea rsi, [rip + {front} + {apart}]",
            "mov rax, rdi",
            "sub rax, [rsi + {base}]",
            "shr rax, 12",
            "cmp rax, [rsi + {pages}]",
            "jae {slow}",
            "mov rcx, [rsi + {map}]",
            "movzx eax, word ptr [rcx + rax * 2]",
            "mov rdx, [rsi + {offset}]",
            // A thread that the kernel does not know has a negative id here.
            "cmp dword ptr fs:[rdx + 4], 0",
            "js {slow}",
            "mov r9, [rsi + {index}]",
            "lea rcx, [rip + 50f]",
            "mov fs:[rdx + 8], rcx",
            "20:",
            "mov ecx, fs:[r9]",
            "mov rcx, [rsi + rcx * 8 + {regions}]",
            "lea rcx, [rcx + rax * 8]",
            "mov r8, [rcx]",
            // The newest free object is this one: it was freed just before.
            "cmp [r8], rdi",
            "je {twice}",
            "add r8, 8",
            "test r8d, {mask}",
            "jz {slow}",
            "mov [r8], rdi",
            "mov [rcx], r8",
            "30:",
            "inc qword ptr [rcx + {count}]",
            "ret",
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "50:",
            ".long 0, 0",
            ".quad 20b, 30b - 20b, 40f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "40:",
            "jmp {slow}",
            ".popsection",
            front = sym FRONT,
            apart = const APART,
            base = const offset_of!(Front, base) - APART,
            pages = const offset_of!(Front, pages) - APART,
            map = const offset_of!(Front, map) - APART,
            offset = const offset_of!(Front, offset) - APART,
            index = const offset_of!(Front, index_offset) - APART,
            regions = const offset_of!(Front, regions) - APART,
            mask = const SHEAF_BYTES - 1,
            count = const FREES_OFFSET,
            slow = sym free_slow,
            twice = sym free_twice,
        )
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod fast {
    use core::ffi::c_void;

    /// Allocates `bytes`; null with `errno` = `ENOMEM` when memory cannot be had.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
        crate::api::malloc_slow(bytes)
    }

    /// Frees an object; null is ignored. What is no object ends the process with a message.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn free(object: *mut c_void) {
        // SAFETY: passed on.
        unsafe { crate::api::free_slow(object) }
    }
}

pub use fast::{free, malloc};
