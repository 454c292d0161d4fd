//! The sequences for x86-64.
//!
//! Labels: 20 is the start, 30 follows the commit, 40 is the abort address (behind the signature
//! that the kernel checks), 50 is the descriptor, 60 is the end. The thread's area is at
//! `fs:[offset]`. In the area, `cpu_id` is at byte 4, negative if the thread is not registered. The
//! descriptor's address is at byte 8.
//!
//! A top is loaded, stored and counted through the address of its word alone. Addressing by base
//! and index made alternating pops and pushes a third slower on an Intel Xeon (model 207), and
//! rounds of many three times as slow (`docs/performance.md`).

use core::arch::asm;
use core::arch::x86_64::__cpuid;

use crate::wide::WIDE;
use crate::{Area, LineHandoff, SHEAF_BYTES};

/// Prefetches the cache line of an address that is about to be written. Any address will do.
#[inline]
pub fn prefetch_write(address: *const u8) {
    // SAFETY: a hint.
    unsafe {
        asm!(
            "prefetchw [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Which handoffs pay off on this processor. On AMD processors, a read of a line that another CPU
/// wrote last brings the right to write it too. If the reader uses this right, the other CPU gets
/// the line back sooner. On Zen 3 a handoff of one line for each object costs as much as it saves
/// (measured, as on Zen 4).
pub fn line_handoff() -> LineHandoff {
    let vendor = __cpuid(0);
    let arrays = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes)
        == [*b"Auth", *b"enti", *b"cAMD"];
    // The family is in bits 8 to 11 and 20 to 27, the model in bits 4 to 7 and 16 to 19.
    let signature = __cpuid(1).eax;
    let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    let model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
    let is_zen3 = family == 0x19 && matches!(model, 0x00..=0x0f | 0x20..=0x5f);
    LineHandoff {
        arrays,
        objects: arrays && !is_zen3,
    }
}

/// The descriptor and the abort address of a sequence from label 20 to 30. An abort, or a jump to
/// label 40, runs the given instruction and continues at label 60, or at `to`.
#[doc(hidden)]
#[macro_export]
macro_rules! descriptor {
    ($($abort:literal)?) => {
        $crate::descriptor!(to "60b" $(, $abort)?)
    };
    (to $to:literal $(, $abort:literal)?) => {
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
            $($abort, "\n",)?
            "jmp ",
            $to,
            "\n.popsection\n",
        )
    };
}

/// Pops the object at the top in this CPU's word at byte `slot`, and adds 1 to the counter at `slot
/// + COUNT`. Null if the sheaf is empty, the sequence was aborted, or the thread is not registered.
///
/// # Safety
///
/// `table` is an array of regions, indexed by the area's index. Each region has a valid top at
/// `slot` and a counter at `slot + COUNT`. The area is this process's.
#[inline]
pub unsafe fn pop<const COUNT: usize>(area: &Area, table: *mut u8, slot: usize) -> *mut u8 {
    let object: *mut u8;
    // SAFETY: by the caller's promise. The asm writes the area's descriptor word, one word of the
    // region, and a counter.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 40f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {top:e}, fs:[{index}]",
            "mov {word}, [{table} + {top} * 8]",
            "add {word}, {slot}",
            "mov {top}, [{word}]",
            "mov {object}, [{top}]",
            "test {object}, {object}",
            "jz 60f",
            "sub {top}, 8",
            "mov [{word}], {top}",
            "30:",
            "inc qword ptr [{word} + {count}]",
            "60:",
            descriptor!("xor {object:e}, {object:e}"),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = const COUNT,
            word = out(reg) _,
            top = out(reg) _,
            object = out(reg) object,
            options(nostack),
        );
    }
    object
}

