//! Cache lines: who holds each, and what it costs to get it.
//!
//! | state of a line | who may read | who may write |
//! |---|---|---|
//! | in memory | no one | no one |
//! | shared | the sharers | no one |
//! | exclusive | the owner | the owner |
//!
//! A CPU that lacks a line gets it from its owner, or from memory. A writer takes the line from all
//! sharers. Transfers of one line follow each other: a line that many CPUs write to is a queue. A
//! CPU's own cache has no limit, so no line is evicted.

use crate::costs::{Costs, ps};
use crate::error::Failure;
use crate::range;
use crate::topology::{CPUS_MAX, Distance, NODES_MAX, Topology};

/// log2 of the bytes of a line.
pub const LINE_SHIFT: u32 = 6;
const PAGE_SHIFT: u32 = 12;
const WORDS: usize = CPUS_MAX / 64;
/// Part of a read's time for which the line serves no other CPU: reads of several CPUs overlap.
const READ_OCCUPANCY: u64 = 4;

type Cpus = [u64; WORDS];

/// A line; all zeroes: in memory.
#[repr(C)]
#[derive(Clone, Copy)]
struct Line {
    sharers: Cpus,
    /// When its last transfer ends, in picoseconds.
    free_at: u64,
    /// Number of the CPU that had it last for itself, plus 1.
    owner: u16,
    /// Whether the owner has the only copy.
    exclusive: bool,
}

/// How a line is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A read-modify-write instruction.
    Change,
}

/// Lines moved, by their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// From a CPU of the same last-level cache.
    pub cache: u64,
    /// From another last-level cache of the node.
    pub node: u64,
    /// From another node.
    pub remote: u64,
    /// From memory.
    pub memory: u64,
    /// Picoseconds that CPUs waited for a line that was on its way elsewhere.
    pub waited: u64,
}

impl Moves {
    /// Lines moved between CPUs.
    pub fn between_cpus(&self) -> u64 {
        self.cache + self.node + self.remote
    }
}

/// The costs in picoseconds.
struct Prices {
    hit: u64,
    word: u64,
    change: u64,
    memory: u64,
    remote_memory: u64,
    page_fault: u64,
}

/// What an access costs, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// The access itself, with the line in the CPU's cache.
    pub hit: u64,
    /// A page fault.
    pub fault: u64,
    /// Time of a line that the CPU waits for.
    pub wait: u64,
    /// Time of lines that it does not wait for one by one.
    pub queued: u64,
    /// The longest time of one line.
    pub longest: u64,
}

/// All lines of a range.
pub struct Lines {
    start: usize,
    bytes: usize,
    lines: *mut Line,
    /// By page: 0, or the node of its memory plus 1.
    pages: *mut u8,
    prices: Prices,
    /// By CPU: its node, and the node that its memory comes from.
    nodes: Vec<(u8, u8)>,
    /// By pair of CPUs: the cost of a transfer, in picoseconds, and its way.
    ways: Vec<(u32, u8)>,
    cpus: usize,
    /// By CPU: those with the same last-level cache, and those of the same node.
    near: Vec<(Cpus, Cpus)>,
    /// The farthest transfer of each CPU.
    far: Vec<u32>,
    /// What was moved.
    pub moves: Moves,
}

fn has(cpus: &Cpus, cpu: usize) -> bool {
    cpus[cpu / 64] >> (cpu % 64) & 1 == 1
}

fn only(cpu: usize) -> Cpus {
    let mut cpus = [0; WORDS];
    cpus[cpu / 64] = 1 << (cpu % 64);
    cpus
}

