//! Copies of objects between a sheaf and an array: instructions in the middle of a sequence.
//!
//! They copy `{bytes}` bytes (a multiple of 8, at least 8) from `{from}` to `{to}`, and change
//! these registers and `{spare}`. `{bytes}` ends at 0.

/// The code if a register has a bit; otherwise a jump to the label behind the code.
macro_rules! if_bit {
    ($register:literal & $bit:literal, $label:literal: $($code:expr),*) => {
        concat!(
            "test {", $register, ":l}, ", $bit, "\n",
            "jz ", $label, "f\n",
            $($code,)*
            $label, ":\n",
        )
    };
}

/// Advances both addresses.
macro_rules! forward {
    ($bytes:literal) => {
        concat!("add {from}, ", $bytes, "\n", "add {to}, ", $bytes, "\n")
    };
}

/// Moves a piece of 8, 16 or 32 bytes without a look at it.
macro_rules! plain {
    (8) => {
        "mov {spare}, [{from}]\nmov [{to}], {spare}\n"
    };
    (16) => {
        "movups xmm0, [{from}]\nmovups [{to}], xmm0\n"
    };
    (32) => {
        concat!(
            "movups xmm0, [{from}]\nmovups xmm1, [{from} + 16]\n",
            "movups [{to}], xmm0\nmovups [{to} + 16], xmm1\n",
        )
    };
}

/// For a copy that does not check what it moves: no code.
macro_rules! unseen {
    ($register:literal) => {
        ""
    };
}

/// Moves a piece of 8, 16 or 32 bytes by a vector register, which `$seen` may check. `at` is added
/// to both addresses.
macro_rules! vector_move {
    (8 $(at $at:literal)?, $seen:ident) => {
        concat!(
            "vmovddup xmm0, qword ptr [{from}", $($at,)? "]\n",
            "vmovlps qword ptr [{to}", $($at,)? "], xmm0\n", $seen!("xmm0"),
        )
    };
    (16 $(at $at:literal)?, $seen:ident) => {
        concat!(
            "vmovups xmm0, [{from}", $($at,)? "]\n",
            "vmovups [{to}", $($at,)? "], xmm0\n", $seen!("xmm0"),
        )
    };
    (32 $(at $at:literal)?, $seen:ident) => {
        concat!(
            "vmovups ymm0, [{from}", $($at,)? "]\n",
            "vmovups [{to}", $($at,)? "], ymm0\n", $seen!("ymm0"),
        )
    };
}

/// Copies what exceeds whole blocks of 64 bytes, low end first, by pieces that `$move` moves and
/// that do not overlap: a later load then finds its bytes in one store. Jumps to `none` if there is
/// no piece, and to `last` if there is none of 32 bytes.
macro_rules! small_pieces {
    ($move:ident, none: $none:literal, last: $last:literal) => {
        concat!(
            "test {bytes:l}, 56\n",
            "jz ", $none, "\n",
            if_bit!("bytes" & 8, 21: $move!(8), forward!(8)),
            if_bit!("bytes" & 16, 22: $move!(16), forward!(16)),
            "test {bytes:l}, 32\n",
            "jz ", $last, "\n",
            $move!(32), forward!(32),
        )
    };
}

