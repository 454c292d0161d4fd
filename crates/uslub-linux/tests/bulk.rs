//! Many objects in one sequence: threads that are preempted, moved and interrupted lose none.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use uslub_core::args::CacheArgs;
use uslub_core::cache::KmemCache;
use uslub_core::{Allocator, Gfp};
use uslub_linux::{Linux, start};

static ALLOCATOR: Allocator<Linux> = Allocator::new(Linux::new());
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: libc::c_int) {
    // SeqCst: nothing here is measured.
    SIGNALS.fetch_add(1, SeqCst);
}

/// Sends the process a signal every 97 microseconds of its CPU time: most come while a thread is in
/// a sequence.
fn interrupt() {
    // SAFETY: installs a handler that touches an atomic only, and a timer.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut());
        let often = libc::timeval {
            tv_sec: 0,
            tv_usec: 97,
        };
        let times = libc::itimerval {
            it_interval: often,
            it_value: often,
        };
        libc::setitimer(libc::ITIMER_PROF, &raw const times, std::ptr::null_mut());
    }
}

/// Takes and gives back `n` objects, all different ones, as their stamps show.
fn round(cache: &KmemCache<Linux>, me: usize, n: usize, checked: bool) {
    let mut objects = [std::ptr::null_mut(); 250];
    let objects = &mut objects[..n];
    assert!(ALLOCATOR.alloc_bulk(cache, Gfp::KERNEL, objects));
    for (i, object) in objects.iter().enumerate() {
        // SAFETY: the objects have 64 bytes and are this thread's.
        unsafe { object.cast::<[usize; 2]>().write([me, i]) };
    }
    for (i, object) in objects.iter().enumerate() {
        // SAFETY: as above.
        assert_eq!(unsafe { object.cast::<[usize; 2]>().read() }, [me, i]);
    }
    // SAFETY: this cache's objects, freed once.
    unsafe {
        if checked {
            ALLOCATOR.free_bulk(cache, objects);
        } else {
            ALLOCATOR.free_bulk_unchecked(cache, objects);
        }
    }
}

#[test]
fn bulk_sequences_lose_no_object_when_they_are_aborted() {
    // SAFETY: once; nobody else uses the allocator.
    assert!(unsafe { start::set_up(&ALLOCATOR, "USLUB_OPTIONS") });
    let a = &ALLOCATOR;
    let mut args = CacheArgs::new("bulk", 64);
    args.sheaf_capacity = Some(250);
    let cache = a.create(&args).unwrap();
    interrupt();
    let seconds = std::env::var("USLUB_STRESS_SECONDS").map_or(2, |s| s.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let rounds: usize = std::thread::scope(|scope| {
        let threads = [1, 2, 3, 4, 5, 6].map(|me| {
            scope.spawn(move || {
                let mut rounds = 0;
                while Instant::now() < end {
                    for n in (1..=250).step_by(me) {
                        round(cache, me, n, rounds % 2 == 0);
                        rounds += 1;
                    }
                }
                rounds
            })
        });
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    // SeqCst: nothing here is measured.
    println!("{rounds} rounds, {} signals", SIGNALS.load(SeqCst));
    assert!(SIGNALS.load(SeqCst) > 100);
    assert_eq!(a.validate(), Ok(()));
    let info = a.info(cache);
    assert_eq!((info.live_objs(), info.allocs), (0, info.frees));
    // SAFETY: nobody uses the cache any more.
    assert_eq!(unsafe { a.destroy(cache, |_| ()) }, 0, "objects were lost");
}
