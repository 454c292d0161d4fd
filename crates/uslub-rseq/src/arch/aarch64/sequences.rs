//! The sequences for aarch64.
//!
//! Labels: 20 is the start, 30 follows the commit, 40 is the abort address (behind the signature
//! that the kernel checks), 50 is the descriptor, 60 is the end. The thread's area lies `area`
//! bytes from `tpidr_el0`. In the area, `cpu_id` is at byte 4, negative if the thread is not
//! registered. The descriptor's address is at byte 8.
//!
//! Differences from x86-64:
//!
//! - One plain store commits. A thread on another CPU that reads the word has fenced this CPU, or
//!   reads statistics only. A thread that moves to another CPU passes a barrier in the kernel.
//! - A sequence has no exclusive loads and stores: they may fail for ever there.
//! - No instruction adds to memory, and one store commits one word. So the counter is added to
//!   after the commit, by an exclusive pair, which is right on whichever CPU the thread runs then.
//!   For the same reason [`add`] needs no sequence.
//! - A far jump may pass through a veneer of the linker, which uses `x16` and `x17`: no operand is
//!   there.

use core::arch::asm;

use crate::{Area, LineHandoff, SHEAF_BYTES};

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

/// The descriptor and the abort address of a sequence; an abort continues at label 60.
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
            ".balign 4\n",
            ".inst 0xd428bc00\n",
            "40:\n",
            "b 60b\n",
            ".popsection\n",
        )
    };
}

/// Checks that the thread is registered and publishes the descriptor. Afterwards `thread` holds the
/// thread pointer.
macro_rules! publish {
    () => {
        concat!(
            "mrs {thread}, tpidr_el0\n",
            "add {top}, {thread}, {area}\n",
            "ldr {word:w}, [{top}, #4]\n",
            "tbnz {word:w}, #31, 60f\n",
            "adrp {word}, 50f\n",
            "add {word}, {word}, :lo12:50f\n",
            "str {word}, [{top}, #8]\n",
        )
    };
}

/// Loads the running CPU's region into `word`.
macro_rules! region {
    () => {
        concat!(
            "ldr {top:w}, [{thread}, {index}]\n",
            "ldr {word}, [{table}, {top}, lsl #3]\n",
        )
    };
}

