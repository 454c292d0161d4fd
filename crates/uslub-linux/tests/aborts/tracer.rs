//! A tracer that ends a restartable sequence at an instruction of its choice.
//!
//! A breakpoint is put at the instruction. The process stops there, before the instruction runs,
//! and the tracer wakes up: a stop, a switch of threads and a signal at once. So the kernel must
//! find the instruction pointer inside the sequence when it resumes the process, and sends it to
//! the abort address, where another breakpoint tells that it got there. Nothing is simulated: the
//! descriptor, the signature and the range are those that the kernel looks at.
//!
//! | the process stops at | what the tracer does |
//! |---|---|
//! | an armed instruction | disarms it, resumes there, and demands that the next stop is the abort address |
//! | an abort address, unasked | counts it: the machine itself interrupted the sequence |
//! | the instruction behind a commit | resumes there: from here on nothing may abort |
//! | a stop of its own | gives control back to the test |

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

// A file an architecture, with the same functions in each.
#[cfg_attr(target_arch = "x86_64", path = "tracer/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "tracer/aarch64.rs")]
pub mod code;

use code::{BREAKPOINT, Breakpoint, Kind};

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 32;
/// Linux 3.8.
const PTRACE_O_EXITKILL: usize = 1 << 20;

/// The memory of a process, code included.
pub struct Memory(File);

impl Memory {
    /// That of process `pid`, which is this one or is traced by this thread.
    pub fn of(pid: libc::pid_t) -> Self {
        let file = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        Self(file.expect("the memory of a traced process"))
    }

    pub fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact_at(&mut bytes, address).expect("mapped");
        bytes
    }

    pub fn word(&self, address: u64) -> u64 {
        u64::from_ne_bytes(self.read(address))
    }

    pub fn write<const N: usize>(&self, address: u64, bytes: [u8; N]) {
        self.0.write_all_at(&bytes, address).expect("mapped");
    }
}

/// One restartable sequence, as its descriptor tells it to the kernel.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Address of its first instruction.
    pub start: u64,
    /// Address behind its last instruction: behind the commit, or the counter's store.
    pub end: u64,
    /// The jump at the address where the kernel sends it, or behind what makes the result nothing
    /// there.
    pub jump: u64,
    /// Where the jump goes.
    pub goes_on: u64,
    /// Addresses of its instructions.
    pub instructions: Vec<u64>,
    /// What they are, without registers and places to jump to.
    pub kinds: Vec<Kind>,
}

impl Sequence {
    /// The sequence whose descriptor is at an address.
    ///
    /// # Panics
    ///
    /// If the kernel would refuse it, or it has a call, a system call or a part of an instruction,
    /// or does not begin with the CPU's index and end with a store.
    pub fn read(memory: &Memory, descriptor: u64) -> Self {
        assert_eq!(memory.word(descriptor), 0, "version and flags");
        let start = memory.word(descriptor + 8);
        let end = start + memory.word(descriptor + 16);
        let abort = memory.word(descriptor + 24);
        assert!(!(start..end).contains(&abort));
        assert_eq!(u32::from_ne_bytes(memory.read(abort - 4)), code::SIGNATURE);
        let (jump, goes_on) = code::jump(memory, abort);
        let (instructions, kinds) = code::instructions(memory, start, end).into_iter().unzip();
        Self {
            start,
            end,
            jump,
            goes_on,
            instructions,
            kinds,
        }
    }
}

/// What a traced process did.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// It stopped itself.
    Pause,
    /// It ended: a wait status.
    End(libc::c_int),
}

/// A process whose sequences are aborted.
pub struct Tracee {
    pid: libc::pid_t,
    memory: Memory,
    sequences: Vec<Sequence>,
    /// Armed instructions: which sequence, and which of its instructions; one behind the last is
    /// the one behind the commit.
    armed: HashMap<u64, (usize, usize)>,
    /// What the breakpoints hide.
    hidden: HashMap<u64, Breakpoint>,
    /// Signal to deliver at the next resumption.
    signal: libc::c_int,
    ended: bool,
    /// Aborts at each instruction of each sequence.
    pub aborted: Vec<Vec<u32>>,
    /// Stops behind a commit after which the process went on there.
    pub passed: Vec<u32>,
    /// Aborts that nobody forced.
    pub unasked: Vec<u32>,
}

