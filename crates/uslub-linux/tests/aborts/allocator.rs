//! The same sequences inside an allocator that works: whatever is aborted, its slow paths lose no
//! object.
//!
//! The child takes and gives back objects of several caches, one by one and in bulk, and of
//! kmalloc. Each object bears a stamp that only its owner may have written. Every instruction of
//! every sequence of this program is armed at once; the first call that comes by is aborted there
//! and takes its slow path. After each round the child looks at all stamps, at the allocator's own
//! rules, and at the number of live objects; at the end no cache may miss one.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use uslub_core::args::CacheArgs;
use uslub_core::cache::KmemCache;
use uslub_core::{Allocator, Gfp};
use uslub_linux::{Linux, start};

use crate::sequences::{sequence_of, sequences};
use crate::table::Table;
use crate::tracer::{Event, Memory, Sequence, Tracee, descriptors_here, pause};

static ALLOCATOR: Allocator<Linux> = Allocator::new(Linux::new());
/// Set by the tracer: the round that begins is the last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Rounds in which nothing new is reached, after which nothing more is expected.
const IDLE_ROUNDS: u32 = 75;
/// Calls in a round.
const CALLS: usize = 600;

/// A cache and what we hold of it.
struct Held {
    cache: &'static KmemCache<Linux>,
    objects: Vec<*mut u8>,
}

impl Held {
    fn new(name: &'static str, bytes: usize) -> Self {
        let mut args = CacheArgs::new(name, bytes);
        if bytes < 100 {
            // Large bulks are copied in another way.
            args.sheaf_capacity = Some(250);
        }
        let cache = ALLOCATOR.create(&args);
        Self {
            cache: cache.expect("a cache"),
            objects: Vec::new(),
        }
    }

    fn stamp(&self, object: *mut u8) -> [usize; 2] {
        [object as usize, self.cache as *const _ as usize]
    }

    /// Takes `n` objects into an array that lies `at` words behind another.
    fn take(&mut self, n: usize, at: usize) {
        let mut new = vec![std::ptr::null_mut(); at + n];
        let new = &mut new[at..];
        if n == 1 {
            new[0] = ALLOCATOR.alloc(self.cache, Gfp::KERNEL);
            assert!(!new[0].is_null());
        } else {
            assert!(ALLOCATOR.alloc_bulk(self.cache, Gfp::KERNEL, new));
        }
        for &object in &*new {
            // SAFETY: the object is ours, has 16 bytes at least, and is initialised by the system.
            let old = unsafe { object.cast::<[usize; 2]>().read() };
            assert_ne!(old, self.stamp(object), "handed out twice");
            // SAFETY: as above.
            unsafe { object.cast::<[usize; 2]>().write(self.stamp(object)) };
        }
        self.objects.extend_from_slice(new);
    }

    /// Gives the last `n` objects back, or as many as there are, from an array that lies `at` words
    /// behind another.
    fn give(&mut self, n: usize, at: usize) {
        let n = n.min(self.objects.len());
        let mut old = vec![std::ptr::null_mut(); at];
        old.extend(self.objects.drain(self.objects.len() - n..));
        let old = &mut old[at..];
        for &object in &*old {
            self.check(object);
            // SAFETY: the object is ours. The stamp goes, so that the next owner does not find it.
            unsafe { object.cast::<[usize; 2]>().write([0; 2]) };
        }
        // SAFETY: objects of this cache, each freed once.
        unsafe {
            match old[..] {
                [object] => ALLOCATOR.free(self.cache, object),
                _ => ALLOCATOR.free_bulk(self.cache, old),
            }
        }
    }

    fn check(&self, object: *mut u8) {
        // SAFETY: the object is ours.
        let stamp = unsafe { object.cast::<[usize; 2]>().read() };
        assert_eq!(stamp, self.stamp(object), "somebody else wrote here");
    }
}

