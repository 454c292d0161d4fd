//! Grouping of a bulk free into detached freelists.
//!
//! No counter tells how many groups were pushed. But the free of a wrong pointer ends the
//! process at the moment when its group is built, and that moment depends on the groups before. So
//! a wrong pointer in the array, and a look at what each slab had got back when the process ended,
//! tells the grouping; [`Grouping`] is the model that says what must be seen.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::support;
use crate::support::{Cache, Dice, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::memory::PageKind;

/// Objects of other slabs that end a scan, by the specification.
const LOOK_AHEAD: usize = 3;

/// The specification's grouping of an array of slabs' letters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Grouping {
    /// Slab and size of each group, in the order in which they are pushed.
    groups: Vec<(u8, usize)>,
    /// For each place of the array, how many groups were pushed before its own was built.
    pushed_before: Vec<usize>,
}

impl Grouping {
    fn of(letters: &[u8]) -> Self {
        let mut grouping = Self {
            groups: Vec::new(),
            pushed_before: vec![0; letters.len()],
        };
        // What is left: letters with the place that each came from.
        let mut left: Vec<(u8, usize)> = letters.iter().copied().zip(0..).collect();
        while let Some(&(letter, place)) = left.last() {
            let groups = grouping.groups.len();
            grouping.pushed_before[place] = groups;
            left.pop();
            let (mut size, mut others) = (1, 0);
            for at in (0..left.len()).rev() {
                if left[at].0 == letter {
                    grouping.pushed_before[left[at].1] = groups;
                    left.swap_remove(at);
                    size += 1;
                } else {
                    others += 1;
                    if others == LOOK_AHEAD {
                        break;
                    }
                }
            }
            grouping.groups.push((letter, size));
        }
        grouping
    }

    /// Objects of a slab that were freed when the first `groups` were pushed.
    fn freed(&self, letter: u8, groups: usize) -> usize {
        let of_slab = self.groups[..groups].iter().filter(|g| g.0 == letter);
        of_slab.map(|g| g.1).sum()
    }
}

/// A cache whose slabs lack one object to be full (so that no free waits for the list lock), and
/// the objects of each.
struct Slabs {
    a: Box<Slub>,
    slabs: Vec<Vec<*mut u8>>,
}

impl Slabs {
    fn new(count: usize) -> Self {
        let a = support::allocator(1);
        let cache = a.create(&CacheArgs::new("test", 64)).unwrap();
        a.platform.set_percpu_usable(false);
        let one = || {
            let mut objects = vec![null_mut(); cache.geometry.objects as usize];
            assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
            objects
        };
        let mut slabs: Vec<_> = (0..count).map(|_| one()).collect();
        for slab in &mut slabs {
            let object = slab.pop().unwrap();
            // SAFETY: the test's, freed once.
            unsafe { a.free(cache, object) };
        }
        Self { a, slabs }
    }

    /// Objects of a slab of which none was freed by the test.
    fn full(&self) -> usize {
        self.cache().geometry.objects as usize - 1
    }

    fn cache(&self) -> &Cache {
        self.a.caches().next().unwrap()
    }

    /// Objects of the slabs that the letters name, none twice.
    fn objects(&mut self, letters: &[u8]) -> Vec<*mut u8> {
        let next = |&letter: &u8| self.slabs[usize::from(letter - b'A')].pop().unwrap();
        letters.iter().map(next).collect()
    }

    /// Objects of a slab that are in use.
    fn inuse(&self, letter: u8) -> usize {
        let arena = &self.a.zone.arena;
        let object = self.slabs[usize::from(letter - b'A')][0];
        let page = arena.page_of(object as usize).unwrap();
        let slab = self.cache().slab_of(arena, page);
        assert_eq!(slab.kind(), PageKind::Slab);
        slab.state().inuse() as usize
    }

    fn letters(&self) -> impl Iterator<Item = u8> + use<> {
        b'A'..b'A' + self.slabs.len() as u8
    }

    fn free(&self, objects: &mut [*mut u8]) {
        // SAFETY: the test's objects, freed once.
        unsafe { self.a.free_bulk(self.cache(), objects) }
    }

    /// Frees what was not freed by the test.
    fn end(self) {
        for slab in &self.slabs {
            self.free(&mut slab.clone());
        }
        assert_all_is_given_back(&self.a);
    }
}

