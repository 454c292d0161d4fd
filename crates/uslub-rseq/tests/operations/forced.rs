//! An abort at each instruction of each sequence for aarch64, without a kernel that knows the
//! thread.
//!
//! A breakpoint instruction is written over one of the sequence's; the handler of its signal puts
//! the old one back and goes on where the kernel would: at the abort address if the instruction
//! pointer is inside the descriptor's range, else where it was. So the range, the abort address and
//! the signature are those of the descriptor, and only the jump is ours.

use std::arch::asm;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::thread::{CODE, OwnArea};
use crate::world::{Operation, State, World, operations};

const SIGNATURE: u32 = 0xd428_bc00;
const BREAKPOINT: u32 = 0xd420_0000;
/// Operations that have a sequence; a counter is added to without one.
const SEQUENCES: [&str; 5] = ["pop", "push", "pop_many", "push_many", "exchange"];

/// The armed address, the instruction that belongs there, and the descriptor.
static ARMED: AtomicU64 = AtomicU64::new(0);
static HIDDEN: AtomicU32 = AtomicU32::new(0);
static DESCRIPTOR: AtomicU64 = AtomicU64::new(0);
/// What the handler did.
static ABORTED: AtomicU32 = AtomicU32::new(0);
static PASSED: AtomicU32 = AtomicU32::new(0);

/// A descriptor, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    version: u32,
    flags: u32,
    start: u64,
    bytes: u64,
    abort: u64,
}

fn descriptor(at: u64) -> Descriptor {
    // SAFETY: the sequence published it.
    unsafe { (at as *const Descriptor).read() }
}

/// Writes an instruction where code is, and lets the processor know.
fn write_code(at: u64, instruction: u32) {
    // SAFETY: the page was made writable.
    unsafe {
        (at as *mut u32).write_volatile(instruction);
        asm!(
            "dc cvau, {at}",
            "dsb ish",
            "ic ivau, {at}",
            "dsb ish",
            "isb",
            at = in(reg) at,
        );
    }
}

fn make_writable(at: u64) {
    let page = 65536;
    let start = at / page * page;
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: our own code stays what it is.
    let result = unsafe { libc::mprotect(start as *mut _, page as usize, protection) };
    assert_eq!(result, 0, "code cannot be made writable");
}

extern "C" fn handler(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's context of the interrupted code.
    let pc = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.pc };
    // SeqCst: one thread; nothing here is measured.
    if *pc != ARMED.load(SeqCst) {
        std::process::abort();
    }
    // SeqCst: as above.
    write_code(*pc, HIDDEN.load(SeqCst));
    let Descriptor {
        start,
        bytes,
        abort,
        ..
    } = descriptor(DESCRIPTOR.load(SeqCst));
    if pc.wrapping_sub(start) < bytes {
        // SeqCst: as above.
        ABORTED.fetch_add(1, SeqCst);
        *pc = abort;
    } else {
        // SeqCst: as above.
        PASSED.fetch_add(1, SeqCst);
    }
}

fn arm(at: u64) {
    make_writable(at);
    // SAFETY: reads an instruction. SeqCst: one thread.
    HIDDEN.store(unsafe { (at as *const u32).read_volatile() }, SeqCst);
    // SeqCst: as above.
    ARMED.store(at, SeqCst);
    write_code(at, BREAKPOINT);
}

#[test]
fn an_abort_at_each_instruction_leaves_everything_in_its_place() {
    let _code = CODE.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: installs a handler that touches atomics, code and its own context only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut());
    }
    println!("sequence      instructions  aborted at each");
    for operation in operations() {
        let own = OwnArea::registered_alone();
        let mut world = World::new(own.area());
        (operation.prepare)(&mut world);
        assert!((operation.run)(&mut world), "{}", operation.name);
        let name = operation.name;
        assert_eq!(own.descriptor() != 0, SEQUENCES.contains(&name), "{name}");
        if own.descriptor() == 0 {
            continue;
        }
        let sequence = descriptor(own.descriptor());
        // SeqCst: one thread.
        DESCRIPTOR.store(own.descriptor(), SeqCst);
        assert_eq!((sequence.version, sequence.flags), (0, 0));
        // SAFETY: the word before the abort address is code.
        let signature = unsafe { (sequence.abort as *const u32).sub(1).read() };
        assert_eq!(signature, SIGNATURE, "{name}");
        let last = sequence.bytes / 4;
        let mut each = Vec::new();
        for instruction in 0..=last {
            // SeqCst: one thread.
            ABORTED.store(0, SeqCst);
            PASSED.store(0, SeqCst);
            arm(sequence.start + 4 * instruction);
            let (before, expected, done) = until_reached(operation, &mut world);
            // SeqCst: as above.
            let (aborted, passed) = (ABORTED.load(SeqCst), PASSED.load(SeqCst));
            if instruction == last {
                assert_eq!((aborted, passed, done), (0, 1, true), "{name}");
                assert_eq!(world.state(), expected, "{name}: behind its commit");
                continue;
            }
            assert_eq!(
                (aborted, passed, done),
                (1, 0, false),
                "{name} {instruction}"
            );
            assert_eq!(world.state(), before, "{name}: aborted at {instruction}");
            assert!((operation.run)(&mut world), "{name}: after {instruction}");
            assert_eq!(world.state(), expected, "{name}: after {instruction}");
            each.push(aborted.to_string());
        }
        println!("{name:12}  {:12}  {}", each.len(), each.join(" "));
    }
}

/// Rounds until the armed instruction was reached, as not all lengths take the same way: the state
/// before the last and what it must make of it, and whether the operation was done.
fn until_reached(operation: &Operation, world: &mut World) -> (State, State, bool) {
    for _ in 0..100 {
        (operation.prepare)(world);
        let before = world.state();
        let mut expected = before.clone();
        (operation.model)(&mut expected);
        let done = (operation.run)(world);
        // SeqCst: one thread.
        if ABORTED.load(SeqCst) + PASSED.load(SeqCst) > 0 {
            return (before, expected, done);
        }
        assert!(done, "{}", operation.name);
        assert_eq!(world.state(), expected, "{}", operation.name);
    }
    panic!("{}: an instruction is never reached", operation.name);
}