/// Pushes an object behind the top in this CPU's word at byte `slot`, and adds 1 to the counter at
/// `slot + COUNT`. False if the sheaf is full, the sequence was aborted, or the thread is not
/// registered.
///
/// # Safety
///
/// As for [`pop`]; a sheaf that is not full has room behind its top.
#[inline]
pub unsafe fn push<const COUNT: usize>(
    area: &Area,
    table: *mut u8,
    slot: usize,
    object: *mut u8,
) -> bool {
    let top: usize;
    // SAFETY: as in `pop`. The word behind the top becomes part of the sheaf at the commit.
    unsafe {
        asm!(
            "cmp dword ptr fs:[{area} + 4], 0",
            "js 40f",
            "lea {word}, [rip + 50f]",
            "mov fs:[{area} + 8], {word}",
            "20:",
            "mov {top:e}, fs:[{index}]",
            "mov {word}, [{table} + {top} * 8]",
            "add {word}, {slot}",
            "mov {top}, [{word}]",
            "add {top}, 8",
            "test {top:e}, {mask}",
            "jz 60f",
            "mov [{top}], {object}",
            "mov [{word}], {top}",
            "30:",
            "inc qword ptr [{word} + {count}]",
            "60:",
            descriptor!("xor {top:e}, {top:e}"),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = const COUNT,
            object = in(reg) object,
            mask = const SHEAF_BYTES - 1,
            word = out(reg) _,
            top = out(reg) top,
            options(nostack),
        );
    }
    top & (SHEAF_BYTES - 1) != 0
}

/// Replaces `old` by `new` in this CPU's word at byte `slot`. False if the word holds another
/// value, the sequence was aborted, or the thread is not registered.
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
            "add {word}, {slot}",
            "cmp [{word}], {old}",
            "jne 60f",
            "mov [{word}], {new}",
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

