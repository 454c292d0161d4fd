//! Groups of CPUs: which CPUs of a memory node share barns.
//!
//! A barn's lock and lists move from CPU to CPU. Up to some 20 CPUs pass sheaves through one barn
//! without waiting; with more, its lock is what they wait for (`docs/laboratory.md`). So the CPUs
//! of a node form groups of [`barn_cpus`](crate::tunables::Tunables::barn_cpus) at most:
//!
//! | CPUs that share a last-level cache | groups |
//! |---|---|
//! | more than `barn_cpus` | several a cache, of equal size |
//! | more than half of `barn_cpus` | one |
//! | fewer | one for neighbouring caches, of half of `barn_cpus` at most |
//!
//! Sheaves move faster within a last-level cache, so caches share a group only where they are
//! small.
//!
//! Callers: platforms, in [`make_groups`](crate::platform::Platform::make_groups).

/// Groups of CPUs, at most, in a node.
pub const MAX_GROUPS: usize = 64;

/// The groups of one node, while they are made: last-level cache after last-level cache.
/// ```
/// use uslub_core::groups::Groups;
/// let mut groups = Groups::new(16);
/// // Two caches of 4 CPUs share a group; a third does not fit.
/// assert!(groups.add(4).eq([0; 4]));
/// assert!(groups.add(4).eq([0; 4]));
/// assert!(groups.add(4).eq([1; 4]));
/// // A cache of 24 CPUs has two.
/// assert_eq!(groups.add(24).filter(|&group| group == 3).count(), 12);
/// assert_eq!(groups.len(), 4);
/// ```
#[derive(Clone, Debug)]
pub struct Groups {
    /// CPUs of a group, at most.
    cpus: usize,
    /// Groups so far.
    len: usize,
    /// CPUs of further caches that the last group has room for.
    room: usize,
}

impl Groups {
    /// No groups yet, for groups of `cpus` CPUs at most; 0 counts as 1.
    pub const fn new(cpus: usize) -> Self {
        Self {
            cpus: if cpus == 0 { 1 } else { cpus },
            len: 0,
            room: 0,
        }
    }

    /// Adds the node's next last-level cache, which `cpus` CPUs share; returns the group of each of
    /// them. Beyond [`MAX_GROUPS`] groups, CPUs share the last one.
    pub fn add(&mut self, cpus: usize) -> impl Iterator<Item = usize> + use<> {
        let new = match cpus <= self.room {
            true => 0,
            false => cpus.div_ceil(self.cpus),
        };
        let (first, parts) = (self.len.saturating_sub(usize::from(new == 0)), new.max(1));
        self.len += new;
        self.room = match new {
            0 => self.room - cpus,
            1 => (self.cpus / 2).saturating_sub(cpus),
            _ => 0,
        };
        let group = move |cpu: usize| (first + cpu * parts / cpus).min(MAX_GROUPS - 1);
        (0..cpus).map(group)
    }

    /// Groups so far, [`MAX_GROUPS`] at most.
    #[expect(clippy::len_without_is_empty, reason = "a count, not a collection")]
    pub fn len(&self) -> usize {
        self.len.min(MAX_GROUPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn many_groups_end_in_the_last_one() {
        let mut groups = Groups::new(1);
        let all: Vec<_> = (0..100).flat_map(|_| groups.add(1)).collect();
        assert_eq!(all[..64], (0..64).collect::<Vec<_>>());
        assert!(all[64..].iter().all(|&group| group == 63));
        assert_eq!(groups.len(), MAX_GROUPS);
    }

    #[test]
    fn a_large_cache_is_divided_evenly() {
        let mut groups = Groups::new(16);
        let all: Vec<_> = groups.add(112).collect();
        for group in 0..7 {
            assert_eq!(all.iter().filter(|&&g| g == group).count(), 16);
        }
        assert!(groups.add(4).all(|group| group == 7));
        assert!(groups.add(0).next().is_none());
        assert!(groups.add(4).all(|group| group == 7));
        assert!(groups.add(4).all(|group| group == 8));
        assert!(groups.add(12).all(|group| group == 9));
        assert_eq!(groups.len(), 10);
    }
}
