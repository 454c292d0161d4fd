//! The callers of this thread, for reports: return addresses that the stack holds.
//!
//! Each step from a function to its caller is the first of these that works:
//!
//! | step | where it works |
//! |---|---|
//! | by the tables of `unwind` | code of a compiler, with or without frame pointers |
//! | by the frame pointer | code without tables that keeps it |
//! | by a search | anywhere: the next word on the stack that points behind a call instruction |
//!
//! The search is the kernel's *guess* unwinder. Now and then it takes a word that an earlier call
//! left behind. A step takes no lock of the C library, calls none of its functions, and allocates
//! nothing. Functions of the library itself are left out.
//!
//! Executable memory is read from `/proc/self/maps`, at the first use, and again when an address
//! may lie in newer code. Before a page of the stack or code is read, the kernel is asked whether
//! it can be (`peek`).

use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32};

use uslub_core::platform::{Identity, PAGE_SIZE, Place, SYSTEM_PAGE_MAX};

use crate::arch::{self, FRAME_RECORD, ends_with_call};
use crate::peek::{is_readable, probe};
use crate::registers::Registers;
use crate::sys;
use crate::unwind::{Rules, Step, Tables};

/// Executable mappings that are known, at most.
const MAPS: usize = 256;
/// Words without a return address that end a search: a frame of 2 KiB.
const GAP_WORDS: usize = 256;
/// Functions of our own that a walk passes, at most.
const OWN_MAX: usize = 64;
/// Largest frame that a frame pointer may close, in bytes.
const FRAME_MAX_BYTES: usize = 1 << 20;
/// Words that are known to be return addresses, or not to be.
const KNOWN: usize = 2048;
/// Milliseconds between two looks at the maps.
const REFRESH_MS: u64 = 500;
/// As above, for an address that a table names as a caller: it is code that was loaded since.
const CALLER_REFRESH_MS: u64 = 10;
/// Rounds that a thread waits for the table of maps.
const ROUNDS: u32 = 10_000;

const NAME: usize = 32;

#[derive(Clone, Copy)]
struct Map {
    start: usize,
    end: usize,
    offset: usize,
    /// Where the file's first byte is mapped; 0 if it is not.
    image: usize,
    /// Read at the first step from the mapping's code.
    tables: Option<Tables>,
    has_tables_read: bool,
    name: [u8; NAME],
}

const NO_MAP: Map = Map {
    start: 0,
    end: 0,
    offset: 0,
    image: 0,
    tables: None,
    has_tables_read: false,
    name: [0; NAME],
};

/// Executable mappings by address, and the words that are known.
struct Table {
    maps: [Map; MAPS],
    len: usize,
    read_at: u64,
    /// The lowest address of the maps and the end of the highest: most words lie outside.
    bounds: (usize, usize),
    /// Words by hash: the word itself for a return address, its complement for none.
    words: [usize; KNOWN],
    rules: Rules,
}

struct Shared {
    /// Whether a thread uses the table.
    in_use: AtomicBool,
    /// In a mapping of its own, made by the first use; null before.
    table: UnsafeCell<*mut Table>,
}

// SAFETY: the table is used by the thread that set `in_use`.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    in_use: AtomicBool::new(false),
    table: UnsafeCell::new(null_mut()),
};

/// How often the maps were read.
static READS: AtomicU32 = AtomicU32::new(0);

/// The number of the maps that are known; another number says that code may have moved.
pub(crate) fn reads() -> u32 {
    // Relaxed: as above.
    READS.load(Relaxed)
}

/// Runs `work` with the table. `None` if there is no memory for it, or if another thread has it for
/// long: it may be interrupted by a signal handler, which is the caller.
fn with_table<T>(work: impl FnOnce(&mut Table) -> T) -> Option<T> {
    for _ in 0..ROUNDS {
        // Acquire: the last user's writes.
        if SHARED.in_use.swap(true, Acquire) {
            core::hint::spin_loop();
            continue;
        }
        // SAFETY: this thread set `in_use`.
        let table = unsafe { &mut *SHARED.table.get() };
        if table.is_null() {
            *table = new_table();
        }
        // SAFETY: as above; null or a table.
        let done = unsafe { table.as_mut() }.map(work);
        // Release: pairs with the next user's swap.
        SHARED.in_use.store(false, Release);
        return done;
    }
    None
}

/// Gives up the table in a child of a fork if a thread used it that does not exist here: it may
/// have been in the middle of a change.
pub(crate) fn is_child_of_fork() {
    // Relaxed, both: the child has one thread.
    if SHARED.in_use.load(Relaxed) {
        // SAFETY: the child has one thread.
        unsafe { *SHARED.table.get() = null_mut() };
        SHARED.in_use.store(false, Relaxed);
    }
}

