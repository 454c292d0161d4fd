//! Everything at once, on the real system: threads that use every call and pass objects on, signals
//! whose handlers allocate, forks, and 1 % of all requests refused. Every object has its pattern;
//! every one is counted; at the end nothing is in use, and resident memory has not grown.
//!
//! `USLUB_SOAK_SECONDS` says how long (4 otherwise), half of it with restartable sequences and half
//! without.

mod faulty;

use std::env;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use faulty::Faulty;
use uslub_core::args::CacheArgs;
use uslub_core::cache::KmemCache;
use uslub_core::stats::StatItem;
use uslub_core::tunables::Tunables;
use uslub_core::{Allocator, Gfp};

type Cache = KmemCache<Faulty>;

static ALLOCATOR: Allocator<Faulty> = Allocator::new(Faulty::new());
static CACHE: AtomicPtr<Cache> = AtomicPtr::new(null_mut());

const VARIABLE: &str = "USLUB_TEST_PROCESS";
const NAME: &str = "nothing_is_lost_while_everything_happens_and_one_in_a_hundred_requests_fails";
/// Bytes of an object of the cache.
const SIZE: usize = 80;
/// Objects that a thread holds at most.
const HELD: usize = 300;
const THREADS: u64 = 4;

// SeqCst, in this file: nothing here is measured.
static OPS: AtomicU64 = AtomicU64::new(0);
static VERIFIED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static IN_HANDLERS: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);
/// Objects of kmalloc that wait for whoever comes; their first 8 bytes are their size.
static PASSED: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

fn cache() -> &'static Cache {
    // SAFETY: set before any thread starts, and never destroyed before all have ended. SeqCst: see
    // above.
    unsafe { &*CACHE.load(SeqCst) }
}

fn add(counter: &AtomicU64, n: u64) {
    // SeqCst: see above.
    counter.fetch_add(n, SeqCst);
}

/// Writes an object's size and a pattern of its address over it.
fn paint(object: *mut u8, bytes: usize) {
    // SAFETY: the caller's, and so long.
    unsafe {
        object.write_bytes(object as usize as u8 ^ 0x5a, bytes);
        object.cast::<usize>().write(bytes);
    }
}

/// The object's size, if its bytes are as `old` was painted.
fn verify(object: *mut u8, old: *mut u8) -> usize {
    // SAFETY: painted before, so at least 8 bytes; the rest is checked for what it says.
    unsafe {
        let bytes = object.cast::<usize>().read();
        assert!(
            (8..=4 << 20).contains(&bytes),
            "{object:p} has lost its size"
        );
        let all = std::slice::from_raw_parts(object.add(8), bytes - 8);
        let mark = old as usize as u8 ^ 0x5a;
        assert!(
            all.iter().all(|&byte| byte == mark),
            "{object:p} of {bytes} bytes is damaged"
        );
        add(&VERIFIED, 1);
        bytes
    }
}

fn kfree(object: *mut u8) {
    if !object.is_null() {
        verify(object, object);
        // SAFETY: live, freed once.
        unsafe { ALLOCATOR.kfree(object) };
    }
}

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize
}

fn bytes(state: &mut u64) -> usize {
    let bits = if random(state).is_multiple_of(64) {
        21
    } else {
        12
    };
    let top = 8 << (random(state) % (bits - 3));
    top + random(state) % top
}

/// Paints and keeps an object, if there is one.
fn keep(held: &mut Vec<*mut u8>, object: *mut u8, bytes: usize) {
    if object.is_null() {
        return add(&REFUSED, 1);
    }
    paint(object, bytes);
    held.push(object);
}

