//! A flow of objects from a producer to a consumer. Both rows of seed 4 use it.

use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::Gfp;
use uslub_core::mempool::{Mempool, SlabSource};
use uslub_core::platform::Platform;

use crate::error::Failure;
use crate::goal::Goal;
use crate::linux::{self, Pinned};
use crate::measure::{Sample, nanoseconds};
use crate::ring::{Ring, wait_until};
use crate::seeds::{Row, Way};
use crate::strategy::Strategy;
use crate::threads::joined;

/// Capacity of a ring in objects: few are in flight, and the barn serves most allocations.
pub const DEPTH: usize = 128;
/// Capacity of a ring whose objects the barn cannot hold.
pub const DEEP: usize = 32_768;

/// Objects that stay in a ring until the end, as requests stay with a device: half of a deep ring,
/// so that the consumer cannot empty it, and the barn does not serve the producer.
pub fn in_flight(depth: usize) -> usize {
    match depth {
        DEEP => DEEP / 2,
        _ => 0,
    }
}

/// Objects that are passed on at once.
pub const BATCH: usize = 32;
/// Objects that are allocated and freed in advance, so that partial slabs exist.
const WARM: usize = 4096;
/// Smallest ratio to the rate of `GFP_KERNEL`.
const SHARE_OF_KERNEL: f64 = 0.95;

/// A source of elements.
pub trait Elements: Sync {
    /// Allocates an element; null without memory.
    fn alloc(&self) -> *mut u8;
    /// Frees an element.
    ///
    /// # Safety
    ///
    /// This source allocated the element, and no thread uses it any longer.
    unsafe fn free(&self, element: *mut u8);
}

/// The cache as a source.
pub struct Direct<'a, 'b, P: Platform> {
    /// The cache.
    pub strategy: &'a Strategy<'b, P>,
    /// The flags of an allocation.
    pub gfp: Gfp,
}

impl<P: Platform> Elements for Direct<'_, '_, P> {
    #[inline]
    fn alloc(&self) -> *mut u8 {
        self.strategy.slub.alloc(self.strategy.cache, self.gfp)
    }

    #[inline]
    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.strategy.slub.free(self.strategy.cache, element) }
    }
}

/// A pool over a cache as a source.
pub struct Pooled<'a, 'b, P: Platform> {
    /// The pool.
    pub pool: &'a Mempool<'b, P, SlabSource<'b, P>>,
    /// The flags of an allocation.
    pub gfp: Gfp,
}

impl<P: Platform> Elements for Pooled<'_, '_, P> {
    #[inline]
    fn alloc(&self) -> *mut u8 {
        self.pool.alloc(self.gfp)
    }

    #[inline]
    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.pool.free(element) }
    }
}

/// The results of a round.
pub struct Flow {
    /// Million objects a second.
    pub rate: f64,
    /// Share of allocations that a sheaf served, in per cent.
    pub from_sheaves: f64,
    /// List locks per 1000 objects, if the allocator counts them.
    pub list_locks: Option<f64>,
}

/// The rates of all rounds.
pub fn rate(rounds: &[Flow]) -> Sample {
    Sample::of_each(rounds, |flow| flow.rate)
}

/// Adds the rows of rate and share of sheaves. Returns the list locks of old and new, if the
/// allocator counts them.
pub fn push_rows(
    rows: &mut Vec<Row>,
    what: &str,
    reported: &str,
    ways: &[Way; 2],
    [old, new, kernel]: [&[Flow]; 3],
) -> Option<[Sample; 2]> {
    let of_kernel = rate(kernel).median;
    let goal = Goal::none().and(
        format!("≥ 95 % of GFP_KERNEL's {of_kernel:.1}"),
        rate(new).median >= SHARE_OF_KERNEL * of_kernel,
    );
    let name = format!("{what}, rate");
    let row = Row::new(4, name, "M objects/s", Some(rate(old)), rate(new), &goal);
    let slow = |rounds: &[Flow]| Sample::of_each(rounds, |flow| 100.0 - flow.from_sheaves).median;
    let row = row.witness("allocations from slabs, per cent", slow(old), slow(new));
    rows.push(row.reported(reported).ways(&ways[0], &ways[1]));
    let share = |rounds: &[Flow]| Sample::of_each(rounds, |flow| flow.from_sheaves);
    let goal = Goal::none().at_least(share(new), 99.0, "%");
    let name = format!("{what}, from sheaves");
    let row = Row::new(4, name, "%", Some(share(old)), share(new), &goal);
    rows.push(row.ways(&ways[0], &ways[1]));
    let locks = |rounds: &[Flow]| {
        let known: Option<Vec<_>> = rounds.iter().map(|flow| flow.list_locks).collect();
        known.map(Sample::of)
    };
    Some([locks(old)?, locks(new)?])
}

/// The counters before a round.
struct Before {
    fast: u64,
    slow: u64,
    locks: Option<u64>,
}

impl Before {
    fn look<P: Platform>(strategy: &Strategy<'_, P>) -> Result<Self, Failure> {
        Ok(Self {
            fast: strategy.count("alloc_fastpath")?,
            slow: strategy.count("alloc_slowpath")?,
            locks: strategy.count("list_lock").ok(),
        })
    }
}

