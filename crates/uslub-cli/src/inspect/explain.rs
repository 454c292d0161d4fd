//! What an address is, in words.

use super::target::Target;
use crate::failure::Failure;
use crate::units;
use std::fmt::Write;
use uslub_inspect::Heap;
use uslub_inspect::explain::{Meaning, Slot};
use uslub_inspect::memory::Map;
use uslub_inspect::sheaves::Place;
use uslub_inspect::slots::State;

/// The address that a word stands for.
pub fn parse(word: &str) -> Result<u64, Failure> {
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    let number = match digits {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u64::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None if word.bytes().all(|b| b.is_ascii_digit()) => word.parse().ok(),
        None => None,
    };
    number.ok_or_else(|| {
        Failure::usage(
            format!("'{word}' is no address"),
            "write it as 0x and up to 16 hexadecimal digits, or as a decimal number",
        )
    })
}

/// The output for addresses of a target.
pub fn text(target: &Target, addresses: &[u64]) -> Result<String, Failure> {
    let heaps = target.heaps()?;
    let mut out = String::new();
    for &at in addresses {
        push(&mut out, &heaps, at);
    }
    Ok(out)
}

/// The first line for an address.
pub fn line(heaps: &[Heap<'_>], at: u64) -> String {
    let mut out = String::new();
    push(&mut out, heaps, at);
    out.lines().next().unwrap_or("").to_owned() + "\n"
}

/// What an address is: the first allocator that knows it answers.
pub fn push(out: &mut String, heaps: &[Heap<'_>], at: u64) {
    let mut meanings = heaps.iter().map(|heap| (heap, heap.explain(at)));
    let ours = meanings.clone().find(|(_, meaning)| {
        !matches!(
            meaning,
            Meaning::NotOurs(_) | Meaning::Unmapped | Meaning::Kernel
        )
    });
    if let Some((heap, meaning)) = ours.or_else(|| meanings.next()) {
        push_meaning(out, heap, at, &meaning);
    }
}

pub fn bytes(n: u64) -> String {
    format!("{n} {}", units::plural(n, "byte", "bytes"))
}

fn push_meaning(out: &mut String, heap: &Heap<'_>, at: u64, meaning: &Meaning) {
    let _ = write!(out, "{at:#x} is ");
    let _ = match meaning {
        Meaning::Slot(slot) => return push_slot(out, heap, slot),
        Meaning::BehindSlots(cache, behind) => writeln!(
            out,
            "{} behind the last slot of a slab of cache '{}'",
            bytes(*behind),
            cache.name
        ),
        Meaning::Ahead(cache) => writeln!(
            out,
            "in pages that cache '{}' has taken for slabs to come: never handed out",
            cache.name
        ),
        Meaning::Large(start, length) => writeln!(
            out,
            "{} into a live large object of {} pages ({start:#x})",
            bytes(at - start),
            length / 4096
        ),
        Meaning::Huge(start, length) => writeln!(
            out,
            "{} into a live huge object with a mapping of {} ({start:#x})",
            bytes(at - start),
            units::size(*length)
        ),
        Meaning::Quarantined(start, length) => writeln!(
            out,
            "{} into a FREE object of {} in quarantine ({start:#x})",
            bytes(at - start),
            units::size(*length)
        ),
        Meaning::FreePage(page, true) => writeln!(
            out,
            "in a FREE page of uslub (number {page}) that may still hold old bytes"
        ),
        Meaning::FreePage(page, false) => {
            writeln!(
                out,
                "in a FREE page of uslub (number {page}) that holds no memory"
            )
        }
        Meaning::Torn => writeln!(
            out,
            "in a page of uslub that is being made or freed just now, or is damaged"
        ),
        Meaning::Reserved => writeln!(
            out,
            "in address space that uslub reserved and does not use yet"
        ),
        Meaning::Record(what) => writeln!(out, "in uslub's own records: {what}"),
        Meaning::NotOurs(map) => writeln!(out, "no memory of uslub: {}", place(map, at)),
        Meaning::Unmapped => writeln!(out, "in no mapping of the program"),
        Meaning::Kernel => writeln!(out, "no address of a program"),
    };
}

/// A place in a mapping that is not uslub's.
fn place(map: &Map, at: u64) -> String {
    let name = uslub_inspect::root::printable(map.name.as_bytes());
    let into = at - map.range.start;
    match name.as_str() {
        "" => format!("{} into an anonymous mapping", bytes(into)),
        "[stack]" => "the stack of the first thread".to_owned(),
        "[heap]" => "the C library's heap".to_owned(),
        kernel if kernel.starts_with('[') => format!("the mapping {kernel}"),
        file => format!("{file} + {:#x}", map.offset + into),
    }
}

/// A state in words.
pub fn state(state: State) -> String {
    let nth = |from_top: usize, len: usize| match from_top {
        0 => format!("the next to leave, of {len}"),
        n => format!("number {} from the top, of {len}", n + 1),
    };
    match state {
        State::Live => "live".to_owned(),
        State::InSheaf {
            place,
            from_top,
            len,
        } => {
            let place = match place {
                Place::Main(cpu) => format!("in the main sheaf of CPU slot {cpu}"),
                Place::Spare(cpu) => format!("in the spare sheaf of CPU slot {cpu}"),
                Place::Rcu(cpu) => format!("waiting for a grace period in CPU slot {cpu}"),
                Place::Barn(node) => format!("in a full sheaf of the barn of node {node}"),
            };
            format!("{place}, {}", nth(from_top, len))
        }
        State::Quarantined => "in quarantine: freed, and waits".to_owned(),
        State::Deferred => "freed where waiting is forbidden, not in its slab yet".to_owned(),
        State::OnFreelist(0) => "on the freelist of its slab, the first".to_owned(),
        State::OnFreelist(n) => format!("on the freelist of its slab, number {}", n + 1),
        State::Fresh => "never handed out since its slab was last empty".to_owned(),
    }
}

fn push_slot(out: &mut String, heap: &Heap<'_>, slot: &Slot) {
    let is_live = slot.state == State::Live;
    let kind = if is_live { "live object" } else { "FREE slot" };
    let into = match (slot.in_front, slot.offset) {
        (0, 0) => "the start of a".to_owned(),
        (0, n) => format!("{} into a", bytes(n)),
        (n, _) => format!("{} in front of a", bytes(n)),
    };
    let cache = &slot.cache;
    let _ = writeln!(
        out,
        "{into} {kind} of cache '{}' ({} bytes, {:#x})",
        cache.name,
        cache.object_bytes(),
        slot.at
    );
    if !is_live {
        let _ = writeln!(out, "  state     {}", state(slot.state));
    }
    let object = u64::from(cache.object_size);
    if slot.in_front > 0 || slot.offset >= u64::from(cache.object_bytes()) {
        let _ = writeln!(
            out,
            "  debugged  the object has {}; debugging keeps the rest of {} of its slot",
            bytes(cache.object_bytes().into()),
            bytes(cache.size.into())
        );
    } else if slot.offset >= object && object > 0 && object < u64::from(cache.size) {
        let _ = writeln!(
            out,
            "  slack     the object has {object} bytes; the rest of the slot is unused"
        );
    }
    let _ = writeln!(
        out,
        "  slab      page {:#x}, order {}, {} of {} slots in use; slot {}; started over {} {}",
        slot.page,
        cache.order,
        slot.inuse,
        cache.objects,
        slot.number,
        slot.epoch,
        units::plural(slot.epoch.into(), "time", "times"),
    );
    push_content(out, heap, slot);
    let neighbour = |side: Option<State>| side.map_or("none".to_owned(), state);
    let _ = writeln!(out, "  before    {}", neighbour(slot.neighbours[0]));
    let _ = writeln!(out, "  behind    {}", neighbour(slot.neighbours[1]));
}

/// The first words of a slot, and what they point to.
fn push_content(out: &mut String, heap: &Heap<'_>, slot: &Slot) {
    let mut content = vec![0; (slot.cache.object_bytes() as usize).min(32)];
    if heap.memory().read(slot.at, &mut content).is_err() {
        out.push_str("  content   not in this file\n");
        return;
    }
    for (i, word) in content.chunks_exact(8).enumerate() {
        let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
        let hex: Vec<_> = word.iter().map(|b| format!("{b:02x}")).collect();
        let points = match heap.explain(value) {
            Meaning::Slot(to) => format!("  → '{}', {}", to.cache.name, to.state.name()),
            Meaning::Large(..) => "  → a large object".to_owned(),
            Meaning::NotOurs(map) => format!("  → {}", place(&map, value)),
            _ => String::new(),
        };
        let title = if i == 0 { "content" } else { "" };
        let _ = writeln!(out, "  {title:<9} +{:<3} {}{points}", 8 * i, hex.join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal_or_decimal() {
        assert_eq!(parse("0x7f00AB").unwrap(), 0x7f_00ab);
        assert_eq!(parse("4096").unwrap(), 4096);
        for wrong in ["", "0x", "0x12345678123456789", "7f00", "-1", "0x+1", "1 2"] {
            let failure = parse(wrong).unwrap_err();
            assert!(failure.message.contains("no address"), "{wrong}");
        }
    }
}
