//! Misuse and corruption: all that the allocator reports about its callers, and the texts.
//!
//! A text names the cache, the call, the pointer and the reason, as far as they are known. Callers
//! make a [`Misuse`] only in a cold function of its own, so their hot code has a jump for it and no
//! stack. Formatting needs no heap; the [`Platform`] writes the text.

use core::fmt;

use crate::platform::Platform;

/// A wrong call, or a trace of one.
#[derive(Clone, Copy, Debug)]
pub enum Misuse<'a> {
    /// `call` got a pointer that it cannot take.
    Object {
        /// The cache that the call or the object belongs to, if known.
        cache: Option<&'a str>,
        /// The call.
        call: &'a str,
        /// The pointer.
        object: *mut u8,
        /// What is wrong with the pointer.
        why: Reason,
    },
    /// An object of the cache `other` was freed in the name of `cache`.
    OtherCache {
        /// The cache of the call.
        cache: &'a str,
        /// The object.
        object: *mut u8,
        /// The cache of the object.
        other: &'a str,
        /// Whether the object is left as it was.
        leaks: bool,
    },
    /// `call` uses a destroyed cache.
    Ended {
        /// The destroyed cache.
        cache: &'a str,
        /// The call.
        call: &'a str,
    },
    /// A cache is destroyed again.
    DestroyedTwice {
        /// The destroyed cache.
        cache: &'a str,
    },
    /// Zeroed objects of a cache with a constructor.
    ZeroedObjects {
        /// The cache.
        cache: &'a str,
    },
    /// Zeroed elements of a memory pool.
    ZeroedElements,
    /// `call` got a null pointer instead of a `what`.
    Null {
        /// The call.
        call: &'a str,
        /// The missing argument.
        what: &'a str,
    },
}

/// What is wrong with a pointer or with the memory that it points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Outside all memory of the allocator.
    Foreign,
    /// As `Foreign`, but a mapping of the allocator may have been there.
    ForeignOrFreed,
    /// In free pages.
    FreePages,
    /// In a slab, behind all slots that were ever handed out.
    FreshSlot,
    /// In a run of pages that belongs to no cache.
    Large,
    /// Inside an object of a slab or of a run of pages.
    Interior,
    /// Inside a mapping.
    InsideHuge,
    /// The start of a mapping that was freed.
    FreedHuge,
    /// In its slab's freelist.
    Freed,
    /// More objects of a slab are freed than are in use.
    NotInUse,
    /// A slab with objects in use was emptied.
    EmptySlab,
    /// A mapping, in a context without system calls.
    HugeLeaks,
    /// A free after a grace period, and no source of grace periods.
    NoGracePeriod,
    /// A free object's link leads out of its slab.
    Overwritten,
    /// A freelist ends before all its objects are taken.
    ShortList,
    /// A freelist leaves its slab before its end.
    EarlyEnd,
    /// A slab, whose freelist leads out of it or back to itself.
    BadFreelist,
}

impl Reason {
    fn text(self) -> &'static str {
        match self {
            Reason::Foreign => "not allocated here (a foreign pointer)",
            Reason::ForeignOrFreed => {
                "not allocated here (a foreign pointer), or a double free of a huge object"
            }
            Reason::FreePages => "double free or never allocated: its pages are free",
            Reason::FreshSlot => "double free or never allocated: its slot is fresh",
            Reason::Large => "never allocated from a cache (a large object or a part of one)",
            Reason::Interior => "not the start of an object (an interior pointer)",
            Reason::InsideHuge => "inside a huge object (an interior pointer)",
            Reason::FreedHuge => "double free: this huge object was freed already",
            Reason::Freed => "double free: the object is free already",
            Reason::NotInUse => "double free: its slab has no such object in use",
            Reason::EmptySlab => "its slab is empty, though some of it is in use",
            Reason::HugeLeaks => "a huge object cannot be freed without the system and leaks",
            Reason::NoGracePeriod => "no grace period was set",
            Reason::Overwritten => "the link inside this free object was overwritten",
            Reason::ShortList => "its slab's freelist is shorter than its counter says",
            Reason::EarlyEnd => "a freelist ends before its count",
            Reason::BadFreelist => "its slab's freelist leads elsewhere or has a cycle",
        }
    }
}

impl fmt::Display for Misuse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Misuse::Object {
                cache,
                call,
                object,
                why,
            } => {
                if let Some(cache) = cache {
                    write!(f, "cache '{cache}': ")?;
                }
                write!(f, "{call} {object:p}: {}", why.text())
            }
            Misuse::OtherCache {
                cache,
                object,
                other,
                leaks,
            } => {
                let end = if leaks { " and is not freed" } else { "" };
                write!(
                    f,
                    "cache '{cache}': free of {object:p}: it belongs to cache '{other}'{end}"
                )
            }
            Misuse::Ended { cache, call } => write!(f, "cache '{cache}': {call} after its end"),
            Misuse::DestroyedTwice { cache } => write!(f, "cache '{cache}': destroyed already"),
            Misuse::ZeroedObjects { cache } => write!(
                f,
                "cache '{cache}': zeroed objects were asked for, but it has a constructor"
            ),
            Misuse::ZeroedElements => f.write_str("mempool: a pool's elements are not zeroed"),
            Misuse::Null { call, what } => write!(f, "{call}: the {what} is null"),
        }
    }
}

impl<'a> Misuse<'a> {
    /// A [`Misuse::Object`].
    pub fn object(cache: Option<&'a str>, call: &'a str, object: *mut u8, why: Reason) -> Self {
        Misuse::Object {
            cache,
            call,
            object,
            why,
        }
    }

    /// Reports it and ends the process.
    #[cold]
    #[inline(never)]
    pub fn fatal(self, platform: &impl Platform) -> ! {
        platform.fatal(format_args!("{self}"))
    }

    /// Reports it; the process goes on.
    #[cold]
    #[inline(never)]
    pub fn warn(self, platform: &impl Platform) {
        platform.warn(format_args!("{self}"));
    }
}

/// Ends the process: `call` got a pointer from elsewhere.
#[cold]
#[inline(never)]
pub fn foreign(platform: &impl Platform, call: &str, object: *mut u8) -> ! {
    Misuse::object(None, call, object, Reason::Foreign).fatal(platform)
}
