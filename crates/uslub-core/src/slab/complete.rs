//! Completeness: whether an array holds all objects of a slab, each once.
//!
//! The check reads addresses only. If n distinct slot addresses of an n-slot slab are present, all
//! of its objects are present. Most arrays consist of a few strided runs, in the order in which the
//! objects were handed out. Callers: `whole_slab`, with as many objects as the slab has slots.

use crate::platform::Platform;
use crate::policy::RUN_MIN_OBJECTS;
use crate::slab::base::Base;
use crate::slab::cache::SlabCache;
use crate::slab::state::Slab;

/// Slots of a slab, at most, for which the check is done.
const MOST: usize = 512;

impl<P: Platform> Base<P> {
    /// Whether these objects, as many as the slab has slots, are all of its objects.
    pub(crate) fn covers_slab(
        &self,
        cache: &SlabCache<P>,
        slab: &Slab,
        objects: &[*mut u8],
    ) -> bool {
        let base = self.slab_base(slab) as usize;
        let bytes = cache.geometry.bytes();
        let is_here = |&object: &*mut u8| (object as usize).wrapping_sub(base) < bytes;
        // Most incomplete arrays begin in another slab: check their first object first.
        if cache.slot_at(bytes - 1) >= MOST || !objects.first().is_some_and(is_here) {
            return false;
        }
        let size = cache.size as usize;
        if stride_len(objects, size) == objects.len() {
            // A run of as many objects as slots: if both ends are slots, all objects are.
            let ends = [objects[0], objects[objects.len() - 1]];
            let is_slot = |object: &*mut u8| cache.is_slot((*object as usize).wrapping_sub(base));
            return ends.iter().all(is_slot);
        }
        let slot_of = |offset: usize| cache.slot_at(offset & (bytes - 1));
        let mut seen = SlotSet::none();
        let mut rest = objects;
        while let [first, ..] = rest {
            // In random order hardly any objects form a run.
            let len = stride_len(rest, size);
            if len < RUN_MIN_OBJECTS {
                let (some, others) = rest.split_at(rest.len().min(8 * RUN_MIN_OBJECTS));
                let offsets = some.iter().map(|&object| object as usize ^ base);
                if size.is_power_of_two() {
                    seen.insert_even(offsets, size, bytes);
                } else {
                    seen.insert_all(offsets, size, slot_of);
                }
                rest = others;
                continue;
            }
            let (run, others) = rest.split_at(len);
            let lowest = first.min(&run[len - 1]);
            let offset = (*lowest as usize).wrapping_sub(base);
            let slot = slot_of(offset);
            if slot * size != offset || !seen.insert_run(slot, len) {
                return false;
            }
            rest = others;
        }
        seen.covers_slab(objects.len())
    }
}

/// Distance in bytes from the first of two objects to the second.
fn step(pair: &[*mut u8]) -> usize {
    (pair[1] as usize).wrapping_sub(pair[0] as usize)
}

/// Length of the strided run at the start of a non-empty array: each object is `size` bytes above
/// the one before it, or each is `size` bytes below.
fn stride_len(objects: &[*mut u8], size: usize) -> usize {
    let Some(first) = objects.windows(2).next().map(step) else {
        return objects.len();
    };
    if first != size && first != size.wrapping_neg() {
        return 1;
    }
    let mut len = 1;
    // Eight at a time without a branch.
    while let Some(nine) = objects.get(len - 1..len + 8)
        && nine
            .windows(2)
            .fold(0, |all, pair| all | (step(pair) ^ first))
            == 0
    {
        len += 8;
    }
    let pairs = objects[len - 1..].windows(2).take(8);
    len + pairs.take_while(|pair| step(pair) == first).count()
}

/// Words of a set of slots.
const WORDS: usize = MOST / 64;

/// The slots of a slab whose objects were seen, one bit each, as its user may have little stack.
/// Neighbouring slots are in different words: an update of the same word would wait for the one
/// before.
struct SlotSet {
    slots: [u64; WORDS],
    /// All bits in which an object's offset differs from its slot's offset.
    wrong: usize,
}

impl SlotSet {
    fn none() -> Self {
        Self {
            slots: [0; WORDS],
            wrong: 0,
        }
    }

    /// Records the objects at some offsets, in slots of `size` bytes, of which the first [`MOST`]
    /// count.
    #[inline]
    fn insert_all(
        &mut self,
        offsets: impl Iterator<Item = usize>,
        size: usize,
        slot_of: impl Fn(usize) -> usize,
    ) {
        for offset in offsets {
            let slot = slot_of(offset);
            // An offset in no slot of the slab differs from the slot's offset.
            self.wrong |= slot.wrapping_mul(size) ^ offset;
            self.slots[slot % WORDS] |= 1 << (slot / WORDS % 64);
        }
    }

