//! Instructions of x86-64.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, Instruction, Mnemonic, NasmFormatter, OpKind,
};

use super::{Flow, Slow};

/// The instructions of these bytes at an address.
pub fn decode(start: u64, code: &[u8]) -> Vec<super::Instruction> {
    Decoder::with_ip(64, code, start, DecoderOptions::NONE)
        .into_iter()
        .map(|instruction| super::Instruction {
            at: instruction.ip(),
            next: instruction.next_ip(),
            flow: flow(&instruction),
            slow: slow(&instruction),
            text: text(&instruction),
        })
        .collect()
}

fn flow(instruction: &Instruction) -> Flow {
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => Flow::Branch(target),
        FlowControl::UnconditionalBranch => Flow::Jump(target),
        FlowControl::Next => Flow::Next,
        FlowControl::Return => Flow::Return,
        _ => Flow::Elsewhere,
    }
}

/// Why an instruction may not be on a fast path.
fn slow(instruction: &Instruction) -> Option<Slow> {
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg
        && (0..2).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    if instruction.has_lock_prefix() || exchanges {
        return Some(Slow::Lock);
    }
    if matches!(
        instruction.mnemonic(),
        Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Divsd
            | Mnemonic::Divss
            | Mnemonic::Divpd
            | Mnemonic::Divps
    ) {
        return Some(Slow::Division);
    }
    match instruction.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall => Some(Slow::Call),
        FlowControl::Next
        | FlowControl::Return
        | FlowControl::ConditionalBranch
        | FlowControl::UnconditionalBranch => None,
        _ => Some(Slow::Unknown),
    }
}

fn text(instruction: &Instruction) -> String {
    let mut text = format!("{:#x}: ", instruction.ip());
    NasmFormatter::new().format(instruction, &mut text);
    text
}
