//! Tasks that share our memory although the kernel does not know their rseq area.
//!
//! A child of `vfork`, or of `clone` with `CLONE_VM`, runs in its parent's memory. Mostly it has
//! its parent's thread pointer too, so the parent's rseq area shows it a valid CPU number. The
//! kernel does not know the child: it restarts no sequence of it. While such a child lives,
//! [`Linux::open`] is closed, and a task whose process id is not ours takes no per-CPU slot: it is
//! served from slabs.
//!
//! | event | by | effect |
//! |---|---|---|
//! | [`vfork_begins`](Linux::vfork_begins) | the parent, before the child is born | one more may share |
//! | [`vfork_ends`](Linux::vfork_ends) | the parent, when the child is gone | one fewer shares |
//! | [`watch`](Linux::watch) | the parent of a child for which it does not wait | the kernel clears a word at the child's end |
//! | [`reap`](Linux::reap) | slow paths, while a word is in use | one fewer shares, for each cleared word |
//! | [`keep_closed`](Linux::keep_closed) | the parent of a child whose end nobody can see | closed for good |
//!
//! Opening again is several stores, so it is done under [`Sharing::opener`]: a `vfork` that begins
//! meanwhile waits until they are done, and closes after them. A handler that interrupts the
//! opener's thread does not wait for itself.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use uslub_core::platform::Platform;

use crate::{Linux, sys};

/// What a child that shares our memory takes off [`Linux::open`].
pub(crate) const VFORK: i64 = 1 << 48;
/// Most that is left of [`Linux::open`] then.
const IN_VFORK: i64 = i32::MAX as i64 - VFORK;
/// Children whose end is watched at a time.
const WATCHED: usize = 64;
/// Looks before a thread that waits for the opener sleeps: the opener may need this CPU.
const LOOKS: u32 = 100;
/// A word's states: nobody uses it, its child lives, its child has ended (the kernel's doing).
const FREE: u32 = 1;
const LIVES: u32 = u32::MAX;
const ENDED: u32 = 0;

/// Who shares our memory, and who opens the slots again.
pub(crate) struct Sharing {
    /// Thread pointer of the thread that opens; 0 for none.
    opener: AtomicUsize,
    /// Words in use.
    watched: AtomicU32,
    /// One for each watched child: [`FREE`], [`LIVES`] or [`ENDED`].
    words: [AtomicU32; WATCHED],
    /// Whether the end of a child cannot be seen.
    for_good: AtomicBool,
}

impl Sharing {
    pub(crate) const fn new() -> Self {
        Self {
            opener: AtomicUsize::new(0),
            watched: AtomicU32::new(0),
            words: [const { AtomicU32::new(FREE) }; WATCHED],
            for_good: AtomicBool::new(false),
        }
    }

    /// Waits until no other thread opens. A thread that interrupted itself in there does not wait.
    fn wait_for_opener(&self) {
        let me = Linux::thread();
        let mut looks = 0;
        loop {
            // SeqCst: with the count in `open`. Either this load sees the opener, or the opener
            // sees the count.
            let opener = self.opener.load(SeqCst);
            if opener == 0 || opener == me {
                return;
            }
            looks += 1;
            pause(looks);
        }
    }

    /// A new process shares its memory with nobody.
    fn reset(&self) {
        // Relaxed: the child of a fork has one thread.
        self.opener.store(0, Relaxed);
        self.watched.store(0, Relaxed);
        self.words.iter().for_each(|word| word.store(FREE, Relaxed));
        self.for_good.store(false, Relaxed);
    }
}

/// Waits a moment before the next look.
fn pause(looks: u32) {
    if looks < LOOKS {
        core::hint::spin_loop();
    } else {
        sys::futex_wait_for(&0, 0, 1);
    }
}

impl Linux {
    /// Says that a child is about to be born that shares our memory.
    ///
    /// On return no thread is opening the slots.
    pub fn vfork_begins(&self) {
        // SeqCst: with the opener; see `wait_for_opener`. The child itself is born after it, on
        // this thread.
        self.open.fetch_sub(VFORK, SeqCst);
        self.sharing.wait_for_opener();
    }

    /// Says that such a child is gone, or was never born; returns whether it was the last.
    pub fn vfork_ends(&self) -> bool {
        // AcqRel: what the child did comes before the next sequence.
        self.open.fetch_add(VFORK, AcqRel) + VFORK > IN_VFORK
    }

