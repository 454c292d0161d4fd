//! The witness: it answers questions that a program on uslub cannot safely ask about itself.
//!
//! A program may run under a filter of system calls that kills it for the first question. Before
//! the library starts its helper thread, or writes a report, it must know two things: whether there
//! is such a filter, and whether all threads have the same rights. `uslub run` is another process
//! and may look. It answers through the shared words of [`uslub_report::witness`], which has the
//! states.
//!
//! The words lie in a file without a name. The program opens the file before `main`, by the path in
//! its environment, maps it and closes it. So the program keeps no file descriptor.
//!
//! [`start`] may be called on any thread, any number of times. One thread answers for the life of
//! the process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::{Duration, Instant};

use uslub_report::witness::{ENDING, PAGE_BYTES, Page, Verdict};

/// Time after which an answer that nobody takes is cleared.
const FORGOTTEN: Duration = Duration::from_secs(2);

/// Longest status of a thread, in bytes, that is read at once: 1.5 KB are usual, and a process may
/// be in many groups.
const STATUS_BYTES: usize = 8 << 10;

/// Fields of a thread's status that are its rights. All threads must have the same.
const RIGHTS: &[&str] = &[
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
];
/// Fields of a thread's status that tell whether system calls are filtered, and by how many
/// filters.
const FILTERS: &[&str] = &["Seccomp", "Seccomp_filters"];

type Look = Box<dyn Fn(u32) + Send + Sync>;

/// Called with the id of each process that is about to end.
static AT_END: OnceLock<Look> = OnceLock::new();

/// Lets `look` see each process that is about to end, by its id. The process waits for it, two
/// seconds at most. Call it before [`start`]; only the first call counts.
pub fn watch_ends(look: impl Fn(u32) + Send + Sync + 'static) {
    _ = AT_END.set(Box::new(look));
}

/// Starts to answer; returns the path by which programs find the words. Later calls return the same
/// path.
///
/// # Errors
///
/// If the system gives no memory or no thread.
pub fn start() -> io::Result<&'static str> {
    static PATH: OnceLock<String> = OnceLock::new();
    if let Some(path) = PATH.get() {
        return Ok(path);
    }
    let (file, page) = shared_page()?;
    // Relaxed: no other thread knows the page yet.
    (page.namespace).store(fs::metadata("/proc/self/ns/pid")?.ino(), Relaxed);
    // Relaxed: as above.
    (page.looks_at_ends).store(AT_END.get().is_some().into(), Relaxed);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    in_silence(|| {
        let witness = thread::Builder::new().name("witness".to_owned());
        witness.spawn(move || answer_all(page, &file)).map(drop)
    })?;
    Ok(PATH.get_or_init(|| path))
}

/// Runs `work` with all signals blocked. A thread that it starts keeps them blocked.
fn in_silence<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are ours, and zero is a valid value.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

fn shared_page() -> io::Result<(File, &'static Page)> {
    // SAFETY: makes a file and maps it; the mapping stays for the life of the process.
    unsafe {
        let fd = libc::memfd_create(c"uslub-witness".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = File::from_raw_fd(fd);
        file.set_len(PAGE_BYTES as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let none = std::ptr::null_mut();
        let page = libc::mmap(none, PAGE_BYTES, protection, libc::MAP_SHARED, fd, 0);
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok((file, &*page.cast::<Page>()))
    }
}

/// Waits while `*word == value`, at most `at_most`.
fn wait(word: &AtomicU32, value: u32, at_most: Option<Duration>) {
    let time = at_most.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = (time.as_ref()).map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: only reads the word and the time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            time,
        )
    };
}

fn wake(word: &AtomicU32) {
    // SAFETY: only wakes.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// The kernel's list of words to mark at the end of a thread: the head and its only entry.
#[repr(C)]
struct Mortal {
    /// `struct robust_list_head`: the first entry, the offset from an entry to its word, no pending
    /// entry.
    head: [usize; 3],
    /// `struct robust_list`: the next entry, which is the head.
    entry: usize,
}

/// Makes the kernel mark the page when this thread ends. This thread must use no robust mutex.
fn mark_at_end(page: &'static Page) {
    let mortal = Box::leak(Box::new(Mortal {
        head: [0; 3],
        entry: 0,
    }));
    let head = std::ptr::from_mut(mortal) as usize;
    let entry = head + std::mem::offset_of!(Mortal, entry);
    let word = page.witness.as_ptr() as usize;
    *mortal = Mortal {
        head: [entry, word.wrapping_sub(entry), 0],
        entry: head,
    };
    // SAFETY: reads a number, and registers a list that stays for the life of the process.
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid) as u32;
        // Relaxed: programs check the kernel's mark only.
        page.witness.store(thread, Relaxed);
        libc::syscall(libc::SYS_set_robust_list, head, size_of::<[usize; 3]>());
    }
}

