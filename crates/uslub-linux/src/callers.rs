//! The callers of this thread, for reports: return addresses that the stack holds.
//!
//! The search reads the stack upwards, word by word, and keeps each word that points behind a call
//! instruction in executable memory: the kernel's *guess* unwinder. It needs no frame pointer and
//! no table, takes no lock of the C library, and allocates nothing. Now and then it keeps a word
//! that an earlier call left behind. Words of the library itself are skipped.
//!
//! Executable memory is read from `/proc/self/maps`, at the first use, and again when a word may
//! point to newer code. Addresses are read by `process_vm_readv` first, which fails where nothing
//! is mapped.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use uslub_core::platform::{Identity, PAGE_SIZE, Place};

use crate::sys;

/// Executable mappings that are known, at most.
const MAPS: usize = 256;
/// Pages of a stack that are searched.
const STACK_PAGES: usize = 2;
/// Words without a return address that end the search, and words without one of ours that end the
/// search for our own frames: a frame of 2 KiB.
const GAP_WORDS: usize = 256;
/// Words that are known to be return addresses, or not to be.
const KNOWN: usize = 2048;
/// Milliseconds between two looks at the maps.
const REFRESH_MS: u64 = 500;
/// Rounds that a thread waits for the table of maps.
const ROUNDS: u32 = 10_000;

const NAME: usize = 32;

#[derive(Clone, Copy)]
struct Map {
    start: usize,
    end: usize,
    offset: usize,
    name: [u8; NAME],
}

const NO_MAP: Map = Map {
    start: 0,
    end: 0,
    offset: 0,
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
}

struct Shared {
    /// The process whose thread uses the table; 0 for none. A child of a fork does not have that
    /// thread.
    owner: AtomicU32,
    table: UnsafeCell<Table>,
}

// SAFETY: the table is used by the thread that set `owner`.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    owner: AtomicU32::new(0),
    table: UnsafeCell::new(Table {
        maps: [NO_MAP; MAPS],
        len: 0,
        read_at: 0,
        bounds: (0, 0),
        words: [0; KNOWN],
    }),
};

/// How often the maps were read.
static READS: AtomicU32 = AtomicU32::new(0);

/// The number of the maps that are known; another number says that code may have moved.
pub(crate) fn reads() -> u32 {
    // Relaxed: as above.
    READS.load(Relaxed)
}

/// Runs `work` with the table. `None` if another thread has it for long: it may be interrupted by
/// a signal handler, which is the caller.
fn with_table<T>(work: impl FnOnce(&mut Table) -> T) -> Option<T> {
    let me = sys::getpid();
    for _ in 0..ROUNDS {
        // Acquire: the last user's writes. Relaxed on failure: only compared.
        match SHARED.owner.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => {}
            Err(other) if other != me => {
                // The parent's: its thread does not exist here. Relaxed: the child has one thread.
                let _ = SHARED.owner.compare_exchange(other, 0, Relaxed, Relaxed);
                continue;
            }
            Err(_) => {
                core::hint::spin_loop();
                continue;
            }
        }
        // SAFETY: this thread set `owner`.
        let done = work(unsafe { &mut *SHARED.table.get() });
        // Release: pairs with the next user's exchange.
        SHARED.owner.store(0, Release);
        return Some(done);
    }
    None
}

impl Table {
    fn find(&self, address: usize) -> Option<&Map> {
        let maps = &self.maps[..self.len];
        let at = maps.partition_point(|map| map.end <= address);
        maps.get(at).filter(|map| map.start <= address)
    }

