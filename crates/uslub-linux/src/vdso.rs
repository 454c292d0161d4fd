//! Functions of the kernel's own library, the vDSO, by its symbol table.
//!
//! Any thread may call, at any time: nothing is kept.

use core::ffi::CStr;
use core::slice;

use uslub_rseq::initial;

/// The mapped address of a function; `None` if the kernel has no vDSO, or none with the function.
pub(crate) fn find(name: &CStr) -> Option<usize> {
    library()?.find(name)
}

/// The vDSO; `None` if the kernel maps none.
pub(crate) fn library() -> Option<Library> {
    let image = initial::auxiliary(libc::AT_SYSINFO_EHDR as usize);
    if image == 0 {
        return None;
    }
    // SAFETY: the kernel maps the whole vDSO there.
    unsafe { Library::at(image) }
}

/// The tables of a mapped ELF library that a symbol lookup reads.
pub(crate) struct Library {
    /// Added to an address in the file, this gives the mapped address.
    bias: usize,
    symbols: &'static [libc::Elf64_Sym],
    strings: *const u8,
}

/// Tags of entries in the dynamic section.
mod tag {
    pub(super) const NULL: u64 = 0;
    pub(super) const HASH: u64 = 4;
    pub(super) const STRTAB: u64 = 5;
    pub(super) const SYMTAB: u64 = 6;
    pub(super) const GNU_HASH: u64 = 0x6fff_fef5;
}

impl Library {
    /// The library whose first byte is at `image`; `None` if it lacks a table.
    ///
    /// # Safety
    ///
    /// A whole ELF library is mapped at `image`, for the life of the process.
    unsafe fn at(image: usize) -> Option<Self> {
        // SAFETY: by the caller's promise all headers and tables are there, aligned.
        unsafe {
            let header = &*(image as *const libc::Elf64_Ehdr);
            let segments = slice::from_raw_parts(
                (image + header.e_phoff as usize) as *const libc::Elf64_Phdr,
                header.e_phnum.into(),
            );
            let first = segments.iter().find(|s| s.p_type == libc::PT_LOAD)?;
            let bias = (image + first.p_offset as usize).wrapping_sub(first.p_vaddr as usize);
            let dynamic = segments.iter().find(|s| s.p_type == libc::PT_DYNAMIC)?;
            let mut entry = bias.wrapping_add(dynamic.p_vaddr as usize) as *const [u64; 2];
            let (mut symbols, mut strings, mut hash, mut gnu_hash) = (0, 0, 0, 0);
            while (*entry)[0] != tag::NULL {
                let place = bias.wrapping_add((*entry)[1] as usize);
                match (*entry)[0] {
                    tag::SYMTAB => symbols = place,
                    tag::STRTAB => strings = place,
                    tag::HASH => hash = place,
                    tag::GNU_HASH => gnu_hash = place,
                    _ => {}
                }
                entry = entry.add(1);
            }
            let count = match (hash, gnu_hash) {
                (0, 0) => return None,
                // The table has as many chain entries as the library has symbols.
                (table, 0) => *(table as *const u32).add(1) as usize,
                (_, table) => count_by_gnu_hash(table as *const u32),
            };
            (symbols != 0 && strings != 0).then(|| Self {
                bias,
                symbols: slice::from_raw_parts(symbols as *const libc::Elf64_Sym, count),
                strings: strings as *const u8,
            })
        }
    }

    /// The mapped address of a function.
    fn find(&self, name: &CStr) -> Option<usize> {
        let symbol = self.symbols.iter().find(|symbol| {
            // SAFETY: `st_name` is the offset of a C string in the string table.
            let its = unsafe { CStr::from_ptr(self.strings.add(symbol.st_name as usize).cast()) };
            symbol.st_value != 0 && its == name
        })?;
        Some(self.bias.wrapping_add(symbol.st_value as usize))
    }
}

/// Number of symbols of a library with a GNU hash table only: the end of the last chain.
///
/// # Safety
///
/// A GNU hash table is at `table`.
unsafe fn count_by_gnu_hash(table: *const u32) -> usize {
    // SAFETY: by the caller's promise. Layout: four numbers, Bloom filter, buckets, chains.
    unsafe {
        let (buckets, first, filter) = (*table as usize, *table.add(1), *table.add(2) as usize);
        let bucket = table.add(4 + filter * 2);
        let chains = bucket.add(buckets);
        let last = slice::from_raw_parts(bucket, buckets).iter().max();
        let Some(&last) = last.filter(|&&last| last >= first) else {
            return first as usize;
        };
        let mut symbol = last;
        // Bit 0 marks the last entry of a chain.
        while *chains.add((symbol - first) as usize) & 1 == 0 {
            symbol += 1;
        }
        symbol as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_not_there_is_not_found() {
        let Some(library) = library() else {
            return;
        };
        assert!(library.symbols.len() > 1);
        assert_eq!(library.find(c"no_such_function"), None);
    }
}
