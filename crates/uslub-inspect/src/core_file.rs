//! The memory in a core file.
//!
//! The segments of the file are the memory; a note (`NT_FILE`) names the files that were mapped.
//! The kernel leaves untouched and unchanged pages of files out.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::LittleEndian as LE;
use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::error::{Error, Result};
use crate::memory::{Fault, Map, Memory, Register};

/// Most bytes of notes that are read.
const NOTES_MAX: u64 = 64 << 20;
/// Most files that are named.
const FILES_MAX: usize = 1 << 16;

/// A part of the memory.
#[derive(Clone, Debug)]
struct Segment {
    /// Addresses whose bytes the file has.
    range: Range<u64>,
    /// Where in the file.
    at: u64,
}

/// A core file.
#[derive(Debug)]
pub struct CoreFile {
    file: File,
    segments: Vec<Segment>,
    maps: Vec<Map>,
    /// Whether the file ends before its last segment does.
    is_truncated: bool,
    /// The signal that ended the process, and the address of the fault, if there was one.
    fault: Option<(i32, u64)>,
    /// Why the signal came.
    cause: Cause,
    /// The registers of all threads; first those of the thread that ended the process.
    registers: Vec<Register>,
    /// The program's name and number.
    program: Option<(String, i32)>,
}

/// Why the signal of a core file came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// An access, at the fault address.
    #[default]
    Access,
    /// An access at an address that no program can have (not canonical). The processor does not say
    /// which one.
    Impossible,
    /// A process sent the signal, for example the program itself at the end of its handler for
    /// SIGSEGV. The fault address means nothing.
    Sent,
}

/// The kernel's `si_code` of a fault without an address.
const SI_KERNEL: i32 = 0x80;
/// Most registers that are kept: those of some thousand threads.
const REGISTERS_MAX: usize = 1 << 16;
/// Where the number of the thread stands in an `NT_PRSTATUS` note.
const THREAD_AT: usize = 32;
/// Where the registers begin in an `NT_PRSTATUS` note.
const REGISTERS_AT: usize = 112;
/// The registers of a program that may hold addresses, with their places in the note.
#[cfg(target_arch = "x86_64")]
const REGISTERS: &[(&str, usize)] = &[
    ("rip", 16),
    ("rdi", 14),
    ("rsi", 13),
    ("rdx", 12),
    ("rcx", 11),
    ("r8", 9),
    ("r9", 8),
    ("rax", 10),
    ("rbx", 5),
    ("rbp", 4),
    ("r10", 7),
    ("r11", 6),
    ("r12", 3),
    ("r13", 2),
    ("r14", 1),
    ("r15", 0),
    ("rsp", 19),
];
#[cfg(target_arch = "aarch64")]
const REGISTERS: &[(&str, usize)] = &[
    ("pc", 32),
    ("x0", 0),
    ("x1", 1),
    ("x2", 2),
    ("x3", 3),
    ("x4", 4),
    ("x5", 5),
    ("x6", 6),
    ("x7", 7),
    ("x8", 8),
    ("x9", 9),
    ("x10", 10),
    ("x11", 11),
    ("x12", 12),
    ("x13", 13),
    ("x14", 14),
    ("x15", 15),
    ("x16", 16),
    ("x17", 17),
    ("x18", 18),
    ("x19", 19),
    ("x20", 20),
    ("x21", 21),
    ("x22", 22),
    ("x23", 23),
    ("x24", 24),
    ("x25", 25),
    ("x26", 26),
    ("x27", 27),
    ("x28", 28),
    ("x29", 29),
    ("x30", 30),
    ("sp", 31),
];
#[cfg(target_arch = "riscv64")]
const REGISTERS: &[(&str, usize)] = &[
    ("pc", 0),
    ("ra", 1),
    ("sp", 2),
    ("gp", 3),
    ("tp", 4),
    ("t0", 5),
    ("t1", 6),
    ("t2", 7),
    ("s0", 8),
    ("s1", 9),
    ("a0", 10),
    ("a1", 11),
    ("a2", 12),
    ("a3", 13),
    ("a4", 14),
    ("a5", 15),
    ("a6", 16),
    ("a7", 17),
    ("s2", 18),
    ("s3", 19),
    ("s4", 20),
    ("s5", 21),
    ("s6", 22),
    ("s7", 23),
    ("s8", 24),
    ("s9", 25),
    ("s10", 26),
    ("s11", 27),
    ("t3", 28),
    ("t4", 29),
    ("t5", 30),
    ("t6", 31),
];

