//! Finds the roots: ELF notes in the programs and libraries that are in memory lead to them.
//!
//! Program headers in memory lead to notes, so it works for stripped and static programs, without
//! the files, and in core files.

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use uslub_core::root::{FORMAT, MAGIC, NOTE_NAME, NOTE_TYPE};

use crate::error::{Error, Result};
use crate::layout::{Layout, ROW_BYTES};
use crate::memory::Memory;

/// Most bytes of program headers that are read.
const HEADERS: usize = 4096;
/// Most bytes of notes that are read from one segment.
const NOTES_MAX: u64 = 64 << 10;
/// Most rows of a layout table.
const ROWS_MAX: usize = 4096;
/// Bytes of a root before its rows.
const HEAD_BYTES: usize = 64;

/// The root of one allocator in a process.
#[derive(Clone, Debug)]
pub struct Root {
    /// Which face made it: `malloc`, `rust` or `c`.
    pub face: String,
    /// The version of uslub.
    pub version: String,
    /// The file that contains it.
    pub file: String,
    /// Address of the allocator.
    pub allocator: u64,
    /// Address of the two sentinel windows.
    pub sentinels: u64,
    /// Where its fields are.
    pub layout: Layout,
}

/// All roots in memory.
///
/// # Errors
///
/// If there is none, or one of another format.
pub fn find(memory: &dyn Memory) -> Result<Vec<Root>> {
    let (mut roots, mut files) = (Vec::new(), 0);
    let mut other = None;
    for map in memory.maps() {
        let (mut magic, start) = ([0; 4], map.range.start);
        // A page that was never touched is no header, and a read would make a page table for it.
        let touched = memory.touched(start..start.saturating_add(4));
        if map.offset != 0
            || touched.is_none_or(|touched| touched.start != start)
            || memory.read(start, &mut magic).is_err()
            || magic != elf::ELFMAG
        {
            continue;
        }
        files += 1;
        for address in notes(memory, map.range.start) {
            match at(memory, address) {
                Ok(root) => roots.push(Root {
                    file: printable(map.name.as_bytes()),
                    ..root
                }),
                Err(error) => other = Some(error),
            }
        }
    }
    match (roots.is_empty(), other) {
        (false, _) => Ok(roots),
        (true, Some(error)) => Err(error),
        (true, None) => Err(Error::NotOnUslub { files }),
    }
}

/// The root at an address, with no file. For allocators to which no note leads, too.
///
/// # Errors
///
/// If it cannot be read or is of another format.
pub fn at(memory: &dyn Memory, address: u64) -> Result<Root> {
    let mut root = vec![0; HEAD_BYTES];
    let read = |at: u64, to: &mut [u8]| {
        let bytes = to.len();
        let done = memory.read(at, to);
        done.map_err(|_| Error::Fault {
            at,
            bytes,
            what: "a root",
        })
    };
    read(address, &mut root)?;
    let rows = u32::from_le_bytes(root[12..16].try_into().unwrap_or_default()) as usize;
    root.resize(HEAD_BYTES + rows.min(ROWS_MAX) * ROW_BYTES, 0);
    read(address, &mut root)?;
    root_in(&root)
}

/// The program headers of the ELF file whose header is at `start`, and how far it was moved.
fn segments(memory: &dyn Memory, start: u64) -> Option<(Vec<elf::ProgramHeader64<LE>>, u64)> {
    let mut head = [0; HEADERS];
    memory.read(start, &mut head).ok()?;
    let header = elf::FileHeader64::<LE>::parse(&head[..]).ok()?;
    let segments = header.program_headers(LE, &head[..]).ok()?;
    // The first loaded segment is what lies at `start`.
    let loaded = segments.iter().find(|s| s.p_type(LE) == elf::PT_LOAD)?;
    let bias = start.checked_sub(loaded.p_vaddr(LE) & !0xfff)?;
    Some((segments.to_vec(), bias))
}

/// Where the notes of uslub lead to, in the ELF file whose header is at `start`.
fn notes(memory: &dyn Memory, start: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let Some((segments, bias)) = segments(memory, start) else {
        return found;
    };
    for segment in segments.iter().filter(|s| s.p_type(LE) == elf::PT_NOTE) {
        let bytes = segment.p_memsz(LE).min(NOTES_MAX);
        let align = segment.p_align(LE).clamp(4, 8) as usize;
        let mut all = vec![0; bytes as usize];
        let at = bias.wrapping_add(segment.p_vaddr(LE));
        if memory.read(at, &mut all).is_ok() {
            let mut distances = Vec::new();
            walk(&all, align, &mut distances);
            let from = |(place, distance)| at.wrapping_add(place).wrapping_add(distance);
            found.extend(distances.into_iter().map(from));
        }
    }
    found
}

