//! What needs aarch64's own words, as in `x86_64.rs`.

use core::arch::{asm, naked_asm};
use core::ffi::CStr;

use gimli::{AArch64, Register};

use crate::registers::Registers;

pub(crate) const FRAME_POINTER: Register = AArch64::X29;
pub(crate) const STACK_POINTER: Register = AArch64::SP;
pub(crate) const RETURN: Register = AArch64::X30;

/// Bytes from the address in the frame pointer to the saved frame pointer, behind which the return
/// address lies.
pub(crate) const FRAME_RECORD: isize = 0;

/// The vDSO's function for the time.
pub(crate) const CLOCK_GETTIME: &CStr = c"__kernel_clock_gettime";

/// The code of [`here`](super::here).
macro_rules! here_code {
    () => {
        "adr {pc}, .\nmov {sp}, sp\nmov {fp}, x29"
    };
}
pub(crate) use here_code;

/// Whether the eight bytes in front of an address end with a call instruction: a branch with link.
pub(crate) fn ends_with_call(b: [u8; 8]) -> bool {
    let word = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    word & 0xfc00_0000 == 0x9400_0000 || word & 0xffff_fc1f == 0xd63f_0000
}

/// Where the thread was that a signal interrupted.
pub(crate) fn place(context: &libc::ucontext_t) -> Registers {
    Registers {
        pc: context.uc_mcontext.pc as usize,
        sp: context.uc_mcontext.sp as usize,
        fp: context.uc_mcontext.regs[29] as usize,
    }
}

/// Whether the access that faulted was a write: bit 6 of the syndrome, which the kernel puts into a
/// record of the context.
pub(crate) fn is_write(context: &libc::ucontext_t) -> bool {
    const SYNDROME: u32 = 0x4553_5201;
    let records = core::ptr::from_ref(&context.uc_mcontext).cast::<u8>();
    // Behind the fault's address, 31 registers, stack pointer, pc and pstate, aligned to 16 bytes.
    let mut at = (8 + 31 * 8 + 3 * 8_usize).next_multiple_of(16);
    while at + 16 <= size_of_val(&context.uc_mcontext) {
        // SAFETY: within the context; records have a magic number and their length.
        let (magic, bytes, value) = unsafe {
            let record = records.add(at);
            let head = record.cast::<[u32; 2]>().read();
            (head[0], head[1], record.add(8).cast::<u64>().read())
        };
        if magic == SYNDROME && value & 1 << 6 != 0 {
            return true;
        }
        if magic == SYNDROME || magic == 0 || bytes < 16 {
            break;
        }
        at += bytes as usize;
    }
    false
}

/// Asks the kernel to restore the thread.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn restore() {
    naked_asm!("mov x8, {number}", "svc #0", number = const libc::SYS_rt_sigreturn);
}

/// The code of a signal handler: it jumps to `to`, with the address that it returns to as a fourth
/// argument.
macro_rules! handler_entry {
    () => {
        "mov x3, x30\nb {to}"
    };
}
pub(crate) use handler_entry;

/// The code of [`call_on`](super::call_on).
macro_rules! call_on_code {
    () => {
        concat!(
            "stp x29, x30, [sp, #-16]!\n",
            "mov x29, sp\n",
            "mov sp, x0\n",
            "mov x0, x2\n",
            "blr x1\n",
            "mov sp, x29\n",
            "ldp x29, x30, [sp], #16\n",
            "ret\n",
        )
    };
}
pub(crate) use call_on_code;

/// Makes a request of valgrind; 0 if it does not run the process.
#[inline(never)]
pub(crate) fn valgrind(request: [usize; 6]) -> usize {
    let mut answer = 0usize;
    // SAFETY: the rotations add up to 128 bits, and the last instruction changes nothing.
    unsafe {
        asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(),
            inout("x3") answer,
            options(nostack),
        );
    }
    core::hint::black_box(&request);
    core::mem::take(&mut answer)
}

/// The address of a weak symbol; 0 if there is none.
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: reads a word that the linker or the loader wrote.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(nostack, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use weak;
