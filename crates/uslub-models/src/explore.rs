//! Runs the restartable sequences of several threads in every order. `tests/sequences.rs` gives the
//! scenarios. Between any two instructions, every event of this table may happen:
//!
//! | event | effect |
//! |---|---|
//! | another CPU | its thread executes an instruction |
//! | preemption | aborts the thread inside its sequence; another thread runs on the CPU |
//! | migration | aborts the thread likewise; the thread continues on a free CPU |
//! | signal | aborts the thread likewise; the handler runs a sequence of its own |
//! | drain | a step of a thread on another CPU, see below |
//!
//! A drain sets the CPU's table entry to *stopped*. A fence then aborts all sequences. The drain
//! takes the sheaf and restores the entry.
//!
//! The exploration tries all orders, with a bound on the sum of preemptions, migrations and
//! signals. It skips states that it has seen before. At each end, every object must be in exactly
//! one place. Stores become visible in program order, as x86-64 and the fence guarantee.

use std::collections::BTreeMap;

use crate::assembly::{Place, Program, World};
pub use crate::search::Seen;
use crate::search::{self, Memory, Model, NR_CPUS, Threads};

/// Bytes of a window, as in uslub-core.
const WINDOW: u64 = 4096;
/// Offset of the capacity in a window.
const CAPACITY_AT: u64 = 8;
/// Objects that a sheaf can hold in these models.
const CAPACITY: u64 = 3;
const TABLE: u64 = 0x100;
const REGIONS: u64 = 0x1000;
const STOPPED: u64 = 0x3000;
const SLOT: u64 = 8;
const COUNT: u64 = 16;
/// A word of a region that is only a counter.
const NUMBER: u64 = 0x40;
const AREA: u64 = 0x500;
const INDEX: u64 = 0x600;
const WINDOWS: u64 = 0x10000;
const BUFFERS: u64 = 0x40000;

const NO_SHEAF: u64 = WINDOWS + WINDOW - 8;
const STOPPED_TOP: u64 = NO_SHEAF + WINDOW;

/// The top of sheaf `n` if it has `len` objects.
fn top(n: u64, len: u64) -> u64 {
    WINDOWS + (n + 3) * WINDOW - 8 - 8 * (CAPACITY - len)
}

fn is_sentinel(top: u64) -> bool {
    top == NO_SHEAF || top == STOPPED_TOP
}

/// An operation of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Pops an object.
    Pop,
    /// Pushes an object.
    Push(u64),
    /// Pops this number of objects.
    PopMany(u64),
    /// Pushes these objects.
    PushMany(Vec<u64>),
    /// Takes the sheaf that the thread has seen.
    Take,
    /// Adds to the counter.
    Add(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    operation: Operation,
    place: Place,
    /// The sheaf that the thread has seen, for [`Operation::Take`].
    seen: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    memory: Memory,
    threads: Threads<Operation, Frame>,
    /// Objects outside of sheaves, and objects of sheaves that a thread took.
    held: Vec<u64>,
    counted: u64,
}

struct Here<'a> {
    memory: &'a mut Memory,
    cpu: usize,
}

impl World for Here<'_> {
    fn load(&self, address: u64) -> u64 {
        self.memory.load(address)
    }

    fn store(&mut self, address: u64, value: u64) {
        self.memory.swap(address, value);
    }

    fn area(&self, address: u64) -> u64 {
        assert!(
            address == AREA + 4 || address == INDEX,
            "the area at {address:#x}"
        );
        self.cpu as u64
    }
}

/// The input of an exploration.
pub type Scenario = search::Scenario<Operation>;

/// The parsed sequences.
#[derive(Debug)]
pub struct Sequences {
    pop: Program,
    push: Program,
    pop_many: Program,
    push_many: Program,
    exchange: Program,
    add: Program,
}

impl Sequences {
    /// Parses the sequences from the source.
    pub fn read() -> Self {
        let many = [
            ("window", WINDOW),
            ("capacity", CAPACITY_AT),
            ("count", COUNT),
        ];
        Self {
            pop: Program::read("pop", &[("count", COUNT)]),
            push: Program::read("push", &[("mask", WINDOW - 1), ("count", COUNT)]),
            pop_many: Program::read("pop_many", &many),
            push_many: Program::read("push_many", &many),
            exchange: Program::read("exchange", &[]),
            add: Program::read("add", &[]),
        }
    }

    fn of(&self, operation: &Operation) -> &Program {
        match operation {
            Operation::Pop => &self.pop,
            Operation::Push(_) => &self.push,
            Operation::PopMany(_) => &self.pop_many,
            Operation::PushMany(_) => &self.push_many,
            Operation::Take => &self.exchange,
            Operation::Add(_) => &self.add,
        }
    }

