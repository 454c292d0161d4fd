//! Code and registers of x86-64.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Memory;

/// The word before each abort address.
pub const SIGNATURE: u32 = 0x5305_3053;
pub type Breakpoint = [u8; 1];
/// `int3`.
pub const BREAKPOINT: Breakpoint = [0xcc];
/// What an instruction is.
pub type Kind = Mnemonic;
/// Operations that have no sequence.
pub const WITHOUT_SEQUENCE: [&str; 0] = [];

/// The jump at an abort address, or behind what makes the result nothing there, and where it goes.
pub fn jump(memory: &Memory, abort: u64) -> (u64, u64) {
    let mut jump = decode_padded(memory, abort);
    // What the sequence returns is nothing, or that something is left.
    if matches!(jump.mnemonic(), Mnemonic::Xor | Mnemonic::Mov) {
        match jump.mnemonic() {
            Mnemonic::Xor => assert_eq!(jump.op0_register(), jump.op1_register()),
            _ => assert_eq!(jump.immediate(1), 1),
        }
        jump = decode_padded(memory, jump.next_ip());
    }
    assert_eq!(jump.flow_control(), FlowControl::UnconditionalBranch);
    (jump.ip(), jump.near_branch_target())
}

/// The instructions of a sequence, by their addresses.
pub fn instructions(memory: &Memory, start: u64, end: u64) -> Vec<(u64, Kind)> {
    let mut instructions = Vec::new();
    let (mut at, mut last) = (start, start);
    while at < end {
        let instruction = decode(memory, at);
        assert!(
            matches!(
                instruction.flow_control(),
                FlowControl::Next
                    | FlowControl::ConditionalBranch
                    | FlowControl::UnconditionalBranch
            ),
            "{instruction:?} in the sequence at {start:#x}"
        );
        instructions.push((at, instruction.mnemonic()));
        last = at;
        at = instruction.next_ip();
        if instruction.flow_control() == FlowControl::UnconditionalBranch {
            // Nobody comes to what keeps the next instruction at the start of a line.
            at = decode_padded(memory, at).ip();
        }
    }
    assert_eq!(at, end, "an instruction reaches over the commit");
    let first = decode(memory, start);
    assert_eq!(
        first.segment_prefix(),
        Register::FS,
        "the CPU is read first"
    );
    assert_eq!(
        decode(memory, last).op0_kind(),
        OpKind::Memory,
        "a store commits, and nothing follows it"
    );
    instructions
}

/// The first instruction from an address on that does something: jumps may be kept off the end of
/// 32 bytes.
fn decode_padded(memory: &Memory, mut at: u64) -> Instruction {
    loop {
        let instruction = decode(memory, at);
        if instruction.mnemonic() != Mnemonic::Nop {
            return instruction;
        }
        at = instruction.next_ip();
    }
}

fn decode(memory: &Memory, at: u64) -> Instruction {
    let bytes: [u8; 15] = memory.read(at);
    let instruction = Decoder::with_ip(64, &bytes, at, DecoderOptions::NONE).decode();
    assert!(!instruction.is_invalid(), "no instruction at {at:#x}");
    instruction
}

/// The breakpoint at which a process stopped: the processor went past it.
pub fn breakpoint(registers: &libc::user_regs_struct) -> u64 {
    registers.rip - 1
}

/// The registers of a stopped process.
pub fn registers(pid: libc::pid_t) -> libc::user_regs_struct {
    // SAFETY: all-zero is a valid value; the call writes it.
    unsafe {
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        let to = &raw mut registers;
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, pid, 0usize, to), 0);
        registers
    }
}

/// Lets a stopped process go on at an address.
pub fn go_on_at(pid: libc::pid_t, address: u64) {
    let mut registers = registers(pid);
    registers.rip = address;
    let from = &raw const registers;
    // SAFETY: reads the registers; the process is stopped.
    let result = unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0usize, from) };
    assert_eq!(result, 0);
}
