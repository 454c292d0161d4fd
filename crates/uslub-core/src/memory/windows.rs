//! Free windows of sheaves, in shards: one for a few neighbouring CPUs.
//!
//! With one list and one lock, 192 CPUs waited for it for half of their time and more. A CPU gives
//! to its own shard. It takes from its own shard too, or from another one where its own is empty:
//! what some CPUs give, others find. A [purge](FreeWindows::purge) gives the system pages of free
//! windows back.
//!
//! The words of a free window:
//!
//! | word | contents |
//! |---|---|
//! | 0 | the next free window |
//! | 1 | n: the number of purged system pages recorded here |
//! | 2 … n + 1 | their addresses |
//!
//! A system page may hold several windows. It is purged as a whole: all of its windows are in the
//! list, and only the first one's address is recorded. When the first one is handed out, the others
//! return to the list. No thread holds the locks of two shards, but for a purge: it holds the first
//! shard's, and takes the others one by one. Callers: `metadata`.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu::sheaf::{SHEAF_BYTES, Window};
use crate::platform::Platform;
use crate::policy::{WINDOW_SHARD_CPUS, WINDOW_SHARDS};
use crate::sync::atomic::AtomicUsize;
use crate::sync::{DeferStack, Lock, RawLock};

/// Purged system pages that one free window records, at most.
const KNOWN: usize = SHEAF_BYTES / 8 - 2;

/// The rest of a list behind the windows of one system page of `page` bytes. `None` unless the list
/// has all of the page's windows in order from `window` on, and none of them records purged pages.
///
/// # Safety
///
/// The caller owns the list's windows.
unsafe fn behind_page(window: NonNull<usize>, page: usize) -> Option<usize> {
    let start = window.as_ptr() as usize;
    if !start.is_multiple_of(page) {
        return None;
    }
    let mut next = start;
    for expected in (start..start + page).step_by(SHEAF_BYTES) {
        let window = next as *const usize;
        // SAFETY: a window of the list, as its address is the expected one.
        if next != expected || unsafe { window.add(1).read() } > 0 {
            return None;
        }
        // SAFETY: as above.
        next = unsafe { window.read() };
    }
    Some(next)
}

/// Merges two lists of windows, each in order of address.
///
/// # Safety
///
/// The caller owns the windows.
unsafe fn merged(mut a: usize, mut b: usize) -> usize {
    let mut head = 0;
    let mut link: *mut usize = &raw mut head;
    while a != 0 && b != 0 {
        let least = if a < b { &mut a } else { &mut b };
        let window = *least as *mut usize;
        // SAFETY: the list's head, or the first word of a window.
        unsafe {
            link.write(window as usize);
            *least = window.read();
        }
        link = window;
    }
    // SAFETY: as above; one of the lists is empty.
    unsafe { link.write(a | b) };
    head
}

/// Sorts a list of windows by address: a merge sort.
///
/// # Safety
///
/// The caller owns the windows.
unsafe fn sorted(mut list: usize) -> usize {
    // Entry k: empty, or 2^k windows in order.
    let mut runs = [0; usize::BITS as usize];
    while list != 0 {
        let window = list as *mut usize;
        let mut run = list;
        // SAFETY: a window of the list.
        unsafe {
            list = window.read();
            window.write(0);
        }
        let mut k = 0;
        while runs[k] != 0 {
            // SAFETY: windows of the list.
            run = unsafe { merged(core::mem::take(&mut runs[k]), run) };
            k += 1;
        }
        runs[k] = run;
    }
    // SAFETY: windows of the list.
    (runs.into_iter()).fold(0, |all, run| unsafe { merged(all, run) })
}

/// Takes a window from a list that is not empty.
///
/// # Safety
///
/// The caller owns the list's windows, with words as the module describes. `page` is the size of a
/// system page in bytes.
unsafe fn pop(list: &mut usize, page: usize) -> Option<NonNull<Window>> {
    let window = NonNull::new(*list as *mut usize)?;
    // SAFETY: a window of the list; so are the windows of a page that it records.
    unsafe {
        let known = window.add(1).read();
        if known == 0 {
            *list = window.read();
            return Some(window.cast());
        }
        window.add(1).write(known - 1);
        let first = window.add(1 + known).read();
        for other in (SHEAF_BYTES..page).step_by(SHEAF_BYTES) {
            let other = (first + other) as *mut usize;
            other.write(*list);
            other.add(1).write(0);
            *list = other as usize;
        }
        NonNull::new(first as *mut Window)
    }
}

/// Gives the system pages of the windows of `list` back, each of `page` bytes, and adds the windows
/// whose pages stay to `kept`.
///
/// # Safety
///
/// The caller owns the windows of both lists.
unsafe fn purge_list(platform: &impl Platform, page: usize, list: usize, kept: &mut usize) {
    let mut next = list;
    while let Some(window) = NonNull::new(next as *mut usize) {
        // SAFETY: as in `pop`; the caller owns the window.
        unsafe {
            let knows_some = window.add(1).read() > 0;
            match NonNull::new(*kept as *mut usize) {
                Some(first) if !knows_some && first.add(1).read() < KNOWN => {
                    if let Some(behind) = behind_page(window, page)
                        && platform.purge(window.cast(), page)
                    {
                        let known = first.add(1).read() + 1;
                        first.add(1).write(known);
                        first.add(1 + known).write(window.as_ptr() as usize);
                        next = behind;
                    } else {
                        next = window.read();
                        window.write(first.read());
                        first.write(window.as_ptr() as usize);
                    }
                }
                _ => {
                    next = window.read();
                    window.write(*kept);
                    *kept = window.as_ptr() as usize;
                }
            }
        }
    }
}

