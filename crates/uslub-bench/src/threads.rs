//! Threads that end.

use std::thread::ScopedJoinHandle;

/// What a thread returns; its panic goes on here.
pub fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
