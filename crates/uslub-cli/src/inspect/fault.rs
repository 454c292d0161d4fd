//! What a core file says about the end of its program: the fault, and the registers that point into
//! uslub. A freed object behind a crash is often in a register only.

use super::explain;
use super::target::Target;
use crate::ending::signal_name;
use crate::failure::Failure;
use std::fmt::Write;
use uslub_inspect::Heap;
use uslub_inspect::core_file::Cause;
use uslub_inspect::explain::Meaning;
use uslub_inspect::memory::Register;
use uslub_inspect::slots::State;

/// The output for a target; empty for a process.
pub fn text(target: &Target) -> Result<String, Failure> {
    let Target::Core(core, _) = target else {
        return Ok(String::new());
    };
    let Some((signal, at)) = core.fault().filter(|&(signal, _)| signal != 0) else {
        return Ok(String::new());
    };
    let heaps = target.heaps()?;
    let mut out = format!("ended by {}\n", signal_name(signal));
    if matches!(signal, libc::SIGSEGV | libc::SIGBUS) {
        out.push_str("the fault: ");
        match core.cause() {
            Cause::Access => explain::push(&mut out, &heaps, at),
            Cause::Impossible => out.push_str(
                "an address that no program can have: the program took other data for a pointer\n",
            ),
            Cause::Sent => out
                .push_str("a process sent the signal; the program may have a handler for faults\n"),
        }
    }
    let points = |register: &Register| {
        let Register { name, value, .. } = *register;
        let meaning = heaps.iter().find_map(|heap| meaning(heap, value))?;
        Some(format!("  {name:<4} {value:#x}  {meaning}\n"))
    };
    let lines: Vec<_> = core.registers_at_end().iter().filter_map(points).collect();
    if !lines.is_empty() {
        out.push_str("registers that point into uslub:\n");
        out.extend(lines);
        let _ = writeln!(out, "for more: uslub explain {} ADDRESS", target.word());
    }
    out.push('\n');
    Ok(out)
}

/// What a register points to, if it is an object.
fn meaning(heap: &Heap<'_>, value: u64) -> Option<String> {
    match heap.explain(value) {
        Meaning::Slot(slot) => {
            let into = match (slot.in_front, slot.offset) {
                (0, 0) => String::new(),
                (0, n) => format!("{} into a ", explain::bytes(n)),
                (n, _) => format!("{} in front of a ", explain::bytes(n)),
            };
            let name = &slot.cache.name;
            Some(match slot.state {
                State::Live => format!("{into}live object of '{name}'"),
                state => format!("{into}FREE slot of '{name}', {}", explain::state(state)),
            })
        }
        Meaning::Large(start, _) => Some(format!(
            "{} into a live large object",
            explain::bytes(value - start)
        )),
        Meaning::Quarantined(start, _) => Some(format!(
            "{} into a FREE object in quarantine",
            explain::bytes(value - start)
        )),
        Meaning::FreePage(..) => Some("in a FREE page".to_owned()),
        _ => None,
    }
}
