//! Random calls against a plain model: a map from address to what the object holds.
//!
//! Every object is filled with a byte of its own and looked at when it is freed or resized and at
//! the end, so a lost, moved, doubled or overlapping one is seen. Calls may fail only while the
//! page layer refuses. The figures that the allocator reports are compared with the model's, and at
//! the end everything is freed and must be given back.

mod steps;

use std::collections::BTreeMap;
use std::ptr::null_mut;

use self::steps::{Step, setups, steps};
use crate::support::pattern::{fill, is_filled};
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, hop, on_cpu};
use proptest::prelude::*;
use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, Ctor};
use uslub_core::kmalloc::class_of;
use uslub_core::platform::Platform;

const CPUS: usize = 4;
/// Bytes of all objects that the model holds at most.
const HELD_MAX: usize = 48 << 20;

/// Where an object came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Kmalloc,
    Cache(usize),
}

#[derive(Clone, Copy, Debug)]
struct Object {
    bytes: usize,
    byte: u8,
    from: From,
}

/// The model, and the allocator it is a model of.
struct World {
    a: Box<Slub>,
    objects: BTreeMap<usize, Object>,
    held: usize,
    next_byte: u8,
    refusing: bool,
}

impl World {
    fn new(setup: Setup, disturb: u32) -> Self {
        let a = setup.build();
        let mut plain = CacheArgs::new("plain", 72);
        plain.align = 64;
        let mut constructed = CacheArgs::new("constructed", 600);
        constructed.ctor = Some(Ctor::plain(construct));
        a.create(&plain).unwrap();
        a.create(&constructed).unwrap();
        a.platform.disturb(disturb);
        Self {
            a,
            objects: BTreeMap::new(),
            held: 0,
            next_byte: 0,
            refusing: false,
        }
    }

    fn cache(&self, which: usize) -> &Cache {
        let name = ["plain", "constructed"][which];
        self.a.caches().find(|cache| cache.name() == name).unwrap()
    }

    /// Enters an object that the allocator gave.
    fn enter(&mut self, start: *mut u8, bytes: usize, from: From) {
        let room = self.a.ksize(start);
        assert!(room >= bytes, "{room} bytes for {bytes}");
        let (first, end) = (start as usize, start as usize + room);
        if let Some((&other, object)) = self.objects.range(..end).next_back() {
            assert!(other + object.bytes.max(1) <= first, "two objects overlap");
        }
        self.next_byte = self.next_byte.wrapping_add(1);
        let byte = self.next_byte;
        fill(start, bytes, byte);
        self.held += bytes;
        self.objects.insert(first, Object { bytes, byte, from });
    }

    /// Takes an object out, to be freed; its bytes must be as they were.
    fn leave(&mut self, start: usize) -> *mut u8 {
        let object = self.objects.remove(&start).unwrap();
        self.check(start, &object);
        self.held -= object.bytes;
        if object.from == From::Cache(1) {
            // Objects of this cache are freed as they were constructed.
            fill(start as *mut u8, object.bytes, CONSTRUCTED);
        }
        start as *mut u8
    }

    fn check(&self, start: usize, object: &Object) {
        assert!(
            is_filled(start as *const u8, object.bytes, object.byte),
            "the bytes of {start:#x}, {object:?}, changed"
        );
    }

    /// One of the objects that came from somewhere.
    fn choose(&self, at: usize, wanted: impl Fn(&From) -> bool) -> Option<usize> {
        let some: Vec<usize> = (self.objects.iter())
            .filter(|(_, o)| wanted(&o.from))
            .map(|(&start, _)| start)
            .collect();
        (!some.is_empty()).then(|| some[at % some.len()])
    }

    /// A null pointer is right only while the page layer refuses, or when it may not be asked.
    fn may_fail(&self, gfp: Gfp) -> bool {
        self.refusing || !gfp.may_map()
    }

