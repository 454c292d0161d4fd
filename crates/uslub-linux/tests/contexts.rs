//! Where an allocation may not ask the system, or may not wait: on the real system.
//!
//! Each test runs in a process of its own: the test's program again, with a variable that names the
//! test.

use std::env;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::time::{Duration, Instant};

use uslub_core::args::CacheArgs;
use uslub_core::cache::KmemCache;
use uslub_core::{Allocator, Gfp};
use uslub_linux::{Linux, start};

static ALLOCATOR: Allocator<Linux> = Allocator::new(Linux::new());

/// Names the test that this process is for.
const VARIABLE: &str = "USLUB_TEST_PROCESS";

/// Runs `work` in a process of its own, with restartable sequences and without.
fn in_processes(name: &str, work: fn()) {
    if env::var(VARIABLE).is_ok_and(|test| test == name) {
        // SAFETY: once in this process; nobody else uses the allocator.
        assert!(unsafe { start::set_up(&ALLOCATOR, "USLUB_OPTIONS") });
        return work();
    }
    for rseq in ["rseq=1", "rseq=0"] {
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, name)
            .env("USLUB_OPTIONS", rseq)
            .status()
            .unwrap();
        assert!(status.success(), "{name} with {rseq}: {status}");
    }
}

/// Ends the process without destructors.
fn exit(status: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// From now on any system call of this process but its end kills it.
fn forbid_system_calls() {
    const ALLOW: u32 = 0x7fff_0000;
    const KILL_PROCESS: u32 = 0x8000_0000;
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_exit_group as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, KILL_PROCESS),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: passes a filter that outlives the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        );
        assert_eq!(set, 0);
    }
}

/// Status of a process in which an object was null or had another's bytes.
const WRONG: i32 = 3;

#[test]
fn allocations_that_may_not_enter_the_kernel_do_not() {
    in_processes("allocations_that_may_not_enter_the_kernel_do_not", || {
        const HELD: usize = 5000;
        let a = &ALLOCATOR;
        let mut args = CacheArgs::new("quiet", 200);
        args.free_gfp = Gfp::NOWAIT;
        let cache = a.create(&args).unwrap();
        // Memory for what follows: more than it will hold at once.
        let mut objects = vec![std::ptr::null_mut(); 2 * HELD];
        assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects));
        // SAFETY: the test's objects, freed once.
        unsafe { a.free_bulk(cache, &mut objects) };
        for object in &mut objects {
            *object = a.alloc(cache, Gfp::KERNEL);
        }
        for &object in &objects {
            // SAFETY: as above.
            unsafe { a.free(cache, object) };
        }
        objects.clear();
        let mut promised = a.prefill(cache, Gfp::KERNEL, HELD / 5).unwrap();
        let mut total = 0;
        forbid_system_calls();
        // No assertion may fail from here on: a message would be a system call.
        while total < 1_000_000 {
            while objects.len() < HELD {
                let object = match total % 3 {
                    0 => a.alloc_from(cache, Gfp::NOWAIT, &mut promised),
                    1 => a.alloc(cache, Gfp::NOWAIT | Gfp::ZERO),
                    _ => a.alloc(cache, Gfp::NOWAIT),
                };
                if object.is_null() {
                    if total % 3 != 0 || promised.size() != 0 {
                        exit(WRONG);
                    }
                    if !a.refill_prefilled(cache, Gfp::NOWAIT, &mut promised, HELD / 10) {
                        exit(WRONG);
                    }
                    continue;
                }
                // SAFETY: the object has 200 bytes.
                unsafe { object.write_bytes(total as u8, 200) };
                objects.push(object);
                total += 1;
            }
            // Without an allocation: the program's own is the C library's.
            for object in objects.drain(..HELD / 2) {
                // SAFETY: the test's objects, freed once.
                unsafe { a.free(cache, object) };
            }
        }
        exit(0);
    });
}

/// Objects that the handler holds.
const HELD: usize = 64;
static HOLDS: [AtomicPtr<u8>; HELD] = [const { AtomicPtr::new(std::ptr::null_mut()) }; HELD];
static SHARED: AtomicPtr<KmemCache<Linux>> = AtomicPtr::new(std::ptr::null_mut());
static SIGNALS: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static NULLS: AtomicUsize = AtomicUsize::new(0);
static TORN: AtomicBool = AtomicBool::new(false);

/// The cache that both sides use.
fn shared() -> &'static KmemCache<Linux> {
    // SAFETY: set before the timer starts; the cache lives as long as the process. SeqCst, here and
    // below: nothing here is measured.
    unsafe { &*SHARED.load(SeqCst) }
}

/// Bytes of what the handler allocates next: from the shared cache, from kmalloc's classes, and
/// whole pages.
fn bytes(number: usize) -> usize {
    [48, 48, 8, 100, 1024, 4096, 9000][number % 7]
}

/// Frees what a place holds, after a look at its bytes.
fn put(place: &AtomicPtr<u8>, number: usize, gfp: Gfp) {
    let object = place.swap(std::ptr::null_mut(), SeqCst);
    if object.is_null() {
        return;
    }
    let (a, stamp) = (&ALLOCATOR, number as u8);
    // SAFETY: the handler's object, of at least 8 bytes; freed once.
    unsafe {
        if (0..8).any(|i| *object.add(i) != stamp) {
            // SeqCst: see above.
            TORN.store(true, SeqCst);
        }
        if number % 7 < 2 {
            a.free_with(shared(), object, gfp);
        } else {
            a.kfree_with(object, gfp);
        }
    }
}