impl CoreFile {
    /// Opens a core file.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is no core file of this kind of machine.
    pub fn open(path: &Path) -> Result<Self> {
        let name = crate::root::printable(path.as_os_str().as_encoded_bytes());
        let no_core = |what: &str| Error::Core {
            file: name.clone(),
            what: what.to_owned(),
        };
        let file = File::open(path).map_err(|error| no_core(&error.to_string()))?;
        let length = file.metadata().map_or(0, |meta| meta.len());
        let cache = ReadCache::new(&file);
        let header = elf::FileHeader64::<LE>::parse(&cache)
            .map_err(|_| no_core("it is no ELF file of 64 bits"))?;
        if !header.is_supported() || !header.is_little_endian() {
            return Err(no_core("it is of another kind of machine"));
        }
        if header.e_type(LE) != elf::ET_CORE {
            return Err(no_core("it is a program or a library"));
        }
        let machine = header.e_machine(LE);
        let ours = if cfg!(target_arch = "aarch64") {
            elf::EM_AARCH64
        } else if cfg!(target_arch = "riscv64") {
            elf::EM_RISCV
        } else {
            elf::EM_X86_64
        };
        if machine != ours {
            return Err(no_core("it is of another kind of machine"));
        }
        let headers = header
            .program_headers(LE, &cache)
            .map_err(|_| no_core("its program headers are damaged"))?;
        let mut core = Self {
            segments: Vec::new(),
            maps: Vec::new(),
            is_truncated: false,
            fault: None,
            cause: Cause::Access,
            registers: Vec::new(),
            program: None,
            file: file
                .try_clone()
                .map_err(|error| no_core(&error.to_string()))?,
        };
        let mut files = Vec::new();
        for segment in headers {
            match segment.p_type(LE) {
                elf::PT_LOAD => core.add(segment, length),
                elf::PT_NOTE => core.read_notes(segment, &mut files),
                _ => {}
            }
        }
        core.segments.sort_by_key(|segment| segment.range.start);
        core.maps.sort_by_key(|map| map.range.start);
        core.maps.dedup_by(|b, a| b.range.start < a.range.end);
        for map in &mut core.maps {
            let of = files
                .iter()
                .find(|f: &&Map| f.range.contains(&map.range.start));
            if let Some(of) = of {
                map.name.clone_from(&of.name);
                map.offset = of.offset.saturating_add(map.range.start - of.range.start);
            }
        }
        Ok(core)
    }

    fn add(&mut self, segment: &elf::ProgramHeader64<LE>, length: u64) {
        let (start, at) = (segment.p_vaddr(LE), segment.p_offset(LE));
        let bytes = segment.p_filesz(LE).min(segment.p_memsz(LE));
        let there = bytes.min(length.saturating_sub(at));
        self.is_truncated |= there < bytes;
        let (Some(end), Some(end_there)) = (
            start.checked_add(segment.p_memsz(LE)),
            start.checked_add(there),
        ) else {
            return;
        };
        if start < end {
            self.maps.push(Map {
                range: start..end,
                writable: segment.p_flags(LE) & elf::PF_W == elf::PF_W,
                offset: 0,
                name: String::new(),
            });
        }
        if start < end_there {
            self.segments.push(Segment {
                range: start..end_there,
                at,
            });
        }
    }