    fn kmalloc(&mut self, bytes: usize, gfp: Gfp) {
        let object = self.a.kmalloc(bytes, gfp);
        if object.is_null() {
            return assert!(self.may_fail(gfp), "{bytes} bytes are not to be had");
        }
        assert!((object as usize).is_multiple_of(if bytes > 8 { 16 } else { 8 }));
        assert!(!gfp.contains(Gfp::ZERO) || is_filled(object, bytes, 0));
        self.enter(object, bytes, From::Kmalloc);
    }

    fn step(&mut self, step: &Step) {
        if self.held > HELD_MAX && !matches!(step, Step::Kfree(_)) {
            return;
        }
        match *step {
            Step::Kmalloc(bytes, flags) => self.kmalloc(bytes, flags.gfp()),
            Step::Aligned(bytes, shift) => {
                let object = self.a.kmalloc_aligned(bytes, 1 << shift, Gfp::KERNEL);
                if object.is_null() {
                    return assert!(self.refusing);
                }
                assert!((object as usize).is_multiple_of(1 << shift));
                self.enter(object, bytes, From::Kmalloc);
            }
            Step::Kfree(at) => {
                // Objects of caches may be freed so too.
                if let Some(start) = self.choose(at, |_| true) {
                    let object = self.leave(start);
                    // SAFETY: live, freed once.
                    unsafe { self.a.kfree(object) };
                }
            }
            Step::Krealloc(at, bytes) => self.krealloc(at, bytes),
            Step::Alloc(which, count, flags) => {
                let flags = flags.for_cache(which);
                for _ in 0..count {
                    let object = self.a.alloc(self.cache(which), flags.gfp());
                    if object.is_null() {
                        assert!(self.may_fail(flags.gfp()));
                        continue;
                    }
                    self.entered_from_cache(object, which);
                }
            }
            Step::Free(at, count) => {
                for _ in 0..count {
                    let Some(start) = self.choose(at, |from| *from != From::Kmalloc) else {
                        return;
                    };
                    let From::Cache(which) = self.objects[&start].from else {
                        unreachable!()
                    };
                    let object = self.leave(start);
                    // SAFETY: live, freed once.
                    unsafe { self.a.free(self.cache(which), object) };
                }
            }
            Step::AllocBulk(which, count, flags) => {
                let flags = flags.for_cache(which);
                let mut objects = vec![null_mut(); count];
                if !self
                    .a
                    .alloc_bulk(self.cache(which), flags.gfp(), &mut objects)
                {
                    return assert!(self.may_fail(flags.gfp()));
                }
                for object in objects {
                    self.entered_from_cache(object, which);
                }
            }
            Step::FreeBulk(which, count) => {
                let mut objects = Vec::new();
                for i in 0..count {
                    let Some(start) = self.choose(i * 7, |from| *from == From::Cache(which)) else {
                        break;
                    };
                    objects.push(self.leave(start));
                }
                // SAFETY: live, freed once.
                unsafe { self.a.free_bulk(self.cache(which), &mut objects) };
            }
            Step::Shrink(which) => {
                let remain = self.a.shrink(self.cache(which));
                assert_eq!(remain, self.cache(which).nr_slabs() > 0);
            }
            Step::ShrinkAll => self.a.shrink_all(),
            Step::Trim => {
                self.a.trim();
            }
            Step::Cpu(cpu) => on_cpu(cpu),
            Step::Hop(seed) => hop(seed),
            Step::Advance(ms) => self.a.platform.advance(ms),
            Step::Tick => self.a.tick(self.a.platform.now_ms()),
            Step::Refuse(grant, refuse) => {
                self.refusing = true;
                self.a.platform.fail(grant, refuse);
            }
            Step::Heal => {
                self.refusing = false;
                self.a.platform.heal();
            }
            Step::Purges(succeed) => self.a.platform.set_purges(succeed),
            Step::Sheaves(usable) => self.a.platform.set_percpu_usable(usable),
        }
    }

    fn entered_from_cache(&mut self, object: *mut u8, which: usize) {
        let cache = self.cache(which);
        assert!((object as usize).is_multiple_of(cache.align as usize));
        let bytes = cache.object_size();
        if which == 1 {
            assert!(is_filled(object, bytes, CONSTRUCTED), "not as constructed");
        }
        self.enter(object, bytes, From::Cache(which));
    }