/// Adds a number to the word at address `word`, atomically with other CPUs. Changes `top` and
/// `thread`.
macro_rules! count {
    ($n:literal) => {
        concat!(
            "35:\n",
            "ldxr {top}, [{word}]\n",
            concat!("add {top}, {top}, ", $n, "\n"),
            "stxr {thread:w}, {top}, [{word}]\n",
            "cbnz {thread:w}, 35b\n",
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
        asm!(
            publish!(),
            "20:",
            region!(),
            "ldr {top}, [{word}, {slot}]",
            "ldr {thread}, [{top}]",
            "cbz {thread}, 60f",
            "sub {top}, {top}, #8",
            "str {top}, [{word}, {slot}]",
            "30:",
            "mov {object}, {thread}",
            "add {word}, {word}, {slot}",
            "add {word}, {word}, {count}",
            count!("#1"),
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = in(reg) COUNT,
            thread = out(reg) _,
            word = out(reg) _,
            top = out(reg) _,
            object = inout(reg) core::ptr::null_mut::<u8>() => object,
            out("x16") _,
            out("x17") _,
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
    let mut done: usize;
    // SAFETY: as in `pop`. The word behind the top becomes part of the sheaf at the commit.
    unsafe {
        asm!(
            publish!(),
            "20:",
            region!(),
            "ldr {top}, [{word}, {slot}]",
            "add {top}, {top}, #8",
            "tst {top}, #{mask}",
            "b.eq 60f",
            "str {object}, [{top}]",
            "str {top}, [{word}, {slot}]",
            "30:",
            "mov {done:w}, #1",
            "add {word}, {word}, {slot}",
            "add {word}, {word}, {count}",
            count!("#1"),
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            count = in(reg) COUNT,
            object = in(reg) object,
            mask = const SHEAF_BYTES - 1,
            thread = out(reg) _,
            word = out(reg) _,
            top = out(reg) _,
            done = inout(reg) 0usize => done,
            out("x16") _,
            out("x17") _,
            options(nostack),
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
        asm!(
            publish!(),
            "20:",
            region!(),
            "ldr {top}, [{word}, {slot}]",
            "cmp {top}, {old}",
            "b.ne 60f",
            "str {new}, [{word}, {slot}]",
            "30:",
            "mov {done:w}, #1",
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            old = in(reg) old,
            new = in(reg) new,
            thread = out(reg) _,
            word = out(reg) _,
            top = out(reg) _,
            done = inout(reg) 0usize => done,
            out("x16") _,
            out("x17") _,
            options(nostack),
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
            "mrs {thread}, tpidr_el0",
            "add {top}, {thread}, {area}",
            "ldr {word:w}, [{top}, #4]",
            "tbnz {word:w}, #31, 60f",
            region!(),
            "cmp {word}, {stopped}",
            "b.eq 60f",
            "add {word}, {word}, {at}",
            count!("{n}"),
            "mov {done:w}, #1",
            "60:",
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            at = in(reg) at,
            n = in(reg) n,
            stopped = in(reg) stopped,
            thread = out(reg) _,
            word = out(reg) _,
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
        asm!(
            publish!(),
            "20:",
            region!(),
            "ldr {top}, [{word}, {slot}]",
            // Bytes in the sheaf: its top less the top of the empty sheaf. A sentinel's capacity is
            // 0, so it has no bytes.
            "and {from}, {top}, #-{window}",
            "ldrh {thread:w}, [{from}, #{capacity}]",
            "and {from}, {top}, #{window} - 1",
            "add {from}, {from}, {thread}, lsl #3",
            "sub {from}, {from}, #{window} - 8",
            "cmp {from}, {bytes}",
            "b.lo 60f",
            "sub {top}, {top}, {bytes}",
            "add {from}, {top}, #8",
            copy!(),
            "str {top}, [{word}, {slot}]",
            "30:",
            "mov {done:w}, #1",
            "add {word}, {word}, {slot}",
            "add {word}, {word}, {count}",
            count!("{n}"),
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            to = inout(reg) out.as_mut_ptr() => _,
            bytes = inout(reg) out.len() * 8 => _,
            n = in(reg) out.len(),
            count = in(reg) COUNT,
            window = const SHEAF_BYTES,
            capacity = const CAPACITY,
            thread = out(reg) _,
            word = out(reg) _,
            top = out(reg) _,
            from = out(reg) _,
            done = inout(reg) 0usize => done,
            a = out(vreg) _,
            b = out(vreg) _,
            out("x16") _,
            out("x17") _,
            options(nostack),
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
        asm!(
            publish!(),
            "20:",
            region!(),
            "ldr {top}, [{word}, {slot}]",
            "and {to}, {top}, #{window} - 1",
            "add {to}, {to}, {bytes}",
            "cmp {to}, #{window}",
            "b.hs 60f",
            "add {to}, {top}, #8",
            "add {top}, {top}, {bytes}",
            copy!(),
            "str {top}, [{word}, {slot}]",
            "30:",
            "mov {done:w}, #1",
            "add {word}, {word}, {slot}",
            "add {word}, {word}, {count}",
            count!("{n}"),
            "60:",
            descriptor!(),
            area = in(reg) area.offset,
            index = in(reg) area.index_offset,
            table = in(reg) table,
            slot = in(reg) slot,
            from = inout(reg) objects.as_ptr() => _,
            bytes = inout(reg) objects.len() * 8 => _,
            n = in(reg) objects.len(),
            count = in(reg) COUNT,
            window = const SHEAF_BYTES,
            thread = out(reg) _,
            word = out(reg) _,
            top = out(reg) _,
            to = out(reg) _,
            done = inout(reg) 0usize => done,
            a = out(vreg) _,
            b = out(vreg) _,
            out("x16") _,
            out("x17") _,
            options(nostack),
        );
    }
    done != 0
}
