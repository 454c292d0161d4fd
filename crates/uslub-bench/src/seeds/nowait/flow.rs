//! A flow of objects from a producer to a consumer.

use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::Gfp;
use uslub_core::mempool::{Mempool, SlabSource};
use uslub_core::platform::Platform;

use crate::error::Failure;
use crate::linux::Pinned;
use crate::measure::nanoseconds;
use crate::ring::{Ring, wait_until};
use crate::strategy::Strategy;
use crate::threads::joined;

/// Objects between the two.
pub const DEPTH: usize = 128;
/// Objects that are handed over at once.
pub const BATCH: usize = 32;
/// Objects that are allocated and freed beforehand, so that there are slabs to take from.
const WARM: usize = 4096;

/// Where elements come from, and go to.
pub trait Elements: Sync {
    /// One, or null.
    fn alloc(&self) -> *mut u8;
    /// Takes one back.
    ///
    /// # Safety
    ///
    /// It came from here, and nobody uses it any more.
    unsafe fn free(&self, element: *mut u8);
}

/// The cache itself.
pub struct Direct<'a, 'b, P: Platform> {
    /// Whose.
    pub strategy: &'a Strategy<'b, P>,
    /// What an allocation may do.
    pub gfp: Gfp,
}

impl<P: Platform> Elements for Direct<'_, '_, P> {
    #[inline]
    fn alloc(&self) -> *mut u8 {
        self.strategy.slub.alloc(self.strategy.cache, self.gfp)
    }

    #[inline]
    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.strategy.slub.free(self.strategy.cache, element) }
    }
}

/// A pool over the cache.
pub struct Pooled<'a, 'b, P: Platform> {
    /// Whose.
    pub pool: &'a Mempool<'b, P, SlabSource<'b, P>>,
    /// What an allocation may do.
    pub gfp: Gfp,
}

impl<P: Platform> Elements for Pooled<'_, '_, P> {
    #[inline]
    fn alloc(&self) -> *mut u8 {
        self.pool.alloc(self.gfp)
    }

    #[inline]
    unsafe fn free(&self, element: *mut u8) {
        // SAFETY: passed on.
        unsafe { self.pool.free(element) }
    }
}

/// What a round gave.
pub struct Flow {
    /// Million objects a second.
    pub rate: f64,
    /// Per cent of allocations that a sheaf served.
    pub from_sheaves: f64,
    /// List locks taken in 1000 objects, where they are counted.
    pub list_locks: Option<f64>,
}

/// What the counters said before a round.
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

/// Makes slabs that a producer finds who may not ask the system.
pub fn warm<P: Platform>(strategy: &Strategy<'_, P>) -> Result<(), Failure> {
    let mut objects = vec![null_mut(); WARM];
    if !strategy
        .slub
        .alloc_bulk(strategy.cache, Gfp::KERNEL, &mut objects)
    {
        return Err(Failure::NoMemory("for the first objects"));
    }
    // SAFETY: this cache's, freed once.
    unsafe { strategy.slub.free_bulk(strategy.cache, &mut objects) };
    Ok(())
}

/// Runs `work` and says what became of `objects` objects; it returns whether all came as they were
/// sent.
pub fn measured<P: Platform>(
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

/// A flow between two threads on these CPUs.
pub fn run_pinned<P: Platform>(
    strategy: &Strategy<'_, P>,
    elements: &dyn Elements,
    cpus: [usize; 2],
    objects: usize,
) -> Result<Flow, Failure> {
    let ring = Ring::new(DEPTH);
    let ready = AtomicUsize::new(0);
    // Release and Acquire: both start together, whatever became of the pinning.
    let start = || {
        ready.fetch_add(1, Release);
        wait_until(|| ready.load(Acquire) == 2);
    };
    measured(strategy, objects, || {
        std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                let pinned = Pinned::to(cpus[1]);
                start();
                let all = consume(&[(&ring, elements)], objects, |_| ());
                pinned.map(|_| all)
            });
            let pinned = Pinned::to(cpus[0]);
            start();
            let enough = produce(&[(&ring, elements)], objects, |_| ());
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

/// Puts `objects` elements into the rings in turn, each with its number written into it; `turn` is
/// told whose turn it is. Returns whether there was memory for all.
pub fn produce(rings: &[(&Ring, &dyn Elements)], objects: usize, turn: impl Fn(usize)) -> bool {
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
            // SAFETY: just allocated, and larger than a number.
            unsafe { place.cast::<usize>().write(first + i) };
        }
        wait_until(|| ring.try_put(&batch));
    }
    enough
}

/// Takes `objects` elements out of the rings in turn and frees them; returns whether each was as it
/// was sent.
pub fn consume(rings: &[(&Ring, &dyn Elements)], objects: usize, turn: impl Fn(usize)) -> bool {
    let mut right = true;
    for first in (0..objects).step_by(BATCH) {
        let which = first / BATCH % rings.len();
        let (ring, elements) = rings[which];
        turn(which);
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
            // SAFETY: the producer wrote its number and gave it up.
            unsafe {
                right &= element.cast::<usize>().read() == first + i;
                elements.free(element);
            }
        }
    }
    right
}
