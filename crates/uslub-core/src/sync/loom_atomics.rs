//! A model's atomics, which lie where the machine's would lie.
//!
//! The allocator's structures consist of zeroed memory, have exact layouts and are found by
//! arithmetic. So an atomic of a model has the size of the real one and holds a plain value. The
//! model checker's own object is found by the atomic's address. It is made when a run begins, from
//! the plain value.
//!
//! | address | operation |
//! |---|---|
//! | outside a model | changes the plain value |
//! | in a model, not [watched](watch) | the same: one step, without other threads, orders nothing |
//! | watched | as the model checker decides; other threads may run before it |
//!
//! The plain value follows the model's, so a read after the model sees the last value. All threads
//! of a model run on one thread of the system, one at a time.

extern crate std;

use core::cell::{Cell, RefCell, UnsafeCell};
use core::ops::Range;
use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::vec::Vec;

use loom::sync::atomic::AtomicU64 as Model;

pub use loom::hint::spin_loop;

/// The panic of a run that met an atomic that no earlier run has used: the model must begin anew.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;

type Cell0 = loom::cell::UnsafeCell<()>;
/// Function that reads the plain value at an address.
type Look = fn(usize) -> u64;

std::thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static NEWS: Cell<bool> = const { Cell::new(false) };
    static WATCHED: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
    /// Atomics that were ever used, and words that were ever announced.
    static KNOWN: RefCell<BTreeMap<usize, Look>> = const { RefCell::new(BTreeMap::new()) };
    static WORDS: RefCell<BTreeSet<usize>> = const { RefCell::new(BTreeSet::new()) };
    /// The checker's objects of this run.
    static ATOMICS: RefCell<HashMap<usize, Rc<Model>>> = RefCell::default();
    static CELLS: RefCell<HashMap<usize, Rc<Cell0>>> = RefCell::default();
}

/// Includes the atomics in a range of addresses in this thread's future models.
pub fn watch(start: usize, bytes: usize) {
    WATCHED.with_borrow_mut(|ranges| ranges.push(start..start + bytes));
}

fn is_watched(address: usize) -> bool {
    WATCHED.with_borrow(|ranges| ranges.iter().any(|range| range.contains(&address)))
}

/// Begins a run of a model, before its other threads.
///
/// An object of the checker counts as written by the thread that makes it. So all are made here.
pub fn begin() {
    forget();
    NEWS.set(false);
    KNOWN.with_borrow(|known| {
        for (&address, look) in known.iter().filter(|&(&address, _)| is_watched(address)) {
            let made = Rc::new(Model::new(look(address)));
            ATOMICS.with_borrow_mut(|all| all.insert(address, made));
        }
    });
    WORDS.with_borrow(|words| {
        for &word in words {
            CELLS.with_borrow_mut(|all| all.insert(word, Rc::new(Cell0::new(()))));
        }
    });
    ACTIVE.set(true);
}

/// Ends a run of a model, inside it, after its other threads have ended.
pub fn end() {
    ACTIVE.set(false);
    forget();
    if has_news() {
        std::panic::panic_any(Unknown);
    }
}

/// Whether the run met an atomic that no earlier run has used. Such a run proves nothing.
pub fn has_news() -> bool {
    NEWS.get()
}

/// Whether a run of a model is active.
pub fn is_active() -> bool {
    ACTIVE.get() && !std::thread::panicking()
}

/// Ends a failed run from outside.
pub fn abandon() {
    ACTIVE.set(false);
    forget();
}

fn forget() {
    // The checker's objects must not be dropped outside their run.
    let gone: Vec<_> = ATOMICS.take().into_values().collect();
    core::mem::forget(gone);
    let gone: Vec<_> = CELLS.take().into_values().collect();
    core::mem::forget(gone);
}

fn model(address: usize, look: Look) -> Option<Rc<Model>> {
    if !is_active() {
        KNOWN.with_borrow_mut(|known| known.insert(address, look));
        return None;
    }
    if !is_watched(address) {
        return None;
    }
    let found = ATOMICS.with_borrow(|all| all.get(&address).cloned());
    if found.is_none() {
        KNOWN.with_borrow_mut(|known| known.insert(address, look));
        NEWS.set(true);
    }
    found
}

fn each_cell(start: usize, bytes: usize, visit: impl Fn(&Cell0)) {
    for word in (start / 8)..(start + bytes).div_ceil(8) {
        let cell = CELLS.with_borrow(|all| all.get(&word).cloned());
        let cell = cell.unwrap_or_else(|| {
            WORDS.with_borrow_mut(|words| words.insert(word));
            let made = Rc::new(Cell0::new(()));
            CELLS.with_borrow_mut(|all| all.insert(word, made.clone()));
            made
        });
        visit(&cell);
    }
}

