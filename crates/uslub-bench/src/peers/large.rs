//! P8: large objects are allocated, touched and freed.

use super::child::{self, Report, Work};
use super::face::{Face, OURS};
use super::row::{Aim, PeerRow, Rounds};
use super::{More, Peers, Section};
use crate::bench::Bench;
use crate::error::Failure;
use crate::linux;

/// Sizes of the objects, in KiB.
const SIZES: [usize; 8] = [256, 512, 1020, 1025, 1500, 2000, 4200, 16384];
/// Numbers of objects that are live at the same time.
const LIVE: [usize; 3] = [1, 8, 32];
/// A difference up to this counts as a tie, in microseconds.
const TIE_US: f64 = 3.0;
/// Bytes that a round allocates, at least 64 objects.
const BYTES: usize = 4 << 30;
/// Bytes of a page. One byte is written to each, in its middle: a loop that writes the first or the
/// last byte of each takes twice the time on some Xeons. Whether it does so would depend on where
/// the allocator's headers put the object.
const PAGE: usize = 4096;

/// Measures the part.
pub fn run(bench: &Bench, peers: &Peers) -> Result<Section, Failure> {
    let mut rows = Vec::new();
    let sizes = bench.size.pick(&SIZES[..1], &SIZES[..], &SIZES[..]);
    for &kib in sizes {
        for live in LIVE {
            bench.says(&format!("P8, {live} objects of {kib} KiB"));
            let of = |face| {
                let report = child::run(peers, face, Work::Large { kib, live })?;
                Ok(report.nanoseconds / 1000.0)
            };
            let ours: More<'_> = (OURS, Box::new(move || of(OURS)));
            let rounds: Rounds = peers.each_and(bench, |face| of(face.name), vec![ours])?;
            let name = format!("{kib} KiB, {live} live");
            let aim = Aim::ratio(1.1).tie(TIE_US);
            rows.push(PeerRow::new("P8", name, "µs", &rounds, aim));
        }
    }
    Ok(Section::new(
        "P8",
        "Large objects",
        "The oldest of a few live objects is freed, and another allocated; a byte is written \
         into the middle of each of its pages. CPU time of the whole process, for each object. \
         Every allocator in a process of its own.",
        rows,
    ))
}

/// Runs in a child.
pub fn in_child(face: &Face, kib: usize, live: usize) -> Result<Report, Failure> {
    face.enter();
    let bytes = kib << 10;
    let count = (BYTES / bytes).max(64);
    let mut objects = vec![std::ptr::null_mut::<u8>(); live];
    let before = linux::cpu_time()?;
    for i in 0..count {
        let place = &mut objects[i % live];
        if !place.is_null() {
            // SAFETY: the object is of this allocator and is freed once.
            unsafe { face.free(*place) };
        }
        *place = face.alloc(bytes);
        if place.is_null() {
            return Err(Failure::NoMemory("for large objects"));
        }
        let middle = (PAGE + PAGE / 2 - place.addr() % PAGE) % PAGE;
        for at in (middle..bytes).step_by(PAGE) {
            // SAFETY: inside the object, which is ours.
            unsafe { place.add(at).write_volatile(1) };
        }
    }
    let nanoseconds = (linux::cpu_time()? - before) * 1e9 / count as f64;
    Ok(Report {
        nanoseconds,
        ..Report::default()
    })
}
