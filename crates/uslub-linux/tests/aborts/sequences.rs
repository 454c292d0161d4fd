//! Each operation, aborted at each of its instructions, alone.
//!
//! The child prepares the world, stops, runs the operation, and looks at what there is. When the
//! operation returned its sentinel nothing may have changed, and the same operation must then
//! succeed: that is what a slow path relies on.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use uslub_rseq::Area;

use crate::table::Table;
use crate::tracer::code::WITHOUT_SEQUENCE;
use crate::tracer::{Event, Sequence, Tracee, pause};
use crate::world::{Operation, World, operations};

/// What the child found in the last round.
static FOUND: AtomicU64 = AtomicU64::new(0);
/// The operation succeeded at once.
const DONE: u64 = 1;
/// It returned its sentinel with everything in its place, and succeeded when it was called again.
const REPEATED: u64 = 2;
/// Something is not where it belongs.
const BROKEN: u64 = 3;

/// One round in the child.
fn round(world: &mut World, operation: &Operation) -> u64 {
    (operation.prepare)(world);
    let before = world.state();
    let mut expected = before.clone();
    (operation.model)(&mut expected);
    // The test arms its breakpoint here.
    pause();
    if (operation.run)(world) {
        return if world.state() == expected {
            DONE
        } else {
            BROKEN
        };
    }
    if world.state() != before {
        return BROKEN;
    }
    // The machine may interrupt it too, but not for ever.
    let repeated = (0..1000).any(|_| (operation.run)(world));
    if repeated && world.state() == expected {
        REPEATED
    } else {
        BROKEN
    }
}

/// The address of the descriptor that this thread published last; 0 when the kernel has removed it
/// since.
fn published(area: &Area) -> u64 {
    let thread = uslub_rseq::thread_pointer();
    // SAFETY: a word of this thread's area.
    unsafe { (thread.wrapping_add_signed(area.offset + 8) as *const u64).read_volatile() }
}

/// The operations that have a sequence.
pub fn sequences() -> impl Iterator<Item = &'static Operation> {
    let operations = operations().iter();
    operations.filter(|operation| !WITHOUT_SEQUENCE.contains(&operation.name))
}

/// The sequence of an operation: the one whose descriptor it publishes.
pub fn sequence_of(operation: &Operation, area: Area) -> Sequence {
    let mut world = World::new(area);
    let memory = crate::tracer::Memory::of(std::process::id() as libc::pid_t);
    for _ in 0..1000 {
        (operation.prepare)(&mut world);
        let done = (operation.run)(&mut world);
        let descriptor = published(&area);
        if done && descriptor != 0 {
            return Sequence::read(&memory, descriptor);
        }
    }
    panic!("{} publishes no descriptor", operation.name);
}

/// Rounds until the armed instruction was reached: a round that the machine itself interrupted
/// before is tried again, and one whose copy took the other of two ways.
fn until_reached(tracee: &mut Tracee, name: &str, instruction: usize) -> u64 {
    let stops = |tracee: &Tracee| {
        let aborted = tracee.aborted[0].get(instruction).copied();
        aborted.unwrap_or(tracee.passed[0])
    };
    for _ in 0..100 {
        let before = stops(tracee);
        tracee.arm(0, instruction);
        assert_eq!(tracee.run(), Event::Pause, "{name}: the child ended");
        let found = tracee.memory().word(FOUND.as_ptr() as u64);
        let unasked = std::mem::take(&mut tracee.unasked[0]);
        assert!(
            [DONE, REPEATED].contains(&found),
            "{name}, aborted at instruction {instruction}: something is lost"
        );
        if unasked == 0 && stops(tracee) > before {
            return found;
        }
        tracee.disarm_all();
    }
    panic!("{name}: instruction {instruction} was never reached");
}

#[test]
fn each_operation_aborted_at_each_instruction_leaves_everything_in_its_place() {
    let Some(area) = crate::area() else { return };
    let _alone = crate::alone();
    let rounds = crate::number("USLUB_ABORTS", 3);
    let mut table = Table::new("operations of uslub-rseq");
    for operation in sequences() {
        let sequence = sequence_of(operation, area);
        let last = sequence.instructions.len();
        let mut tracee = Tracee::fork(|| {
            let mut world = World::new(area);
            loop {
                let found = round(&mut world, operation);
                // SeqCst: the tracer reads it while we are stopped.
                FOUND.store(found, SeqCst);
            }
        });
        tracee.watch(sequence);
        // To the stop of the first round.
        assert_eq!(tracee.run(), Event::Pause);
        for _ in 0..rounds {
            for instruction in 0..last {
                let found = until_reached(&mut tracee, operation.name, instruction);
                assert_eq!(
                    found, REPEATED,
                    "{}: the abort at instruction {instruction} was not seen",
                    operation.name
                );
            }
            // Behind the commit a stop changes nothing.
            let found = until_reached(&mut tracee, operation.name, last);
            assert_eq!(found, DONE, "{}: undone after its commit", operation.name);
        }
        table.row(operation.name, &tracee.aborted[0], tracee.passed[0]);
    }
    table.print();
    table.assert_complete(sequences());
}
