//! Groups of CPUs that share barns, by the kernel's lists of last-level caches.
//!
//! [`CpuGroups::make`] reads the lists once, before a second thread uses the platform:
//!
//! | file | contents |
//! |---|---|
//! | `/sys/devices/system/node/nodeN/cpulist` | the CPUs of a node |
//! | `/sys/devices/system/cpu/online` | all CPUs, where the kernel knows no nodes |
//! | `/sys/devices/system/cpu/cpuN/cache/index3/shared_cpu_list` | those that share CPU N's L3 |
//! | the same with `index2` | on machines without L3 |
//!
//! A node with few CPUs has one group, and no list of caches is read.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

use uslub_core::groups::Groups;

use crate::numa::{ranges_in, read};
use crate::policy::CACHE_LISTS_MAX;

/// CPUs of this number and above are in group 0.
const CPUS_MAX: usize = 4096;

/// The group of each CPU within its node.
pub(crate) struct CpuGroups {
    of: [AtomicU8; CPUS_MAX],
}

impl CpuGroups {
    /// One group.
    pub(crate) const fn new() -> Self {
        Self {
            of: [const { AtomicU8::new(0) }; CPUS_MAX],
        }
    }

    /// The group of a CPU within its node.
    pub(crate) fn of(&self, cpu: usize) -> usize {
        // Relaxed: stored before another thread used the platform.
        (self.of.get(cpu)).map_or(0, |group| group.load(Relaxed).into())
    }

    /// Divides the CPUs of each of `nodes` nodes into groups of `cpus` at most. Returns the largest
    /// number of groups in a node, at least 1.
    pub(crate) fn make(&self, cpus: usize, nodes: usize) -> usize {
        self.make_from(cpus, nodes, &read)
    }

    fn make_from(&self, cpus: usize, nodes: usize, read: Read<'_>) -> usize {
        let mut lists_left = CACHE_LISTS_MAX;
        let of_node = |nid| {
            let of_node = path(b"/sys/devices/system/node/node", nid, b"/cpulist\0");
            let set = match CpuSet::listed(read, &of_node) {
                CpuSet::NONE if nodes == 1 => {
                    CpuSet::listed(read, b"/sys/devices/system/cpu/online\0")
                }
                set => set,
            };
            self.make_in(set, cpus, &mut lists_left, read)
        };
        (0..nodes).map(of_node).max().unwrap_or(1).max(1)
    }

    /// Divides the CPUs of one node; returns the number of groups.
    fn make_in(
        &self,
        mut left: CpuSet,
        cpus: usize,
        lists_left: &mut usize,
        read: Read<'_>,
    ) -> usize {
        let mut groups = Groups::new(cpus);
        if left.len() <= cpus {
            return 1;
        }
        while let Some(first) = left.first() {
            let cache = match lists_left.checked_sub(1) {
                Some(fewer) => {
                    *lists_left = fewer;
                    CpuSet::sharing_cache(read, first).and(&left)
                }
                None => CpuSet::NONE,
            };
            // A list that is missing or strange: all CPUs that are left count as one cache.
            let cache = if cache.has(first) { cache } else { left };
            for (cpu, group) in cache.iter().zip(groups.add(cache.len())) {
                // Relaxed: no other thread uses the platform yet.
                self.of[cpu].store(group as u8, Relaxed);
            }
            left.remove(&cache);
        }
        groups.len()
    }
}

/// Reads a file of the kernel's by its path, which ends with a zero byte.
type Read<'a> = &'a dyn for<'b> Fn(&[u8], &'b mut [u8]) -> Option<&'b [u8]>;

/// A set of CPUs, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuSet([u64; CPUS_MAX / 64]);

impl CpuSet {
    const NONE: Self = Self([0; CPUS_MAX / 64]);

    /// The CPUs that a file lists; none if it is missing or malformed.
    fn listed(read: Read<'_>, path: &[u8]) -> Self {
        let mut text = [0u8; 1024];
        let mut set = Self::NONE;
        for range in read(path, &mut text).into_iter().flat_map(ranges_in) {
            match range {
                Some(range) if *range.end() < CPUS_MAX => {
                    range.for_each(|cpu| set.0[cpu / 64] |= 1 << (cpu % 64));
                }
                _ => return Self::NONE,
            }
        }
        set
    }

    /// The CPUs that share the last-level cache of a CPU.
    fn sharing_cache(read: Read<'_>, cpu: usize) -> Self {
        let third = path(
            b"/sys/devices/system/cpu/cpu",
            cpu,
            b"/cache/index3/shared_cpu_list\0",
        );
        let second = path(
            b"/sys/devices/system/cpu/cpu",
            cpu,
            b"/cache/index2/shared_cpu_list\0",
        );
        match Self::listed(read, &third) {
            Self::NONE => Self::listed(read, &second),
            set => set,
        }
    }

    fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..CPUS_MAX).filter(|&cpu| self.has(cpu))
    }

    fn and(mut self, other: &Self) -> Self {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= other;
        }
        self
    }

    fn remove(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word &= !other;
        }
    }
}

