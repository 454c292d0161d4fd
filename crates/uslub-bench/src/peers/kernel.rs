//! K: the cost of SLUB inside the kernel, compared with uslub by the same calls.

use std::cell::RefCell;

use uslub_core::Gfp;

use super::face::OURS;
use super::pair::{bare, direct};
use super::row::{Aim, PeerRow, Rounds};
use super::{More, Peers, Section, in_turn, outcomes};
use crate::bench::Bench;
use crate::bulks::{Places, at_once, one_by_one, sequences};
use crate::error::Failure;
use crate::floor::{FLOOR, Floor};
use crate::fresh::{self, Room, Times};
use crate::kernel::{BULKS, FRESH, KERNELS, KMALLOC, Known, NEWEST, PAIR, SINGLES};
use crate::linux::{self, Pinned, Slub};
use crate::output::Chart;
use crate::strategy::Strategy;

/// Bytes of an object, unless the table says otherwise.
const SIZE: usize = 256;
/// The orders of objects in fresh slabs.
const ORDERS: [&str; 2] = ["in order", "in random order"];
/// Bytes of an object of kmalloc.
const KMALLOC_SIZE: usize = 64;

/// Measures the part.
pub fn run(bench: &Bench, _: &Peers) -> Result<Section, Failure> {
    let rows = rows(bench)?;
    let charts = charts(&rows);
    let section = Section::new(
        "K",
        "The kernel's own table",
        "One CPU; caches as they are by default, by the faces that the kernel's caches have. The kernel's figures are of another machine, on \
         which a load from the first-level cache takes 1.1 ns. Fresh slabs: 256 MiB of objects live at once, allocated and freed in bulks of \
         a slab; the floor writes addresses into the same array, with one compare-and-swap a bulk, and looks at each again.",
        rows,
    );
    Ok(Section { charts, ..section })
}

/// A function that selects a figure of a row.
type Figure = fn(&PeerRow) -> f64;

/// Number of rows for each order of objects in fresh slabs.
const OF_AN_ORDER: usize = 2 * FRESH.len();

/// Charts of the rows, with the newest kernel.
fn charts(rows: &[PeerRow]) -> Vec<Chart> {
    let ours = |row: &PeerRow| row.figures.ours.unwrap_or(f64::NAN);
    let of_kernel = |row: &PeerRow| row.figures.peers[KERNELS[0]];
    let (_, rows) = rows.split_at(2);
    let (bulks, rows) = rows.split_at(BULKS.len());
    let (_, fresh) = rows.split_at(SINGLES.len());
    let curve = |of: Figure| {
        let points = bulks.iter().zip(BULKS);
        points
            .map(|(row, (n, _))| (n as f64, of(row)))
            .collect::<Vec<_>>()
    };
    let title = "Allocate and free N objects at once";
    let at_once = Chart::curves(title, "objects", "ns an object")
        .with("uslub", curve(ours))
        .with(NEWEST, curve(of_kernel));
    let (in_order, in_random) = fresh.split_at(OF_AN_ORDER);
    let bars = |title, part: usize| {
        let sizes = FRESH.iter().map(|known| format!("{} B", known.size));
        let mut chart = Chart::bars(title, "ns an object", sizes.collect());
        for (name, figure) in [("uslub", ours as Figure), (NEWEST, of_kernel)] {
            for (order, rows) in ORDERS.into_iter().zip([in_order, in_random]) {
                let figures = rows.iter().skip(part).step_by(2).map(figure);
                chart = chart.with(&format!("{name}, {order}"), figures.collect::<Vec<_>>());
            }
        }
        chart
    };
    vec![
        at_once,
        bars("Bulk allocation from fresh slabs", 0),
        bars("Bulk free of whole slabs", 1),
    ]
}

fn rows(bench: &Bench) -> Result<Vec<PeerRow>, Failure> {
    let _pinned = Pinned::to_the_last()?;
    let slub = linux::steady()?;
    let mut rows = vec![pair(bench, slub)?, kmalloc_pair(bench, slub)?];
    rows.extend(bulks(bench, slub)?);
    for (random, order) in ORDERS.into_iter().enumerate() {
        for known in FRESH {
            let size = known.size;
            bench.says(&format!("K, fresh slabs of {size} B, {order}"));
            let [allocated, freed] = fresh_slabs(bench, slub, size, random == 1)?;
            let name = format!("{size} B from fresh slabs, {order}");
            rows.push(row(name, allocated, known.alloc[random]));
            rows.push(row(
                format!("bulk free of those {size} B, {order}"),
                freed,
                known.free,
            ));
        }
    }
    Ok(rows)
}

/// A row with uslub, the floor and the kernels.
fn row(name: String, mut rounds: Rounds, known: Known) -> PeerRow {
    let all = rounds.ours.len();
    let kernels = KERNELS.into_iter().zip(known);
    rounds.peers = kernels.map(|(name, ns)| (name, vec![ns; all])).collect();
    PeerRow::new("K", name, "ns/object", &rounds, Aim::ratio(1.0))
}

fn pair(bench: &Bench, slub: &Slub) -> Result<PeerRow, Failure> {
    bench.says("K, a pair");
    let strategy = Strategy::new(slub, SIZE, &[])?;
    let cache = strategy.cache;
    let alloc = || slub.alloc(cache, Gfp::KERNEL);
    // SAFETY: the object is of this cache and is freed once; null is ignored.
    let free = |object| unsafe { slub.free(cache, object) };
    let rounds = pairs::<SIZE>(bench, |loops| direct(loops, alloc, free))?;
    strategy.check_at_rest()?;
    Ok(row(format!("pair of {SIZE} B, cache"), rounds, PAIR))
}

