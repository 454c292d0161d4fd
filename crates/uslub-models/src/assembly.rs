//! An interpreter of the restartable sequences: it parses the assembly of `uslub-rseq` and executes
//! it step by step. `explore` runs several threads with it.
//!
//! The parser reads the source text itself, and the compiler expands the macros in it. So a change
//! of the sequences changes the model. The parser knows only the instructions that the sequences
//! use, and panics at any other instruction.

use std::collections::BTreeMap;

#[path = "../../uslub-rseq/src/arch/x86_64/copy.rs"]
mod copy;
#[path = "../../uslub-rseq/src/arch/x86_64/protocol.rs"]
mod protocol;

use copy::*;
use protocol::{ABORT, END, sequence};

const SOURCE: &str = include_str!("../../uslub-rseq/src/arch/x86_64/sequences.rs");
/// Sequences without and with registers of their own, as the compiler expands them.
const SEQUENCES: [&str; 2] = [
    sequence!(
        unregistered: "<unregistered>",
        ["<code>"],
        commit: "<commit>",
        after: "<after>",
        abort: "<abort>",
    ),
    sequence!(
        registers: "<area>", "<index>", "<table>", "<descriptor>",
        unregistered: "<unregistered>",
        ["<code>"],
        commit: "<commit>",
        after: "<after>",
        abort: "<abort>",
    ),
];

/// An address or a value of an operand.
#[derive(Clone, Debug)]
enum Expression {
    Number(u64),
    Register(usize),
    Sum(Box<Self>, Box<Self>),
    Difference(Box<Self>, Box<Self>),
    Product(Box<Self>, Box<Self>),
}

#[derive(Clone, Debug)]
enum Operand {
    /// A register and the mask of its used bits.
    Register(usize, u64),
    Value(Expression),
    Memory(Expression),
    /// A word in the thread's rseq area.
    Area(Expression),
}

#[derive(Clone, Debug)]
struct Instruction {
    name: String,
    operands: Vec<Operand>,
    /// The target of a jump.
    target: usize,
}

/// A sequence.
#[derive(Debug)]
pub struct Program {
    instructions: Vec<Instruction>,
    registers: Vec<String>,
    /// First instruction of the restartable part, and the first instruction after it.
    restartable: (usize, usize),
    /// The instruction at which an abort continues.
    abort: usize,
    /// The end of the whole sequence.
    end: usize,
}

/// The memory that a sequence accesses.
pub trait World {
    /// Reads a word of memory.
    fn load(&self, address: u64) -> u64;
    /// Writes a word of memory.
    fn store(&mut self, address: u64, value: u64);
    /// Reads a word of the thread's rseq area.
    fn area(&self, address: u64) -> u64;
}

/// The position of a thread in a sequence, with its registers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    at: usize,
    registers: Vec<[u64; 4]>,
    /// The flags zero, carry and sign.
    flags: [bool; 3],
    /// Whether the rseq area points to the sequence's descriptor.
    armed: bool,
}

fn text_between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let from = text.find(start).unwrap_or_else(|| panic!("no {start}")) + start.len();
    let text = &text[from..];
    &text[..text.find(end).unwrap_or_else(|| panic!("no {end}"))]
}

/// The assembler's text of a function's sequence.
fn assembled(function: &str) -> String {
    let function = text_between(SOURCE, &format!("pub unsafe fn {function}"), "\n}\n");
    let call = text_between(function, "sequence!(", "\n            ),");
    let mut parts = BTreeMap::from([("abort", String::new())]);
    let lines = call.lines().map(|l| l.trim().trim_end_matches(','));
    for line in lines.filter(|l| !l.starts_with("//")) {
        let (part, text) = line.split_once(": ").unwrap_or(("code", line));
        let text = match text {
            "copy!()" => copy!(),
            "room!()" => room!(),
            "[" | "]" | "" => continue,
            quoted => quoted.trim_matches('"'),
        };
        *parts.entry(part).or_default() += &(text.replace("\\n", "\n") + "\n");
    }
    let registers = parts.remove("registers");
    let mut sequence = SEQUENCES[usize::from(registers.is_some())].to_owned();
    let names = ["area", "index", "table", "descriptor"];
    let registers = registers.iter().flat_map(|r| r.trim().split("\", \""));
    parts.extend(names.into_iter().zip(registers.map(str::to_owned)));
    for (part, text) in parts {
        sequence = sequence.replace(&format!("<{part}>"), text.trim_end());
    }
    let sequence = sequence.replace("{end}", &END.to_string());
    sequence.replace("{abort}", &ABORT.to_string())
}

struct Reader<'a> {
    constants: &'a BTreeMap<&'a str, u64>,
    registers: Vec<String>,
}

