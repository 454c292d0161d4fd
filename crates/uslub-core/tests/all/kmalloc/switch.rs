//! Size classes that are debugged, and plain again, while a process runs.

use std::collections::HashSet;

use crate::support::seen::message;
use crate::support::{Cache, Dice, Setup, Slots, Slub, assert_all_is_given_back, sheaves_on};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, CreateError};
use uslub_core::debug::{DebugFlags, POISON_FREE, RED_ACTIVE};
use uslub_core::kmalloc::{NR_CLASSES, SwitchError};
use uslub_core::platform::FaultSite;
use uslub_core::slab::debug::track::Which;

pub const F: DebugFlags = DebugFlags::CONSISTENCY_CHECKS;
pub const Z: DebugFlags = DebugFlags::RED_ZONE;
pub const P: DebugFlags = DebugFlags::POISON;
pub const U: DebugFlags = DebugFlags::STORE_USER;
pub const T: DebugFlags = DebugFlags::TRACE;

pub fn repairing(slots: Slots) -> Box<Slub> {
    let setup = Setup::with(&["slab_debug_fatal=0"]);
    Setup { slots, ..setup }.build()
}

pub fn switch(a: &Slub, value: &str) {
    assert_eq!(a.switch_classes(value), Ok(()), "{value}");
}

/// The cache of an object.
pub fn cache_of(a: &Slub, object: *mut u8) -> &Cache {
    let page = a.zone.arena.page_of(object as usize).unwrap();
    a.cache(a.zone.arena.cache_of(page).unwrap()).unwrap()
}

pub fn letters_of(a: &Slub, object: *mut u8) -> DebugFlags {
    let cache = cache_of(a, object);
    assert_eq!(cache.name(), "kmalloc-48");
    cache.debug.get() - DebugFlags::KMALLOC
}

/// Objects of the class of 48 bytes.
pub fn take(a: &Slub, n: usize) -> Vec<*mut u8> {
    (0..n).map(|_| a.kmalloc(40, Gfp::KERNEL)).collect()
}

pub fn kfree(a: &Slub, object: *mut u8) {
    // SAFETY: what is wrong is what the test is about.
    unsafe { a.kfree(object) };
}

pub fn free_all(a: &Slub, objects: Vec<*mut u8>) {
    objects.into_iter().for_each(|object| kfree(a, object));
}

fn poke(object: *mut u8, offset: isize, byte: u8) {
    // SAFETY: within the slab of a test; the checks must see it.
    unsafe { object.offset(offset).write(byte) };
}

pub fn peek(object: *mut u8, offset: isize) -> u8 {
    // SAFETY: within the slab of a test.
    unsafe { object.offset(offset).read() }
}

/// What the platform was told since the last call.
fn said(a: &Slub) -> String {
    a.platform.warnings().join("\n")
}

pub fn assert_silent(a: &Slub) {
    assert_eq!(said(a), "");
    assert_eq!(a.debug.errors(), 0);
}

/// Nothing is left but stacks, which stay for ever.
pub fn assert_given_back(a: &Slub) {
    a.trim();
    assert_eq!(a.validate(), Ok(()));
    let t = a.totals();
    assert_eq!((t.live, t.cached, t.slabs, t.large), (0, 0, 0, 0));
    assert_eq!(t.allocs, t.frees);
}

#[test]
fn a_class_is_debugged_from_the_switch_on_and_plain_after_the_next() {
    for slots in [Slots::Locked, Slots::Restartable] {
        let a = repairing(slots);
        let before = take(&a, 300);
        free_all(&a, before[200..].to_vec());
        switch(&a, "FZ,kmalloc-48");
        let during = take(&a, 300);
        assert!(during.iter().all(|&object| letters_of(&a, object) == F | Z));
        assert!(
            before[..200]
                .iter()
                .all(|&object| letters_of(&a, object).is_empty())
        );
        let plain = cache_of(&a, before[0]);
        assert!(!plain.is_debugged() && cache_of(&a, during[0]).is_debugged());
        assert_eq!(sheaves_on(&a, plain, 0), (None, None));
        switch(&a, "-,kmalloc-48");
        let after = take(&a, 300);
        assert!(
            after
                .iter()
                .all(|&object| letters_of(&a, object).is_empty())
        );
        assert!(sheaves_on(&a, plain, 0).0.is_some(), "from sheaves again");
        let distinct: HashSet<_> = before[..200].iter().chain(&during).chain(&after).collect();
        assert_eq!(distinct.len(), 800);
        free_all(&a, [&before[..200], &during, &after].concat());
        assert_silent(&a);
        assert_all_is_given_back(&a);
    }
}

