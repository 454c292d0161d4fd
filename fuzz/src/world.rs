//! A model of the caches of one allocator: who holds what, and what it holds.
//!
//! An object is filled with a byte of its own when it is allocated and looked at when it is freed.
//! One that waits for a grace period is looked at when that ends, and nobody may get it before.
//! What the allocator counts is compared with the model, and at the end everything must be given
//! back.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::null_mut;

use uslub_core::Gfp;
use uslub_core::args::{CacheArgs, CreateError, Ctor, Flags};
use uslub_core::prefill::Prefilled;
use uslub_core::tunables::Tuning;

use crate::grace::Manual;
use crate::setup::fails;
use crate::support::pattern::{fill, is_filled};
use crate::support::{Cache, Setup, Slots, Slub, assert_all_is_given_back, never_waiting, on_cpu};

/// What a constructed object is full of.
const CONSTRUCTED: u8 = 0xcc;
/// Bytes of all objects at most.
const HELD_MAX: usize = 4 << 20;

thread_local! {
    static CTOR_FAILS: Cell<bool> = const { Cell::new(false) };
}

/// Fills as many bytes as `data` says, which is no pointer.
unsafe fn construct(data: *const (), object: *mut u8) -> bool {
    if CTOR_FAILS.get() {
        return false;
    }
    fill(object, data.addr(), CONSTRUCTED);
    true
}

/// An object that the model holds.
#[derive(Clone, Copy, Debug)]
struct Object {
    bytes: usize,
    byte: u8,
}

/// What one creator has of a cache.
struct Owned {
    cache: *const Cache,
    bytes: usize,
    has_ctor: bool,
    limit: Option<usize>,
    /// The newest last.
    objects: Vec<*mut u8>,
    prefilled: Vec<Prefilled>,
}

/// What a cache is to be made of.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Bytes of an object.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Flags.
    pub flags: u32,
    /// Whether objects are constructed.
    pub ctor: bool,
    /// Bytes of slabs at most.
    pub limit: Option<usize>,
    /// What a plain free may do.
    pub free_gfp: Gfp,
    /// How it behaves.
    pub tuning: Option<Tuning>,
    /// Largest order.
    pub max_order: Option<u32>,
    /// Objects of a slab.
    pub min_objects: Option<usize>,
    /// Objects of a sheaf.
    pub sheaf_capacity: Option<usize>,
    /// Bytes of empty slabs.
    pub kept_bytes: Option<usize>,
}

/// How objects are freed.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// One by one.
    Single,
    /// In one call.
    Bulk,
    /// In one call that does not look at each.
    Unchecked,
    /// As if they came from kmalloc.
    Kfree,
    /// After a grace period.
    Rcu,
}

/// An allocator and its model.
pub struct World {
    /// The allocator.
    pub a: Box<Slub>,
    setup: Setup,
    grace: &'static Manual,
    owned: Vec<Owned>,
    objects: BTreeMap<usize, Object>,
    waiting: BTreeMap<usize, Object>,
    /// Whether some that waited may still do so, and others not.
    unsure: bool,
    refusing: bool,
    held: usize,
    next: u8,
}

impl World {
    /// An allocator without caches.
    pub fn new(setup: Setup) -> Self {
        let a = setup.build();
        CTOR_FAILS.set(false);
        let grace = Manual::leaked();
        assert!(a.set_grace_period(grace));
        Self {
            a,
            setup,
            grace,
            owned: Vec::new(),
            objects: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unsure: false,
            refusing: false,
            held: 0,
            next: 0,
        }
    }

    /// How many creators there are.
    pub fn nr(&self) -> usize {
        self.owned.len()
    }

    /// The cache of a creator.
    pub fn cache(&self, which: usize) -> &Cache {
        // SAFETY: records live as long as the allocator.
        unsafe { &*self.owned[which].cache }
    }

    /// Creates a cache; it may be refused for what the arguments are.
    pub fn create(&mut self, wanted: &Wanted) {
        if self.owned.len() >= 6 {
            return;
        }
        let mut args = CacheArgs::new("fuzz", wanted.size);
        args.align = wanted.align;
        args.flags = Flags::from_bits_truncate(wanted.flags);
        args.ctor = wanted.ctor.then_some(Ctor {
            call: construct,
            data: std::ptr::without_provenance(wanted.size),
        });
        args.limit = wanted.limit;
        args.free_gfp = wanted.free_gfp;
        args.tuning = wanted.tuning;
        args.max_order = wanted.max_order;
        args.min_objects = wanted.min_objects;
        args.sheaf_capacity = wanted.sheaf_capacity;
        args.kept_bytes = wanted.kept_bytes;
        let cache: *const Cache = match self.a.create(&args) {
            Ok(cache) => cache,
            Err(CreateError::BadSize) => return assert!(!(1..=64 << 10).contains(&wanted.size)),
            Err(CreateError::BadAlign) => {
                return assert!(!wanted.align.is_power_of_two() || wanted.align > 4096);
            }
            Err(CreateError::BadLimit) => return assert!(wanted.limit.is_some()),
            Err(CreateError::NoMemory) => return assert!(self.refusing),
            Err(other) => panic!("{other}"),
        };
        self.owned.push(Owned {
            cache,
            bytes: wanted.size,
            has_ctor: wanted.ctor,
            limit: wanted.limit,
            objects: Vec::new(),
            prefilled: Vec::new(),
        });
    }