/// The child: rounds with a stop after each, until it is told that the next is the last.
fn work() {
    // SAFETY: once in this process; nobody else uses the allocator.
    assert!(unsafe { start::set_up(&ALLOCATOR, "USLUB_OPTIONS") });
    let sizes = [("a", 16), ("b", 64), ("c", 192), ("d", 1024)];
    let mut caches = sizes.map(|(name, bytes)| Held::new(name, bytes));
    let mut random = 1u64;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    // SeqCst: the tracer writes it while we are stopped.
    while LAST.load(SeqCst) == 0 {
        for call in 0..CALLS {
            // Copies go both ways.
            uslub_rseq::move_wide(call % 2 == 0);
            let held = &mut caches[next(4)];
            let n = match next(8) {
                0..4 => 1,
                4..7 => 1 + next(40),
                _ => 128 + next(16),
            };
            if next(2) == 0 && held.objects.len() < 400 {
                held.take(n, next(512));
            } else {
                held.give(n, next(512));
            }
            let bytes = 1 + next(2000);
            let object = ALLOCATOR.kmalloc(bytes, Gfp::KERNEL);
            assert!(!object.is_null());
            // SAFETY: the object is ours, and is freed once.
            unsafe {
                object.write_bytes(0x5a, bytes);
                ALLOCATOR.kfree(object);
            }
        }
        assert_eq!(ALLOCATOR.validate(), Ok(()));
        for held in &caches {
            held.objects.iter().for_each(|&object| held.check(object));
            let live = ALLOCATOR.info(held.cache).live_objs();
            assert_eq!(live, held.objects.len(), "objects were lost");
        }
        pause();
    }
    for mut held in caches {
        held.give(usize::MAX, 0);
        let info = ALLOCATOR.info(held.cache);
        assert_eq!((info.live_objs(), info.allocs), (0, info.frees));
        // SAFETY: nobody uses the cache any more.
        let lost = unsafe { ALLOCATOR.destroy(held.cache, |_| ()) };
        assert_eq!(lost, 0, "objects were lost");
    }
}

/// All sequences of this program, named by the operations that have the same instructions. Which
/// copy of an operation serves the allocator is the compiler's choice.
fn sequences_of_the_program(area: uslub_rseq::Area) -> Vec<(&'static str, Sequence)> {
    let memory = Memory::of(std::process::id() as libc::pid_t);
    let known = sequences().map(|o| (o.name, sequence_of(o, area)));
    let known: Vec<_> = known.collect();
    descriptors_here()
        .map(|descriptor| {
            let sequence = Sequence::read(&memory, descriptor);
            let same = |(_, of): &&(_, Sequence)| of.kinds == sequence.kinds;
            let (name, _) = known.iter().find(same).expect("an operation of uslub-rseq");
            (*name, sequence)
        })
        .collect()
}

#[test]
fn an_allocator_whose_sequences_are_aborted_everywhere_loses_no_object() {
    let Some(area) = crate::area() else { return };
    let _alone = crate::alone();
    let generations = crate::number("USLUB_ABORTS", 3);
    let mut tracee = Tracee::fork(work);
    let mut names = Vec::new();
    for (name, sequence) in sequences_of_the_program(area) {
        tracee.watch(sequence);
        names.push(name);
    }
    for _ in 0..generations {
        tracee.arm_all();
        let mut idle = 0;
        while tracee.armed() > 0 && idle < IDLE_ROUNDS {
            let before = tracee.armed();
            assert_eq!(tracee.run(), Event::Pause, "the child found a fault");
            idle = if tracee.armed() == before {
                idle + 1
            } else {
                0
            };
        }
        tracee.disarm_all();
    }
    tracee.memory().write(LAST.as_ptr() as u64, [1]);
    assert_eq!(tracee.run(), Event::End(0), "the child found a fault");
    let mut table = Table::new("sequences of an allocator at work");
    for (number, name) in names.iter().enumerate() {
        table.row(name, &tracee.aborted[number], tracee.passed[number]);
    }
    table.print();
    table.assert_complete(sequences());
}
