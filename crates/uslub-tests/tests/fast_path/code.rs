//! A library's functions as graphs of instructions.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;

use object::{Architecture, Object, ObjectSection, ObjectSymbol, RelocationTarget};

mod aarch64;
mod x86_64;

/// Bytes of a descriptor of a sequence.
const DESCRIPTOR: u64 = 32;

/// What a fast path must not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// A lock prefix, or an exchange with memory, which locks without one.
    Lock,
    /// A call of a function or of the system.
    Call,
    Division,
    /// A jump back.
    Loop,
    /// A jump to where a register says, a trap, or no instruction at all.
    Unknown,
}

/// Where an instruction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    /// There, or behind it.
    Branch(u64),
    Jump(u64),
    Return,
    /// Nothing behind a call is followed.
    Elsewhere,
}

/// What the walks look at.
struct Instruction {
    at: u64,
    next: u64,
    flow: Flow,
    /// Why it may not be on a fast path.
    slow: Option<Slow>,
    text: String,
}

/// The instructions of these bytes at an address.
fn decode(architecture: Architecture, start: u64, code: &[u8]) -> Vec<Instruction> {
    match architecture {
        Architecture::X86_64 => x86_64::decode(start, code),
        Architecture::Aarch64 => aarch64::decode(start, code),
        other => panic!("no decoder for {other:?}"),
    }
}

/// A library of the release build.
pub struct Library {
    /// Whose instructions it has.
    pub architecture: Architecture,
    bytes: Vec<u8>,
    /// Start and end of each sequence.
    sequences: Vec<(u64, u64)>,
}

impl Library {
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a library");
        let sequences = sequences(&bytes);
        assert!(!sequences.is_empty(), "{}: no sequence", path.display());
        let file = object::File::parse(&*bytes).expect("an ELF file");
        Self {
            architecture: file.architecture(),
            bytes,
            sequences,
        }
    }

    /// The function whose symbol is right, if there is one.
    ///
    /// # Panics
    ///
    /// If there is more than one.
    pub fn function(&self, is_right: impl Fn(&str) -> bool) -> Option<Function> {
        let file = object::File::parse(&*self.bytes).expect("an ELF file");
        let found: BTreeMap<u64, u64> = file
            .symbols()
            .filter(|symbol| symbol.size() > 0 && symbol.name().is_ok_and(&is_right))
            .map(|symbol| (symbol.address(), symbol.size()))
            .collect();
        assert!(found.len() <= 1, "functions of one name: {found:x?}");
        let (&start, &size) = found.first_key_value()?;
        let code = file
            .sections()
            .find_map(|section| section.data_range(start, size).ok().flatten())
            .expect("code");
        Some(Function::of(self.architecture, start, code))
    }

    /// Sequences that lie in a function.
    pub fn sequences_in(&self, function: &Function) -> usize {
        self.commits_in(function).count()
    }

    /// Addresses behind the commits of a function's sequences.
    pub fn commits_in(&self, function: &Function) -> impl Iterator<Item = u64> {
        let inside = |&&(start, _): &&(u64, u64)| function.code.contains_key(&start);
        self.sequences.iter().filter(inside).map(|&(_, end)| end)
    }
}

/// Start and end of each sequence: the descriptors, with what the loader will write into them.
fn sequences(bytes: &[u8]) -> Vec<(u64, u64)> {
    let file = object::File::parse(bytes).expect("an ELF file");
    let Some(section) = file.section_by_name("__rseq_cs") else {
        return Vec::new();
    };
    let (base, data) = (section.address(), section.data().expect("descriptors"));
    let written: HashMap<u64, u64> = file
        .dynamic_relocations()
        .into_iter()
        .flatten()
        .filter(|(_, relocation)| relocation.target() == RelocationTarget::Absolute)
        .map(|(at, relocation)| (at, relocation.addend() as u64))
        .collect();
    let word = |at: u64| {
        let place = (at - base) as usize;
        let word = data[place..place + 8].try_into().expect("eight bytes");
        written
            .get(&at)
            .copied()
            .unwrap_or(u64::from_le_bytes(word))
    };
    (0..data.len() as u64 / DESCRIPTOR)
        .map(|number| base + number * DESCRIPTOR)
        .map(|at| (word(at + 8), word(at + 8) + word(at + 16)))
        .collect()
}

