//! The report of a process at its end: a JSON object, in the folder or file that the environment
//! names. The schema is in docs/report.md.
//!
//! | [`PLACE`] | the report |
//! |---|---|
//! | a folder | `<pid>.map` or `<pid>.json` in it |
//! | a file, or nothing with that name | the file; the last process that ends replaces it |
//! | another thing: a device, a pipe, a link | appended to it |
//!
//! At its end a process may be unable to write a file: it may have another user or root directory,
//! or forbid itself system calls. So in a folder the file is made and mapped before `main`, and
//! again in the child of a fork. At the end the report is written to memory.
//!
//! | first byte of the mapped file | state |
//! |---|---|
//! | 0 | no report: the process has not ended |
//! | other | a complete report |
//!
//! Without such a mapping (the child of a bare system call, a file system without space) the file
//! is written at the end, if possible. Without a witness nobody cuts a mapped file to its text:
//! there too the file is written at the end, and the mapped one is the second choice.
//!
//! [`prepare`] runs before `main`, [`write()`] at the end of the process.

use core::fmt::Write;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use uslub_core::stats::StatItem;
use uslub_linux::{Linux, Text, complain, start, sys};
use uslub_report::{
    CacheRow, FOLLOW_VARIABLE, HELPER_VARIABLE, OPTIONS_VARIABLE, Process, REPORT_VARIABLE,
    TRACES_VARIABLE, VERSION,
};

use crate::{ALLOCATOR, debug, next, witness};

type Line = Text<1024>;
type Path = Text<4096>;
type Cache = uslub_core::cache::KmemCache<Linux>;

/// A text that is never freed: its address and length in bytes; 0 for none.
struct Kept([AtomicUsize; 2]);

impl Kept {
    const fn nothing() -> Self {
        Self([const { AtomicUsize::new(0) }; 2])
    }

    /// Copies a text to memory that the program cannot change.
    fn set(&self, text: &[u8]) {
        let Some(memory) = ALLOCATOR.meta.record(&ALLOCATOR.platform, text.len(), 1) else {
            return;
        };
        // SAFETY: a record of this length, which is never freed.
        unsafe {
            memory
                .as_ptr()
                .copy_from_nonoverlapping(text.as_ptr(), text.len());
        }
        // Release: publishes the text.
        self.0[0].store(memory.as_ptr() as usize, Release);
        self.0[1].store(text.len(), Release);
    }

    fn get(&self) -> Option<&'static [u8]> {
        // Acquire: pairs with `set`.
        let [start, len] = [0, 1].map(|i| self.0[i].load(Acquire));
        // SAFETY: the text that `set` kept.
        (len > 0).then(|| unsafe { core::slice::from_raw_parts(start as *const u8, len) })
    }
}

/// The absolute path of the folder or file.
static PLACE: Kept = Kept::nothing();
/// Whether [`PLACE`] is a folder. Written before `main`.
static IS_FOLDER: AtomicBool = AtomicBool::new(false);
/// The program's name.
static PROGRAM: Kept = Kept::nothing();
/// Whether the program's own malloc takes the calls. Written before `main`.
static OWN_MALLOC: AtomicBool = AtomicBool::new(false);
/// This process and its parent; 0 for unknown. Written while the process has one thread.
static PIDS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Whether this process is the child of a fork that runs its parent's program.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Bytes of the file: twice the length of the lines of all caches.
const FILE_BYTES: usize = 64 << 10;
/// Longest part of a bad path that a message shows, in bytes.
const SHOWN_BYTES: usize = 200;
/// Longest name of a program that is kept, in bytes. The kernel's names have 15.
const NAME_BYTES: usize = 64;
/// Most milliseconds that the end of the process waits for the witness.
const LAST_MS: u64 = 2000;
/// Most milliseconds that the child of a fork waits for the witness.
const CHILD_MS: u64 = 100;

/// The mapped file: its address, 0 for none, and the id of the process that it belongs to.
static FILE: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// The folder for reports, if reports go to a folder.
fn folder() -> Option<&'static [u8]> {
    // Relaxed: written before `main`.
    PLACE.get().filter(|_| IS_FOLDER.load(Relaxed))
}

