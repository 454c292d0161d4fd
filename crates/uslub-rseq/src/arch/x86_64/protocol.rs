//! The protocol of a restartable sequence on x86-64, and its only spelling: [`sequence`].
//!
//! | label | what |
//! |---|---|
//! | | Leave if `cpu_id` (byte 4 of the area) is negative: the thread is not registered. |
//! | | Store the descriptor's address in byte 8 of the area, where the kernel reads it. |
//! | 20 | The start. Read the CPU's index, and find the CPU's region through the table. |
//! | | The operation's instructions. They write nothing that other threads read. |
//! | | The commit: one store. |
//! | 30 | Behind the commit, nothing aborts. The operation adds to its counter. |
//! | 60 | The end, for refusals too. |
//! | 50 | In `__rseq_cs`, the descriptor: version, flags, start, length, abort address. |
//! | | In `.text.rseq_abort`, the signature: the kernel demands it before the abort address. |
//! | 40 | The abort address: make the result "not done", and jump to the end. |
//!
//! Labels are numbers, because a function that is inlined twice must not have a name twice. The
//! thread's area is at `fs:[offset]`.
//!
//! `uslub-models` includes this file and `copy.rs`, so they depend on no other file. It reads each
//! use of [`sequence`]: one instruction or part a line.

/// Label of the end, as in `jz {end}f`.
pub(crate) const END: u32 = 60;
/// Label of the abort address.
pub(crate) const ABORT: u32 = 40;

/// The descriptor of a sequence from label 20 to 30, and its abort address. An abort, or a jump to
/// label 40, runs the given instruction and continues at `to`.
#[doc(hidden)]
#[macro_export]
macro_rules! descriptor {
    (to $to:literal $(, $abort:literal)?) => {
        concat!(
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "50:\n",
            ".long 0, 0\n",
            ".quad 20b, 30b - 20b, 40f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\"\n",
            ".byte 0x0f, 0xb9, 0x3d\n",
            ".long 0x53053053\n",
            "40:\n",
            $($abort, "\n",)?
            "jmp ",
            $to,
            "\n.popsection\n",
        )
    };
}

/// A sequence: its instructions, which find the CPU's region in `{region}`, and its commit.
///
/// | part | what |
/// |---|---|
/// | `registers` | Hold the offsets of area and index, the table, the descriptor's address. |
/// | `unregistered` | Where a thread that is not registered goes. |
/// | `after` | One instruction behind the commit. |
/// | `abort` | Makes the result "not done". Without it, that is the result from the start. |
///
/// Only bulks name their `registers`, because some of these have a second use there.
macro_rules! sequence {
    (unregistered: $($rest:tt)*) => {
        sequence!(
            registers: "{area}", "{index}", "{table}", "{region}", unregistered: $($rest)*
        )
    };
    (
        registers: $area:literal, $index:literal, $table:literal, $descriptor:literal,
        unregistered: $unregistered:literal,
        [$($code:expr),* $(,)?],
        commit: $commit:expr,
        after: $after:literal,
        $(abort: $abort:literal,)?
    ) => {
        concat!(
            "cmp dword ptr fs:[", $area, " + 4], 0\n",
            "js ", $unregistered, "\n",
            "lea ", $descriptor, ", [rip + 50f]\n",
            "mov fs:[", $area, " + 8], ", $descriptor, "\n",
            "20:\n",
            "mov {region:e}, fs:[", $index, "]\n",
            "mov {region}, [", $table, " + {region} * 8]\n",
            $($code, "\n",)*
            $commit, "\n",
            "30:\n",
            $after, "\n",
            "60:\n",
            $crate::descriptor!(to "60b" $(, $abort)?),
        )
    };
}

pub(crate) use sequence;