extern "C" fn handler(_: libc::c_int) {
    // SeqCst, here and below: see above.
    let signal = SIGNALS.fetch_add(1, SeqCst);
    for step in 0..3 {
        let number = (signal * 3 + step * 29) % HELD;
        put(&HOLDS[number], number, Gfp::NOSPIN);
        let object = if number % 7 < 2 {
            ALLOCATOR.alloc(shared(), Gfp::NOSPIN)
        } else {
            ALLOCATOR.kmalloc(bytes(number), Gfp::NOSPIN)
        };
        if object.is_null() {
            // SeqCst: see above.
            NULLS.fetch_add(1, SeqCst);
            continue;
        }
        // SAFETY: the object has at least 8 bytes.
        unsafe { object.write_bytes(number as u8, 8) };
        // SeqCst: see above.
        TAKEN.fetch_add(1, SeqCst);
        HOLDS[number].store(object, SeqCst);
    }
}

/// Sends this thread a signal 20,000 times a second.
fn start_timer() -> libc::timer_t {
    // SAFETY: installs a handler that touches nothing but atomics and the allocator; the timer is
    // for this thread.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        event.sigev_notify_thread_id = libc::gettid();
        let mut timer: libc::timer_t = std::mem::zeroed();
        let made = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
        assert_eq!(made, 0);
        let often = libc::timespec {
            tv_sec: 0,
            tv_nsec: 50_000,
        };
        let times = libc::itimerspec {
            it_interval: often,
            it_value: often,
        };
        assert_eq!(
            libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()),
            0
        );
        timer
    }
}

/// A round of everything that takes a lock.
fn work(round: usize) {
    let a = &ALLOCATOR;
    let cache = a
        .create(&CacheArgs::new("mayfly", 16 + round % 50 * 24))
        .unwrap();
    let mut objects = [std::ptr::null_mut(); 300];
    assert!(a.alloc_bulk(cache, Gfp::KERNEL, &mut objects[..100 + round % 200]));
    // SAFETY: the test's objects, freed once.
    unsafe { a.free_bulk(cache, &mut objects[..100 + round % 200]) };
    let prefilled = a.prefill(cache, Gfp::KERNEL, 1 + round % 100).unwrap();
    a.return_prefilled(cache, Gfp::KERNEL, prefilled);
    let mine: Vec<_> = (0..round % 200)
        .map(|i| {
            (
                a.alloc(shared(), Gfp::KERNEL),
                a.kmalloc(bytes(i), Gfp::KERNEL),
            )
        })
        .collect();
    for (i, &(one, other)) in mine.iter().enumerate() {
        assert!(!one.is_null() && !other.is_null());
        // SAFETY: see above.
        unsafe {
            one.write_bytes(0xff, 48);
            let other = a.krealloc(other, bytes(i + round), Gfp::KERNEL);
            other.write_bytes(0xff, bytes(i + round));
            a.free(shared(), one);
            a.kfree(other);
        }
    }
    match round % 8 {
        0 => drop(a.shrink(shared())),
        1 => a.shrink_all(),
        2 => drop(a.trim()),
        3 => drop(a.totals()),
        _ => {}
    }
    // SAFETY: nobody else uses the cache.
    assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 0);
}

#[test]
fn a_signal_handler_may_allocate_and_free_whatever_it_interrupts() {
    in_processes(
        "a_signal_handler_may_allocate_and_free_whatever_it_interrupts",
        || {
            let a = &ALLOCATOR;
            let cache = a.create(&CacheArgs::new("shared", 48)).unwrap();
            // SeqCst, here and below: see above.
            SHARED.store(std::ptr::from_ref(cache).cast_mut(), SeqCst);
            let seconds = env::var("USLUB_STRESS_SECONDS").map_or(2, |s| s.parse().unwrap());
            let timer = start_timer();
            let end = Instant::now() + Duration::from_secs(seconds);
            let mut rounds = 0;
            while Instant::now() < end {
                work(rounds);
                rounds += 1;
            }
            // SAFETY: the timer is ours.
            assert_eq!(unsafe { libc::timer_delete(timer) }, 0);
            for (number, place) in HOLDS.iter().enumerate() {
                put(place, number, Gfp::KERNEL);
            }
            let (signals, taken) = (SIGNALS.load(SeqCst), TAKEN.load(SeqCst));
            println!(
                "{rounds} rounds, {signals} signals, {taken} objects taken in them, {} nulls",
                NULLS.load(SeqCst)
            );
            assert!(!TORN.load(SeqCst), "an object had another's bytes");
            assert!(signals > 1000 && taken > signals && rounds > 100);
            assert_eq!(a.validate(), Ok(()));
            // SAFETY: nobody uses the cache any more.
            assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 0, "objects were lost");
            a.trim();
            let totals = a.totals();
            assert_eq!((totals.live, totals.cached, totals.large), (0, 0, 0));
            assert_eq!(totals.allocs, totals.frees);
        },
    );
}