impl Reader<'_> {
    fn register(&mut self, name: &str) -> usize {
        let found = self.registers.iter().position(|r| r == name);
        found.unwrap_or_else(|| {
            self.registers.push(name.to_owned());
            self.registers.len() - 1
        })
    }

    fn name(&mut self, name: &str) -> Expression {
        let name = name.split(':').next().unwrap_or(name);
        match self.constants.get(name) {
            Some(&value) => Expression::Number(value),
            None => Expression::Register(self.register(name)),
        }
    }

    /// Parses a sum of products from the front of the tokens.
    fn sum(&mut self, tokens: &mut Vec<String>) -> Expression {
        let mut sum = if tokens.first().is_some_and(|t| t == "-") {
            Expression::Number(0)
        } else {
            self.product(tokens)
        };
        while let Some(sign) = tokens.first().cloned().filter(|t| t == "+" || t == "-") {
            tokens.remove(0);
            let next = self.product(tokens);
            let (left, right) = (Box::new(sum), Box::new(next));
            sum = if sign == "+" {
                Expression::Sum(left, right)
            } else {
                Expression::Difference(left, right)
            };
        }
        sum
    }

    fn product(&mut self, tokens: &mut Vec<String>) -> Expression {
        let mut product = self.term(tokens);
        while tokens.first().is_some_and(|t| t == "*") {
            tokens.remove(0);
            product = Expression::Product(Box::new(product), Box::new(self.term(tokens)));
        }
        product
    }

    fn term(&mut self, tokens: &mut Vec<String>) -> Expression {
        let token = tokens.remove(0);
        if token == "(" {
            let inner = self.sum(tokens);
            assert_eq!(tokens.remove(0), ")");
            return inner;
        }
        match token.strip_prefix('{') {
            Some(name) => self.name(name.trim_end_matches('}')),
            None => Expression::Number(token.parse().unwrap_or_else(|_| panic!("what is {token}"))),
        }
    }

    fn expression(&mut self, text: &str) -> Expression {
        let mut text = text.to_owned();
        for sign in ["+", "-", "*", "(", ")"] {
            text = text.replace(sign, &format!(" {sign} "));
        }
        let mut tokens: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let read = self.sum(&mut tokens);
        assert!(tokens.is_empty(), "what follows in {text}");
        read
    }

    fn operand(&mut self, text: &str) -> Operand {
        let text = ["dword ptr ", "qword ptr ", "word ptr ", "byte ptr "]
            .iter()
            .fold(text.trim(), |text, size| text.trim_start_matches(size));
        // One register has a name for each width.
        if let Some(number) = text
            .strip_prefix(['x', 'y'])
            .and_then(|t| t.strip_prefix("mm"))
        {
            return Operand::Register(self.register(&format!("mm{number}")), u64::MAX);
        }
        // A flag of the whole process, which is set before.
        if text == "[rip + {wide}]" {
            return Operand::Register(self.register("wide"), u64::from(u8::MAX));
        }
        if let Some(inner) = text.strip_prefix("fs:[") {
            return Operand::Area(self.expression(inner.trim_end_matches(']')));
        }
        if text == "[rip + 50f]" {
            return Operand::Memory(Expression::Number(0));
        }
        if let Some(inner) = text.strip_prefix('[') {
            return Operand::Memory(self.expression(inner.trim_end_matches(']')));
        }
        match self.expression(text) {
            Expression::Register(register) => {
                let mask = match text.split_once(':').map(|(_, width)| width) {
                    Some("e}") => u64::from(u32::MAX),
                    Some("l}") => u64::from(u8::MAX),
                    _ => u64::MAX,
                };
                Operand::Register(register, mask)
            }
            value => Operand::Value(value),
        }
    }
}

