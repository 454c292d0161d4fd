//! A queue of objects from some CPUs to one CPU, with the cost of its lines.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::engine;
use crate::lines::Kind;
use crate::world::World;

/// Picoseconds between the put of a batch and a sleeping taker that sees it: it polls.
const POLL: u64 = 50_000;
/// Objects in a line of the queue.
const PER_LINE: usize = 8;

/// A queue. The indices and the places lie in the machine's memory: whoever puts or takes pays for
/// their lines.
pub struct Queue {
    objects: RefCell<VecDeque<usize>>,
    most: usize,
    /// Address of the lines: put index, take index, then the places.
    at: usize,
    put: Cell<usize>,
    taken: Cell<usize>,
}

impl Queue {
    /// An empty queue with room for `most` objects.
    pub fn new(world: &World, most: usize) -> Self {
        Self {
            objects: RefCell::new(VecDeque::with_capacity(most)),
            most,
            at: world.lines(2 + most.div_ceil(PER_LINE)),
            put: Cell::new(0),
            taken: Cell::new(0),
        }
    }

    fn places(&self, from: usize, n: usize, kind: Kind) {
        let lines = self.most.div_ceil(PER_LINE);
        let mut line = from / PER_LINE;
        while line * PER_LINE < from + n {
            engine::touch(self.at + 64 * (2 + line % lines), 8, kind);
            line += 1;
        }
    }

    /// Puts a batch; waits for room until a time in picoseconds. False: the time is over, and
    /// nothing was put.
    pub fn put(&self, batch: &[usize], until: u64) -> bool {
        // The taker's index says how much room there is.
        engine::access(self.at + 64, 8, Kind::Read);
        while self.objects.borrow().len() + batch.len() > self.most {
            if engine::now() >= until {
                return false;
            }
            engine::sleep(self.at + 1, Some(until));
        }
        self.places(self.put.get(), batch.len(), Kind::Write);
        engine::touch(self.at, 8, Kind::Write);
        self.put.set(self.put.get() + batch.len());
        self.objects.borrow_mut().extend(batch);
        engine::wake_up(self.at, 1, POLL);
        true
    }

    /// Takes at most `most` objects; waits for one until a time in picoseconds.
    pub fn take(&self, most: usize, until: u64, out: &mut Vec<usize>) {
        while self.objects.borrow().is_empty() {
            if engine::now() >= until {
                return;
            }
            engine::sleep(self.at, Some(until));
        }
        self.take_present(most, out);
    }

    /// Takes at most `most` objects that are there.
    pub fn take_present(&self, most: usize, out: &mut Vec<usize>) {
        let n = most.min(self.objects.borrow().len());
        if n == 0 {
            return;
        }
        out.extend(self.objects.borrow_mut().drain(..n));
        let from = self.taken.replace(self.taken.get() + n);
        engine::access(self.at, 8, Kind::Read);
        self.places(from, n, Kind::Read);
        engine::touch(self.at + 64, 8, Kind::Write);
        engine::wake_up(self.at + 1, usize::MAX, POLL);
    }
}
