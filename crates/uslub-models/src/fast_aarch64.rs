//! An interpreter of the fast paths for aarch64: it parses the assembly of `uslub-malloc` and
//! executes it step by step. `fast_explore` runs several threads with it.
//!
//! As in `assembly`, the parser reads the source text itself. It knows only the instructions that
//! the fast paths use, and panics at any other instruction.

use std::collections::BTreeMap;

const SOURCE: &str = include_str!("../../uslub-malloc/src/fast_path/aarch64.rs");
/// The register that is always 0.
const ZERO: usize = 31;

#[derive(Clone, Debug)]
enum Operand {
    /// A register and the mask of its used bits.
    Register(usize, u64),
    Number(u64),
    /// The register with the address, what is added, and what the register gains afterwards.
    Memory(usize, Offset, u64),
    /// Where an instruction goes, or what it loads from the code.
    Name(String),
}

#[derive(Clone, Copy, Debug)]
enum Offset {
    Number(u64),
    /// A register, shifted to the left by bits.
    Register(usize, u64),
}

#[derive(Clone, Debug)]
struct Instruction {
    name: String,
    operands: Vec<Operand>,
    /// Bits by which the last register is shifted, to the left or to the right.
    shift: [u64; 2],
}

/// A function.
#[derive(Debug)]
pub struct Program {
    instructions: Vec<Instruction>,
    labels: BTreeMap<String, usize>,
    constants: BTreeMap<&'static str, u64>,
    /// First instruction of the restartable part, and the first instruction after it.
    restartable: (usize, usize),
    /// The instruction at which an abort continues.
    abort: usize,
}

/// How a call of a function ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// By its return.
    Returned,
    /// It jumped to another function.
    Left(String),
}

/// Words of memory.
pub trait World {
    /// Reads a word.
    fn load(&self, address: u64) -> u64;
    /// Writes a word.
    fn store(&mut self, address: u64, value: u64);
    /// The thread pointer.
    fn thread(&self) -> u64;
}

/// The position of a thread in a function, with its registers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    at: usize,
    /// `x0` to `x7`.
    pub registers: [u64; 8],
    /// The flags zero and carry.
    flags: [bool; 2],
    /// What an exclusive load found.
    exclusive: Option<u64>,
    /// How the call ended, once it has.
    pub outcome: Option<Outcome>,
}

/// The lines of a macro, with those of the macros in it.
fn assembled(name: &str) -> Vec<String> {
    let from = SOURCE.find(&format!("macro_rules! {name} {{"));
    let text = &SOURCE[from.unwrap_or_else(|| panic!("no macro {name}"))..];
    let text = &text[..text.find("\n}\n").expect("its end")];
    let lines = text.lines().map(str::trim);
    let mut all = Vec::new();
    for line in lines {
        if let Some(inner) = line.strip_suffix("!(),") {
            all.extend(assembled(inner));
        } else if let Some(rest) = line.strip_prefix("descriptor!(to \"") {
            all.push(format!(
                "abort {}",
                rest.split('"').next().expect("a label")
            ));
        } else if line.starts_with('"') {
            let text = line.trim_end_matches(',').trim_matches('"');
            all.push(text.trim_end_matches("\\n").replace("\\\"", "\""));
        }
    }
    all
}

/// Operands are separated by commas outside of brackets.
fn split(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut inside = false;
    for c in text.chars() {
        inside = (inside || c == '[') && c != ']';
        match c {
            ',' if !inside => all.push(String::new()),
            _ => all.last_mut().expect("a part").push(c),
        }
    }
    all.iter().map(|part| part.trim().to_owned()).collect()
}