impl Lines {
    /// The lines of a range, all in memory, on a machine.
    pub fn new(
        start: usize,
        bytes: usize,
        machine: &Topology,
        costs: &Costs,
    ) -> Result<Self, Failure> {
        let lines = range::map((bytes >> LINE_SHIFT) * size_of::<Line>())?;
        let pages = range::map(bytes >> PAGE_SHIFT)?;
        let cpus = machine.cpus;
        let way = |from, to| match machine.distance(from, to) {
            Distance::Own => (0.0, 0),
            Distance::Cache => (costs.cache, 1),
            Distance::Node => (costs.node, 2),
            Distance::Remote(steps) => (costs.remote + costs.hop * (steps as f64 - 1.0), 3),
        };
        let mut ways = Vec::with_capacity(cpus * cpus);
        let mut near = vec![([0; WORDS], [0; WORDS]); cpus];
        let mut far = vec![0; cpus];
        for to in 0..cpus {
            for from in 0..cpus {
                let (ns, kind) = way(from, to);
                ways.push((ps(ns) as u32, kind));
                far[to] = far[to].max(ps(ns) as u32);
                let bit = only(from);
                for (w, bits) in bit.into_iter().enumerate() {
                    near[to].0[w] |= if kind <= 1 { bits } else { 0 };
                    near[to].1[w] |= if kind <= 2 { bits } else { 0 };
                }
            }
        }
        const { assert!(NODES_MAX < 255) };
        let nodes = (0..cpus).map(|c| machine.node_of(c));
        let nodes = nodes
            .map(|n| (n as u8, machine.memory_node(n) as u8))
            .collect();
        Ok(Self {
            start,
            bytes,
            lines: lines as *mut Line,
            pages: pages as *mut u8,
            prices: Prices {
                hit: ps(costs.hit),
                word: ps(costs.word),
                change: ps(costs.change),
                memory: ps(costs.memory),
                remote_memory: ps(costs.remote_memory),
                page_fault: ps(costs.page_fault),
            },
            nodes,
            ways,
            cpus,
            near,
            far,
            moves: Moves::default(),
        })
    }

    #[inline]
    fn line(&mut self, number: usize) -> &mut Line {
        // SAFETY: the caller's number is below that of the range's lines; all zeroes is valid.
        unsafe { &mut *self.lines.add(number) }
    }

    /// Cost of a transfer to a CPU, in picoseconds.
    pub fn way(&self, from: usize, to: usize) -> u64 {
        u64::from(self.ways[to * self.cpus + from].0)
    }

    /// Cost of an access of `cpu` at time `now`. Memory outside of the range is the CPU's own.
    #[inline]
    pub fn touch(
        &mut self,
        cpu: usize,
        now: u64,
        address: usize,
        bytes: usize,
        kind: Kind,
    ) -> Cost {
        let hit = self.hit(kind) + self.prices.word * (bytes.div_ceil(8).max(1) as u64 - 1);
        let mut cost = Cost {
            hit,
            ..Cost::default()
        };
        let at = address.wrapping_sub(self.start);
        if at < self.bytes {
            let (first, last) = (at >> LINE_SHIFT, (at + bytes.max(1) - 1) >> LINE_SHIFT);
            for line in first..=last {
                let (moved, fault) = self.touch_line(cpu, now, line, kind);
                cost.fault += fault;
                cost.longest = cost.longest.max(moved);
                // Plain writes queue. Further lines of an array do not wait for the first.
                if kind == Kind::Write || line > first {
                    cost.queued += moved;
                } else {
                    cost.wait = moved;
                }
            }
        }
        cost
    }

    /// Whether a CPU has all lines of an access in its own cache.
    #[inline]
    pub fn is_own(&mut self, cpu: usize, address: usize, bytes: usize, kind: Kind) -> bool {
        let at = address.wrapping_sub(self.start);
        if at >= self.bytes {
            return true;
        }
        let (first, last) = (at >> LINE_SHIFT, (at + bytes.max(1) - 1) >> LINE_SHIFT);
        (first..=last).all(|number| {
            let line = self.line(number);
            (line.exclusive && usize::from(line.owner) == cpu + 1)
                || (kind == Kind::Read && has(&line.sharers, cpu))
        })
    }