/// An empty table; null if the system has no memory.
fn new_table() -> *mut Table {
    let bytes = size_of::<Table>().next_multiple_of(SYSTEM_PAGE_MAX);
    let Some(start) = sys::mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0) else {
        return null_mut();
    };
    let table = start as *mut Table;
    // Piece by piece: the stack may be short. The rest of fresh memory is zero, as it should be.
    // SAFETY: the mapping is ours and long enough.
    unsafe {
        for i in 0..MAPS {
            (&raw mut (*table).maps[i]).write(NO_MAP);
        }
        Rules::write_to(&raw mut (*table).rules);
    }
    table
}

impl Table {
    fn find(&self, address: usize) -> Option<&Map> {
        let maps = &self.maps[..self.len];
        let at = maps.partition_point(|map| map.end <= address);
        maps.get(at).filter(|map| map.start <= address)
    }

    /// Reads the maps again if that was not done for a while: the address may be in newer code.
    fn refresh(&mut self, now_ms: u64, every_ms: u64) -> bool {
        let due = self.read_at == 0 || now_ms >= self.read_at + every_ms;
        if due {
            self.read_at = now_ms.max(1);
            // Relaxed: a number that is only compared.
            READS.fetch_add(1, Relaxed);
            self.len = read_maps(&mut self.maps);
            self.words.fill(0);
            self.rules.clear();
            let maps = &self.maps[..self.len];
            self.bounds = match (maps.first(), maps.last()) {
                (Some(first), Some(last)) => (first.start, last.end),
                _ => (0, 0),
            };
        }
        due
    }

    /// The mapping of an address.
    fn map_of(&mut self, address: usize, now_ms: u64) -> Option<Map> {
        if self.find(address).is_none() {
            self.refresh(now_ms, REFRESH_MS);
        }
        self.find(address).copied()
    }

    /// Whether a word of a stack is a return address. Most words lie outside of all code.
    #[inline(always)]
    fn is_return(&mut self, word: usize) -> bool {
        (self.bounds.0..self.bounds.1).contains(&word) && self.is_behind_call(word)
    }

    #[inline(never)]
    fn is_behind_call(&mut self, word: usize) -> bool {
        if self.find(word).is_none() {
            return false;
        }
        let place = &mut self.words[(word ^ word >> 12) % KNOWN];
        if *place == word || *place == !word {
            return *place == word;
        }
        let found = probe(word - 8).is_some_and(ends_with_call);
        *place = if found { word } else { !word };
        found
    }

    /// Writes the return addresses above a function of ours; returns how many. `own` is the
    /// library itself, whose functions are left out.
    fn walk(
        &mut self,
        from: Registers,
        own: &Range<usize>,
        now_ms: u64,
        out: &mut [usize],
    ) -> usize {
        let (mut n, mut at) = (0, from);
        let mut stack = Stack::at(from.sp);
        for _ in 0..out.len() + OWN_MAX {
            let Some((next, is_code)) = self.step(at, &mut stack) else {
                break;
            };
            at = next;
            if own.contains(&at.pc) {
                continue;
            }
            let is_known =
                is_code || self.refresh(now_ms, CALLER_REFRESH_MS) && self.is_code(at.pc);
            if !is_known || n == out.len() {
                break;
            }
            out[n] = at.pc;
            n += 1;
        }
        n
    }

    /// The registers of the caller, and whether its code is known.
    fn step(&mut self, from: Registers, stack: &mut Stack) -> Option<(Registers, bool)> {
        // The call is in front of the address to which it returns.
        let rule = self.rules.known(from.pc - 1).unwrap_or_else(|| {
            let tables = self.tables_of(from.pc);
            self.rules.learn(from.pc - 1, tables)
        });
        match rule.apply(from, |at| stack.load(at)) {
            Step::End => return None,
            Step::Caller(next) if self.is_code(next.pc) => return Some((next, true)),
            // The caller may be newer code: nobody knows better than the table.
            Step::Caller(next) if is_readable(next.pc) => return Some((next, false)),
            Step::Caller(_) | Step::Unknown => {}
        }
        let next = self.step_by_frame_pointer(from, stack);
        Some((next.or_else(|| self.search(from, stack))?, true))
    }

    /// Whether an address lies in code that is known.
    fn is_code(&self, pc: usize) -> bool {
        self.rules.known(pc - 1).is_some() || self.find(pc).is_some()
    }

    fn tables_of(&mut self, pc: usize) -> Option<Tables> {
        let at = self.maps[..self.len].partition_point(|map| map.end <= pc);
        let map = self.maps[..self.len]
            .get_mut(at)
            .filter(|map| map.start <= pc)?;
        if !map.has_tables_read {
            map.has_tables_read = true;
            map.tables = (map.image != 0).then(|| Tables::of(map.image)).flatten();
        }
        map.tables
    }

