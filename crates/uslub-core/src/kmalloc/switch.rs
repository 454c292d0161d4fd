//! Debugs size classes of a running process, and stops that again: `slab_debug` at any time.
//!
//! A debugged class has a *twin*: a cache with an identity and slabs of its own. The plain cache
//! stays, with the objects that it has. A free finds the cache of its object by the page map, so
//! each object is freed as what it is, whatever was switched meanwhile.
//!
//! | class | its words | an allocation | a free of a plain object | of a twin's |
//! |---|---|---|---|---|
//! | plain | open | from its sheaves | to its sheaves | checked by the twin |
//! | debugged | closed (`percpu::closed`) | from the twin | to its slab | as above |
//!
//! Z, P and U change the layout of a slot. So each set of them has a twin of its own, at most eight
//! a class. F, T and A are switched in the twin. A twin is made when it is first wanted, and stays.
//!
//! Order of a switch, under `slab_mutex`:
//!
//! 1. Make what is missing: the plain cache and the twin. Without memory nothing has changed.
//! 2. Close the words of the classes that are debugged from now on. An allocation still gets a
//!    plain object, from a slab. Without a fence nothing has changed.
//! 3. Direct the classes to their twins, or back; then open the words of those that are plain.
//!
//! A thread that is in the middle of an allocation may still get a plain object. Any thread may
//! call.

use crate::args::CreateError;
use crate::cache::KmemCache;
use crate::cache::allocator::Allocator;
use crate::cache::cache_list::CacheList;
use crate::debug::DebugFlags;
use crate::debug::options::{LETTERS, SlabDebug, matches};
use crate::kmalloc::class::class_name;
use crate::kmalloc::{CLASS_MAX, NR_CLASSES, class_size};
use crate::percpu::CacheId;
use crate::percpu::closed::CacheSet;
use crate::platform::Platform;

/// Why no size class was switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchError<'a> {
    /// A letter of `slab_debug` that there is not.
    UnknownLetter(char),
    /// A name that no size class has.
    UnknownClass(&'a str),
    /// A value such as `;`, that is about no size class.
    NoClass(&'a str),
    /// Objects of the hardened mode have trailers of their own.
    Hardened,
    /// The system refuses the fence by which other CPUs give up their sheaves.
    NoFence,
    /// A twin could not be made.
    Create(CreateError),
}

impl core::fmt::Display for SwitchError<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SwitchError::UnknownLetter(letter) => {
                write!(
                    f,
                    "slab_debug option '{letter}' unknown; known are {LETTERS}"
                )
            }
            SwitchError::UnknownClass(name) => write!(
                f,
                "slab_debug: '{name}' is no size class; known are kmalloc-{} to kmalloc-{}k, \
                 and prefixes with a *",
                class_size(1),
                CLASS_MAX / 1024
            ),
            SwitchError::NoClass(value) => write!(
                f,
                "slab_debug '{value}' switches nothing; it takes letters ({LETTERS}), a comma and \
                 names of size classes"
            ),
            SwitchError::Hardened => f.write_str(
                "slab_debug cannot be switched with hardened=1: each object is checked already",
            ),
            SwitchError::NoFence => f.write_str(
                "slab_debug cannot be switched here: the system refuses membarrier, so other CPUs \
                 keep their objects; set slab_debug at the start of the process",
            ),
            SwitchError::Create(error) => write!(f, "slab_debug: {error}"),
        }
    }
}

impl core::error::Error for SwitchError<'_> {}

impl From<CreateError> for SwitchError<'_> {
    fn from(error: CreateError) -> Self {
        Self::Create(error)
    }
}

/// The flags that decide the layout of a slot.
const LAYOUT: DebugFlags = DebugFlags::METADATA;

/// The identities of the size classes that a value is about.
fn classes_of(options: SlabDebug<'_>) -> impl Iterator<Item = CacheId> {
    let ids = (1..=NR_CLASSES).map(CacheId::from_index);
    ids.filter(move |id| options.is_about(name_of(*id).as_str()))
}

fn name_of(id: CacheId) -> crate::cache::text::Name<16> {
    class_name("kmalloc", class_size(id.index()))
}

