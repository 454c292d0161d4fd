//! Freed objects of the hardened mode that wait in quarantine: two rings of addresses in the
//! allocator.

use std::collections::HashMap;
use std::ops::Range;

use crate::heap::{Cache, Heap, words};
use crate::layout::Field;
use crate::memory::PAGE;

impl Heap<'_> {
    /// The addresses in a ring, in order, each once.
    fn ring(&self, which: fn(&(Field, Field)) -> Field) -> Vec<u64> {
        let Some(field) = self.f.quarantine.as_ref().map(which) else {
            return Vec::new();
        };
        let mut bytes = vec![0; field.bytes];
        let at = self.root.allocator.wrapping_add(field.at as u64);
        self.memory.read_sparse(at, &mut bytes);
        let mut objects: Vec<_> = words(&bytes).filter(|&at| at != 0).collect();
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    /// The objects of size classes in quarantine, by the identity of their cache.
    pub(crate) fn quarantined(&self) -> HashMap<u16, Vec<u64>> {
        let arena = self.arena();
        let mut all = HashMap::new();
        for at in self.ring(|rings| rings.0) {
            let page = at.wrapping_sub(arena.base) / PAGE;
            if at >= arena.base && page < arena.pages {
                let objects: &mut Vec<_> = all.entry(self.map_entry(page)).or_default();
                objects.push(at);
            }
        }
        all
    }

    /// The objects of a cache in quarantine.
    pub(crate) fn quarantined_of(&self, cache: &Cache) -> Vec<u64> {
        self.quarantined().remove(&cache.id).unwrap_or_default()
    }

    /// The large and huge objects in quarantine.
    pub(crate) fn quarantined_large(&self) -> LargeQuarantine {
        LargeQuarantine(self.ring(|rings| rings.1))
    }
}

/// Addresses within the large and huge objects in quarantine, in order.
pub(crate) struct LargeQuarantine(Vec<u64>);

impl LargeQuarantine {
    /// Whether an object that has these addresses is in quarantine.
    pub(crate) fn has(&self, object: Range<u64>) -> bool {
        let first = self.0.partition_point(|&at| at < object.start);
        self.0.get(first).is_some_and(|at| object.contains(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_in_quarantine_if_an_address_of_it_is() {
        let kept = LargeQuarantine(vec![4112, 9000]);
        let has = [0..4112, 4096..8192, 4112..4113, 9001..9999].map(|object| kept.has(object));
        assert_eq!(has, [false, true, true, false]);
    }
}
