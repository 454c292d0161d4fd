//! The fast paths of `malloc` and `free`.
//!
//! Each is one restartable sequence (see `uslub-rseq`) without a frame, a call or a lock. It finds
//! the class (or the cache of the page), the CPU's region, the top and the object, and commits by
//! one store. All other cases jump to the slow functions with the argument unchanged: other sizes,
//! empty or full sheaves, aborted sequences.
//!
//! | state of [`FRONT`] | when | effect |
//! |---|---|---|
//! | closed: bounds are 0 | before set-up; without sequences; in a `vfork` | slow paths |
//! | open | otherwise | fast paths |
//!
//! Any thread may call [`malloc`] and [`free`]. [`Front::open`], [`Front::close`] and
//! [`Front::follow`] are for slow paths.
//!
//! Both functions exist twice, because the thread's area has two fields that may index the regions,
//! and looking the field up would cost each call a load. Calls enter the function for the
//! concurrency id. On kernels before 6.3, which have no such id, it is closed and leads to the
//! function for the CPU's number.

use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicUsize};

use uslub_core::kmalloc::{CLASS_MAX, CLASS_TABLE};
use uslub_core::percpu::{APART, CacheId, Region};
use uslub_core::platform::PAGE_SIZE;
use uslub_rseq::Index;

use crate::ALLOCATOR;

/// CPUs for which there is room: the most that the kernel supports.
const CPUS: usize = 8192;

/// What a `malloc` and a `free` read.
///
/// Both also write to the second word of the thread's area. The area is aligned to 32 bytes and
/// lies anywhere in its page. So the second word of every 32 bytes here is unused: a load from it
/// could wait for such a store.
#[repr(C, align(64))]
struct Line {
    /// Address of the arena's page 0.
    base: AtomicUsize,
    _written: usize,
    /// Address of the page → cache array.
    map: AtomicUsize,
    /// Sizes in bytes below it have a class; 0 closes `malloc`.
    limit: AtomicUsize,
    /// Offset of the thread's area from the thread pointer, in bytes.
    offset: AtomicUsize,
    _written_too: usize,
    /// Number of pages that `map` covers; 0 closes `free`.
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
        // Relaxed: the two stores that follow publish them.
        self.base.store(arena.base(), Relaxed);
        self.map.store(arena.map() as usize, Relaxed);
        self.offset.store(offset as usize, Relaxed);
        // Release: publishes the words above. With several memory nodes this is 0, because a free
        // must check to which node its object belongs.
        self.pages.store(arena.parkable(), Release);
        // Release: as above.
        self.limit.store(CLASS_MAX + 1, Release);
    }

    fn close(&self) {
        // Relaxed: only the child must not get through, and it is born later, on this thread.
        self.pages.store(0, Relaxed);
        self.limit.store(0, Relaxed);
    }

    fn follow(&self, limit: usize) {
        // Acquire: a line that is closed stays closed.
        let pages = self.pages.load(Acquire);
        if pages != 0 && pages < limit {
            // Release: publishes the map of the new pages. If `close` comes in between, the
            // compare-and-swap fails.
            let _ = self.pages.compare_exchange(pages, limit, Release, Relaxed);
        }
    }
}

/// What the fast paths read, at offset [`APART`] of a page: a cache line for each of the two pairs
/// of functions, the table of classes, and the table of regions. All are zero at first, so the
/// library's file does not contain them.
#[repr(C, align(4096))]
pub(crate) struct Front {
    _before: [u8; APART],
    by_id: Line,
    by_number: Line,
    /// Identity of a class's cache, by size in words of 8 bytes. The entries for sizes above 3.5
    /// KiB lie in the next page, below [`APART`].
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
    /// The table in which the allocator lists its regions.
    pub(crate) const fn regions(&self) -> &[AtomicPtr<Region>] {
        &self.regions
    }

    /// Fills the table of classes. Call it before the fast paths open for the first time.
    pub(crate) fn set_up(&self) {
        for (place, class) in self.classes.iter().zip(CLASS_TABLE) {
            // Relaxed: published by the bounds.
            place.store(CacheId::of_class(class).raw(), Relaxed);
        }
    }

    /// Opens the fast paths if there are restartable sequences and no child shares our memory.
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

    /// Extends `free` to pages that the arena gained since. Opens the fast paths if the last child
    /// that had closed them has ended.
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

    // The functions for the concurrency id begin at a cache line.
    global_asm!(
        ".pushsection .text.uslub_malloc, \"ax\"",
        ".p2align 6",
        ".popsection",
        ".pushsection .text.uslub_free, \"ax\"",
        ".p2align 6",
        ".popsection",
    );

    /// `malloc` by an index field. If its line is closed, it jumps to `$closed`.
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
                // Negative if the kernel does not know this thread.
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

    /// Frees an object (`rdi`) of a cache (`rax`).
    macro_rules! push {
        () => {
            concat!(
                "mov rdx, [rsi + {offset}]\n",
                // Negative if the kernel does not know this thread.
                "cmp dword ptr fs:[rdx + {number}], 0\n",
                "js {slow}\n",
                "lea rcx, [rip + 50f]\n",
                "mov fs:[rdx + 8], rcx\n",
                "20:\n",
                "mov ecx, fs:[rdx + {index}]\n",
                "mov rcx, [rsi + rcx * 8 + {regions}]\n",
                "mov r8, [rcx + rax * 8]\n",
                // The newest free object is this object: it was freed just before.
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

    /// `free` by an index field. If its line is closed, it jumps to `$closed`.
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
                // Outside of the mapped pages, or closed. Null ends here, because programs free
                // null often.
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

    /// Allocates `bytes` bytes; null with `errno` = `ENOMEM` if there is no memory.
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

    /// Frees an object; null is ignored. A pointer that is no object ends the process with a
    /// message.
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

    /// [`free`] of an object of a size class. `cache` is the identity of the class's cache: see
    /// [`CacheId::raw`](uslub_core::percpu::CacheId::raw).
    ///
    /// # Safety
    ///
    /// As for `free`, and the object is of this cache.
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

    /// Allocates `bytes` bytes; null with `errno` = `ENOMEM` if there is no memory.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
        crate::api::malloc_slow(bytes)
    }

    /// Frees an object; null is ignored. A pointer that is no object ends the process with a
    /// message.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn free(object: *mut c_void) {
        // SAFETY: passed on.
        unsafe { crate::api::free_slow(object) }
    }

    /// [`free`] of an object of a size class. `cache` is the identity of the class's cache: see
    /// [`CacheId::raw`](uslub_core::percpu::CacheId::raw).
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