impl Program {
    /// Parses the sequence of a function, with the values of its `const` operands.
    ///
    /// # Panics
    ///
    /// If the function is missing in the source, or has an unknown instruction.
    pub fn read(function: &str, constants: &[(&str, u64)]) -> Self {
        let constants = constants.iter().copied().collect();
        // The code of an abort follows the end.
        let text = assembled(function).replace(".pushsection .text.rseq_abort", "end\n.");
        let lines = text
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('.'));
        let mut reader = Reader {
            constants: &constants,
            registers: Vec::new(),
        };
        let (mut labels, mut instructions, mut jumps) = (BTreeMap::new(), Vec::new(), Vec::new());
        for line in lines {
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label.to_owned(), instructions.len());
                continue;
            }
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            let is_jump = name.starts_with('j');
            let operands = if is_jump {
                jumps.push((
                    instructions.len(),
                    rest.trim_end_matches(['f', 'b']).to_owned(),
                ));
                Vec::new()
            } else if rest.is_empty() {
                Vec::new()
            } else {
                rest.split(", ").map(|o| reader.operand(o)).collect()
            };
            instructions.push(Instruction {
                name: name.to_owned(),
                operands,
                target: 0,
            });
        }
        for (at, label) in jumps {
            instructions[at].target = labels[&label];
        }
        Self {
            registers: reader.registers,
            restartable: (labels["20"], labels["30"]),
            abort: labels[&ABORT.to_string()],
            end: labels[&END.to_string()],
            instructions,
        }
    }

    /// The position at the start, with some registers set.
    pub fn begin(&self, values: &[(&str, u64)]) -> Place {
        let mut registers = vec![[0; 4]; self.registers.len()];
        for (name, value) in values {
            if let Some(at) = self.registers.iter().position(|r| r == name) {
                registers[at][0] = *value;
            }
        }
        Place {
            at: 0,
            registers,
            flags: [false; 3],
            armed: false,
        }
    }

    /// Whether the position is the end.
    pub fn is_over(&self, place: &Place) -> bool {
        place.at == self.end
    }

    /// The value of a register.
    ///
    /// # Panics
    ///
    /// If the sequence has no such register.
    pub fn register(&self, place: &Place, name: &str) -> u64 {
        let at = self.registers.iter().position(|r| r == name);
        place.registers[at.unwrap_or_else(|| panic!("no register {name}"))][0]
    }

    /// Does the kernel's work before a thread continues after an interruption. Returns whether the
    /// kernel aborted the sequence.
    pub fn interrupt(&self, place: &mut Place) -> bool {
        let inside = (self.restartable.0..self.restartable.1).contains(&place.at);
        let aborts = place.armed && inside;
        if aborts {
            place.at = self.abort;
        }
        place.armed = false;
        aborts
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
        let [zero, carry, sign] = place.flags;
        let jumps = match name {
            "jz" | "je" => Some(zero),
            "jnz" | "jne" => Some(!zero),
            "js" => Some(sign),
            "jb" => Some(carry),
            "jae" => Some(!carry),
            "jmp" => Some(true),
            // Changes only registers that the sequence does not read again.
            "vzeroupper" => Some(false),
            _ => None,
        };
        if let Some(jumps) = jumps {
            if jumps {
                place.at = instruction.target;
            }
            return;
        }
        let to = &instruction.operands[0];
        let from = instruction.operands.get(1);
        let value = match from {
            None => 1,
            // `lea` uses only the address, not the value.
            Some(_) if name == "lea" => 0,
            Some(from) => place.value(from, world),
        };
        let address = from.map(|from| place.address(from));
        match name {
            "lea" => place.put(to, address.expect("an address"), world),
            "mov" | "movzx" => place.put(to, value, world),
            "movups" => place.copy(2, to, from.expect("a source"), world),
            "vmovups" => place.copy(4, to, from.expect("a source"), world),
            "cmp" => {
                let old = place.value(to, world);
                place.flags = [
                    old == value,
                    old < value,
                    (old.wrapping_sub(value) as i32) < 0,
                ];
            }
            "test" => {
                let both = place.value(to, world) & value;
                place.flags = [both == 0, false, (both as i32) < 0];
            }
            "add" | "sub" | "and" | "xor" | "inc" | "dec" | "shr" => {
                let old = place.value(to, world);
                let new = match name {
                    "add" | "inc" => old.wrapping_add(value),
                    "sub" | "dec" => old.wrapping_sub(value),
                    "and" => old & value,
                    "xor" => old ^ value,
                    _ => old >> value,
                };
                place.put(to, new, world);
                place.flags = [place.value(to, world) == 0, false, (new as i32) < 0];
            }
            other => panic!("the instruction {other} is not known"),
        }
    }
}

impl Place {
    fn expression(&self, expression: &Expression) -> u64 {
        match expression {
            Expression::Number(n) => *n,
            Expression::Register(r) => self.registers[*r][0],
            Expression::Sum(a, b) => self.expression(a).wrapping_add(self.expression(b)),
            Expression::Difference(a, b) => self.expression(a).wrapping_sub(self.expression(b)),
            Expression::Product(a, b) => self.expression(a).wrapping_mul(self.expression(b)),
        }
    }

    fn address(&self, operand: &Operand) -> u64 {
        match operand {
            Operand::Memory(e) | Operand::Area(e) | Operand::Value(e) => self.expression(e),
            Operand::Register(..) => 0,
        }
    }

    fn value(&self, operand: &Operand, world: &impl World) -> u64 {
        match operand {
            Operand::Register(r, mask) => self.registers[*r][0] & mask,
            Operand::Value(e) => self.expression(e),
            // Stands for a descriptor's address, whose value does not matter.
            Operand::Memory(Expression::Number(0)) => 0,
            Operand::Memory(e) => world.load(self.expression(e)),
            Operand::Area(e) => world.area(self.expression(e)),
        }
    }

    fn put(&mut self, to: &Operand, value: u64, world: &mut impl World) {
        match to {
            Operand::Register(r, mask) => self.registers[*r][0] = value & mask,
            Operand::Memory(e) => world.store(self.expression(e), value),
            Operand::Area(_) => self.armed = true,
            Operand::Value(_) => panic!("a number is written to"),
        }
    }

    /// Copies `words` words between memory and a register.
    fn copy(&mut self, words: usize, to: &Operand, from: &Operand, world: &mut impl World) {
        let addresses = |at: u64| (at..).step_by(8).take(words);
        match (to, from) {
            (Operand::Register(r, _), Operand::Memory(e)) => {
                for (word, at) in addresses(self.expression(e)).enumerate() {
                    self.registers[*r][word] = world.load(at);
                }
            }
            (Operand::Memory(e), Operand::Register(r, _)) => {
                for (word, at) in addresses(self.expression(e)).enumerate() {
                    world.store(at, self.registers[*r][word]);
                }
            }
            _ => panic!("words are moved from memory to memory"),
        }
    }
}
