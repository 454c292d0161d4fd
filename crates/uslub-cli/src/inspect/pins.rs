//! Who pins sparse slabs: the words that point to their last objects.
//!
//! A slab goes back to the system when its last object is freed. So the objects in slabs that are
//! nearly empty cost more than their own bytes. One search over the memory finds the words that
//! point to any of them. The words are grouped by what they are in: a cache and an offset, a symbol
//! of a program, a stack.

use super::names::Names;
use super::target::Target;
use crate::failure::Failure;
use crate::units;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, Instant};
use uslub_inspect::Heap;
use uslub_inspect::fullness::SPARSE_PERCENT;
use uslub_inspect::holders::{self, Place, Word};
use uslub_inspect::slots::State;

/// Objects that are searched for, at most; those in the emptiest slabs.
const OBJECTS_MAX: usize = 100_000;
/// Words that a search keeps, at most.
const WORDS_MAX: usize = 1_000_000;
/// Kinds of holders that are listed.
const KINDS_SHOWN: usize = 12;
/// Objects that are listed.
const EXAMPLES: usize = 5;

/// An object in a sparse slab.
struct Pin {
    range: Range<u64>,
    /// Live objects of the slab, and all slots.
    live: (u32, u32),
}

/// What a search found about the sparse slabs of a cache.
pub struct Pins {
    /// By address.
    pins: Vec<Pin>,
    /// Sparse slabs with a live object.
    slabs: u64,
    /// Live objects in sparse slabs that were not searched for.
    left_out: u64,
    /// The kinds of holders of each object.
    kinds: Vec<BTreeSet<String>>,
    bytes: u64,
    took: Duration,
}

/// Who holds the objects in sparse slabs of the caches with a name.
///
/// # Errors
///
/// If the target can no longer be read.
pub fn find(target: &Target, cache: &str) -> Result<Pins, Failure> {
    let heaps = target.heaps()?;
    let begin = Instant::now();
    let mut sparse: Vec<Vec<Pin>> = Vec::new();
    for heap in &heaps {
        sparse.extend(sparse_slabs(heap, cache));
    }
    let slabs = sparse.len() as u64;
    sparse.sort_by_key(|slab| slab[0].live.0);
    let mut pins: Vec<_> = sparse.into_iter().flatten().collect();
    let left_out = pins.len().saturating_sub(OBJECTS_MAX) as u64;
    pins.truncate(OBJECTS_MAX);
    pins.sort_by_key(|pin| pin.range.start);
    let ranges: Vec<_> = pins.iter().map(|pin| pin.range.clone()).collect();
    let found = holders::find_any(target.memory(), &heaps, &ranges, WORDS_MAX);
    let mut names = Names::of(target);
    let mut kinds = vec![BTreeSet::new(); pins.len()];
    for word in found.words.iter().filter(|word| word.place.holds()) {
        if let Some(place) = holders::object_of(&ranges, word.value) {
            kinds[place].insert(kind(word, &mut names));
        }
    }
    for register in &found.registers {
        if let Some(place) = holders::object_of(&ranges, register.value) {
            kinds[place].insert("a register".to_owned());
        }
    }
    Ok(Pins {
        pins,
        slabs,
        left_out,
        kinds,
        bytes: found.bytes,
        took: begin.elapsed(),
    })
}

/// The live objects of each sparse slab of a cache that has one.
fn sparse_slabs(heap: &Heap<'_>, name: &str) -> Vec<Vec<Pin>> {
    let (caches, _) = heap.caches();
    let mut all = Vec::new();
    for cache in caches.iter().filter(|cache| cache.name == name) {
        let (size, slots) = (u64::from(cache.object_bytes()), cache.objects);
        let (mut seen, mut live) = (0, Vec::new());
        heap.for_each_slot(cache, |at, state| {
            if state == State::Live {
                live.push(at);
            }
            seen += 1;
            if seen == slots {
                let n = live.len() as u32;
                let is_sparse = u64::from(n) * 100 <= u64::from(slots) * SPARSE_PERCENT;
                if n > 0 && is_sparse {
                    let pin = |&at: &u64| Pin {
                        range: at..at.saturating_add(size),
                        live: (n, slots),
                    };
                    all.push(live.iter().map(pin).collect());
                }
                seen = 0;
                live.clear();
            }
            true
        });
    }
    all
}

/// What a word is in, without the places of single objects.
fn kind(word: &Word, names: &mut Names<'_>) -> String {
    match &word.place {
        Place::Slot(cache, start, _) => format!("'{cache}' +{}", word.at - start),
        Place::Large(..) => "large objects".to_owned(),
        Place::Huge(..) => "huge objects".to_owned(),
        Place::NotOurs(map) | Place::Shared(map) => without_offset(&names.name(map, word.at)),
        Place::Record(what) => (*what).to_owned(),
        Place::FreePage => "free pages".to_owned(),
    }
}

/// A name without the offset behind it: the elements of an array are one holder.
fn without_offset(name: &str) -> String {
    match name.rsplit_once('+') {
        Some((symbol, offset)) if is_offset(offset.trim_start()) => symbol.trim_end().to_owned(),
        _ => name.to_owned(),
    }
}