    /// Tries every order of a scenario.
    ///
    /// # Panics
    ///
    /// If an object is lost or in two places, or the counter is wrong.
    pub fn explore(&self, scenario: &Scenario) -> Seen {
        self.search(State::of(scenario), scenario.disturbances)
    }
}

impl Model for Sequences {
    type State = State;

    fn interrupt(&self, state: &mut State, thread: usize, seen: &mut Seen) {
        if let Some(frame) = state.threads.all[thread].frames.last_mut() {
            let aborted = self.of(&frame.operation).interrupt(&mut frame.place);
            seen.aborts += usize::from(aborted);
        }
    }

    fn drain_step(&self, state: &mut State, step: u8, seen: &mut Seen) {
        match step {
            1 => drop(state.memory.swap(TABLE, STOPPED)),
            2 => (0..state.threads.all.len()).for_each(|t| self.interrupt(state, t, seen)),
            3 => {
                let word = state.memory.swap(REGIONS + SLOT, NO_SHEAF);
                state.take_sheaf(word);
            }
            _ => drop(state.memory.swap(TABLE, REGIONS)),
        }
    }

    fn move_to(&self, state: &mut State, thread: usize, cpu: usize) {
        state.threads.all[thread].cpu = cpu;
    }

    fn stepped(&self, state: &State, thread: usize) -> State {
        let mut next = state.clone();
        let of = &mut next.threads.all[thread];
        let cpu = of.cpu;
        let Some(frame) = of.frames.last_mut() else {
            if of.left.is_empty() {
                next.threads.running[cpu] = None;
            } else {
                let operation = of.left.remove(0);
                self.begin(&mut next, thread, operation);
            }
            return next;
        };
        let program = self.of(&frame.operation);
        if !program.is_over(&frame.place) {
            let memory = &mut next.memory;
            program.step(&mut frame.place, &mut Here { memory, cpu });
            return next;
        }
        let frame = of.frames.pop().expect("a frame");
        self.end(&mut next, thread, frame);
        next
    }

    fn begin(&self, state: &mut State, thread: usize, operation: Operation) {
        let cpu = state.threads.all[thread].cpu;
        let region = state.memory.load(TABLE + 8 * cpu as u64);
        let seen = state.memory.load(region + SLOT);
        let depth = state.threads.all[thread].frames.len();
        let buffer = BUFFERS + 0x100 * (2 * thread + depth) as u64;
        let mut values = vec![
            ("area", AREA),
            ("index", INDEX),
            ("region", INDEX),
            ("table", TABLE),
            ("slot", SLOT),
            ("stopped", STOPPED),
        ];
        match &operation {
            Operation::Pop => (),
            Operation::Push(object) => values.push(("object", *object)),
            // The registers at the start of the bulk sequences.
            Operation::PopMany(n) => values.extend([
                ("spare", AREA),
                ("from", TABLE),
                ("to", buffer),
                ("bytes", 8 * n),
                ("n", *n),
            ]),
            Operation::PushMany(objects) => {
                for (address, object) in (buffer..).step_by(8).zip(objects) {
                    state.memory.swap(address, *object);
                }
                let n = objects.len() as u64;
                values.extend([
                    ("spare", AREA),
                    ("to", TABLE),
                    ("from", buffer),
                    ("bytes", 8 * n),
                    ("n", n),
                ]);
            }
            Operation::Take => {
                if is_sentinel(seen) {
                    return;
                }
                values.extend([("old", seen), ("new", NO_SHEAF)]);
            }
            Operation::Add(n) => values.extend([("at", NUMBER), ("n", *n)]),
        }
        let place = self.of(&operation).begin(&values);
        state.threads.all[thread].frames.push(Frame {
            operation,
            place,
            seen,
        });
    }
}

impl Sequences {
    fn end(&self, state: &mut State, thread: usize, frame: Frame) {
        let program = self.of(&frame.operation);
        let depth = state.threads.all[thread].frames.len();
        let buffer = BUFFERS + 0x100 * (2 * thread + depth) as u64;
        let done = || program.register(&frame.place, "done") != 0;
        let copied = || program.register(&frame.place, "bytes") == 0;
        match &frame.operation {
            Operation::Pop => match program.register(&frame.place, "object") {
                0 => (),
                object => state.held.push(object),
            },
            Operation::Push(object) => {
                if program.register(&frame.place, "top") & (WINDOW - 1) != 0 {
                    state.give_away(*object);
                }
            }
            Operation::PopMany(n) => {
                if copied() {
                    let objects = (0..*n).map(|i| state.memory.load(buffer + 8 * i));
                    state.held.extend(objects.collect::<Vec<_>>());
                }
            }
            Operation::PushMany(objects) => {
                if copied() {
                    objects.iter().for_each(|&object| state.give_away(object));
                }
            }
            Operation::Take => {
                if done() {
                    state.take_sheaf(frame.seen);
                }
            }
            Operation::Add(n) => state.counted += if done() { *n } else { 0 },
        }
        state.held.sort_unstable();
    }
}

