//! One sheaf, one word and one counter, and every operation of `uslub-rseq` on them.
//!
//! The table leads each CPU to the same region, as one thread uses it. What there is can be read as
//! a
//! [`State`]; what an operation must make of it is told by a few lines of plain code. An
//! operation that was aborted must leave the state as it was.

use uslub_rseq::{Area, SHEAF_BYTES};

/// Words of the region.
const REGION: usize = 64;
/// The word of the sheaf, and its counter.
const SLOT: usize = 5;
const COUNT: usize = 7;
/// The word for [`exchange`] and [`add`].
const WORD: usize = 20;
/// What all other words hold.
const GUARD: u64 = 0x6775_6172_6400;
const WORDS: usize = SHEAF_BYTES / 8;
/// Objects that the sheaf may hold.
pub const CAPACITY: usize = 250;
/// Byte of the window that holds the capacity.
const CAPACITY_AT: usize = 6;
/// Objects of a bulk call: each size of piece is copied once, and the largest twice.
const MANY: usize = 8 + 8 + 4 + 2 + 1;
/// The same without the smaller pieces, and without the largest.
const OTHERS: [usize; 2] = [8 + 8, 4 + 2 + 1];
/// Objects of a bulk call by wide registers, at least.
pub const BLOCK: usize = 8;
/// Objects of a bulk call that is copied in another way, at least.
const LARGE: usize = 128;
/// The first object in the hand, and the last that may be pushed by [`push_many_checked`].
pub const BOUNDS: (usize, usize) = (0x2000, 0x20ff);
/// Words of memory that bulk calls copy from or to.
const ARRAY: usize = 1024;
const CPUS: usize = 8192;

/// A window of a sheaf.
#[repr(C, align(4096))]
struct Window([u64; WORDS]);

/// Everything there is, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Objects in the sheaf, the oldest first.
    sheaf: Vec<u64>,
    /// Objects outside.
    hand: Vec<u64>,
    count: u64,
    word: u64,
    /// Objects of a bulk call.
    many: usize,
    /// Whether any word that nobody may write was written.
    spoilt: bool,
}

/// What operations work on.
pub struct World {
    area: Area,
    table: Vec<*mut u64>,
    region: Box<[u64; REGION]>,
    window: Box<Window>,
    hand: Vec<u64>,
    /// What bulk calls copy from or to, and where in it.
    array: Vec<u64>,
    at: usize,
    /// Objects of a bulk call.
    many: usize,
    strange: *mut u8,
    turn: usize,
    dice: u64,
}

impl World {
    pub fn new(area: Area) -> Self {
        let mut world = Self {
            area,
            table: Vec::new(),
            region: Box::new([GUARD; REGION]),
            window: Box::new(Window([0; WORDS])),
            hand: Vec::new(),
            array: vec![GUARD; ARRAY],
            at: 0,
            many: MANY,
            strange: std::ptr::null_mut(),
            turn: 0,
            dice: 1,
        };
        world.table = vec![world.region.as_mut_ptr(); CPUS];
        world
    }

    /// The next way to copy: wide every other time, a large bulk every other two times where those
    /// are copied in another way, and always from and to another place. Returns how many objects
    /// the next bulk call has, at least so many, and how many should be below them.
    pub fn turn(&mut self, least: usize) -> (usize, usize) {
        self.turn += 1;
        uslub_rseq::move_wide(self.turn % 2 == 1);
        self.dice = (self.dice.wrapping_mul(6364136223846793005)).wrapping_add(1);
        let dice = (self.dice >> 33) as usize;
        let large = cfg!(target_arch = "x86_64") && self.turn / 2 % 2 == 1;
        self.many = match dice >> 20 & 3 {
            _ if large => LARGE + dice % 16,
            which => OTHERS.get(which).copied().unwrap_or(MANY).max(least),
        };
        self.at = dice / 128 % (ARRAY - CAPACITY);
        (self.many, 1 + dice / 16 % 8)
    }

