//! What needs riscv64's own words, as in `x86_64.rs`.

use core::ffi::CStr;

use gimli::{Register, RiscV};

use crate::registers::Registers;

pub(crate) const FRAME_POINTER: Register = RiscV::X8;
pub(crate) const STACK_POINTER: Register = RiscV::X2;
pub(crate) const RETURN: Register = RiscV::X1;

/// Bytes from the address in the frame pointer to the saved frame pointer, behind which the return
/// address lies.
pub(crate) const FRAME_RECORD: isize = -16;

/// The vDSO's function for the time.
pub(crate) const CLOCK_GETTIME: &CStr = c"__vdso_clock_gettime";

/// The code of [`here`](super::here).
macro_rules! here_code {
    () => {
        "auipc {pc}, 0\nmv {sp}, sp\nmv {fp}, s0"
    };
}
pub(crate) use here_code;

/// Whether the eight bytes in front of an address end with a call instruction: a jump that leaves
/// its return address in `ra`, of four bytes or two.
pub(crate) fn ends_with_call(b: [u8; 8]) -> bool {
    let word = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    let half = u16::from_le_bytes([b[6], b[7]]);
    let is_jal = word & 0xfff == 0x0ef;
    let is_jalr = word & 0x7fff == 0x00e7;
    let is_short_jalr = half & 0xf07f == 0x9002 && half & 0x0f80 != 0;
    is_jal || is_jalr || is_short_jalr
}

/// Where the thread was that a signal interrupted.
pub(crate) fn place(context: &libc::ucontext_t) -> Registers {
    let registers = &context.uc_mcontext.__gregs;
    Registers {
        pc: registers[0] as usize,
        sp: registers[2] as usize,
        fp: registers[8] as usize,
    }
}

/// Whether the access that faulted was a write. The kernel does not say: the instruction does.
pub(crate) fn is_write(context: &libc::ucontext_t) -> bool {
    let at = place(context).pc as *const u16;
    // SAFETY: the thread ran this instruction; those of four bytes have both low bits set.
    let low = unsafe { at.read() };
    let (kind, long) = (low >> 13, low & 0x7f);
    match low & 3 {
        // Stores of four bytes: of integers, of floating-point numbers, atomic ones.
        3 => matches!(long, 0x23 | 0x27 | 0x2f),
        // Stores of two bytes: of a floating-point number, a word, a doubleword.
        0 | 2 => matches!(kind, 5..=7),
        _ => false,
    }
}

/// Where the kernel lets a handler return to: a function of its vDSO.
pub(crate) fn handler_returns_to() -> usize {
    crate::vdso::find(c"__vdso_rt_sigreturn").unwrap_or(0)
}

/// The code of a signal handler: it jumps to `to`, with the address that it returns to as a fourth
/// argument.
macro_rules! handler_entry {
    () => {
        "mv a3, ra\ntail {to}"
    };
}
pub(crate) use handler_entry;

/// The code of [`call_on`](super::call_on).
macro_rules! call_on_code {
    () => {
        concat!(
            "addi sp, sp, -16\n",
            "sd ra, 8(sp)\n",
            "sd s0, 0(sp)\n",
            "addi s0, sp, 16\n",
            "mv sp, a0\n",
            "mv a0, a2\n",
            "jalr a1\n",
            "addi sp, s0, -16\n",
            "ld s0, 0(sp)\n",
            "ld ra, 8(sp)\n",
            "addi sp, sp, 16\n",
            "ret\n",
        )
    };
}
pub(crate) use call_on_code;

/// Valgrind's requests are not made here: it is told of nothing.
pub(crate) fn valgrind(_: [usize; 6]) -> usize {
    0
}

/// The address of a weak symbol; 0 if there is none.
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: reads a word that the linker or the loader wrote.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("2: auipc {0}, %got_pcrel_hi(", $name, ")"),
                "ld {0}, %pcrel_lo(2b)({0})",
                out(reg) address,
                options(nostack, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use weak;
