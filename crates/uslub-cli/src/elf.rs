//! Decides whether a preloaded library can reach an ELF file. `program` calls [`check`].
//!
//! A preloaded library reaches a program for the library's machine whose loader (`PT_INTERP`) is of
//! the library's C library. The loader does the preloading.

use crate::machine::{CLibrary, Machine, Target};
use crate::sanitizer::Sanitizer;
use crate::unsuitable::Reason;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef, StringTable};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The first bytes of every ELF file.
pub const MAGIC: &[u8] = b"\x7fELF";

/// The relevant facts in the headers of an ELF file.
struct Headers {
    machine: Machine,
    kind: elf::FileType,
    entry: u64,
    segments: usize,
    interpreter: Option<PathBuf>,
    c_library: Option<CLibrary>,
    sanitizer: Option<Sanitizer>,
}

impl Headers {
    /// Reads only the headers of `file` and the interpreter's name.
    fn read(file: &File) -> Result<Headers, object::Error> {
        let cache = ReadCache::new(file);
        match FileKind::parse(&cache)? {
            FileKind::Elf32 => Self::parse::<elf::FileHeader32<Endianness>>(&cache),
            _ => Self::parse::<elf::FileHeader64<Endianness>>(&cache),
        }
    }

    fn parse<'data, E>(data: impl ReadRef<'data>) -> Result<Headers, object::Error>
    where
        E: FileHeader<Endian = Endianness>,
    {
        let header = E::parse(data)?;
        let order = header.endian()?;
        let segments = header.program_headers(order, data)?;
        let mut interpreter = None;
        for segment in segments {
            if let Some(name) = segment.interpreter(order, data)? {
                interpreter = Some(PathBuf::from(OsStr::from_bytes(name)));
                break;
            }
        }
        Ok(Headers {
            machine: Machine {
                number: header.e_machine(order),
                is_64: header.is_type_64(),
                order,
            },
            kind: header.e_type(order),
            entry: header.e_entry(order).into(),
            segments: segments.len(),
            sanitizer: sanitizer(header, order, data),
            c_library: (interpreter.as_deref())
                .and_then(c_library_of)
                .or_else(|| needed_c_library(header, order, data)),
            interpreter,
        })
    }
}

/// The sanitizer that a program was built with, by its dynamic symbols. A file whose symbols cannot
/// be read has none.
fn sanitizer<'data, E>(
    header: &E,
    order: Endianness,
    data: impl ReadRef<'data>,
) -> Option<Sanitizer>
where
    E: FileHeader<Endian = Endianness>,
{
    let sections = header.sections(order, data).ok()?;
    let symbols = sections.symbols(order, data, elf::SHT_DYNSYM).ok()?;
    let mut names = symbols
        .iter()
        .filter_map(|s| symbols.symbol_name(order, s).ok());
    names.find_map(Sanitizer::of_symbol)
}

/// The C library among those that a file needs. A file whose list cannot be read needs none.
fn needed_c_library<'data, E>(
    header: &E,
    order: Endianness,
    data: impl ReadRef<'data>,
) -> Option<CLibrary>
where
    E: FileHeader<Endian = Endianness>,
{
    let names = needed(header, order, data).unwrap_or_default();
    names.into_iter().find_map(CLibrary::of_file)
}

/// The names of the libraries that a file needs, by its segments: the library that a command
/// carries has no sections. `None` if the list cannot be read.
fn needed<'data, E>(
    header: &E,
    order: Endianness,
    data: impl ReadRef<'data>,
) -> Option<Vec<&'data [u8]>>
where
    E: FileHeader<Endian = Endianness>,
{
    let segments = header.program_headers(order, data).ok()?;
    let entries = segments
        .iter()
        .find_map(|segment| segment.dynamic(order, data).ok()?)?;
    let value = |tag| {
        let entry = entries.iter().find(|entry| entry.tag(order) == tag)?;
        Some(entry.val(order))
    };
    let (address, bytes) = (value(elf::DT_STRTAB)?, value(elf::DT_STRSZ)?);
    let place = segments.iter().find_map(|segment| {
        let distance = address.checked_sub(segment.p_vaddr(order).into())?;
        let is_there =
            segment.p_type(order) == elf::PT_LOAD && distance < segment.p_filesz(order).into();
        segment
            .p_offset(order)
            .into()
            .checked_add(distance)
            .filter(|_| is_there)
    })?;
    let strings = StringTable::new(data, place, place.checked_add(bytes)?);
    let needed = entries
        .iter()
        .filter(|entry| entry.tag(order) == elf::DT_NEEDED);
    let names = needed.filter_map(|entry| entry.string(order, strings).ok());
    Some(names.collect())
}

