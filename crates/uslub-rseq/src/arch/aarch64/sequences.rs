//! The sequences for aarch64. `protocol.rs` has what all have in common.
//!
//! Differences from x86-64:
//!
//! - One plain store commits. A thread on another CPU that reads the word has fenced this CPU, or
//!   reads statistics only. A thread that moves to another CPU passes a barrier in the kernel.
//! - A sequence has no exclusive loads and stores: they may fail for ever there.
//! - No instruction adds to memory, and one store commits one word. So the counter is added to
//!   after the commit, by an exclusive pair, which is right on whichever CPU the thread runs then.
//!   For the same reason [`add`] needs no sequence.

use core::arch::asm;

use crate::{Area, LineHandoff, SHEAF_BYTES};
use protocol::{END, region, registered, sequence};

mod protocol;

/// Which handoffs pay off on this processor: none, because no gain is known on aarch64.
pub fn line_handoff() -> LineHandoff {
    LineHandoff::default()
}

/// Prefetches the cache line of an address that is about to be written. Any address will do.
#[inline]
pub fn prefetch_write(address: *const u8) {
    // SAFETY: a hint.
    unsafe {
        asm!(
            "prfm pstl1keep, [{address}]",
            address = in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Adds a number to the word at address `region`, atomically with other CPUs. Changes `top` and
/// `thread`.
macro_rules! add_to_word {
    ($n:literal) => {
        concat!(
            "35:\n",
            "ldxr {top}, [{region}]\n",
            "add {top}, {top}, ",
            $n,
            "\n",
            "stxr {thread:w}, {top}, [{region}]\n",
            "cbnz {thread:w}, 35b\n",
        )
    };
}

/// Adds a number to the slot's counter in the region.
macro_rules! count {
    ($n:literal) => {
        concat!(
            "add {region}, {region}, {slot}\n",
            "add {region}, {region}, {count}\n",
            add_to_word!($n),
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
    let mut object: *mut u8;
    // SAFETY: by the caller's promise. The asm writes the area's descriptor word, one word of the
    // region, and a counter.
    unsafe {
        sequence!(
            area, table, slot,
            [
                "ldr {top}, [{region}, {slot}]",
                "ldr {thread}, [{top}]",
                "cbz {thread}, {end}f",
                "sub {top}, {top}, #8",
            ],
            commit: "str {top}, [{region}, {slot}]",
            after: "mov {object}, {thread}", count!("#1");
            count = in(reg) COUNT,
            object = inout(reg) core::ptr::null_mut::<u8>() => object,
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
    let mut done: usize;
    // SAFETY: as in `pop`. The word behind the top becomes part of the sheaf at the commit.
    unsafe {
        sequence!(
            area, table, slot,
            [
                "ldr {top}, [{region}, {slot}]",
                "add {top}, {top}, #8",
                "tst {top}, #{mask}",
                "b.eq {end}f",
                "str {object}, [{top}]",
            ],
            commit: "str {top}, [{region}, {slot}]",
            after: "mov {done:w}, #1", count!("#1");
            count = in(reg) COUNT,
            object = in(reg) object,
            mask = const SHEAF_BYTES - 1,
            done = inout(reg) 0usize => done,
        );
    }
    done != 0
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
        sequence!(
            area, table, slot,
            [
                "ldr {top}, [{region}, {slot}]",
                "cmp {top}, {old}",
                "b.ne {end}f",
            ],
            commit: "str {new}, [{region}, {slot}]",
            after: "mov {done:w}, #1";
            old = in(reg) old,
            new = in(reg) new,
            done = inout(reg) 0usize => done,
        );
    }
    done != 0
}

/// Adds `n` to this CPU's word at byte `at`. False if the CPU's region is `stopped`, or the thread
/// is not registered.
///
/// # Safety
///
/// As for [`pop`]; the word is a number.
#[inline]
pub unsafe fn add(area: &Area, table: *mut u8, at: usize, n: usize, stopped: *mut u8) -> bool {
    let mut done: usize;
    // SAFETY: as in `pop`. No sequence is needed: an exclusive pair adds on whichever CPU.
    unsafe {
        asm!(
            registered!(),
            region!(),
            "cmp {region}, {stopped}",
            "b.eq {end}f",
            "add {region}, {region}, {at}",
            add_to_word!("{n}"),
            "mov {done:w}, #1",
            "60:",
            end = const END,
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            at = in(reg) at,
            n = in(reg) n,
            stopped = in(reg) stopped,
            thread = out(reg) _,
            region = out(reg) _,
            top = out(reg) _,
            done = inout(reg) 0usize => done,
            options(nostack),
        );
    }
    done != 0
}

/// Copies `bytes` bytes (a multiple of 8) from `from` to `to`; changes all three and `thread`. The
/// pieces do not overlap, so that a later load finds its bytes in one store.
macro_rules! copy {
    () => {
        concat!(
            "tbz {bytes}, #3, 21f\n",
            "ldr {thread}, [{from}], #8\n",
            "str {thread}, [{to}], #8\n",
            "21:\n",
            "tbz {bytes}, #4, 22f\n",
            "ldr {a:q}, [{from}], #16\n",
            "str {a:q}, [{to}], #16\n",
            "22:\n",
            "lsr {bytes}, {bytes}, #5\n",
            "cbz {bytes}, 25f\n",
            "24:\n",
            "ldp {a:q}, {b:q}, [{from}], #32\n",
            "stp {a:q}, {b:q}, [{to}], #32\n",
            "sub {bytes}, {bytes}, #1\n",
            "cbnz {bytes}, 24b\n",
            "25:\n",
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
    let mut done: usize;
    // SAFETY: as in `pop`. The objects are copied to `out`, which has room for them.
    unsafe {
        sequence!(
            area, table, slot,
            [
                "ldr {top}, [{region}, {slot}]",
                // Bytes in the sheaf: its top less the top of the empty sheaf. A sentinel's
                // capacity is 0, so it has no bytes.
                "and {from}, {top}, #-{window}",
                "ldrh {thread:w}, [{from}, #{capacity}]",
                "and {from}, {top}, #{window} - 1",
                "add {from}, {from}, {thread}, lsl #3",
                "sub {from}, {from}, #{window} - 8",
                "cmp {from}, {bytes}",
                "b.lo {end}f",
                "sub {top}, {top}, {bytes}",
                "add {from}, {top}, #8",
                copy!(),
            ],
            commit: "str {top}, [{region}, {slot}]",
            after: "mov {done:w}, #1", count!("{n}");
            to = inout(reg) out.as_mut_ptr() => _,
            bytes = inout(reg) out.len() * 8 => _,
            n = in(reg) out.len(),
            count = in(reg) COUNT,
            window = const SHEAF_BYTES,
            capacity = const CAPACITY,
            from = out(reg) _,
            done = inout(reg) 0usize => done,
            a = out(vreg) _,
            b = out(vreg) _,
        );
    }
    done != 0
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
    let mut done: usize;
    // SAFETY: as in `push`. The words behind the top become part of the sheaf at the commit.
    unsafe {
        sequence!(
            area, table, slot,
            [
                "ldr {top}, [{region}, {slot}]",
                "and {to}, {top}, #{window} - 1",
                "add {to}, {to}, {bytes}",
                "cmp {to}, #{window}",
                "b.hs {end}f",
                "add {to}, {top}, #8",
                "add {top}, {top}, {bytes}",
                copy!(),
            ],
            commit: "str {top}, [{region}, {slot}]",
            after: "mov {done:w}, #1", count!("{n}");
            from = inout(reg) objects.as_ptr() => _,
            bytes = inout(reg) objects.len() * 8 => _,
            n = in(reg) objects.len(),
            count = in(reg) COUNT,
            window = const SHEAF_BYTES,
            to = out(reg) _,
            done = inout(reg) 0usize => done,
            a = out(vreg) _,
            b = out(vreg) _,
        );
    }
    done != 0
}
