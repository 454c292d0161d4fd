//! The fast paths for x86-64.

use core::arch::{global_asm, naked_asm};
use core::ffi::c_void;
use core::mem::offset_of;

use uslub_core::percpu::sheaf::SHEAF_BYTES;
use uslub_core::percpu::{ALLOCS_OFFSET, FREES_OFFSET};
use uslub_core::policy::MARK;
use uslub_rseq::{Index, descriptor};

use crate::gate::{FRONT, Front, Line};
use crate::slow_path::{free_closed, free_slow, free_suspect, malloc_slow};

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
            // Erases the mark of a free object. A byte, and this one, costs least: see
            // docs/performance.md.
            "mov byte ptr [rax], 0",
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
            // Marked: free already, or a copy of a free object's word. First a byte: a load of
            // all eight would wait for the program's last store, if that was shorter.
            "cmp byte ptr [rdi], {byte}\n",
            "je 70f\n",
            "71:\n",
            "mov qword ptr [rdi], {mark}\n",
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
            "add r8, 8\n",
            "test r8d, {room}\n",
            "jz {slow}\n",
            "mov [r8], rdi\n",
            "mov [rcx + rax * 8], r8\n",
            "30:\n",
            "inc qword ptr [rcx + rax * 8 + {count}]\n",
            "ret\n",
            // Elsewhere: behind the return it made rounds of 32 objects a third slower.
            ".pushsection .text.uslub_free_cold, \"ax\"\n",
            "70:\n",
            "cmp qword ptr [rdi], {mark}\n",
            "jne 71b\n",
            "jmp {suspect}\n",
            ".popsection\n",
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
            // No slot begins here, or the class is not known yet.
            "mov edx, [rsi + rax * 2 + {shapes}]",
            "and edx, edi",
            "imul edx, [rsi + rax * 2 + {shapes} + 4]",
            "cmp edx, [rsi + rax * 2 + {shapes} + 4]",
            "jae {suspect}",
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
            shapes = const offset_of!(Front, shapes) - offset_of!(Front, $line),
            byte = const MARK as u8,
            mark = const MARK as i32,
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
        byte = const MARK as u8,
        mark = const MARK as i32,
        room = const SHEAF_BYTES - 1,
        count = const FREES_OFFSET,
        closed = sym free_by_number,
        slow = sym free_slow,
        suspect = sym free_suspect,
    )
}