/// Adds `n` to this CPU's word at byte `at`. False if the CPU's region is `stopped`, the sequence
/// was aborted, or the thread is not registered.
///
/// # Safety
///
/// As for [`pop`]; the word is a number that other CPUs do not write.
#[inline]
pub unsafe fn add(area: &Area, table: *mut u8, at: usize, n: usize, stopped: *mut u8) -> bool {
    let mut done: usize;
    // SAFETY: as in `pop`. One instruction adds, so it is indivisible on this CPU.
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

/// Bytes from which on a copy may use [`large_blocks`].
pub(crate) const LARGE: usize = 1024;

/// For a copy that does not check what it moves: no code.
macro_rules! unseen {
    ($register:literal) => {
        ""
    };
}

/// Copies `bytes` bytes (a multiple of 8, at least 128) from `from` to `to` through registers of 32
/// bytes. Changes all three; `bytes` ends at 0. `$seen` may check the registers moved.
///
/// No store crosses a cache line. No load has the low 12 bits of a store shortly before it: the
/// processor would take it for a load of the stored bytes. So blocks are copied upwards or
/// downwards, as the addresses require. All moves have the VEX encoding: an older encoding, while
/// upper halves are in use, costs some processors 100 ns.
macro_rules! large_blocks {
    ($seen:ident) => {
        concat!(
            // Align `to` to 32 bytes.
            "test {to:l}, 8\n",
            "jz 32f\n",
            "vmovddup xmm0, qword ptr [{from}]\n",
            "vmovlps qword ptr [{to}], xmm0\n",
            $seen!("xmm0"),
            "add {from}, 8\n",
            "add {to}, 8\n",
            "sub {bytes}, 8\n",
            "32:\n",
            "test {to:l}, 16\n",
            "jz 33f\n",
            "vmovups xmm0, [{from}]\n",
            "vmovups [{to}], xmm0\n",
            $seen!("xmm0"),
            "add {from}, 16\n",
            "add {to}, 16\n",
            "sub {bytes}, 16\n",
            "33:\n",
            // Copy what lies behind the last block of 64 bytes.
            "mov {word}, {bytes}\n",
            "and {word}, -64\n",
            "test {bytes:l}, 32\n",
            "jz 34f\n",
            "vmovups ymm0, [{from} + {word}]\n",
            "vmovups [{to} + {word}], ymm0\n",
            $seen!("ymm0"),
            "add {word}, 32\n",
            "34:\n",
            "test {bytes:l}, 16\n",
            "jz 35f\n",
            "vmovups xmm0, [{from} + {word}]\n",
            "vmovups [{to} + {word}], xmm0\n",
            $seen!("xmm0"),
            "add {word}, 16\n",
            "35:\n",
            "test {bytes:l}, 8\n",
            "jz 36f\n",
            "vmovddup xmm0, qword ptr [{from} + {word}]\n",
            "vmovlps qword ptr [{to} + {word}], xmm0\n",
            $seen!("xmm0"),
            "36:\n",
            // Upwards if, by the low 12 bits, stores are half a page or more ahead of loads.
            // Otherwise downwards from the last block.
            "mov {word}, {to}\n",
            "sub {word}, {from}\n",
            "shr {bytes}, 6\n",
            "test {word:e}, 2048\n",
            "mov {word:e}, 64\n",
            "jnz 37f\n",
            "mov {word}, {bytes}\n",
            "shl {word}, 6\n",
            "lea {from}, [{from} + {word} - 64]\n",
            "lea {to}, [{to} + {word} - 64]\n",
            "mov {word}, -64\n",
            "37:\n",
            "vmovups ymm0, [{from}]\n",
            "vmovups ymm1, [{from} + 32]\n",
            "vmovups [{to}], ymm0\n",
            "vmovups [{to} + 32], ymm1\n",
            $seen!("ymm0"),
            $seen!("ymm1"),
            "add {from}, {word}\n",
            "add {to}, {word}\n",
            "dec {bytes}\n",
            "jnz 37b\n",
        )
    };
}

pub(crate) use {descriptor, large_blocks};

/// Copies `bytes` bytes (a multiple of 8, at least 8) from `from` to `to`. Changes all three;
/// `bytes` ends at 0. Copies of [`LARGE`] bytes or more use [`large_blocks`], others start at the
/// low end with the largest pieces that do not overlap, so that a later load finds its bytes in one
/// store. Whole blocks of 64 bytes need one jump to their loop: a taken jump costs about a cycle,
/// and a copy here costs a few.
macro_rules! copy {
    () => {
        concat!(
            "cmp {bytes}, {large}\n",
            "jae 28f\n",
            "29:\n",
            "test {bytes:l}, 56\n",
            "jz 23f\n",
            "test {bytes:l}, 8\n",
            "jz 21f\n",
            "mov {word}, [{from}]\n",
            "mov [{to}], {word}\n",
            "add {from}, 8\n",
            "add {to}, 8\n",
            "21:\n",
            "test {bytes:l}, 16\n",
            "jz 22f\n",
            "movups xmm0, [{from}]\n",
            "movups [{to}], xmm0\n",
            "add {from}, 16\n",
            "add {to}, 16\n",
            "22:\n",
            "test {bytes:l}, 32\n",
            "jz 27f\n",
            "movups xmm0, [{from}]\n",
            "movups xmm1, [{from} + 16]\n",
            "movups [{to}], xmm0\n",
            "movups [{to} + 16], xmm1\n",
            "add {from}, 32\n",
            "add {to}, 32\n",
            "27:\n",
            "shr {bytes}, 6\n",
            "jnz 31f\n",
            "jmp 26f\n",
            "28:\n",
            "cmp byte ptr [rip + {wide}], 0\n",
            "je 29b\n",
            large_blocks!(unseen),
            "vzeroupper\n",
            "jmp 26f\n",
            "25:\n",
            "movups xmm0, [{from}]\n",
            "movups xmm1, [{from} + 16]\n",
            "movups xmm2, [{from} + 32]\n",
            "movups xmm3, [{from} + 48]\n",
            "movups [{to}], xmm0\n",
            "movups [{to} + 16], xmm1\n",
            "movups [{to} + 32], xmm2\n",
            "movups [{to} + 48], xmm3\n",
            "add {from}, 64\n",
            "add {to}, 64\n",
            "dec {bytes}\n",
            "jnz 25b\n",
            "jmp 26f\n",
            // The loop lies in one line of instructions, which matters where two threads share a
            // core.
            ".p2align 6\n",
            "23:\n",
            "shr {bytes}, 6\n",
            "31:\n",
            "cmp byte ptr [rip + {wide}], 0\n",
            "je 25b\n",
            "24:\n",
            "vmovups ymm0, [{from}]\n",
            "vmovups ymm1, [{from} + 32]\n",
            "vmovups [{to}], ymm0\n",
            "vmovups [{to} + 32], ymm1\n",
            "add {from}, 64\n",
            "add {to}, 64\n",
            "dec {bytes}\n",
            "jnz 24b\n",
            "vzeroupper\n",
            "26:\n",
        )
    };
}

/// Pops the newest `out.len()` objects (at least 1) off the sheaf whose top is in this CPU's word
/// at byte `slot`, and adds their number to the counter at `slot + COUNT`. False if the sheaf has
/// fewer, the sequence was aborted, or the thread is not registered. A sheaf's capacity, 16 bits
/// wide, lies `CAPACITY` bytes from its window's start.
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
    let left: usize;
    // SAFETY: as in `pop`. The objects are copied to `out`, which has room for them.
    unsafe {
        asm!(
            // Three registers have two uses each, so that a caller has three fewer to save.
            "cmp dword ptr fs:[{word} + 4], 0",
            "js 60f",
            "lea {top}, [rip + 50f]",
            "mov fs:[{word} + 8], {top}",
            "20:",
            "mov {region:e}, fs:[{region}]",
            "mov {region}, [{from} + {region} * 8]",
            "add {region}, {slot}",
            "mov {top}, [{region}]",
            // Bytes in the sheaf: its top less the top of the empty sheaf. A sentinel's capacity is
            // 0, so it has no bytes.
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
            "mov [{region}], {top}",
            "30:",
            "add [{region} + {count}], {n}",
            "60:",
            descriptor!("mov {bytes:e}, 1"),
            word = inout(reg) area.offset => _,
            region = inout(reg) area.index_offset => _,
            from = inout(reg) table => _,
            slot = in(reg) slot,
            to = inout(reg) out.as_mut_ptr() => _,
            bytes = inout(reg) out.len() * 8 => left,
            n = in(reg) out.len(),
            window = const SHEAF_BYTES,
            capacity = const CAPACITY,
            count = const COUNT,
            top = out(reg) _,
            wide = sym WIDE,
            large = const LARGE,
            // All upper halves are cleared.
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            out("xmm4") _,
            out("xmm5") _,
            out("xmm6") _,
            out("xmm7") _,
            out("xmm8") _,
            out("xmm9") _,
            out("xmm10") _,
            out("xmm11") _,
            out("xmm12") _,
            out("xmm13") _,
            out("xmm14") _,
            out("xmm15") _,
            options(nostack),
        );
    }
    left == 0
}

