//! What each letter of `slab_debug` finds, for caches and for size classes; and what the options
//! of a whole allocator do.

use std::collections::HashSet;

use super::debug::{cache, peek, poke, repairing, validated};
use crate::support::seen::message;
use crate::support::{Cache, Setup, Slub, assert_all_is_given_back};
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor};
use uslub_core::debug::options::SlabDebug;
use uslub_core::debug::{DebugFlags, POISON_END, POISON_FREE};
use uslub_core::slab::debug::track::Which;

const F: DebugFlags = DebugFlags::CONSISTENCY_CHECKS;
const Z: DebugFlags = DebugFlags::RED_ZONE;
const P: DebugFlags = DebugFlags::POISON;
const T: DebugFlags = DebugFlags::TRACE;

fn free(a: &Slub, cache: &Cache, object: *mut u8) {
    // SAFETY: the allocator must see what is wrong with it.
    unsafe { a.free(cache, object) };
}

/// An allocator with options, ready.
fn with_options(options: &'static str, settings: &[&str]) -> Box<Slub> {
    let setup = Setup::with(settings);
    let a = setup.bare();
    // SAFETY: nobody else has it yet.
    unsafe {
        a.set_slab_debug(SlabDebug::new(options));
        assert!(a.init(setup.reserve, setup.tunables));
    }
    a.keep_indices(uslub_core::kmalloc::NR_CLASSES + 1);
    a
}

#[test]
fn f_finds_a_second_free_and_a_pointer_to_no_object() {
    let a = repairing();
    let cache = cache(&a, "f", 64, F);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    free(&a, cache, object);
    let seen = a.platform.warnings().join("\n");
    assert!(seen.contains("Object already free"), "{seen}");
    assert!(seen.contains(&format!("FIX f: Object at {object:p} not freed")));
    let second = a.alloc(cache, Gfp::KERNEL);
    let third = a.alloc(cache, Gfp::KERNEL);
    assert_ne!(second, third, "no address has two owners");
    free(&a, cache, second.wrapping_add(8));
    let seen = a.platform.warnings().join("\n");
    assert!(seen.contains("Invalid object pointer"), "{seen}");
    free(&a, cache, second);
    free(&a, cache, third);
    assert_eq!(a.validate(), Ok(()));
}

/// A free by the fast path of the Rust and C faces neither marks an object of a debugged cache, nor
/// takes the start of its slot for the start of the object.
#[test]
fn fast_frees_leave_debugged_caches_to_their_checks() {
    for letters in ["F", "FZ", "FP", "FZPU"] {
        let a = with_options(letters, &["slab_debug_fatal=0"]);
        let cache = a.create(&CacheArgs::new("fast", 40)).unwrap();
        for _ in 0..3 {
            let objects: Vec<_> = (0..100).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
            for &object in &objects {
                // SAFETY: allocated above, and freed once.
                unsafe { a.free(cache, object) };
            }
            let small = a.kmalloc(3, Gfp::KERNEL);
            // SAFETY: three bytes were asked for.
            unsafe { small.write_bytes(7, 3) };
            // SAFETY: freed once.
            unsafe { a.kfree(small) };
        }
        let seen = a.platform.warnings().join("\n");
        assert!(seen.is_empty(), "{letters}: {seen}");
    }
}

#[test]
fn f_gives_a_slab_up_whose_freelist_is_damaged() {
    let a = repairing();
    let cache = cache(&a, "f", 64, F);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    poke(
        object,
        cache.links.offset as isize,
        !peek(object, cache.links.offset as isize),
    );
    let next = a.alloc(cache, Gfp::KERNEL);
    let seen = a.platform.warnings().join("\n");
    assert!(seen.contains("Freepointer corrupt"), "{seen}");
    assert!(seen.contains("FIX f: Marking all objects used"), "{seen}");
    assert!(!next.is_null() && next as usize & !4095 != object as usize & !4095);
    free(&a, cache, next);
}

