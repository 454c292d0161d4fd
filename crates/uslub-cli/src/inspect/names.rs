//! Names for addresses that are not uslub's: `server: connections+64`, a thread's stack.
//!
//! A program's or library's symbols come from its file, as the process sees it. Its `.bss` has no
//! file behind it: the program headers say how far it reaches. A thread's stack pointer comes from
//! `/proc/PID/task/TID/syscall`, while the thread waits in a system call. A core file has the stack
//! pointers of all threads.

use super::target::Target;
use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, SymbolKind};
use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use uslub_inspect::memory::{Map, Register, map_of};
use uslub_inspect::root::printable;
use uslub_inspect::{CoreFile, Memory};

/// Most threads whose stacks are named.
const THREADS_MAX: usize = 1024;
/// Most symbols of a file that are kept.
const SYMBOLS_MAX: usize = 1 << 20;
/// Bytes below the stack pointer that a function may use.
const RED_ZONE: u64 = 128;

/// The data symbols of one file in memory.
struct Module {
    /// Addresses of its writable segments.
    data: Vec<Range<u64>>,
    /// Address, bytes and name of its data symbols, by address.
    symbols: Vec<(u64, u64, String)>,
}

/// What is known of a process's mappings.
pub struct Names<'t> {
    target: &'t Target,
    modules: HashMap<String, Option<Module>>,
    /// Stack pointer, number and name of threads, by stack pointer.
    threads: Vec<(u64, i32, String)>,
}

impl<'t> Names<'t> {
    /// The names of a target.
    pub fn of(target: &'t Target) -> Self {
        let threads = match target {
            Target::Process(process) => threads(process.pid()),
            Target::Core(core, _) => threads_of_core(core),
        };
        Self {
            target,
            modules: HashMap::new(),
            threads,
        }
    }

    /// What an address in a mapping is.
    pub fn name(&mut self, map: &Map, at: u64) -> String {
        let short = |name: &str| {
            let file = name.rsplit('/').next().unwrap_or(name);
            printable(file.as_bytes())
        };
        if map.name == "[stack]" {
            return self.stack(map, at);
        }
        if map.name == "[heap]" {
            return "the C library's heap".to_owned();
        }
        if let Some(file) = self.file_of(map) {
            if let Some(symbol) = self.symbol(&file, at) {
                return format!("{}: {symbol}", short(&file));
            }
            if map.name == file {
                return format!(
                    "{} + {:#x}",
                    short(&file),
                    map.offset + at - map.range.start
                );
            }
            if self.in_data(&file, at) {
                return format!("{}: .bss", short(&file));
            }
        }
        if let Some(thread) = self.thread_of(map, at) {
            return thread;
        }
        match map.name.as_str() {
            "" => "an anonymous mapping".to_owned(),
            name => format!("the mapping {}", printable(name.as_bytes())),
        }
    }

    fn stack(&self, map: &Map, at: u64) -> String {
        let mut inside = self.threads.iter().filter(|t| map.range.contains(&t.0));
        match inside.next() {
            Some(&(sp, ..)) if at < sp.saturating_sub(RED_ZONE) => {
                "the first thread's stack, below the stack pointer: left over from calls that returned"
                    .to_owned()
            }
            _ => "the first thread's stack".to_owned(),
        }
    }

    /// The thread whose stack pointer is nearest below an address of an anonymous mapping.
    fn thread_of(&self, map: &Map, at: u64) -> Option<String> {
        let mut below = (self.threads.iter())
            .filter(|(sp, ..)| map.range.contains(sp) && sp.saturating_sub(RED_ZONE) <= at);
        let (_, tid, name) = below.next_back()?;
        map.name.is_empty().then(|| match name.as_str() {
            "" => format!("the stack of thread {tid}"),
            name => format!("the stack of thread {tid} ({name})"),
        })
    }

