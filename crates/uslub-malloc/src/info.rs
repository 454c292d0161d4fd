//! Queries of the program: `mallinfo`, `malloc_stats`, `malloc_info`; also `malloc_trim` and
//! `mallopt`.
//!
//! Any thread may call. The figures are exact while no other thread uses the allocator.

use core::ffi::c_void;
use core::fmt::Write;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use libc::{EINVAL, FILE, c_int};
use uslub_core::cache::KmemCache;
use uslub_core::cache::info::Totals;
use uslub_core::stats::StatItem;
use uslub_linux::{Linux, Text};

use crate::{ALLOCATOR, start};

fn totals() -> Totals {
    if start::ready() {
        ALLOCATOR.totals()
    } else {
        Totals::default()
    }
}

/// Figures in bytes: the C structure of this name.
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

/// As [`Mallinfo2`], in the narrower numbers of old programs.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Mallinfo([c_int; 10]);

/// Figures in bytes: `arena` for slabs, large objects and free pages, `hblkhd` for huge objects,
/// `uordblks` live, `fordblks` free, `keepcost` for what a trim can give back at once.
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

/// As [`mallinfo2`]; a figure that does not fit becomes the largest number of the type.
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

unsafe extern "C" {
    /// The standard error stream, which the program may have replaced.
    static mut stderr: *mut FILE;
}

/// Writes a whole text to a stream; returns whether that succeeded.
///
/// # Safety
///
/// `stream` is open for writing.
unsafe fn put(text: &[u8], stream: *mut FILE) -> bool {
    // SAFETY: the caller's stream; the bytes are ours.
    unsafe { libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), stream) == text.len() }
}

/// Prints figures to the standard error stream, in order with the program's own output there.
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
    // SAFETY: the program's stream.
    unsafe { put(text.as_bytes(), stderr) };
}

/// Writes figures as XML to a stream. `options` must be 0. Returns 0, `EINVAL`, or -1 if the stream
/// fails.
///
/// # Safety
///
/// `stream` is open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut FILE) -> c_int {
    if options != 0 {
        return EINVAL;
    }
    // SAFETY: the caller's stream.
    let put = |text: &[u8]| unsafe { put(text, stream) };
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

/// Bytes below which a trim is not worth its cost: a barrier on all CPUs, and calls for each range
/// of pages.
const LITTLE: usize = 64 << 10;

/// [`freed_bytes`] when the last trim began.
static FREED_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Bytes of small objects freed since the start of the process.
fn freed_bytes() -> u64 {
    let bytes = |cache: &KmemCache<Linux>| {
        let frees = [StatItem::FreeFastpath, StatItem::FreeSlowpath];
        let count = frees.map(|item| ALLOCATOR.stat(cache, item));
        u64::wrapping_mul(count.iter().sum(), u64::from(cache.size))
    };
    ALLOCATOR.caches().map(bytes).fold(0, u64::wrapping_add)
}

/// Gives all free memory back to the system; returns 1 if there was any, otherwise 0.
///
/// Returns 0 at once if the bytes freed since the last trim plus the empty bytes are at most `pad`
/// or [`LITTLE`], whichever is more: some programs call it after each piece of work. These bytes
/// count again the next time.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    if !start::ready() {
        return 0;
    }
    let freed = freed_bytes();
    // Relaxed, here and below: statistics.
    let since = freed.wrapping_sub(FREED_BEFORE.load(Relaxed)) as usize;
    let empty = ALLOCATOR.zone.dirty_bytes() + ALLOCATOR.mapped.kept_bytes();
    if since.saturating_add(empty) <= pad.max(LITTLE) {
        return 0;
    }
    // Relaxed: as above.
    FREED_BEFORE.store(freed, Relaxed);
    c_int::from(ALLOCATOR.platform.on_request(|| ALLOCATOR.trim()))
}

/// Sets a parameter of the GNU allocator. No parameter has a meaning here: all are accepted and
/// ignored. As with the GNU library the result is 1, for unknown parameters too, and 0 only for an
/// `M_MXFAST` out of range.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    const M_MXFAST: c_int = 1;
    /// 80 bytes on 32 bits, scaled by the size of a pointer.
    const LARGEST: c_int = 160;
    c_int::from(parameter != M_MXFAST || (0..=LARGEST).contains(&value))
}