    fn read_notes(&mut self, segment: &elf::ProgramHeader64<LE>, files: &mut Vec<Map>) {
        let mut bytes = vec![0; segment.p_filesz(LE).min(NOTES_MAX) as usize];
        if self
            .file
            .read_exact_at(&mut bytes, segment.p_offset(LE))
            .is_err()
        {
            return;
        }
        let mut rest = &bytes[..];
        while let (Some(name), Some(length), Some(kind)) =
            (u32_at(rest, 0), u32_at(rest, 4), u32_at(rest, 8))
        {
            let begin = 12 + (name as usize).next_multiple_of(4);
            let Some(end) = begin.checked_add(length as usize) else {
                return;
            };
            let Some(note) = rest.get(begin..end) else {
                return;
            };
            match elf::NoteType(kind) {
                elf::NT_FILE => *files = mapped_files(note).unwrap_or_default(),
                elf::NT_SIGINFO => {
                    if let (Some(signal), Some(address)) = (u32_at(note, 0), u64_at(note, 16)) {
                        self.fault = Some((signal as i32, address));
                    }
                    self.cause = match u32_at(note, 8).map(|code| code as i32) {
                        Some(SI_KERNEL) => Cause::Impossible,
                        // The kernel's own codes are positive.
                        Some(1..) | None => Cause::Access,
                        Some(_) => Cause::Sent,
                    };
                }
                elf::NT_PRSTATUS if self.registers.len() < REGISTERS_MAX => {
                    self.registers.extend(registers(note));
                }
                elf::NT_PRPSINFO => {
                    if let (Some(pid), Some(name)) = (u32_at(note, 24), note.get(40..56)) {
                        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
                        self.program = Some((crate::root::printable(&name[..end]), pid as i32));
                    }
                }
                _ => {}
            }
            rest = rest.get(end.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }

    /// Whether the file ends early, as under `ulimit -c`: parts of the memory are missing.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// The signal that ended the process, and its fault address where the signal has one.
    pub fn fault(&self) -> Option<(i32, u64)> {
        self.fault
    }

    /// Why the signal came.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// The registers of the thread that ended the process: first the program counter, then those
    /// that hold arguments. The kernel writes this thread first.
    pub fn registers_at_end(&self) -> &[Register] {
        let mut threads = self.registers.chunk_by(|a, b| a.thread == b.thread);
        threads.next().unwrap_or(&[])
    }

    /// The program's name and number.
    pub fn program(&self) -> Option<(&str, i32)> {
        self.program
            .as_ref()
            .map(|(name, pid)| (name.as_str(), *pid))
    }

    fn segment_at(&self, at: u64) -> Option<&Segment> {
        let first = self.segments.partition_point(|s| s.range.end <= at);
        self.segments.get(first).filter(|s| s.range.contains(&at))
    }
}

/// The registers of the thread that an `NT_PRSTATUS` note is about.
fn registers(note: &[u8]) -> impl Iterator<Item = Register> {
    let thread = u32_at(note, THREAD_AT).unwrap_or(0) as i32;
    REGISTERS.iter().filter_map(move |&(name, place)| {
        let value = u64_at(note, REGISTERS_AT + 8 * place)?;
        Some(Register {
            thread,
            name,
            value,
        })
    })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The files of an `NT_FILE` note: a count, the page size, three words a file, then the names.
fn mapped_files(note: &[u8]) -> Option<Vec<Map>> {
    let count = u64_at(note, 0)? as usize;
    let page = u64_at(note, 8)?;
    if count > FILES_MAX {
        return None;
    }
    let names = note.get(16 + 24 * count..)?.split(|&b| b == 0);
    let files = names.take(count).enumerate().map(|(i, name)| {
        let word = |k: usize| u64_at(note, 16 + 24 * i + 8 * k);
        Some(Map {
            range: word(0)?..word(1)?,
            writable: false,
            offset: word(2)?.wrapping_mul(page),
            name: crate::root::printable(name),
        })
    });
    files.collect()
}

impl Memory for CoreFile {
    fn read(&self, at: u64, to: &mut [u8]) -> std::result::Result<(), Fault> {
        let mut done = 0;
        while done < to.len() {
            let at = at.checked_add(done as u64).ok_or(Fault)?;
            let segment = self.segment_at(at).ok_or(Fault)?;
            let n = (segment.range.end - at).min((to.len() - done) as u64) as usize;
            let from = segment
                .at
                .checked_add(at - segment.range.start)
                .ok_or(Fault)?;
            let part = &mut to[done..done + n];
            self.file.read_exact_at(part, from).map_err(|_| Fault)?;
            done += n;
        }
        Ok(())
    }

    fn maps(&self) -> &[Map] {
        &self.maps
    }

    fn registers(&self) -> Vec<Register> {
        self.registers.clone()
    }

    fn touched(&self, range: Range<u64>) -> Option<Range<u64>> {
        let first = self
            .segments
            .partition_point(|s| s.range.end <= range.start);
        let segment = self.segments.get(first)?;
        let start = segment.range.start.max(range.start);
        let end = segment.range.end.min(range.end);
        (start < end).then_some(start..end)
    }
}
