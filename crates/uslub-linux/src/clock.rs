//! The time and the running thread's CPU, from the kernel's own library, the vDSO.
//!
//! The C library's `clock_gettime` and `sched_getcpu` call the same functions. Other libraries wrap
//! these names (libfaketime wraps every function that tells the time). A wrapper may allocate, and
//! may return a time that stands still or jumps. So the allocator looks the kernel's functions up
//! itself, in the vDSO's symbol table. Where the vDSO lacks a function, the allocator makes the
//! system call.
//!
//! [`probe`] runs once, before a second thread uses the platform. Then any thread may ask.

use core::ffi::CStr;
use core::mem::transmute;
use core::slice;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use uslub_rseq::initial;

use crate::sys::call;

/// The vDSO's function for the time. Arguments: clock, result. Returns 0 for success.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32;
/// The vDSO's function for the CPU. Arguments: CPU, node, unused. Returns 0 for success.
type Getcpu = unsafe extern "C" fn(*mut u32, *mut u32, usize) -> i32;

#[cfg(target_arch = "aarch64")]
const CLOCK_GETTIME: &CStr = c"__kernel_clock_gettime";
#[cfg(not(target_arch = "aarch64"))]
const CLOCK_GETTIME: &CStr = c"__vdso_clock_gettime";
/// aarch64 has no such function.
const GETCPU: &CStr = c"__vdso_getcpu";

static CLOCK_GETTIME_AT: AtomicUsize = AtomicUsize::new(0);
static GETCPU_AT: AtomicUsize = AtomicUsize::new(0);

/// Looks the functions up in the vDSO.
pub(crate) fn probe() {
    let image = initial::auxiliary(libc::AT_SYSINFO_EHDR as usize);
    if image == 0 {
        return;
    }
    // SAFETY: the kernel maps the whole vDSO there.
    let Some(library) = (unsafe { Library::at(image) }) else {
        return;
    };
    // Relaxed, here and below: the address is all there is to know; the functions never change.
    CLOCK_GETTIME_AT.store(library.find(CLOCK_GETTIME).unwrap_or(0), Relaxed);
    GETCPU_AT.store(library.find(GETCPU).unwrap_or(0), Relaxed);
}

/// Nanoseconds on `clock`, a system clock that never goes back. Not inlined: the vDSO's frame then
/// does not come on top of a caller's frame with these locals.
#[inline(never)]
pub(crate) fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Relaxed: as in `probe`.
    let address = CLOCK_GETTIME_AT.load(Relaxed);
    // SAFETY: a nonzero address is that function's. It and the system call only write the time.
    unsafe {
        let told =
            address != 0 && transmute::<usize, ClockGettime>(address)(clock, &raw mut time) == 0;
        if !told {
            let out = &raw mut time as usize;
            call(libc::SYS_clock_gettime, [clock as usize, out, 0, 0, 0, 0]);
        }
    }
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

/// The number of the CPU that this thread runs on; 0 if the kernel does not tell. Where the vDSO
/// has no function, `may_ask` allows the system call: a filter may forbid it.
#[inline(never)]
pub(crate) fn cpu(may_ask: bool) -> usize {
    let mut cpu = 0u32;
    // Relaxed: as in `probe`.
    let address = GETCPU_AT.load(Relaxed);
    // SAFETY: as in `nanoseconds`.
    unsafe {
        let out = &raw mut cpu;
        let told =
            address != 0 && transmute::<usize, Getcpu>(address)(out, core::ptr::null_mut(), 0) == 0;
        if !told && may_ask {
            call(libc::SYS_getcpu, [out as usize, 0, 0, 0, 0, 0]);
        }
    }
    cpu as usize
}

/// The tables of a mapped ELF library that a symbol lookup reads.
struct Library {
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
    extern crate std;

    use super::*;

    fn by_libc(clock: libc::clockid_t) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes the time only.
        assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn agrees() {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_COARSE] {
            let before = by_libc(clock);
            let now = nanoseconds(clock);
            assert!(before <= now && now <= by_libc(clock));
        }
    }

    #[test]
    fn the_kernels_functions_are_found_and_tell_what_the_c_library_tells() {
        agrees();
        probe();
        let image = initial::auxiliary(libc::AT_SYSINFO_EHDR as usize);
        // Emulators have no vDSO.
        if image != 0 {
            assert_ne!(CLOCK_GETTIME_AT.load(Relaxed), 0);
        }
        agrees();
    }

    #[test]
    fn a_function_that_is_not_there_is_not_found() {
        let image = initial::auxiliary(libc::AT_SYSINFO_EHDR as usize);
        if image == 0 {
            return;
        }
        // SAFETY: the kernel's library.
        let library = unsafe { Library::at(image) }.unwrap();
        assert!(library.symbols.len() > 1);
        assert_eq!(library.find(c"no_such_function"), None);
    }

    #[test]
    fn the_cpu_is_one_that_the_thread_may_run_on() {
        // SAFETY: all-zero is a valid set; the calls read and write it only.
        let allowed = unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
            move |cpu| libc::CPU_ISSET(cpu, &set)
        };
        assert!(allowed(cpu(true)));
        probe();
        assert!(allowed(cpu(true)));
    }
}
