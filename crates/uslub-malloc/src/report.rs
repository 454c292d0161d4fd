//! The report of a process at its end: one file of JSON lines, in the folder that the environment
//! names.
//!
//! At its end a process may be unable to write a file: it may have another user or root directory,
//! or forbid itself system calls. So the file is made and mapped before `main`, and again in the
//! child of a fork. At the end the report is written to memory.
//!
//! | first byte of the file | state |
//! |---|---|
//! | 0 | no report: the process has not ended |
//! | other | a complete report |
//!
//! Without such a mapping (the child of a bare system call, a file system without space) the file
//! is written at the end, if possible.
//!
//! [`prepare`] runs before `main`, [`write()`] at the end of the process.

use core::fmt::Write;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use uslub_core::stats::StatItem;
use uslub_linux::{Linux, Text, start, sys};
use uslub_report::{
    CacheRow, FOLLOW_VARIABLE, HELPER_VARIABLE, OPTIONS_VARIABLE, Process, REPORT_DIR_VARIABLE,
    VERSION,
};

use crate::{ALLOCATOR, debug, witness};

type Line = Text<1024>;
type Cache = uslub_core::cache::KmemCache<Linux>;

/// The folder: address and length in bytes of a text that is never freed; 0 for none.
static FOLDER: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Bytes of the file: three times the length of the lines of all caches.
const FILE_BYTES: usize = 64 << 10;
/// Most milliseconds that the end of the process waits for the witness.
const LAST_MS: u64 = 2000;
/// Most milliseconds that the child of a fork waits for the witness.
const CHILD_MS: u64 = 100;

/// The mapped file: its address, 0 for none, and the id of the process that it belongs to.
static FILE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Makes this process's file, if the environment asks for a report.
fn make_file() {
    let Some(folder) = folder() else {
        return;
    };
    // Making a file beyond this limit would kill the process by a signal.
    if start::file_bytes() < FILE_BYTES {
        return;
    }
    let path = path(folder, b".map\0");
    let file = sys::map_new_file(path.as_bytes(), FILE_BYTES).unwrap_or(0);
    // Relaxed: the process has one thread so far.
    FILE[0].store(file, Relaxed);
    FILE[1].store(ALLOCATOR.platform.pid() as usize, Relaxed);
}

/// Unmaps the parent's file in the child of a fork; returns whether there was one.
pub(crate) fn after_fork_in_child() -> bool {
    // Relaxed: the child has one thread.
    let parents = FILE[0].swap(0, Relaxed);
    if parents != 0 {
        // SAFETY: the mapping of the parent's file, which nothing uses here.
        unsafe { sys::munmap(parents, FILE_BYTES) };
    }
    parents != 0
}

/// Makes a file for the child of a fork whose parent had one. This takes some stack.
pub(crate) fn make_file_in_child() {
    if !ALLOCATOR.platform.is_sandboxed() && witness::may_open_files(CHILD_MS) {
        make_file();
    }
}

/// The path of a file of this process, with its ending.
fn path(folder: &[u8], ending: &[u8]) -> Text<4096> {
    let mut path = Text::<4096>::new();
    path.push(folder);
    let _ = write!(path, "/{}", sys::getpid());
    path.push(ending);
    path
}

/// Reads the environment. Call it before `main`.
pub(crate) fn prepare() {
    if let Some(folder) = uslub_linux::environment::environment(REPORT_DIR_VARIABLE)
        && let Some(copy) = keep(folder)
    {
        // Release: publishes the text.
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
    make_file();
}

/// Copies a text to memory that the program cannot change.
fn keep(text: &[u8]) -> Option<&'static [u8]> {
    let memory = ALLOCATOR.meta.record(&ALLOCATOR.platform, text.len(), 1)?;
    // SAFETY: a record of this length, which is never freed.
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
    // SAFETY: the text that `prepare` kept.
    (len > 0).then(|| unsafe { core::slice::from_raw_parts(start as *const u8, len) })
}