    /// Whether an allocation may fail.
    fn may_fail(&self, which: usize, gfp: Gfp) -> bool {
        let owned = &self.owned[which];
        self.refusing
            || fails(&self.setup)
            || !gfp.may_map()
            || gfp.contains(Gfp::THISNODE)
            || owned.limit.is_some()
            || (owned.has_ctor && (CTOR_FAILS.get() || gfp.contains(Gfp::ZERO)))
    }

    /// Flags that make sense now: what may never fail is asked for only where it need not.
    fn fitting(&self, which: usize, gfp: Gfp) -> Gfp {
        let endless = self.may_fail(which, gfp) || !gfp.may_spin();
        match endless {
            true => gfp & !Gfp::NOFAIL,
            false => gfp,
        }
    }

    /// Enters an object that the allocator gave to a creator.
    fn enter(&mut self, which: usize, object: *mut u8, gfp: Gfp) {
        let (bytes, align) = (self.owned[which].bytes, self.cache(which).align as usize);
        let (first, end) = (object.addr(), object.addr() + bytes);
        assert!(first.is_multiple_of(align), "not aligned");
        for held in [&self.objects, &self.waiting] {
            if let Some((&other, known)) = held.range(..end).next_back() {
                assert!(other + known.bytes <= first, "two objects overlap");
            }
        }
        if self.owned[which].has_ctor {
            assert!(is_filled(object, bytes, CONSTRUCTED), "not as constructed");
        } else if gfp.contains(Gfp::ZERO) {
            assert!(is_filled(object, bytes, 0), "not zero");
        }
        self.next = self.next.wrapping_add(1);
        fill(object, bytes, self.next);
        let byte = self.next;
        self.objects.insert(first, Object { bytes, byte });
        self.owned[which].objects.push(object);
        self.held += bytes;
    }

    /// Takes objects out, to be freed; `at` says from where on.
    fn leave(&mut self, which: usize, at: usize, n: usize) -> Vec<*mut u8> {
        let owned = &mut self.owned[which];
        let len = owned.objects.len();
        let from = if len == 0 { 0 } else { at % len };
        let out: Vec<_> = owned.objects.drain(from..len.min(from + n)).collect();
        for &object in &out {
            let known = self.objects.remove(&object.addr()).expect("held");
            assert!(
                is_filled(object, known.bytes, known.byte),
                "the bytes of an object changed"
            );
            self.held -= known.bytes;
            if owned.has_ctor {
                fill(object, known.bytes, CONSTRUCTED);
            }
        }
        out
    }

    /// Allocates objects one by one; of a node, if one is named.
    pub fn alloc(&mut self, which: usize, n: usize, gfp: Gfp, nid: Option<usize>) {
        let gfp = self.fitting(which, gfp);
        for _ in 0..n {
            if self.held > HELD_MAX {
                return;
            }
            let cache = self.cache(which);
            let get = || match nid {
                Some(nid) => self.a.alloc_node(cache, gfp, nid),
                None => self.a.alloc(cache, gfp),
            };
            let object = if gfp.may_spin() {
                get()
            } else {
                never_waiting(get)
            };
            if object.is_null() {
                return assert!(self.may_fail(which, gfp), "no object to be had");
            }
            self.enter(which, object, gfp);
        }
    }

    /// Allocates objects in one call.
    pub fn alloc_bulk(&mut self, which: usize, n: usize, gfp: Gfp) {
        if self.held + n * self.owned[which].bytes > HELD_MAX {
            return;
        }
        let gfp = self.fitting(which, gfp);
        let mut objects = vec![null_mut(); n];
        let cache = self.cache(which);
        let done = match gfp.may_spin() {
            true => self.a.alloc_bulk(cache, gfp, &mut objects),
            false => never_waiting(|| self.a.alloc_bulk(cache, gfp, &mut objects)),
        };
        if !done {
            return assert!(self.may_fail(which, gfp), "no objects to be had");
        }
        for object in objects {
            self.enter(which, object, gfp);
        }
    }