impl State {
    /// The start state. CPU 0 has a sheaf with objects 1 and 2, CPU 1 a sheaf with object 3. The
    /// objects that threads will push are held.
    fn of(scenario: &Scenario) -> Self {
        let mut memory = BTreeMap::new();
        for (top, cells) in [
            (NO_SHEAF, 0),
            (STOPPED_TOP, 0),
            (top(0, 3), 3),
            (top(1, 3), 3),
        ] {
            memory.insert((top & !(WINDOW - 1)) + CAPACITY_AT, cells);
            (0..=cells).for_each(|n| {
                memory.insert(top - 8 * n, 0);
            });
        }
        for (cpu, sheaf) in [(0, top(0, 2)), (1, top(1, 1))] {
            let region = REGIONS + 0x800 * cpu;
            memory.insert(TABLE + 8 * cpu, region);
            memory.insert(region + SLOT, sheaf);
            memory.insert(region + SLOT + COUNT, 0);
            memory.insert(region + NUMBER, 0);
        }
        memory.insert(STOPPED + SLOT, STOPPED_TOP);
        memory.insert(STOPPED + SLOT + COUNT, 0);
        memory.insert(STOPPED + NUMBER, 0);
        for (at, object) in [(top(0, 1), 1), (top(0, 2), 2), (top(1, 1), 3)] {
            memory.insert(at, object);
        }
        for buffer in 0..2 * scenario.threads.len() as u64 {
            (0..4).for_each(|n| {
                memory.insert(BUFFERS + 0x100 * buffer + 8 * n, 0);
            });
        }
        let operations = scenario.threads.iter().flat_map(|(_, all)| all);
        let held = operations.chain(&scenario.handler).flat_map(|o| match o {
            Operation::Push(object) => vec![*object],
            Operation::PushMany(objects) => objects.clone(),
            _ => Vec::new(),
        });
        let held = held.collect();
        Self {
            memory: Memory::of(&memory),
            threads: Threads::of(scenario),
            held,
            counted: 0,
        }
    }

    fn objects_of(&self, top: u64) -> Vec<u64> {
        if is_sentinel(top) {
            return Vec::new();
        }
        let null = (top & !(WINDOW - 1)) + WINDOW - 8 - 8 * CAPACITY;
        assert!(top >= null, "a top below its sheaf");
        let cells = (null + 8..=top).step_by(8);
        cells.map(|at| self.memory.load(at)).collect()
    }

    /// Removes one hold of an object. Another thread may hold the object already.
    fn give_away(&mut self, object: u64) {
        let at = self.held.iter().position(|&o| o == object);
        self.held.remove(at.expect("an object that is held"));
    }

    /// Holds the objects of a sheaf that left its slot.
    fn take_sheaf(&mut self, top: u64) {
        let objects = self.objects_of(top);
        self.held.extend(objects);
        self.held.sort_unstable();
    }
}

impl search::State for State {
    type Call = Operation;
    type Frame = Frame;

    fn threads(&mut self) -> &mut Threads<Operation, Frame> {
        &mut self.threads
    }

    /// Checks that each object is in exactly one place, and that the counter is correct.
    fn check(&self) {
        let regions = (0..NR_CPUS as u64).map(|cpu| REGIONS + 0x800 * cpu);
        let mut all = self.held.clone();
        for region in regions.clone() {
            all.extend(self.objects_of(self.memory.load(region + SLOT)));
        }
        all.sort_unstable();
        let mut expected = all.clone();
        expected.dedup();
        assert_eq!(all, expected, "an object is in two places: {self:?}");
        let pushed = self.threads.all.len();
        assert!(
            pushed > 0 && !all.contains(&0),
            "an object that is none: {self:?}"
        );
        assert_eq!(
            all.len() as u64,
            *all.last().unwrap_or(&0),
            "an object is lost: {self:?}"
        );
        let counted: u64 = regions
            .map(|region| self.memory.load(region + NUMBER))
            .sum();
        assert_eq!(
            counted, self.counted,
            "a count is lost or made up: {self:?}"
        );
        let stopped = self.memory.load(STOPPED + SLOT);
        assert_eq!(
            (stopped, self.memory.load(STOPPED + NUMBER)),
            (STOPPED_TOP, 0),
            "the stopped region was written to"
        );
    }
}
