//! `uslub holders`: who points to an object.

use super::names::Names;
use super::target::Target;
use super::{STATUS_HELP, explain};
use crate::failure::Failure;
use crate::numbers::whole_from;
use crate::units;
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;
use uslub_inspect::Heap;
use uslub_inspect::explain::Meaning;
use uslub_inspect::holders::{self, Found, Place, Word};
use uslub_inspect::memory::{Map, Register};

/// Words that a search keeps, at most.
const WORDS_MAX: usize = 1_000_000;

/// Options of `uslub holders`.
#[derive(Args, Debug)]
#[command(after_help = STATUS_HELP)]
pub struct HoldersOptions {
    /// The process, by its number; or a core file, in which registers of threads count too
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,

    /// An address of the object, hexadecimal with 0x, or decimal
    #[arg(value_name = "ADDRESS")]
    pub address: String,

    /// Search for the address itself, not for pointers to any byte of the object
    #[arg(long)]
    pub exact: bool,

    /// Words to list, at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole_from(0_usize))]
    pub limit: usize,

    /// List words in free slots and in uslub's own records too
    #[arg(long)]
    pub all: bool,

    /// Write JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// What to search for.
struct Object {
    range: Range<u64>,
    /// Whether an object is there that is not free.
    is_live: bool,
}

/// The output for an address of a target.
pub fn text(target: &Target, options: &HoldersOptions) -> Result<String, Failure> {
    let at = explain::parse(&options.address)?;
    let heaps = target.heaps()?;
    let mut object = object(&heaps, at);
    if options.exact {
        object.range = at..at.saturating_add(1);
    }
    let begin = Instant::now();
    let found = holders::find(target.memory(), &heaps, object.range.clone(), WORDS_MAX);
    let took = begin.elapsed();
    let (holding, old): (Vec<_>, Vec<_>) = found.words.iter().partition(|w| w.place.holds());
    let all: Vec<_> = match options.all {
        true => found.words.iter().collect(),
        false => holding.clone(),
    };
    let mut names = Names::of(target);
    if options.json {
        return json(&object, &found, &all, options.limit, &mut names);
    }
    let mut out = explain::line(&heaps, at);
    let n = (holding.len() + found.registers.len()) as u64;
    let _ = writeln!(
        out,
        "held by {}{} {} ({} searched in {:.0} ms)",
        if found.is_cut { "more than " } else { "" },
        units::count(n),
        units::plural(n, "word", "words"),
        units::size(found.bytes),
        took.as_secs_f64() * 1e3
    );
    for register in &found.registers {
        push_register(&mut out, register, &object);
    }
    for word in all.iter().take(options.limit) {
        push(&mut out, word, &object, &mut names);
    }
    if all.len() > options.limit {
        let more = (all.len() - options.limit) as u64;
        let _ = writeln!(out, "  …{} more (--limit)", units::count(more));
    }
    push_limits(&mut out, &object, &found, &old, options);
    Ok(out)
}

/// The object at an address.
fn object(heaps: &[Heap<'_>], at: u64) -> Object {
    let found = heaps.iter().find_map(|heap| match heap.explain(at) {
        Meaning::Slot(slot) => Some(Object {
            range: slot.at..slot.at + u64::from(slot.cache.object_bytes()),
            is_live: slot.state == uslub_inspect::slots::State::Live,
        }),
        Meaning::Large(start, bytes) | Meaning::Huge(start, bytes) => Some(Object {
            range: start..start.saturating_add(bytes),
            is_live: true,
        }),
        Meaning::Quarantined(start, bytes) => Some(Object {
            range: start..start.saturating_add(bytes),
            is_live: false,
        }),
        _ => None,
    });
    found.unwrap_or(Object {
        range: at..at.saturating_add(1),
        is_live: false,
    })
}

/// Where a word is, for people.
fn place(place: &Place, at: u64, names: &mut Names<'_>) -> String {
    let mut in_map = |map: &Map| names.name(map, at);
    match place {
        Place::Slot(cache, start, state) => {
            let kind = match *state {
                uslub_inspect::slots::State::Live => "live",
                _ => "FREE slot",
            };
            format!("'{cache}' {start:#x} +{}, {kind}", at - start)
        }
        Place::Large(start, _) => format!("large object {start:#x} +{}", at - start),
        Place::Huge(start, _) => format!("huge object {start:#x} +{}", at - start),
        Place::NotOurs(map) => in_map(map),
        Place::Shared(map) => format!(
            "{}, beside uslub's own records: may be an old sheaf",
            in_map(map)
        ),
        Place::Record(what) => format!("uslub's own records: {what}"),
        Place::FreePage => "pages of uslub without objects".to_owned(),
    }
}

fn push(out: &mut String, word: &Word, object: &Object, names: &mut Names<'_>) {
    let into = word.value - object.range.start;
    let place = place(&word.place, word.at, names);
    let _ = writeln!(out, "  {:#014x} → +{into:<6} in {place}", word.at);
}

fn push_register(out: &mut String, register: &Register, object: &Object) {
    let Register {
        thread,
        name,
        value,
    } = register;
    let into = value - object.range.start;
    let _ = writeln!(
        out,
        "  {:<14} → +{into:<6} in register {name} of thread {thread}",
        "register"
    );
}

/// What was not counted, and what was not searched.
fn push_limits(
    out: &mut String,
    object: &Object,
    found: &Found,
    old: &[&Word],
    options: &HoldersOptions,
) {
    let records = |word: &&&Word| matches!(word.place, Place::Record(_));
    let in_records = old.iter().filter(records).count() as u64;
    let in_free = old.len() as u64 - in_records;
    if in_free + in_records > 0 {
        let _ = writeln!(
            out,
            "not counted: {} in free memory, {} in uslub's own records{}",
            units::count(in_free),
            units::count(in_records),
            if options.all {
                ""
            } else {
                " (--all lists them)"
            }
        );
    }
    if found.is_cut {
        let _ = writeln!(
            out,
            "the search ended early: there are more than {} words",
            units::count(WORDS_MAX as u64)
        );
    }
    if found.unread > 0 {
        let _ = writeln!(out, "{} could not be read", units::size(found.unread));
    }
    let is_held = found.words.len() > old.len() || !found.registers.is_empty();
    let registers = match found.has_registers {
        true => ["", ""],
        false => [" or in a register", "registers; "],
    };
    if object.is_live && !is_held && !found.is_cut {
        let _ = writeln!(
            out,
            "nobody points to it: lost, unless a pointer is hidden{}",
            registers[0]
        );
    }
    let _ = writeln!(
        out,
        "not searched: {}words that are not at a multiple of 8; compressed, tagged or combined \
         pointers",
        registers[1]
    );
}

#[derive(Serialize)]
struct Report {
    format: u32,
    object: String,
    bytes: u64,
    live: bool,
    searched_bytes: u64,
    unread_bytes: u64,
    complete: bool,
    words: Vec<Line>,
    /// `null` where registers cannot be searched.
    registers: Option<Vec<RegisterLine>>,
}

#[derive(Serialize)]
struct RegisterLine {
    thread: i32,
    register: &'static str,
    value: String,
}

#[derive(Serialize)]
struct Line {
    at: String,
    value: String,
    holds: bool,
    place: String,
}

fn json(
    object: &Object,
    found: &Found,
    words: &[&Word],
    limit: usize,
    names: &mut Names<'_>,
) -> Result<String, Failure> {
    let line = |word: &&Word| Line {
        at: format!("{:#x}", word.at),
        value: format!("{:#x}", word.value),
        holds: word.place.holds(),
        place: place(&word.place, word.at, names),
    };
    let register = |register: &Register| RegisterLine {
        thread: register.thread,
        register: register.name,
        value: format!("{:#x}", register.value),
    };
    super::json_text(&Report {
        format: 1,
        object: format!("{:#x}", object.range.start),
        bytes: object.range.end - object.range.start,
        live: object.is_live,
        searched_bytes: found.bytes,
        unread_bytes: found.unread,
        complete: !found.is_cut && words.len() <= limit,
        words: words.iter().take(limit).map(line).collect(),
        registers: found
            .has_registers
            .then(|| found.registers.iter().map(register).collect()),
    })
}
