//! The oldest C library that the installed libraries run with, by the versions of their symbols.

use std::collections::BTreeSet;
use std::fs;

use object::elf::FileHeader64;
use object::read::elf::{ElfFile, FileHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSymbol};

use crate::prefix;

/// The newest version of glibc's symbols that the preload library may need, wherever it is built.
const OLDEST: (u32, u32) = (2, 17);

/// The same of the C library. It contains the Rust standard library, whose symbols have the newest
/// versions of the system where it is built.
const OLDEST_WITH_STD: (u32, u32) = (2, 34);

/// The versions `GLIBC_x.y` that a library needs.
fn needed(bytes: &[u8]) -> BTreeSet<(u32, u32)> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).expect("a 64-bit ELF file");
    let sections = header.sections(LittleEndian, bytes).expect("sections");
    let mut versions = BTreeSet::new();
    for section in sections.iter() {
        let Ok(Some((mut records, link))) = section.gnu_verneed(LittleEndian, bytes) else {
            continue;
        };
        let strings = sections.strings(LittleEndian, bytes, link).expect("names");
        while let Some((_, mut names)) = records.next().expect("a record") {
            while let Some(name) = names.next().expect("a version") {
                let name = name.name(LittleEndian, strings).expect("a name");
                let name = String::from_utf8_lossy(name).into_owned();
                let Some(number) = name.strip_prefix("GLIBC_") else {
                    continue;
                };
                let mut parts = number
                    .split('.')
                    .map(|part| part.parse().expect("a number"));
                versions.insert((parts.next().unwrap_or(0), parts.next().unwrap_or(0)));
            }
        }
    }
    versions
}

#[test]
fn the_libraries_need_no_newer_glibc_than_promised() {
    let Some(prefix) = prefix() else { return };
    for (name, oldest) in [
        ("lib/uslub/libuslub_malloc.so", OLDEST),
        ("lib/libuslub.so", OLDEST_WITH_STD),
    ] {
        let bytes = fs::read(prefix.join(name)).expect("a library");
        let versions = needed(&bytes);
        assert!(!versions.is_empty(), "{name} names no version");
        let newest = versions.last().copied();
        assert!(newest <= Some(oldest), "{name} needs glibc {newest:?}");
    }
}

#[test]
fn versions_are_read_from_the_file() {
    // This program uses std, which has used symbols of 2.2.5 since its first version.
    let bytes = fs::read("/proc/self/exe").expect("this program");
    if cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        assert!(needed(&bytes).contains(&(2, 2)));
    }
    let file = ElfFile::<FileHeader64<LittleEndian>>::parse(&*bytes).expect("a file");
    assert!(file.dynamic_symbols().any(|symbol| symbol.is_undefined()));
}
