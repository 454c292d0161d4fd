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

/// The descriptor of a sequence from label 20 to 30, and its abort address. An abort continues at
/// `to`.
#[doc(hidden)]
#[macro_export]
macro_rules! descriptor {
    (to $to:literal) => {
        concat!(
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
            "b ",
            $to,
            "\n.popsection\n",
        )
    };
}

/// An `asm!` with a sequence: its instructions, which find the CPU's region in `region`, its
/// commit, and what follows the commit. Only further operands are given.
///
/// A far jump may pass through a veneer of the linker, which uses `x16` and `x17`: no operand is
/// there.
macro_rules! sequence {
    (
        $area:expr, $table:expr, $slot:expr,
        [$($code:expr),* $(,)?],
        commit: $commit:expr,
        after: $($after:expr),+;
        $($operands:tt)*
    ) => {
        core::arch::asm!(
            registered!(),
            "adrp {region}, 50f",
            "add {region}, {region}, :lo12:50f",
            "str {region}, [{top}, #8]",
            "20:",
            region!(),
            $($code,)*
            $commit,
            "30:",
            $($after,)*
            "60:",
            $crate::descriptor!(to "60b"),
            $($operands)*
            end = const END,
            area = in(reg) $area.offset,
            index = in(reg) $area.index_offset,
            table = in(reg) $table,
            slot = in(reg) $slot,
            thread = out(reg) _,
            region = out(reg) _,
            top = out(reg) _,
            out("x16") _,
            out("x17") _,
            options(nostack),
        )
    };
}

pub(crate) use {region, registered, sequence};
