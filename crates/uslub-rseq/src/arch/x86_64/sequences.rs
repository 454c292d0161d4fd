//! The sequences for x86-64. `protocol.rs` has what all have in common, `copy.rs` the copies of
//! bulks.
//!
//! A top is loaded, stored and counted through the address of its word alone. Addressing by base
//! and index made alternating pops and pushes a third slower on an Intel Xeon (model 207), and
//! rounds of many three times as slow (`docs/performance.md`).

use core::arch::asm;

use crate::wide::{WIDE, cpuid, vector_asm};
use crate::{Area, LineHandoff, SHEAF_BYTES};
use copy::*;
use protocol::{ABORT, END, sequence};

pub(crate) mod copy;
pub(crate) mod protocol;

/// Bytes from which on a copy may use registers of 32 bytes in the way of `large_blocks`.
pub(crate) const LARGE: usize = 1024;

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
    let vendor = cpuid(0);
    let arrays = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes)
        == [*b"Auth", *b"enti", *b"cAMD"];
    // The family is in bits 8 to 11 and 20 to 27, the model in bits 4 to 7 and 16 to 19.
    let signature = cpuid(1).eax;
    let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
    let model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
    let is_zen3 = family == 0x19 && matches!(model, 0x00..=0x0f | 0x20..=0x5f);
    LineHandoff {
        arrays,
        objects: arrays && !is_zen3,
    }
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
            sequence!(
                unregistered: "{abort}f",
                [
                    "add {region}, {slot}",
                    "mov {top}, [{region}]",
                    "mov {object}, [{top}]",
                    "test {object}, {object}",
                    "jz {end}f",
                    "sub {top}, 8",
                ],
                commit: "mov [{region}], {top}",
                after: "inc qword ptr [{region} + {count}]",
                abort: "xor {object:e}, {object:e}",
            ),
            end = const END,
            abort = const ABORT,
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = const COUNT,
            region = out(reg) _,
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
            sequence!(
                unregistered: "{abort}f",
                [
                    "add {region}, {slot}",
                    "mov {top}, [{region}]",
                    "add {top}, 8",
                    "test {top:e}, {mask}",
                    "jz {end}f",
                    "mov [{top}], {object}",
                ],
                commit: "mov [{region}], {top}",
                after: "inc qword ptr [{region} + {count}]",
                abort: "xor {top:e}, {top:e}",
            ),
            end = const END,
            abort = const ABORT,
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = const COUNT,
            object = in(reg) object,
            mask = const SHEAF_BYTES - 1,
            region = out(reg) _,
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
            sequence!(
                unregistered: "{end}f",
                [
                    "add {region}, {slot}",
                    "cmp [{region}], {old}",
                    "jne {end}f",
                ],
                commit: "mov [{region}], {new}",
                after: "mov {done:e}, 1",
            ),
            end = const END,
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            old = in(reg) old,
            new = in(reg) new,
            region = out(reg) _,
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
            sequence!(
                unregistered: "{end}f",
                [
                    "cmp {region}, {stopped}",
                    "je {end}f",
                ],
                commit: "add [{region} + {at}], {n}",
                after: "mov {done:e}, 1",
            ),
            end = const END,
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            at = in(reg) at,
            n = in(reg) n,
            stopped = in(reg) stopped,
            region = out(reg) _,
            done = inout(reg) 0usize => done,
            options(nostack),
        );
    }
    done != 0
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
        vector_asm!(
            sequence!(
                // Three have a second use, so that a caller has three registers fewer to save.
                registers: "{spare}", "{region}", "{from}", "{top}",
                unregistered: "{end}f",
                [
                    "add {region}, {slot}",
                    "mov {top}, [{region}]",
                    // Bytes in the sheaf: its top less the top of the empty sheaf. A sentinel's
                    // capacity is 0, so it has no bytes.
                    "mov {from}, {top}",
                    "and {from}, -{window}",
                    "movzx {spare:e}, word ptr [{from} + {capacity}]",
                    "mov {from:e}, {top:e}",
                    "and {from:e}, {window} - 1",
                    "lea {spare:e}, [{from} + {spare} * 8 - ({window} - 8)]",
                    "cmp {spare:e}, {bytes:e}",
                    "jb {end}f",
                    "sub {top}, {bytes}",
                    "lea {from}, [{top} + 8]",
                    copy!(),
                ],
                commit: "mov [{region}], {top}",
                after: "add [{region} + {count}], {n}",
                abort: "mov {bytes:e}, 1",
            ),
            spare = inout(reg) area.offset => _,
            region = inout(reg) area.index_offset => _,
            from = inout(reg) table => _,
            slot = in(reg) slot,
            to = inout(reg) out.as_mut_ptr() => _,
            bytes = inout(reg) out.len() * 8 => left,
            n = in(reg) out.len(),
            end = const END,
            window = const SHEAF_BYTES,
            capacity = const CAPACITY,
            count = const COUNT,
            top = out(reg) _,
            wide = sym WIDE,
            large = const LARGE,
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
        vector_asm!(
            sequence!(
                // As in `pop_many`.
                registers: "{spare}", "{region}", "{to}", "{top}",
                unregistered: "{end}f",
                [
                    room!(),
                    copy!(),
                ],
                commit: "mov [{region}], {top}",
                after: "add [{region} + {count}], {n}",
                abort: "mov {bytes:e}, 1",
            ),
            spare = inout(reg) area.offset => _,
            region = inout(reg) area.index_offset => _,
            to = inout(reg) table => _,
            slot = in(reg) slot,
            from = inout(reg) objects.as_ptr() => _,
            bytes = inout(reg) objects.len() * 8 => left,
            n = in(reg) objects.len(),
            end = const END,
            window = const SHEAF_BYTES,
            count = const COUNT,
            top = out(reg) _,
            wide = sym WIDE,
            large = const LARGE,
        );
    }
    left == 0
}