    /// Frees objects, from the `at`-th on.
    pub fn free(&mut self, which: usize, at: usize, n: usize, way: Way, gfp: Option<Gfp>) {
        if let Way::Rcu = way {
            return self.free_rcu(which, at, n);
        }
        let mut objects = self.leave(which, at, n);
        let cache = self.cache(which);
        // SAFETY: live, and freed once, by whichever way.
        unsafe {
            match (way, gfp) {
                (Way::Bulk, None) => self.a.free_bulk(cache, &mut objects),
                (Way::Bulk, Some(gfp)) => self.a.free_bulk_with(cache, &mut objects, gfp),
                (Way::Unchecked, _) => self.a.free_bulk_unchecked(cache, &mut objects),
                (Way::Kfree, None) => objects.iter().for_each(|&o| self.a.kfree(o)),
                (Way::Kfree, Some(gfp)) => {
                    objects.iter().for_each(|&o| self.a.kfree_with(o, gfp));
                }
                (_, None) => objects.iter().for_each(|&o| self.a.free(cache, o)),
                (_, Some(gfp)) => {
                    objects
                        .iter()
                        .for_each(|&o| self.a.free_with(cache, o, gfp));
                }
            }
        }
    }

    fn free_rcu(&mut self, which: usize, at: usize, n: usize) {
        let (bytes, has_ctor) = (self.owned[which].bytes, self.owned[which].has_ctor);
        for object in self.leave(which, at, n) {
            let byte = if has_ctor { CONSTRUCTED } else { 0x77 };
            fill(object, bytes, byte);
            let waits = self.grace.synchronized();
            // SAFETY: live, freed once; there are no readers but the model.
            unsafe { self.a.free_rcu(self.cache(which), object) };
            if self.grace.synchronized() == waits {
                self.waiting.insert(object.addr(), Object { bytes, byte });
            }
        }
    }

    /// Nobody has touched what waits.
    fn check_waiting(&self) {
        for (&start, object) in &self.waiting {
            let start = std::ptr::with_exposed_provenance(start);
            assert!(
                is_filled(start, object.bytes, object.byte),
                "an object changed that waits for readers"
            );
        }
    }

    /// Ends grace periods: of all that was handed over.
    pub fn end_grace(&mut self) {
        self.check_waiting();
        self.unsure |= !self.waiting.is_empty();
        self.waiting.clear();
        self.grace.end();
    }

    /// Waits for all that was freed after a grace period.
    pub fn barrier(&mut self) {
        self.check_waiting();
        self.waiting.clear();
        self.a.rcu_barrier();
        // Without a fence, what waits on other CPUs stays there.
        self.unsure |= self.setup.slots == Slots::WithoutFence;
        if self.setup.slots != Slots::WithoutFence {
            self.unsure = false;
        }
    }

    /// Makes a sheaf with objects.
    pub fn prefill(&mut self, which: usize, n: usize, gfp: Gfp) {
        if self.owned[which].prefilled.len() >= 3
            || self.held + n * self.owned[which].bytes > HELD_MAX
        {
            return;
        }
        let gfp = self.fitting(which, gfp) & !Gfp::ZERO;
        match self.a.prefill(self.cache(which), gfp, n) {
            Some(prefilled) => {
                assert!(prefilled.size() >= n);
                self.owned[which].prefilled.push(prefilled);
            }
            None => assert!(self.may_fail(which, gfp), "no sheaf to be had"),
        }
    }

    /// Takes objects from a prefilled sheaf: what it has is had whatever happens.
    pub fn alloc_from(&mut self, which: usize, n: usize, gfp: Gfp) {
        let Some(mut prefilled) = self.owned[which].prefilled.pop() else {
            return;
        };
        for _ in 0..n {
            let size = prefilled.size();
            let object =
                never_waiting(|| self.a.alloc_from(self.cache(which), gfp, &mut prefilled));
            if object.is_null() {
                assert_eq!(size, 0, "what was promised is not there");
                break;
            }
            assert_eq!(prefilled.size(), size - 1);
            self.enter(which, object, gfp);
        }
        self.owned[which].prefilled.push(prefilled);
    }

    /// Fills a prefilled sheaf again.
    pub fn refill(&mut self, which: usize, n: usize, gfp: Gfp) {
        let gfp = self.fitting(which, gfp) & !Gfp::ZERO;
        let Some(mut prefilled) = self.owned[which].prefilled.pop() else {
            return;
        };
        let before = prefilled.size();
        let cache = self.cache(which);
        if self.a.refill_prefilled(cache, gfp, &mut prefilled, n) {
            assert!(prefilled.size() >= n);
        } else {
            assert!(n > prefilled.capacity() || self.may_fail(which, gfp));
            assert!(prefilled.size() >= before, "objects are lost");
        }
        self.owned[which].prefilled.push(prefilled);
    }

