//! Registers of 32 bytes (AVX2), where the processor and the system have them.
//!
//! They are off until [`move_wide`] turns them on; it may turn them on or off at any time. Both
//! states give the same results: without the registers, functions here do nothing and say so.

use core::arch::x86_64::{__cpuid_count, _xgetbv, CpuidResult};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::sequences::LARGE;
use crate::sequences::copy::*;
use crate::sequences::protocol::{ABORT, END, sequence};
use crate::{Area, SHEAF_BYTES};

/// Objects in a block: two registers of 32 bytes.
const BLOCK: usize = 8;

/// Whether registers of 32 bytes are used.
pub(crate) static WIDE: AtomicBool = AtomicBool::new(false);

/// Turns registers of 32 bytes on or off for bulks of eight objects or more. They stay off if the
/// processor or the system does not have them. Returns whether they are on.
pub fn move_wide(wide: bool) -> bool {
    let wide = wide && has_avx2();
    // Relaxed: either value is right at any time.
    WIDE.store(wide, Relaxed);
    wide
}

/// What the processor says of itself under a leaf (sub-leaf 0).
pub(crate) fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every x86-64 processor has the instruction. Since Rust 1.94 this call is safe.
    #[allow(unused_unsafe, reason = "older compilers demand the block")]
    unsafe {
        __cpuid_count(leaf, 0)
    }
}

/// Whether the processor has AVX2, and the system saves the registers.
fn has_avx2() -> bool {
    const OSXSAVE_AND_AVX: u32 = 1 << 27 | 1 << 28;
    const XMM_AND_YMM: u64 = 1 << 1 | 1 << 2;
    const AVX2: u32 = 1 << 5;
    cpuid(1).ecx & OSXSAVE_AND_AVX == OSXSAVE_AND_AVX
        // SAFETY: the first test says that the system allows this read.
        && unsafe { _xgetbv(0) } & XMM_AND_YMM == XMM_AND_YMM
        && cpuid(0).eax >= 7
        && cpuid(7).ebx & AVX2 != 0
}

/// `asm!` with operands, which may change all vector registers: `vzeroupper` clears the upper
/// halves of all 16.
macro_rules! vector_asm {
    ($($part:tt)*) => {
        core::arch::asm!(
            $($part)*
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        )
    };
}

pub(crate) use vector_asm;

/// Checks the addresses in a register. The distance of each from the first permitted address, in
/// ymm4, counts as two numbers of 32 bits. The maxima of all distances, and of the last permitted
/// address's distance, are kept in ymm6 and ymm7 in turn. Those of registers of 16 bytes, which
/// come first, are kept in xmm7.
macro_rules! seen {
    ("xmm0") => {
        concat!("vpsubq xmm0, xmm0, xmm4\n", "vpmaxud xmm7, xmm7, xmm0\n",)
    };
    ("ymm0") => {
        concat!("vpsubq ymm0, ymm0, ymm4\n", "vpmaxud ymm6, ymm6, ymm0\n",)
    };
    ("ymm1") => {
        concat!("vpsubq ymm1, ymm1, ymm4\n", "vpmaxud ymm7, ymm7, ymm1\n",)
    };
}

/// Moves a piece as `plain` does, and checks it.
macro_rules! checked {
    (8) => {
        vector_move!(8, seen)
    };
    (16) => {
        vector_move!(16, seen)
    };
    (32) => {
        concat!(vector_move!(16, seen), vector_move!(16 at " + 16", seen))
    };
}

