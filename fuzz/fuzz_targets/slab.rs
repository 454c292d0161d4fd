//! The state machines below a cache: sheaves in slots, and slabs between full, partial and empty.
//!
//! One half drives the words of a CPU's slots against plain vectors. The other drives a cache of
//! tiny sheaves and slabs, while somebody else (the test) may hold any of the locks: then only what
//! may not wait is called, and a wait is a failure. Whenever no lock is held, every slot of every
//! slab must be in exactly one place.

#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::atomic::Ordering::Relaxed;

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use uslub_core::Gfp;
use uslub_core::args::CacheArgs;
use uslub_core::percpu::try_lock;
use uslub_core::percpu::{CacheId, Region};
use uslub_core::percpu::sheaf::{self, MAX_CAPACITY, SHEAF_BYTES, Sheaf, Window};
use uslub_core::percpu::sheaf_list::SheafList;
use uslub_core::percpu::slot::SlotState;
use uslub_core::tunables::Tuning;
use uslub_fuzz::setup;
use uslub_fuzz::setup::fails;
use uslub_fuzz::support::pattern::{fill, is_filled};
use uslub_fuzz::support::{
    Cache, Setup, Slots, Slub, assert_all_is_given_back, hop, never_waiting, on_cpu,
};

#[derive(Arbitrary, Debug)]
enum Input {
    Words(Vec<u8>, Vec<Word>),
    Machine(Machine),
}

// Words: sheaves in slots.

/// A step on the words of a slot.
#[derive(Arbitrary, Debug)]
enum Word {
    Push,
    Pop,
    PushMany(u8),
    PopMany(u8),
    /// Takes the sheaf out of the slot, works on it, and puts it or another one back.
    Take(u8),
    Truncate(u8),
    Capacity(u8),
    /// Lists sheaves and splits the list.
    List(u8),
    /// The slot is locked by another meanwhile.
    Busy,
}

/// Memory of some type, zeroed, for as long as this lives.
struct Memory<T>(NonNull<T>);

impl<T> Memory<T> {
    fn new() -> Self {
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(Layout::new::<T>()) };
        Self(NonNull::new(memory.cast()).expect("memory"))
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        // SAFETY: allocated like that.
        unsafe { dealloc(self.0.as_ptr().cast(), Layout::new::<T>()) };
    }
}

/// A sheaf's objects as the model knows them.
#[derive(Clone, Default)]
struct Known {
    capacity: usize,
    objects: Vec<*mut u8>,
}