    /// Whether a child may live that shares our memory.
    pub fn in_vfork(&self) -> bool {
        // SeqCst: with `vfork_begins`; a child sees what its parent wrote before.
        self.open.load(SeqCst) <= IN_VFORK
    }

    /// Whether this task may be a child that shares its parent's memory.
    ///
    /// The first process of a PID namespace cannot tell by its number: a child in a new namespace
    /// has the same one. There every task counts as such a child while there may be one.
    pub fn is_vfork_child(&self) -> bool {
        // Relaxed: the child of a fork writes it before it does anything with this.
        let pid = self.pid.load(Relaxed);
        self.in_vfork() && (pid == 1 || sys::getpid() != pid)
    }

    /// A word for a child for which its parent does not wait, after
    /// [`vfork_begins`](Self::vfork_begins). The kernel is to clear it at the child's end
    /// (`CLONE_CHILD_CLEARTID`). `None` when all are in use.
    pub fn watch(&self) -> Option<&AtomicU32> {
        let take = |word: &&AtomicU32| {
            // Acquire: the word's last user has left it.
            word.compare_exchange(FREE, LIVES, Acquire, Relaxed).is_ok()
        };
        let word = self.sharing.words.iter().find(take)?;
        // Relaxed: a hint for `reap`, by the thread whose child is about to be born.
        self.sharing.watched.fetch_add(1, Relaxed);
        Some(word)
    }

    /// The word at this address, if it is one of [`watch`](Self::watch)'s.
    pub fn watched(&self, address: usize) -> Option<&AtomicU32> {
        let mut words = self.sharing.words.iter();
        words.find(|word| word.as_ptr() as usize == address)
    }

    /// Gives a word back whose child was not born. The count of sharers is the caller's to end.
    pub fn unwatch(&self, word: &AtomicU32) {
        // Relaxed: as in `watch`. Release: whoever takes the word next comes after.
        self.sharing.watched.fetch_sub(1, Relaxed);
        word.store(FREE, Release);
    }

    /// Says that the end of a child cannot be seen: slots stay closed. The count is kept once.
    pub fn keep_closed(&self) {
        // Relaxed: a flag by itself.
        if self.sharing.for_good.swap(true, Relaxed) {
            self.vfork_ends();
        }
    }

    /// Whether children are watched.
    #[inline]
    pub fn is_watching(&self) -> bool {
        // Relaxed: a glance; `reap` looks again.
        self.sharing.watched.load(Relaxed) != 0
    }

    /// Notes which of the watched children are gone; returns whether the last that shares our
    /// memory is.
    #[cold]
    pub fn reap(&self) -> bool {
        let mut last = false;
        for word in &self.sharing.words {
            // Acquire: what the child did, up to its end. One thread counts it.
            if word.compare_exchange(ENDED, FREE, Acquire, Relaxed).is_ok() {
                // Relaxed: a hint.
                self.sharing.watched.fetch_sub(1, Relaxed);
                last = self.vfork_ends();
            }
        }
        last
    }

    /// Runs `open`, unless a child may live that shares our memory; `close` undoes it.
    pub fn reopen(&self, open: impl FnOnce(), close: impl FnOnce()) {
        let me = Self::thread();
        // Relaxed: only this thread writes its own value.
        let is_nested = self.sharing.opener.load(Relaxed) == me;
        let mut looks = 0;
        // SeqCst: with the count, as in `wait_for_opener`.
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
        // A handler of this thread may have begun one: it did not wait.
        if self.in_vfork() {
            close();
        }
        if !is_nested {
            // Release: with what was opened.
            self.sharing.opener.store(0, Release);
        }
    }

    /// Says that this is a new process with memory of its own, after a fork.
    ///
    /// The kernel copies a registration with the memory, but a child that shared its parent's had
    /// none to copy. So where the fork may have come from such a child, the process registers now.
    pub fn is_child_of_fork(&self) {
        let may_be_unregistered = self.in_vfork();
        self.sharing.reset();
        // Relaxed, here and below: the child has one thread.
        self.pid.store(sys::getpid(), Relaxed);
        self.advice.is_child_of_fork();
        self.refused.is_child_of_fork();
        // Relaxed: as above.
        self.open.store(self.at_rest.load(Relaxed), Relaxed);
        if may_be_unregistered
            && let Some(area) = self.area()
            && !area.register_copy()
        {
            // Relaxed: as above. No process has the number 0, so nobody takes a slot.
            self.open.fetch_sub(VFORK, Relaxed);
            self.pid.store(0, Relaxed);
        }
    }
}