/// One turn of a thread: objects of the cache, and of kmalloc.
fn turn(state: &mut u64, objects: &mut Vec<*mut u8>, sized: &mut Vec<*mut u8>, share: bool) {
    let a = &ALLOCATOR;
    match random(state) % 16 {
        0..3 => keep(objects, a.alloc(cache(), Gfp::KERNEL), SIZE),
        3 => {
            let mut out = [null_mut(); 50];
            if a.alloc_bulk(cache(), Gfp::KERNEL, &mut out) {
                out.into_iter()
                    .for_each(|object| keep(objects, object, SIZE));
            } else {
                add(&REFUSED, 1);
            }
        }
        4 => {
            if let Some(mut aside) = a.prefill(cache(), Gfp::KERNEL, 1 + random(state) % 100) {
                keep(
                    objects,
                    a.alloc_from(cache(), Gfp::NOSPIN, &mut aside),
                    SIZE,
                );
                a.return_prefilled(cache(), Gfp::KERNEL, aside);
            }
        }
        5..8 => {
            let bytes = bytes(state);
            keep(sized, a.kmalloc(bytes, Gfp::KERNEL), bytes);
        }
        8 if !sized.is_empty() => {
            let (at, bytes) = (random(state) % sized.len(), bytes(state));
            let old = sized[at];
            let before = verify(old, old);
            // SAFETY: live.
            let moved = unsafe { a.krealloc(old, bytes, Gfp::KERNEL) };
            if moved.is_null() {
                return add(&REFUSED, 1);
            }
            // SAFETY: of `bytes` bytes; as much as it had before is as it was.
            unsafe { moved.cast::<usize>().write(bytes.min(before)) };
            verify(moved, old);
            paint(moved, bytes);
            sized[at] = moved;
        }
        9 if share && !sized.is_empty() => {
            let object = sized.swap_remove(random(state) % sized.len());
            // SeqCst: see above.
            kfree(PASSED[random(state) % PASSED.len()].swap(object, SeqCst));
        }
        10 if random(state).is_multiple_of(200) => drop(a.trim()),
        11 if random(state).is_multiple_of(50) => drop(a.shrink(cache())),
        _ => {
            let many = if objects.len() + sized.len() > HELD {
                60
            } else {
                6
            };
            let n = random(state) % (many + 1);
            let mut bulk: Vec<_> = objects.split_off(objects.len() - n.min(objects.len()));
            bulk.iter()
                .for_each(|&object| assert_eq!(verify(object, object), SIZE));
            // SAFETY: live, freed once.
            unsafe { a.free_bulk(cache(), &mut bulk) };
            for object in sized.split_off(sized.len() - n.min(sized.len())) {
                kfree(object);
            }
        }
    }
}

fn work(seed: u64, turns: Option<u64>) {
    let (mut state, mut objects, mut sized) = (seed | 1, vec![], vec![]);
    let mut count = 0;
    // SeqCst: see above.
    while !DONE.load(SeqCst) && turns.is_none_or(|turns| count < turns) {
        turn(&mut state, &mut objects, &mut sized, turns.is_none());
        count += 1;
    }
    objects
        .iter()
        .for_each(|&object| assert_eq!(verify(object, object), SIZE));
    // SAFETY: live, freed once.
    unsafe { ALLOCATOR.free_bulk(cache(), &mut objects) };
    sized.into_iter().for_each(kfree);
    add(&OPS, count);
}

extern "C" fn handler(_: libc::c_int) {
    add(&SIGNALS, 1);
    let a = &ALLOCATOR;
    for bytes in [SIZE, 24, 300, 5000] {
        let of_cache = bytes == SIZE;
        let object = if of_cache {
            a.alloc(cache(), Gfp::NOSPIN)
        } else {
            a.kmalloc(bytes, Gfp::NOSPIN)
        };
        if object.is_null() {
            continue;
        }
        paint(object, bytes);
        verify(object, object);
        add(&IN_HANDLERS, 1);
        // SAFETY: live, freed once.
        unsafe {
            if of_cache {
                a.free_with(cache(), object, Gfp::NOSPIN);
            } else {
                a.kfree_with(object, Gfp::NOSPIN);
            }
        }
    }
}

/// Sends the process a signal 2000 times a second; the kernel picks a thread that runs.
fn start_timer() {
    let often = libc::timeval {
        tv_sec: 0,
        tv_usec: 500,
    };
    let times = libc::itimerval {
        it_interval: often,
        it_value: often,
    };
    // SAFETY: installs a handler that touches nothing but atomics and the allocator.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &raw const action, null_mut()),
            0
        );
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &raw const times, null_mut()),
            0
        );
    }
}

fn stop_timer() {
    // SAFETY: all-zero is a valid value, and stops the timer.
    unsafe {
        let never: libc::itimerval = std::mem::zeroed();
        assert_eq!(
            libc::setitimer(libc::ITIMER_REAL, &raw const never, null_mut()),
            0
        );
    }
}