#[test]
fn without_f_a_second_free_ends_the_process_as_ever() {
    let a = repairing();
    let cache = cache(&a, "z", 64, Z);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    let seen = message(|| free(&a, cache, object));
    assert!(seen.contains("double free"), "{seen}");
    let seen = message(|| free(&a, cache, object.wrapping_add(4)));
    assert!(seen.contains("interior"), "{seen}");
}

#[test]
fn z_finds_writes_on_both_sides_at_the_free() {
    let a = repairing();
    let cache = cache(&a, "z", 20, F | Z);
    for (offset, what) in [
        (-1, "Left Redzone"),
        (20, "Right Redzone"),
        (23, "Right Redzone"),
    ] {
        let object = a.alloc(cache, Gfp::KERNEL);
        poke(object, offset, 1);
        free(&a, cache, object);
        let seen = a.platform.warnings().join("\n");
        assert!(seen.contains(&format!("[{what} overwritten]")), "{seen}");
        assert!(seen.contains("not freed"), "{seen}");
    }
}

#[test]
fn p_finds_a_write_after_the_free_at_the_next_allocation() {
    let a = repairing();
    let cache = cache(&a, "p", 64, F | P);
    let object = a.alloc(cache, Gfp::KERNEL);
    assert_eq!(
        (peek(object, 0), peek(object, 63)),
        (POISON_FREE, POISON_END)
    );
    free(&a, cache, object);
    poke(object, 63, 0);
    let other = a.alloc(cache, Gfp::KERNEL);
    assert_ne!(other, object);
    let seen = a.platform.warnings().join("\n");
    assert!(seen.contains("[End Poison overwritten]"), "{seen}");
    free(&a, cache, other);
}

#[test]
fn p_finds_writes_into_padding() {
    let a = repairing();
    let plain = cache(&a, "gap", 60, P);
    let object = a.alloc(plain, Gfp::KERNEL);
    poke(object, 61, 0);
    assert_eq!(validated(&a, plain), 2);
    let seen = a.platform.warnings().join("\n");
    assert!(seen.contains("[Alignment padding overwritten]"), "{seen}");
    let tail = plain.geometry.objects as usize * plain.size as usize;
    assert!(tail < plain.geometry.bytes());
    let base = (object as usize & !(plain.geometry.bytes() - 1)) as *mut u8;
    poke(base, tail as isize, 0);
    assert_eq!(validated(&a, plain), 2);
    let seen = a.platform.warnings().join("\n");
    assert!(seen.contains("Padding overwritten."), "{seen}");
    assert_eq!(validated(&a, plain), 0);
}

#[test]
fn u_says_who_and_groups_the_callers() {
    let a = repairing();
    let cache = cache(&a, "u", 64, DebugFlags::STORE_USER);
    let mut text = String::new();
    a.write_traces(cache, Which::Alloc, &mut text).unwrap();
    assert_eq!(text, "No data\n");
    let held: Vec<_> = (0..5).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
    a.platform.advance(7);
    text.clear();
    a.write_traces(cache, Which::Alloc, &mut text).unwrap();
    assert!(text.starts_with("      5 0x0 age=7 pid=0\n"), "{text}");
    text.clear();
    a.write_traces(cache, Which::Free, &mut text).unwrap();
    assert_eq!(text, "      5 <not-available>\n\n");
    text.clear();
    assert!(a.write_object(held[1].wrapping_add(9), &mut text));
    let start = format!(
        " slab u start {:p} data offset 0 pointer offset 9 size 64",
        held[1]
    );
    assert!(text.starts_with(&start), "{text}");
    held.into_iter().for_each(|object| free(&a, cache, object));
}

#[test]
fn t_writes_a_line_for_each_call() {
    let a = repairing();
    let cache = cache(&a, "t", 64, T);
    let object = a.alloc(cache, Gfp::KERNEL);
    free(&a, cache, object);
    let seen = a.platform.warnings().join("\n");
    assert!(
        seen.contains(&format!("TRACE t alloc {object:p} inuse=1 fp=0x")),
        "{seen}"
    );
    assert!(
        seen.contains(&format!("TRACE t free {object:p} inuse=1 fp=0x")),
        "{seen}"
    );
    assert_eq!(a.debug.errors(), 0);
}

