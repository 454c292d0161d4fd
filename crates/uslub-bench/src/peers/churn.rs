//! P5: many threads replace objects of mixed sizes, free all objects, and rest.

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

/// Number of threads.
const THREADS: usize = 64;
/// Objects that each thread holds; together they have 174 MB.
const HELD: usize = 6250;
/// Smallest size. A size is a power of two from here on, plus at most as many bytes again.
const SMALLEST: usize = 16;
/// Number of different powers of two.
const POWERS: usize = 7;
/// Idle time before the resident memory is measured again.
const REST: Duration = Duration::from_secs(5);
/// Limits in MB for resident memory that is not in use: during the work, and after the rest.
const LIMITS_MB: (f64, f64) = (28.0, 10.0);
/// Bytes in a MB.
const MB: f64 = 1e6;

/// Measures the part.
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

/// Runs in a child.
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
        // The threads replace objects.
        steps.wait();
        let busy = child::resident();
        steps.wait();
        // The threads free all objects.
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

/// The work of a thread; returns the bytes that it held at the end.
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
            // SAFETY: the object has `size` bytes.
            unsafe { object.write_bytes(number as u8, size) };
        }
        (object, size)
    };
    held.fill_with(|| fresh(&mut dice));
    for _ in 0..replacements {
        let slot = dice.below(HELD);
        // SAFETY: the object is of this allocator and is freed once.
        unsafe { face.free(held[slot].0) };
        held[slot] = fresh(&mut dice);
    }
    let live = held.iter().map(|(_, size)| size).sum();
    step();
    step();
    for (object, _) in held {
        // SAFETY: the object is of this allocator and is freed once.
        unsafe { face.free(object) };
    }
    step();
    step();
    live
}
