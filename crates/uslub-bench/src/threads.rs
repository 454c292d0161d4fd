//! Joining of threads with propagation of panics.

use std::thread::ScopedJoinHandle;

/// The result of a thread. A panic of the thread continues in the caller.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