    /// A number of objects in the sheaf, and others in the hand.
    pub fn fill(&mut self, sheaf: usize, hand: usize) {
        self.array.fill(GUARD);
        self.region.fill(GUARD);
        self.window.0.fill(0);
        self.window.0[CAPACITY_AT / 8] = (CAPACITY as u64) << (CAPACITY_AT % 8 * 8);
        let empty = WORDS - 1 - CAPACITY;
        for (i, word) in self.window.0[empty + 1..][..sheaf].iter_mut().enumerate() {
            *word = 0x1000 + i as u64;
        }
        self.region[SLOT] = &raw const self.window.0[empty + sheaf] as u64;
        self.region[SLOT + COUNT] = 0;
        self.hand.clear();
        self.hand.extend((BOUNDS.0 as u64..).take(hand));
    }

    /// The next way to copy, and as many objects in the hand.
    fn fill_hand(&mut self, least: usize) {
        let (many, below) = self.turn(least);
        self.fill(below, many);
    }

    /// Puts another object in the place of one in the hand.
    #[allow(dead_code)]
    pub fn change_hand(&mut self, at: usize, object: u64) {
        self.hand[at] = object;
    }

    /// Changes the word for [`exchange`].
    #[allow(dead_code)]
    pub fn set_word(&mut self, word: u64) {
        self.region[WORD] = word;
    }

    /// Makes the region the one that [`add`] may not use.
    #[allow(dead_code)]
    pub fn stop(&mut self) {
        self.strange = self.region.as_mut_ptr().cast();
    }

    /// What there is now.
    pub fn state(&self) -> State {
        let start = &raw const self.window.0[0] as u64;
        let newest = (self.region[SLOT] - start) as usize / 8;
        let empty = WORDS - 1 - CAPACITY;
        let may_change = |i: &usize| [SLOT, SLOT + COUNT, WORD].contains(i);
        let guards = (0..REGION).filter(|i| !may_change(i));
        let (before, rest) = self.array.split_at(self.at);
        let mut beside = before.iter().chain(&rest[self.many..]);
        State {
            sheaf: self.window.0[empty + 1..=newest].to_vec(),
            hand: self.hand.clone(),
            count: self.region[SLOT + COUNT],
            word: self.region[WORD],
            many: self.many,
            spoilt: beside.any(|&word| word != GUARD)
                || guards.into_iter().any(|i| self.region[i] != GUARD)
                || self.window.0[1..=empty].iter().any(|&word| word != 0)
                || self.window.0[0] != (CAPACITY as u64) << (CAPACITY_AT * 8),
        }
    }

    fn table(&mut self) -> *mut u8 {
        self.table.as_mut_ptr().cast()
    }

    /// What the next bulk call copies from or to.
    fn bulk(&mut self) -> &mut [*mut u8] {
        let words = &mut self.array[self.at..][..self.many];
        // SAFETY: words are as large and aligned as pointers, and any of them is one.
        unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len()) }
    }
}

/// An operation of `uslub-rseq`.
pub struct Operation {
    pub name: &'static str,
    /// Puts the world into a state in which the operation succeeds.
    pub prepare: fn(&mut World),
    /// The operation; false when it returns its sentinel.
    pub run: fn(&mut World) -> bool,
    /// What it must do.
    pub model: fn(&mut State),
}

/// All that there are here: the last by wide registers alone.
pub fn operations() -> &'static [Operation] {
    let (wide, others) = OPERATIONS.split_last().unwrap();
    if uslub_rseq::move_wide(true) {
        &OPERATIONS
    } else {
        assert_eq!(wide.name, "push_many_within");
        others
    }
}