    fn step_by_frame_pointer(&mut self, from: Registers, stack: &mut Stack) -> Option<Registers> {
        let fp = from.fp.wrapping_add_signed(FRAME_RECORD);
        let word = size_of::<usize>();
        if fp < from.sp || fp - from.sp > FRAME_MAX_BYTES || !fp.is_multiple_of(word) {
            return None;
        }
        let (next, pc) = (stack.load(fp)?, stack.load(fp + word)?);
        self.is_return(pc).then_some(Registers {
            pc,
            sp: fp + 2 * word,
            fp: next,
        })
    }

    /// The next word of the stack that is a return address.
    fn search(&mut self, from: Registers, stack: &mut Stack) -> Option<Registers> {
        let word = size_of::<usize>();
        let first = from.sp.next_multiple_of(word);
        for at in (0..GAP_WORDS).map(|i| first + i * word) {
            let pc = stack.load(at)?;
            if self.is_return(pc) {
                let sp = at + word;
                return Some(Registers { pc, sp, ..from });
            }
        }
        None
    }
}

/// The stack of this thread, as far as it is known to be readable.
struct Stack {
    /// Pages that can be read: the first, and the end of the last.
    readable: Range<usize>,
}

impl Stack {
    /// The page of the stack pointer.
    fn at(sp: usize) -> Self {
        let page = sp & !(PAGE_SIZE - 1);
        Self {
            readable: page..page + PAGE_SIZE,
        }
    }

    /// A word; `None` where nothing is mapped.
    fn load(&mut self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(size_of::<usize>()) {
            return None;
        }
        if !self.readable.contains(&at) {
            let page = at & !(PAGE_SIZE - 1);
            if !is_readable(at) {
                return None;
            }
            // Most pages follow the last one.
            let follows = page == self.readable.end;
            let first = if follows { self.readable.start } else { page };
            self.readable = first..page + PAGE_SIZE;
        }
        // SAFETY: an aligned word in a page that could be read.
        Some(unsafe { (at as *const usize).read_volatile() })
    }
}

/// Reads the executable mappings; returns how many.
fn read_maps(maps: &mut [Map; MAPS]) -> usize {
    let mut n = 0;
    let mut image = Image::default();
    each_line_of_maps(|line| {
        image.note(line);
        if let Some(map) = parse(line)
            && n < MAPS
        {
            maps[n] = Map {
                image: image.start_for(line),
                ..map
            };
            n += 1;
        }
    });
    n
}

/// The last mapping of a file's first byte.
#[derive(Default)]
struct Image {
    start: usize,
    file: Option<[u8; 40]>,
}

impl Image {
    /// Device and inode of the file of a line; `None` for memory of no file.
    fn file_of(line: &[u8]) -> Option<[u8; 40]> {
        let mut fields = line.split(|&b| b == b' ').skip(3);
        let (device, inode) = (fields.next()?, fields.next()?);
        let mut file = [0; 40];
        file.get_mut(..device.len())?.copy_from_slice(device);
        file.get_mut(16..16 + inode.len())?.copy_from_slice(inode);
        (inode != b"0").then_some(file)
    }

    fn note(&mut self, line: &[u8]) {
        let mut fields = line.split(|&b| b == b' ');
        let range = fields.next().unwrap_or_default();
        if fields.nth(1).is_some_and(|offset| hex(offset) == 0) {
            let start = range.split(|&b| b == b'-').next().unwrap_or_default();
            (self.start, self.file) = (hex(start), Self::file_of(line));
        }
    }

    /// Where the file of a line begins; 0 if that is not known.
    fn start_for(&self, line: &[u8]) -> usize {
        let is_same = self.file.is_some() && self.file == Self::file_of(line);
        if is_same { self.start } else { 0 }
    }
}

/// Calls `with` for each line of `/proc/self/maps`, without its end. A long path is cut.
pub(crate) fn each_line_of_maps(mut with: impl FnMut(&[u8])) {
    let Some(fd) = sys::open(b"/proc/self/maps\0", libc::O_RDONLY, 0) else {
        return;
    };
    let (mut line, mut len) = ([0u8; 512], 0);
    let mut chunk = [0u8; 512];
    while let Some(got) = sys::read(fd, &mut chunk).filter(|&got| got > 0) {
        for &byte in &chunk[..got] {
            if byte != b'\n' {
                if len < line.len() {
                    line[len] = byte;
                    len += 1;
                }
                continue;
            }
            with(&line[..len]);
            len = 0;
        }
    }
    sys::close(fd);
}