/// The options of a value of which each letter and each name is known.
fn checked(value: &str) -> Result<SlabDebug<'_>, SwitchError<'_>> {
    let options = SlabDebug::new(value);
    let mut unknown = None;
    options.check(|letter| unknown = unknown.or(Some(letter)));
    if let Some(letter) = unknown {
        return Err(SwitchError::UnknownLetter(letter));
    }
    let is_class = |pattern| {
        (1..=NR_CLASSES)
            .map(CacheId::from_index)
            .any(|id| matches(pattern, name_of(id).as_str()))
    };
    if let Some(name) = options.patterns().find(|&pattern| !is_class(pattern)) {
        return Err(SwitchError::UnknownClass(name));
    }
    match classes_of(options).next() {
        Some(_) => Ok(options),
        None => Err(SwitchError::NoClass(value)),
    }
}

impl<P: Platform> Allocator<P> {
    /// Debugs size classes from now on, or stops that, by a value of `slab_debug`: those that it
    /// names, or all of them by a block without names. Other classes stay as they are.
    ///
    /// Objects that are in use stay where they are, and are checked as they were allocated.
    ///
    /// ```no_run
    /// # fn demo<P: uslub_core::platform::Platform>(slub: &uslub_core::Allocator<P>) {
    /// slub.switch_classes("FZPU,kmalloc-48,kmalloc-64").unwrap();
    /// slub.switch_classes("-").unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If a letter or a name is unknown, there is no memory for a twin, or the system cannot fence
    /// other CPUs. Then nothing is switched.
    pub fn switch_classes<'v>(&self, value: &'v str) -> Result<(), SwitchError<'v>> {
        let options = checked(value)?;
        if self.is_hardened() {
            return Err(SwitchError::Hardened);
        }
        let (mut on, mut off) = (CacheSet::EMPTY, CacheSet::EMPTY);
        {
            let mut list = self.slab_mutex.lock();
            self.reserve_twins(&mut list);
            for id in classes_of(options) {
                if self.make_twin(&mut list, id, options)? {
                    on.insert(id);
                } else {
                    off.insert(id);
                }
            }
            if !self.close_caches(on) {
                return Err(SwitchError::NoFence);
            }
            for id in classes_of(options) {
                self.direct(id, options);
            }
            self.while_draining(|| self.open_draining(off));
        }
        // Objects in barns would wait for nobody.
        for cache in on.iter().filter_map(|id| self.cache(id)) {
            self.flush(cache);
        }
        Ok(())
    }

    /// The flags that a value gives a size class.
    fn class_flags(&self, id: CacheId, options: SlabDebug<'_>) -> DebugFlags {
        self.with_class_args(id, true, |args| self.debug_flags_by(options, args))
    }

    /// Makes the plain cache of a class, and the twin that a value asks for, unless they exist.
    /// Returns whether it asks for a twin. The caller holds `slab_mutex`.
    #[inline(never)]
    fn make_twin(
        &self,
        list: &mut CacheList<P>,
        id: CacheId,
        options: SlabDebug<'_>,
    ) -> Result<bool, CreateError> {
        let plain = match self.cache(id).filter(|cache| cache.id == id) {
            Some(plain) => plain,
            None => self.with_class_args(id, false, |args| self.create_locked(id, args, None))?,
        };
        let flags = self.class_flags(id, options);
        if flags.is_slow() && twin_with(plain, flags).is_none() {
            let twin = self.with_class_args(id, true, |args| {
                args.debug = flags;
                self.create_next(list, args)
            })?;
            plain.add_twin(twin);
        }
        Ok(flags.is_slow())
    }

    /// Directs a class to the twin that a value asks for, or to its plain cache. Both exist.
    fn direct(&self, id: CacheId, options: SlabDebug<'_>) {
        let Some(plain) = self.cache(id) else {
            return;
        };
        let flags = self.class_flags(id, options);
        let twin = twin_with(plain, flags).filter(|_| flags.is_slow());
        if let Some(twin) = twin {
            twin.debug.set(flags);
        }
        plain.serve_by(twin);
    }
}

/// The twin of a class whose slots have the layout that these flags need.
fn twin_with<P: Platform>(plain: &KmemCache<P>, flags: DebugFlags) -> Option<&KmemCache<P>> {
    plain
        .twins()
        .find(|twin| twin.debug.get() & LAYOUT == flags & LAYOUT)
}
