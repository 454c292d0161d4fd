//! Names of addresses of code: function, file and line, from the ELF files that hold the code.
//!
//! | the file has | a frame is |
//! |---|---|
//! | DWARF lines, itself or below `/usr/lib/debug` | function, file and line; inlined calls too |
//! | symbols only | function and offset |
//! | neither | not named |
//!
//! `traces` calls [`Names::frames`] for each address of a report. A file is read once.

use addr2line::{Loader, demangle_auto};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Where detached debug information lies, by build id.
const DEBUG_FOLDER: &str = "/usr/lib/debug/.build-id";
/// Largest file that is read, in bytes.
const FILE_MAX_BYTES: u64 = 4 << 30;

/// One function of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The function; with an offset if the line is not known.
    pub function: String,
    /// File and line.
    pub line: Option<String>,
}

/// A function of a symbol table.
struct Symbol {
    start: u64,
    end: u64,
    name: String,
}

/// What is known of one ELF file.
struct Known {
    /// Offset in the file, length and address of each loaded part.
    parts: Vec<(u64, u64, u64)>,
    symbols: Vec<Symbol>,
    lines: Option<Loader>,
}

/// Names for addresses; keeps what it read.
#[derive(Default)]
pub struct Names {
    files: HashMap<PathBuf, Option<Known>>,
    /// The folder in which this process runs: paths below it are shown without it.
    here: PathBuf,
}