/// Creates slabs of `live` objects for a producer that may not request memory from the system.
pub fn warm<P: Platform>(strategy: &Strategy<'_, P>, live: usize) -> Result<(), Failure> {
    let mut objects = vec![null_mut(); live.max(WARM)];
    if !strategy
        .slub
        .alloc_bulk(strategy.cache, Gfp::KERNEL, &mut objects)
    {
        return Err(Failure::NoMemory("for the first objects"));
    }
    // SAFETY: the objects are of this cache and are freed once.
    unsafe { strategy.slub.free_bulk(strategy.cache, &mut objects) };
    Ok(())
}

/// Runs `work` and returns the flow of its `objects` objects. `work` returns whether all objects
/// arrived unchanged.
fn measured<P: Platform>(
    strategy: &Strategy<'_, P>,
    objects: usize,
    work: impl FnOnce() -> Result<bool, Failure>,
) -> Result<Flow, Failure> {
    let before = Before::look(strategy)?;
    let (time, came) = nanoseconds(work);
    if !came? {
        return Err(Failure::Wrong(
            "an object came that was not sent".to_owned(),
        ));
    }
    let after = Before::look(strategy)?;
    let (fast, slow) = (after.fast - before.fast, after.slow - before.slow);
    let locks = after
        .locks
        .zip(before.locks)
        .map(|(after, before)| after - before);
    Ok(Flow {
        rate: objects as f64 / time * 1e3,
        from_sheaves: fast as f64 * 100.0 / (fast + slow).max(1) as f64,
        list_locks: locks.map(|n| n as f64 * 1000.0 / objects as f64),
    })
}

/// A flow of `objects` objects through rings between two threads on two CPUs; `kept` of them stay
/// in each ring until the end. Each thread calls its function with the ring's number before each
/// ring's turn.
pub fn run_pinned<P: Platform>(
    strategy: &Strategy<'_, P>,
    rings: &[(&Ring, &dyn Elements)],
    (objects, kept): (usize, usize),
    at_producer: impl Fn(usize),
    at_consumer: impl Fn(usize) + Sync,
) -> Result<Flow, Failure> {
    let cpus = linux::two_cpus();
    let ready = AtomicUsize::new(0);
    // Release and Acquire: both threads start together, even if pinning failed.
    let start = || {
        ready.fetch_add(1, Release);
        wait_until(|| ready.load(Acquire) == 2);
    };
    measured(strategy, objects, || {
        std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                let pinned = Pinned::to(cpus[1]);
                start();
                let all = consume(rings, (objects, kept), &at_consumer);
                pinned.map(|_| all)
            });
            let pinned = Pinned::to(cpus[0]);
            start();
            let enough = produce(rings, objects, at_producer);
            let came = joined(consumer);
            drop(pinned?);
            if enough {
                came
            } else {
                Err(Failure::NoMemory("for a batch"))
            }
        })
    })
}

/// Puts `objects` elements into the rings in turn and writes its number into each. Calls `turn`
/// with the ring's number before each ring's turn. Returns whether there was memory for all.
fn produce(rings: &[(&Ring, &dyn Elements)], objects: usize, turn: impl Fn(usize)) -> bool {
    let mut enough = true;
    for first in (0..objects).step_by(BATCH) {
        let which = first / BATCH % rings.len();
        let (ring, elements) = rings[which];
        turn(which);
        let mut batch = [null_mut(); BATCH];
        for (i, place) in batch.iter_mut().enumerate() {
            *place = elements.alloc();
            if place.is_null() {
                enough = false;
                continue;
            }
            // SAFETY: the element is new, and larger than a number.
            unsafe { place.cast::<usize>().write(first + i) };
        }
        wait_until(|| ring.try_put(&batch));
    }
    enough
}

/// Takes `objects` elements out of the rings in turn and frees them; leaves `kept` in each ring
/// until the last ones have come. Returns whether all arrived unchanged.
fn consume(
    rings: &[(&Ring, &dyn Elements)],
    (objects, kept): (usize, usize),
    turn: impl Fn(usize),
) -> bool {
    let mut right = true;
    let batches = objects.div_ceil(BATCH);
    for first in (0..objects).step_by(BATCH) {
        let (round, which) = (first / BATCH / rings.len(), first / BATCH % rings.len());
        let (ring, elements) = rings[which];
        turn(which);
        let all = (batches - which).div_ceil(rings.len()) * BATCH;
        let due = ((round + 1) * BATCH + kept).min(all);
        wait_until(|| ring.total_put() >= due);
        let mut batch = [null_mut(); BATCH];
        let mut got = 0;
        wait_until(|| {
            got += ring.try_take(&mut batch[got..]);
            got == BATCH
        });
        for (i, &element) in batch.iter().enumerate() {
            if element.is_null() {
                right = false;
                continue;
            }
            // SAFETY: the producer wrote the number and gave the element up.
            unsafe {
                right &= element.cast::<usize>().read() == first + i;
                elements.free(element);
            }
        }
    }
    right
}
