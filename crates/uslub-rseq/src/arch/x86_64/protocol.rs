//! The protocol of a restartable sequence on x86-64, and its only spelling: [`sequence`].
//!
//! In the order of the text; a label is a number, because an inlined function occurs many times:
//!
//! | label | what | where |
//! |---|---|---|
//! | | A negative `cpu_id` (byte 4 of the area) says that the thread is not registered: leave. | |
//! | | The descriptor's address goes into byte 8 of the area. From now on, the kernel knows it. | |
//! | 20 | The start. The CPU's index is read, and the table gives the CPU's region. | |
//! | | The operation's own instructions. They write nothing that others can see. | |
//! | | The commit: one store. | |
//! | 30 | Behind the commit. Nothing aborts from here on, the counter is added to. | |
//! | [`END`] | The end, to which every refusal jumps too. | |
//! | 50 | The descriptor: version, flags, start, length, abort address. | `__rseq_cs` |
//! | | The signature, which the kernel demands in front of an abort address. | `.text.rseq_abort` |
//! | [`ABORT`] | Where the kernel continues an aborted thread: says "not done", jumps to the end. | |
//!
//! The thread's area is at `fs:[offset]`.

/// Label of a sequence's end: `jz {end}f`.
pub(crate) const END: u32 = 60;
/// Label of a sequence's abort address.
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

/// A sequence of the given instructions, of which `commit` is the last that an abort can prevent.
/// They find the CPU's region in `{region}`. `unregistered` is where threads without an area jump
/// to. `abort` is an instruction that makes the result "not done"; without it, the result must have
/// this value from the start.
///
/// `registers` hold the area's offset, the index's offset, the table, and the descriptor's address
/// in turn. Only the index's may be `{region}`, and only bulks, which need many registers, say it.
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