fn kmalloc_pair(bench: &Bench, slub: &Slub) -> Result<PeerRow, Failure> {
    bench.says("K, a pair by kmalloc");
    let alloc = || slub.kmalloc(KMALLOC_SIZE, Gfp::KERNEL);
    // SAFETY: the object is of this allocator and is freed once; null is ignored.
    let free = |object| unsafe { slub.kfree(object) };
    let rounds = pairs::<KMALLOC_SIZE>(bench, |loops| direct(loops, alloc, free))?;
    Ok(row(
        format!("pair of {KMALLOC_SIZE} B, kmalloc"),
        rounds,
        KMALLOC,
    ))
}

/// The rounds of pairs, on uslub and on the floor.
fn pairs<const BYTES: usize>(
    bench: &Bench,
    ours: impl Fn(usize) -> f64,
) -> Result<Rounds, Failure> {
    let loops = bench.size.pick(10_000, 500_000, 4_000_000);
    let mut all: Vec<More<'_>> = vec![(OURS, Box::new(|| Ok(ours(loops))))];
    all.extend(bare::<BYTES>(loops)?);
    in_turn(bench, all)
}

/// N objects: with one bulk call each way, and with single calls.
fn bulks(bench: &Bench, slub: &Slub) -> Result<Vec<PeerRow>, Failure> {
    let strategy = Strategy::new(slub, SIZE, &[])?;
    let floor = Floor::here()?;
    let ours = |objects: &mut [_]| at_once(&strategy, objects);
    let mut rows = many(bench, "bulk", &BULKS, ours, |o| sequences(floor, o))?;
    let ours = |objects: &mut [_]| one_by_one(&strategy, objects);
    rows.extend(many(bench, "one by one", &SINGLES, ours, |o| {
        singles(floor, o)
    })?);
    strategy.check_at_rest()?;
    Ok(rows)
}

/// A row for each number of objects in a table. `ours` and `bare` do the work on an array, on uslub
/// and on the floor. Both return whether there was memory.
fn many(
    bench: &Bench,
    how: &str,
    table: &[(usize, Known)],
    ours: impl Fn(&mut [*mut u8]) -> bool,
    bare: impl Fn(&mut [*mut u8]) -> bool,
) -> Result<Vec<PeerRow>, Failure> {
    let mut rows = Vec::new();
    for &(n, known) in table {
        let name = format!("{n} of {SIZE} B, {how}");
        bench.says(&format!("K, {name}"));
        let loops = (bench.size.pick(1_000, 250_000, 1_000_000) / n).max(1);
        let places = RefCell::new(Places::new());
        let ours = || places.borrow_mut().time(OURS, loops, n, &ours);
        let bare = || places.borrow_mut().time(FLOOR, loops, n, &bare);
        let mut all: Vec<More<'_>> = vec![(OURS, Box::new(ours))];
        if Floor::here()?.is_some() {
            all.push((FLOOR, Box::new(bare)));
        }
        rows.push(row(name, in_turn(bench, all)?, known));
    }
    Ok(rows)
}

/// Only the two restartable sequences of single calls, if the thread has them.
#[inline(never)]
fn singles(floor: Option<&Floor>, objects: &mut [*mut u8]) -> bool {
    if let Some(floor) = floor {
        objects.fill_with(|| floor.pop(SIZE));
        for &mut object in objects {
            floor.push(SIZE, object);
        }
    }
    true
}

/// Rounds of allocation from fresh slabs, and of the free.
fn fresh_slabs(
    bench: &Bench,
    slub: &Slub,
    size: usize,
    random: bool,
) -> Result<[Rounds; 2], Failure> {
    let strategy = Strategy::new(slub, size, &[fresh::OBJECTS, fresh::order(random)])?;
    let batch = strategy.slab_objects();
    let live = bench.size.pick(1, 32, 256) << 20;
    let room = RefCell::new(Room::new(live, size, batch));
    let all: Vec<More<'_, Times>> = vec![
        (
            OURS,
            Box::new(|| fresh::round(&strategy, &mut room.borrow_mut(), batch)),
        ),
        (
            FLOOR,
            Box::new(|| Ok(fresh::least(size, &mut room.borrow_mut(), batch))),
        ),
    ];
    let all = outcomes(bench, all)?;
    strategy.check_at_rest()?;
    let part = |of: fn(&Times) -> f64| {
        let each = all.iter();
        Rounds::of(
            each.map(|(name, times)| (*name, times.iter().map(of).collect()))
                .collect(),
        )
    };
    Ok([part(|times| times.alloc), part(|times| times.free)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Size;

    #[test]
    fn every_figure_of_the_table_has_ours_beside_it() {
        let rows = rows(&Bench::quiet(Size::Tiny)).unwrap();
        assert_eq!(
            rows.len(),
            2 + BULKS.len() + SINGLES.len() + 4 * FRESH.len()
        );
        assert_eq!(charts(&rows).len(), 3);
        for row in rows {
            assert!(row.figures.ours.is_some_and(|ours| ours > 0.0), "{row:?}");
            assert!(
                KERNELS.iter().all(|kernel| row.figures.peers[kernel] > 0.0),
                "{row:?}"
            );
            assert!(row.met.is_some() && row.goal == "≤ 1 × the best", "{row:?}");
        }
    }
}