/// Makes this process's file, if the environment asks for a report in a folder.
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
    // Relaxed, all: the child has one thread.
    let parent = PIDS[0].swap(ALLOCATOR.platform.pid(), Relaxed);
    PIDS[1].store(parent, Relaxed);
    IS_FORKED.store(true, Relaxed);
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

/// The path of a file of this process in a folder, with its ending.
fn path(folder: &[u8], ending: &[u8]) -> Path {
    let mut path = Path::new();
    path.push(folder);
    let _ = write!(path, "/{}", sys::getpid());
    path.push(ending);
    path
}

/// Reads the environment. Call it before `main`, with the program's first argument.
pub(crate) fn prepare(first: Option<&[u8]>) {
    if let Some(place) = uslub_linux::environment::environment(REPORT_VARIABLE) {
        find_place(place);
    }
    if uslub_linux::environment::environment(FOLLOW_VARIABLE) == Some(b"0") {
        uslub_linux::environment::forget_environment(&[
            "LD_PRELOAD",
            REPORT_VARIABLE,
            OPTIONS_VARIABLE,
            FOLLOW_VARIABLE,
            HELPER_VARIABLE,
            TRACES_VARIABLE,
        ]);
    }
    if PLACE.get().is_none() {
        return;
    }
    keep_name(first.unwrap_or_default());
    // Relaxed, all: the process has one thread so far.
    PIDS[0].store(ALLOCATOR.platform.pid(), Relaxed);
    PIDS[1].store(sys::getppid(), Relaxed);
    OWN_MALLOC.store(!next::is_ours(c"malloc"), Relaxed);
    make_file();
}

/// Keeps the place of reports, if it can be used. Otherwise says why not, unless `uslub run` chose
/// it: a program may well end in a world without that folder.
fn find_place(place: &[u8]) {
    let mut path = Path::new();
    if place.first() != Some(&b'/') {
        sys::current_folder(|folder| path.push(folder));
        path.push(b"/");
    }
    path.push(place);
    path.push(b"\0");
    match check_place(place, path.as_bytes()) {
        Ok(is_folder) => {
            // Relaxed: the process has one thread so far.
            IS_FOLDER.store(is_folder, Relaxed);
            PLACE.set(&path.as_bytes()[..path.as_bytes().len() - 1]);
        }
        Err(why) => {
            if uslub_linux::environment::environment(HELPER_VARIABLE).is_none() {
                let shown = &place[..place.len().min(SHOWN_BYTES)];
                let shown = core::str::from_utf8(shown).unwrap_or("?");
                complain(format_args!(
                    "{REPORT_VARIABLE}={shown}: {why}; there will be no report"
                ));
            }
        }
    }
}

/// Whether the place is a folder; an error if no report can be written there. The path ends in a
/// zero byte, unless it was too long.
fn check_place(place: &[u8], path: &[u8]) -> Result<bool, &'static str> {
    if place.is_empty() {
        return Err("it names neither a folder nor a file");
    }
    // Room for the id of a process and an ending.
    if path.len() + 32 > 4096 || path.last() != Some(&0) {
        return Err("the path is too long");
    }
    if sys::kind(path) == Ok(libc::S_IFDIR) || path.ends_with(b"/\0") {
        return sys::may_create_in(path).map_or_else(|error| Err(cause(error)), |()| Ok(true));
    }
    let end = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
    let mut parent = Path::new();
    parent.push(&path[..end.max(1)]);
    parent.push(b"\0");
    if is_special(path) {
        return Ok(false);
    }
    sys::may_create_in(parent.as_bytes()).map_err(cause)?;
    let mut new = Path::new();
    new.push(&path[..path.len() - 1]);
    let _ = write!(new, ".{}.new\0", sys::getpid());
    // Some folders of the system allow it and refuse it then.
    let fd = create(&new).ok_or("no file can be created in the folder")?;
    sys::close(fd);
    sys::unlink(new.as_bytes());
    Ok(false)
}

