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

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use core::cell::UnsafeCell;
use uslub_core::platform::{Identity, PAGE_SIZE, Place};

use crate::sys;

/// Executable mappings that are known, at most.
const MAPS: usize = 256;
/// Pages of a stack that are searched.
const STACK_PAGES: usize = 3;
/// Words without one of ours that end the search for our own frames.
const GAP_WORDS: usize = 160;
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

struct Maps {
    taken: AtomicBool,
    read_at: AtomicU64,
    table: UnsafeCell<([Map; MAPS], usize)>,
}

// SAFETY: the table is used by the thread that set `taken`.
unsafe impl Sync for Maps {}

static TABLE: Maps = Maps {
    taken: AtomicBool::new(false),
    read_at: AtomicU64::new(0),
    table: UnsafeCell::new((
        [Map {
            start: 0,
            end: 0,
            offset: 0,
            name: [0; NAME],
        }; MAPS],
        0,
    )),
};

/// Words by hash: the word itself for a return address, its complement for none.
static WORDS: [AtomicUsize; KNOWN] = [const { AtomicUsize::new(0) }; KNOWN];

/// The mapping of an address, by the table as it is; `None` too if the table is taken for long.
fn map_of(address: usize, now_ms: u64) -> Option<Map> {
    let mut rounds = 0;
    // Acquire: the last user's writes.
    while TABLE.taken.swap(true, Acquire) {
        rounds += 1;
        if rounds == ROUNDS {
            return None;
        }
        core::hint::spin_loop();
    }
    // SAFETY: this thread set `taken`.
    let (maps, len) = unsafe { &mut *TABLE.table.get() };
    let find = |maps: &[Map]| {
        maps.iter()
            .find(|m| (m.start..m.end).contains(&address))
            .copied()
    };
    let mut found = find(&maps[..*len]);
    // Relaxed, both: under `taken`.
    let old = TABLE.read_at.load(Relaxed);
    if found.is_none() && (old == 0 || now_ms >= old + REFRESH_MS) {
        TABLE.read_at.store(now_ms.max(1), Relaxed);
        *len = read_maps(maps);
        found = find(&maps[..*len]);
    }
    // Release: pairs with the next user's swap.
    TABLE.taken.store(false, Release);
    found
}

/// Reads the executable mappings; returns how many.
fn read_maps(maps: &mut [Map; MAPS]) -> usize {
    let Some(fd) = sys::open(b"/proc/self/maps\0", libc::O_RDONLY, 0) else {
        return 0;
    };
    let (mut line, mut len, mut n) = ([0u8; 320], 0, 0);
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
            if let Some(map) = parse(&line[..len])
                && n < MAPS
            {
                maps[n] = map;
                n += 1;
            }
            len = 0;
        }
    }
    sys::close(fd);
    n
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

/// Whether a word of a stack is a return address.
fn is_return(word: usize, now_ms: u64) -> bool {
    if !(PAGE_SIZE..1 << 47).contains(&word) {
        return false;
    }
    let place = &WORDS[(word ^ word >> 12) % KNOWN];
    // Relaxed: a cache of single words.
    let known = place.load(Relaxed);
    if known == word || known == !word {
        return known == word;
    }
    let found = map_of(word, now_ms).is_some() && probe(word - 8).is_some_and(ends_with_call);
    if found || map_of(word, now_ms).is_none() {
        // Relaxed: as above.
        place.store(if found { word } else { !word }, Relaxed);
    }
    found
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
    let own = map_of(here, now_ms).filter(is_ours);
    let first = core::ptr::from_ref(&own) as usize & !7;
    let page = first & !(PAGE_SIZE - 1);
    let (mut n, mut last_own) = (0, first);
    let mut at = first;
    while at < page + STACK_PAGES * PAGE_SIZE && n < out.len() {
        if at.is_multiple_of(PAGE_SIZE) && probe(at).is_none() {
            break;
        }
        // SAFETY: in the page of a local value, or in a page that could be read.
        let word = unsafe { (at as *const usize).read_volatile() };
        at += size_of::<usize>();
        if let Some(own) = own
            && (own.start..own.end).contains(&word)
        {
            if at - last_own < GAP_WORDS * size_of::<usize>() && is_return(word, now_ms) {
                // What was found below one of our frames is left over from earlier calls.
                (last_own, n) = (at, 0);
            }
            continue;
        }
        if is_return(word, now_ms) {
            out[n] = word;
            n += 1;
        }
    }
    n
}

/// The object of an address and the offset in its file.
pub(crate) fn place(address: usize, now_ms: u64) -> Place {
    match map_of(address, now_ms) {
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