fn words(capacities: &[u8], steps: &[Word]) {
    let region = Memory::<Region>::new();
    // SAFETY: all of a region may be zero; it lives as long as the function.
    let region = unsafe { region.0.as_ref() };
    let slot = CacheId::from_index(5).main();
    let windows: Vec<Memory<Window>> = (0..3).map(|_| Memory::new()).collect();
    let mut known = Vec::new();
    let mut outside = Vec::new();
    for (i, window) in windows.iter().enumerate() {
        let byte = capacities.get(i).copied().unwrap_or(3);
        let capacity = 1 + usize::from(byte) % MAX_CAPACITY;
        known.push(Known {
            capacity,
            objects: vec![],
        });
        // SAFETY: ours, and used no more when the memory goes.
        outside.push((i, unsafe { Sheaf::new(window.0, capacity, 5) }));
    }
    let (mut inside, first) = outside.remove(0);
    // Relaxed, here and below: one thread.
    region.word(slot).store(first.into_top(), Relaxed);
    let mut next = 0usize;
    for step in steps {
        let mut object = || {
            next += 1;
            without_provenance_mut::<u8>(next * 8)
        };
        let model = &mut known[inside];
        let room = model.capacity - model.objects.len();
        // SAFETY: the region belongs to us, and its word is a top.
        match step {
            Word::Push => {
                let object = object();
                let done = unsafe { try_lock::push(region, slot, object) };
                assert_eq!(done, room > 0);
                if done {
                    model.objects.push(object);
                }
            }
            Word::Pop => {
                // SAFETY: as above.
                let object = unsafe { try_lock::pop(region, slot) };
                assert_eq!(object, model.objects.pop().unwrap_or_default_null());
            }
            Word::PushMany(n) => {
                let objects: Vec<_> = (0..1 + n % 60).map(|_| object()).collect();
                // SAFETY: as above.
                let done = unsafe { try_lock::push_many(region, slot, &objects) };
                assert_eq!(done, objects.len() <= room);
                if done {
                    model.objects.extend(&objects);
                }
            }
            Word::PopMany(n) => {
                let mut out = vec![null_mut(); 1 + usize::from(n % 60)];
                // SAFETY: as above.
                let done = unsafe { try_lock::pop_many(region, slot, &mut out) };
                assert_eq!(done, out.len() <= model.objects.len());
                if done {
                    let rest = model.objects.len() - out.len();
                    assert_eq!(out, model.objects.split_off(rest));
                }
            }
            Word::Busy => {
                let top = region.word(slot).load(Relaxed);
                region.word(slot).store(top | 1, Relaxed);
                let mut out = [null_mut(); 2];
                // SAFETY: as above.
                unsafe {
                    assert!(try_lock::pop(region, slot).is_null());
                    assert!(!try_lock::push(region, slot, object()));
                    assert!(!try_lock::pop_many(region, slot, &mut out));
                    assert!(!try_lock::push_many(region, slot, &[object(), object()]));
                }
                assert!(!try_lock::compare_exchange(region, slot, top, sheaf::bootstrap()));
                assert_eq!(region.word(slot).load(Relaxed), top | 1);
                region.word(slot).store(top, Relaxed);
            }
            Word::Take(other) => {
                let mut sheaf = take(region, slot);
                assert_eq!(sheaf.objects(), model.objects);
                for _ in 0..other % 4 {
                    assert_eq!(sheaf.pop(), model.objects.pop());
                }
                outside.push((inside, sheaf));
                let (which, sheaf) = outside.remove(usize::from(*other) % outside.len());
                inside = which;
                give(region, slot, sheaf);
            }
            Word::Truncate(n) => {
                let mut sheaf = take(region, slot);
                let len = usize::from(*n).min(sheaf.len());
                sheaf.truncate(len);
                model.objects.truncate(len);
                give(region, slot, sheaf);
            }
            Word::Capacity(n) => {
                // An empty sheaf may become larger or smaller.
                let mut sheaf = take(region, slot);
                sheaf.truncate(0);
                model.objects.clear();
                model.capacity = 1 + usize::from(*n) % MAX_CAPACITY;
                // SAFETY: the window is still ours.
                let sheaf = unsafe { Sheaf::new(sheaf.into_window(), model.capacity, 5) };
                give(region, slot, sheaf);
            }
            Word::List(n) => {
                let mut list = SheafList::new();
                let order: Vec<usize> = outside.iter().map(|(which, _)| *which).collect();
                for (_, sheaf) in outside.drain(..) {
                    list.push(sheaf);
                }
                assert_eq!(list.len(), order.len());
                let mut front = list.split(usize::from(n % 4));
                assert_eq!(front.len() + list.len(), order.len());
                let mut back = vec![];
                for list in [&mut front, &mut list] {
                    while let Some(sheaf) = list.pop() {
                        let at = windows.iter().position(|w| {
                            w.0.addr().get() / SHEAF_BYTES == sheaf_address(&sheaf) / SHEAF_BYTES
                        });
                        back.push((at.expect("one of ours"), sheaf));
                    }
                }
                outside = back;
                for (which, sheaf) in &outside {
                    assert_eq!(sheaf.objects(), known[*which].objects);
                }
            }
        }
        let (word, model) = (region.word(slot).load(Relaxed), &known[inside]);
        let SlotState::Sheaf(top) = SlotState::of(word) else {
            panic!("the slot has no sheaf");
        };
        assert_eq!(top.len(), model.objects.len());
        assert_eq!(top.capacity(), model.capacity);
        assert_eq!(top.room(), model.capacity - model.objects.len());
        assert_eq!(top.is_empty(), model.objects.is_empty());
        assert_eq!(top.is_full(), model.objects.len() == model.capacity);
    }
}

fn sheaf_address(sheaf: &Sheaf) -> usize {
    sheaf.objects().as_ptr().addr() - 8
}

fn take(region: &Region, slot: uslub_core::percpu::Slot) -> Sheaf {
    // Relaxed: one thread.
    let top = region.word(slot).load(Relaxed);
    assert!(try_lock::compare_exchange(region, slot, top, sheaf::bootstrap()));
    // A taken slot looks empty and full.
    let mut out = [null_mut(); 2];
    // SAFETY: as for all steps.
    unsafe {
        assert!(try_lock::pop(region, slot).is_null());
        assert!(!try_lock::push(region, slot, without_provenance_mut(8)));
        assert!(!try_lock::pop_many(region, slot, &mut out));
        assert!(!try_lock::push_many(
            region,
            slot,
            &[without_provenance_mut(8); 2]
        ));
        Sheaf::from_top(top)
    }
}

