//! A model: an allocator that is set up once, and what is tried with it in many orders.
//!
//! Each run starts from the same memory. A thread that is given an object says so, and uses those
//! of its words that the allocator uses; so an object with two owners, or one whose last owner's
//! writes are not ordered before the next one's, fails the run. After each run the allocator's
//! invariants must hold, and as many objects must be in use as threads kept.

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
/// A cache of one.
pub type Cache = KmemCache<Machine>;

std::thread_local! {
    /// Objects that the threads of the model hold.
    static HELD: RefCell<HashSet<usize>> = RefCell::default();
}

/// A model that is being set up.
pub struct Model {
    /// The allocator.
    pub slub: &'static Slub,
    memory: &'static Memory,
}

impl Model {
    /// An allocator on a machine of `cpus` CPUs whose per-CPU slots are guarded so; `None` keeps
    /// all threads off them.
    pub fn new(cpus: usize, slots: Option<Slots>, tunables: Tunables) -> Self {
        // Both live as long as the process: each test has a few.
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
        // SAFETY: fresh memory of this size and alignment.
        let slub = unsafe {
            at.write(Slub::new(machine));
            &*at
        };
        // SAFETY: nobody else has it.
        assert!(unsafe { slub.init(16 << 20, tunables) });
        slub.keep_indices(NR_CLASSES + 1);
        Self { slub, memory }
    }

    /// Makes what the allocator is now the start of each run.
    pub(crate) fn seal(self) -> Setup {
        self.memory.seal();
        Setup {
            slub: self.slub,
            memory: self.memory,
        }
    }

    /// Zeroed bytes of the memory of the model, for ever.
    pub fn place_bytes(&self, bytes: usize, align: usize) -> usize {
        self.memory.take(bytes, align).expect("room")
    }

    /// A value that lies in the memory of the model.
    pub fn place<T>(&self, value: T) -> &'static T {
        let at = self.place_bytes(size_of::<T>(), align_of::<T>().max(64)) as *mut T;
        // SAFETY: fresh memory of this size and alignment, for ever.
        unsafe {
            at.write(value);
            &*at
        }
    }
}

/// A model that is set up.
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
    /// Begins a run.
    pub(crate) fn begin(&self) {
        self.memory.restore();
        HELD.with_borrow_mut(HashSet::clear);
        self.slub.platform.begin();
    }

    /// Ends a run of which these objects stay in use.
    pub(crate) fn end(&self, left: &[Object]) {
        let slub = self.slub;
        slub.platform.end();
        // What was set aside goes home first: it is in no place that the invariants know.
        slub.caches().for_each(|cache| slub.flush(cache));
        assert_eq!(slub.validate(), Ok(()));
        let in_use: usize = slub.caches().map(|c| slub.info(c).live_objs()).sum();
        assert_eq!(in_use, left.len(), "objects in use");
    }
}

/// What a thread writes into an object that it holds, besides the address.
const MARK: usize = 0x5a5a_0000_0000_0000;

/// An object that a thread holds.
#[derive(Debug)]
pub struct Object {
    address: usize,
    link: usize,
    is_marked: bool,
}

impl Object {
    /// Takes an object over that came from outside of the run.
    pub fn of(object: *mut u8, cache: &Cache) -> Self {
        let mut object = Self::before(object, cache);
        machine::use_words(object.address, object.address + object.link);
        object.mark();
        object
    }

    /// As [`of`](Self::of), before the other threads of the run begin; others may look at the
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
            // SAFETY: it lies in the object, which is the caller's.
            unsafe { *word = MARK ^ self.address };
        }
    }

    /// Gives the object up, which must be as it was left.
    pub fn end(self) -> *mut u8 {
        machine::use_words(self.address, self.address + self.link);
        if self.is_marked {
            // SAFETY: as in `mark`.
            let words = self.words().map(|word| unsafe { *word });
            assert_eq!(words, [MARK ^ self.address; 2], "somebody else wrote");
        }
        HELD.with_borrow_mut(|held| held.remove(&self.address));
        self.address as *mut u8
    }
}

/// Allocates an object, which must be there.
pub fn alloc(slub: &Slub, cache: &Cache, gfp: Gfp) -> Object {
    let object = slub.alloc(cache, gfp);
    assert!(!object.is_null(), "no object");
    Object::of(object, cache)
}

/// Frees an object.
pub fn free(slub: &Slub, cache: &Cache, object: Object, gfp: Gfp) {
    // SAFETY: an object of the cache, held by the caller alone.
    unsafe { slub.free_with(cache, object.end(), gfp) }
}

/// Frees an object after a grace period.
pub fn free_rcu(slub: &Slub, cache: &Cache, object: Object) {
    HELD.with_borrow_mut(|held| held.remove(&object.address));
    // SAFETY: as in `free`; readers may still look at it.
    unsafe { slub.free_rcu(cache, object.address as *mut u8) }
}