    /// Gives a prefilled sheaf back.
    pub fn give_back(&mut self, which: usize, gfp: Gfp) {
        if let Some(prefilled) = self.owned[which].prefilled.pop() {
            self.a.return_prefilled(self.cache(which), gfp, prefilled);
        }
    }

    /// Makes constructors fail, or not.
    pub fn set_ctor_fails(&mut self, fails: bool) {
        CTOR_FAILS.set(fails);
    }

    /// Lets the page layer refuse.
    pub fn refuse(&mut self, grant: usize, refuse: usize) {
        self.refusing = true;
        self.a.platform.fail(grant, refuse);
    }

    /// Ends that.
    pub fn heal(&mut self) {
        self.refusing = false;
        self.a.platform.heal();
    }

    /// Objects that this creator and others of the same cache hold, those in prefilled sheaves
    /// included.
    fn live_in(&self, cache: *const Cache) -> usize {
        let of_cache = self.owned.iter().filter(|o| std::ptr::eq(o.cache, cache));
        let live = |o: &Owned| {
            let promised: usize = o.prefilled.iter().map(Prefilled::size).sum();
            o.objects.len() + promised
        };
        of_cache.map(live).sum()
    }

    /// Compares all that the allocator says of itself with the model.
    pub fn compare(&mut self) {
        assert_eq!(self.a.validate(), Ok(()));
        self.check_waiting();
        for owned in &self.owned {
            // SAFETY: records live as long as the allocator.
            let cache = unsafe { &*owned.cache };
            let info = self.a.info(cache);
            let live = self.live_in(owned.cache);
            assert!(info.live_objs() >= live, "objects are lost");
            if self.waiting.is_empty() && !self.unsure {
                assert_eq!(info.live_objs(), live, "objects too many");
            }
            assert!(info.cached_objs <= info.active_objs && info.active_objs <= info.num_objs);
            if let Some(limit) = owned.limit {
                assert!(
                    info.num_slabs * cache.geometry.bytes() <= limit,
                    "above the limit"
                );
            }
        }
    }

    /// Destroys the cache of a creator, whose objects may be leaked into it.
    pub fn destroy(&mut self, which: usize) {
        while let Some(prefilled) = self.owned[which].prefilled.pop() {
            self.a
                .return_prefilled(self.cache(which), Gfp::KERNEL, prefilled);
        }
        let everyone = self.setup.slots != Slots::WithoutFence;
        self.check_waiting();
        self.unsure |= !self.waiting.is_empty();
        self.waiting.clear();
        let mut leaked = 0;
        // SAFETY: nobody uses the cache but the model, which expects what is told.
        let count = unsafe { self.a.destroy(self.cache(which), |_| leaked += 1) };
        assert_eq!(count, leaked);
        let cache = self.owned[which].cache;
        let shared = self.owned.iter().filter(|o| std::ptr::eq(o.cache, cache));
        if shared.count() > 1 {
            assert_eq!(count, 0);
            if self.owned[which].objects.is_empty() {
                self.owned.remove(which);
            } else {
                // They outlive their creator: freed by the next, of the same cache.
                let objects = std::mem::take(&mut self.owned[which].objects);
                self.owned.remove(which);
                let next = self.owned.iter_mut().find(|o| std::ptr::eq(o.cache, cache));
                next.expect("shared").objects.extend(objects);
            }
            return;
        }
        let live = self.owned[which].objects.len();
        if everyone {
            assert_eq!(count, live, "leaked objects are told exactly");
        }
        if count == 0 {
            self.owned.remove(which);
        }
    }

    /// The end: everything is freed, and must be given back.
    pub fn finish(mut self) {
        self.heal();
        CTOR_FAILS.set(false);
        let platform = &self.a.platform;
        platform.disturb(0);
        platform.set_percpu_usable(true);
        platform.set_purges(true);
        self.compare();
        for which in 0..self.owned.len() {
            self.free(which, 0, usize::MAX, Way::Bulk, None);
            while !self.owned[which].prefilled.is_empty() {
                self.give_back(which, Gfp::KERNEL);
            }
        }
        for cpu in 0..self.setup.cpus {
            // Where nobody can empty another CPU's sheaves, each does it itself.
            if cpu == 0 || self.setup.slots == Slots::WithoutFence {
                on_cpu(cpu);
                self.barrier();
                // A trim leaves those alone whose slabs wait for readers.
                for cache in self.a.caches() {
                    self.a.shrink(cache);
                }
                self.barrier();
                self.a.trim();
            }
        }
        self.unsure = false;
        self.compare();
        assert_all_is_given_back(&self.a);
        while !self.owned.is_empty() {
            self.destroy(self.owned.len() - 1);
        }
        assert_eq!(self.a.validate(), Ok(()));
        assert_eq!(self.a.totals().slabs, 0);
    }
}