/// Writes the report, if the environment asks for one.
pub(crate) fn write() {
    debug::at_end();
    let Some(folder) = folder() else {
        return;
    };
    if !ALLOCATOR.ready() || ALLOCATOR.platform.is_vfork_child() || !is_quiet() {
        return;
    }
    // In a sandbox, known or not, no file may be opened.
    let may_open = !ALLOCATOR.platform.is_sandboxed() && witness::may_open_files(LAST_MS);
    // Relaxed, here and below: stored before the process had a second thread.
    let file = FILE[0].load(Relaxed);
    let ours = ALLOCATOR.platform.pid() as usize == FILE[1].load(Relaxed);
    if file != 0 && ours {
        fill(file, may_open);
    } else if may_open {
        write_file(folder);
    }
}

/// Writes the report to the mapped file. It makes no system call if files may not be opened.
fn fill(file: usize, may_open: bool) {
    // SAFETY: the mapping has this length, and the file's space is allocated.
    let memory = unsafe { core::slice::from_raw_parts_mut(file as *mut u8, FILE_BYTES) };
    // The last byte stays 0 and ends the text.
    let (first, mut rest) = memory[..FILE_BYTES - 1].split_at_mut(1);
    let mut begin = 0;
    let mut put = |record: &dyn Fn(&mut Line) -> core::fmt::Result| {
        let mut line = Line::new();
        let written = record(&mut line).is_ok() && line.write_str("\n").is_ok();
        let text = line.as_bytes();
        let (head, text) = text.split_at(usize::from(begin == 0));
        if !written || text.len() > rest.len() {
            return;
        }
        if let [byte] = head {
            begin = *byte;
        }
        let (place, behind) = core::mem::take(&mut rest).split_at_mut(text.len());
        place.copy_from_slice(text);
        rest = behind;
    };
    put(&|line| process(may_open).write_json(line));
    for cache in ALLOCATOR.caches() {
        put(&|line| row(cache).write_json(line));
    }
    // Stored last: it marks the report as complete.
    first[0] = begin;
}

/// Writes the report to a file that it opens.
fn write_file(folder: &[u8]) {
    let (new, done) = (path(folder, b".new\0"), path(folder, b".jsonl\0"));
    // A file that exists there is not ours: a process of another user may have put a link there.
    sys::unlink(new.as_bytes());
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    let Some(fd) = sys::open(new.as_bytes(), flags, 0o600) else {
        return;
    };
    let good = put(fd, |line| process(true).write_json(line))
        && ALLOCATOR
            .caches()
            .all(|cache| put(fd, |line| row(cache).write_json(line)));
    sys::close(fd);
    if good {
        sys::rename(new.as_bytes(), done.as_bytes());
    }
}

/// Waits until the locks that the figures need are free. A process that ends in a signal handler
/// may have interrupted their holder, which never releases them: then there is no report.
fn is_quiet() -> bool {
    const LOOKS: u32 = 1000;
    (0..LOOKS).any(|_| {
        if !ALLOCATOR.is_busy() {
            return true;
        }
        // Lets other threads run; nobody wakes this one.
        sys::futex_wait_for(&0, 0, 1);
        false
    })
}

/// Writes one line; returns whether that succeeded.
fn put(fd: libc::c_int, record: impl FnOnce(&mut Line) -> core::fmt::Result) -> bool {
    let mut line = Line::new();
    record(&mut line).is_ok() && line.write_str("\n").is_ok() && sys::write_all(fd, line.as_bytes())
}

/// The figures of the process. Its resident memory is unknown if files may not be opened.
fn process(may_open: bool) -> Process<'static> {
    let t = ALLOCATOR.totals();
    let (rss, peak) = if may_open { resident() } else { (0, 0) };
    Process {
        version: VERSION,
        pid: ALLOCATOR.platform.pid(),
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
        objperslab: cache.geometry.objects,
        pagesperslab: cache.geometry.pages() as u32,
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

/// Resident bytes of the process, now and at most; 0 if the kernel does not tell.
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
