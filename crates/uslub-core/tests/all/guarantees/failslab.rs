//! Failures by probability, in all layers at once, while threads use every call: nothing is lost or
//! damaged, and when the failures end all is given back. `USLUB_SEED` makes other walks.

use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use crate::support::pattern::{fill, is_filled};
use crate::support::{Cache, Dice, Setup, Slots, Slub, assert_all_is_given_back, hop};
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;

const SIZE: usize = 96;

/// What a thread holds: an object, its size, and whether it is the cache's.
type Held = (*mut u8, usize, bool);

fn mark(object: *mut u8) -> u8 {
    (object as usize >> 3) as u8
}

fn release(a: &Slub, cache: &Cache, (object, bytes, of_cache): Held) {
    assert!(
        is_filled(object, bytes, mark(object)),
        "{object:p} is damaged"
    );
    // SAFETY: live, freed once.
    unsafe {
        if of_cache {
            a.free(cache, object);
        } else {
            a.kfree(object);
        }
    }
}

fn keep(held: &mut Vec<Held>, refused: &AtomicUsize, object: *mut u8, bytes: usize, of: bool) {
    if object.is_null() {
        // Relaxed: a figure.
        refused.fetch_add(1, Relaxed);
        return;
    }
    fill(object, bytes, mark(object));
    held.push((object, bytes, of));
}

/// A random walk over the calls; every null is fine, everything else must hold.
fn walk(a: &Slub, cache: &Cache, seed: u64, refused: &AtomicUsize) {
    let mut dice = Dice::new(seed);
    let mut held: Vec<Held> = vec![];
    for _ in 0..3000 {
        let bytes = 1 << dice.below(20);
        match dice.below(8) {
            0 | 1 => keep(&mut held, refused, a.alloc(cache, Gfp::KERNEL), SIZE, true),
            2 => keep(
                &mut held,
                refused,
                a.kmalloc(bytes, Gfp::KERNEL),
                bytes,
                false,
            ),
            3 => {
                let mut out = [null_mut(); 40];
                if a.alloc_bulk(cache, Gfp::KERNEL, &mut out) {
                    for object in out {
                        keep(&mut held, refused, object, SIZE, true);
                    }
                } else {
                    // Relaxed: a figure.
                    refused.fetch_add(1, Relaxed);
                }
            }
            4 => {
                if let Some(mut aside) = a.prefill(cache, Gfp::KERNEL, 1 + dice.below(60)) {
                    let object = a.alloc_from(cache, Gfp::NOSPIN, &mut aside);
                    keep(&mut held, refused, object, SIZE, true);
                    a.return_prefilled(cache, Gfp::KERNEL, aside);
                }
            }
            5 => {
                let Some(at) = held.iter().rposition(|&(_, _, of_cache)| !of_cache) else {
                    continue;
                };
                let (object, old, _) = held[at];
                // SAFETY: live.
                let moved = unsafe { a.krealloc(object, bytes, Gfp::KERNEL) };
                if !moved.is_null() {
                    assert!(is_filled(moved, old.min(bytes), mark(object)));
                    fill(moved, bytes, mark(moved));
                    held[at] = (moved, bytes, false);
                }
            }
            6 if dice.below(50) == 0 => {
                a.shrink_all();
            }
            _ => {
                for _ in 0..held.len().min(1 + dice.below(20)) {
                    let at = dice.below(held.len());
                    release(a, cache, held.swap_remove(at));
                }
            }
        }
    }
    held.into_iter().for_each(|one| release(a, cache, one));
}

fn torture(per_mille: u64, setup: Setup, threads: u64) {
    let a = setup.build();
    let cache = a.create(&CacheArgs::new("test", SIZE)).unwrap();
    let refused = AtomicUsize::new(0);
    let more: u64 = std::env::var("USLUB_SEED").map_or(0, |text| text.parse().expect("a number"));
    a.platform
        .faults()
        .often(per_mille, per_mille + threads + 1000 * more);
    thread::scope(|scope| {
        for seed in 1..=threads {
            let (a, refused) = (&a, &refused);
            scope.spawn(move || {
                hop(seed + 1000 * more);
                walk(a, cache, seed + 1000 * more, refused);
            });
        }
    });
    let (asked, failed) = a.platform.faults().heal();
    println!("{per_mille} ‰: {failed} of {asked} failed, {refused:?} calls said so");
    assert!(failed > 0 && failed < asked);
    assert_eq!(a.validate(), Ok(()));
    if setup.slots != Slots::WithoutFence {
        // Without a fence the sheaves of other CPUs stay where they are.
        assert_all_is_given_back(&a);
    }
}

#[test]
fn one_thread_loses_nothing_whatever_fails() {
    for per_mille in [10, 100, 500] {
        for slots in [Slots::Locked, Slots::Restartable, Slots::WithoutFence] {
            let setup = Setup {
                slots,
                ..Setup::default()
            };
            torture(per_mille, setup, 1);
        }
    }
}

#[test]
fn threads_lose_nothing_whatever_fails() {
    for per_mille in [10, 200] {
        for slots in [Slots::Locked, Slots::Restartable] {
            let setup = Setup {
                slots,
                ..Setup::default()
            };
            torture(per_mille, setup, 4);
        }
    }
}

#[test]
fn nothing_is_lost_on_two_nodes_whatever_fails() {
    let setup = Setup {
        nodes: 2,
        ..Setup::default()
    };
    torture(50, setup, 3);
}

#[test]
fn sparse_cpu_numbers_are_served_whatever_fails() {
    // 200 numbers, of which few are ever seen: each has a region of its own, which may be refused.
    let setup = Setup {
        cpus: 200,
        ..Setup::default()
    };
    torture(50, setup, 2);
}