/// Frees an array, and looks that each slab got its objects back.
fn free_all(letters: &[u8]) {
    let mut slabs = Slabs::new(8);
    let full = slabs.full();
    let mut objects = slabs.objects(letters);
    slabs.free(&mut objects);
    for letter in slabs.letters() {
        let freed = letters.iter().filter(|&&l| l == letter).count();
        assert_eq!(slabs.inuse(letter), full - freed);
    }
    assert_eq!(slabs.a.validate(), Ok(()));
    slabs.end();
}

/// Frees an array with a wrong pointer at `place`, and looks that exactly those groups were
/// pushed before it was seen that the model says.
fn end_at(letters: &[u8], place: usize) {
    let mut slabs = Slabs::new(8);
    let full = slabs.full();
    let mut objects = slabs.objects(letters);
    objects[place] = objects[place].wrapping_add(8);
    let ended = catch_unwind(AssertUnwindSafe(|| slabs.free(&mut objects)));
    let message = *ended.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("interior pointer"), "{message}");
    let grouping = Grouping::of(letters);
    let groups = grouping.pushed_before[place];
    for letter in slabs.letters() {
        assert_eq!(
            full - slabs.inuse(letter),
            grouping.freed(letter, groups),
            "slab {} of {} with the wrong pointer at {place}: {grouping:?}",
            char::from(letter),
            String::from_utf8_lossy(letters)
        );
    }
    assert_eq!(slabs.a.validate(), Ok(()));
}

fn check(letters: &[u8]) {
    free_all(letters);
    for place in 0..letters.len() {
        end_at(letters, place);
    }
}

fn groups(letters: &[u8]) -> usize {
    Grouping::of(letters).groups.len()
}

#[test]
fn the_model_groups_as_the_specification_says() {
    assert_eq!(groups(b"AAAA"), 1);
    assert_eq!(groups(b"AAAB"), 2);
    assert_eq!(groups(b"ABAB"), 2);
    assert_eq!(groups(b"ABCABC"), 3);
    assert_eq!(groups(b"ABCDABCD"), 8, "the fourth letter is out of reach");
    assert_eq!(groups(b"ABBBA"), 3, "the third other letter ends the scan");
    assert_eq!(groups(b"ABBA"), 2);
}

#[test]
fn one_slab_is_one_group() {
    check(b"A");
    check(b"AAAA");
}

#[test]
fn a_run_behind_another_slab_is_a_group_of_its_own() {
    check(b"AAAB");
    check(b"BAAA");
}

#[test]
fn slabs_that_take_turns_are_grouped_over_each_other() {
    check(b"ABAB");
    check(b"ABCABC");
}

#[test]
fn the_third_object_of_another_slab_ends_a_group() {
    check(b"ABBA");
    check(b"ABBBA");
    check(b"ABCDABCD");
    check(b"ABCDEFGHHGFEDCBA");
}

#[test]
fn random_mixes_are_grouped_as_far_as_the_look_ahead_sees() {
    let mut dice = Dice::new(3);
    for round in 0..60 {
        let slabs = 1 + dice.below(8);
        let len = 2 + dice.below(24);
        let letters: Vec<u8> = (0..len).map(|_| b'A' + dice.below(slabs) as u8).collect();
        free_all(&letters);
        end_at(&letters, 0);
        end_at(&letters, round % len);
    }
}

#[test]
fn a_sheaf_that_is_flushed_gives_each_slab_its_objects_back() {
    let mut slabs = Slabs::new(8);
    let full = slabs.full();
    slabs.a.platform.set_percpu_usable(true);
    let mut dice = Dice::new(9);
    let letters: Vec<u8> = (0..200).map(|_| b'A' + dice.below(8) as u8).collect();
    for object in slabs.objects(&letters) {
        // SAFETY: the test's object, freed once.
        unsafe { slabs.a.free(slabs.cache(), object) };
    }
    assert!(slabs.a.info(slabs.cache()).cached_objs > 0);
    slabs.a.shrink(slabs.cache());
    for letter in slabs.letters() {
        let freed = letters.iter().filter(|&&l| l == letter).count();
        assert_eq!(slabs.inuse(letter), full - freed);
    }
    assert_eq!(slabs.a.validate(), Ok(()));
    slabs.end();
}
