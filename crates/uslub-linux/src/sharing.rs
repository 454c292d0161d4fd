//! Tasks that share our memory, but whose rseq area the kernel does not know.
//!
//! A child of `vfork`, or of `clone` with `CLONE_VM`, runs in its parent's memory. It mostly has
//! its parent's thread pointer too, so the parent's rseq area shows it a valid CPU number. But the
//! kernel does not know the child's area and restarts none of its sequences. While such a child
//! lives, [`Linux::open`] is closed. A task whose process id is not ours then takes no per-CPU
//! slot: slabs serve it.
//!
//! | function | caller | effect |
//! |---|---|---|
//! | `vfork_begins` | the parent, before the child is born | one more sharer |
//! | `vfork_ends` | the parent, when the child is gone | one sharer fewer |
//! | `watch` | the parent of a child that it does not wait for | at the end a word is cleared |
//! | `reap` | slow paths, while a word is in use | one sharer fewer for each cleared word |
//! | `keep_closed` | the parent of a child whose end nobody can see | closed for good |
//!
//! Opening again takes several stores, so it is done under [`Sharing::opener`]. A `vfork` that
//! begins meanwhile waits until the stores are done, and closes after them. A signal handler on the
//! opener's thread does not wait for itself.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use uslub_core::platform::Platform;

use crate::policy::{SHARING_SPINS, SHARING_WATCHED_MAX};
use crate::{Linux, callers, sys};

/// Subtracted from [`Linux::open`] for each child that shares our memory.
pub(crate) const VFORK: i64 = 1 << 48;
/// Largest value of [`Linux::open`] while such a child lives.
const IN_VFORK: i64 = i32::MAX as i64 - VFORK;
/// States of a word: unused; its child lives; its child has ended (written by the kernel).
const FREE: u32 = 1;
const LIVES: u32 = u32::MAX;
const ENDED: u32 = 0;

/// Which tasks share our memory, and which thread opens the slots again.
pub(crate) struct Sharing {
    /// Thread pointer of the thread that opens the slots; 0 for none.
    opener: AtomicUsize,
    /// Number of words in use.
    watched: AtomicU32,
    /// One word for each watched child: [`FREE`], [`LIVES`] or [`ENDED`].
    words: [AtomicU32; SHARING_WATCHED_MAX],
    /// Whether there is a child whose end cannot be seen.
    for_good: AtomicBool,
}

impl Sharing {
    pub(crate) const fn new() -> Self {
        Self {
            opener: AtomicUsize::new(0),
            watched: AtomicU32::new(0),
            words: [const { AtomicU32::new(FREE) }; SHARING_WATCHED_MAX],
            for_good: AtomicBool::new(false),
        }
    }

    /// Waits until no other thread opens the slots. A signal handler on the opener's thread does
    /// not wait.
    fn wait_for_opener(&self) {
        let me = Linux::thread();
        let mut looks = 0;
        loop {
            // SeqCst: pairs with the count in `open`. Either this load sees the opener, or the
            // opener sees the count.
            let opener = self.opener.load(SeqCst);
            if opener == 0 || opener == me {
                return;
            }
            looks += 1;
            pause(looks);
        }
    }

    /// Resets everything for a new process, which shares its memory with nobody.
    fn reset(&self) {
        // Relaxed: the child of a fork has one thread.
        self.opener.store(0, Relaxed);
        self.watched.store(0, Relaxed);
        self.words.iter().for_each(|word| word.store(FREE, Relaxed));
        self.for_good.store(false, Relaxed);
    }
}

/// Waits a moment before the next load.
fn pause(looks: u32) {
    if looks < SHARING_SPINS {
        core::hint::spin_loop();
    } else {
        sys::futex_wait_for(&0, 0, 1);
    }
}

impl Linux {
    /// Records that a child is about to be born that shares our memory.
    ///
    /// On return no other thread is opening the slots.
    pub fn vfork_begins(&self) {
        // SeqCst: pairs with the opener; see `wait_for_opener`. The child is born later, on this
        // thread.
        self.open.fetch_sub(VFORK, SeqCst);
        self.sharing.wait_for_opener();
    }

    /// Records that a child that shared our memory is gone, or was never born. Returns whether it
    /// was the last.
    pub fn vfork_ends(&self) -> bool {
        // AcqRel: the child's writes come before the next sequence.
        self.open.fetch_add(VFORK, AcqRel) + VFORK > IN_VFORK
    }

    /// Whether a child that shares our memory may live.
    pub fn in_vfork(&self) -> bool {
        // SeqCst: pairs with `vfork_begins`; a child sees what its parent wrote before.
        self.open.load(SeqCst) <= IN_VFORK
    }