static OPERATIONS: [Operation; 7] = [
    Operation {
        name: "pop",
        prepare: |world| world.fill(3, 0),
        run: pop,
        model: |state| {
            state.hand.push(state.sheaf.pop().unwrap());
            state.count += 1;
        },
    },
    Operation {
        name: "push",
        prepare: |world| world.fill(3, 2),
        run: push,
        model: |state| {
            state.sheaf.push(state.hand.pop().unwrap());
            state.count += 1;
        },
    },
    Operation {
        name: "pop_many",
        prepare: |world| {
            let (many, below) = world.turn(1);
            world.fill(below + many, 0);
        },
        run: pop_many,
        model: |state| {
            let taken = state.sheaf.split_off(state.sheaf.len() - state.many);
            state.hand.extend(taken);
            state.count += state.many as u64;
        },
    },
    Operation {
        name: "push_many",
        prepare: |world| world.fill_hand(1),
        run: push_many,
        model: all_are_pushed,
    },
    Operation {
        name: "exchange",
        prepare: |world| world.fill(0, 0),
        run: exchange,
        model: |state| state.word = GUARD + 1,
    },
    Operation {
        name: "add",
        prepare: |world| world.fill(0, 0),
        run: add,
        model: |state| state.word = GUARD + 17,
    },
    Operation {
        name: "push_many_within",
        prepare: |world| world.fill_hand(BLOCK),
        run: push_many_checked,
        model: all_are_pushed,
    },
];

fn all_are_pushed(state: &mut State) {
    state.sheaf.append(&mut state.hand);
    state.count += state.many as u64;
}

#[inline(never)]
fn pop(world: &mut World) -> bool {
    let (area, table) = (world.area, world.table());
    // SAFETY: the region has a top and a counter there, as in all that follow.
    let object = unsafe { uslub_rseq::pop::<{ COUNT * 8 }>(&area, table, SLOT * 8) };
    if object.is_null() {
        return false;
    }
    world.hand.push(object as u64);
    true
}

#[inline(never)]
fn push(world: &mut World) -> bool {
    let (area, table) = (world.area, world.table());
    let object = world.hand.pop().unwrap() as *mut u8;
    // SAFETY: as in `pop`; a sheaf that is not full has room behind its top.
    let done = unsafe { uslub_rseq::push::<{ COUNT * 8 }>(&area, table, SLOT * 8, object) };
    if !done {
        world.hand.push(object as u64);
    }
    done
}

#[inline(never)]
fn pop_many(world: &mut World) -> bool {
    let (area, table) = (world.area, world.table());
    let out = world.bulk();
    // SAFETY: as in `pop`; the window has its capacity there.
    let done =
        unsafe { uslub_rseq::pop_many::<{ COUNT * 8 }, CAPACITY_AT>(&area, table, SLOT * 8, out) };
    if done {
        world.hand = world.array[world.at..][..world.many].to_vec();
    }
    done
}

#[inline(never)]
fn push_many(world: &mut World) -> bool {
    let (area, table) = (world.area, world.table());
    world.array[world.at..][..world.many].copy_from_slice(&world.hand);
    let objects = world.bulk();
    // SAFETY: as in `push`.
    let done = unsafe { uslub_rseq::push_many::<{ COUNT * 8 }>(&area, table, SLOT * 8, objects) };
    if done {
        world.hand.clear();
    }
    done
}

#[inline(never)]
fn push_many_checked(world: &mut World) -> bool {
    loop {
        // Other tests say otherwise.
        uslub_rseq::move_wide(true);
        if let Some(done) = push_within(world, BOUNDS) {
            return done;
        }
    }
}

/// Pushes what is in the hand, if it lies within bounds; `None` where that is not told.
#[inline(always)]
pub fn push_within(world: &mut World, bounds: (usize, usize)) -> Option<bool> {
    let (area, table) = (world.area, world.table());
    world.array[world.at..][..world.many].copy_from_slice(&world.hand);
    let objects = world.bulk();
    // SAFETY: as in `push`.
    let done = unsafe {
        uslub_rseq::push_many_checked::<{ COUNT * 8 }>(&area, table, SLOT * 8, objects, bounds)
    };
    if done == Some(true) {
        world.hand.clear();
    }
    done
}

#[inline(never)]
fn exchange(world: &mut World) -> bool {
    let (area, table) = (world.area, world.table());
    let (old, new) = (GUARD as usize, GUARD as usize + 1);
    // SAFETY: as in `pop`.
    unsafe { uslub_rseq::exchange(&area, table, WORD * 8, old, new) }
}

#[inline(never)]
fn add(world: &mut World) -> bool {
    let (area, table, strange) = (world.area, world.table(), world.strange);
    // SAFETY: as in `pop`.
    unsafe { uslub_rseq::add(&area, table, WORD * 8, 17, strange) }
}
