//! The barn, in every order of the CPUs that exchange sheaves through it.
//!
//! The barn is the real one. A sheaf that a thread has is its own: it says that it writes the
//! sheaf's objects.

#![cfg(loom)]

use std::ptr::NonNull;

use uslub_core::percpu::sheaf::{Sheaf, Window};
use uslub_core::sheaf::barn::Barn;
use uslub_core::sync::loom_atomics;
use uslub_core::tunables::Tunables;
use uslub_models::machine::Machine;
use uslub_models::model::Model;
use uslub_models::orders::{preemptions, spawn};

/// Objects of a sheaf in these models.
const CAPACITY: usize = 2;
/// Full or empty sheaves that the barn holds, at most.
const LIMIT: usize = 2;

/// A barn with `full` full sheaves and `empty` empty ones.
fn barn_with(full: usize, empty: usize) -> (Model, &'static Barn<Machine>) {
    let model = Model::new(1, None, Tunables::DEFAULT);
    let barn = model.place(Barn::new());
    loom_atomics::watch(std::ptr::from_ref(barn) as usize, size_of_val(barn));
    for n in 0..full + empty {
        let mut sheaf = sheaf(&model);
        let stored = if n < full {
            fill(&mut sheaf);
            barn.put_full(sheaf, LIMIT, true)
        } else {
            barn.put_empty(sheaf, LIMIT, true)
        };
        stored.expect("room in the barn");
    }
    (model, barn)
}

fn sheaf(model: &Model) -> Sheaf {
    let window = model.place_bytes(size_of::<Window>(), size_of::<Window>());
    let window = NonNull::new(window as *mut Window).expect("a window");
    // SAFETY: fresh memory, for ever.
    unsafe { Sheaf::new(window, CAPACITY, 1) }
}

fn fill(sheaf: &mut Sheaf) {
    while !sheaf.is_full() {
        sheaf.push((8 * (sheaf.len() + 1)) as *mut u8);
    }
}

/// Takes all objects of a sheaf, whose owner the caller is.
fn empty(sheaf: &mut Sheaf) {
    while sheaf.pop().is_some() {}
    // Whoever has it next finds what was written here.
    sheaf.room();
}

/// How many sheaves the barn has: full ones that are full, and empty ones that are empty.
fn count(barn: &Barn<Machine>) -> (usize, usize) {
    let (mut full, mut empty) = barn.take_all();
    let mut counts = (0, 0);
    while let Some(sheaf) = full.pop() {
        assert!(sheaf.is_full());
        counts.0 += 1;
    }
    while let Some(sheaf) = empty.pop() {
        assert!(sheaf.is_empty());
        counts.1 += 1;
    }
    counts
}

/// A CPU that needs a full sheaf gives its empty one; one that needs an empty sheaf gives its full
/// one.
#[test]
fn sheaves_are_exchanged_whole() {
    let (model, barn) = barn_with(1, 1);
    model.check("barn exchange", preemptions(3), move |_| {
        let allocates = spawn(0, move || {
            let Some(mut sheaf) = barn.exchange_empty(&mut None, 0, true) else {
                return 0;
            };
            assert!(sheaf.is_full());
            empty(&mut sheaf);
            usize::from(barn.put_empty(sheaf, LIMIT, true).is_err())
        });
        let frees = spawn(0, move || {
            let Some(mut sheaf) = barn.get_empty(true) else {
                return 0;
            };
            assert!(sheaf.is_empty());
            fill(&mut sheaf);
            usize::from(barn.put_full(sheaf, LIMIT, true).is_err())
        });
        let lost = allocates.join().unwrap() + frees.join().unwrap();
        let (full, empty) = count(barn);
        assert_eq!(full + empty + lost, 2, "a sheaf is lost or there twice");
        Vec::new()
    });
}

/// The same under one hold of the lock each: who allocates leaves an empty sheaf, and who frees
/// takes one.
#[test]
fn sheaves_are_exchanged_under_one_hold() {
    let (model, barn) = barn_with(1, 1);
    model.check("barn exchange in one hold", preemptions(3), move |_| {
        let exchange = || {
            spawn(0, move || {
                let (mut mine, mut lost) = (barn.get_empty(true), 0);
                let had = usize::from(mine.is_some());
                let Some(mut sheaf) = barn.exchange_empty(&mut mine, LIMIT, true) else {
                    return had;
                };
                assert!(sheaf.is_full() && mine.is_none());
                empty(&mut sheaf);
                fill(&mut sheaf);
                match barn.exchange_full(sheaf, LIMIT, true) {
                    Ok(Some(empty)) => {
                        assert!(empty.is_empty());
                        lost += 1;
                    }
                    Ok(None) => {}
                    Err(_) => lost += 1,
                }
                lost
            })
        };
        let exchangers = [exchange(), exchange()];
        let held: usize = exchangers.map(|e| e.join().unwrap()).iter().sum();
        let (full, empty) = count(barn);
        assert_eq!(full + empty + held, 2, "a sheaf is lost or there twice");
        Vec::new()
    });
}

#[test]
fn no_sheaf_is_given_to_two() {
    let (model, barn) = barn_with(1, 0);
    model.check("barn, one sheaf for two", preemptions(3), move |_| {
        let take = || {
            spawn(0, move || {
                let mut sheaf = barn.exchange_empty(&mut None, 0, true)?;
                empty(&mut sheaf);
                Some(sheaf.into_window().as_ptr() as usize)
            })
        };
        let takers = [take(), take()];
        let got = takers.map(|t| t.join().unwrap());
        assert_eq!(got.iter().flatten().count(), 1);
        Vec::new()
    });
}

/// One thread may not wait for the lock; a third looks for surplus.
#[test]
fn who_may_not_wait_keeps_the_sheaf() {
    let (model, barn) = barn_with(2, 0);
    model.check("barn without waiting", preemptions(2), move |_| {
        let mover = spawn(0, move || match barn.exchange_empty(&mut None, 0, false) {
            Some(sheaf) => usize::from(barn.put_full(sheaf, LIMIT, false).is_err()),
            None => 0,
        });
        let surplus = spawn(0, move || {
            let mut gone = 0;
            let mut list = barn.take_surplus();
            while let Some(sheaf) = list.pop() {
                assert!(sheaf.is_full());
                gone += 1;
            }
            gone
        });
        let gone = mover.join().unwrap() + surplus.join().unwrap();
        assert_eq!(count(barn).0 + gone, 2);
        Vec::new()
    });
}
