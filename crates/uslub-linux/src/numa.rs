//! Memory nodes, as the kernel lists them under `/sys/devices/system/node`.
//!
//! [`Nodes::probe`] reads the lists once, before a second thread uses the platform; then any thread
//! may ask. With one node it reads one short file only, and nothing is bound.

use core::ffi::c_long;
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize};

use uslub_core::memory::MAX_NODES;

use crate::sys;

/// Memory policy: from the node if it has free memory, otherwise from another node.
const MPOL_PREFERRED: usize = 1;

/// What is known about the nodes.
pub struct Nodes {
    nr: AtomicUsize,
    /// Bit n is set when node n has memory.
    memory: AtomicU64,
    distances: [[AtomicU8; MAX_NODES]; MAX_NODES],
}

impl Nodes {
    /// One node, until [`probe`](Self::probe) finds more.
    pub const fn new() -> Self {
        Self {
            nr: AtomicUsize::new(1),
            memory: AtomicU64::new(1),
            distances: [const { [const { AtomicU8::new(0) }; MAX_NODES] }; MAX_NODES],
        }
    }

    /// Examines the machine. If a node's number is [`MAX_NODES`] or above, all nodes count as one.
    pub fn probe(&self) {
        let mut text = [0u8; 4096];
        let mut set = |path: &[u8]| read(path, &mut text).and_then(set_in);
        let Some(online) = set(b"/sys/devices/system/node/online\0") else {
            return;
        };
        let nr = (u64::BITS - online.leading_zeros()) as usize;
        if nr < 2 {
            return;
        }
        let Some(memory) = set(b"/sys/devices/system/node/has_memory\0") else {
            return;
        };
        for from in 0..nr {
            self.probe_distances(from, online, &mut text);
        }
        // Relaxed: the store of `nr` publishes it.
        self.memory.store(memory, Relaxed);
        // Release: publishes all the rest.
        self.nr.store(nr, Release);
    }

    fn probe_distances(&self, from: usize, online: u64, text: &mut [u8]) {
        let mut path = *b"/sys/devices/system/node/node00/distance\0";
        let (tens, ones) = (from / 10, from % 10);
        let digits = b"/sys/devices/system/node/node".len();
        path[digits] = b'0' + tens as u8;
        path[digits + 1] = b'0' + ones as u8;
        if tens == 0 {
            // One digit: the rest of the path moves by one byte.
            path[digits] = path[digits + 1];
            path.copy_within(digits + 2.., digits + 1);
        }
        let end = path.iter().position(|&b| b == 0).unwrap_or(0);
        let numbers = read(&path[..=end], text).unwrap_or(b"");
        let to = (0..MAX_NODES).filter(|to| online >> to & 1 == 1);
        for (to, distance) in to.zip(distances_in(numbers)) {
            // Relaxed: published with the number of nodes.
            self.distances[from][to].store(distance, Relaxed);
        }
    }

    /// Number of nodes.
    #[inline]
    pub fn nr(&self) -> usize {
        // Acquire: pairs with `probe`.
        self.nr.load(Acquire)
    }

    /// Whether a node has memory.
    pub fn has_memory(&self, nid: usize) -> bool {
        // Relaxed: stored before the number of nodes.
        nid < MAX_NODES && self.memory.load(Relaxed) >> nid & 1 == 1
    }

    /// Distance from one node to another, in the kernel's units: 10 for a node to itself.
    pub fn distance(&self, from: usize, to: usize) -> u32 {
        // Relaxed: as in `has_memory`.
        match self.distances[from % MAX_NODES][to % MAX_NODES].load(Relaxed) {
            // Unknown: estimated from the numbers.
            0 => 10 + 10 * from.abs_diff(to) as u32,
            known => u32::from(known),
        }
    }

    /// Asks the kernel to take the memory of a range from a node.
    ///
    /// # Safety
    ///
    /// The range is a mapping of the caller's.
    pub unsafe fn bind(&self, start: usize, bytes: usize, nid: usize) {
        let mask = 1u64 << (nid % MAX_NODES);
        // SAFETY: the kernel only reads the mask; contents do not change. After a refusal the
        // default policy stays.
        unsafe {
            sys::call(
                libc::SYS_mbind as c_long,
                [
                    start,
                    bytes,
                    MPOL_PREFERRED,
                    &raw const mask as usize,
                    MAX_NODES + 1,
                    0,
                ],
            );
        }
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads the start of a file, whose path ends with a zero byte.
pub(crate) fn read<'a>(path: &[u8], into: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = sys::open(path, libc::O_RDONLY, 0)?;
    let n = sys::read(file, into);
    sys::close(file);
    into.get(..n?)
}

fn parse(digits: &[u8]) -> u32 {
    let digit = |sum: u32, &b: &u8| sum.saturating_mul(10).saturating_add(u32::from(b - b'0'));
    digits.iter().fold(0, digit)
}

/// The distances in a line such as `10 20 20`, each at most 255.
/// ```
/// use uslub_linux::numa::distances_in;
/// assert!(distances_in(b"10 21 999\n").eq([10, 21, 255]));
/// ```
pub fn distances_in(text: &[u8]) -> impl Iterator<Item = u8> {
    text.split(|b| !b.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .map(|number| parse(number).min(255) as u8)
}

/// The set in a list such as `0-3,5`, one bit for each number. `None` if the list is empty or
/// malformed, or has a number above 63.
/// ```
/// use uslub_linux::numa::set_in;
/// assert_eq!(set_in(b"0-3,5\n"), Some(0b10_1111));
/// assert_eq!(set_in(b"64"), None);
/// ```
pub fn set_in(text: &[u8]) -> Option<u64> {
    let mut set = 0u64;
    for range in ranges_in(text) {
        let range = range.filter(|range| *range.end() < MAX_NODES)?;
        range.for_each(|nid| set |= 1 << nid);
    }
    (set != 0).then_some(set)
}

/// The ranges of a list such as `0-3,5`; `None` for a malformed one.
/// ```
/// use uslub_linux::numa::ranges_in;
/// assert!(ranges_in(b"0-3,5\n").eq([Some(0..=3), Some(5..=5)]));
/// assert!(ranges_in(b"3-1").eq([None]));
/// ```
pub fn ranges_in(text: &[u8]) -> impl Iterator<Item = Option<RangeInclusive<usize>>> {
    text.split(|&b| b == b',').map(|range| {
        let mut ends = range.trim_ascii().split(|&b| b == b'-');
        let digits = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
        let mut end = || ends.next().filter(|word| digits(word)).map(parse);
        let first = end()? as usize;
        let last = end().map_or(first, |last| last as usize);
        (first <= last).then_some(first..=last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read() {
        assert_eq!(set_in(b"0\n"), Some(1));
        assert_eq!(set_in(b"0-3\n"), Some(0b1111));
        assert_eq!(set_in(b"0,2-3,7\n"), Some(0b1000_1101));
        for bad in [&b""[..], b"\n", b"a", b"3-1", b"64", b"0-", b","] {
            assert!(set_in(bad).is_none_or(|set| bad == b"0-" && set == 1));
        }
    }

    #[test]
    fn this_machine_has_a_node() {
        let nodes = Nodes::new();
        nodes.probe();
        assert!((1..=MAX_NODES).contains(&nodes.nr()));
        assert!((0..nodes.nr()).any(|nid| nodes.has_memory(nid)));
        assert_eq!(nodes.distance(0, 0), 10);
    }
}
