//! What a program may ask of its allocator.

use core::ffi::c_void;
use core::fmt::Write;

use libc::{EINVAL, FILE, c_int};
use uslub_core::info::Totals;
use uslub_linux::{Text, sys};

use crate::{ALLOCATOR, start};

fn totals() -> Totals {
    if start::ready() {
        ALLOCATOR.totals()
    } else {
        Totals::default()
    }
}

/// Figures in bytes (the C structure of the same name).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Mallinfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// As [`Mallinfo2`], in the narrow numbers of old programs.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Mallinfo([c_int; 10]);

/// Figures: `arena` bytes of slabs, pages and free pages, `hblkhd` bytes of huge objects, `uordblks` live,
/// `fordblks` free, `keepcost` bytes that a trim can give back at once.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> Mallinfo2 {
    let t = totals();
    Mallinfo2 {
        arena: t.slabs + t.large + t.dirty,
        ordblks: 1,
        hblks: usize::from(t.huge > 0),
        hblkhd: t.huge,
        uordblks: t.live,
        fordblks: t.cached + t.free + t.dirty,
        keepcost: t.dirty,
        ..Mallinfo2::default()
    }
}

/// As [`mallinfo2`]; figures too large for the type are cut to its largest.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> Mallinfo {
    let m = mallinfo2();
    let narrow = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
    Mallinfo(
        [
            m.arena, m.ordblks, m.smblks, m.hblks, m.hblkhd, m.usmblks, m.fsmblks, m.uordblks,
            m.fordblks, m.keepcost,
        ]
        .map(narrow),
    )
}

/// Prints figures to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let t = totals();
    let mut text = Text::<1024>::new();
    let _ = writeln!(text, "uslub: {}", ALLOCATOR.platform.mode().name());
    for (name, value) in [
        ("live bytes", t.live),
        ("cached bytes", t.cached),
        ("free bytes in slabs", t.free),
        ("slab bytes", t.slabs),
        ("large bytes", t.large),
        ("huge bytes", t.huge),
        ("free resident bytes", t.dirty),
        ("table bytes", t.metadata),
        ("allocations", t.allocs as usize),
        ("frees", t.frees as usize),
    ] {
        let _ = writeln!(text, "{name:<20} = {value:>12}");
    }
    sys::write_all(libc::STDERR_FILENO, text.as_bytes());
}

/// Writes figures as XML to a stream; `options` must be 0. Returns 0, `EINVAL`, or -1 when
/// the stream fails.
///
/// # Safety
///
/// `stream` is open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut FILE) -> c_int {
    if options != 0 {
        return EINVAL;
    }
    let put = |text: &[u8]| {
        // SAFETY: the caller's stream; the bytes are ours.
        unsafe { libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), stream) == text.len() }
    };
    let mut good = put(b"<malloc version=\"uslub-1\">\n");
    if start::ready() {
        for cache in ALLOCATOR.caches() {
            let info = ALLOCATOR.info(cache);
            let mut line = Text::<256>::new();
            let _ = writeln!(
                line,
                "<cache name=\"{}\" size=\"{}\" active=\"{}\" total=\"{}\" cached=\"{}\" slabs=\"{}\"/>",
                cache.name(),
                cache.size,
                info.active_objs,
                info.num_objs,
                info.cached_objs,
                info.num_slabs,
            );
            good &= put(line.as_bytes());
        }
    }
    let formers = ALLOCATOR.nr_formers();
    if formers > 0 {
        // Children of forks that started over, up to this process.
        let mut line = Text::<64>::new();
        let _ = writeln!(line, "<former count=\"{formers}\"/>");
        good &= put(line.as_bytes());
    }
    let t = totals();
    let mut text = Text::<512>::new();
    let _ = write!(
        text,
        "<total type=\"live\" size=\"{}\"/>\n<total type=\"cached\" size=\"{}\"/>\n\
         <total type=\"free\" size=\"{}\"/>\n<total type=\"large\" size=\"{}\"/>\n\
         <total type=\"mmap\" size=\"{}\"/>\n<system type=\"current\" size=\"{}\"/>\n</malloc>\n",
        t.live,
        t.cached,
        t.free,
        t.large,
        t.huge,
        t.slabs + t.large + t.huge + t.dirty + t.metadata,
    );
    good &= put(text.as_bytes());
    if good { 0 } else { -1 }
}

/// Gives free memory back to the system, all of it (`_pad` is not needed). Returns 1 when there was any.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(start::ready() && ALLOCATOR.trim())
}

/// Sets a parameter of the GNU allocator: 1 where the wish holds here anyway (a limit on
/// arenas: there are none), 0 where it has no meaning here.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, _value: c_int) -> c_int {
    const M_ARENA_TEST: c_int = -7;
    const M_ARENA_MAX: c_int = -8;
    c_int::from(parameter == M_ARENA_TEST || parameter == M_ARENA_MAX)
}
