//! What the process says when it ends: one file of JSON lines, in the folder that
//! the environment names. Written with system calls and memory on the stack only.

use core::fmt::Write;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use uslub_core::stats::StatItem;
use uslub_linux::{Linux, Text, sys};
use uslub_report::{
    CacheRow, FOLLOW_VARIABLE, HELPER_VARIABLE, OPTIONS_VARIABLE, Process, REPORT_DIR_VARIABLE,
    VERSION,
};

use crate::{ALLOCATOR, witness};

type Line = Text<1024>;
type Cache = uslub_core::cache::KmemCache<Linux>;

/// The folder: address and length of a text that lives as long as the process; 0 for none.
static FOLDER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Reads the environment, before `main`.
pub(crate) fn prepare() {
    if let Some(folder) = uslub_linux::environment::environment(REPORT_DIR_VARIABLE)
        && let Some(copy) = keep(folder)
    {
        // Release: with the text.
        FOLDER[0].store(copy.as_ptr() as usize, Release);
        FOLDER[1].store(copy.len(), Release);
    }
    if uslub_linux::environment::environment(FOLLOW_VARIABLE) == Some(b"0") {
        uslub_linux::environment::forget_environment(&[
            "LD_PRELOAD",
            REPORT_DIR_VARIABLE,
            OPTIONS_VARIABLE,
            FOLLOW_VARIABLE,
            HELPER_VARIABLE,
        ]);
    }
}

/// A copy of a text that the program cannot change.
fn keep(text: &[u8]) -> Option<&'static [u8]> {
    let memory = ALLOCATOR.meta.record(&ALLOCATOR.platform, text.len(), 1)?;
    // SAFETY: a record of that length, ours for ever.
    unsafe {
        memory
            .as_ptr()
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        Some(core::slice::from_raw_parts(memory.as_ptr(), text.len()))
    }
}

fn folder() -> Option<&'static [u8]> {
    // Acquire: pairs with `prepare`.
    let (start, len) = (FOLDER[0].load(Acquire), FOLDER[1].load(Acquire));
    // SAFETY: what `prepare` kept.
    (len > 0).then(|| unsafe { core::slice::from_raw_parts(start as *const u8, len) })
}

/// Writes the report, if the environment asks for one.
pub(crate) fn write() {
    let Some(folder) = folder() else {
        return;
    };
    // A sandboxed program may not open files: trying could end it.
    if !ALLOCATOR.ready()
        || ALLOCATOR.platform.is_sandboxed()
        || ALLOCATOR.platform.is_vfork_child()
    {
        return;
    }
    if !witness::may_open_files() || !is_quiet() {
        return;
    }
    let path = |ending: &[u8]| {
        let mut path = Text::<4096>::new();
        path.push(folder);
        let _ = write!(path, "/{}", sys::getpid());
        path.push(ending);
        path
    };
    let (new, done) = (path(b".new\0"), path(b".jsonl\0"));
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
    let Some(fd) = sys::open(new.as_bytes(), flags, 0o600) else {
        return;
    };
    let good = put(fd, |line| process().write_json(line))
        && ALLOCATOR
            .caches()
            .all(|cache| put(fd, |line| row(cache).write_json(line)));
    sys::close(fd);
    if good {
        sys::rename(new.as_bytes(), done.as_bytes());
    }
}

/// Waits until nobody holds the locks that the figures need. A program that ends from a signal handler
/// may have interrupted their holder, which will never let go: then there is no report.
fn is_quiet() -> bool {
    const LOOKS: u32 = 1000;
    (0..LOOKS).any(|_| {
        if !ALLOCATOR.is_busy() {
            return true;
        }
        // Lets others run; nobody wakes.
        sys::futex_wait_for(&0, 0, 1);
        false
    })
}

/// Writes one line.
fn put(fd: libc::c_int, record: impl FnOnce(&mut Line) -> core::fmt::Result) -> bool {
    let mut line = Line::new();
    record(&mut line).is_ok() && line.write_str("\n").is_ok() && sys::write_all(fd, line.as_bytes())
}

fn process() -> Process<'static> {
    let t = ALLOCATOR.totals();
    let (rss, peak) = resident();
    Process {
        version: VERSION,
        pid: sys::getpid(),
        mode: ALLOCATOR.platform.mode().name(),
        rss_bytes: rss,
        peak_rss_bytes: peak,
        live_bytes: t.live as u64,
        cached_bytes: t.cached as u64,
        free_bytes: t.free as u64,
        slab_bytes: t.slabs as u64,
        large_bytes: t.large as u64,
        huge_bytes: t.huge as u64,
        dirty_bytes: t.dirty as u64,
        metadata_bytes: t.metadata as u64,
        allocs: t.allocs,
        frees: t.frees,
    }
}

fn row(cache: &Cache) -> CacheRow<'_> {
    let info = ALLOCATOR.info(cache);
    let stat = |item| ALLOCATOR.stat(cache, item);
    CacheRow {
        name: cache.name(),
        active_objs: info.active_objs as u64,
        num_objs: info.num_objs as u64,
        objsize: cache.size,
        objperslab: cache.oo.objects,
        pagesperslab: cache.oo.pages() as u32,
        active_slabs: info.active_slabs as u64,
        num_slabs: info.num_slabs as u64,
        cached_objs: info.cached_objs as u64,
        alloc_fastpath: stat(StatItem::AllocFastpath),
        alloc_slowpath: stat(StatItem::AllocSlowpath),
        free_fastpath: stat(StatItem::FreeFastpath),
        free_slowpath: stat(StatItem::FreeSlowpath),
        alloc_slab: stat(StatItem::AllocSlab),
        free_slab: stat(StatItem::FreeSlab),
        sheaf_refill: stat(StatItem::SheafRefill),
        sheaf_flush: stat(StatItem::SheafFlush),
        barn_get: stat(StatItem::BarnGet),
        barn_get_fail: stat(StatItem::BarnGetFail),
        barn_put: stat(StatItem::BarnPut),
        barn_put_fail: stat(StatItem::BarnPutFail),
    }
}

/// Resident memory of the process now, and the most so far; 0 where the kernel does not say.
fn resident() -> (u64, u64) {
    let mut text = [0u8; 4096];
    let Some(fd) = sys::open(b"/proc/self/status\0", libc::O_RDONLY, 0) else {
        return (0, 0);
    };
    let n = sys::read(fd, &mut text).unwrap_or(0);
    sys::close(fd);
    let field = |name: &[u8]| {
        text[..n]
            .split(|&b| b == b'\n')
            .find_map(|line| line.strip_prefix(name))
            .map_or(0, |rest| {
                rest.iter()
                    .filter(|b| b.is_ascii_digit())
                    .fold(0u64, |sum, b| sum * 10 + u64::from(b - b'0'))
                    * 1024
            })
    };
    (field(b"VmRSS:"), field(b"VmHWM:"))
}
