//! The sequences for x86-64.
//!
//! In each: label 20 is the start, 30 follows the commit, 40 is the abort address
//! (behind the signature that the kernel checks), 50 the descriptor, 60 the end.
//! The thread's area is at `fs:[offset]`; `cpu_id`, negative when the thread is not registered, is at 4, and
//! the descriptor's address at 8.

use core::arch::asm;

use crate::{Area, SHEAF_BYTES};

/// The descriptor and the abort address of a sequence; an abort goes on at label 60.
macro_rules! descriptor {
    () => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "50:\n",
            ".long 0, 0\n",
            ".quad 20b, 30b - 20b, 40f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\"\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "40:\n",
            "jmp 60b\n",
            ".popsection\n",
        )
    };
}

/// Pops the object at the top that this CPU's word at byte `slot` holds, and counts it at
/// `slot + count`; null when the sheaf is empty or the sequence was aborted.
///
/// # Safety
///
/// `table` is an array of regions indexed by the area's index, each with a
/// valid top at `slot` and a counter at `slot + count`; the area is this process's.
#[inline]
pub unsafe fn pop(area: &Area, table: *mut u8, slot: usize, count: usize) -> *mut u8 {
    let mut object: *mut u8;
    // SAFETY: by the caller's promise; the asm writes the area's descriptor word, one
    // word of the region and a counter.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 60f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {top:e}, fs:[{index}]",
            "mov {word}, [{table} + {top} * 8]",
            "mov {top}, [{word} + {slot}]",
            "mov {newest}, [{top}]",
            "test {newest}, {newest}",
            "jz 60f",
            "sub {top}, 8",
            "mov [{word} + {slot}], {top}",
            "30:",
            "mov {object}, {newest}",
            "add {word}, {slot}",
            "inc qword ptr [{word} + {count}]",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = in(reg) count,
            word = out(reg) _,
            top = out(reg) _,
            newest = out(reg) _,
            object = inout(reg) core::ptr::null_mut::<u8>() => object,
            options(nostack),
        );
    }
    object
}

/// Pushes an object behind the top that this CPU's word at byte `slot` holds, and counts it at
/// `slot + count`; false when the sheaf is full or the sequence was aborted.
///
/// # Safety
///
/// As for [`pop`]; a sheaf that is not full has room behind its top.
#[inline]
pub unsafe fn push(
    area: &Area,
    table: *mut u8,
    slot: usize,
    count: usize,
    object: *mut u8,
) -> bool {
    let mut done: usize;
    // SAFETY: as in `pop`; the word behind the top is not part of the sheaf until the commit.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 60f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {top:e}, fs:[{index}]",
            "mov {word}, [{table} + {top} * 8]",
            "mov {top}, [{word} + {slot}]",
            "add {top}, 8",
            "test {top:e}, {mask}",
            "jz 60f",
            "mov [{top}], {object}",
            "mov [{word} + {slot}], {top}",
            "30:",
            "mov {done:e}, 1",
            "add {word}, {slot}",
            "inc qword ptr [{word} + {count}]",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = in(reg) count,
            object = in(reg) object,
            mask = const SHEAF_BYTES - 1,
            word = out(reg) _,
            top = out(reg) _,
            done = inout(reg) 0usize => done,
            options(nostack),
        );
    }
    done != 0
}

/// Replaces `old` by `new` in this CPU's word at byte `slot`; false when it holds something else or
/// the sequence was aborted.
///
/// # Safety
///
/// As for [`pop`].
#[inline]
pub unsafe fn exchange(area: &Area, table: *mut u8, slot: usize, old: usize, new: usize) -> bool {
    let mut done: usize;
    // SAFETY: as in `pop`.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 60f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {word:e}, fs:[{index}]",
            "mov {word}, [{table} + {word} * 8]",
            "cmp [{word} + {slot}], {old}",
            "jne 60f",
            "mov [{word} + {slot}], {new}",
            "30:",
            "mov {done:e}, 1",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            old = in(reg) old,
            new = in(reg) new,
            word = out(reg) _,
            done = inout(reg) 0usize => done,
            options(nostack),
        );
    }
    done != 0
}
