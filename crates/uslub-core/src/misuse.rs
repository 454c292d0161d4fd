//! Misuse and corruption: all that the allocator reports about its callers, and the texts.
//!
//! A text names the cache, the call, the pointer and the reason, as far as they are known. Callers
//! make a [`Misuse`] only in a cold function of its own, so their hot code has a jump for it and no
//! stack. Formatting needs no heap; the [`Platform`] writes the text.

use core::fmt;

use crate::platform::Platform;

/// A wrong call, or a trace of one. Names of caches and calls are texts.
#[derive(Clone, Copy, Debug)]
pub enum Misuse<'a> {
    /// Cache if known, call, pointer, reason: the call cannot take the pointer.
    Object(Option<&'a str>, &'a str, *mut u8, Reason),
    /// Cache of the call, object, its cache: a free in the name of another cache.
    OtherCache(&'a str, *mut u8, &'a str),
    /// As `OtherCache`, seen in time: the object is left as it was.
    OtherCacheLeaks(&'a str, *mut u8, &'a str),
    /// Cache, call: the cache is destroyed.
    Ended(&'a str, &'a str),
    /// Cache: it is destroyed again.
    DestroyedTwice(&'a str),
    /// Cache: zeroed objects, but it has a constructor.
    ZeroedObjects(&'a str),
    /// Zeroed elements of a memory pool.
    ZeroedElements,
    /// Call, argument: the argument is null.
    Null(&'a str, &'a str),
    /// Cache if known, call, pointer, bytes that the call says, bytes that the object has.
    WrongSize(Option<&'a str>, &'a str, *mut u8, usize, usize),
}

/// What is wrong with a pointer or with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "`text` has a text for each")]
pub enum Reason {
    Foreign,
    ForeignOrFreed,
    FreePages,
    FreshSlot,
    Large,
    Interior,
    InsideHuge,
    FreedHuge,
    Freed,
    NotInUse,
    EmptySlab,
    HugeLeaks,
    NoGracePeriod,
    Overwritten,
    ShortList,
    EarlyEnd,
    BadFreelist,
    UsedAfterFree,
    WrittenAfterFree,
    WrittenOverEnd,
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
            Reason::UsedAfterFree => "use after free: the object was freed",
            Reason::WrittenAfterFree => "write after free: this free object was overwritten",
            Reason::WrittenOverEnd => "its end was overwritten (an overflow)",
        }
    }
}

/// Writes the cache's name, if it is known.
fn name(f: &mut fmt::Formatter<'_>, cache: Option<&str>) -> fmt::Result {
    match cache {
        Some(cache) => write!(f, "cache '{cache}': "),
        None => Ok(()),
    }
}

impl fmt::Display for Misuse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Misuse::Object(cache, call, object, why) => {
                name(f, cache)?;
                write!(f, "{call} {object:p}: {}", why.text())
            }
            Misuse::OtherCache(cache, object, other) => write!(
                f,
                "cache '{cache}': free of {object:p}: it belongs to cache '{other}'"
            ),
            Misuse::OtherCacheLeaks(cache, object, other) => {
                Misuse::OtherCache(cache, object, other).fmt(f)?;
                f.write_str(" and is not freed")
            }
            Misuse::Ended(cache, call) => write!(f, "cache '{cache}': {call} after its end"),
            Misuse::DestroyedTwice(cache) => write!(f, "cache '{cache}': destroyed already"),
            Misuse::ZeroedObjects(cache) => write!(
                f,
                "cache '{cache}': zeroed objects were asked for, but it has a constructor"
            ),
            Misuse::ZeroedElements => f.write_str("mempool: a pool's elements are not zeroed"),
            Misuse::Null(call, what) => write!(f, "{call}: the {what} is null"),
            Misuse::WrongSize(cache, call, object, said, has) => {
                name(f, cache)?;
                write!(
                    f,
                    "{call} {object:p}: wrong size or alignment: the object has {has} bytes, the \
                     call says {said}"
                )
            }
        }
    }
}

impl Misuse<'_> {
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
    Misuse::Object(None, call, object, Reason::Foreign).fatal(platform)
}
