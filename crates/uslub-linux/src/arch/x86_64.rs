//! What needs x86-64's own words: registers, the frame of a signal handler, and requests of
//! valgrind.

use core::arch::{asm, naked_asm};
use core::ffi::CStr;

use gimli::{Register, X86_64};

use crate::registers::Registers;

pub(crate) const FRAME_POINTER: Register = X86_64::RBP;
pub(crate) const STACK_POINTER: Register = X86_64::RSP;
pub(crate) const RETURN: Register = X86_64::RA;

/// Bytes from the address in the frame pointer to the saved frame pointer, behind which the return
/// address lies.
pub(crate) const FRAME_RECORD: isize = 0;

/// The vDSO's function for the time.
pub(crate) const CLOCK_GETTIME: &CStr = c"__vdso_clock_gettime";

/// The code of [`here`](super::here).
macro_rules! here_code {
    () => {
        "lea {pc}, [rip]\nmov {sp}, rsp\nmov {fp}, rbp"
    };
}
pub(crate) use here_code;

/// Whether the eight bytes in front of an address end with a call instruction.
pub(crate) fn ends_with_call(b: [u8; 8]) -> bool {
    let mode = |at: usize, of: &[u8]| b[at] == 0xff && of.contains(&(b[at + 1] & !7));
    b[3] == 0xe8
        || mode(6, &[0xd0, 0x10])
        || mode(5, &[0x50])
        || (b[5] == 0xff && b[6] == 0x14)
        || (b[4] == 0xff && b[5] == 0x54)
        || (b[2] == 0xff && (b[3] == 0x15 || b[3] & !7 == 0x90))
        || (b[1] == 0xff && b[2] == 0x94)
}

/// Where the thread was that a signal interrupted.
pub(crate) fn place(context: &libc::ucontext_t) -> Registers {
    let registers = &context.uc_mcontext.gregs;
    Registers {
        pc: registers[libc::REG_RIP as usize] as usize,
        sp: registers[libc::REG_RSP as usize] as usize,
        fp: registers[libc::REG_RBP as usize] as usize,
    }
}

/// Whether the access that faulted was a write: bit 1 of a page fault's error code.
pub(crate) fn is_write(context: &libc::ucontext_t) -> bool {
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0
}

/// Asks the kernel to restore the thread.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn restore() {
    naked_asm!("mov eax, {number}", "syscall", number = const libc::SYS_rt_sigreturn);
}

/// The code of a signal handler: it jumps to `to`, with the address that it returns to as a fourth
/// argument.
macro_rules! handler_entry {
    () => {
        "mov rcx, [rsp]\njmp {to}"
    };
}
pub(crate) use handler_entry;

/// The code of [`call_on`](super::call_on).
macro_rules! call_on_code {
    () => {
        concat!(
            "push rbp\n",
            "mov rbp, rsp\n",
            "mov rsp, rdi\n",
            "mov rdi, rdx\n",
            "call rsi\n",
            "mov rsp, rbp\n",
            "pop rbp\n",
            "ret\n",
        )
    };
}
pub(crate) use call_on_code;

/// Makes a request of valgrind; 0 if it does not run the process.
#[inline(never)]
pub(crate) fn valgrind(request: [usize; 6]) -> usize {
    let mut answer = 0usize;
    // SAFETY: the rotations add up to 128 bits, and the exchange is of a register with itself.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
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
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, preserves_flags),
            );
        }
        address
    }};
}
pub(crate) use weak;