/// Whether a program has an allocator of uslub in it, of the Rust or C interface: a note of its
/// own, or uslub's library for C among those that it needs. False if the file cannot be read.
pub fn has_allocator(file: &Path) -> bool {
    let look = |file: File| -> Result<bool, object::Error> {
        let data = &ReadCache::new(file);
        let header = elf::FileHeader64::<Endianness>::parse(data)?;
        let order = header.endian()?;
        for segment in header.program_headers(order, data)? {
            let Some(mut notes) = segment.notes(order, data)? else {
                continue;
            };
            while let Some(note) = notes.next()? {
                if note.name() == b"uslub" {
                    return Ok(true);
                }
            }
        }
        let needed = needed(header, order, data).unwrap_or_default();
        Ok(needed.iter().any(|name| name.starts_with(b"libuslub.so")))
    };
    File::open(file).is_ok_and(|file| look(file).unwrap_or(false))
}

fn c_library_of(loader: &Path) -> Option<CLibrary> {
    CLibrary::of_file(loader.file_name()?.as_bytes())
}

/// What `file` was built for.
///
/// # Errors
///
/// If `file` is not an ELF file, or a damaged ELF file.
pub fn target(file: &File) -> Result<Target, Reason> {
    let headers = Headers::read(file).map_err(damaged)?;
    Ok(Target {
        machine: headers.machine,
        c_library: headers.c_library.unwrap_or(CLibrary::Musl),
    })
}

/// Checks that a library for `library` can be preloaded into the program `file` at `path`.
///
/// # Errors
///
/// The reason why the library cannot be preloaded.
pub fn check(file: &File, path: &Path, library: Target) -> Result<(), Reason> {
    let headers = Headers::read(file).map_err(damaged)?;
    match headers.kind {
        elf::ET_EXEC | elf::ET_DYN => {}
        elf::ET_REL => return Err(Reason::OtherElf("an object file")),
        elf::ET_CORE => return Err(Reason::OtherElf("a core dump")),
        _ => return Err(Reason::Damaged("unknown type".to_owned())),
    }
    if headers.machine != library.machine {
        return Err(Reason::WrongMachine {
            program: headers.machine,
            library: library.machine,
        });
    }
    if headers.segments == 0 {
        return Err(Reason::Damaged("it has no segments".to_owned()));
    }
    if let Some(sanitizer) = headers.sanitizer {
        return Err(Reason::Sanitized(sanitizer));
    }
    match headers.interpreter {
        Some(loader) => check_loader(loader, library.c_library),
        None if is_loader(path) => Ok(()),
        None if headers.entry == 0 => Err(Reason::OtherElf("a shared library")),
        None => Err(Reason::Static),
    }
}

fn check_loader(loader: PathBuf, library: CLibrary) -> Result<(), Reason> {
    if let Some(program) = c_library_of(&loader).filter(|program| *program != library) {
        return Err(Reason::OtherCLibrary {
            loader,
            program,
            library,
        });
    }
    if !loader.exists() {
        return Err(Reason::NoLoader(loader));
    }
    Ok(())
}

/// Whether `path` is a loader. It names no loader of its own, but preloads into the program that is
/// its argument.
fn is_loader(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_default();
    c_library_of(&real).is_some_and(|_| !real.ends_with("libc.so.6"))
}