impl Tracee {
    /// A child of this thread that has asked to be traced and stops at once.
    pub fn of(pid: libc::pid_t) -> Self {
        let tracee = Self {
            pid,
            memory: Memory::of(pid),
            sequences: Vec::new(),
            armed: HashMap::new(),
            hidden: HashMap::new(),
            signal: 0,
            ended: false,
            aborted: Vec::new(),
            passed: Vec::new(),
            unasked: Vec::new(),
        };
        assert!(tracee.wait().is_ok(), "the process ended at once");
        // SAFETY: sets an option of a stopped child: it ends when we do.
        unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0usize, PTRACE_O_EXITKILL) };
        tracee
    }

    /// A fork of this process that runs `work` as a traced child; it stops before it begins.
    pub fn fork(work: impl FnOnce()) -> Self {
        // SAFETY: the child works on memory of its own and ends without going back into the test
        // harness.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: asks to be traced, and stops.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0usize, 0usize) };
            pause();
            let work = std::panic::AssertUnwindSafe(work);
            let status = i32::from(std::panic::catch_unwind(work).is_err());
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) };
        }
        Self::of(pid)
    }

    /// Its id.
    #[allow(dead_code)]
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Its memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Watches a sequence's aborts; nothing is armed yet. Its number is returned.
    pub fn watch(&mut self, sequence: Sequence) -> usize {
        self.hide(sequence.jump);
        self.aborted.push(vec![0; sequence.instructions.len()]);
        self.passed.push(0);
        self.unasked.push(0);
        self.sequences.push(sequence);
        self.sequences.len() - 1
    }

    /// Arms an instruction of a sequence, or with the number behind the last the one behind the
    /// commit; it is disarmed when it is reached.
    pub fn arm(&mut self, sequence: usize, instruction: usize) {
        let of = &self.sequences[sequence];
        let at = of.instructions.get(instruction).copied().unwrap_or(of.end);
        if self.armed.insert(at, (sequence, instruction)).is_none() {
            self.hide(at);
        }
    }

    /// Arms every instruction of every sequence.
    pub fn arm_all(&mut self) {
        for sequence in 0..self.sequences.len() {
            for instruction in 0..=self.sequences[sequence].instructions.len() {
                self.arm(sequence, instruction);
            }
        }
    }

    /// Instructions that are armed and were not reached yet.
    pub fn armed(&self) -> usize {
        self.armed.len()
    }

    /// Disarms what was not reached.
    pub fn disarm_all(&mut self) {
        let armed: Vec<u64> = self.armed.drain().map(|(at, _)| at).collect();
        for at in armed {
            self.show(at);
        }
    }

    fn hide(&mut self, at: u64) {
        let bytes = self.memory.read(at);
        self.hidden.entry(at).or_insert(bytes);
        self.memory.write(at, BREAKPOINT);
    }

    fn show(&mut self, at: u64) {
        let bytes = self.hidden.remove(&at).expect("a breakpoint");
        self.memory.write(at, bytes);
    }

    /// Lets it run until it stops itself or ends, and aborts what is armed on the way.
    ///
    /// # Panics
    ///
    /// If an armed instruction was reached inside its sequence and the kernel did not send the
    /// process to the abort address.
    pub fn run(&mut self) -> Event {
        loop {
            self.resume();
            match self.wait() {
                Err(status) => {
                    self.ended = true;
                    return Event::End(status);
                }
                Ok(libc::SIGSTOP) => return Event::Pause,
                Ok(libc::SIGTRAP) => self.trap(),
                Ok(signal) => self.signal = signal,
            }
        }
    }

    fn trap(&mut self) {
        let at = self.breakpoint();
        if let Some((number, instruction)) = self.armed.remove(&at) {
            self.show(at);
            self.go_on_at(at);
            if instruction == self.sequences[number].instructions.len() {
                self.passed[number] += 1;
                return;
            }
            self.resume();
            let stop = self.wait();
            let sequence = &self.sequences[number];
            let now = self.breakpoint();
            assert_eq!(
                (stop, now),
                (Ok(libc::SIGTRAP), sequence.jump),
                "stopped at instruction {instruction} of the sequence at {:#x}: not aborted",
                sequence.start
            );
            self.aborted[number][instruction] += 1;
            self.go_on_at(sequence.goes_on);
            return;
        }
        let unasked = self.sequences.iter().position(|s| s.jump == at);
        let number = unasked.unwrap_or_else(|| panic!("a strange breakpoint at {at:#x}"));
        self.unasked[number] += 1;
        self.go_on_at(self.sequences[number].goes_on);
    }

    /// The breakpoint at which it stopped.
    fn breakpoint(&self) -> u64 {
        code::breakpoint(&code::registers(self.pid))
    }

    fn go_on_at(&self, address: u64) {
        code::go_on_at(self.pid, address);
    }

    fn resume(&mut self) {
        let signal = std::mem::take(&mut self.signal) as usize;
        // SAFETY: resumes a stopped child.
        unsafe { libc::ptrace(libc::PTRACE_CONT, self.pid, 0usize, signal) };
    }

    /// The signal at which it stopped, or its wait status when it ended.
    fn wait(&self) -> Result<libc::c_int, libc::c_int> {
        let mut status = 0;
        // SAFETY: writes the status.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        assert_eq!(pid, self.pid);
        if libc::WIFSTOPPED(status) {
            Ok(libc::WSTOPSIG(status))
        } else {
            Err(status)
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: ends a child of ours that nobody has waited for, and forgets it.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Stops this process, so that its tracer gets control.
pub fn pause() {
    // SAFETY: the tracer resumes us.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// The addresses of all descriptors of this program.
pub fn descriptors_here() -> impl Iterator<Item = u64> {
    unsafe extern "C" {
        // Both from the linker, which knows the section's ends.
        static __start___rseq_cs: u8;
        static __stop___rseq_cs: u8;
    }
    let start = &raw const __start___rseq_cs as u64;
    let stop = &raw const __stop___rseq_cs as u64;
    (start..stop).step_by(DESCRIPTOR_BYTES as usize)
}