fn give(region: &Region, slot: uslub_core::percpu::Slot, sheaf: Sheaf) {
    let top = sheaf.into_top();
    assert!(try_lock::compare_exchange(region, slot, sheaf::bootstrap(), top));
}

trait OrNull {
    fn unwrap_or_default_null(self) -> *mut u8;
}

impl OrNull for Option<*mut u8> {
    fn unwrap_or_default_null(self) -> *mut u8 {
        self.unwrap_or(null_mut())
    }
}

// Slabs.

/// A small world, so that all its states are near.
#[derive(Debug)]
struct Machine {
    setup: Setup,
    tuning: Tuning,
    size: usize,
    capacity: usize,
    steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Machine {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut setup = setup::setup(u)?;
        if setup.slots == Slots::WithoutFence {
            setup.slots = Slots::Locked;
        }
        let mut tuning = setup::tuning(u)?;
        tuning.slab_min_order = 0;
        tuning.slab_max_order = u.int_in_range(0..=1)?;
        tuning.slab_min_objects = 1;
        tuning.max_full_sheaves = u.int_in_range(1..=3)?;
        tuning.max_empty_sheaves = u.int_in_range(0..=2)?;
        tuning.min_partial = u.int_in_range(1..=3)?;
        Ok(Self {
            setup,
            tuning,
            size: *u.choose(&[2048, 1024, 1360, 680, 512, 64])?,
            capacity: u.int_in_range(1..=9)?,
            steps: u.arbitrary()?,
        })
    }
}

/// A step; under a lock only what may not wait is done.
#[derive(Arbitrary, Debug)]
enum Step {
    Alloc(u8),
    Free(u8, u8),
    AllocBulk(u8),
    FreeBulk(u8, u8),
    NoSpinAlloc(u8),
    NoSpinAllocBulk(u8),
    NoSpinFree(u8, u8),
    NoSpinFreeBulk(u8, u8),
    Lock(u8),
    Unlock,
    Cpu(u8),
    Hop(u8),
    Disturb(u8),
    Shrink,
    Flush,
    Refuse(u8),
    Heal,
    Advance(u16),
}

/// Takes one kind of lock, as a thread elsewhere may.
fn lock(a: &Slub, cache: &Cache, which: u8) {
    match which {
        0 => cache.barns().for_each(|barn| barn.raw_lock().acquire()),
        1 => cache.nodes().for_each(|node| node.lists.raw().acquire()),
        2 => a.zone.raw_locks().into_iter().for_each(|lock| lock.acquire()),
        3 => a.meta.raw_locks().for_each(|lock| lock.acquire()),
        _ => a.for_each_lock(|lock| lock.acquire()),
    }
}

fn unlock(a: &Slub, cache: &Cache, which: u8) {
    // SAFETY: this thread took it.
    unsafe {
        match which {
            0 => cache.barns().for_each(|barn| barn.raw_lock().release()),
            1 => cache.nodes().for_each(|node| node.lists.raw().release()),
            2 => a.zone.raw_locks().into_iter().for_each(|lock| lock.release()),
            3 => a.meta.raw_locks().for_each(|lock| lock.release()),
            _ => a.for_each_lock(|lock| lock.release()),
        }
    }
}

struct State<'a> {
    a: &'a Slub,
    cache: &'a Cache,
    size: usize,
    objects: Vec<(*mut u8, u8)>,
    next: u8,
    held: Option<u8>,
    refusing: bool,
    /// Whether allocations fail on purpose.
    failing: bool,
}