fn is_offset(text: &str) -> bool {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Pins {
    /// The kinds of holders with the objects of each, the most objects first; then the objects that
    /// nobody holds.
    fn groups(&self) -> (Vec<(&str, u64)>, u64) {
        let mut groups: BTreeMap<&str, u64> = BTreeMap::new();
        for kind in self.kinds.iter().flatten() {
            *groups.entry(kind).or_default() += 1;
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|&(_, objects)| std::cmp::Reverse(objects));
        let alone = self.kinds.iter().filter(|kinds| kinds.is_empty()).count();
        (groups, alone as u64)
    }

    /// Objects of the emptiest slabs, with what holds each.
    fn examples(&self) -> Vec<(&Pin, &BTreeSet<String>)> {
        let mut all: Vec<_> = self.pins.iter().zip(&self.kinds).collect();
        all.sort_by_key(|(pin, _)| (pin.live.0, pin.range.start));
        all.truncate(EXAMPLES);
        all
    }

    /// For people; `word` names the target on a command line.
    pub fn text(&self, word: &str) -> String {
        let mut out = String::new();
        let objects = self.pins.len() as u64;
        let _ = writeln!(
            out,
            "\nwho pins: {} {} in {} sparse {} ({} searched in {:.0} ms)",
            units::count(objects),
            units::plural(objects, "object", "objects"),
            units::count(self.slabs),
            units::plural(self.slabs, "slab", "slabs"),
            units::size(self.bytes),
            self.took.as_secs_f64() * 1e3,
        );
        if objects == 0 {
            return out;
        }
        let _ = writeln!(out, "{:>11} {:>8}  held by", "objects", "share");
        let (groups, alone) = self.groups();
        let mut push = |objects_here: u64, by: &str| {
            let share = units::share(objects_here, objects).unwrap_or_default();
            let _ = writeln!(out, "{:>11} {share:>8}  {by}", units::count(objects_here));
        };
        for &(kind, n) in groups.iter().take(KINDS_SHOWN) {
            push(n, kind);
        }
        if groups.len() > KINDS_SHOWN {
            let _ = writeln!(out, "…{} kinds more", groups.len() - KINDS_SHOWN);
        }
        if alone > 0 {
            let text = "nobody: lost, or the pointer is hidden";
            let share = units::share(alone, objects).unwrap_or_default();
            let _ = writeln!(out, "{:>11} {share:>8}  {text}", units::count(alone));
        }
        if self.left_out > 0 {
            let _ = writeln!(
                out,
                "not searched for: {} objects in the fuller ones of these slabs",
                units::count(self.left_out)
            );
        }
        out.push_str("the emptiest slabs first:\n");
        for (pin, kinds) in self.examples() {
            let kinds: Vec<_> = kinds.iter().map(String::as_str).collect();
            let by = match kinds.is_empty() {
                true => "nobody".to_owned(),
                false => kinds.join(", "),
            };
            let (live, slots) = pin.live;
            let _ = writeln!(
                out,
                "  {:#x}  {live} of {slots} live  held by {by}",
                pin.range.start
            );
        }
        let _ = writeln!(
            out,
            "next: uslub holders {word} {:#x}",
            self.examples()[0].0.range.start
        );
        out
    }

    /// For JSON.
    pub fn report(&self) -> Report {
        let (groups, unheld_objects) = self.groups();
        let holder = |(by, objects): (&str, u64)| Holder {
            by: by.to_owned(),
            objects,
        };
        let example = |(pin, kinds): (&Pin, &BTreeSet<String>)| Example {
            address: format!("{:#x}", pin.range.start),
            live: pin.live.0,
            held_by: kinds.iter().cloned().collect(),
        };
        Report {
            slabs: self.slabs,
            objects: self.pins.len() as u64,
            left_out: self.left_out,
            holders: groups.into_iter().map(holder).collect(),
            unheld_objects,
            examples: self.examples().into_iter().map(example).collect(),
        }
    }
}

/// Who pins the sparse slabs of a cache, as JSON.
#[derive(Serialize)]
pub struct Report {
    slabs: u64,
    objects: u64,
    left_out: u64,
    holders: Vec<Holder>,
    unheld_objects: u64,
    examples: Vec<Example>,
}

#[derive(Serialize)]
struct Holder {
    by: String,
    objects: u64,
}

#[derive(Serialize)]
struct Example {
    address: String,
    live: u32,
    held_by: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_an_array_are_one_holder() {
        for (name, holder) in [
            ("server: table+128", "server: table"),
            ("server: table", "server: table"),
            ("server + 0x1f8", "server"),
            ("libstdc++.so.6: pool", "libstdc++.so.6: pool"),
            ("c++", "c++"),
            ("the first thread's stack", "the first thread's stack"),
        ] {
            assert_eq!(without_offset(name), holder);
        }
    }

    #[test]
    fn objects_count_once_for_each_kind_of_holder() {
        let pin = |n: u64, live| Pin {
            range: 100 * n..100 * n + 50,
            live: (live, 16),
        };
        let kinds = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let pins = Pins {
            pins: vec![pin(1, 3), pin(2, 1), pin(3, 2)],
            slabs: 3,
            left_out: 7,
            kinds: vec![kinds(&["a", "b"]), kinds(&["b"]), kinds(&[])],
            bytes: 1 << 20,
            took: Duration::from_millis(3),
        };
        assert_eq!(pins.groups(), (vec![("b", 2), ("a", 1)], 1));
        let text = pins.text("4711");
        for line in [
            "who pins: 3 objects in 3 sparse slabs (1.0 MiB searched in 3 ms)\n",
            "\n          2   66.6 %  b\n",
            "\n          1   33.3 %  nobody: lost, or the pointer is hidden\n",
            "\nnot searched for: 7 objects",
            "first:\n  0xc8  1 of 16 live  held by b\n  0x12c  2 of 16 live  held by nobody\n",
            "\nnext: uslub holders 4711 0xc8\n",
        ] {
            assert!(text.contains(line), "'{line}' is missing: {text}");
        }
    }
}