/// A child at any moment: it uses what it inherits for a while.
fn fork(number: u64) {
    let a = &ALLOCATOR;
    a.lock_for_fork();
    // SAFETY: the child uses the allocator and nothing else, and leaves at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        a.platform.linux.is_child_of_fork();
        // SAFETY: the child's only thread, and its parent took the locks.
        unsafe {
            a.reset_after_fork();
            libc::alarm(120);
        }
        let mut state = number | 1;
        for _ in 0..3000 {
            let bytes = bytes(&mut state);
            let object = a.kmalloc(bytes, Gfp::KERNEL);
            if !object.is_null() {
                paint(object, bytes);
                kfree(object);
            }
        }
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: this thread took them.
    unsafe { a.unlock_after_fork() };
    assert!(pid > 0, "fork");
    let mut status = 0;
    // SAFETY: our child.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {}
    assert_eq!(status, 0, "child {number}");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|text| text.parse().ok()).expect("VmRSS")
}

/// What is waited for at most beyond the time that was asked for.
const PATIENCE: Duration = Duration::from_secs(60);

fn soak(seconds: u64, rseq: bool) {
    let a = &ALLOCATOR;
    a.platform.linux.probe(rseq.into());
    // SAFETY: once; nobody else has it yet.
    assert!(unsafe { a.init(8 << 30, Tunables::DEFAULT) });
    let cache = a.create(&CacheArgs::new("soaked", SIZE)).unwrap();
    // SeqCst: see above.
    CACHE.store(std::ptr::from_ref(cache).cast_mut(), SeqCst);
    a.platform.set(10);
    start_timer();
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let (mut early, mut forks, mut lives) = (0, 0, 0);
    thread::scope(|scope| {
        for seed in 1..=THREADS {
            scope.spawn(move || work(seed * 77_777, None));
        }
        // On a busy machine a fork and a short life can take all the time there is.
        while Instant::now() < end || (forks < 2 && begin.elapsed() < PATIENCE) {
            forks += 1;
            fork(forks);
            // Threads come and go.
            lives += 1;
            let short = scope.spawn(move || work(lives * 991, Some(500)));
            assert!(short.join().is_ok());
            if early == 0 && begin.elapsed() * 6 > Duration::from_secs(seconds) {
                early = resident_kib();
            }
        }
        // SeqCst: see above.
        DONE.store(true, SeqCst);
    });
    stop_timer();
    let late = resident_kib();
    a.platform.set(0);
    PASSED
        .iter()
        .for_each(|place| kfree(place.swap(null_mut(), SeqCst)));
    assert_eq!(a.validate(), Ok(()));
    let [fast, slow] = [StatItem::AllocFastpath, StatItem::AllocSlowpath].map(|s| a.stat(cache, s));
    assert!(
        fast > slow,
        "{fast} allocations by sheaves and {slow} without"
    );
    // SAFETY: nobody uses the cache any more.
    assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 0, "objects were lost");
    a.trim();
    let totals = a.totals();
    assert_eq!(
        (totals.live, totals.cached, totals.large, totals.huge),
        (0, 0, 0, 0)
    );
    assert_eq!(totals.allocs, totals.frees);
    let (asked, failed) = a.platform.figures();
    // SeqCst: see above.
    let of = |counter: &AtomicU64| counter.load(SeqCst);
    println!(
        "\nsoak: {} s of faults by {}: {} turns, {} objects verified, {} calls refused, {failed} of {asked} requests failed, \
         {} signals with {} objects, {forks} forks, {lives} short threads, resident {early} KiB early and {late} late",
        seconds,
        a.platform.linux.mode().name(),
        of(&OPS),
        of(&VERIFIED),
        of(&REFUSED),
        of(&SIGNALS),
        of(&IN_HANDLERS),
    );
    assert!(failed > 0 && of(&SIGNALS) > 10 && forks > 1);
    // What may grow are the tables of failures that came late; a leak would grow with time.
    assert!(
        late < early + early / 4 + 16 * 1024,
        "from {early} KiB to {late} KiB"
    );
}

#[test]
fn nothing_is_lost_while_everything_happens_and_one_in_a_hundred_requests_fails() {
    let seconds =
        env::var("USLUB_SOAK_SECONDS").map_or(4, |text| text.parse::<u64>().expect("a number"));
    if let Ok(rseq) = env::var(VARIABLE) {
        return soak(seconds.div_ceil(2), rseq == "1");
    }
    for rseq in ["1", "0"] {
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, rseq)
            .status()
            .unwrap();
        assert!(status.success(), "rseq={rseq}: {status}");
    }
}