/// Creates a file, or replaces it.
fn create(path: &Path) -> Option<libc::c_int> {
    // A file that exists there is not ours: a process of another user may have put a link there.
    sys::unlink(path.as_bytes());
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    sys::open(path.as_bytes(), flags, 0o600)
}

/// Why no file can be created in a folder.
fn cause(error: libc::c_int) -> &'static str {
    match error {
        libc::ENOENT => "the folder does not exist",
        libc::ENOTDIR => "the folder is a file",
        libc::EACCES | libc::EPERM => "this user may not write to the folder",
        libc::EROFS => "the folder is on a read-only file system",
        _ => "the folder cannot be used",
    }
}

/// Whether a path names something that must not be replaced: no file, or a link to one.
fn is_special(path: &[u8]) -> bool {
    sys::kind_itself(path).is_ok_and(|kind| kind != libc::S_IFREG)
}

/// Keeps the end of the program's first argument as its name.
fn keep_name(first: &[u8]) {
    let begin = first
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |at| at + 1);
    let (mut name, mut len) = ([0; NAME_BYTES], 0);
    for (to, from) in name.iter_mut().zip(&first[begin..]) {
        *to = if from.is_ascii_graphic() || *from == b' ' {
            *from
        } else {
            b'?'
        };
        len += 1;
    }
    PROGRAM.set(&name[..len]);
}

/// Writes the report, if the environment asks for one.
pub(crate) fn write() {
    debug::at_end();
    let Some(place) = PLACE.get() else {
        return;
    };
    if !ALLOCATOR.ready() || ALLOCATOR.platform.is_vfork_child() || !is_quiet() {
        return;
    }
    // In a sandbox, known or not, no file may be opened.
    let may_open = !ALLOCATOR.platform.is_sandboxed() && witness::may_open_files_at_end(LAST_MS);
    // Relaxed: stored before the process had a second thread.
    if !IS_FOLDER.load(Relaxed) {
        if may_open {
            write_to(place);
        }
        return;
    }
    // Relaxed, both: stored before the process had a second thread.
    let file = FILE[0].load(Relaxed);
    let ours = ALLOCATOR.platform.pid() as usize == FILE[1].load(Relaxed);
    let has_file = file != 0 && ours;
    if may_open && (!has_file || !witness::exists()) && write_in(place) {
        if has_file {
            sys::unlink(path(place, b".map\0").as_bytes());
        }
    } else if has_file {
        fill(file, may_open);
    }
}

/// Calls `put` with the lines of the report: the process, its caches, the end. `put` returns
/// whether it could write the line.
fn lines(may_open: bool, put: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let mut line = Line::new();
    if process(may_open).write_json(&mut line).is_err() {
        return false;
    }
    // The record's last brace comes after its caches.
    let text = line.as_bytes();
    let open = text.len() - 1;
    if !put(&text[..open]) || !put(b",\"caches\":[") {
        return false;
    }
    let mut before: &[u8] = b"\n";
    for cache in ALLOCATOR.caches().filter(|cache| cache.peak_slabs() > 0) {
        let mut line = Line::new();
        line.push(before);
        if row(cache).write_json(&mut line).is_err() || !put(line.as_bytes()) {
            return false;
        }
        before = b",\n";
    }
    put(b"\n]}\n")
}

/// Writes the report to the mapped file. It makes no system call if files may not be opened.
fn fill(file: usize, may_open: bool) {
    // SAFETY: the mapping has this length, and the file's space is allocated.
    let memory = unsafe { core::slice::from_raw_parts_mut(file as *mut u8, FILE_BYTES) };
    // The last byte stays 0 and ends the text.
    let (first, mut rest) = memory[..FILE_BYTES - 1].split_at_mut(1);
    let mut begin = 0;
    let whole = lines(may_open, &mut |text| {
        let (head, text) = text.split_at(usize::from(begin == 0));
        if text.len() > rest.len() {
            return false;
        }
        if let [byte] = head {
            begin = *byte;
        }
        let (place, behind) = core::mem::take(&mut rest).split_at_mut(text.len());
        place.copy_from_slice(text);
        rest = behind;
        true
    });
    if whole {
        // Stored last: it marks the report as complete.
        first[0] = begin;
    }
}