/// The free windows of a few CPUs. A cache line of its own.
#[repr(align(64))]
struct Shard<P> {
    /// Free windows: linked by their first words.
    list: Lock<P, usize>,
    /// Windows freed in a context that may not wait, by address.
    pending: DeferStack<0>,
}

/// All free windows.
pub(super) struct FreeWindows<P> {
    shards: [Shard<P>; WINDOW_SHARDS],
    /// One bit a shard that may have windows. A hint: it may miss some that are pending.
    filled: AtomicUsize,
}

const _: () = assert!(WINDOW_SHARDS <= usize::BITS as usize);

impl<P: Platform> FreeWindows<P> {
    pub(super) const fn new() -> Self {
        Self {
            shards: [const {
                Shard {
                    list: Lock::new(0),
                    pending: DeferStack::new(),
                }
            }; WINDOW_SHARDS],
            filled: AtomicUsize::new(0),
        }
    }

    /// The shard of this CPU.
    fn home(platform: &P) -> usize {
        platform.cpu() / WINDOW_SHARD_CPUS % WINDOW_SHARDS
    }

    /// Notes whether a shard has windows, if that has changed.
    fn note(&self, shard: usize, had: bool, has: bool) {
        // Relaxed: a hint.
        match (had, has) {
            (false, true) => self.filled.fetch_or(1 << shard, Relaxed),
            (true, false) => self.filled.fetch_and(!(1 << shard), Relaxed),
            _ => return,
        };
    }

    /// Takes a window of one shard; `None` if it has none, or if its lock is held and `spin` is
    /// false.
    fn take_from(&self, shard: usize, platform: &P, spin: bool) -> Option<NonNull<Window>> {
        let place = &self.shards[shard];
        let mut list = place.list.lock_if(spin)?;
        let had = *list != 0;
        if !had {
            *list = place.pending.take_all();
        }
        // SAFETY: the windows of the list are ours.
        let window = unsafe { pop(&mut list, platform.system_page()) };
        self.note(shard, had, *list != 0);
        window
    }

    /// Takes a free window, of another shard if this CPU's has none; with `spin` false it does not
    /// wait for a lock.
    pub(super) fn take(&self, platform: &P, spin: bool) -> Option<NonNull<Window>> {
        let home = Self::home(platform);
        if let Some(window) = self.take_from(home, platform, spin) {
            return Some(window);
        }
        // Relaxed: a hint.
        let mut others = self.filled.load(Relaxed) & !(1 << home);
        while others != 0 {
            // The next one behind the CPU's own, so that CPUs do not all meet at the first.
            let ahead = others & (usize::MAX << home);
            let shard = if ahead == 0 { others } else { ahead }.trailing_zeros() as usize;
            if let Some(window) = self.take_from(shard, platform, spin) {
                return Some(window);
            }
            others &= !(1 << shard);
        }
        None
    }

    /// Takes a window back; with `spin` false it does not wait for a lock.
    pub(super) fn give(&self, platform: &P, window: NonNull<Window>, spin: bool) {
        let link = window.cast::<usize>();
        let address = window.as_ptr() as usize;
        // SAFETY: the caller owned the window and gives it to us.
        unsafe { link.add(1).write(0) };
        // SAFETY: as above.
        let link_to = |next| unsafe { link.write(next) };
        let shard = Self::home(platform);
        if let Some(mut list) = self.shards[shard].list.lock_if(spin) {
            let had = *list != 0;
            link_to(*list);
            *list = address;
            self.note(shard, had, true);
        } else {
            self.shards[shard].pending.push(address, link_to);
            // Relaxed: a hint.
            let had = self.filled.load(Relaxed) & 1 << shard != 0;
            self.note(shard, had, true);
        }
    }

    /// Gives the system pages of free windows back, except for one window in 511: it records the
    /// other 510. What is left lies in the first shard.
    pub(super) fn purge(&self, platform: &P) {
        let page = platform.system_page();
        let mut kept = self.shards[0].list.lock();
        let had = *kept != 0;
        // Who finds no window meanwhile waits for the first shard, and maps no new one.
        self.note(0, had, true);
        let mut sorted_all = 0;
        for (shard, place) in self.shards.iter().enumerate() {
            let own = match shard {
                0 => core::mem::take(&mut *kept),
                _ => {
                    let mut list = place.list.lock();
                    self.note(shard, *list != 0, false);
                    core::mem::take(&mut *list)
                }
            };
            for list in [own, place.pending.take_all()] {
                // SAFETY: this thread owns the lists.
                unsafe {
                    if page > SHEAF_BYTES {
                        sorted_all = merged(sorted_all, sorted(list));
                    } else {
                        purge_list(platform, page, list, &mut kept);
                    }
                }
            }
        }
        // SAFETY: as above.
        unsafe { purge_list(platform, page, sorted_all, &mut kept) };
        self.note(0, true, *kept != 0);
    }

    /// The locks without the lists, for a fork.
    pub(super) fn raw_locks(&self) -> impl Iterator<Item = &RawLock<P>> {
        self.shards.iter().map(|shard| shard.list.raw())
    }
}
