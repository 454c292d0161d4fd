//! The fast paths for aarch64.
//!
//! Differences from x86-64:
//!
//! - No instruction adds to memory. So the sequence goes on behind its commit: it adds to the
//!   counter by a plain load and store.
//! - The store that commits also adds 1 to the register with the address of the main word. The word
//!   is aligned, so the register is odd behind the commit, and even at all other places of the
//!   sequence. After an abort, an odd register tells that the object has changed hands and the
//!   counter has not: an exclusive pair then adds to the counter, on whichever CPU the thread runs.
//!   As on x86-64, a count may be lost if the region's own CPU adds at the same time. An exclusive
//!   pair in each call would take two instructions more.
//! - A conditional jump reaches no other section. So it goes to the function's end, which jumps.
//!
//! | register | `malloc` | `free` |
//! |---|---|---|
//! | `x0` | bytes, then the object | object |
//! | `x1` | address of the table of classes | address of [`FRONT`] |
//! | `x2` | bytes + 7, from which an abort restores the argument | the cache |
//! | `x3` | the class's cache | - |
//! | `x4` | the thread's area | the same |
//! | `x5` | the descriptor, then the address of the main word | the same |
//! | `x6` | the index, the region, the top, the counter | the same |
//!
//! Labels are those of `uslub-rseq`: 20 the start, 30 the end, 50 the descriptor. At 40 to 43
//! aborted calls go on.

use core::arch::{global_asm, naked_asm};
use core::ffi::c_void;
use core::mem::offset_of;

use uslub_core::percpu::sheaf::SHEAF_BYTES;
use uslub_core::percpu::{ALLOCS_OFFSET, FREES_OFFSET};
use uslub_core::policy::MARK;
use uslub_rseq::{Index, descriptor};

use crate::gate::{FRONT, Front, Line};
use crate::slow_path::{free_closed, free_slow, free_suspect, malloc_slow};

// One instruction loads both.
const _: () = assert!(offset_of!(Line, offset) == offset_of!(Line, limit) + 8);
const CLASSES: usize = offset_of!(Front, classes);

// The functions for the concurrency id begin at a cache line.
global_asm!(
    ".pushsection .text.uslub_malloc, \"ax\"",
    ".p2align 6",
    ".popsection",
    ".pushsection .text.uslub_free, \"ax\"",
    ".p2align 6",
    ".popsection",
);

/// The start of a sequence: the thread's area lies `x5` bytes from the thread pointer. Jumps to
/// label 61 if the kernel does not know this thread. Then `x6` is the CPU's region.
macro_rules! start {
    () => {
        concat!(
            "mrs x4, tpidr_el0\n",
            "add x4, x4, x5\n",
            "ldr w5, [x4, #{number}]\n",
            "tbnz w5, #31, 61f\n",
            "adrp x5, 50f\n",
            "add x5, x5, :lo12:50f\n",
            "str x5, [x4, #8]\n",
            "20:\n",
            "ldr w6, [x4, #{index}]\n",
            "add x6, x1, x6, lsl #3\n",
            "ldr x6, [x6, #{regions}]\n",
        )
    };
}

/// The commit, which makes `x5` odd, and the counter.
macro_rules! commit_and_count {
    () => {
        concat!(
            "str x6, [x5], #1\n",
            "ldur x6, [x5, #{count} - 1]\n",
            "add x6, x6, #1\n",
            "stur x6, [x5, #{count} - 1]\n",
            "30:\n",
        )
    };
}

/// Adds to the counter behind an abort.
macro_rules! count_after_abort {
    () => {
        concat!(
            "add x5, x5, #{count} - 1\n",
            "43:\n",
            "ldxr x6, [x5]\n",
            "add x6, x6, #1\n",
            "stxr w7, x6, [x5]\n",
            "cbnz w7, 43b\n",
        )
    };
}

/// `malloc` by an index field. If its line is closed, it jumps to `$closed`.
macro_rules! malloc_by {
    ($index:ident, $line:ident, $closed:ident) => {
        naked_asm!(
            "adrp x1, {front}",
            "add x1, x1, #{classes}",
            "ldp x2, x5, [x1, #{limit}]",
            "cmp x0, x2",
            "b.hs 60f",
            "add x2, x0, #7",
            "lsr x3, x2, #3",
            "ldrh w3, [x1, x3, lsl #1]",
            start!(),
            "add x5, x6, x3, lsl #3",
            "ldr x6, [x5]",
            "ldr x0, [x6], #-8",
            "cbz x0, 41f",
            commit_and_count!(),
            // Erases the mark of a free object: a byte, as on x86-64.
            "strb wzr, [x0]",
            "ret",
            "41:",
            "sub x0, x2, #7",
            "61:",
            "b {slow}",
            "60:",
            "b {closed}",
            descriptor!(to "42f"),
            "42:",
            "tbz x5, #0, 41b",
            count_after_abort!(),
            "strb wzr, [x0]",
            "ret",
            front = sym FRONT,
            classes = const CLASSES,
            limit = const {
                (offset_of!(Front, $line) + offset_of!(Line, limit)) as isize - CLASSES as isize
            },
            number = const Index::CpuId.field(),
            index = const Index::$index.field(),
            regions = const offset_of!(Front, regions) - CLASSES,
            count = const ALLOCS_OFFSET,
            closed = sym $closed,
            slow = sym malloc_slow,
        )
    };
}

