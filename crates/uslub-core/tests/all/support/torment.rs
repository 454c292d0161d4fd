//! Interrupts at any instruction.
//!
//! Two threads on two CPUs seldom meet inside a window of a few instructions. Here a thread is
//! stopped wherever it is, by a signal whose handler sleeps a moment, while the others go on.

use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::Dice;

/// The threads that are to be stopped now and then.
#[derive(Default)]
pub struct Torment {
    /// `pthread_t` of each, which is a pointer in some C libraries.
    threads: Mutex<Vec<usize>>,
    done: AtomicBool,
}

extern "C" fn pause(_signal: libc::c_int) {
    let moment = libc::timespec {
        tv_sec: 0,
        tv_nsec: 50_000,
    };
    // SAFETY: only sleeps, and may be called from a handler.
    unsafe { libc::nanosleep(&raw const moment, null_mut()) };
}

impl Torment {
    /// Runs `work` on this thread, which is stopped now and then meanwhile.
    pub fn suffer<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Registered<'a>(&'a Torment, usize);
        impl Drop for Registered<'_> {
            fn drop(&mut self) {
                self.0.threads.lock().unwrap().retain(|&t| t != self.1);
            }
        }
        // SAFETY: has no effect.
        let me = unsafe { libc::pthread_self() } as usize;
        self.threads.lock().unwrap().push(me);
        let _registered = Registered(self, me);
        work()
    }

    /// Stops threads until [`end`](Self::end) is called.
    pub fn run(&self) {
        // SAFETY: all-zero is a valid value; the handler only sleeps.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = pause as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(
                libc::sigaction(libc::SIGUSR1, &raw const action, null_mut()),
                0
            );
        }
        let mut dice = Dice::new(11);
        // SeqCst: nothing here is measured.
        while !self.done.load(SeqCst) {
            {
                let threads = self.threads.lock().unwrap();
                if !threads.is_empty() {
                    let thread = threads[dice.below(threads.len())];
                    // SAFETY: the thread takes itself out of the list, under its lock, before it
                    // ends.
                    unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
                }
            }
            std::thread::sleep(Duration::from_micros(50 + dice.below(200) as u64));
        }
    }

    /// Ends what [`run`](Self::run) does.
    pub fn end(&self) {
        // SeqCst: nothing here is measured.
        self.done.store(true, SeqCst);
    }
}