/// Announces that the caller reads `bytes` bytes from `start` on.
pub fn reads<T>(start: *const T, bytes: usize) {
    if is_active() {
        each_cell(start as usize, bytes, |cell| cell.with(|_| ()));
    }
}

/// Announces that the caller writes `bytes` bytes from `start` on.
pub fn writes<T>(start: *const T, bytes: usize) {
    if is_active() {
        each_cell(start as usize, bytes, |cell| cell.with_mut(|_| ()));
    }
}

macro_rules! atomic {
    ($name:ident $(<$parameter:ident>)?, $value:ty, $into:expr, $from:expr) => {
        /// The type of this name in `core::sync::atomic`.
        #[repr(transparent)]
        pub struct $name $(<$parameter>)? (UnsafeCell<$value>);

        // SAFETY: the threads of a model run one at a time.
        unsafe impl $(<$parameter>)? Sync for $name $(<$parameter>)? {}
        // SAFETY: as above.
        unsafe impl $(<$parameter>)? Send for $name $(<$parameter>)? {}

        impl $(<$parameter>)? $name $(<$parameter>)? {
            /// An atomic with the value `value`.
            pub const fn new(value: $value) -> Self {
                Self(UnsafeCell::new(value))
            }

            fn now(&self) -> $value {
                // SAFETY: the threads of a model run one at a time.
                unsafe { *self.0.get() }
            }

            fn put(&self, value: $value) {
                // SAFETY: as above.
                unsafe { *self.0.get() = value }
            }

            fn model(&self) -> Option<Rc<Model>> {
                // SAFETY: the address of an atomic of this type.
                let look = |at: usize| $into(unsafe { (*(at as *const Self)).now() });
                model(self.0.get() as usize, look)
            }

            /// As in `core`.
            pub fn load(&self, order: Ordering) -> $value {
                // The caller's ordering, here and below.
                self.model().map_or_else(|| self.now(), |m| $from(m.load(order)))
            }

            /// As in `core`.
            pub fn store(&self, value: $value, order: Ordering) {
                if let Some(m) = self.model() {
                    m.store($into(value), order);
                }
                self.put(value);
            }

            /// As in `core`.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                let old = match self.model() {
                    Some(m) => $from(m.swap($into(value), order)),
                    None => self.now(),
                };
                self.put(value);
                old
            }

            /// As in `core`.
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let result = match self.model() {
                    Some(m) => m
                        .compare_exchange($into(old), $into(new), success, failure)
                        .map(|v| $from(v))
                        .map_err(|v| $from(v)),
                    None if self.now() == old => Ok(old),
                    None => Err(self.now()),
                };
                if result.is_ok() {
                    self.put(new);
                }
                result
            }

            /// As in `core`; never fails spuriously.
            pub fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }

            #[allow(dead_code, reason = "not for booleans and pointers")]
            fn change(&self, order: Ordering, change: impl Fn($value) -> $value) -> $value {
                let Some(m) = self.model() else {
                    let old = self.now();
                    self.put(change(old));
                    return old;
                };
                // The plain value is the last one, since one thread runs at a time: the
                // compare-and-swap succeeds at once.
                let mut old = self.now();
                while let Err(now) =
                    m.compare_exchange($into(old), $into(change(old)), order, Ordering::Relaxed)
                {
                    old = $from(now);
                }
                self.put(change(old));
                old
            }
        }
    };
}

macro_rules! number {
    ($($name:ident: $value:ty,)*) => {$(
        atomic!($name, $value, |v: $value| v as u64, |v: u64| v as $value);
        changes!($name, $value,
            fetch_add: <$value>::wrapping_add, fetch_sub: <$value>::wrapping_sub,
            fetch_or: core::ops::BitOr::bitor, fetch_and: core::ops::BitAnd::bitand,
            fetch_max: Ord::max, fetch_min: Ord::min);
    )*};
}

macro_rules! changes {
    ($name:ident, $value:ty, $($fetch:ident: $change:expr),*) => {
        impl $name {
            $(
                /// As in `core`.
                pub fn $fetch(&self, with: $value, order: Ordering) -> $value {
                    self.change(order, |old| $change(old, with))
                }
            )*
        }
    };
}

number! {
    AtomicU8: u8,
    AtomicU16: u16,
    AtomicU32: u32,
    AtomicU64: u64,
    AtomicUsize: usize,
}
atomic!(AtomicBool, bool, u64::from, |v: u64| v != 0);
atomic!(AtomicPtr<T>, *mut T, |p: *mut T| p as u64, |v: u64| v
    as *mut T);