impl Program {
    /// Parses a function: the macro with its instructions, and the values of its operands.
    ///
    /// # Panics
    ///
    /// If the source has no such macro, or the macro has an unknown operand.
    pub fn read(name: &str, constants: &[(&'static str, u64)]) -> Self {
        let mut program = Self {
            instructions: Vec::new(),
            labels: BTreeMap::new(),
            constants: constants.iter().copied().collect(),
            restartable: (0, 0),
            abort: 0,
        };
        let mut abort = String::new();
        for line in assembled(name) {
            if let Some(label) = line.strip_suffix(':') {
                let here = program.instructions.len();
                program.labels.insert(label.to_owned(), here);
            } else if let Some(label) = line.strip_prefix("abort ") {
                label.trim_end_matches('f').clone_into(&mut abort);
            } else if !line.starts_with('.') {
                let instruction = program.instruction(&line);
                program.instructions.push(instruction);
            }
        }
        program.restartable = (program.labels["20"], program.labels["30"]);
        program.abort = program.labels[&abort];
        program
    }

    fn instruction(&self, line: &str) -> Instruction {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut parts = split(rest);
        let mut shift = [0; 2];
        for (to, shift) in ["lsl #", "lsr #"].iter().zip(&mut shift) {
            if let Some(bits) = parts.last().and_then(|part| part.strip_prefix(to)) {
                *shift = bits.parse().expect("bits");
                parts.pop();
            }
        }
        let mut operands: Vec<Operand> = parts.iter().map(|part| self.operand(part)).collect();
        // A number behind an address in brackets is added to its register afterwards.
        if let [.., Operand::Memory(_, _, gain), Operand::Number(number)] = &mut operands[..] {
            *gain = *number;
            operands.pop();
        }
        Instruction {
            name: name.to_owned(),
            operands,
            shift,
        }
    }

    fn number(&self, text: &str) -> u64 {
        let value = |term: &str| {
            let name = term.strip_prefix('{').map(|t| t.trim_end_matches('}'));
            match name {
                Some(name) => self.constants[name],
                None => term.parse::<i64>().expect("a number") as u64,
            }
        };
        match text.split_once(" - ") {
            Some((left, right)) => value(left).wrapping_sub(value(right)),
            None => value(text),
        }
    }

    fn operand(&self, text: &str) -> Operand {
        if let Some(number) = text.strip_prefix('#') {
            return Operand::Number(self.number(number));
        }
        if let Some(inner) = text.strip_prefix('[') {
            let parts = split(inner.trim_end_matches(']'));
            let base = register(&parts[0]).expect("a register").0;
            let offset = match parts.get(1).map(|part| (part, part.strip_prefix('#'))) {
                None => Offset::Number(0),
                Some((_, Some(number))) => Offset::Number(self.number(number)),
                Some((name, None)) => {
                    let bits = parts.get(2).and_then(|part| part.strip_prefix("lsl #"));
                    let bits = bits.map_or(0, |bits| bits.parse().expect("bits"));
                    Offset::Register(register(name).expect("a register").0, bits)
                }
            };
            return Operand::Memory(base, offset, 0);
        }
        match register(text) {
            Some((register, mask)) => Operand::Register(register, mask),
            None => Operand::Name(text.to_owned()),
        }
    }

    /// The position at the first instruction, with the argument.
    pub fn begin(argument: u64) -> Place {
        let mut registers = [0xdead_beef_dead_beef; 8];
        registers[0] = argument;
        Place {
            at: 0,
            registers,
            flags: [false; 2],
            exclusive: None,
            outcome: None,
        }
    }

    /// What the kernel does before a thread continues after an interruption, if the thread's area
    /// has this function's descriptor. Returns whether it aborts the sequence.
    pub fn abort(&self, place: &mut Place) -> bool {
        let inside = (self.restartable.0..self.restartable.1).contains(&place.at);
        if inside {
            place.at = self.abort;
        }
        inside
    }

    /// Whether the position lies before the restartable part.
    pub fn is_before_start(&self, place: &Place) -> bool {
        place.at < self.restartable.0
    }

    /// Executes one instruction.
    ///
    /// # Panics
    ///
    /// If the instruction is unknown.
    pub fn step(&self, place: &mut Place, world: &mut impl World) {
        let instruction = &self.instructions[place.at];
        place.at += 1;
        let name = instruction.name.as_str();
        let operands = &instruction.operands[..];
        let first = || place.value(&operands[0]);
        let bit = || first() >> place.value(&operands[1]) & 1;
        let [zero, carry] = place.flags;
        let jumps = match name {
            "b" => Some(true),
            "b.eq" => Some(zero),
            "b.ne" => Some(!zero),
            "b.hs" => Some(carry),
            "cbz" => Some(first() == 0),
            "cbnz" => Some(first() != 0),
            "tbz" => Some(bit() == 0),
            "tbnz" => Some(bit() == 1),
            _ => None,
        };
        match (jumps, name) {
            (Some(false), _) => (),
            (Some(true), _) => self.jump(place, &operands[operands.len() - 1]),
            (None, "ret") => place.outcome = Some(Outcome::Returned),
            (None, "mrs") => place.put(&operands[0], world.thread()),
            (None, "adrp") => place.put(&operands[0], self.address(&operands[1])),
            _ if name.starts_with("ld") => self.load(instruction, place, world),
            _ if name.starts_with("st") => store(instruction, place, world),
            _ => self.compute(instruction, place),
        }
    }

    fn jump(&self, place: &mut Place, to: &Operand) {
        let Operand::Name(to) = to else {
            panic!("a jump to {to:?}");
        };
        match self.labels.get(to.trim_end_matches(['f', 'b'])) {
            Some(&at) => place.at = at,
            None => place.outcome = Some(Outcome::Left(to.trim_matches(['{', '}']).to_owned())),
        }
    }

    /// The address that a name stands for.
    fn address(&self, name: &Operand) -> u64 {
        match name {
            Operand::Name(name) if name == "50f" => self.constants["descriptor"],
            Operand::Name(name) if name == "{front}" => self.constants["front"],
            other => panic!("the address of {other:?}"),
        }
    }

    fn load(&self, instruction: &Instruction, place: &mut Place, world: &impl World) {
        let operands = &instruction.operands[..];
        if let [to, Operand::Name(_)] = operands {
            // The only word in the code.
            return place.put(to, self.constants["mark"]);
        }
        let address = place.address(&operands[operands.len() - 1]);
        let word = world.load(address);
        match instruction.name.as_str() {
            "ldr" | "ldur" => place.put(&operands[0], word),
            "ldrh" => place.put(&operands[0], word & 0xffff),
            "ldrb" => place.put(&operands[0], word & 0xff),
            "ldp" => {
                place.put(&operands[0], word);
                place.put(&operands[1], world.load(address + 8));
            }
            "ldxr" => {
                place.exclusive = Some(word);
                place.put(&operands[0], word);
            }
            other => panic!("the instruction {other} is not known"),
        }
    }

    fn compute(&self, instruction: &Instruction, place: &mut Place) {
        let name = instruction.name.as_str();
        let operands = &instruction.operands[..];
        let last = match &operands[operands.len() - 1] {
            // The descriptor is at the start of its page.
            Operand::Name(name) if name == ":lo12:50f" => 0,
            operand => place.value(operand) << instruction.shift[0] >> instruction.shift[1],
        };
        let left = place.value(&operands[operands.len() - 2]);
        match name {
            "cmp" => place.flags = [left == last, left >= last],
            "tst" => place.flags = [left & last == 0, false],
            "add" => place.put(&operands[0], left.wrapping_add(last)),
            "sub" => place.put(&operands[0], left.wrapping_sub(last)),
            "mul" => place.put(&operands[0], left.wrapping_mul(last)),
            "and" => place.put(&operands[0], left & last),
            "lsr" => place.put(&operands[0], left >> last),
            other => panic!("the instruction {other} is not known"),
        }
    }
}

fn store(instruction: &Instruction, place: &mut Place, world: &mut impl World) {
    let operands = &instruction.operands[..];
    let address = place.address(&operands[operands.len() - 1]);
    let value = place.value(&operands[operands.len() - 2]);
    match instruction.name.as_str() {
        "str" | "stur" => world.store(address, value),
        "strb" => world.store(address, world.load(address) & !0xff | value & 0xff),
        "stxr" => {
            let is_alone = place.exclusive.take() == Some(world.load(address));
            if is_alone {
                world.store(address, value);
            }
            place.put(&operands[0], u64::from(!is_alone));
        }
        other => panic!("the instruction {other} is not known"),
    }
}

fn register(text: &str) -> Option<(usize, u64)> {
    let mask = match text.as_bytes().first()? {
        b'x' => u64::MAX,
        b'w' => u64::from(u32::MAX),
        _ => return None,
    };
    match &text[1..] {
        "zr" => Some((ZERO, mask)),
        number => Some((number.parse().ok()?, mask)),
    }
}

impl Place {
    fn read(&self, register: usize) -> u64 {
        match register {
            ZERO => 0,
            _ => self.registers[register],
        }
    }

    fn value(&self, operand: &Operand) -> u64 {
        match operand {
            Operand::Register(register, mask) => self.read(*register) & mask,
            Operand::Number(number) => *number,
            other => panic!("the value of {other:?}"),
        }
    }

    fn put(&mut self, to: &Operand, value: u64) {
        match to {
            Operand::Register(register, mask) => self.registers[*register] = value & mask,
            other => panic!("a write to {other:?}"),
        }
    }

    /// The address of an operand in memory; its register gains what it should.
    fn address(&mut self, operand: &Operand) -> u64 {
        let Operand::Memory(base, offset, gain) = *operand else {
            panic!("the address of {operand:?}");
        };
        let offset = match offset {
            Offset::Number(number) => number,
            Offset::Register(register, bits) => self.read(register) << bits,
        };
        let address = self.read(base).wrapping_add(offset);
        self.registers[base] = self.registers[base].wrapping_add(gain);
        address
    }

    /// An interruption ends an exclusive access.
    pub fn interrupt(&mut self) {
        self.exclusive = None;
    }
}