    /// Cost of an access to the CPU's own cache, in picoseconds.
    #[inline]
    pub fn hit(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Read | Kind::Write => self.prices.hit,
            Kind::Change => self.prices.change,
        }
    }

    /// Time until the CPU has a line, and of a page fault, in picoseconds; 0 for its own line.
    #[inline]
    fn touch_line(&mut self, cpu: usize, now: u64, number: usize, kind: Kind) -> (u64, u64) {
        let line = self.line(number);
        let mine = usize::from(line.owner) == cpu + 1 && line.exclusive;
        if mine || (kind == Kind::Read && has(&line.sharers, cpu)) {
            // A line that was asked for may still be on its way.
            let rest = match mine {
                true => line.free_at.saturating_sub(now),
                false => 0,
            };
            return (rest, 0);
        }
        let line = *line;
        let (transfer, fault) = self.fetch(cpu, number, &line, kind);
        let begin = now.max(line.free_at);
        self.moves.waited += begin - now;
        let end = begin + transfer;
        let stored = self.line(number);
        if kind == Kind::Read {
            stored.sharers[cpu / 64] |= 1 << (cpu % 64);
            stored.free_at = begin + transfer / READ_OCCUPANCY;
            if line.owner == 0 {
                stored.owner = cpu as u16 + 1;
                stored.exclusive = true;
            } else {
                stored.exclusive = false;
            }
        } else {
            stored.sharers = only(cpu);
            stored.free_at = end;
            stored.owner = cpu as u16 + 1;
            stored.exclusive = true;
        }
        (end - now, fault)
    }

    /// Cost of getting a line, and of the page fault before; counts the way.
    fn fetch(&mut self, cpu: usize, number: usize, line: &Line, kind: Kind) -> (u64, u64) {
        if line.owner == 0 {
            self.moves.memory += 1;
            let (node, from) = self.nodes[cpu];
            // SAFETY: the page of a line of the range.
            let page = unsafe { &mut *self.pages.add(number >> (PAGE_SHIFT - LINE_SHIFT)) };
            let fault = if *page == 0 {
                self.prices.page_fault
            } else {
                0
            };
            if *page == 0 {
                *page = from + 1;
            }
            let near = *page == node + 1;
            let cost = if near {
                self.prices.memory
            } else {
                self.prices.remote_memory
            };
            return (cost, fault);
        }
        let owner = usize::from(line.owner) - 1;
        let (mut cost, mut way) = self.ways[cpu * self.cpus + owner];
        if kind != Kind::Read && !line.exclusive {
            // The farthest sharer must answer before the write.
            let (cache, node) = &self.near[cpu];
            let beyond = |near: &Cpus| line.sharers.iter().zip(near).any(|(s, n)| s & !n != 0);
            if beyond(node) {
                (cost, way) = (cost.max(self.far[cpu]), 3);
            } else if beyond(cache) && way < 2 {
                let others = (0..self.cpus).filter(|&c| has(&line.sharers, c));
                let far = others.map(|c| self.ways[cpu * self.cpus + c]).max();
                (cost, way) = far.unwrap_or((cost, way));
            } else if way == 0 {
                let others = (0..self.cpus).find(|&c| c != cpu && has(&line.sharers, c));
                (cost, way) = others.map_or((0, 0), |c| self.ways[cpu * self.cpus + c]);
            }
        }
        match way {
            0 => (),
            1 => self.moves.cache += 1,
            2 => self.moves.node += 1,
            _ => self.moves.remote += 1,
        }
        (u64::from(cost), 0)
    }

    /// Starts to fetch a line for writing without waiting for it.
    pub fn prefetch(&mut self, cpu: usize, now: u64, address: usize) {
        let at = address.wrapping_sub(self.start);
        if at < self.bytes {
            self.touch_line(cpu, now, at >> LINE_SHIFT, Kind::Write);
        }
    }

    /// Forgets the lines of whole pages that went back to the system.
    pub fn forget(&mut self, address: usize, bytes: usize) {
        let at = address.wrapping_sub(self.start);
        if at + bytes > self.bytes {
            return;
        }
        let part = |start: usize, shift: u32, size: usize| {
            let first = start + (at >> shift) * size;
            (first, (bytes >> shift) * size)
        };
        let lines = part(self.lines as usize, LINE_SHIFT, size_of::<Line>());
        let pages = part(self.pages as usize, PAGE_SHIFT, 1);
        for (first, bytes) in [lines, pages] {
            // SAFETY: inside our own arrays; all zeroes is the state of what is in memory.
            unsafe { std::ptr::write_bytes(first as *mut u8, 0, bytes) };
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and used by no other thread.
        unsafe {
            range::unmap(
                self.lines as usize,
                (self.bytes >> LINE_SHIFT) * size_of::<Line>(),
            );
            range::unmap(self.pages as usize, self.bytes >> PAGE_SHIFT);
        }
    }
}