impl Names {
    /// Nothing read yet.
    pub fn new() -> Self {
        Names {
            files: HashMap::new(),
            here: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// The functions at a return address, the innermost first: the last one is the function of the
    /// address, the others are inlined in it. Empty if the address has no name.
    pub fn frames(&mut self, file: &Path, offset: u64) -> Vec<Frame> {
        if !self.files.contains_key(file) {
            self.files.insert(file.to_owned(), Known::read(file));
        }
        let Some(Some(known)) = self.files.get(file) else {
            return Vec::new();
        };
        // The call is in front of the address to which it returns.
        let Some(address) = known.address(offset.saturating_sub(1)) else {
            return Vec::new();
        };
        let mut frames = known.frames_with_lines(address, &self.here);
        if frames.last().is_none_or(|frame| frame.line.is_none()) {
            frames = known.symbol(address).into_iter().collect();
        }
        frames
    }
}

impl Known {
    fn read(path: &Path) -> Option<Known> {
        let data = read(path)?;
        let file = object::File::parse(&*data).ok()?;
        let parts = file.segments().map(|part| {
            let (offset, bytes) = part.file_range();
            (offset, bytes, part.address())
        });
        let detached = file.build_id().ok().flatten().and_then(debug_file);
        let source = match &detached {
            Some(detached) if file.section_by_name(".debug_info").is_none() => detached,
            _ => path,
        };
        let mut symbols = functions(&file);
        if source != path
            && let Some(data) = read(source)
            && let Ok(file) = object::File::parse(&*data)
        {
            symbols.extend(functions(&file));
        }
        symbols.sort_by_key(|symbol| symbol.start);
        Some(Known {
            parts: parts.collect(),
            symbols,
            lines: Loader::new(source).ok(),
        })
    }

    /// The address that the file gives to the byte at an offset.
    fn address(&self, offset: u64) -> Option<u64> {
        let part = self
            .parts
            .iter()
            .find(|(start, bytes, _)| (*start..start.saturating_add(*bytes)).contains(&offset));
        part.map(|(start, _, address)| offset - start + address)
    }

    fn frames_with_lines(&self, address: u64, here: &Path) -> Vec<Frame> {
        let found = self
            .lines
            .as_ref()
            .and_then(|l| l.find_frames(address).ok());
        let Some(mut found) = found else {
            return Vec::new();
        };
        let mut frames = Vec::new();
        while let Ok(Some(frame)) = found.next() {
            let function = frame.function.as_ref();
            let function = function.and_then(|name| name.demangle().ok().map(Cow::into_owned));
            let function = function.or_else(|| self.containing(address).map(|s| plain(&s.name)));
            let line = frame.location.and_then(|location| {
                let file = location.file.map(Path::new)?;
                let file = file.strip_prefix(here).unwrap_or(file).display();
                Some(format!("{file}:{}", location.line?))
            });
            frames.push(Frame {
                function: without_hash(&function.unwrap_or_else(|| "??".to_owned())).to_owned(),
                line,
            });
        }
        frames
    }

    fn containing(&self, address: u64) -> Option<&Symbol> {
        let behind = self.symbols.partition_point(|s| s.start <= address);
        let before = self.symbols[..behind].iter().rev().take(8);
        before.into_iter().find(|s| address < s.end)
    }

    fn symbol(&self, address: u64) -> Option<Frame> {
        let symbol = self.containing(address)?;
        let name = plain(&symbol.name);
        Some(Frame {
            function: format!("{}+{:#x}", without_hash(&name), address + 1 - symbol.start),
            line: None,
        })
    }
}

/// The bytes of a regular file; a device could block for ever.
fn read(path: &Path) -> Option<Vec<u8>> {
    let about = fs::metadata(path).ok()?;
    let fits = about.is_file() && about.len() <= FILE_MAX_BYTES;
    fits.then(|| fs::read(path).ok()).flatten()
}

fn debug_file(id: &[u8]) -> Option<PathBuf> {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (folder, rest) = hex.split_at_checked(2)?;
    let path = Path::new(DEBUG_FOLDER)
        .join(folder)
        .join(format!("{rest}.debug"));
    path.is_file().then_some(path)
}

/// The functions of both symbol tables of a file.
fn functions(file: &object::File) -> Vec<Symbol> {
    let all = file.symbols().chain(file.dynamic_symbols());
    let functions = all.filter(|s| s.is_definition() && s.kind() == SymbolKind::Text);
    let known = functions.filter_map(|symbol| {
        Some(Symbol {
            start: symbol.address(),
            end: symbol.address().checked_add(symbol.size())?,
            name: symbol.name().ok()?.to_owned(),
        })
    });
    known.collect()
}

fn plain(name: &str) -> String {
    demangle_auto(Cow::from(name), None).into_owned()
}

/// A name of Rust without the hash that the compiler puts behind it.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((rest, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            rest
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_of_this_program_has_a_name_and_a_line() {
        let path = fs::read_link("/proc/self/exe").unwrap();
        let known = Known::read(&path).unwrap();
        let named = |s: &&Symbol| s.name.contains("debug_file") && s.end > s.start + 16;
        let symbol = known.symbols.iter().find(named).unwrap();
        let part = known
            .parts
            .iter()
            .find(|(_, bytes, address)| (*address..address + bytes).contains(&symbol.start));
        let (start, _, address) = part.unwrap();
        let offset = symbol.start - address + start + 8;
        let frames = Names::new().frames(&path, offset);
        let last = frames.last().unwrap();
        assert!(last.function.contains("debug_file"), "{frames:?}");
        assert!(!last.function.contains("::h"), "{frames:?}");
        let line = last.line.as_deref().unwrap_or(&last.function);
        assert!(
            line.contains("names.rs:") || line.contains("+0x"),
            "{frames:?}"
        );
    }

    #[test]
    fn what_is_no_elf_file_names_nothing() {
        let mut names = Names::new();
        assert!(names.frames(Path::new("/dev/zero"), 64).is_empty());
        assert!(names.frames(Path::new("/etc/passwd"), 64).is_empty());
        assert!(names.frames(Path::new("/no/such/file"), 64).is_empty());
    }

    #[test]
    fn a_hash_of_the_compiler_is_dropped() {
        assert_eq!(without_hash("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(without_hash("a::hello"), "a::hello");
    }
}