    /// As `insert_all` in half the instructions, if `size` is a power of two, in a slab of `bytes`
    /// bytes.
    #[inline]
    fn insert_even(&mut self, offsets: impl Iterator<Item = usize>, size: usize, bytes: usize) {
        let shift = size.trailing_zeros();
        let any = offsets.fold(0, |any, offset| {
            let slot = offset >> shift;
            self.slots[slot % WORDS] |= 1 << (slot / WORDS % 64);
            any | offset
        });
        self.wrong |= any & !(bytes - size);
    }

    /// Records `len` slots from `slot` on; false if the set has fewer.
    #[inline]
    fn insert_run(&mut self, slot: usize, len: usize) -> bool {
        if slot >= MOST || len > MOST - slot {
            return false;
        }
        for (word, seen) in self.slots.iter_mut().enumerate() {
            *seen |= bits_of(slot, len, word);
        }
        true
    }

    /// Whether the recorded objects, `count` of them, are the first `count` slots. If each slot is
    /// there, none came twice.
    fn covers_slab(&self, count: usize) -> bool {
        let missing = |word: usize| bits_of(0, count, word) & !self.slots[word];
        self.wrong == 0 && (0..WORDS).all(|word| missing(word) == 0)
    }
}

/// The bits of one word of the set that stand for `len` slots from `slot` on.
#[inline]
fn bits_of(slot: usize, len: usize, word: usize) -> u64 {
    // The number of the first `slots` slots that are in this word.
    let first = |slots: usize| (slots + WORDS - 1 - word) / WORDS;
    // A shift by 64 bits gives `None`.
    let below = |bits: usize| {
        u64::MAX
            .checked_shl(bits as u32)
            .map_or(u64::MAX, |above| !above)
    };
    below(first(slot + len)) & !below(first(slot))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_run_ends_where_the_stride_changes() {
        for down in [false, true] {
            for end in 1..40 {
                for more in 0..12 {
                    let place = |i: usize| if down { 1000 - 16 * i } else { 16 * i };
                    let others = (0..more).map(|i| 4096 + 48 * i);
                    let all: Vec<_> = (0..end).map(place).chain(others).collect();
                    let all: Vec<_> = all.into_iter().map(|at| at as *mut u8).collect();
                    assert_eq!(stride_len(&all, 16), end, "{end} {more} {down}");
                }
            }
        }
        assert_eq!(
            stride_len(&[16, 16, 16].map(|at: usize| at as *mut u8), 16),
            1
        );
    }

    /// Bytes of a slab with [`MOST`] slots.
    fn slab_bytes(size: usize) -> usize {
        (MOST * size).next_power_of_two()
    }

    /// The set of the objects at some offsets, in slots of `size` bytes.
    fn seen(offsets: impl Iterator<Item = usize>, size: usize) -> SlotSet {
        let (mut seen, bytes) = (SlotSet::none(), slab_bytes(size));
        if size.is_power_of_two() {
            seen.insert_even(offsets, size, bytes);
        } else {
            seen.insert_all(offsets, size, |offset| offset % bytes / size);
        }
        seen
    }

    #[test]
    fn all_slots_are_seen_or_some_object_came_twice() {
        for (count, size) in [1, 7, 8, 63, 250, MOST]
            .into_iter()
            .flat_map(|count| [(count, 48), (count, 64)])
        {
            let covers_slab = |slots: &[usize]| {
                seen(slots.iter().map(|slot| slot * size), size).covers_slab(count)
            };
            // In a mixed order: 13 is prime to all counts.
            let all: Vec<_> = (0..count).map(|i| i * 13 % count).collect();
            assert!(covers_slab(&all), "{count} {size}");
            for wrong in 0..count {
                for other in [all[(wrong + 1) % count], count.min(MOST - 1)] {
                    let mut slots = all.clone();
                    slots[wrong] = other;
                    assert_eq!(
                        covers_slab(&slots),
                        slots == all,
                        "{count} {size} {wrong} {other}"
                    );
                }
                for by in [1, 16, slab_bytes(size), 1 << 63] {
                    let offsets = all.iter().map(|slot| slot * size);
                    let offsets = offsets.enumerate();
                    let offsets =
                        offsets.map(|(at, offset)| offset + by * usize::from(at == wrong));
                    assert!(
                        !seen(offsets, size).covers_slab(count),
                        "{count} {size} {wrong} {by}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_run_is_seen_where_it_is() {
        for (slot, len) in [(0, 250), (3, 40), (MOST - 8, 8)] {
            let mut seen = SlotSet::none();
            assert!(seen.insert_run(slot, len));
            let run = slot..slot + len;
            let is_seen = |at: usize| seen.slots[at % WORDS] >> (at / WORDS) & 1 == 1;
            assert!((0..MOST).all(|at| is_seen(at) == run.contains(&at)));
            assert!(!seen.insert_run(MOST - 7, 8) && !seen.insert_run(usize::MAX - 7, 8));
        }
    }
}