    /// Whether this task may be a child that shares its parent's memory.
    ///
    /// The first process of a PID namespace cannot tell by its id: a child in a new namespace has
    /// the same id. There every task counts as such a child while one may live.
    pub fn is_vfork_child(&self) -> bool {
        // Relaxed: the child of a fork stores its id before any other use.
        let pid = self.pid.load(Relaxed);
        self.in_vfork() && (pid == 1 || sys::getpid() != pid)
    }

    /// Takes a word for a child that its parent does not wait for, after
    /// [`vfork_begins`](Self::vfork_begins). The kernel is to clear the word at the child's end
    /// (`CLONE_CHILD_CLEARTID`). `None` if all words are in use.
    pub fn watch(&self) -> Option<&AtomicU32> {
        let take = |word: &&AtomicU32| {
            // Acquire: pairs with the word's previous user.
            word.compare_exchange(FREE, LIVES, Acquire, Relaxed).is_ok()
        };
        let word = self.sharing.words.iter().find(take)?;
        // Relaxed: a hint for `reap`. The child is born later, on this thread.
        self.sharing.watched.fetch_add(1, Relaxed);
        Some(word)
    }

    /// The word at this address, if it is one of the words of [`watch`](Self::watch).
    pub fn watched(&self, address: usize) -> Option<&AtomicU32> {
        let mut words = self.sharing.words.iter();
        words.find(|word| word.as_ptr() as usize == address)
    }

    /// Gives back the word of a child that was not born. The caller ends the count of this sharer.
    pub fn unwatch(&self, word: &AtomicU32) {
        // Relaxed: as in `watch`. Release: pairs with the word's next user.
        self.sharing.watched.fetch_sub(1, Relaxed);
        word.store(FREE, Release);
    }

    /// Records that the end of a child cannot be seen: slots stay closed. The first such child
    /// stays counted; later ones are not.
    pub fn keep_closed(&self) {
        // Relaxed: the flag orders nothing.
        if self.sharing.for_good.swap(true, Relaxed) {
            self.vfork_ends();
        }
    }

    /// Whether children are watched.
    #[inline]
    pub fn is_watching(&self) -> bool {
        // Relaxed: a hint; `reap` loads each word itself.
        self.sharing.watched.load(Relaxed) != 0
    }

    /// Counts the watched children that have ended. Returns whether the last child that shared our
    /// memory has.
    #[cold]
    pub fn reap(&self) -> bool {
        let mut last = false;
        for word in &self.sharing.words {
            // Acquire: sees all that the child did. Only one thread counts each word.
            if word.compare_exchange(ENDED, FREE, Acquire, Relaxed).is_ok() {
                // Relaxed: a hint.
                self.sharing.watched.fetch_sub(1, Relaxed);
                last = self.vfork_ends();
            }
        }
        last
    }

    /// Runs `open` if no child that shares our memory may live, then `close` if one may.
    pub fn reopen(&self, open: impl FnOnce(), close: impl FnOnce()) {
        let me = Self::thread();
        // Relaxed: only this thread stores its own value.
        let is_nested = self.sharing.opener.load(Relaxed) == me;
        let mut looks = 0;
        // SeqCst: pairs with the count, as in `wait_for_opener`.
        while !is_nested
            && (self.sharing.opener)
                .compare_exchange(0, me, SeqCst, Relaxed)
                .is_err()
        {
            looks += 1;
            pause(looks);
        }
        if !self.in_vfork() {
            open();
        }
        // A signal handler on this thread may have begun a child without waiting.
        if self.in_vfork() {
            close();
        }
        if !is_nested {
            // Release: publishes what was opened.
            self.sharing.opener.store(0, Release);
        }
    }

    /// Records that this is a new process with its own memory, after a fork.
    ///
    /// The kernel copies a registration with the memory, but a child that shared its parent's
    /// memory had none to copy. So if the fork may have come from such a child, the process
    /// registers now.
    pub fn is_child_of_fork(&self) {
        let may_be_unregistered = self.in_vfork();
        self.sharing.reset();
        // Relaxed, here and below: the child has one thread.
        self.pid.store(sys::getpid(), Relaxed);
        self.advice.is_child_of_fork();
        self.refused.is_child_of_fork();
        callers::is_child_of_fork();
        // Relaxed: as above.
        self.open.store(self.at_rest.load(Relaxed), Relaxed);
        if may_be_unregistered
            && let Some(area) = self.area()
            && !area.register_copy()
        {
            // Relaxed: as above. No process has the id 0, so nobody takes a slot.
            self.open.fetch_sub(VFORK, Relaxed);
            self.pid.store(0, Relaxed);
        }
    }
}