#[test]
fn a_report_is_fatal_unless_it_is_said_otherwise() {
    let a = Setup::default().build();
    let cache = cache(&a, "fatal", 64, F | Z);
    let object = a.alloc(cache, Gfp::KERNEL);
    poke(object, 64, 0);
    let seen = message(|| free(&a, cache, object));
    assert!(
        seen.contains("'fatal'") && seen.contains("slab_debug_fatal=0"),
        "{seen}"
    );
}

#[test]
fn letters_are_switched_while_the_cache_is_used() {
    let a = repairing();
    let debugged = cache(&a, "switched", 64, Z);
    let plain = a.create(&CacheArgs::new("plain", 64)).unwrap();
    assert!(a.set_debug(plain, F).is_err());
    assert!(
        a.set_debug(debugged, F | P).is_err(),
        "P needs another layout"
    );
    assert!(a.set_debug(debugged, DebugFlags::STORE_USER).is_err());
    a.set_debug(debugged, F | T).unwrap();
    let object = a.alloc(debugged, Gfp::KERNEL);
    assert!(!a.platform.warnings().is_empty());
    a.set_debug(debugged, F).unwrap();
    free(&a, debugged, object);
    assert!(a.platform.warnings().is_empty());
    free(&a, debugged, object);
    assert_eq!(a.debug.errors(), 2, "F is on");
    assert!(debugged.debug.get().contains(Z));
}

#[test]
fn options_choose_caches_and_classes_by_name() {
    let a = with_options("FZ,kmalloc-*;P,herbs;-,spices", &[]);
    let debugged = |name| {
        let cache = a.create(&CacheArgs::new(name, 64)).unwrap();
        (cache.is_debugged(), cache.debug.get())
    };
    assert_eq!(debugged("herbs"), (true, P));
    assert_eq!(debugged("spices"), (false, DebugFlags::empty()));
    assert_eq!(debugged("salt"), (false, DebugFlags::empty()));
    let object = a.kmalloc(40, Gfp::KERNEL);
    let class = a.caches().find(|c| c.name() == "kmalloc-48").unwrap();
    assert!(class.is_debugged() && class.debug.get().contains(F | Z));
    assert_eq!(a.ksize(object), 48);
    assert_eq!(a.caches().filter(|c| c.name() == "kmalloc-48").count(), 1);
    // SAFETY: live, freed once.
    unsafe { a.kfree(object) };
    assert_all_is_given_back(&a);
}

#[test]
fn o_spares_caches_whose_order_would_rise() {
    let a = with_options("FZPUO", &[]);
    let flags = |size| {
        let cache = a.create(&CacheArgs::new("sized", size)).unwrap();
        cache.debug.get()
    };
    assert_eq!(flags(4096), F);
    assert_eq!(flags(64), DebugFlags::DEFAULT);
}

#[test]
fn every_size_and_alignment_works_under_all_letters() {
    let a = with_options("FZPU", &[]);
    let mut held = Vec::new();
    let mut seen = HashSet::new();
    for bytes in (0..200).chain((200..9000).step_by(97)) {
        for round in 0..3 {
            let object = match round {
                2 => a.kmalloc_aligned(bytes, 64, Gfp::KERNEL),
                1 => a.kmalloc(bytes, Gfp::KERNEL | Gfp::ZERO),
                _ => a.kmalloc(bytes, Gfp::KERNEL),
            };
            assert!(!object.is_null() && seen.insert(object));
            let align = if round == 2 {
                64
            } else if bytes > 8 {
                16
            } else {
                8
            };
            assert_eq!(object as usize % align, 0);
            assert!(a.ksize(object) >= bytes);
            if round == 1 {
                assert!((0..bytes).all(|i| peek(object, i as isize) == 0));
            }
            // SAFETY: ours.
            unsafe { object.write_bytes(bytes as u8, bytes) };
            held.push((object, bytes));
        }
    }
    assert_eq!(a.validate(), Ok(()));
    for (at, (object, bytes)) in held.iter_mut().enumerate() {
        let wanted = *bytes * (1 + at % 3) / 2 + 1;
        // SAFETY: live.
        let new = unsafe { a.krealloc(*object, wanted, Gfp::KERNEL) };
        let kept = wanted.min(*bytes);
        assert!((0..kept).all(|i| peek(new, i as isize) == *bytes as u8));
        // SAFETY: ours.
        unsafe { new.write_bytes(1, a.ksize(new)) };
        *object = new;
    }
    assert_eq!(a.validate(), Ok(()));
    for (object, _) in held {
        // SAFETY: live, freed once.
        unsafe { a.kfree(object) };
    }
    assert_eq!(a.debug.errors(), 0);
    assert_all_is_given_back_but_stacks(&a);
}