#[test]
fn objects_that_exist_are_freed_right_while_their_class_is_debugged() {
    let a = repairing(Slots::Restartable);
    let old = take(&a, 500);
    switch(&a, "FZPU,kmalloc-48");
    let plain = cache_of(&a, old[0]);
    free_all(&a, old);
    let info = a.info(plain);
    assert_eq!(
        (info.cached_objs, info.active_objs),
        (0, 0),
        "all are in slabs"
    );
    assert!(letters_of(&a, a.kmalloc(40, Gfp::KERNEL)) == F | Z | P | U);
    assert_silent(&a);
    // A second free of an object whose class is debugged by now is seen as ever.
    let a = repairing(Slots::Restartable);
    let [old, _keeps_the_slab] = [0; 2].map(|_| a.kmalloc(40, Gfp::KERNEL));
    switch(&a, "FZPU,kmalloc-48");
    kfree(&a, old);
    let seen = message(|| kfree(&a, old));
    assert!(
        seen.contains("'kmalloc-48'") && seen.contains("double free"),
        "{seen}"
    );
}

#[test]
fn misuse_is_found_in_the_twin_and_names_cache_and_pointer() {
    let a = repairing(Slots::Locked);
    free_all(&a, take(&a, 100));
    switch(&a, "FZPU,kmalloc-*");
    let [over, freed, twice, traced] = [0; 4].map(|_| a.kmalloc(40, Gfp::KERNEL));
    assert_eq!(
        peek(over, 40),
        RED_ACTIVE,
        "behind the bytes that were asked for"
    );
    poke(over, 40, 0);
    kfree(&a, over);
    let seen = said(&a);
    assert!(seen.contains("[kmalloc Redzone overwritten]"), "{seen}");
    assert!(
        seen.contains("BUG kmalloc-48") && seen.contains(&format!("{over:p}")),
        "{seen}"
    );
    assert!(seen.contains("Allocated in"), "{seen}");
    kfree(&a, twice);
    kfree(&a, twice);
    assert!(said(&a).contains("Object already free"));
    kfree(&a, freed);
    assert_eq!(peek(freed, 0), POISON_FREE);
    poke(freed, 3, 0);
    let next = a.kmalloc(40, Gfp::KERNEL);
    let seen = said(&a);
    assert!(
        seen.contains("[Poison overwritten]") && seen.contains("Freed in"),
        "{seen}"
    );
    let mut text = String::new();
    a.write_traces(cache_of(&a, traced), Which::Alloc, &mut text)
        .unwrap();
    assert!(text.starts_with("      "), "{text}");
    // Also after the class is plain again.
    switch(&a, "-,kmalloc-48");
    poke(next, -1, 0);
    kfree(&a, next);
    assert!(said(&a).contains("[Left Redzone overwritten]"));
    a.switch_classes("T,kmalloc-48").unwrap();
    let object = a.kmalloc(40, Gfp::KERNEL);
    assert!(said(&a).contains(&format!("TRACE kmalloc-48 alloc {object:p}")));
}