/// A function's instructions, by their addresses.
pub struct Function {
    start: u64,
    code: BTreeMap<u64, Instruction>,
}

/// What there is on all ways of a function that do not leave it.
pub struct Ways {
    /// Instructions from the first to a return, both counted.
    pub shortest: usize,
    pub longest: usize,
    /// What must not be there, in words.
    pub slow: Vec<(String, Slow)>,
}

impl Function {
    /// Of these bytes at an address.
    pub fn of(architecture: Architecture, start: u64, code: &[u8]) -> Self {
        let code = decode(architecture, start, code);
        let code = code.into_iter().map(|i| (i.at, i)).collect();
        Self { start, code }
    }

    /// Where an instruction may go on, without those places that are outside of the function.
    fn next(&self, instruction: &Instruction) -> Vec<u64> {
        let mut next = match instruction.flow {
            Flow::Branch(target) => vec![instruction.next, target],
            Flow::Jump(target) => vec![target],
            Flow::Next => vec![instruction.next],
            Flow::Return | Flow::Elsewhere => Vec::new(),
        };
        next.retain(|at| self.code.contains_key(at));
        next
    }

    /// Follows all ways.
    pub fn all_ways(&self) -> Ways {
        let mut ways = Ways {
            shortest: 0,
            longest: 0,
            slow: Vec::new(),
        };
        let mut seen = HashSet::new();
        let mut todo = vec![self.start];
        while let Some(at) = todo.pop() {
            if !seen.insert(at) {
                continue;
            }
            let instruction = &self.code[&at];
            if let Some(slow) = instruction.slow {
                ways.slow.push((instruction.text.clone(), slow));
            }
            todo.extend(self.next(instruction));
        }
        let back = |at: &&u64| self.next(&self.code[at]).iter().any(|next| next <= *at);
        let back: Vec<u64> = seen.iter().filter(back).copied().collect();
        if back.is_empty() {
            let lengths = self.lengths(&seen);
            (ways.shortest, ways.longest) = lengths.get(&self.start).copied().unwrap_or((0, 0));
            if ways.longest == 0 {
                ways.slow.push(("no return".to_owned(), Slow::Unknown));
            }
        }
        for at in back {
            ways.slow.push((self.code[&at].text.clone(), Slow::Loop));
        }
        ways
    }

    /// Instructions to the nearest and the farthest return from each address, where there is one.
    /// All jumps go forward.
    fn lengths(&self, seen: &HashSet<u64>) -> HashMap<u64, (usize, usize)> {
        let mut lengths: HashMap<u64, (usize, usize)> = HashMap::new();
        for (at, instruction) in self.code.iter().rev().filter(|(at, _)| seen.contains(at)) {
            let behind = self.next(instruction);
            let behind = behind.iter().filter_map(|next| lengths.get(next).copied());
            let here = if instruction.flow == Flow::Return {
                Some((1, 1))
            } else {
                behind
                    .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
                    .map(|(least, most)| (least + 1, most + 1))
            };
            if let Some(here) = here {
                lengths.insert(*at, here);
            }
        }
        lengths
    }

    /// Instructions of the shortest way from the entry to a return that passes an address and has
    /// nothing slow on it.
    pub fn shortest_way_through(&self, address: u64) -> Option<usize> {
        let there = self.shortest(self.start, |instruction| instruction.at == address)?;
        let back = self.shortest(address, |instruction| instruction.flow == Flow::Return)?;
        Some(there + back + 1)
    }

    /// Steps from an address to the first instruction that is right.
    fn shortest(&self, from: u64, is_right: impl Fn(&Instruction) -> bool) -> Option<usize> {
        let mut seen = HashSet::from([from]);
        let mut todo = VecDeque::from([(from, 0)]);
        while let Some((at, steps)) = todo.pop_front() {
            let instruction = &self.code[&at];
            if instruction.slow.is_some() {
                continue;
            }
            if is_right(instruction) {
                return Some(steps);
            }
            for next in self.next(instruction) {
                if seen.insert(next) {
                    todo.push_back((next, steps + 1));
                }
            }
        }
        None
    }
}
