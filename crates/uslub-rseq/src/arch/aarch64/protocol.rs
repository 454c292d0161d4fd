//! The protocol of a restartable sequence on aarch64, and its only spelling: [`sequence`].
//!
//! Steps and labels are those of `arch/x86_64/protocol.rs`. An abort only jumps to the end, so a
//! result must be "not done" from the start.
//!
//! All operations have the same names for registers. The thread's area lies `area` bytes from
//! `tpidr_el0`.
//!
//! | register | holds |
//! |---|---|
//! | `thread` | the thread pointer; free for the operation's own use behind the start |
//! | `region` | the CPU's region |
//! | `top` | the area's address, then the CPU's index; free behind the start |

/// Label of a sequence's end: `cbz {top}, {end}f`.
pub(crate) const END: u32 = 60;

/// Leaves if the thread is not registered. Otherwise `thread` is the thread pointer, and `top` the
/// area's address.
macro_rules! registered {
    () => {
        concat!(
            "mrs {thread}, tpidr_el0\n",
            "add {top}, {thread}, {area}\n",
            "ldr {region:w}, [{top}, #4]\n",
            "tbnz {region:w}, #31, {end}f\n",
        )
    };
}

/// Loads the running CPU's region into `region`.
macro_rules! region {
    () => {
        concat!(
            "ldr {top:w}, [{thread}, {index}]\n",
            "ldr {region}, [{table}, {top}, lsl #3]\n",
        )
    };
}

/// A sequence of the given instructions, of which `commit` is the last that an abort can prevent.
macro_rules! sequence {
    (
        [$($code:expr),* $(,)?],
        commit: $commit:expr,
        after: $($after:expr),+ $(,)?
    ) => {
        concat!(
            registered!(),
            "adrp {region}, 50f\n",
            "add {region}, {region}, :lo12:50f\n",
            "str {region}, [{top}, #8]\n",
            "20:\n",
            region!(),
            $($code, "\n",)*
            $commit, "\n",
            "30:\n",
            $($after, "\n",)*
            "60:\n",
            ".pushsection __rseq_cs, \"aw\"\n",
            ".balign 32\n",
            "50:\n",
            ".long 0, 0\n",
            ".quad 20b, 30b - 20b, 40f\n",
            ".popsection\n",
            ".pushsection .text.rseq_abort, \"ax\"\n",
            ".balign 4\n",
            ".inst 0xd428bc00\n",
            "40:\n",
            "b 60b\n",
            ".popsection\n",
        )
    };
}

pub(crate) use {region, registered, sequence};