/// Answers for the life of the process, and keeps the file open.
fn answer_all(page: &'static Page, _file: &File) {
    mark_at_end(page);
    let own = status("/proc/thread-self/status").map(|own| lines(&own, FILTERS));
    let mut answered = Instant::now();
    loop {
        // Acquire, both: sees what the process did before it asked.
        let asker = page.asker.load(Acquire);
        let answer = page.answer.load(Acquire);
        if asker == 0 {
            wait(&page.asker, 0, None);
        } else if answer == 0 {
            let pid = asker & !ENDING;
            if asker != pid
                && let Some(look) = AT_END.get()
            {
                look(pid);
            }
            let verdict = look_at(pid, own.as_deref());
            // Release: publishes what was seen.
            page.answer.store(verdict.answer_to(asker), Release);
            wake(&page.answer);
            answered = Instant::now();
        } else if Verdict::asker(answer) != asker {
            // Relaxed: the process that the answer was for has ended, or no longer waits for it.
            _ = (page.answer).compare_exchange(answer, 0, Relaxed, Relaxed);
        } else if answered.elapsed() > FORGOTTEN {
            // Relaxed, both: the process that asked has ended, or no longer waits for an answer.
            _ = (page.answer).compare_exchange(answer, 0, Relaxed, Relaxed);
            _ = (page.asker).compare_exchange(asker, 0, Relaxed, Relaxed);
            wake(&page.asker);
        } else {
            wait(&page.asker, asker, Some(FORGOTTEN));
        }
    }
}

/// Reads a thread's status. A file of `/proc` has no size, so a read without a buffer of the right
/// size takes a dozen system calls, which each fork of a program would pay.
fn status(path: &str) -> Option<String> {
    let mut text = Vec::with_capacity(STATUS_BYTES);
    File::open(path).ok()?.read_to_end(&mut text).ok()?;
    String::from_utf8(text).ok()
}

/// The lines of a status with these names.
fn lines(status: &str, names: &[&str]) -> String {
    let named = |line: &&str| (line.split_once(':')).is_some_and(|(name, _)| names.contains(&name));
    status.lines().filter(named).collect::<Vec<_>>().join("\n")
}

/// Examines all threads of a process.
fn look_at(pid: u32, own_filters: Option<&str>) -> Verdict {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Verdict::Differs;
    };
    let mut statuses = Vec::new();
    for task in tasks.flatten() {
        // A thread that ended meanwhile has no status.
        statuses.extend(status(&format!("{}/status", task.path().display())));
    }
    judge(&statuses, own_filters)
}