/// A line of the maps, if it is executable.
fn parse(line: &[u8]) -> Option<Map> {
    let mut fields = line.split(|&b| b == b' ').filter(|f| !f.is_empty());
    let range = fields.next()?;
    let rights = fields.next()?;
    let offset = hex(fields.next()?);
    let mut ends = range.split(|&b| b == b'-');
    let (start, end) = (hex(ends.next()?), hex(ends.next()?));
    if rights.get(2) != Some(&b'x') {
        return None;
    }
    let path = fields.nth(2).unwrap_or(b"anonymous");
    if path.starts_with(b"[") {
        // Of the kernel, which calls nothing here.
        return None;
    }
    let base = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    let mut name = [0; NAME];
    let n = base.len().min(NAME);
    name[..n].copy_from_slice(&base[..n]);
    Some(Map {
        start,
        end,
        offset,
        name,
        ..NO_MAP
    })
}

fn hex(text: &[u8]) -> usize {
    let digit = |&b: &u8| (b as char).to_digit(16).unwrap_or(0) as usize;
    text.iter().fold(0, |sum, b| sum << 4 | digit(b))
}

/// Whether an object is one of this project's libraries, whose own frames are skipped.
fn is_ours(map: &Map) -> bool {
    map.name.starts_with(b"libuslub")
}

/// Return addresses of this thread's callers, the nearest first; returns how many.
#[cold]
#[inline(never)]
pub(crate) fn callers(out: &mut [usize], now_ms: u64) -> usize {
    let here = callers as *const () as usize;
    let from = arch::here();
    let found = with_table(|table| {
        if table.find(here).is_none() {
            table.refresh(now_ms, REFRESH_MS);
        }
        let own = table.find(here).filter(|map| is_ours(map));
        let own = own.map_or(0..0, |map| map.start..map.end);
        let n = table.walk(from, &own, now_ms, out);
        // Nothing found: perhaps the program loaded its code since.
        if n == 0 && table.refresh(now_ms, REFRESH_MS) {
            return table.walk(from, &own, now_ms, out);
        }
        n
    });
    found.unwrap_or(0)
}

/// Return addresses above an instruction that this thread was at, the nearest first; returns how
/// many.
#[cold]
#[inline(never)]
pub(crate) fn callers_above(at: Registers, out: &mut [usize], now_ms: u64) -> usize {
    if !is_readable(at.sp.next_multiple_of(size_of::<usize>())) {
        return 0;
    }
    // A walk looks for the call in front of an address.
    let pc = at.pc.wrapping_add(1);
    let found = with_table(|table| {
        table.map_of(at.pc, now_ms);
        table.walk(Registers { pc, ..at }, &(0..0), now_ms, out)
    });
    found.unwrap_or(0)
}

/// The object of an address and the offset in its file.
pub(crate) fn place(address: usize, now_ms: u64) -> Place {
    match with_table(|table| table.map_of(address, now_ms)).flatten() {
        Some(map) => Place {
            address,
            object: map.name,
            offset: address - map.start + map.offset,
        },
        None => Place {
            address,
            object: [0; NAME],
            offset: 0,
        },
    }
}

/// The process.
pub(crate) fn identity() -> Identity {
    let mut comm = [0u8; 16];
    let get = libc::PR_GET_NAME as usize;
    // SAFETY: the kernel writes up to 16 bytes.
    unsafe {
        sys::call(
            libc::SYS_prctl,
            [get, comm.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    comm[15] = 0;
    Identity {
        pid: sys::getpid(),
        comm,
    }
}

/// The number of this thread.
pub(crate) fn tid() -> u32 {
    // SAFETY: takes no arguments.
    unsafe { sys::call(libc::SYS_gettid, [0; 6]) as u32 }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[inline(never)]
    fn inner(out: &mut [usize; 16]) -> usize {
        std::hint::black_box(callers(std::hint::black_box(out), 1))
    }

    #[test]
    fn the_stack_holds_the_callers() {
        let mut out = [0; 16];
        let n = inner(&mut out);
        assert!(n >= 2, "{n}");
        let start = inner as *const () as usize;
        assert!(out[..n].iter().any(|at| (start..start + 256).contains(at)));
        let shown = std::format!("{}", place(out[0], 1));
        assert!(shown.contains("+0x"), "{shown}");
        assert!(probe(8).is_none() && probe(start).is_some());
    }

    #[test]
    fn a_line_of_the_maps_is_read() {
        let line = b"7f00-8f00 r-xp 00001000 08:01 42       /usr/lib/libc.so.6";
        let map = parse(line).unwrap();
        assert_eq!((map.start, map.end, map.offset), (0x7f00, 0x8f00, 0x1000));
        assert!(map.name.starts_with(b"libc.so.6\0"));
        assert!(parse(b"7f00-8f00 rw-p 00001000 08:01 42 /x").is_none());
        assert!(!identity().comm().is_empty() && tid() > 0);
    }
}
