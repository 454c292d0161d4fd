//! P5: many threads replace objects of mixed sizes, free all, and rest.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::child::{self, Report, Work};
use super::face::Face;
use super::row::{Aim, PeerRow};
use super::{Peers, Section};
use crate::bench::Bench;
use crate::dice::Dice;
use crate::error::Failure;
use crate::threads::joined;

/// Threads that churn.
const THREADS: usize = 64;
/// Objects that each holds: 174 MB in all.
const HELD: usize = 6250;
/// Sizes: a power of two from here on, and up to as much again.
const SMALLEST: usize = 16;
/// Powers of two that are drawn from.
const POWERS: usize = 7;
/// How long nobody calls before the rest is measured.
const REST: Duration = Duration::from_secs(5);
/// Most that may lie around while threads churn, and when all is freed, in MB.
const LIMITS_MB: (f64, f64) = (28.0, 10.0);
/// Bytes of a MB.
const MB: f64 = 1e6;

/// Runs it.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    bench.says("P5, churn and rest");
    let work = Work::Churn(bench.size.pick(100, 30_000, 600_000));
    let all = child::all_at_once(bench, peers, work, bench.size.pick(1, 2, 7))?;
    let over = child::part(&all, |report| report.over / MB);
    let idle = child::part(&all, |report| report.idle / MB);
    let (most, rest) = LIMITS_MB;
    let rows = vec![
        PeerRow::new(
            "P5",
            "resident over live while churning",
            "MB",
            &over,
            Aim::limit(most),
        ),
        PeerRow::new(
            "P5",
            "resident 5 s after all is freed",
            "MB",
            &idle,
            Aim::limit(rest),
        ),
    ];
    Ok(Section::new(
        "P5",
        "Churn, then rest",
        "64 threads hold 174 MB of objects of 16 to 2,047 bytes and replace them at random; then they free all, and \
         nobody calls for 5 seconds. Every allocator in a process of its own; uslub with its helper thread, as `uslub run` \
         starts programs.",
        rows,
    ))
}

/// In a child.
pub fn in_child(face: &Face, replacements: usize) -> Result<Report, Failure> {
    let steps = Barrier::new(THREADS + 1);
    let mut report = Report::default();
    thread::scope(|scope| {
        let start = |number| {
            let (face, steps) = (face, &steps);
            scope.spawn(move || churn(face, number, replacements, steps))
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        steps.wait();
        let before = child::resident();
        steps.wait();
        // They churn.
        steps.wait();
        let busy = child::resident();
        steps.wait();
        // They free.
        steps.wait();
        thread::sleep(REST);
        let idle = child::resident();
        steps.wait();
        let live: usize = threads.into_iter().map(joined).sum();
        let before = before?;
        report.over = busy? - before - live as f64;
        report.idle = (idle? - before).max(0.0);
        Ok(report)
    })
}

/// A thread's work; returns the bytes that it held at the end.
fn churn(face: &Face, number: usize, replacements: usize, steps: &Barrier) -> usize {
    let mut dice = Dice::new(number as u64);
    let mut held = vec![(std::ptr::dangling_mut::<u8>(), 1usize); HELD];
    let step = || {
        steps.wait();
    };
    step();
    step();
    let _entered = face.enter_for_now();
    let fresh = |dice: &mut Dice| {
        let power = SMALLEST << dice.below(POWERS);
        let size = power + dice.below(power);
        let object = face.alloc(size);
        if !object.is_null() {
            // SAFETY: so many bytes are there.
            unsafe { object.write_bytes(number as u8, size) };
        }
        (object, size)
    };
    held.fill_with(|| fresh(&mut dice));
    for _ in 0..replacements {
        let slot = dice.below(HELD);
        // SAFETY: this allocator's, freed once.
        unsafe { face.free(held[slot].0) };
        held[slot] = fresh(&mut dice);
    }
    let live = held.iter().map(|(_, size)| size).sum();
    step();
    step();
    for (object, _) in held {
        // SAFETY: this allocator's, freed once.
        unsafe { face.free(object) };
    }
    step();
    step();
    live
}