/// Writes the report to a file of its own in a folder; returns whether that succeeded.
fn write_in(folder: &[u8]) -> bool {
    let (new, done) = (path(folder, b".new\0"), path(folder, b".json\0"));
    replace(&new, &done)
}

/// Writes the report to the file or device that the environment names.
fn write_to(place: &[u8]) {
    let mut done = Path::new();
    done.push(place);
    let mut new = Path::new();
    new.push(place);
    done.push(b"\0");
    if is_special(done.as_bytes()) {
        // As in `replace`: a link may name a file of any length.
        let is_file = sys::kind(done.as_bytes()) == Ok(libc::S_IFREG);
        if is_file && start::file_bytes() != usize::MAX {
            return;
        }
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY;
        if let Some(fd) = sys::open(done.as_bytes(), flags, 0) {
            lines(true, &mut |text| sys::write_all(fd, text));
            sys::close(fd);
        }
        return;
    }
    let _ = write!(new, ".{}.new\0", sys::getpid());
    replace(&new, &done);
}

/// Writes the report to the file `new` and gives it the name `done`.
fn replace(new: &Path, done: &Path) -> bool {
    let Some(fd) = create(new) else {
        return false;
    };
    // A write beyond this limit would end the process by a signal.
    let mut room = start::file_bytes();
    let good = lines(true, &mut |text| {
        let fits = text.len() <= room;
        room = room.saturating_sub(text.len());
        fits && sys::write_all(fd, text)
    });
    sys::close(fd);
    let good = good && sys::rename(new.as_bytes(), done.as_bytes());
    if !good {
        sys::unlink(new.as_bytes());
    }
    good
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

/// The figures of the process. Its resident memory is unknown if files may not be opened.
fn process(may_open: bool) -> Process<'static> {
    let t = ALLOCATOR.totals();
    let (rss, peak) = if may_open { resident() } else { (0, 0) };
    // Relaxed, all: written while the process had one thread.
    let parent_pid = PIDS[1].load(Relaxed);
    let is_forked = IS_FORKED.load(Relaxed);
    let own_malloc = OWN_MALLOC.load(Relaxed);
    Process {
        version: VERSION,
        pid: ALLOCATOR.platform.pid(),
        parent_pid,
        birth: if is_forked { "fork" } else { "exec" },
        program: core::str::from_utf8(PROGRAM.get().unwrap_or_default()).unwrap_or_default(),
        own_malloc: own_malloc.into(),
        mode: ALLOCATOR.platform.mode().name(),
        rss_bytes: rss,
        peak_rss_bytes: peak,
        live_bytes: t.live as u64,
        cached_bytes: t.cached as u64,
        free_bytes: t.free as u64,
        slab_bytes: t.slabs as u64,
        large_bytes: t.large as u64,
        huge_bytes: t.huge as u64,
        large_objs: ALLOCATOR.large_objs() as u64,
        peak_large_bytes: ALLOCATOR.peak_large_bytes() as u64,
        dirty_bytes: t.dirty as u64,
        metadata_bytes: t.metadata as u64,
        allocs: t.allocs,
        frees: t.frees,
    }
}

fn row(cache: &Cache) -> CacheRow<'_> {
    let info = ALLOCATOR.info(cache);
    let stat = |item| ALLOCATOR.stat(cache, item);
    let (slot, slab) = (u64::from(cache.size), cache.geometry.bytes() as u64);
    CacheRow {
        name: cache.name(),
        live_objs: info.live_objs() as u64,
        live_bytes: info.live_objs() as u64 * slot,
        cached_bytes: info.cached_objs as u64 * slot,
        slab_bytes: info.num_slabs as u64 * slab,
        peak_bytes: info.peak_slabs as u64 * slab,
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
