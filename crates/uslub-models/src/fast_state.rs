//! The memory and the threads of `fast_explore`: one class of objects, two CPUs with a sheaf each,
//! and what `malloc` and `free` read.

use std::collections::BTreeMap;

use crate::fast_aarch64::{Place, World};
use crate::search::{self, Memory, Threads};

pub(crate) const FRONT: u64 = 0x10_0000;
pub(crate) const LINE: u64 = 0xc00;
pub(crate) const CLASSES: u64 = 0xc80;
pub(crate) const TABLE: u64 = 0x1c00;
pub(crate) const SHAPES: u64 = 0x5c00;
const MAP: u64 = 0x20_0000;
pub(crate) const REGIONS: u64 = 0x30_0000;
pub(crate) const STOPPED: u64 = 0x31_0000;
const WINDOWS: u64 = 0x40_0000;
pub(crate) const WINDOW: u64 = 4096;
/// Objects that a sheaf can hold in these models.
const CAPACITY: u64 = 3;
const OBJECTS: u64 = 0x50_0000;
pub(crate) const SIZE: u64 = 64;
pub(crate) const MARK: u64 = 0xffff_ffff_d3a9_5e96;
const THREADS: u64 = 0x60_0000;
pub(crate) const AREA: u64 = 0x40;
pub(crate) const CPU_ID: u64 = 4;
pub(crate) const DESCRIPTOR: u64 = 8;
pub(crate) const MM_CID: u64 = 24;
/// Descriptors of `malloc` and `free`.
pub(crate) const DESCRIPTORS: [u64; 2] = [0x70_0000, 0x70_1000];
/// The cache of all objects: the index of its main word.
const CACHE: u64 = 4;
/// Bytes from the main word to the counts.
pub(crate) const COUNTS: [u64; 2] = [16, 24];

pub(crate) const NO_SHEAF: u64 = WINDOWS + WINDOW - 8;
const STOPPED_TOP: u64 = NO_SHEAF + WINDOW;

fn object(n: u64) -> u64 {
    OBJECTS + n * SIZE
}

pub(crate) fn slot(region: u64) -> u64 {
    region + 8 * CACHE
}

fn region(cpu: usize) -> u64 {
    REGIONS + 0x1000 * cpu as u64
}

pub(crate) fn area(thread: usize) -> u64 {
    THREADS + 0x1000 * thread as u64 + AREA
}

/// The top of sheaf `n` if it has `len` objects.
fn top(n: u64, len: u64) -> u64 {
    WINDOWS + (n + 3) * WINDOW - 8 - 8 * (CAPACITY - len)
}

/// A call of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Of the class's size.
    Malloc,
    /// With an object's number.
    Free(u64),
}

impl Call {
    pub(crate) fn index(self) -> usize {
        usize::from(self != Call::Malloc)
    }

    pub(crate) fn argument(self) -> u64 {
        match self {
            Call::Malloc => SIZE,
            Call::Free(n) => object(n),
        }
    }
}

/// The input of an exploration.
pub type Scenario = search::Scenario<Call>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) threads: Threads<Call, (Call, Place)>,
    /// Objects outside of sheaves, and objects of sheaves that the drain took.
    pub(crate) held: Vec<u64>,
    /// Calls of `malloc` and of `free` that returned.
    pub(crate) done: [u64; 2],
    /// Calls that moved to another CPU with their thread.
    pub(crate) moves: u64,
}

pub(crate) struct Here<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) thread: usize,
}

impl World for Here<'_> {
    fn load(&self, address: u64) -> u64 {
        self.state.memory.load(address)
    }

    fn store(&mut self, address: u64, value: u64) {
        self.state.memory.swap(address, value);
    }

    fn thread(&self) -> u64 {
        area(self.thread) - AREA
    }
}

