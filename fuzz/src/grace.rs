//! A grace period that ends when the model says so.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use uslub_core::grace::{GracePeriod, RcuCallback, RcuHead};

/// It.
#[derive(Default)]
pub struct Manual {
    waiting: Mutex<Vec<(usize, RcuCallback)>>,
    synchronized: AtomicUsize,
}

impl Manual {
    /// One for ever: a few bytes for each input.
    pub fn leaked() -> &'static Self {
        Box::leak(Box::default())
    }

    /// How often somebody waited here.
    pub fn synchronized(&self) -> usize {
        // Relaxed: one thread.
        self.synchronized.load(Relaxed)
    }

    /// Ends the grace periods of all that wait.
    pub fn end(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("one thread"));
        for (head, callback) in waiting {
            // SAFETY: called once, as `call` promised.
            unsafe { callback(std::ptr::with_exposed_provenance_mut(head)) };
        }
    }
}

// SAFETY: there are no readers but the model.
unsafe impl GracePeriod for Manual {
    unsafe fn call(&self, head: *mut RcuHead, callback: RcuCallback) {
        let mut waiting = self.waiting.lock().expect("one thread");
        waiting.push((head.expose_provenance(), callback));
    }

    fn barrier(&self) {
        self.end();
    }

    fn synchronize(&self) {
        // Relaxed: one thread.
        self.synchronized.fetch_add(1, Relaxed);
    }
}