/// As [`push_many`](crate::push_many), if all objects lie between the two addresses, both included.
/// `Some(false)`, with nothing done, if one does not. The objects are checked while they are
/// copied.
///
/// `None`, with nothing done, if the registers are off, if there are fewer than 8 objects, or if
/// the bounds are not in order or 4 GiB or more apart.
///
/// # Safety
///
/// As for [`push`](crate::push).
#[inline]
pub unsafe fn push_many_checked<const COUNT: usize>(
    area: &Area,
    table: *mut u8,
    slot: usize,
    objects: &[*mut u8],
    (first, last): (usize, usize),
) -> Option<bool> {
    let most = last.wrapping_sub(first);
    // Relaxed: either value is right at any time.
    if objects.len() < BLOCK || most > u32::MAX as usize || !WIDE.load(Relaxed) {
        return None;
    }
    let left: usize;
    // SAFETY: as in `push_many`; the processor has the registers.
    unsafe {
        vector_asm!(
            "vmovq xmm4, {top}",
            "vmovq xmm5, {most}",
            sequence!(
                // As in `pop_many`.
                registers: "{spare}", "{region}", "{to}", "{top}",
                unregistered: "{end}f",
                [
                    room!(),
                    "vpbroadcastq ymm4, xmm4",
                    "vpbroadcastq ymm5, xmm5",
                    "vmovdqa ymm6, ymm5",
                    "vmovdqa ymm7, ymm5",
                    "cmp {bytes}, {large}",
                    "jae 28f",
                    small_pieces!(checked, none: "25f", last: "25f"),
                    "jmp 25f",
                    "28:",
                    large_blocks!(seen),
                    "jmp 26f",
                    ".p2align 6",
                    "25:",
                    // `bytes` counts from a negative number up to 0 and is the index too. With one
                    // more instruction the loop would exceed what the processor can fetch.
                    "and {bytes}, -64",
                    "add {from}, {bytes}",
                    "add {to}, {bytes}",
                    "neg {bytes}",
                    "24:",
                    "vmovups ymm0, [{from} + {bytes}]",
                    "vmovups [{to} + {bytes}], ymm0",
                    seen!("ymm0"),
                    "vmovups ymm1, [{from} + {bytes} + 32]",
                    "vmovups [{to} + {bytes} + 32], ymm1",
                    seen!("ymm1"),
                    "add {bytes}, 64",
                    "jnz 24b",
                    "26:",
                    // No distance exceeds the last permitted one, whose high half is 0.
                    "vpmaxud ymm6, ymm6, ymm7",
                    "vpxor ymm6, ymm6, ymm5",
                    "vptest ymm6, ymm6",
                    "vzeroupper",
                    "jnz {abort}f",
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
            abort = const ABORT,
            window = const SHEAF_BYTES,
            count = const COUNT,
            top = inout(reg) first => _,
            most = in(reg) most,
            large = const LARGE,
        );
    }
    Some(left == 0)
}

/// Writes the addresses that lie `offsets` bytes behind `base` into `out`, until it is full.
/// Returns false, with nothing done, if the registers are off, if `out` has fewer than 8 places, or
/// if there are fewer offsets than places.
#[inline]
pub fn write_at(base: *mut u8, offsets: &[u32], out: &mut [*mut u8]) -> bool {
    // Relaxed: either value is right at any time.
    if out.len() < BLOCK || offsets.len() < out.len() || !WIDE.load(Relaxed) {
        return false;
    }
    // The last block may overlap the one before.
    let (last, blocks) = (out.len() - BLOCK, out.len().div_ceil(BLOCK) - 1);
    // SAFETY: blocks follow one another from the start, and the last one ends with `out`. All lie
    // within `out`, and `offsets` is at least as long. The processor has the registers.
    unsafe {
        vector_asm!(
            "vmovq xmm0, {base}",
            "vpbroadcastq ymm0, xmm0",
            "test {blocks}, {blocks}",
            "jz 3f",
            "2:",
            "vpmovzxdq ymm1, [{from}]",
            "vpmovzxdq ymm2, [{from} + 16]",
            "vpaddq ymm1, ymm1, ymm0",
            "vpaddq ymm2, ymm2, ymm0",
            "vmovdqu [{to}], ymm1",
            "vmovdqu [{to} + 32], ymm2",
            "add {from}, 32",
            "add {to}, 64",
            "dec {blocks}",
            "jnz 2b",
            "3:",
            "vpmovzxdq ymm1, [{last_from}]",
            "vpmovzxdq ymm2, [{last_from} + 16]",
            "vpaddq ymm1, ymm1, ymm0",
            "vpaddq ymm2, ymm2, ymm0",
            "vmovdqu [{last_to}], ymm1",
            "vmovdqu [{last_to} + 32], ymm2",
            "vzeroupper",
            base = in(reg) base,
            from = inout(reg) offsets.as_ptr() => _,
            to = inout(reg) out.as_mut_ptr() => _,
            blocks = inout(reg) blocks => _,
            last_from = in(reg) offsets.as_ptr().add(last),
            last_to = in(reg) out.as_mut_ptr().add(last),
        );
    }
    true
}
