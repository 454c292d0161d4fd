//! One step up a stack by the tables that compilers write: `.eh_frame_hdr` and `.eh_frame`.
//!
//! A [`Rule`] says how the registers of a caller follow from those of the called function at one
//! address of code. [`Rules`] keeps rules by address, so most steps are a few loads. The tables are
//! read in place, where the loader mapped them: nothing is copied, nothing is allocated, and no
//! function of the C library is called.
//!
//! | the table says | the rule |
//! |---|---|
//! | frame = stack or frame pointer + offset | as the table says |
//! | frame by an expression (signal frames) | none: the caller searches the stack |
//! | no return address (the first function of a thread) | the end |
//!
//! Only the thread that holds the table of `callers` calls these functions.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow,
};

use crate::arch::{FRAME_POINTER, RETURN, STACK_POINTER};
use crate::peek::{copy, is_readable};
use crate::registers::Registers;

/// Rules that are kept.
const RULES: usize = 4096;
/// Program headers of a file that are looked at; most files have 10 to 13.
const HEADERS: usize = 24;
/// Largest distance of a frame from the stack pointer, in bytes.
const FRAME_MAX_BYTES: usize = 1 << 20;

/// How to come from a function's registers to its caller's. Offsets are from the frame's address.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pc: usize,
    kind: Kind,
    frame: i32,
    back: i32,
    saved_fp: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No rule: the tables do not cover the address, or say it by an expression.
    Unknown,
    /// The first function of a thread.
    End,
    FromStackPointer,
    FromFramePointer,
}

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Caller(Registers),
    End,
    Unknown,
}

impl Rule {
    const NONE: Self = Self {
        pc: 0,
        kind: Kind::Unknown,
        frame: 0,
        back: 0,
        saved_fp: None,
    };

    /// Applies the rule; `load` reads a word of the stack, if it can.
    pub(crate) fn apply(
        &self,
        from: Registers,
        mut load: impl FnMut(usize) -> Option<usize>,
    ) -> Step {
        let base = match self.kind {
            Kind::Unknown => return Step::Unknown,
            Kind::End => return Step::End,
            Kind::FromStackPointer => from.sp,
            Kind::FromFramePointer => from.fp,
        };
        let at = |base: usize, offset: i32| base.wrapping_add_signed(offset as isize);
        let frame = at(base, self.frame);
        if frame <= from.sp || frame - from.sp > FRAME_MAX_BYTES {
            return Step::Unknown;
        }
        let fp = self.saved_fp.map_or(Some(from.fp), |o| load(at(frame, o)));
        match (load(at(frame, self.back)), fp) {
            (Some(0), _) => Step::End,
            (Some(pc), Some(fp)) => Step::Caller(Registers { pc, sp: frame, fp }),
            _ => Step::Unknown,
        }
    }
}

/// Room for what gimli keeps while it reads: the rules of a signal frame have 17 registers.
struct Small;

impl UnwindContextStorage<usize> for Small {
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

/// Where the tables of a file's image lie in memory.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    index: (usize, usize),
    /// Where the file's first loaded part ends that holds the tables.
    end: usize,
}

impl Tables {
    /// The tables of an image that begins with its ELF header.
    pub(crate) fn of(image: usize) -> Option<Self> {
        const LOAD: u32 = 1;
        const INDEX: u32 = 0x6474_e550;
        let mut header = [0u8; 64];
        if !copy(image, &mut header) || header[..5] != *b"\x7fELF\x02" {
            return None;
        }
        let word = |bytes: &[u8], at: usize| {
            let eight = bytes.get(at..at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(eight)).ok()
        };
        let first = word(&header, 32)?;
        let n = usize::from(u16::from_le_bytes([header[56], header[57]])).min(HEADERS);
        let (mut loads, mut index) = ([(0, 0, 0); HEADERS], None);
        for (at, load) in loads.iter_mut().enumerate().take(n) {
            let mut bytes = [0u8; 56];
            if !copy(image.wrapping_add(first + at * 56), &mut bytes) {
                return None;
            }
            let kind = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let (offset, address) = (word(&bytes, 8)?, word(&bytes, 16)?);
            match kind {
                LOAD => *load = (offset, address, word(&bytes, 32)?),
                INDEX => index = Some((address, word(&bytes, 40)?)),
                _ => {}
            }
        }
        let (address, bytes) = index?;
        let loads = &loads[..n];
        // The header is at offset 0 of the file, so its part's address is the image's.
        let (_, start, _) = *loads
            .iter()
            .find(|(offset, _, bytes)| *offset == 0 && *bytes > 0)?;
        let shift = image.wrapping_sub(start);
        let inside = |part: &&(usize, usize, usize)| (part.1..part.1 + part.2).contains(&address);
        let (_, start, length) = *loads.iter().find(inside)?;
        Some(Self {
            index: (address.wrapping_add(shift), bytes),
            end: (start + length).wrapping_add(shift),
        })
    }

