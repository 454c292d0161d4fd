//! `uslub map`: how full the slabs are, and how much memory sparse slabs hold.

use super::glyphs::{Glyphs, right, width};
use super::pins::{self, Pins};
use super::target::Target;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::units;
use crate::width::wrap;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use uslub_inspect::fullness::{Fullness, SPARSE_PERCENT};

/// Caches that are shown without `--all`.
const SHOWN: usize = 20;
/// Columns of a pipe or a file.
const NO_TERMINAL: usize = 100;
/// Narrowest and widest column of names.
const NAME: (usize, usize) = (12, 32);
/// Version of the JSON format.
const FORMAT: u32 = 1;

/// Options of `uslub map`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct MapOptions {
    /// The process, by its number; or a core file
    #[arg(value_name = "PID|FILE")]
    pub target: PathBuf,

    /// The cache, as `uslub info` names it; default: all caches
    #[arg(value_name = "CACHE")]
    pub cache: Option<String>,

    /// Say who holds the objects in sparse slabs; reads all of the target's writable memory
    #[arg(long, requires = "cache")]
    pub who: bool,

    /// Show every cache, also those without slabs
    #[arg(long)]
    pub all: bool,

    /// Use ASCII characters only
    #[arg(long)]
    pub ascii: bool,

    /// Write JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// The part of the help after the options.
const HELP: &str = "\
Excess is the memory of all slabs beyond those that the live objects would fill.
A slab is sparse if at most a quarter of its slots is live. Objects in sheaves are not live.
The process is not stopped, and runs no code for it.

Exit status: 0 done; 2 wrong usage, 125 it cannot be read, 126 it is not on uslub, 127 no such process.";

/// One cache with its allocator.
struct Part {
    face: String,
    /// Which one of several caches with its name it is.
    origin: String,
    fullness: Fullness,
}

impl Part {
    fn memory(&self) -> u64 {
        self.fullness.total() * self.fullness.slab_bytes()
    }

    fn live_bytes(&self) -> u64 {
        self.fullness.live() * u64::from(self.fullness.cache.size)
    }

    fn sparse(&self) -> u64 {
        self.fullness.at_most(SPARSE_PERCENT)
    }

    fn sparse_bytes(&self) -> u64 {
        self.sparse() * self.fullness.slab_bytes()
    }
}

/// `uslub map`.
pub fn run(options: &MapOptions) -> Result<Ending, Failure> {
    let target = Target::open(&options.target)?;
    let parts = parts(&target, options.cache.as_deref())?;
    let pins = match options.cache.as_deref().filter(|_| options.who) {
        Some(cache) => Some(pins::find(&target, cache)?),
        None => None,
    };
    let text = if options.json {
        json(&target, &parts, pins.as_ref().map(Pins::report))?
    } else {
        let terminal = console::Term::stdout().size_checked();
        let columns = terminal.map(|(_, columns)| usize::from(columns));
        let columns = columns.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok());
        let columns = columns.unwrap_or(NO_TERMINAL);
        let glyphs = Glyphs::choose(options.ascii);
        match options.cache {
            Some(_) => {
                let mut text = String::new();
                for part in &parts {
                    if parts.len() > 1 {
                        wrapped(&mut text, &format!("{}:", part.origin), columns);
                    }
                    text += &one(&part.fullness, columns, glyphs);
                }
                text + &who(options, pins.as_ref(), columns, glyphs)
            }
            None => all(&target.title(), &parts, options, columns, glyphs),
        }
    };
    super::print(&text)
}

/// Who pins the sparse slabs, or how to see that.
fn who(options: &MapOptions, pins: Option<&Pins>, columns: usize, glyphs: Glyphs) -> String {
    let cache = options.cache.as_deref().unwrap_or_default();
    let text = match pins {
        Some(pins) => pins.text(&options.target.to_string_lossy()),
        None => format!(
            "\nwho pins: uslub map {} {cache} --who\n",
            options.target.display()
        ),
    };
    let mut out = String::new();
    for text in text.lines() {
        line(&mut out, text, columns, glyphs);
    }
    out
}

