//! A trace of a user's own: a text file with one event a line.
//!
//! | line | meaning |
//! |---|---|
//! | `CPU a ID BYTES` | the CPU allocates an object and calls it ID |
//! | `CPU f ID` | the CPU frees the object; it waits until the object exists |
//! | `CPU w NS` | the CPU works for some nanoseconds |
//! | `# text` | a comment |
//!
//! The events of a CPU happen in the order of the file. An ID is a number. It can be used again
//! after its object was freed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::{Load, Program};
use crate::engine;
use crate::error::Failure;
use crate::lines::Kind;
use crate::platform::Timed;
use crate::topology::CPUS_MAX;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Alloc(u64, usize),
    Free(u64),
    Work(u64),
}

/// The events of all CPUs.
#[derive(Clone, Debug, Default)]
pub struct Trace(Vec<Vec<Event>>);

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// The first line that cannot be understood, or an object that is freed without an allocation.
    ///
    /// ```
    /// use uslub_lab::Trace;
    /// let trace = Trace::read("0 a 1 256\n1 f 1\n").unwrap();
    /// assert_eq!(trace.cpus(), 2);
    /// assert!(Trace::read("0 x 1").unwrap_err().to_string().contains("line 1"));
    /// ```
    pub fn read(text: &str) -> Result<Self, Failure> {
        let mut events: Vec<Vec<Event>> = Vec::new();
        let mut balance = HashMap::<u64, i64>::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((cpu, event)) = parse(line) else {
                return Err(Failure::Wrong(format!(
                    "line {} of the trace: '{line}' is not 'CPU a ID BYTES', 'CPU f ID' or 'CPU w NS', \
                     with a CPU below {CPUS_MAX}",
                    number + 1
                )));
            };
            match event {
                Event::Alloc(id, _) => *balance.entry(id).or_default() += 1,
                Event::Free(id) => *balance.entry(id).or_default() -= 1,
                Event::Work(_) => (),
            }
            if events.len() <= cpu {
                events.resize(cpu + 1, Vec::new());
            }
            events[cpu].push(event);
        }
        if let Some((id, _)) = balance.iter().filter(|(_, n)| **n < 0).min() {
            return Err(Failure::Wrong(format!(
                "the trace frees object {id} more often than it allocates it"
            )));
        }
        Ok(Self(events))
    }

    /// CPUs that the trace names: the highest number plus 1.
    pub fn cpus(&self) -> usize {
        self.0.len()
    }
}

fn parse(line: &str) -> Option<(usize, Event)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let cpu = number(0)? as usize;
    let event = match (*words.get(1)?, words.len()) {
        ("a", 4) => Event::Alloc(number(2)?, number(3)? as usize),
        ("f", 3) => Event::Free(number(2)?),
        ("w", 3) => Event::Work(number(2)?),
        _ => return None,
    };
    (cpu < CPUS_MAX).then_some((cpu, event))
}

type Live = Rc<RefCell<HashMap<u64, usize>>>;

struct Player {
    slub: &'static uslub_core_timed::Allocator<Timed>,
    events: Vec<Event>,
    next: usize,
    live: Live,
}

/// A word that those sleep on who wait for an object.
fn word(id: u64) -> usize {
    usize::MAX - id as usize
}

impl Program for Player {
    fn step(&mut self, until: u64) -> u64 {
        let event = self.events[self.next];
        match event {
            Event::Work(ns) => engine::work(ns),
            Event::Alloc(id, bytes) => {
                let object = self.slub.kmalloc(bytes, uslub_core_timed::Gfp::KERNEL) as usize;
                if object != 0 {
                    engine::touch(object, bytes.min(64), Kind::Write);
                    let before = self.live.borrow_mut().insert(id, object);
                    if let Some(before) = before {
                        // SAFETY: no one can name the older object any longer.
                        unsafe { self.slub.kfree(before as *mut u8) };
                    }
                    engine::wake_up(word(id), 1, 0);
                }
            }
            Event::Free(id) => {
                let object = self.live.borrow_mut().remove(&id);
                let Some(object) = object else {
                    if engine::now() < until {
                        engine::sleep(word(id), Some(until));
                        return 0;
                    }
                    self.next += 1;
                    return 0;
                };
                engine::touch(object, 8, Kind::Read);
                // SAFETY: the object came from kmalloc and is freed once.
                unsafe { self.slub.kfree(object as *mut u8) };
            }
        }
        self.next += 1;
        u64::from(matches!(event, Event::Alloc(..)))
    }

    fn is_done(&self) -> bool {
        self.next >= self.events.len()
    }

    fn end(&mut self) {
        for (_, object) in self.live.borrow_mut().drain() {
            // SAFETY: the object came from kmalloc and is freed once.
            unsafe { self.slub.kfree(object as *mut u8) };
        }
    }
}

pub fn programs(load: &Load, world: &World) -> Result<Vec<Box<dyn Program>>, Failure> {
    let trace = load.trace.clone().unwrap_or_default();
    let cpus = world.machine().cpus;
    if trace.cpus() > cpus {
        return Err(Failure::Wrong(format!(
            "the trace names CPU {}, and the machine has {cpus} CPUs",
            trace.cpus() - 1
        )));
    }
    let live = Live::default();
    let one = |cpu: usize| -> Box<dyn Program> {
        Box::new(Player {
            slub: world.slub(),
            events: trace.0.get(cpu).cloned().unwrap_or_default(),
            next: 0,
            live: live.clone(),
        })
    };
    Ok((0..cpus).map(one).collect())
}