/// A path with a number in it: `before`, the number (below 10,000), `behind`. The rest is zero.
fn path(before: &[u8], number: usize, behind: &[u8]) -> [u8; 80] {
    let mut path = [0; 80];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        path[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(before);
    for unit in [1000, 100, 10, 1] {
        if number >= unit || unit == 1 {
            put(&[b'0' + (number / unit % 10) as u8]);
        }
    }
    put(behind);
    path
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// A machine by its files; the caches of `caches` are listed for each of their CPUs.
    fn machine(nodes: &[&str], caches: &[(&str, &[usize])]) -> HashMap<String, Vec<u8>> {
        let mut files = HashMap::new();
        for (nid, list) in nodes.iter().enumerate() {
            let path = format!("/sys/devices/system/node/node{nid}/cpulist");
            files.insert(path, format!("{list}\n").into_bytes());
        }
        for (list, cpus) in caches {
            for cpu in *cpus {
                let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/shared_cpu_list");
                files.insert(path, format!("{list}\n").into_bytes());
            }
        }
        files
    }

    fn made(files: &HashMap<String, Vec<u8>>, cpus: usize, nodes: usize) -> (CpuGroups, usize) {
        let read = |path: &[u8], into: &mut [u8]| -> Option<usize> {
            let end = path.iter().position(|&b| b == 0)?;
            let text = files.get(std::str::from_utf8(&path[..end]).ok()?)?;
            into[..text.len()].copy_from_slice(text);
            Some(text.len())
        };
        let groups = CpuGroups::new();
        let nr = groups.make_from(cpus, nodes, &|path, into| {
            let n = read(path, into)?;
            into.get(..n)
        });
        (groups, nr)
    }

    #[test]
    fn a_last_level_cache_is_a_group() {
        // 2 nodes, 2 caches of 8 cores each, two threads a core.
        let files = machine(
            &["0-15,32-47", "16-31,48-63"],
            &[
                ("0-7,32-39", &[0, 32]),
                ("8-15,40-47", &[8]),
                ("16-23,48-55", &[16]),
                ("24-31,56-63", &[24]),
            ],
        );
        let (groups, nr) = made(&files, 16, 2);
        assert_eq!(nr, 2);
        let of = [0, 7, 32, 39, 8, 47, 16, 55, 24, 63].map(|cpu| groups.of(cpu));
        assert_eq!(of, [0, 0, 0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(groups.of(5000), 0);
        let (_, nr) = made(&files, 32, 2);
        assert_eq!(nr, 1);
    }

    #[test]
    fn a_large_cache_has_several_groups_and_small_ones_share_one() {
        let large = machine(&["0-55,112-167"], &[("0-55,112-167", &[0])]);
        let (groups, nr) = made(&large, 16, 1);
        assert_eq!((nr, groups.of(0), groups.of(167)), (7, 0, 6));
        let lists: Vec<_> = (0..8).map(|n| format!("{}-{}", 4 * n, 4 * n + 3)).collect();
        let firsts: Vec<_> = (0..8).map(|n| [4 * n]).collect();
        let caches: Vec<_> = (lists.iter().zip(&firsts))
            .map(|(list, first)| (list.as_str(), &first[..]))
            .collect();
        let (groups, nr) = made(&machine(&["0-31"], &caches), 16, 1);
        assert_eq!(
            (nr, groups.of(7), groups.of(8), groups.of(16)),
            (4, 0, 1, 2)
        );
    }

    #[test]
    fn files_that_are_missing_or_strange_leave_groups_of_neighbours() {
        let without_caches = machine(&["0-31"], &[]);
        let (groups, nr) = made(&without_caches, 16, 1);
        assert_eq!((nr, groups.of(15), groups.of(16)), (2, 0, 1));
        for strange in ["", "7-3", "x", "0-9999", "12-15"] {
            let (groups, nr) = made(&machine(&["0-31"], &[(strange, &[0])]), 16, 1);
            assert_eq!((nr, groups.of(15), groups.of(16)), (2, 0, 1), "{strange}");
        }
        let (_, nr) = made(&HashMap::new(), 16, 1);
        assert_eq!(nr, 1);
        let online = HashMap::from([(
            String::from("/sys/devices/system/cpu/online"),
            b"0-31\n".to_vec(),
        )]);
        assert_eq!(made(&online, 16, 1).1, 2);
    }

    #[test]
    fn this_machine_has_a_group_for_each_cpu_if_asked() {
        let listed = ["node/node0/cpulist", "cpu/online"]
            .map(|file| std::fs::read(format!("/sys/devices/system/{file}")));
        let Some(text) = listed.into_iter().find_map(Result::ok) else {
            return;
        };
        let cpus: usize = ranges_in(&text).flatten().map(Iterator::count).sum();
        let nr = CpuGroups::new().make(1, 1);
        assert_eq!(nr, cpus.clamp(1, uslub_core::groups::MAX_GROUPS));
    }

    #[test]
    fn paths_hold_numbers_of_one_to_four_digits() {
        assert!(path(b"a", 7, b"b\0").starts_with(b"a7b\0"));
        assert!(path(b"a", 1203, b"b\0").starts_with(b"a1203b\0"));
    }
}