/// The caches of all allocators, or those with a name; the largest excess first.
fn parts(target: &Target, name: Option<&str>) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    for heap in target.heaps()? {
        let root = heap.root();
        let part = |fullness: Fullness| Part {
            face: root.face.clone(),
            origin: super::list::origin(root, &fullness.cache),
            fullness,
        };
        parts.extend(heap.fullness(name).into_iter().map(part));
    }
    if let Some(name) = name.filter(|_| parts.is_empty()) {
        return Err(target.refuse(uslub_inspect::Error::NoCache(name.to_owned())));
    }
    parts.sort_by_key(|part| std::cmp::Reverse((part.fullness.excess_bytes(), part.memory())));
    Ok(parts)
}

/// A column of the table of caches.
type Cell = (&'static str, usize, fn(&Part, Glyphs) -> String);

/// The columns behind the name, in order of their use: narrow terminals drop the last ones.
const CELLS: [Cell; 7] = [
    ("use", 7, |part, _| {
        units::share(part.live_bytes(), part.memory()).unwrap_or_else(|| "-".to_owned())
    }),
    ("excess", 10, |part, _| {
        units::size(part.fullness.excess_bytes())
    }),
    ("memory", 10, |part, _| units::size(part.memory())),
    ("in sparse", 10, |part, _| units::size(part.sparse_bytes())),
    ("0 … 100 %", 11, |part, glyphs| {
        let tenths = part.fullness.tenths();
        let most = tenths.iter().max().copied().unwrap_or(0);
        // A part without slabs is blank; one slab shows.
        let bars = tenths.map(|n| match n {
            0 => " ".to_owned(),
            n => glyphs.bars(&[n], 0, most),
        });
        bars.concat()
    }),
    ("slabs", 9, |part, _| units::count(part.fullness.total())),
    ("by one", 9, |part, _| {
        units::count(part.fullness.pinned_by_one())
    }),
];

/// A line without blanks at its end, and cut to a width.
fn line(out: &mut String, text: &str, columns: usize, glyphs: Glyphs) {
    let text = text.trim_end();
    if width(text) <= columns {
        out.push_str(text);
    } else {
        out.push_str(glyphs.fit(text, columns).trim_end());
    }
    out.push('\n');
}

/// A sentence in lines of at most a width.
fn wrapped(out: &mut String, text: &str, columns: usize) {
    let words: Vec<_> = text.split_inclusive(' ').collect();
    out.push_str(&wrap(&words, "", 0, columns));
    out.push('\n');
}

/// All caches, a line each.
fn all(
    title: &str,
    parts: &[Part],
    options: &MapOptions,
    columns: usize,
    glyphs: Glyphs,
) -> String {
    let (mut out, every) = (String::new(), options.all);
    let sum = |figure: fn(&Part) -> u64| parts.iter().map(figure).sum::<u64>();
    let excess = sum(|part| part.fullness.excess_bytes());
    for text in [
        format!("{title}: {} of slabs", units::size(sum(Part::memory))),
        format!("live objects would fit into {} less", units::size(excess)),
        format!(
            "sparse slabs (at most {SPARSE_PERCENT} % live) hold {}",
            units::size(sum(Part::sparse_bytes))
        ),
    ] {
        wrapped(&mut out, &text, columns);
    }
    out.push('\n');
    let shown: Vec<_> = (parts.iter())
        .filter(|part| every || part.fullness.total() > 0)
        .collect();
    let limit = if every { shown.len() } else { SHOWN };
    let names = (shown.iter().take(limit)).map(|part| width(&part.fullness.cache.name));
    let widest = names.max().unwrap_or(0).clamp(NAME.0, NAME.1);
    let mut left = columns.saturating_sub(widest);
    let mut cells = Vec::new();
    for cell in CELLS {
        if left < cell.1 + 2 {
            break;
        }
        left -= cell.1 + 2;
        cells.push(cell);
    }
    let mut text = glyphs.fit("cache", widest);
    for (title, columns, _) in &cells {
        let title = match glyphs {
            Glyphs::Unicode => (*title).to_owned(),
            Glyphs::Ascii => title.replace('…', "-"),
        };
        text += &format!("  {}", right(&title, *columns));
    }
    line(&mut out, &text, columns, glyphs);
    for part in shown.iter().take(limit) {
        let mut text = glyphs.fit(&part.fullness.cache.name, widest);
        for (_, columns, cell) in &cells {
            text += &format!("  {}", right(&cell(part, glyphs), *columns));
        }
        line(&mut out, &text, columns, glyphs);
    }
    if shown.len() > limit {
        let more = format!("and {} more (--all)", shown.len() - limit);
        line(&mut out, &more, columns, glyphs);
    }
    if let Some(first) = shown.iter().find(|part| part.fullness.excess_bytes() > 0) {
        let name = &first.fullness.cache.name;
        out.push('\n');
        wrapped(
            &mut out,
            &format!("next: uslub map {} {name}", options.target.display()),
            columns,
        );
    }
    out
}

/// One cache: its slabs by fullness, in lines of at most `columns`.
pub fn one(full: &Fullness, columns: usize, glyphs: Glyphs) -> String {
    let mut out = String::new();
    let (cache, sparse) = (&full.cache, full.at_most(SPARSE_PERCENT));
    let slabs = |n: u64| format!("{} {}", units::count(n), units::plural(n, "slab", "slabs"));
    let bytes = |n: u64| units::size(n * full.slab_bytes());
    let live = units::share(full.live(), full.total() * u64::from(cache.objects));
    let live = live.unwrap_or_else(|| "none".to_owned());
    for text in [
        format!(
            "cache '{}': {} of {}, {} slots of {} bytes each",
            cache.name,
            slabs(full.total()),
            units::size(full.slab_bytes()),
            cache.objects,
            cache.size
        ),
        format!("live slots: {}, {live} of all", units::count(full.live())),
        format!(
            "they would fit in {}: {} less",
            slabs(full.needed()),
            units::size(full.excess_bytes())
        ),
        format!(
            "kept by one object: {}, {}",
            slabs(full.pinned_by_one()),
            bytes(full.pinned_by_one())
        ),
        format!(
            "sparse, at most {SPARSE_PERCENT} % live: {}, {}",
            slabs(sparse),
            bytes(sparse)
        ),
    ] {
        wrapped(&mut out, &text, columns);
    }
    out.push('\n');
    let head = format!("{:<9} {:>9} {:>10}", "live", "slabs", "memory");
    line(&mut out, &head, columns, glyphs);
    let tenths = full.tenths();
    let most = tenths.iter().max().copied().unwrap_or(0);
    for (i, &n) in tenths.iter().enumerate() {
        let title = match i {
            0 => "none".to_owned(),
            i => format!("to {:>3} %", 10 * i),
        };
        let bar = glyphs.bar(n, most, columns.saturating_sub(32).min(60));
        let text = format!("{title:<9} {:>9} {:>10}  {bar}", units::count(n), bytes(n));
        line(&mut out, &text, columns, glyphs);
    }
    out
}

#[derive(Serialize)]
struct Map {
    format: u32,
    pid: Option<i32>,
    program: String,
    sparse_percent: u64,
    caches: Vec<Cache>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pins: Option<pins::Report>,
}

#[derive(Serialize)]
struct Cache {
    face: String,
    index: usize,
    name: String,
    size: u32,
    slots_a_slab: u32,
    bytes_a_slab: u64,
    slabs: u64,
    live: u64,
    needed_slabs: u64,
    excess_bytes: u64,
    sparse_slabs: u64,
    sparse_bytes: u64,
    pinned_by_one: u64,
    slabs_by_live: Vec<u64>,
}

/// The caches that have slabs, as JSON.
fn json(target: &Target, parts: &[Part], pins: Option<pins::Report>) -> Result<String, Failure> {
    let (pid, program) = target.identity();
    let with_slabs = parts.iter().filter(|part| part.fullness.total() > 0);
    let map = Map {
        format: FORMAT,
        pid,
        program,
        sparse_percent: SPARSE_PERCENT,
        caches: with_slabs.map(cache).collect(),
        pins,
    };
    super::json::pretty(&map)
}

fn cache(part: &Part) -> Cache {
    let full = &part.fullness;
    Cache {
        face: part.face.clone(),
        index: full.cache.index,
        name: full.cache.name.clone(),
        size: full.cache.size,
        slots_a_slab: full.cache.objects,
        bytes_a_slab: full.slab_bytes(),
        slabs: full.total(),
        live: full.live(),
        needed_slabs: full.needed(),
        excess_bytes: full.excess_bytes(),
        sparse_slabs: part.sparse(),
        sparse_bytes: part.sparse_bytes(),
        pinned_by_one: full.pinned_by_one(),
        slabs_by_live: full.slabs.clone(),
    }
}