/// Copies at least 128 bytes through registers of 32 bytes. `$seen` may check the registers moved.
///
/// No store crosses a cache line. No load has the low 12 bits of a store shortly before it: the
/// processor would take it for a load of the stored bytes. So blocks are copied upwards or
/// downwards, as the addresses require. All moves have the VEX encoding: an older encoding, while
/// upper halves are in use, costs some processors 100 ns.
macro_rules! large_blocks {
    ($seen:ident) => {
        concat!(
            // Align `to` to 32 bytes.
            if_bit!("to" & 8, 32: vector_move!(8, $seen), forward!(8), "sub {bytes}, 8\n"),
            if_bit!("to" & 16, 33: vector_move!(16, $seen), forward!(16), "sub {bytes}, 16\n"),
            // Copy what lies behind the last block of 64 bytes.
            "mov {spare}, {bytes}\n",
            "and {spare}, -64\n",
            if_bit!("bytes" & 32, 34: vector_move!(32 at " + {spare}", $seen), "add {spare}, 32\n"),
            if_bit!("bytes" & 16, 35: vector_move!(16 at " + {spare}", $seen), "add {spare}, 16\n"),
            if_bit!("bytes" & 8, 36: vector_move!(8 at " + {spare}", $seen)),
            // Upwards if, by the low 12 bits, stores are half a page or more ahead of loads.
            // Otherwise downwards from the last block.
            "mov {spare}, {to}\n",
            "sub {spare}, {from}\n",
            "shr {bytes}, 6\n",
            "test {spare:e}, 2048\n",
            "mov {spare:e}, 64\n",
            "jnz 37f\n",
            "mov {spare}, {bytes}\n",
            "shl {spare}, 6\n",
            "lea {from}, [{from} + {spare} - 64]\n",
            "lea {to}, [{to} + {spare} - 64]\n",
            "mov {spare}, -64\n",
            "37:\n",
            "vmovups ymm0, [{from}]\n",
            "vmovups ymm1, [{from} + 32]\n",
            "vmovups [{to}], ymm0\n",
            "vmovups [{to} + 32], ymm1\n",
            $seen!("ymm0"),
            $seen!("ymm1"),
            "add {from}, {spare}\n",
            "add {to}, {spare}\n",
            "dec {bytes}\n",
            "jnz 37b\n",
        )
    };
}

/// Copies `{large}` bytes or more by [`large_blocks`], if registers of 32 bytes are in use. Other
/// copies begin with [`small_pieces`]. Whole blocks of 64 bytes need one jump to their loop: a
/// taken jump costs about a cycle, and a copy here costs a few.
macro_rules! copy {
    () => {
        concat!(
            "cmp {bytes}, {large}\n",
            "jae 28f\n",
            "29:\n",
            small_pieces!(plain, none: "23f", last: "27f"),
            "27:\n",
            "shr {bytes}, 6\n",
            "jnz 31f\n",
            "jmp 26f\n",
            "28:\n",
            "cmp byte ptr [rip + {wide}], 0\n",
            "je 29b\n",
            large_blocks!(unseen),
            "vzeroupper\n",
            "jmp 26f\n",
            "25:\n",
            "movups xmm0, [{from}]\n",
            "movups xmm1, [{from} + 16]\n",
            "movups xmm2, [{from} + 32]\n",
            "movups xmm3, [{from} + 48]\n",
            "movups [{to}], xmm0\n",
            "movups [{to} + 16], xmm1\n",
            "movups [{to} + 32], xmm2\n",
            "movups [{to} + 48], xmm3\n",
            forward!(64),
            "dec {bytes}\n",
            "jnz 25b\n",
            "jmp 26f\n",
            // The loop lies in one line of instructions, which matters where two threads share a
            // core.
            ".p2align 6\n",
            "23:\n",
            "shr {bytes}, 6\n",
            "31:\n",
            "cmp byte ptr [rip + {wide}], 0\n",
            "je 25b\n",
            "24:\n",
            "vmovups ymm0, [{from}]\n",
            "vmovups ymm1, [{from} + 32]\n",
            "vmovups [{to}], ymm0\n",
            "vmovups [{to} + 32], ymm1\n",
            forward!(64),
            "dec {bytes}\n",
            "jnz 24b\n",
            "vzeroupper\n",
            "26:\n",
        )
    };
}

/// Finds the room for `{bytes}` bytes behind the top in the word at `{slot}` of `{region}`, or
/// jumps to the end if there is less. Afterwards `{region}` is the word's address, `{to}` the
/// room's, and `{top}` the new top.
macro_rules! room {
    () => {
        concat!(
            "add {region}, {slot}\n",
            "mov {top}, [{region}]\n",
            "mov {spare:e}, {top:e}\n",
            "and {spare:e}, {window} - 1\n",
            "add {spare}, {bytes}\n",
            "cmp {spare}, {window}\n",
            "jae {end}f\n",
            "lea {to}, [{top} + 8]\n",
            "add {top}, {bytes}",
        )
    };
}

pub(crate) use {
    copy, forward, if_bit, large_blocks, plain, room, small_pieces, unseen, vector_move,
};