/// Address and bytes of the data of the ELF file whose header is at `start`, with what is zero at
/// first.
pub(crate) fn data(memory: &dyn Memory, start: u64) -> Vec<(u64, u64)> {
    let Some((segments, bias)) = segments(memory, start) else {
        return Vec::new();
    };
    let is_data = |s: &&elf::ProgramHeader64<LE>| {
        s.p_type(LE) == elf::PT_LOAD && s.p_flags(LE) & elf::PF_W == elf::PF_W
    };
    let data = segments.iter().filter(is_data);
    data.map(|s| (bias.wrapping_add(s.p_vaddr(LE)), s.p_memsz(LE)))
        .collect()
}

/// Adds, for each note of uslub in the bytes of a note segment, where its description stands and
/// the distance in it.
fn walk(all: &[u8], align: usize, found: &mut Vec<(u64, u64)>) {
    let mut rest = all;
    let word = |bytes: &[u8], i: usize| {
        let part: [u8; 4] = bytes[i..i + 4].try_into().unwrap_or_default();
        u32::from_le_bytes(part) as usize
    };
    while rest.len() >= 12 {
        let (name, description, kind) = (word(rest, 0), word(rest, 4), word(rest, 8));
        let Some(begin) = name.checked_add(12).map(|n| n.next_multiple_of(align)) else {
            return;
        };
        let Some(end) = begin.checked_add(description) else {
            return;
        };
        let (Some(text), Some(bytes)) = (rest.get(12..12 + name), rest.get(begin..end)) else {
            return;
        };
        if kind == NOTE_TYPE as usize
            && text.starts_with(&NOTE_NAME)
            && let Ok(distance) = bytes.try_into().map(u64::from_le_bytes)
        {
            found.push(((all.len() - rest.len() + begin) as u64, distance));
        }
        rest = rest.get(end.next_multiple_of(align)..).unwrap_or(&[]);
    }
}

/// A text that ends with a zero byte, for people.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    printable(&bytes[..end])
}

/// Whether a character steers a terminal or cannot be seen: control characters, and those that turn
/// the direction of writing, separate lines or only format (Unicode's categories Cc, Cf, Zl, Zp).
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// A text of another process: what steers a terminal and broken UTF-8 are shown as `\x..`
/// or `\u{..}`.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if !steers(c) => out.push(c),
                '\0'..='\u{ff}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
                _ => out.extend(c.escape_unicode()),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// The root in these bytes, with no file.
fn root_in(bytes: &[u8]) -> Result<Root> {
    let (Some(root), true) = (bytes.get(..HEAD_BYTES), bytes.starts_with(&MAGIC)) else {
        return Err(Error::Damaged("a note of uslub without a root"));
    };
    let u32_at = |at: usize| u32::from_le_bytes(root[at..at + 4].try_into().unwrap_or_default());
    let u64_at = |at: usize| u64::from_le_bytes(root[at..at + 8].try_into().unwrap_or_default());
    let (format, rows) = (u32_at(8), u32_at(12) as usize);
    let (face, version) = (text(&root[16..24]), text(&root[24..48]));
    if format != FORMAT {
        return Err(Error::Format {
            version,
            format,
            ours: FORMAT,
        });
    }
    let table = bytes[HEAD_BYTES..].get(..rows.min(ROWS_MAX) * ROW_BYTES);
    let table = table.ok_or(Error::Damaged("the layout table is cut off"))?;
    Ok(Root {
        layout: Layout::new(table, version.clone()),
        face,
        version,
        file: String::new(),
        allocator: u64_at(48),
        sentinels: u64_at(56),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_others_are_passed_over_and_broken_ones_end_the_walk() {
        let mut bytes = Vec::new();
        let mut note = |name: &[u8], kind: u32, description: &[u8]| {
            bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&(description.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(name);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend_from_slice(description);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        };
        note(b"GNU\0", 3, b"abc");
        note(b"uslub\0", 2, &[1; 8]);
        note(b"uslub\0", 1, &[2, 0, 0, 0, 0, 0, 0, 0]);
        note(b"uslub\0", 1, b"short");
        note(b"uslub\0", 1, &[0xff; 8]);
        let mut found = Vec::new();
        walk(&bytes, 4, &mut found);
        let last = bytes.len() as u64 - 8;
        assert_eq!(found, [(68, 2), (last, u64::MAX)]);
        for cut in 0..bytes.len() {
            walk(&bytes[..cut], 4, &mut Vec::new());
        }
        walk(&[0xff; 64], 8, &mut Vec::new());
    }

    #[test]
    fn names_of_another_process_cannot_steer_a_terminal() {
        assert_eq!(printable(b"a\x1b[2J\xff\n"), "a\\x1b[2J\\xff\\x0a");
        assert_eq!(text(b"malloc\0\0"), "malloc");
        let turned = "a\u{202e}b\u{2067}\u{feff}\u{200b}\u{ad}\u{e0041}".as_bytes();
        let shown = r"a\u{202e}b\u{2067}\u{feff}\u{200b}\xad\u{e0041}";
        assert_eq!(printable(turned), shown);
        let letters = "kmalloc-8 größe 名前 ✓";
        assert_eq!(printable(letters.as_bytes()), letters);
    }
}