impl State<'_> {
    fn enter(&mut self, object: *mut u8, gfp: Gfp) {
        if object.is_null() {
            let may_fail = self.refusing || self.failing || !gfp.may_map();
            return assert!(may_fail, "no object to be had");
        }
        assert!(
            self.objects
                .iter()
                .all(|&(other, _)| other.addr().abs_diff(object.addr()) >= self.size),
            "two objects overlap"
        );
        self.next = self.next.wrapping_add(1);
        fill(object, self.size, self.next);
        self.objects.push((object, self.next));
    }

    fn leave(&mut self, at: u8, n: u8) -> Vec<*mut u8> {
        let len = self.objects.len();
        let from = if len == 0 { 0 } else { usize::from(at) % len };
        let until = len.min(from + usize::from(n % 40));
        let out: Vec<_> = self.objects.drain(from..until).collect();
        for &(object, byte) in &out {
            assert!(
                is_filled(object, self.size, byte),
                "the bytes of an object changed"
            );
        }
        out.into_iter().map(|(object, _)| object).collect()
    }

    fn alloc(&mut self, n: u8, gfp: Gfp) {
        if self.objects.len() > 500 {
            return;
        }
        for _ in 0..n % 40 {
            let object = self.a.alloc(self.cache, gfp);
            self.enter(object, gfp);
        }
    }

    fn alloc_bulk(&mut self, n: u8, gfp: Gfp) {
        let mut objects = vec![null_mut(); usize::from(n % 40)];
        if self.objects.len() <= 500 && self.a.alloc_bulk(self.cache, gfp, &mut objects) {
            objects
                .into_iter()
                .for_each(|object| self.enter(object, gfp));
        }
    }

    fn free(&mut self, at: u8, n: u8, gfp: Gfp) {
        for object in self.leave(at, n) {
            // SAFETY: live, freed once.
            unsafe { self.a.free_with(self.cache, object, gfp) };
        }
    }

    fn free_bulk(&mut self, at: u8, n: u8, gfp: Gfp) {
        let mut objects = self.leave(at, n);
        // SAFETY: live, freed once.
        unsafe { self.a.free_bulk_with(self.cache, &mut objects, gfp) };
    }

    fn step(&mut self, step: &Step, setup: &Setup) {
        let free = self.held.is_none();
        match *step {
            Step::Alloc(n) if free => self.alloc(n, Gfp::KERNEL),
            Step::Free(at, n) if free => self.free(at, n, Gfp::KERNEL),
            Step::AllocBulk(n) if free => self.alloc_bulk(n, Gfp::KERNEL),
            Step::FreeBulk(at, n) if free => self.free_bulk(at, n, Gfp::KERNEL),
            Step::NoSpinAlloc(n) => never_waiting(|| self.alloc(n, Gfp::NOSPIN)),
            Step::NoSpinAllocBulk(n) => never_waiting(|| self.alloc_bulk(n, Gfp::NOSPIN)),
            Step::NoSpinFree(at, n) => never_waiting(|| self.free(at, n, Gfp::NOSPIN)),
            Step::NoSpinFreeBulk(at, n) => never_waiting(|| self.free_bulk(at, n, Gfp::NOSPIN)),
            Step::Lock(which) if free => {
                lock(self.a, self.cache, which % 5);
                self.held = Some(which % 5);
            }
            Step::Unlock => self.unlock(),
            Step::Cpu(cpu) => on_cpu(usize::from(cpu) % setup.cpus),
            Step::Hop(seed) => hop(seed.into()),
            Step::Disturb(one_in) => self.a.platform.disturb(u32::from(one_in % 6)),
            Step::Shrink if free => {
                self.a.shrink(self.cache);
            }
            Step::Flush if free => self.a.flush(self.cache),
            Step::Refuse(n) => {
                self.refusing = true;
                self.a
                    .platform
                    .fail(usize::from(n % 3), usize::from(n % 5) + 1);
            }
            Step::Heal => {
                self.refusing = false;
                self.a.platform.heal();
            }
            Step::Advance(ms) => self.a.platform.advance(ms.into()),
            _ => {}
        }
        if self.held.is_none() {
            assert_eq!(self.a.validate(), Ok(()));
        }
    }

    fn unlock(&mut self) {
        if let Some(which) = self.held.take() {
            unlock(self.a, self.cache, which);
        }
    }
}

fn machine(input: &Machine) {
    let a = input.setup.build();
    let mut args = CacheArgs::new("machine", input.size);
    args.tuning = Some(input.tuning);
    args.sheaf_capacity = Some(input.capacity);
    let cache = a.create(&args).expect("good arguments");
    let mut state = State {
        a: &a,
        cache,
        size: input.size,
        objects: vec![],
        next: 0,
        held: None,
        refusing: false,
        failing: fails(&input.setup),
    };
    for step in input.steps.iter().take(120) {
        state.step(step, &input.setup);
    }
    state.unlock();
    a.platform.heal();
    a.platform.disturb(0);
    // What was set aside, because a lock was busy, is freed by this.
    a.flush(cache);
    assert_eq!(a.info(cache).live_objs(), state.objects.len());
    while !state.objects.is_empty() {
        state.free_bulk(0, 39, Gfp::KERNEL);
    }
    assert_all_is_given_back(&a);
}

fuzz_target!(|input: Input| {
    match &input {
        Input::Words(capacities, steps) => words(capacities, steps),
        Input::Machine(input) => machine(input),
    }
});
