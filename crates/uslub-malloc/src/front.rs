//! malloc and free as most calls see them.
//!
//! Both are one restartable sequence each (see `uslub-rseq`), written out
//! so that there is no frame, no call and no lock: the class (or the cache of
//! the page), the CPU's region, the top, the object, one store. Whatever does not fit that goes to
//! the slow functions with the argument untouched: other sizes, empty or full
//! sheaves, aborted sequences, and everything while [`FRONT`] is closed (its bounds are 0): before
//! set-up, without restartable sequences, and while a `vfork` is under way.
//!
//! Each of the two is there twice, as the thread's area has two fields that may index the regions,
//! and one load more in each call is what it costs to look up where the field is. Calls come to the
//! function for the concurrency id; kernels before 6.3 have none, and there it is closed, which
//! leads to the one for the CPU's number.

use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicUsize};

use uslub_core::kmalloc::{CLASS_MAX, CLASS_TABLE};
use uslub_core::percpu::{APART, CacheId, Region};
use uslub_core::platform::PAGE_SIZE;
use uslub_rseq::Index;

use crate::ALLOCATOR;

/// Most CPUs for which the fast paths open: as many as the kernel can have.
const CPUS: usize = 8192;

/// What a `malloc` and a `free` look at.
///
/// They also write to the second word of the thread's area, which is aligned to 32 bytes and may
/// lie anywhere in its page: second words of 32 bytes are left empty.
#[repr(C, align(64))]
struct Line {
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
}

impl Line {
    const fn closed() -> Self {
        Self {
            base: AtomicUsize::new(0),
            _written: 0,
            map: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            offset: AtomicUsize::new(0),
            _written_too: 0,
            pages: AtomicUsize::new(0),
        }
    }

    fn open(&self, offset: isize) {
        let arena = &ALLOCATOR.zone.arena;
        // Relaxed: published by the two that follow.
        self.base.store(arena.base(), Relaxed);
        self.map.store(arena.map() as usize, Relaxed);
        self.offset.store(offset as usize, Relaxed);
        // Release: the bounds open what is above. With several memory nodes a free must look where
        // its object belongs.
        self.pages.store(arena.parkable(), Release);
        // Release: as above.
        self.limit.store(CLASS_MAX + 1, Release);
    }

    fn close(&self) {
        // Relaxed: the only thread that must not slip through is born after it, on this one.
        self.pages.store(0, Relaxed);
        self.limit.store(0, Relaxed);
    }

    fn follow(&self, limit: usize) {
        // Acquire: what is closed stays closed.
        let pages = self.pages.load(Acquire);
        if pages != 0 && pages < limit {
            // Release: with the map of those pages. A race with `close` is lost by the exchange.
            let _ = self.pages.compare_exchange(pages, limit, Release, Relaxed);
        }
    }
}

/// What the fast paths look at, [`APART`]: a cache line for each pair of them, then the table of
/// classes and that of regions. All zeros at first, so that the library's file has none of it.
#[repr(C, align(4096))]
pub(crate) struct Front {
    _before: [u8; APART],
    by_id: Line,
    by_number: Line,
    /// Identity of the class's cache by size in words. Those above 3.5 KiB lie in the next page,
    /// and not apart.
    classes: [AtomicU16; CLASS_MAX / 8 + 1],
    _between: [u8; PAGE_SIZE - 2 * size_of::<Line>() - 2 * (CLASS_MAX / 8 + 1)],
    /// Regions by index.
    regions: [AtomicPtr<Region>; CPUS],
}

const _: () = assert!(offset_of!(Front, regions) % PAGE_SIZE == APART);