    fn krealloc(&mut self, at: usize, bytes: usize) {
        let Some(start) = self.choose(at, |from| *from == From::Kmalloc) else {
            return;
        };
        let old = self.objects[&start];
        self.check(start, &old);
        // SAFETY: live.
        let moved = unsafe { self.a.krealloc(start as *mut u8, bytes, Gfp::KERNEL) };
        if moved.is_null() {
            assert!(self.refusing);
            return self.check(start, &old);
        }
        assert!(
            is_filled(moved, old.bytes.min(bytes), old.byte),
            "the bytes stay"
        );
        self.objects.remove(&start);
        self.held -= old.bytes;
        self.enter(moved, bytes, From::Kmalloc);
    }

    /// Compares the allocator's figures with ours, and looks at every object.
    fn compare(&self) {
        assert_eq!(self.a.validate(), Ok(()));
        let mut live = BTreeMap::<usize, usize>::new();
        let mut pages = 0;
        for (&start, object) in &self.objects {
            self.check(start, object);
            match object.from {
                From::Cache(which) => *live.entry(self.cache(which).id.index()).or_default() += 1,
                // Small ones come from runs of pages too when they are much aligned.
                From::Kmalloc if self.is_in_slab(start) => {
                    let class = class_of(self.a.ksize(start as *mut u8));
                    *live.entry(class.index()).or_default() += 1;
                }
                From::Kmalloc => pages += self.a.ksize(start as *mut u8),
            }
        }
        let (mut allocs, mut frees) = (0, 0);
        for cache in self.a.caches() {
            let info = self.a.info(cache);
            let expected = live.get(&cache.id.index()).copied().unwrap_or(0);
            assert_eq!(info.live_objs(), expected, "live in {}", cache.name());
            assert_eq!(
                info.allocs - info.frees,
                expected as u64,
                "{}",
                cache.name()
            );
            assert_eq!(
                info.num_objs,
                info.num_slabs * cache.geometry.objects as usize
            );
            assert!(info.cached_objs <= info.active_objs && info.active_objs <= info.num_objs);
            assert!(info.active_slabs <= info.num_slabs);
            (allocs, frees) = (allocs + info.allocs, frees + info.frees);
        }
        let totals = self.a.totals();
        assert_eq!(totals.large + totals.huge, pages);
        assert_eq!(totals.huge % self.a.platform.system_page(), 0);
        assert!(totals.allocs >= allocs && totals.frees >= frees);
        assert_eq!(totals.allocs - totals.frees, self.objects.len() as u64);
    }

    fn is_in_slab(&self, start: usize) -> bool {
        let arena = &self.a.zone.arena;
        (arena.page_of(start)).is_some_and(|page| arena.cache_of(page).is_some())
    }
}

const CONSTRUCTED: u8 = 0xcc;

unsafe fn construct(object: *mut u8) {
    // SAFETY: the object is being constructed.
    unsafe { object.write_bytes(CONSTRUCTED, 600) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_calls_do_what_the_model_does((setup, disturb) in setups(), steps in steps()) {
        let mut world = World::new(setup, disturb);
        for (i, step) in steps.iter().enumerate() {
            world.step(step);
            if i % 16 == 15 {
                world.compare();
            }
        }
        world.compare();
        world.step(&Step::Heal);
        let all: Vec<usize> = world.objects.keys().copied().collect();
        for start in all {
            let object = world.leave(start);
            // SAFETY: live, freed once.
            unsafe { world.a.kfree(object) };
        }
        world.compare();
        let a = &world.a;
        a.platform.set_purges(true);
        a.platform.disturb(0);
        a.platform.set_percpu_usable(true);
        if setup.slots == Slots::WithoutFence {
            // Nobody can empty another CPU's sheaves: each does it itself.
            for cpu in 0..CPUS {
                on_cpu(cpu);
                a.trim();
            }
        }
        assert_all_is_given_back(a);
    }
}