#[test]
fn other_letters_get_a_twin_of_their_own_and_old_ones_their_old_twin() {
    let a = repairing(Slots::Restartable);
    let mut held = Vec::new();
    let mut caches = HashSet::new();
    for (value, letters) in [
        ("FZ,kmalloc-48", F | Z),
        ("FZPU,kmalloc-48", F | Z | P | U),
        ("-,kmalloc-48", DebugFlags::empty()),
        ("ZT,kmalloc-48", Z | T),
        ("P,kmalloc-48", P),
        ("F,kmalloc-48", F),
        ("ZF,kmalloc-48", F | Z),
        ("AO,kmalloc-48", DebugFlags::empty()),
        (",kmalloc-4*", F | Z | P | U),
    ] {
        switch(&a, value);
        let objects = take(&a, 40);
        assert!(
            objects
                .iter()
                .all(|&object| letters_of(&a, object) == letters),
            "{value}"
        );
        caches.insert(cache_of(&a, objects[0]).id.index());
        held.extend(objects);
    }
    assert_eq!(caches.len(), 5, "plain, Z, P, ZPU, and none of them");
    said(&a);
    let mut dice = Dice::new(7);
    dice.shuffle(&mut held);
    free_all(&a, held);
    assert_eq!(a.debug.errors(), 0);
    switch(&a, "-");
    assert_given_back(&a);
}

#[test]
fn a_block_without_names_is_about_all_classes_and_others_stay() {
    let a = repairing(Slots::Locked);
    switch(&a, "");
    let sizes = [1, 8, 40, 700, 4096, 8192];
    let debugged =
        |a: &Slub| sizes.map(|bytes| cache_of(a, a.kmalloc(bytes, Gfp::KERNEL)).is_debugged());
    assert_eq!(debugged(&a), [true; 6]);
    switch(&a, "-,kmalloc-8*;F,kmalloc-48");
    assert_eq!(debugged(&a), [false, false, true, true, true, false]);
    switch(&a, "-;F,kmalloc-4k");
    assert_eq!(debugged(&a), [false, false, false, false, true, false]);
    assert_silent(&a);
    // Named caches are switched by `set_debug`.
    let named = a.create(&CacheArgs::new("named", 64)).unwrap();
    assert!(!named.is_debugged());
}

#[test]
fn sizes_resizes_alignments_and_sized_frees_work_across_switches() {
    let a = repairing(Slots::Restartable);
    let mut held = Vec::new();
    for value in ["-", "FZPU", "F", "-", "FZ,kmalloc-*", "P"] {
        switch(&a, value);
        for bytes in (0..300).step_by(7).chain((300..9000).step_by(511)) {
            let plain = a.kmalloc(bytes, Gfp::KERNEL);
            let zero = a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO);
            let aligned = a.kmalloc_aligned(bytes.max(1), 64, Gfp::KERNEL);
            assert!((0..bytes).all(|at| peek(zero, at as isize) == 0));
            assert_eq!(aligned as usize % 64, 0);
            for object in [plain, zero, aligned] {
                assert!(a.ksize(object) >= bytes);
                // SAFETY: ours.
                unsafe { object.write_bytes(bytes as u8, bytes) };
                held.push((object, bytes));
            }
        }
    }
    assert_eq!(a.validate(), Ok(()));
    for (at, (object, bytes)) in held.iter_mut().enumerate() {
        if at % 4 == 3 {
            continue;
        }
        let wanted = *bytes * (1 + at % 3) / 2 + 1;
        // SAFETY: live.
        let new = unsafe { a.krealloc(*object, wanted, Gfp::KERNEL) };
        let kept = wanted.min(*bytes);
        assert!((0..kept).all(|at| peek(new, at as isize) == *bytes as u8));
        (*object, *bytes) = (new, wanted);
    }
    assert_eq!(a.validate(), Ok(()));
    for (at, (object, bytes)) in held.into_iter().enumerate() {
        // Some were aligned.
        if at % 3 != 2 {
            a.check_size("free_sized of", object, bytes, 1);
        }
        if at % 2 == 0 || bytes == 0 {
            kfree(&a, object);
        } else {
            // SAFETY: live, freed once.
            unsafe { a.kfree_sized(object, bytes) };
        }
    }
    assert_silent(&a);
    switch(&a, "-");
    assert_given_back(&a);
}