impl State {
    /// The start state. CPU 0 has a sheaf with objects 1 and 2, CPU 1 a sheaf with object 3. The
    /// objects that threads will free are held.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let mut memory = BTreeMap::from([
            (FRONT + LINE, OBJECTS),
            (FRONT + LINE + 16, MAP),
            (FRONT + LINE + 24, 8193),
            (FRONT + LINE + 32, AREA),
            (FRONT + LINE + 48, 1),
            (FRONT + CLASSES + SIZE / 8 * 2, CACHE),
            // 2^32 / SIZE, and the mask of a page.
            (
                FRONT + SHAPES + 2 * CACHE,
                ((1 << 32) / SIZE) | ((WINDOW - 1) << 32),
            ),
            (MAP, CACHE),
        ]);
        for (n, region, word) in [
            (0, region(0), top(0, 2)),
            (1, region(1), top(1, 1)),
            (2, STOPPED, STOPPED_TOP),
        ] {
            if region != STOPPED {
                memory.insert(FRONT + TABLE + 8 * n, region);
                (0..=CAPACITY).for_each(|len| {
                    memory.insert(top(n, len), 0);
                });
            }
            memory.insert(slot(region), word);
            memory.extend(COUNTS.map(|count| (slot(region) + count, 0)));
        }
        memory.extend([(NO_SHEAF, 0), (STOPPED_TOP, 0)]);
        for (at, n) in [(top(0, 1), 1), (top(0, 2), 2), (top(1, 1), 3)] {
            memory.insert(at, object(n));
            memory.insert(object(n), MARK);
        }
        let calls = scenario.threads.iter().flat_map(|(_, all)| all);
        let held: Vec<u64> = calls
            .chain(&scenario.handler)
            .filter(|call| **call != Call::Malloc)
            .map(|call| call.argument())
            .collect();
        memory.extend(held.iter().map(|&object| (object, 0)));
        for (thread, &(cpu, _)) in scenario.threads.iter().enumerate() {
            for field in [CPU_ID, MM_CID] {
                memory.insert(area(thread) + field, cpu as u64);
            }
            memory.insert(area(thread) + DESCRIPTOR, 0);
        }
        Self {
            memory: Memory::of(&memory),
            threads: Threads::of(scenario),
            held,
            done: [0; 2],
            moves: 0,
        }
    }

    pub(crate) fn end(&mut self, call: Call, result: u64) {
        self.done[call.index()] += 1;
        match call {
            Call::Malloc => {
                assert_eq!(self.memory.load(result) & 0xff, 0, "the mark stays");
                self.held.push(result);
                self.held.sort_unstable();
            }
            // Another thread may hold the object already.
            Call::Free(_) => {
                let at = self.held.iter().position(|&held| held == call.argument());
                self.held.remove(at.expect("an object that is held"));
            }
        }
    }

    pub(crate) fn move_to(&mut self, thread: usize, cpu: usize) {
        let of = &mut self.threads.all[thread];
        if of.cpu != cpu {
            self.moves += of.frames.len() as u64;
        }
        of.cpu = cpu;
        for field in [CPU_ID, MM_CID] {
            self.memory.swap(area(thread) + field, cpu as u64);
        }
    }

    pub(crate) fn objects_of(&self, top: u64) -> Vec<u64> {
        if [NO_SHEAF, STOPPED_TOP].contains(&top) {
            return Vec::new();
        }
        let null = (top & !(WINDOW - 1)) + WINDOW - 8 - 8 * CAPACITY;
        assert!(top >= null, "a top below its sheaf");
        (null + 8..=top)
            .step_by(8)
            .map(|at| self.memory.load(at))
            .collect()
    }
}

impl search::State for State {
    type Call = Call;
    type Frame = (Call, Place);

    fn threads(&mut self) -> &mut Threads<Call, (Call, Place)> {
        &mut self.threads
    }

    /// Checks that each object is in exactly one place, and that the counts are right.
    fn check(&self) {
        let slots = [slot(region(0)), slot(region(1))];
        let mut all = self.held.clone();
        for object in slots
            .map(|slot| self.objects_of(self.memory.load(slot)))
            .concat()
        {
            assert_eq!(
                self.memory.load(object),
                MARK,
                "a free object has no mark: {self:?}"
            );
            all.push(object);
        }
        all.sort_unstable();
        let expected: Vec<u64> = (1..=all.len() as u64).map(object).collect();
        assert_eq!(
            all, expected,
            "an object is lost or in two places: {self:?}"
        );
        let there = self
            .memory
            .addresses
            .iter()
            .filter(|at| (OBJECTS..THREADS).contains(at));
        assert_eq!(there.count(), all.len(), "an object is lost: {self:?}");
        for (count, done) in COUNTS.into_iter().zip(self.done) {
            let counted: u64 = slots
                .iter()
                .map(|slot| self.memory.load(slot + count))
                .sum();
            assert!(
                counted <= done && counted + self.moves >= done,
                "a count is lost or made up: {self:?}"
            );
        }
        let stopped = [0, COUNTS[0], COUNTS[1]].map(|at| self.memory.load(slot(STOPPED) + at));
        assert_eq!(
            stopped,
            [STOPPED_TOP, 0, 0],
            "the stopped region was written to"
        );
    }
}