fn judge(statuses: &[String], own_filters: Option<&str>) -> Verdict {
    let filters = |status: &String| own_filters.is_none_or(|own| lines(status, FILTERS) != own);
    if statuses.iter().any(filters) {
        return Verdict::Filtered;
    }
    let rights: BTreeSet<String> = statuses.iter().map(|one| lines(one, RIGHTS)).collect();
    if rights.len() == 1 && !rights.contains("") {
        Verdict::Same
    } else {
        Verdict::Differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use uslub_report::witness::WITNESS_ENDED;

    const OWN: &str = "Seccomp:\t0\nSeccomp_filters:\t0";

    fn thread(uid: u32, filters: u32) -> String {
        let seccomp = 2 * u32::from(filters > 0);
        format!(
            "Name:\tx\nUid:\t{uid}\t0\nNoNewPrivs:\t0\nSeccomp:\t{seccomp}\n\
             Seccomp_filters:\t{filters}\nThreads:\t{uid}\n"
        )
    }

    #[test]
    fn threads_that_differ_in_their_rights_are_seen() {
        let own = Some(OWN);
        assert_eq!(judge(&[thread(0, 0)], own), Verdict::Same);
        assert_eq!(judge(&[thread(0, 0), thread(0, 0)], own), Verdict::Same);
        assert_eq!(judge(&[thread(0, 0), thread(1, 0)], own), Verdict::Differs);
        assert_eq!(judge(&[], own), Verdict::Differs);
    }

    #[test]
    fn filters_are_seen_and_those_of_the_witness_are_none() {
        let filtered = [thread(0, 0), thread(0, 1)];
        assert_eq!(judge(&filtered, Some(OWN)), Verdict::Filtered);
        let own = lines(&thread(0, 1), FILTERS);
        assert_eq!(judge(&filtered[1..], Some(&own)), Verdict::Same);
        assert_eq!(judge(&[thread(0, 2)], Some(&own)), Verdict::Filtered);
        assert_eq!(judge(&[thread(0, 0)], None), Verdict::Filtered);
    }

    #[test]
    fn the_end_of_the_witness_is_marked() {
        let (_file, page) = shared_page().unwrap();
        thread::spawn(move || mark_at_end(page)).join().unwrap();
        // Relaxed: `join` returns when the kernel clears the thread's id, after it marks the page.
        assert_ne!(page.witness.load(Relaxed) & WITNESS_ENDED, 0);
        let alive = thread::spawn(move || {
            mark_at_end(page);
            // Relaxed: this thread's own word.
            page.witness.load(Relaxed)
        });
        assert_eq!(alive.join().unwrap() & WITNESS_ENDED, 0);
    }

    #[test]
    fn an_answer_that_nobody_waits_for_holds_nobody_up() {
        let (file, page) = shared_page().unwrap();
        let pid = std::process::id();
        // Relaxed, both: no other thread reads the page yet.
        page.answer.store(Verdict::Same.answer_to(1), Relaxed);
        page.asker.store(pid, Relaxed);
        let start = Instant::now();
        thread::spawn(move || answer_all(page, &file));
        // Acquire: sees what the witness saw.
        while Verdict::for_process(page.answer.load(Acquire), pid).is_none() {
            assert!(
                start.elapsed() < FORGOTTEN,
                "the answer to another is in the way"
            );
            thread::yield_now();
        }
    }

    #[test]
    fn a_process_that_ends_is_looked_at_before_its_answer() {
        static SEEN: AtomicU32 = AtomicU32::new(0);
        // Relaxed, all: the answer publishes it.
        watch_ends(|pid| SEEN.store(pid, Relaxed));
        let (file, page) = shared_page().unwrap();
        thread::spawn(move || answer_all(page, &file));
        let pid = std::process::id();
        for (asker, seen) in [(pid, 0), (pid | ENDING, pid)] {
            // Release: as a program asks.
            page.asker.store(asker, Release);
            wake(&page.asker);
            // Acquire: sees what the witness saw.
            while Verdict::for_process(page.answer.load(Acquire), asker).is_none() {
                thread::yield_now();
            }
            // Relaxed: published by the answer.
            assert_eq!(SEEN.load(Relaxed), seen);
            // Relaxed, both: as a process takes its answer.
            page.answer.store(0, Relaxed);
            page.asker.store(0, Relaxed);
        }
    }

    #[test]
    fn a_question_is_answered_and_a_forgotten_one_does_not_block() {
        let path = start().unwrap();
        assert_eq!(start().unwrap(), path);
        let file = File::options().read(true).write(true).open(path).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: maps the file; the mapping stays.
        let page = unsafe {
            let fd = file.as_raw_fd();
            &*libc::mmap(none, PAGE_BYTES, protection, libc::MAP_SHARED, fd, 0).cast::<Page>()
        };
        let pid = std::process::id();
        for _ in 0..2 {
            // Release: as a program asks. If the first answer was not taken, the second question
            // waits.
            while (page.asker)
                .compare_exchange(0, pid, Release, Relaxed)
                .is_err()
            {
                wake(&page.asker);
                wait(&page.asker, pid, Some(Duration::from_millis(100)));
            }
            wake(&page.asker);
            loop {
                // Acquire: sees what the witness saw.
                let answer = page.answer.load(Acquire);
                if answer != 0 {
                    assert_eq!(Verdict::for_process(answer, pid), Some(Verdict::Same));
                    break;
                }
                wait(&page.answer, 0, Some(Duration::from_secs(1)));
            }
        }
    }
}