#[test]
fn a_sized_free_of_a_twins_object_sees_a_wrong_size() {
    for letters in ["F", "FZPU"] {
        let a = repairing(Slots::Locked);
        switch(&a, &format!("{letters},kmalloc-48"));
        let object = a.kmalloc(40, Gfp::KERNEL);
        a.check_size("free_sized of", object, 40, 1);
        for bytes in [1, 20, 49] {
            let seen = message(|| a.check_size("free_sized of", object, bytes, 1));
            assert!(seen.contains("'kmalloc-48': free_sized of"), "{seen}");
        }
        kfree(&a, object);
        assert_silent(&a);
    }
}

#[test]
fn what_nobody_can_switch_is_named_and_changes_nothing() {
    let a = repairing(Slots::Locked);
    let refused = |value: &'static str| a.switch_classes(value).unwrap_err();
    assert_eq!(refused("FQ,kmalloc-48"), SwitchError::UnknownLetter('Q'));
    assert_eq!(refused("F,session"), SwitchError::UnknownClass("session"));
    assert_eq!(
        refused("F,kmalloc-48,kmalloc-50"),
        SwitchError::UnknownClass("kmalloc-50")
    );
    assert_eq!(
        refused("F,kmalloc-48;Z,s*"),
        SwitchError::UnknownClass("s*")
    );
    assert_eq!(refused(";"), SwitchError::NoClass(";"));
    let texts = [
        (
            refused("Q"),
            "slab_debug option 'Q' unknown; known are F Z P U T A O -",
        ),
        (
            refused("F,x"),
            "slab_debug: 'x' is no size class; known are kmalloc-8 to kmalloc-8k",
        ),
        (
            refused(";;"),
            "slab_debug ';;' switches nothing; it takes letters",
        ),
    ];
    for (error, text) in texts {
        assert!(error.to_string().starts_with(text), "{error}");
    }
    assert_eq!(a.caches().count(), 0, "no cache was made");
    let hard = Setup::with(&["hardened=1"]).build();
    assert_eq!(hard.switch_classes("F"), Err(SwitchError::Hardened));
    // Without a fence, another CPU's sheaves would go on.
    let a = repairing(Slots::WithoutFence);
    free_all(&a, take(&a, 100));
    let before = a.kmalloc(40, Gfp::KERNEL);
    assert_eq!(a.switch_classes("F"), Err(SwitchError::NoFence));
    let after = a.kmalloc(40, Gfp::KERNEL);
    assert!(!cache_of(&a, after).is_debugged());
    free_all(&a, vec![before, after]);
    let plain = a
        .caches()
        .find(|cache| cache.name() == "kmalloc-48")
        .unwrap();
    assert!(sheaves_on(&a, plain, 0).0.is_some(), "its words are open");
    assert_all_is_given_back(&a);
}

#[test]
fn without_memory_for_a_twin_the_class_goes_on_plain() {
    let a = repairing(Slots::Locked);
    let held = take(&a, 50);
    for granted in 0..6 {
        a.platform
            .faults()
            .at(Some(FaultSite::Record), granted, usize::MAX);
        let result = a.switch_classes("FZPU");
        a.platform.faults().heal();
        assert_eq!(result, Err(SwitchError::Create(CreateError::NoMemory)));
        let object = a.kmalloc(40, Gfp::KERNEL);
        assert!(!cache_of(&a, object).is_debugged());
        kfree(&a, object);
    }
    switch(&a, "FZPU");
    let object = a.kmalloc(40, Gfp::KERNEL);
    assert!(cache_of(&a, object).is_debugged());
    free_all(&a, held);
    kfree(&a, object);
    assert_silent(&a);
    switch(&a, "-");
    assert_given_back(&a);
}

#[test]
fn a_process_that_never_asks_has_no_twins() {
    let a = repairing(Slots::Locked);
    free_all(&a, take(&a, 10));
    let named = a.create(&CacheArgs::new("first", 64)).unwrap();
    assert_eq!(named.id.index(), NR_CLASSES + 1, "no identity is reserved");
    assert_eq!(a.caches().count(), 2);
}
