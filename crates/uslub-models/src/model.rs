//! A model: an allocator that is set up once. `orders` and `schedules` run it in many orders.
//!
//! Each run starts from the same memory. A thread that gets an object registers it and writes the
//! two words that the allocator uses. A run fails if an object has two owners, or if the last
//! owner's writes are not ordered before the next owner's. After each run the allocator's
//! invariants must hold, and the objects in use must be exactly the objects that threads kept.

use std::cell::RefCell;
use std::collections::HashSet;

use uslub_core::Allocator;
use uslub_core::Gfp;
use uslub_core::cache::KmemCache;
use uslub_core::kmalloc::NR_CLASSES;
use uslub_core::tunables::Tunables;

use crate::machine::{self, Machine, Slots};
use crate::memory::Memory;

/// An allocator on a modelled machine.
pub type Slub = Allocator<Machine>;
/// A cache of the allocator.
pub type Cache = KmemCache<Machine>;

std::thread_local! {
    /// Objects that the threads of the model hold.
    static HELD: RefCell<HashSet<usize>> = RefCell::default();
}

/// A model during its setup.
pub struct Model {
    /// The allocator.
    pub slub: &'static Slub,
    memory: &'static Memory,
}

impl Model {
    /// An allocator on a machine of `cpus` CPUs with per-CPU slots of this kind. Without `slots`,
    /// no thread uses per-CPU slots.
    pub fn new(cpus: usize, slots: Option<Slots>, tunables: Tunables) -> Self {
        // Both live until the process ends. Each test creates only a few.
        let memory: &'static Memory = Box::leak(Box::default());
        let at = memory
            .take(size_of::<Slub>(), 4096)
            .expect("room for an allocator");
        let machine = Machine::new(
            memory,
            cpus,
            slots.unwrap_or(Slots::Locked),
            slots.is_some(),
        );
        let at = at as *mut Slub;
        // SAFETY: the memory is new and has this size and alignment.
        let slub = unsafe {
            at.write(Slub::new(machine));
            &*at
        };
        // SAFETY: no other thread has the allocator yet.
        assert!(unsafe { slub.init(16 << 20, tunables) });
        slub.keep_indices(NR_CLASSES + 1);
        Self { slub, memory }
    }

    /// Makes the present state of the allocator the start of each run.
    pub(crate) fn seal(self) -> Setup {
        self.memory.seal();
        Setup {
            slub: self.slub,
            memory: self.memory,
        }
    }

    /// Zeroed bytes of the model's memory, never freed.
    pub fn place_bytes(&self, bytes: usize, align: usize) -> usize {
        self.memory.take(bytes, align).expect("room")
    }

    /// Places a value in the model's memory.
    pub fn place<T>(&self, value: T) -> &'static T {
        let at = self.place_bytes(size_of::<T>(), align_of::<T>().max(64)) as *mut T;
        // SAFETY: the memory is new, has this size and alignment, and is never freed.
        unsafe {
            at.write(value);
            &*at
        }
    }
}

/// A model after its setup.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) slub: &'static Slub,
    memory: &'static Memory,
}

// SAFETY: the threads of a model run one at a time.
unsafe impl Send for Setup {}
// SAFETY: as above.
unsafe impl Sync for Setup {}

impl Setup {
    /// Starts a run.
    pub(crate) fn begin(&self) {
        self.memory.restore();
        HELD.with_borrow_mut(HashSet::clear);
        self.slub.platform.begin();
    }

    /// Ends a run. Only the objects in `left` may stay in use.
    pub(crate) fn end(&self, left: &[Object]) {
        let slub = self.slub;
        slub.platform.end();
        // The invariants do not cover detached objects, so flush the caches first.
        slub.caches().for_each(|cache| slub.flush(cache));
        assert_eq!(slub.validate(), Ok(()));
        let in_use: usize = slub.caches().map(|c| slub.info(c).live_objs()).sum();
        assert_eq!(in_use, left.len(), "objects in use");
    }
}

/// The pattern that a thread writes into an object that it holds, combined with the address.
const MARK: usize = 0x5a5a_0000_0000_0000;

/// An object that a thread holds.
#[derive(Debug)]
pub struct Object {
    address: usize,
    link: usize,
    is_marked: bool,
}

impl Object {
    /// Takes over an object that another part of the run allocated.
    pub fn of(object: *mut u8, cache: &Cache) -> Self {
        let mut object = Self::before(object, cache);
        machine::use_words(object.address, object.address + object.link);
        object.mark();
        object
    }

    /// Like [`of`](Self::of), before the other threads of the run start. Other threads may read the
    /// object.
    pub fn before(object: *mut u8, cache: &Cache) -> Self {
        let address = object as usize;
        let first = HELD.with_borrow_mut(|held| held.insert(address));
        assert!(first, "object {address:#x} has two owners");
        Self {
            address,
            link: cache.links.offset as usize,
            is_marked: false,
        }
    }

    /// The two words that the allocator may use.
    fn words(&self) -> [*mut usize; 2] {
        [self.address, self.address + self.link].map(|at| at as *mut usize)
    }

    fn mark(&mut self) {
        self.is_marked = true;
        for word in self.words() {
            // SAFETY: the word lies in the object, which the caller owns.
            unsafe { *word = MARK ^ self.address };
        }
    }

    /// Gives the object up. Its words must be unchanged.
    pub fn end(self) -> *mut u8 {
        machine::use_words(self.address, self.address + self.link);
        if self.is_marked {
            // SAFETY: the word lies in the object, which the caller owns.
            let words = self.words().map(|word| unsafe { *word });
            assert_eq!(words, [MARK ^ self.address; 2], "somebody else wrote");
        }
        HELD.with_borrow_mut(|held| held.remove(&self.address));
        self.address as *mut u8
    }
}

/// Allocates an object. The allocation must succeed.
pub fn alloc(slub: &Slub, cache: &Cache, gfp: Gfp) -> Object {
    let object = slub.alloc(cache, gfp);
    assert!(!object.is_null(), "no object");
    Object::of(object, cache)
}

/// Frees an object.
pub fn free(slub: &Slub, cache: &Cache, object: Object, gfp: Gfp) {
    // SAFETY: the object is of the cache, and only the caller holds it.
    unsafe { slub.free_with(cache, object.end(), gfp) }
}

/// Frees an object after a grace period.
pub fn free_rcu(slub: &Slub, cache: &Cache, object: Object) {
    HELD.with_borrow_mut(|held| held.remove(&object.address));
    // SAFETY: the object is of the cache, and only readers still access it.
    unsafe { slub.free_rcu(cache, object.address as *mut u8) }
}