/// Frees an object (`x0`) of a cache (`x2`), and what lies behind the return.
macro_rules! push {
    () => {
        concat!(
            // Marked: free already, or a copy of a free object's word. First a byte, as on x86-64.
            "ldrb w3, [x0]\n",
            "cmp w3, #{byte}\n",
            "b.eq 70f\n",
            "71:\n",
            "ldr x3, 80f\n",
            "str x3, [x0]\n",
            "ldr x5, [x1, #{offset}]\n",
            start!(),
            "add x5, x6, x2, lsl #3\n",
            "ldr x6, [x5]\n",
            "add x6, x6, #8\n",
            "tst x6, #{room}\n",
            "b.eq 61f\n",
            "str x0, [x6]\n",
            commit_and_count!(),
            "ret\n",
            "61:\n",
            "b {slow}\n",
            "65:\n",
            "b {suspect}\n",
            "70:\n",
            "b 72f\n",
            descriptor!(to "42f"),
            "42:\n",
            "tbz x5, #0, 61b\n",
            count_after_abort!(),
            "ret\n",
            ".balign 8\n",
            "80:\n",
            ".quad {mark}\n",
            ".pushsection .text.uslub_free_cold, \"ax\"\n",
            "72:\n",
            "ldr x3, 81f\n",
            "ldr x4, [x0]\n",
            "cmp x3, x4\n",
            "b.eq 73f\n",
            "b 71b\n",
            "73:\n",
            "b {suspect}\n",
            ".balign 8\n",
            "81:\n",
            ".quad {mark}\n",
            ".popsection\n",
        )
    };
}

/// `free` by an index field. If its line is closed, it jumps to `$closed`.
macro_rules! free_by {
    ($index:ident, $line:ident, $closed:ident) => {
        naked_asm!(
            "adrp x1, {front}",
            "ldr x2, [x1, #{base}]",
            "ldr x3, [x1, #{pages}]",
            "sub x2, x0, x2",
            "lsr x2, x2, #12",
            "cmp x2, x3",
            "b.hs 60f",
            "ldr x3, [x1, #{map}]",
            "ldrh w2, [x3, x2, lsl #1]",
            // No slot begins here, or the class is not known yet.
            "add x3, x1, x2, lsl #1",
            "ldr x3, [x3, #{shapes}]",
            "and x4, x0, x3, lsr #32",
            "mul w4, w4, w3",
            "cmp w4, w3",
            "b.hs 65f",
            push!(),
            // Outside of the mapped pages, or closed. Null ends here, because programs free null
            // often.
            "60:",
            "cbz x0, 62f",
            "b {closed}",
            "62:",
            "ret",
            front = sym FRONT,
            base = const offset_of!(Front, $line) + offset_of!(Line, base),
            pages = const offset_of!(Front, $line) + offset_of!(Line, pages),
            map = const offset_of!(Front, $line) + offset_of!(Line, map),
            offset = const offset_of!(Front, $line) + offset_of!(Line, offset),
            number = const Index::CpuId.field(),
            index = const Index::$index.field(),
            regions = const offset_of!(Front, regions),
            shapes = const offset_of!(Front, shapes),
            byte = const MARK as u8,
            mark = const MARK as i64,
            room = const SHEAF_BYTES - 1,
            count = const FREES_OFFSET,
            closed = sym $closed,
            slow = sym free_slow,
            suspect = sym free_suspect,
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
    free_by!(CpuId, by_number, free_closed)
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
        "uxth w2, w1",
        "adrp x1, {front}",
        "ldr x3, [x1, #{pages}]",
        "cbz x3, 60f",
        push!(),
        "60:",
        "b {closed}",
        front = sym FRONT,
        pages = const offset_of!(Front, by_id) + offset_of!(Line, pages),
        offset = const offset_of!(Front, by_id) + offset_of!(Line, offset),
        number = const Index::CpuId.field(),
        index = const Index::MmCid.field(),
        regions = const offset_of!(Front, regions),
        byte = const MARK as u8,
        mark = const MARK as i64,
        room = const SHEAF_BYTES - 1,
        count = const FREES_OFFSET,
        closed = sym free_by_number,
        slow = sym free_slow,
        suspect = sym free_suspect,
    )
}