pub(crate) static FRONT: Front = Front {
    _before: [0; APART],
    by_id: Line::closed(),
    by_number: Line::closed(),
    classes: [const { AtomicU16::new(0) }; CLASS_MAX / 8 + 1],
    _between: [0; PAGE_SIZE - 2 * size_of::<Line>() - 2 * (CLASS_MAX / 8 + 1)],
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
            place.store(CacheId::of_class(class).raw(), Relaxed);
        }
    }

    /// Opens the fast paths, if there are restartable sequences and no child shares our memory.
    pub(crate) fn open(&self) {
        let Some(area) = ALLOCATOR.platform.area() else {
            return;
        };
        let has_place = core::ptr::eq(ALLOCATOR.table.active(), self.regions.as_ptr());
        if !has_place {
            return;
        }
        let open = || match area.index {
            Index::MmCid => self.by_id.open(area.offset),
            Index::CpuId => self.by_number.open(area.offset),
        };
        ALLOCATOR.platform.reopen(open, || self.close());
    }

    /// Closes the fast paths for calls that begin later.
    pub(crate) fn close(&self) {
        self.by_id.close();
        self.by_number.close();
    }

    /// Lets `free` know pages that the arena has won since, and opens what a child has closed that
    /// is gone.
    #[inline]
    pub(crate) fn follow(&self) {
        let limit = ALLOCATOR.zone.arena.parkable();
        self.by_id.follow(limit);
        self.by_number.follow(limit);
        if ALLOCATOR.platform.is_watching() && ALLOCATOR.platform.reap() {
            self.open();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod fast {
    use core::arch::{global_asm, naked_asm};
    use core::ffi::c_void;
    use core::mem::offset_of;

    use uslub_core::percpu::sheaf::SHEAF_BYTES;
    use uslub_core::percpu::{ALLOCS_OFFSET, FREES_OFFSET};
    use uslub_rseq::{Index, descriptor};

    use super::{FRONT, Front, Line};
    use crate::api::{free_slow, free_twice, malloc_slow};

    // Those for the concurrency id begin a cache line.
    global_asm!(
        ".pushsection .text.uslub_malloc, \"ax\"",
        ".p2align 6",
        ".popsection",
        ".pushsection .text.uslub_free, \"ax\"",
        ".p2align 6",
        ".popsection",
    );

    /// `malloc` by an index; where its line is closed, what is given.
    macro_rules! malloc_by {
        ($index:ident, $line:ident, $closed:ident) => {
            naked_asm!(
                "lea rsi, [rip + {front} + {line}]",
                "cmp rdi, [rsi + {limit}]",
                "jae {closed}",
                "lea eax, [rdi + 7]",
                "shr eax, 3",
                "movzx r9d, word ptr [rsi + rax * 2 + {classes}]",
                "mov rdx, [rsi + {offset}]",
                // A thread that the kernel does not know has a negative number here.
                "cmp dword ptr fs:[rdx + {number}], 0",
                "js {slow}",
                "lea rcx, [rip + 50f]",
                "mov fs:[rdx + 8], rcx",
                "20:",
                "mov ecx, fs:[rdx + {index}]",
                "mov rcx, [rsi + rcx * 8 + {regions}]",
                "mov r8, [rcx + r9 * 8]",
                "mov rax, [r8]",
                "test rax, rax",
                "jz {slow}",
                "sub r8, 8",
                "mov [rcx + r9 * 8], r8",
                "30:",
                "inc qword ptr [rcx + r9 * 8 + {count}]",
                "ret",
                descriptor!(to "{slow}"),
                front = sym FRONT,
                line = const offset_of!(Front, $line),
                limit = const offset_of!(Line, limit),
                classes = const offset_of!(Front, classes) - offset_of!(Front, $line),
                offset = const offset_of!(Line, offset),
                number = const Index::CpuId.field(),
                index = const Index::$index.field(),
                regions = const offset_of!(Front, regions) - offset_of!(Front, $line),
                count = const ALLOCS_OFFSET,
                closed = sym $closed,
                slow = sym malloc_slow,
            )
        };
    }

    /// What frees an object (`rdi`) of a cache (`rax`).
    macro_rules! push {
        () => {
            concat!(
                "mov rdx, [rsi + {offset}]\n",
                // A thread that the kernel does not know has a negative number here.
                "cmp dword ptr fs:[rdx + {number}], 0\n",
                "js {slow}\n",
                "lea rcx, [rip + 50f]\n",
                "mov fs:[rdx + 8], rcx\n",
                "20:\n",
                "mov ecx, fs:[rdx + {index}]\n",
                "mov rcx, [rsi + rcx * 8 + {regions}]\n",
                "mov r8, [rcx + rax * 8]\n",
                // The newest free object is this one: it was freed just before.
                "cmp [r8], rdi\n",
                "je {twice}\n",
                "add r8, 8\n",
                "test r8d, {mask}\n",
                "jz {slow}\n",
                "mov [r8], rdi\n",
                "mov [rcx + rax * 8], r8\n",
                "30:\n",
                "inc qword ptr [rcx + rax * 8 + {count}]\n",
                "ret\n",
            )
        };
    }

    /// `free` by an index, likewise.
    macro_rules! free_by {
        ($index:ident, $line:ident, $closed:ident) => {
            naked_asm!(
                "lea rsi, [rip + {front} + {line}]",
                "mov rax, rdi",
                "sub rax, [rsi + {base}]",
                "shr rax, 12",
                "cmp rax, [rsi + {pages}]",
                "jae 60f",
                "mov rcx, [rsi + {map}]",
                "movzx eax, word ptr [rcx + rax * 2]",
                push!(),
                // No object, or none of a class: programs free null as often as they like.
                "60:",
                "test rdi, rdi",
                "jnz {closed}",
                "ret",
                descriptor!(to "{slow}"),
                front = sym FRONT,
                line = const offset_of!(Front, $line),
                base = const offset_of!(Line, base),
                pages = const offset_of!(Line, pages),
                map = const offset_of!(Line, map),
                offset = const offset_of!(Line, offset),
                number = const Index::CpuId.field(),
                index = const Index::$index.field(),
                regions = const offset_of!(Front, regions) - offset_of!(Front, $line),
                mask = const SHEAF_BYTES - 1,
                count = const FREES_OFFSET,
                closed = sym $closed,
                slow = sym free_slow,
                twice = sym free_twice,
            )
        };
    }

    /// Allocates `bytes`; null with `errno` = `ENOMEM` when memory cannot be had.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    #[unsafe(link_section = ".text.uslub_malloc")]
    pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
        malloc_by!(MmCid, by_id, malloc_by_number)
    }

    #[unsafe(naked)]
    unsafe extern "C" fn malloc_by_number(bytes: usize) -> *mut c_void {
        malloc_by!(CpuId, by_number, malloc_slow)
    }

    /// Frees an object; null is ignored. What is no object ends the process with a message.
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    #[unsafe(link_section = ".text.uslub_free")]
    pub unsafe extern "C" fn free(object: *mut c_void) {
        free_by!(MmCid, by_id, free_by_number)
    }

    #[unsafe(naked)]
    unsafe extern "C" fn free_by_number(object: *mut c_void) {
        free_by!(CpuId, by_number, free_slow)
    }

    /// [`free`] for who knows the identity of the object's cache ([`CacheId::raw`](uslub_core::percpu::CacheId::raw)), a class's.
    ///
    /// # Safety
    ///
    /// As for `free`, and the object is of that cache.
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn free_of(object: *mut c_void, cache: u16) {
        naked_asm!(
            "movzx eax, si",
            "lea rsi, [rip + {front} + {line}]",
            "cmp qword ptr [rsi + {pages}], 0",
            "je {closed}",
            push!(),
            descriptor!(to "{slow}"),
            front = sym FRONT,
            line = const offset_of!(Front, by_id),
            pages = const offset_of!(Line, pages),
            offset = const offset_of!(Line, offset),
            number = const Index::CpuId.field(),
            index = const Index::MmCid.field(),
            regions = const offset_of!(Front, regions) - offset_of!(Front, by_id),
            mask = const SHEAF_BYTES - 1,
            count = const FREES_OFFSET,
            closed = sym free_by_number,
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

    /// [`free`] for who knows the identity of the object's cache ([`CacheId::raw`](uslub_core::percpu::CacheId::raw)), a class's.
    ///
    /// # Safety
    ///
    /// As for `free`.
    pub(crate) unsafe fn free_of(object: *mut c_void, _cache: u16) {
        // SAFETY: passed on.
        unsafe { free(object) }
    }
}

pub(crate) use fast::free_of;
pub use fast::{free, malloc};
