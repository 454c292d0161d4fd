//! Code and registers of aarch64.

use super::Memory;

/// The word before each abort address.
pub const SIGNATURE: u32 = 0xd428_bc00;
pub type Breakpoint = [u8; 4];
/// `brk #0`.
pub const BREAKPOINT: Breakpoint = 0xd420_0000u32.to_le_bytes();
/// What an instruction is: its highest bits, without the bits that tell a place to jump to.
pub type Kind = u32;
/// Operations that have no sequence.
pub const WITHOUT_SEQUENCE: [&str; 1] = ["add"];

const NT_PRSTATUS: usize = 1;

/// The jump at an abort address, and where it goes.
pub fn jump(memory: &Memory, abort: u64) -> (u64, u64) {
    let word = decode(memory, abort);
    assert_eq!(word >> 26, 0b000101, "{word:#x} at {abort:#x} is no jump");
    // 26 bits with a sign, in words of 4 bytes.
    let distance = i64::from((word << 6) as i32 >> 4);
    (abort, abort.wrapping_add_signed(distance))
}

/// The instructions of a sequence, by their addresses.
pub fn instructions(memory: &Memory, start: u64, end: u64) -> Vec<(u64, Kind)> {
    let code: Vec<(u64, u32)> = (start..end)
        .step_by(4)
        .map(|at| (at, decode(memory, at)))
        .collect();
    for &(at, word) in &code {
        assert!(!leaves(word), "{word:#x} at {at:#x} leaves the sequence");
        assert!(!is_exclusive(word), "{word:#x} at {at:#x} is exclusive");
    }
    // ldr w, from a register and an offset.
    let first = code[0].1;
    assert!(
        matches!(first >> 22, 0b10_1110_0101 | 0b10_1110_0001),
        "the CPU is read first, not by {first:#x}"
    );
    // str x, in any of its forms.
    let last = code[code.len() - 1].1;
    assert!(
        matches!(last >> 22, 0b11_1110_0100 | 0b11_1110_0000),
        "a store ends it, not {last:#x}"
    );
    code.into_iter()
        .map(|(at, word)| (at, kind(word)))
        .collect()
}

fn kind(word: u32) -> Kind {
    let jumps = matches!(word >> 24 & 0x7f, 0x34..=0x37 | 0x54) || word >> 26 & 0x1f == 0b00101;
    if jumps { word >> 24 } else { word >> 21 << 3 }
}

/// A call, a return, a jump to where a register says, a system call, a trap.
fn leaves(word: u32) -> bool {
    word >> 26 == 0b100101 || word >> 25 == 0b110_1011 || word >> 24 == 0xd4
}

/// An exclusive load or store, or one that is ordered.
fn is_exclusive(word: u32) -> bool {
    word >> 24 & 0x3f == 0b001000
}

fn decode(memory: &Memory, at: u64) -> u32 {
    u32::from_le_bytes(memory.read(at))
}

/// The breakpoint at which a process stopped: the processor stands there.
pub fn breakpoint(registers: &libc::user_regs_struct) -> u64 {
    registers.pc
}

fn vector(registers: *mut libc::user_regs_struct) -> libc::iovec {
    libc::iovec {
        iov_base: registers.cast(),
        iov_len: size_of::<libc::user_regs_struct>(),
    }
}

/// The registers of a stopped process.
pub fn registers(pid: libc::pid_t) -> libc::user_regs_struct {
    // SAFETY: all-zero is a valid value; the call writes it.
    unsafe {
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        let mut vector = vector(&raw mut registers);
        let to = &raw mut vector;
        let result = libc::ptrace(libc::PTRACE_GETREGSET, pid, NT_PRSTATUS, to);
        assert_eq!(result, 0);
        registers
    }
}

/// Lets a stopped process go on at an address.
pub fn go_on_at(pid: libc::pid_t, address: u64) {
    let mut registers = registers(pid);
    registers.pc = address;
    let mut vector = vector(&raw mut registers);
    let from = &raw mut vector;
    // SAFETY: reads the registers; the process is stopped.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGSET, pid, NT_PRSTATUS, from) };
    assert_eq!(result, 0);
}
