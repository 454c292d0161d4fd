//! Ranges of addresses: who has which memory.

use std::collections::BTreeMap;

/// A set of addresses, kept as ranges that do not touch.
#[derive(Default)]
pub struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    /// Adds a range; it may overlap what is there.
    pub fn insert(&mut self, mut start: usize, mut end: usize) {
        let touching: Vec<usize> = self
            .0
            .range(..=end)
            .filter(|&(_, &e)| e >= start)
            .map(|(&s, _)| s)
            .collect();
        for s in touching {
            end = end.max(self.0.remove(&s).unwrap());
            start = start.min(s);
        }
        self.0.insert(start, end);
    }

    /// Takes a range out; false, and nothing changes, when not all of it is there.
    pub fn remove(&mut self, start: usize, end: usize) -> bool {
        let Some((&s, &e)) = self.0.range(..=start).next_back() else {
            return false;
        };
        if e < end {
            return false;
        }
        self.0.remove(&s);
        if s < start {
            self.0.insert(s, start);
        }
        if end < e {
            self.0.insert(end, e);
        }
        true
    }

    /// Takes out what is there of a range.
    pub fn remove_all(&mut self, start: usize, end: usize) {
        let overlaps: Vec<(usize, usize)> = (self.0.range(..end))
            .filter(|&(_, &e)| e > start)
            .map(|(&s, &e)| (s.max(start), e.min(end)))
            .collect();
        for (from, to) in overlaps {
            assert!(self.remove(from, to));
        }
    }

    /// Whether all of a range is there.
    pub fn contains(&self, start: usize, end: usize) -> bool {
        (self.0.range(..=start).next_back()).is_some_and(|(_, &e)| e >= end)
    }

    /// Whether any of a range is there.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        (self.0.range(..end).next_back()).is_some_and(|(_, &e)| e > start)
    }

    /// Addresses in the set.
    pub fn bytes(&self) -> usize {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.0.iter().map(|(&s, &e)| (s, e))
    }
}
