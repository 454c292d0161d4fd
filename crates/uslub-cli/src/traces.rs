//! Reports about debugged caches: read from the files that processes append to, named, and printed
//! to standard error while the program runs.
//!
//! | line of a file | meaning |
//! |---|---|
//! | `@maps` | what was known of the process's code is out of date |
//! | `@map` and a line of `/proc/PID/maps` | where a file's code lies |
//! | `… object+0xoffset [0xaddress] …` | an address: its function, file and line replace it |
//! | other | printed as it is |
//!
//! A thread of its own looks every [`TICK`]. `run` starts it before the program and ends it after
//! the program's end.

use crate::names::{Frame, Names};
use nix::sys::signal::{SigSet, SigmaskHow};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at the files.
const TICK: Duration = Duration::from_millis(50);
/// Bytes read from a file at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes of a process's name for a file, at most: the library cuts it.
const NAME_BYTES: usize = 32;

/// Where the code of a file lies.
#[derive(Debug, PartialEq, Eq)]
struct Map {
    start: u64,
    end: u64,
    offset: u64,
    path: PathBuf,
}

impl Map {
    /// A line of `/proc/PID/maps`.
    fn parse(line: &str) -> Option<Map> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let offset = fields.nth(1)?;
        Some(Map {
            start: number(start)?,
            end: number(end)?,
            offset: number(offset)?,
            path: PathBuf::from(fields.nth(2)?.trim_start()),
        })
    }
}

/// The file of one process.
struct Source {
    file: File,
    /// The start of a line whose end is not written yet.
    begun: Vec<u8>,
    maps: Vec<Map>,
}

/// Reads the files of a folder.
struct Reader {
    folder: PathBuf,
    sources: BTreeMap<PathBuf, Source>,
    names: Names,
}

impl Reader {
    fn new(folder: &Path) -> Self {
        Reader {
            folder: folder.to_owned(),
            sources: BTreeMap::new(),
            names: Names::new(),
        }
    }

    /// What was appended since the last call, named.
    fn news(&mut self) -> String {
        let mut text = String::new();
        for entry in self.folder.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            let is_trace = path.extension().is_some_and(|e| e == "trace");
            if is_trace
                && !self.sources.contains_key(&path)
                && entry.file_type().is_ok_and(|kind| kind.is_file())
                && let Ok(file) = File::open(&path)
            {
                let (begun, maps) = (Vec::new(), Vec::new());
                self.sources.insert(path, Source { file, begun, maps });
            }
        }
        for source in self.sources.values_mut() {
            while source.read().is_ok_and(|bytes| bytes > 0) {
                while let Some(line) = source.line() {
                    source.name(&line, &mut self.names, &mut text);
                }
            }
        }
        text
    }
}

impl Source {
    fn read(&mut self) -> io::Result<usize> {
        let mut part = Read::by_ref(&mut self.file).take(CHUNK_BYTES);
        part.read_to_end(&mut self.begun)
    }