fn damaged(error: object::Error) -> Reason {
    Reason::Damaged(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Offset of `e_machine` in the header.
    const E_MACHINE: usize = 18;

    fn own_bytes() -> Vec<u8> {
        // The loader's name lies within the first pages, so the start of the file is enough.
        let mut bytes = std::fs::read("/proc/self/exe").unwrap();
        bytes.truncate(64 << 10);
        bytes
    }

    fn own_target() -> Target {
        target(&File::open("/proc/self/exe").unwrap()).unwrap()
    }

    fn check_bytes(bytes: &[u8]) -> Result<(), Reason> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        check(&file, Path::new("x"), own_target())
    }

    #[test]
    fn a_program_of_this_machine_is_accepted() {
        check_bytes(&own_bytes()).unwrap();
    }

    #[test]
    fn another_machine_is_named() {
        let mut bytes = own_bytes();
        let foreign = if own_target().machine.number == elf::EM_S390 {
            elf::EM_X86_64
        } else {
            elf::EM_S390
        };
        bytes[E_MACHINE..][..2].copy_from_slice(&foreign.0.to_ne_bytes());
        let reason = check_bytes(&bytes).unwrap_err();
        let Reason::WrongMachine { program, library } = reason else {
            panic!("{reason}");
        };
        assert_ne!(program.to_string(), library.to_string());
    }

    #[test]
    fn machines_have_names() {
        let name = |number: elf::Machine, is_64, order| {
            Machine {
                number,
                is_64,
                order,
            }
            .to_string()
        };
        assert_eq!(name(elf::EM_X86_64, true, Endianness::Little), "x86-64");
        assert_eq!(name(elf::EM_386, false, Endianness::Little), "32-bit x86");
        assert_eq!(
            name(elf::EM_AARCH64, true, Endianness::Big),
            "aarch64 (big-endian)"
        );
        assert_eq!(
            name(elf::Machine(4711), false, Endianness::Big),
            "ELF machine 4711 (32 bit)"
        );
    }

    #[test]
    fn no_cut_and_no_changed_byte_of_the_headers_makes_the_check_panic() {
        let bytes = own_bytes();
        for length in 4..200 {
            let _ = check_bytes(&bytes[..length]);
        }
        for position in 4..1024 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[position] = value;
                let _ = check_bytes(&changed);
            }
        }
        assert!(matches!(check_bytes(&bytes[..32]), Err(Reason::Damaged(_))));
    }

    #[test]
    fn a_foreign_or_absent_loader_is_refused() {
        let loaders = [
            ("/no/ld-musl-x86_64.so.1", CLibrary::Musl),
            ("/no/ld-linux.so.9", CLibrary::Glibc),
        ];
        for (loader, program) in loaders {
            for library in [CLibrary::Glibc, CLibrary::Musl] {
                let found = check_loader(PathBuf::from(loader), library);
                match program == library {
                    true => assert!(matches!(found, Err(Reason::NoLoader(_))), "{found:?}"),
                    false => assert!(matches!(found, Err(Reason::OtherCLibrary { .. }))),
                }
            }
        }
    }

    /// As the library that a command carries: what the loader maps, and no sections.
    #[test]
    fn a_library_without_sections_tells_its_c_library() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .find(|path| path.contains("/libgcc_s.so"));
        let Some(library) = library else {
            return;
        };
        let mut bytes = std::fs::read(library).unwrap();
        // Offset of the table of sections, its entries, the names' index.
        bytes[40..48].fill(0);
        bytes[58..64].fill(0);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        assert_eq!(target(&file).unwrap(), own_target());
    }

    #[test]
    fn a_file_tells_its_c_library() {
        let own = match cfg!(target_env = "musl") {
            true => CLibrary::Musl,
            false => CLibrary::Glibc,
        };
        assert_eq!(own_target().c_library, own);
        let names: [(&[u8], _); 6] = [
            (b"ld-musl-aarch64.so.1", Some(CLibrary::Musl)),
            (b"libc.musl-x86_64.so.1", Some(CLibrary::Musl)),
            (b"libc.so", Some(CLibrary::Musl)),
            (b"libc.so.6", Some(CLibrary::Glibc)),
            (b"ld-linux-x86-64.so.2", Some(CLibrary::Glibc)),
            (b"libm.so.6", None),
        ];
        for (name, library) in names {
            assert_eq!(CLibrary::of_file(name), library);
        }
    }
}
