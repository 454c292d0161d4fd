//! The memory that is read: of a process, or of a core file.
//!
//! A reader needs two functions: bytes at an address, and which ranges were ever touched. The
//! second one keeps a look from reading untouched pages. It saves time, and it leaves the page
//! tables of the process unchanged.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The addresses.
    pub range: Range<u64>,
    /// Whether the program may write to it.
    pub writable: bool,
    /// Offset in the file of the first byte.
    pub offset: u64,
    /// The file, or what the kernel calls the mapping (`[heap]`); empty for anonymous memory.
    pub name: String,
}

/// A register of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// The thread's number.
    pub thread: i32,
    /// The register's name.
    pub name: &'static str,
    /// Its content.
    pub value: u64,
}

/// Memory of a process that can be read.
///
/// ```
/// use uslub_inspect::memory::{Fault, Map, Memory};
///
/// struct Zeros(Vec<Map>);
///
/// impl Memory for Zeros {
///     fn read(&self, _at: u64, to: &mut [u8]) -> Result<(), Fault> {
///         to.fill(0);
///         Ok(())
///     }
///     fn maps(&self) -> &[Map] {
///         &self.0
///     }
/// }
/// assert!(uslub_inspect::root::find(&Zeros(Vec::new())).is_err());
/// ```
pub trait Memory {
    /// Fills `to` with the bytes at an address.
    ///
    /// # Errors
    ///
    /// If a byte cannot be read; `to` then holds anything.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// The mappings, by address.
    fn maps(&self) -> &[Map];

    /// Fills one part of `to`, each of `bytes` bytes, from each address; says for each whether it
    /// could be read.
    fn read_each(&self, at: &[u64], bytes: usize, to: &mut [u8]) -> Vec<bool> {
        let parts = at.iter().zip(to.chunks_mut(bytes.max(1)));
        parts
            .map(|(&at, part)| self.read(at, part).is_ok())
            .collect()
    }

    /// Threads that run just now, at most; each may be in the middle of a call. 0 for memory at
    /// rest.
    fn running(&self) -> u64 {
        0
    }

    /// The registers of all threads, where they can be read: in a core file.
    fn registers(&self) -> Vec<Register> {
        Vec::new()
    }

    /// The first stretch of touched memory that begins in `range`. Untouched memory reads zero.
    fn touched(&self, range: Range<u64>) -> Option<Range<u64>> {
        mapped(self.maps(), range)
    }

    /// As [`touched`](Self::touched), without pages of files that are not in memory: reading one
    /// would load it.
    fn present(&self, range: Range<u64>) -> Option<Range<u64>> {
        self.touched(range)
    }

    /// Fills `to` with the bytes at an address; what is untouched or cannot be read is zero.
    fn read_sparse(&self, at: u64, to: &mut [u8]) {
        to.fill(0);
        let Some(end) = at.checked_add(to.len() as u64) else {
            return;
        };
        let mut next = at;
        while let Some(part) = self.touched(next..end) {
            if part.start < next || part.end <= part.start || part.end > end {
                return;
            }
            let (from, until) = ((part.start - at) as usize, (part.end - at) as usize);
            if self.read(part.start, &mut to[from..until]).is_err() {
                to[from..until].fill(0);
            }
            next = part.end;
        }
    }
}

/// The first stretch of mapped memory in `range`.
pub fn mapped(maps: &[Map], range: Range<u64>) -> Option<Range<u64>> {
    let first = maps.partition_point(|map| map.range.end <= range.start);
    let map = maps.get(first)?;
    let start = map.range.start.max(range.start);
    let end = map.range.end.min(range.end);
    (start < end).then_some(start..end)
}

/// The mapping that holds an address.
pub fn map_of(maps: &[Map], at: u64) -> Option<&Map> {
    let first = maps.partition_point(|map| map.range.end <= at);
    maps.get(first).filter(|map| map.range.contains(&at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(range: Range<u64>) -> Map {
        Map {
            range,
            writable: true,
            offset: 0,
            name: String::new(),
        }
    }

    #[test]
    fn holes_between_mappings_are_left_out() {
        let maps = [map(0x1000..0x3000), map(0x5000..0x6000)];
        assert_eq!(mapped(&maps, 0..0x10000), Some(0x1000..0x3000));
        assert_eq!(mapped(&maps, 0x2000..0x2800), Some(0x2000..0x2800));
        assert_eq!(mapped(&maps, 0x3000..0x10000), Some(0x5000..0x6000));
        assert_eq!(mapped(&maps, 0x3000..0x5000), None);
        assert_eq!(mapped(&maps, 0x6000..0x7000), None);
        assert!(map_of(&maps, 0x2fff).is_some() && map_of(&maps, 0x3000).is_none());
    }

    struct Some1(Vec<Map>);

    impl Memory for Some1 {
        fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Fault> {
            to.iter_mut()
                .zip(at..)
                .for_each(|(b, at)| *b = at as u8 | 1);
            Ok(())
        }
        fn maps(&self) -> &[Map] {
            &self.0
        }
    }

    #[test]
    fn a_sparse_read_is_zero_where_nothing_is() {
        let memory = Some1(vec![map(0x1000..0x1004), map(0x1008..0x100a)]);
        let mut to = [9; 12];
        memory.read_sparse(0x1000, &mut to);
        assert_eq!(to, [1, 1, 3, 3, 0, 0, 0, 0, 9, 9, 0, 0]);
        memory.read_sparse(u64::MAX - 3, &mut to);
        assert_eq!(to, [0; 12]);
    }
}