    /// Computes the rule for an address of code in the image.
    fn rule(&self, pc: usize, context: &mut UnwindContext<usize, Small>) -> Option<Rule> {
        let (index, bytes) = self.index;
        if !is_readable(index) || !is_readable(self.end.checked_sub(8)?) {
            return None;
        }
        // SAFETY: a frame of this code is on the thread's stack, so its file stays mapped; the
        // first and the last bytes can be read.
        let bytes = unsafe { core::slice::from_raw_parts(index as *const u8, bytes) };
        let bases = BaseAddresses::default().set_eh_frame_hdr(index as u64);
        let header = EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok()?;
        let frames = usize::try_from(header.eh_frame_ptr().direct().ok()?).ok()?;
        let length = self.end.checked_sub(frames)?;
        if !is_readable(frames) {
            return None;
        }
        // SAFETY: as above, to the end of the same part of the file.
        let bytes = unsafe { core::slice::from_raw_parts(frames as *const u8, length) };
        let frames_section = EhFrame::new(bytes, LittleEndian);
        let bases = bases.set_eh_frame(frames as u64);
        let row = header
            .table()?
            .unwind_info_for_address(
                &frames_section,
                &bases,
                context,
                pc as u64,
                UnwindSection::cie_from_offset,
            )
            .ok()?;
        rule_of(row)
    }
}

/// The rule that a row of the table means.
fn rule_of(row: &UnwindTableRow<usize, Small>) -> Option<Rule> {
    let (kind, frame) = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } if *register == STACK_POINTER => {
            (Kind::FromStackPointer, offset)
        }
        CfaRule::RegisterAndOffset { register, offset } if *register == FRAME_POINTER => {
            (Kind::FromFramePointer, offset)
        }
        _ => return None,
    };
    let saved_fp = match row.register(FRAME_POINTER) {
        Some(RegisterRule::Offset(offset)) => Some(i32::try_from(offset).ok()?),
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => None,
        Some(_) => return None,
    };
    let (kind, back) = match row.register(RETURN) {
        Some(RegisterRule::Offset(offset)) => (kind, i32::try_from(offset).ok()?),
        Some(RegisterRule::Undefined) => (Kind::End, 0),
        _ => return None,
    };
    Some(Rule {
        pc: 0,
        kind,
        frame: i32::try_from(*frame).ok()?,
        back,
        saved_fp,
    })
}

/// The rules that are known, and what computing one needs.
pub(crate) struct Rules {
    known: [Rule; RULES],
    context: Option<UnwindContext<usize, Small>>,
}

impl Rules {
    /// Writes empty rules, piece by piece: the stack may be short.
    ///
    /// # Safety
    ///
    /// `at` must be valid for writes.
    pub(crate) unsafe fn write_to(at: *mut Self) {
        // SAFETY: the caller's.
        unsafe {
            for i in 0..RULES {
                (&raw mut (*at).known[i]).write(Rule::NONE);
            }
            (&raw mut (*at).context).write(None);
        }
    }

    /// Forgets all: code may have moved.
    pub(crate) fn clear(&mut self) {
        self.known.fill(Rule::NONE);
    }

    /// The rule for an address, if it is known.
    #[inline]
    pub(crate) fn known(&self, pc: usize) -> Option<Rule> {
        let rule = self.known[place_of(pc)];
        (rule.pc == pc).then_some(rule)
    }

    /// Computes the rule for an address of code, by the tables of its image.
    pub(crate) fn learn(&mut self, pc: usize, tables: Option<Tables>) -> Rule {
        let context = self.context.get_or_insert_with(UnwindContext::new_in);
        let rule = tables.and_then(|tables| tables.rule(pc, context));
        let rule = Rule {
            pc,
            ..rule.unwrap_or(Rule::NONE)
        };
        self.known[place_of(pc)] = rule;
        rule
    }
}

/// The place of an address's rule: by its product with the golden ratio.
fn place_of(pc: usize) -> usize {
    pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - RULES.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_leads_up_and_never_down() {
        let from = Registers {
            pc: 1,
            sp: 0x1000,
            fp: 0x2000,
        };
        let rule = Rule {
            pc: 1,
            kind: Kind::FromStackPointer,
            frame: 32,
            back: -8,
            saved_fp: Some(-16),
        };
        let words = |at: usize| Some(at + 1);
        let caller = Registers {
            pc: 0x1019,
            sp: 0x1020,
            fp: 0x1011,
        };
        assert_eq!(rule.apply(from, words), Step::Caller(caller));
        assert_eq!(rule.apply(from, |_| None), Step::Unknown);
        assert_eq!(rule.apply(from, |_| Some(0)), Step::End);
        let down = Rule { frame: 0, ..rule };
        assert_eq!(down.apply(from, words), Step::Unknown);
        let far = Rule {
            kind: Kind::FromFramePointer,
            frame: i32::MAX,
            ..rule
        };
        assert_eq!(far.apply(from, words), Step::Unknown);
        assert_eq!(Rule::NONE.apply(from, words), Step::Unknown);
    }

    #[test]
    fn what_is_no_image_has_no_tables() {
        let bytes = [0u8; 64];
        assert!(Tables::of(bytes.as_ptr() as usize).is_none());
        assert!(Tables::of(8).is_none());
    }
}