    /// Takes a line out.
    fn line(&mut self) -> Option<String> {
        let end = self.begun.iter().position(|&b| b == b'\n')?;
        let line: Vec<u8> = self.begun.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// Adds a line, with names, to `text`.
    fn name(&mut self, line: &str, names: &mut Names, text: &mut String) {
        if line == "@maps" {
            self.maps.clear();
        } else if let Some(map) = line.strip_prefix("@map ") {
            self.maps.extend(Map::parse(map));
        } else {
            let named = self.named(line, names);
            let lines = named.unwrap_or_else(|| vec![line.to_owned()]);
            for line in lines {
                text.push_str(&line.replace(uslub_inspect::root::steers, "?"));
                text.push('\n');
            }
        }
    }

    /// The lines in place of a line with an address; `None` if it has none that can be named.
    fn named(&self, line: &str, names: &mut Names) -> Option<Vec<String>> {
        let (before, behind) = line.rsplit_once(" [0x")?;
        let (address, tail) = behind.split_once(']')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        let map = self
            .maps
            .iter()
            .find(|map| (map.start..map.end).contains(&address))?;
        let offset = address - map.start + map.offset;
        let object = map.path.file_name()?.to_string_lossy();
        let place = format!("{}+{offset:#x}", cut(&object));
        let head = before.strip_suffix(&place)?;
        let frames = names.frames(&map.path, offset);
        (!frames.is_empty()).then(|| lines(head, &frames, &place, tail))
    }
}

/// A name as the library writes it.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// The lines for the functions at one address. A line with more than the address has one function
/// only; a line of a stack has the inlined functions in front.
fn lines(head: &str, frames: &[Frame], place: &str, tail: &str) -> Vec<String> {
    let shown = |frame: &Frame| match &frame.line {
        Some(line) => format!("{} at {line}", frame.function),
        None => frame.function.clone(),
    };
    let Some((last, inlined)) = frames.split_last() else {
        return Vec::new();
    };
    if !head.trim().is_empty() {
        return vec![format!("{head}{}{tail}", shown(&frames[0]))];
    }
    let inlined = inlined
        .iter()
        .map(|f| format!("{head}{} (inlined)", shown(f)));
    let own = format!("{head}{} [{place}]{tail}", shown(last));
    inlined.chain([own]).collect()
}

/// All that processes wrote to a folder, with names.
pub fn read(folder: &Path, names: &mut Names) -> String {
    let mut reader = Reader::new(folder);
    std::mem::swap(&mut reader.names, names);
    let text = reader.news();
    std::mem::swap(&mut reader.names, names);
    text
}

/// Whether a process wrote this text to a folder.
pub fn contain(folder: &Path, text: &str) -> bool {
    let mut files = folder.read_dir().into_iter().flatten().flatten();
    files.any(|file| {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

/// The thread that prints reports.
pub struct Traces {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Traces {
    /// Starts to print what appears in a folder.
    ///
    /// # Errors
    ///
    /// If the system gives no thread.
    pub fn start(folder: &Path) -> io::Result<Self> {
        let mut reader = Reader::new(folder);
        let (end, ended) = channel();
        // Signals are for the main thread: the new thread inherits that all are blocked.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let thread = std::thread::Builder::new().name("traces".to_owned());
        let thread = thread.spawn(move || {
            loop {
                let is_last = ended.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout);
                let _ = anstream::stderr().write_all(reader.news().as_bytes());
                if is_last {
                    return;
                }
            }
        });
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        Ok(Traces {
            end,
            thread: thread?,
        })
    }

    /// Prints the rest.
    pub fn finish(self) {
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, line: Option<&str>) -> Frame {
        Frame {
            function: function.to_owned(),
            line: line.map(str::to_owned),
        }
    }

    #[test]
    fn a_line_of_the_maps_is_read_with_blanks_in_its_path() {
        let map = Map::parse("7f00-8f00 r-xp 00001000 fe:00 42     /a b/libc.so.6").unwrap();
        let path = PathBuf::from("/a b/libc.so.6");
        let (start, end, offset) = (0x7f00, 0x8f00, 0x1000);
        assert_eq!(
            map,
            Map {
                start,
                end,
                offset,
                path
            }
        );
        assert!(Map::parse("7f00 r-xp").is_none());
    }

    #[test]
    fn inlined_functions_come_first_in_a_stack_and_alone_elsewhere() {
        let frames = [frame("inner", Some("a.c:3")), frame("outer", Some("a.c:9"))];
        assert_eq!(
            lines(" ", &frames, "a+0x10", ""),
            [" inner at a.c:3 (inlined)", " outer at a.c:9 [a+0x10]"]
        );
        assert_eq!(
            lines("Freed in ", &frames, "a+0x10", " age=1"),
            ["Freed in inner at a.c:3 age=1"]
        );
        let bare = [frame("f+0x7", None)];
        assert_eq!(lines(" ", &bare, "a+0x10", ""), [" f+0x7 [a+0x10]"]);
    }

    #[test]
    fn lines_arrive_whole_and_without_control_characters() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("7.trace")).unwrap();
        let mut reader = Reader::new(folder.path());
        file.write_all(b"@maps\n@map 10-20 r-xp 0 fe:00 1 /no/such\nBUG a\x1b[0m\n such+0x5")
            .unwrap();
        assert_eq!(reader.news(), "BUG a?[0m\n");
        file.write_all(b" [0x15]\n").unwrap();
        assert_eq!(reader.news(), " such+0x5 [0x15]\n");
        assert_eq!(reader.news(), "");
    }
}
