//! A workload like hackbench: groups of senders and receivers with bounded queues.
//!
//! Each sender sends to every receiver of its group. A message has a head and data. The sender
//! allocates both. The receiver checks the content of both and frees both.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use uslub_core::Gfp;
use uslub_linux::Linux;

use crate::bench::Bench;
use crate::error::Failure;
use crate::linux::Slub;
use crate::measure::nanoseconds;
use crate::strategy::Strategy;
use crate::threads::joined;

use super::{Both, strategies};

/// Bytes of a message's head, and of its data.
const HEAD: usize = 256;
const DATA: usize = 512;
/// Most messages that wait at a receiver.
const QUEUE: usize = 64;

/// The results of the rounds.
pub struct Outcome {
    /// Seconds of the rounds.
    pub both: Both,
    /// Whether every message of every round arrived once and unchanged.
    pub all_accounted: bool,
    /// The number of messages, in words.
    pub note: String,
}

/// The size of the workload.
#[derive(Clone, Copy)]
struct Shape {
    groups: usize,
    /// Senders per group; receivers per group too.
    people: usize,
    loops: usize,
}

impl Shape {
    fn messages(self) -> usize {
        self.groups * self.people * self.people * self.loops
    }
}

/// The head of a message.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    sender: usize,
    number: usize,
    data: *mut u8,
}

/// A message in transit.
struct Message(*mut Head);

// SAFETY: the holder of the message owns head and data.
unsafe impl Send for Message {}

/// The two caches of a competitor.
struct Caches<'a> {
    heads: Strategy<'a, Linux>,
    data: Strategy<'a, Linux>,
}

/// Measures the workload.
pub fn run(bench: &Bench, slub: &Slub, settings: &[&str]) -> Result<Outcome, Failure> {
    let shape = Shape {
        // 200 processes, as hackbench counts them: 5 groups of 20 senders and 20 receivers.
        groups: bench.size.pick(1, 5, 5),
        people: bench.size.pick(2, 20, 20),
        // Full: some seconds a round.
        loops: bench.size.pick(20, 60, 2000),
    };
    let [old_heads, new_heads] = strategies(slub, HEAD, settings)?;
    let [old_data, new_data] = strategies(slub, DATA, settings)?;
    let old = Caches {
        heads: old_heads,
        data: old_data,
    };
    let new = Caches {
        heads: new_heads,
        data: new_data,
    };
    let mut all_accounted = true;
    let mut account = |came: usize| all_accounted &= came == shape.messages();
    let account = std::cell::RefCell::new(&mut account);
    let round = |caches: &Caches<'_>| {
        let (time, came) = nanoseconds(|| send_all(caches, shape));
        account.borrow_mut()(came?);
        Ok(time / 1e9)
    };
    let rounds = bench.rounds_of(1, [&mut || round(&old), &mut || round(&new)])?;
    for strategy in [&old.heads, &old.data, &new.heads, &new.data] {
        strategy.check_at_rest()?;
    }
    Ok(Outcome {
        both: Both::of(&rounds),
        all_accounted,
        note: format!(
            "{} messages a round, {} threads",
            shape.messages(),
            2 * shape.groups * shape.people
        ),
    })
}

/// Sends all messages; returns the number that arrived unchanged and in each sender's order.
fn send_all(caches: &Caches<'_>, shape: Shape) -> Result<usize, Failure> {
    std::thread::scope(|scope| {
        let mut receivers = Vec::new();
        let mut senders = Vec::new();
        for _ in 0..shape.groups {
            let (puts, takes): (Vec<_>, Vec<_>) =
                (0..shape.people).map(|_| sync_channel(QUEUE)).unzip();
            for queue in takes {
                receivers.push(scope.spawn(move || receive(caches, shape, &queue)));
            }
            for sender in 0..shape.people {
                let queues = puts.clone();
                senders.push(scope.spawn(move || send(caches, shape, sender, &queues)));
            }
        }
        let sent: Vec<_> = senders.into_iter().map(joined).collect();
        let came = receivers.into_iter().map(joined).sum();
        sent.into_iter().collect::<Result<(), _>>()?;
        Ok(came)
    })
}

fn send(
    caches: &Caches<'_>,
    shape: Shape,
    sender: usize,
    queues: &[SyncSender<Message>],
) -> Result<(), Failure> {
    for number in 0..shape.loops {
        for queue in queues {
            let head = caches.heads.slub.alloc(caches.heads.cache, Gfp::KERNEL);
            let data = caches.data.slub.alloc(caches.data.cache, Gfp::KERNEL);
            if head.is_null() || data.is_null() {
                return Err(Failure::NoMemory("for a message"));
            }
            let head = head.cast::<Head>();
            // SAFETY: head and data belong to this thread and are large enough.
            unsafe {
                data.write_bytes((sender + number) as u8, DATA);
                head.write(Head {
                    sender,
                    number,
                    data,
                });
            }
            if queue.send(Message(head)).is_err() {
                return Err(Failure::Wrong("a receiver went away".to_owned()));
            }
        }
    }
    Ok(())
}

/// Returns the number of messages that arrived unchanged.
fn receive(caches: &Caches<'_>, shape: Shape, queue: &Receiver<Message>) -> usize {
    let mut next = vec![0; shape.people];
    let mut right = 0;
    while let Ok(Message(head)) = queue.recv() {
        // SAFETY: this thread owns the message, with its head and data.
        unsafe {
            let Head {
                sender,
                number,
                data,
            } = *head;
            let bytes = std::slice::from_raw_parts(data, DATA);
            let as_sent = bytes.iter().all(|&b| b == (sender + number) as u8);
            if let Some(expected) = next.get_mut(sender) {
                right += usize::from(as_sent && number == *expected);
                *expected += 1;
            }
            caches.data.slub.free(caches.data.cache, data);
            caches.heads.slub.free(caches.heads.cache, head.cast());
        }
    }
    right
}