/// Pushes all `objects` (at least 1) onto the sheaf whose top is in this CPU's word at byte `slot`,
/// and adds their number to the counter at `slot + COUNT`. False if the sheaf has no room for all,
/// the sequence was aborted, or the thread is not registered.
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
    let left: usize;
    // SAFETY: as in `push`. The words behind the top become part of the sheaf at the commit.
    unsafe {
        asm!(
            // Register use as in `pop_many`.
            "cmp dword ptr fs:[{word} + 4], 0",
            "js 60f",
            "lea {top}, [rip + 50f]",
            "mov fs:[{word} + 8], {top}",
            "20:",
            "mov {region:e}, fs:[{region}]",
            "mov {region}, [{to} + {region} * 8]",
            "add {region}, {slot}",
            "mov {top}, [{region}]",
            "mov {word:e}, {top:e}",
            "and {word:e}, {window} - 1",
            "add {word}, {bytes}",
            "cmp {word}, {window}",
            "jae 60f",
            "lea {to}, [{top} + 8]",
            "add {top}, {bytes}",
            copy!(),
            "mov [{region}], {top}",
            "30:",
            "add [{region} + {count}], {n}",
            "60:",
            descriptor!("mov {bytes:e}, 1"),
            word = inout(reg) area.offset => _,
            region = inout(reg) area.index_offset => _,
            to = inout(reg) table => _,
            slot = in(reg) slot,
            from = inout(reg) objects.as_ptr() => _,
            bytes = inout(reg) objects.len() * 8 => left,
            n = in(reg) objects.len(),
            window = const SHEAF_BYTES,
            count = const COUNT,
            top = out(reg) _,
            wide = sym WIDE,
            large = const LARGE,
            // All upper halves are cleared.
            out("xmm0") _,
            out("xmm1") _,
            out("xmm2") _,
            out("xmm3") _,
            out("xmm4") _,
            out("xmm5") _,
            out("xmm6") _,
            out("xmm7") _,
            out("xmm8") _,
            out("xmm9") _,
            out("xmm10") _,
            out("xmm11") _,
            out("xmm12") _,
            out("xmm13") _,
            out("xmm14") _,
            out("xmm15") _,
            options(nostack),
        );
    }
    left == 0
}
