//! The machine and the C library that an ELF file was built for. `elf` compares two of them.

use object::{Endianness, elf};
use std::fmt;

/// The machine that an ELF file was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// `e_machine`.
    pub(crate) number: elf::Machine,
    /// Whether it is of the 64-bit class.
    pub(crate) is_64: bool,
    /// Byte order.
    pub(crate) order: Endianness,
}

/// The C library that an ELF file was linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CLibrary {
    /// The GNU library.
    Glibc,
    /// musl.
    Musl,
}

impl CLibrary {
    /// The one of this loader or shared library, by its file name.
    pub fn of_file(name: &[u8]) -> Option<Self> {
        let is_musl = name.starts_with(b"ld-musl") || name.starts_with(b"libc.musl");
        match name {
            // What a program for musl needs where it was linked on another system.
            b"libc.so" => Some(Self::Musl),
            _ if is_musl => Some(Self::Musl),
            b"libc.so.6" => Some(Self::Glibc),
            _ if name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so") => Some(Self::Glibc),
            _ => None,
        }
    }
}

impl fmt::Display for CLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
        })
    }
}

/// What a file was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its machine.
    pub machine: Machine,
    /// Its C library. A library that names none is for musl: whatever is linked for glibc names it.
    pub c_library: CLibrary,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.number, self.is_64) {
            (elf::EM_X86_64, true) => "x86-64",
            (elf::EM_X86_64, false) => "x32",
            (elf::EM_386, _) => "32-bit x86",
            (elf::EM_AARCH64, true) => "aarch64",
            (elf::EM_ARM, _) => "32-bit arm",
            (elf::EM_RISCV, true) => "riscv64",
            (elf::EM_RISCV, false) => "riscv32",
            (elf::EM_PPC64, _) => "ppc64",
            (elf::EM_S390, true) => "s390x",
            (elf::EM_LOONGARCH, true) => "loongarch64",
            (elf::EM_MIPS, true) => "mips64",
            (elf::EM_MIPS, false) => "mips",
            (number, is_64) => {
                let bits = if is_64 { 64 } else { 32 };
                return write!(f, "ELF machine {} ({bits} bit)", number.0);
            }
        };
        f.write_str(name)?;
        match (self.number, self.order) {
            (elf::EM_AARCH64 | elf::EM_ARM, Endianness::Big) => f.write_str(" (big-endian)"),
            (elf::EM_PPC64 | elf::EM_MIPS, Endianness::Little) => f.write_str(" (little-endian)"),
            _ => Ok(()),
        }
    }
}