    /// The file of a mapping, or of the mappings that it directly follows.
    fn file_of(&self, map: &Map) -> Option<String> {
        let (mut map, maps) = (map, self.target.memory().maps());
        for _ in 0..4 {
            if map.name.starts_with('/') {
                return Some(map.name.clone());
            }
            map = map_of(maps, map.range.start.checked_sub(1)?)?;
        }
        None
    }

    fn module(&mut self, file: &str) -> Option<&Module> {
        if !self.modules.contains_key(file) {
            let module = self.load(file);
            self.modules.insert(file.to_owned(), module);
        }
        self.modules.get(file)?.as_ref()
    }

    fn symbol(&mut self, file: &str, at: u64) -> Option<String> {
        let symbols = &self.module(file)?.symbols;
        let behind = symbols.partition_point(|symbol| symbol.0 <= at);
        let (start, bytes, name) = symbols.get(behind.checked_sub(1)?)?;
        let into = at - start;
        (into < *bytes).then(|| match into {
            0 => name.clone(),
            n => format!("{name}+{n}"),
        })
    }

    fn in_data(&mut self, file: &str, at: u64) -> bool {
        let module = self.module(file);
        module.is_some_and(|module| module.data.iter().any(|data| data.contains(&at)))
    }

    fn load(&self, file: &str) -> Option<Module> {
        let maps = self.target.memory().maps();
        let first = maps.iter().find(|map| map.name == file)?;
        let path = match self.target {
            Target::Process(process) => format!("/proc/{}/root{file}", process.pid()),
            Target::Core(..) => file.to_owned(),
        };
        let cache = ReadCache::new(File::open(path).ok()?);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
        let endian = elf.endian();
        let headers = elf.elf_program_headers();
        let loads = || (headers.iter()).filter(|h| h.p_type(endian) == object::elf::PT_LOAD);
        let lowest = loads().find(|h| h.p_offset(endian) & !0xfff == first.offset)?;
        let bias = (first.range.start).wrapping_sub(lowest.p_vaddr(endian) & !0xfff);
        let writable =
            loads().filter(|h| h.p_flags(endian) & object::elf::PF_W == object::elf::PF_W);
        let data = writable.map(|h| {
            let start = bias.wrapping_add(h.p_vaddr(endian));
            start..start.saturating_add(h.p_memsz(endian))
        });
        let data = data.collect();
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let symbols =
            symbols.filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.size() > 0);
        let symbols = symbols.take(SYMBOLS_MAX).filter_map(|symbol| {
            let at = bias.wrapping_add(symbol.address());
            Some((at, symbol.size(), printable(symbol.name_bytes().ok()?)))
        });
        let mut symbols: Vec<_> = symbols.collect();
        symbols.sort();
        symbols.dedup_by_key(|symbol| symbol.0);
        Some(Module { data, symbols })
    }
}

/// The threads of a core file, with their stack pointers.
fn threads_of_core(core: &CoreFile) -> Vec<(u64, i32, String)> {
    let registers = core.registers().into_iter();
    let stack_pointers = registers.filter(|register| matches!(register.name, "rsp" | "sp"));
    let thread = |register: Register| (register.value, register.thread, String::new());
    let mut threads: Vec<_> = stack_pointers.map(thread).collect();
    threads.sort();
    threads
}

/// The threads that wait in a system call, with their stack pointers.
fn threads(pid: i32) -> Vec<(u64, i32, String)> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let thread = |entry: fs::DirEntry| {
        // "number six-arguments stack-pointer program-counter", or "running".
        let call = fs::read_to_string(entry.path().join("syscall")).ok()?;
        let sp = call.split_whitespace().rev().nth(1)?.strip_prefix("0x")?;
        let sp = u64::from_str_radix(sp, 16).ok()?;
        let name = fs::read(entry.path().join("comm")).unwrap_or_default();
        let tid = entry.file_name().to_str()?.parse().ok()?;
        Some((sp, tid, printable(name.trim_ascii_end())))
    };
    let mut threads: Vec<_> = (folder.flatten().take(THREADS_MAX))
        .filter_map(thread)
        .collect();
    threads.sort();
    threads
}