fn assert_all_is_given_back_but_stacks(a: &Slub) {
    a.trim();
    assert_eq!(a.validate(), Ok(()));
    let t = a.totals();
    assert_eq!((t.live, t.slabs, t.large, t.huge), (0, 0, 0, 0));
}

#[test]
fn bulks_prefills_and_constructors_work() {
    unsafe fn construct(object: *mut u8) {
        // SAFETY: 64 bytes.
        unsafe { object.write_bytes(0x11, 64) };
    }
    let a = with_options("FZPU", &[]);
    let mut args = CacheArgs::new("made", 64);
    args.ctor = Some(Ctor::plain(construct));
    let cache = a.create(&args).unwrap();
    let mut out = [std::ptr::null_mut(); 100];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut out));
    for &object in &out {
        assert!((0..64).all(|i| peek(object, i) == 0x11), "constructed");
    }
    let distinct: HashSet<_> = out.iter().collect();
    assert_eq!(distinct.len(), 100);
    // SAFETY: of this cache; freed once.
    unsafe { a.free_bulk(cache, &mut out) };
    let mut some = a.prefill(cache, Gfp::KERNEL, 10).unwrap();
    let object = a.alloc_from(cache, Gfp::KERNEL, &mut some);
    assert!(!object.is_null() && some.size() == 9);
    free(&a, cache, object);
    a.return_prefilled(cache, Gfp::KERNEL, some);
    assert_eq!(a.debug.errors(), 0);
    assert_all_is_given_back_but_stacks(&a);
}

#[test]
fn failslab_fails_what_it_is_told_to() {
    let a = Setup::with(&["failslab_nth=3"]).build();
    let cache = a.create(&CacheArgs::new("some", 64)).unwrap();
    let got: Vec<bool> = (0..5)
        .map(|_| !a.alloc(cache, Gfp::KERNEL).is_null())
        .collect();
    assert_eq!(got, [true, true, false, true, true]);
    assert_eq!(a.debug.fail.failures(), 1);
    let a = with_options("A,some", &["failslab_probability=100", "failslab_cache=1"]);
    let some = a.create(&CacheArgs::new("some", 64)).unwrap();
    let others = a.create(&CacheArgs::new("others", 64)).unwrap();
    assert!(a.alloc(some, Gfp::KERNEL).is_null());
    assert!(!a.alloc(some, Gfp::KERNEL | Gfp::NOFAIL).is_null());
    assert!(!a.alloc(others, Gfp::KERNEL).is_null());
}

#[test]
fn no_byte_survives_init_on_alloc_and_init_on_free() {
    for setting in ["init_on_alloc=1", "init_on_free=1"] {
        let a = Setup::with(&[setting]).build();
        let cache = a.create(&CacheArgs::new("init", 100)).unwrap();
        for _ in 0..3 {
            let held: Vec<_> = (0..50).map(|_| a.alloc(cache, Gfp::KERNEL)).collect();
            for &object in &held {
                assert!((0..100).all(|i| peek(object, i) == 0), "{setting}");
                // SAFETY: ours.
                unsafe { object.write_bytes(0x77, 100) };
            }
            held.into_iter().for_each(|object| free(&a, cache, object));
        }
        let object = a.kmalloc(500, Gfp::KERNEL);
        assert!((0..500).all(|i| peek(object, i) == 0), "{setting}");
    }
}
