//! Instructions of aarch64: as much of them as the walks look at.

use object::Architecture;

use super::{Flow, Function, Instruction, Slow};

/// The instructions of these bytes at an address.
pub fn decode(start: u64, code: &[u8]) -> Vec<Instruction> {
    let words = code.as_chunks::<4>().0.iter();
    words
        .zip((start..).step_by(4))
        .map(|(&word, at)| (u32::from_le_bytes(word), at))
        .map(|(word, at)| Instruction {
            at,
            next: at + 4,
            flow: flow(word, at),
            slow: slow(word),
            text: format!("{at:#x}: {word:08x}"),
        })
        .collect()
}

/// The address that `bits` bits of a word tell from bit `lowest` on: a distance with a sign, in
/// words of 4 bytes.
fn target(word: u32, at: u64, lowest: u32, bits: u32) -> u64 {
    let distance = (word << (32 - lowest - bits)) as i32 >> (32 - bits);
    at.wrapping_add_signed(i64::from(distance) * 4)
}

fn flow(word: u32, at: u64) -> Flow {
    match word >> 24 {
        // b
        0x14..=0x17 => Flow::Jump(target(word, at, 0, 26)),
        // b.cond, cbz, cbnz
        0x54 | 0x34 | 0x35 | 0xb4 | 0xb5 => Flow::Branch(target(word, at, 5, 19)),
        // tbz, tbnz
        0x36 | 0x37 | 0xb6 | 0xb7 => Flow::Branch(target(word, at, 5, 14)),
        _ if word & 0xffff_fc1f == 0xd65f_0000 => Flow::Return,
        _ if slow(word).is_some_and(|slow| matches!(slow, Slow::Call | Slow::Unknown)) => {
            Flow::Elsewhere
        }
        _ => Flow::Next,
    }
}

/// Why an instruction may not be on a fast path.
fn slow(word: u32) -> Option<Slow> {
    // Exclusive or ordered, compare-and-swap; other atomic changes of memory; barriers.
    let is_atomic = word & 0x3f00_0000 == 0x0800_0000
        || word & 0x3f20_0c00 == 0x3820_0000
        || word & 0xffff_f01f == 0xd503_301f;
    // udiv and sdiv; fdiv of one number and of vectors.
    let is_division = word & 0x7fe0_f800 == 0x1ac0_0800
        || word & 0xff20_fc00 == 0x1e20_1800
        || word & 0xbfa0_fc00 == 0x2e20_fc00;
    match word {
        _ if is_atomic => Some(Slow::Lock),
        _ if is_division => Some(Slow::Division),
        // bl; blr; svc
        _ if word >> 26 == 0b10_0101 => Some(Slow::Call),
        _ if word & 0xffff_fc1f == 0xd63f_0000 => Some(Slow::Call),
        _ if word & 0xffe0_001f == 0xd400_0001 => Some(Slow::Call),
        // ret
        _ if word & 0xffff_fc1f == 0xd65f_0000 => None,
        // Other jumps to where a register says; traps; udf.
        _ if word >> 25 == 0b110_1011 || word >> 24 == 0xd4 || word >> 16 == 0 => {
            Some(Slow::Unknown)
        }
        _ => None,
    }
}

#[test]
fn slow_instructions_of_aarch64_are_seen() {
    const RETURN: u32 = 0xd65f_03c0;
    let ways = |word: u32| {
        let code: Vec<u8> = [word, RETURN]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        Function::of(Architecture::Aarch64, 0x1000, &code).all_ways()
    };
    for (word, slow, name) in [
        (0xc85f_7ca6, Slow::Lock, "ldxr x6, [x5]"),
        (0xc807_7ca6, Slow::Lock, "stxr w7, x6, [x5]"),
        (0xc8df_fca6, Slow::Lock, "ldar x6, [x5]"),
        (0xc8a6_7ca7, Slow::Lock, "cas x6, x7, [x5]"),
        (0xf826_00a7, Slow::Lock, "ldadd x6, x7, [x5]"),
        (0xd503_3bbf, Slow::Lock, "dmb ish"),
        (0x9ac2_0820, Slow::Division, "udiv x0, x1, x2"),
        (0x1ac2_0c20, Slow::Division, "sdiv w0, w1, w2"),
        (0x1e62_1820, Slow::Division, "fdiv d0, d1, d2"),
        (0x6e62_fc20, Slow::Division, "fdiv v0.2d, v1.2d, v2.2d"),
        (0x9400_0001, Slow::Call, "bl, to the next"),
        (0xd63f_0020, Slow::Call, "blr x1"),
        (0xd400_0001, Slow::Call, "svc 0"),
        (0xd61f_0020, Slow::Unknown, "br x1"),
        (0xd420_0000, Slow::Unknown, "brk 0"),
        (0x0000_0000, Slow::Unknown, "udf 0"),
        (0x5400_0000, Slow::Loop, "b.eq, to itself"),
        (0xb400_0000, Slow::Loop, "cbz x0, to itself"),
        (0x37f8_0005, Slow::Loop, "tbnz w5, 31, to itself"),
        (0x1400_0000, Slow::Loop, "b, to itself"),
    ] {
        let seen = ways(word).slow;
        assert!(
            seen.iter().any(|(_, seen)| *seen == slow),
            "{name}: {seen:?}"
        );
    }
    // ldr x6, [x5]; str x6, [x5], #1; mul w4, w4, w3.
    for word in [0xf940_00a6, 0xf800_14a6, 0x1b03_7c84] {
        assert!(ways(word).slow.is_empty(), "{word:#x}");
        assert_eq!(ways(word).longest, 2);
    }
}
