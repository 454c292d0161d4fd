//! P7: memory of threads that allocate once and then sleep.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;

use super::child::{self, Report, Work};
use super::face::Face;
use super::row::{Aim, PeerRow};
use super::{Peers, Section};
use crate::bench::Bench;
use crate::error::Failure;

/// Numbers of threads.
const THREADS: [usize; 3] = [16, 64, 1000];
/// Bytes that each thread allocates.
const SIZE: usize = 100;
/// Largest resident memory per sleeping thread, in KiB.
const LIMIT_KIB: f64 = 4.0;
/// Bytes of stack that a thread touches before the measurement.
const STACK: usize = 24 << 10;

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let mut rows = Vec::new();
    for threads in THREADS {
        bench.says(&format!("P7, {threads} threads"));
        let rounds = bench.size.pick(1, 1, 5);
        let all = child::all_at_once(bench, peers, Work::Sleep(threads), rounds)?;
        let kept = child::part(&all, |report| report.per_thread / 1024.0);
        let name = format!("{threads} threads, resident a thread");
        rows.push(PeerRow::new(
            "P7",
            name,
            "KiB",
            &kept,
            Aim::limit(LIMIT_KIB),
        ));
    }
    Ok(Section::new(
        "P7",
        "Threads that sleep",
        "Each thread asks for 100 bytes once, and sleeps. What it keeps is measured against the same threads before they \
         asked. Every allocator in a process of its own.",
        rows,
    ))
}

/// Runs in a child.
pub fn in_child(face: &Face, threads: usize) -> Result<Report, Failure> {
    let steps = Barrier::new(threads + 1);
    let step = || {
        steps.wait();
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let sleeper = || {
                touch_stack();
                step();
                step();
                let _entered = face.enter_for_now();
                let object = black_box(face.alloc(SIZE));
                step();
                step();
                // SAFETY: the object is of this allocator and is freed once.
                unsafe { face.free(object) };
            };
            (thread::Builder::new().spawn_scoped(scope, sleeper))
                .map_err(|error| Failure::System(format!("no {threads} threads: {error}")))?;
        }
        // The cost of a process's first call must not count for a thread.
        let _entered = face.enter_for_now();
        let first = face.alloc(SIZE);
        // SAFETY: the object is of this allocator and is freed once.
        unsafe { face.free(first) };
        step();
        let before = child::resident();
        step();
        step();
        let after = child::resident();
        step();
        Ok(Report {
            per_thread: ((after? - before?) / threads as f64).max(0.0),
            ..Report::default()
        })
    })
}

/// Makes the stack that the calls need resident before the measurement.
#[inline(never)]
fn touch_stack() {
    black_box([1u8; STACK]);
}