    /// Reads the maps again if that was not done for a while: the address may be in newer code.
    fn refresh(&mut self, now_ms: u64) -> bool {
        let due = self.read_at == 0 || now_ms >= self.read_at + REFRESH_MS;
        if due {
            self.read_at = now_ms.max(1);
            // Relaxed: a number that is only compared.
            READS.fetch_add(1, Relaxed);
            self.len = read_maps(&mut self.maps);
            self.words.fill(0);
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
            self.refresh(now_ms);
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

    /// Writes the return addresses that the stack holds from `first` on; returns how many. `own` is
    /// the library itself, whose frames are skipped.
    fn search(&mut self, first: usize, own: Option<Map>, out: &mut [usize]) -> usize {
        let page = first & !(PAGE_SIZE - 1);
        let buffer = out.as_ptr_range();
        let buffer = buffer.start as usize..buffer.end as usize;
        let (mut n, mut last_own, mut at) = (0, first, first);
        let mut last = first;
        let is_near = |at: usize, other: usize| at - other < GAP_WORDS * size_of::<usize>();
        while at < page + STACK_PAGES * PAGE_SIZE
            && is_near(at, last)
            && (n < out.len() || is_near(at, last_own))
        {
            if at.is_multiple_of(PAGE_SIZE) && probe(at).is_none() {
                break;
            }
            if buffer.contains(&at) {
                // It lies on the stack, with what was found.
                at = buffer.end;
                continue;
            }
            // SAFETY: in the page of a local value, or in a page that could be read.
            let word = unsafe { (at as *const usize).read_volatile() };
            at += size_of::<usize>();
            if own.is_some_and(|own| (own.start..own.end).contains(&word)) {
                if is_near(at, last_own) && self.is_return(word) {
                    // What was found below one of our frames is left over from earlier calls.
                    (last_own, last, n) = (at, at, 0);
                }
            } else if n < out.len() && self.is_return(word) {
                out[n] = word;
                (last, n) = (at, n + 1);
            }
        }
        n
    }
}

/// Reads the executable mappings; returns how many.
fn read_maps(maps: &mut [Map; MAPS]) -> usize {
    let mut n = 0;
    each_line_of_maps(|line| {
        if let Some(map) = parse(line)
            && n < MAPS
        {
            maps[n] = map;
            n += 1;
        }
    });
    n
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
    })
}

fn hex(text: &[u8]) -> usize {
    let digit = |&b: &u8| (b as char).to_digit(16).unwrap_or(0) as usize;
    text.iter().fold(0, |sum, b| sum << 4 | digit(b))
}

/// Reads eight bytes of this process; `None` where nothing readable is mapped.
fn probe(address: usize) -> Option<[u8; 8]> {
    let mut bytes = [0u8; 8];
    let local = [bytes.as_mut_ptr() as usize, 8];
    let remote = [address, 8];
    // SAFETY: the kernel checks the remote range, and writes the local one.
    let n = unsafe {
        sys::call(
            libc::SYS_process_vm_readv,
            [
                sys::getpid() as usize,
                local.as_ptr() as usize,
                1,
                remote.as_ptr() as usize,
                1,
                0,
            ],
        )
    };
    (n == 8).then_some(bytes)
}

/// Whether the eight bytes in front of an address end with a call instruction.
#[cfg(target_arch = "x86_64")]
fn ends_with_call(b: [u8; 8]) -> bool {
    let mode = |at: usize, of: &[u8]| b[at] == 0xff && of.contains(&(b[at + 1] & !7));
    b[3] == 0xe8
        || mode(6, &[0xd0, 0x10])
        || mode(5, &[0x50])
        || (b[5] == 0xff && b[6] == 0x14)
        || (b[4] == 0xff && b[5] == 0x54)
        || (b[2] == 0xff && (b[3] == 0x15 || b[3] & !7 == 0x90))
        || (b[1] == 0xff && b[2] == 0x94)
}

/// As above: a branch with link.
#[cfg(not(target_arch = "x86_64"))]
fn ends_with_call(b: [u8; 8]) -> bool {
    let word = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    word & 0xfc00_0000 == 0x9400_0000 || word & 0xffff_fc1f == 0xd63f_0000
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
    let local = 0usize;
    let first = core::ptr::from_ref(&local) as usize & !7;
    let found = with_table(|table| {
        let own = table.map_of(here, now_ms).filter(is_ours);
        let n = table.search(first, own, out);
        // Nothing found: perhaps the program loaded its code since.
        if n == 0 && table.refresh(now_ms) {
            return table.search(first, own, out);
        }
        n
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
