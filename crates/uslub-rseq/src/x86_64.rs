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

/// Adds `n` to this CPU's word at byte `at`, unless the CPU's region is `stopped`; false then, or when the sequence was aborted.
///
/// # Safety
///
/// As for [`pop`]; the word is a number, which other CPUs do not write.
#[inline]
pub unsafe fn add(area: &Area, table: *mut u8, at: usize, n: usize, stopped: *mut u8) -> bool {
    let mut done: usize;
    // SAFETY: as in `pop`; one instruction adds, so nothing on this CPU comes in between.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 60f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {word:e}, fs:[{index}]",
            "mov {word}, [{table} + {word} * 8]",
            "cmp {word}, {stopped}",
            "je 60f",
            "add [{word} + {at}], {n}",
            "30:",
            "mov {done:e}, 1",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            at = in(reg) at,
            n = in(reg) n,
            stopped = in(reg) stopped,
            word = out(reg) _,
            done = inout(reg) 0usize => done,
            options(nostack),
        );
    }
    done != 0
}

/// Copies `bytes` bytes (a multiple of 8) from `from` to `to`, and changes all three; from the low end on, in
/// the largest pieces that do not overlap, so that a later load finds its bytes in one store.
macro_rules! copy {
    () => {
        concat!(
            "test {bytes:l}, 8\n",
            "jz 21f\n",
            "mov {word}, [{from}]\n",
            "mov [{to}], {word}\n",
            "add {from}, 8\n",
            "add {to}, 8\n",
            "21:\n",
            "test {bytes:l}, 16\n",
            "jz 22f\n",
            "movups {a}, [{from}]\n",
            "movups [{to}], {a}\n",
            "add {from}, 16\n",
            "add {to}, 16\n",
            "22:\n",
            "test {bytes:l}, 32\n",
            "jz 23f\n",
            "movups {a}, [{from}]\n",
            "movups {b}, [{from} + 16]\n",
            "movups [{to}], {a}\n",
            "movups [{to} + 16], {b}\n",
            "add {from}, 32\n",
            "add {to}, 32\n",
            "23:\n",
            "shr {bytes}, 6\n",
            "jz 25f\n",
            "24:\n",
            "movups {a}, [{from}]\n",
            "movups {b}, [{from} + 16]\n",
            "movups {c}, [{from} + 32]\n",
            "movups {d}, [{from} + 48]\n",
            "movups [{to}], {a}\n",
            "movups [{to} + 16], {b}\n",
            "movups [{to} + 32], {c}\n",
            "movups [{to} + 48], {d}\n",
            "add {from}, 64\n",
            "add {to}, 64\n",
            "dec {bytes}\n",
            "jnz 24b\n",
            "25:\n",
        )
    };
}

/// Pops the newest `out.len()` objects (at least 1) off the sheaf whose top this CPU's word at byte `slot` holds, and counts them at
/// `slot + COUNT`; false when it has fewer or the sequence was aborted. A sheaf's capacity, 16 bits wide, is
/// `CAPACITY` bytes from its window's start.
///
/// # Safety
///
/// As for [`pop`].
#[inline]
pub unsafe fn pop_many<const COUNT: usize, const CAPACITY: usize>(
    area: &Area,
    table: *mut u8,
    slot: usize,
    out: &mut [*mut u8],
) -> bool {
    let mut done: usize;
    // SAFETY: as in `pop`; the objects are copied to `out`, which has room for them.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 60f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {region:e}, fs:[{region}]",
            "mov {region}, [{table} + {region} * 8]",
            "mov {top}, [{region} + {slot}]",
            // A sentinel has no objects whatever its top says.
            "cmp qword ptr [{top}], 0",
            "je 60f",
            // Objects in the sheaf: its top from where it would be empty.
            "mov {from}, {top}",
            "and {from}, -{window}",
            "movzx {word:e}, word ptr [{from} + {capacity}]",
            "mov {from:e}, {top:e}",
            "and {from:e}, {window} - 1",
            "lea {word:e}, [{from} + {word} * 8 - ({window} - 8)]",
            "cmp {word:e}, {bytes:e}",
            "jb 60f",
            "sub {top}, {bytes}",
            "lea {from}, [{top} + 8]",
            copy!(),
            "mov [{region} + {slot}], {top}",
            "30:",
            "mov {done:e}, 1",
            "add {region}, {slot}",
            "add [{region} + {count}], {n}",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            region = inout(reg) area.index_offset => _,
            table = inout(reg) table => _,
            slot = in(reg) slot,
            to = inout(reg) out.as_mut_ptr() => _,
            bytes = inout(reg) out.len() * 8 => _,
            n = in(reg) out.len(),
            window = const SHEAF_BYTES,
            capacity = const CAPACITY,
            count = const COUNT,
            word = out(reg) _,
            top = out(reg) _,
            from = out(reg) _,
            done = inout(reg) 0usize => done,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
    done != 0
}

/// Pushes all `objects` (at least 1) onto the sheaf whose top this CPU's word at byte `slot` holds, and counts them at
/// `slot + COUNT`; false when it has not the room or the sequence was aborted.
///
/// # Safety
///
/// As for [`push`].
#[inline]
pub unsafe fn push_many<const COUNT: usize>(
    area: &Area,
    table: *mut u8,
    slot: usize,
    objects: &[*mut u8],
) -> bool {
    let mut done: usize;
    // SAFETY: as in `push`; the words behind the top are not part of the sheaf until the commit.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 60f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {region:e}, fs:[{region}]",
            "mov {region}, [{table} + {region} * 8]",
            "mov {top}, [{region} + {slot}]",
            "mov {word:e}, {top:e}",
            "and {word:e}, {window} - 1",
            "add {word}, {bytes}",
            "cmp {word}, {window}",
            "jae 60f",
            "lea {to}, [{top} + 8]",
            "add {top}, {bytes}",
            copy!(),
            "mov [{region} + {slot}], {top}",
            "30:",
            "mov {done:e}, 1",
            "add {region}, {slot}",
            "add [{region} + {count}], {n}",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            region = inout(reg) area.index_offset => _,
            table = in(reg) table,
            slot = in(reg) slot,
            from = inout(reg) objects.as_ptr() => _,
            bytes = inout(reg) objects.len() * 8 => _,
            n = in(reg) objects.len(),
            window = const SHEAF_BYTES,
            count = const COUNT,
            word = out(reg) _,
            top = out(reg) _,
            to = out(reg) _,
            done = inout(reg) 0usize => done,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
    done != 0
}
