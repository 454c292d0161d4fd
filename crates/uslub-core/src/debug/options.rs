//! The text `slab_debug=…`: which caches are debugged, and how. The grammar is the kernel's.
//!
//! ```text
//!     value   := ""                       FZPU for all caches
//!              | block { ";" block }
//!     block   := letters                  for all caches
//!              | letters "," names        for the named caches only
//!              | "," names                FZPU for the named caches only
//!     names   := name { "," name }
//!     name    := the cache's whole name, or a prefix and "*"
//!     letters := any of f z p u t a o -   "-" clears the letters before it
//! ```
//!
//! The first name that matches decides, and its letters replace those for all caches. The last
//! block without names is the one for all caches. O counts wherever it stands. Callers: the
//! creation of caches, and those who check a text first.

use super::DebugFlags;

/// The letters that a message lists.
pub const LETTERS: &str = "F Z P U T A O -";

/// What one letter says.
enum Letter {
    Flag(DebugFlags),
    /// O: drop flags that would raise the order.
    OrderGuard,
    Clear,
    Unknown,
}

fn letter(c: char) -> Letter {
    Letter::Flag(match c.to_ascii_lowercase() {
        'f' => DebugFlags::CONSISTENCY_CHECKS,
        'z' => DebugFlags::RED_ZONE,
        'p' => DebugFlags::POISON,
        'u' => DebugFlags::STORE_USER,
        't' => DebugFlags::TRACE,
        'a' => DebugFlags::FAILSLAB,
        'o' => return Letter::OrderGuard,
        '-' => return Letter::Clear,
        _ => return Letter::Unknown,
    })
}

/// The flags of a block's letters.
fn flags_of(letters: &str) -> DebugFlags {
    let mut flags = DebugFlags::empty();
    for c in letters.chars() {
        match letter(c) {
            Letter::Flag(flag) => flags |= flag,
            Letter::Clear => flags = DebugFlags::empty(),
            Letter::OrderGuard | Letter::Unknown => {}
        }
    }
    flags
}

/// A block: its letters, and its names if it has any.
fn blocks(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let filled = text.split(';').map(str::trim).filter(|b| !b.is_empty());
    filled.map(|block| match block.split_once(',') {
        Some((letters, names)) => (letters.trim(), Some(names)),
        None => (block, None),
    })
}

/// Whether a cache's name matches a pattern.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((prefix, _)) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Whether a block has names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Some,
    None,
}

/// The letters of the block that decides for a name, and whether the block has names. No letters if
/// no block is meant for it.
fn block_for(text: &str, name: &str) -> (Option<DebugFlags>, Names) {
    let mut global = None;
    let mut any = false;
    for (letters, names) in blocks(text) {
        any = true;
        let Some(names) = names else {
            global = Some(flags_of(letters));
            continue;
        };
        if names
            .split(',')
            .any(|pattern| matches(pattern.trim(), name))
        {
            let flags = match letters {
                "" => DebugFlags::DEFAULT,
                letters => flags_of(letters),
            };
            return (Some(flags), Names::Some);
        }
    }
    if !any && text.trim().is_empty() {
        global = Some(DebugFlags::DEFAULT);
    }
    (global, Names::None)
}

/// The value of `slab_debug`. `None` if the option was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabDebug<'a>(Option<&'a str>);

impl<'a> SlabDebug<'a> {
    /// Nothing is debugged but by a cache's own flags.
    pub const NONE: Self = Self(None);

    /// The value behind `slab_debug=`; empty for FZPU on all caches.
    ///
    /// ```
    /// use uslub_core::debug::DebugFlags;
    /// use uslub_core::debug::options::SlabDebug;
    /// let o = SlabDebug::new("FZ;P,kmalloc-*");
    /// let flags = |name| o.flags_for(name, DebugFlags::empty());
    /// assert_eq!(flags("kmalloc-64"), DebugFlags::POISON);
    /// assert_eq!(flags("session"), DebugFlags::CONSISTENCY_CHECKS | DebugFlags::RED_ZONE);
    /// ```
    pub const fn new(text: &'a str) -> Self {
        Self(Some(text))
    }

    /// Calls `bad` with each letter that is unknown.
    pub fn check(self, mut bad: impl FnMut(char)) {
        for (letters, _) in blocks(self.0.unwrap_or_default()) {
            for c in letters.chars() {
                if matches!(letter(c), Letter::Unknown) {
                    bad(c);
                }
            }
        }
    }

    /// Whether O was given: flags that would raise a slab's smallest order are dropped.
    pub fn guards_order(self) -> bool {
        blocks(self.0.unwrap_or_default())
            .flat_map(|(letters, _)| letters.chars())
            .any(|c| matches!(letter(c), Letter::OrderGuard))
    }

    /// The flags of a cache whose creator gave it `own` flags.
    pub fn flags_for(self, name: &str, own: DebugFlags) -> DebugFlags {
        let Some(text) = self.0 else {
            return own;
        };
        if own.contains(DebugFlags::NO_USER_FLAGS) {
            return own;
        }
        let (letters, names) = block_for(text, name);
        let mut flags = letters.unwrap_or(DebugFlags::empty());
        if names == Names::None && own.contains(DebugFlags::NO_LEAK_TRACE) {
            flags -= DebugFlags::STORE_USER;
        }
        own | flags
    }

    /// Whether a block is meant for a cache of this name: one that names it, or one for all caches.
    ///
    /// ```
    /// use uslub_core::debug::options::SlabDebug;
    /// assert!(SlabDebug::new("F,kmalloc-*").is_about("kmalloc-64"));
    /// assert!(!SlabDebug::new("F,kmalloc-*").is_about("session"));
    /// assert!(SlabDebug::new("-").is_about("session"));
    /// ```
    pub fn is_about(self, name: &str) -> bool {
        (self.0).is_some_and(|text| block_for(text, name).0.is_some())
    }

    /// The names and prefixes of all blocks.
    pub fn patterns(self) -> impl Iterator<Item = &'a str> {
        blocks(self.0.unwrap_or_default())
            .filter_map(|(_, names)| names)
            .flat_map(|names| names.split(','))
            .map(str::trim)
    }
}

/// Splits settings such as `rseq=0,slab_debug=FZ,kmalloc-64,session` at `slab_debug`: the settings
/// before it, its value if it is there, and the settings behind it. The value ends before the first
/// part that has a `=`: no cache's name has one.
///
/// ```
/// use uslub_core::debug::options::split;
/// assert_eq!(split("rseq=0"), ("rseq=0", None, ""));
/// assert_eq!(split("slab_debug"), ("", Some(""), ""));
/// let (before, value, behind) = split("rseq=0,slab_debug=F,a,b*;Z,c,decay_ms=5,look_ahead=2");
/// assert_eq!((before, value), ("rseq=0", Some("F,a,b*;Z,c")));
/// assert_eq!(behind, "decay_ms=5,look_ahead=2");
/// ```
pub fn split(settings: &str) -> (&str, Option<&str>, &str) {
    const KEYS: [&str; 2] = ["slab_debug", "slub_debug"];
    let mut start = 0;
    for part in settings.split(',') {
        let end = start + part.len();
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key, value.len()),
            None => (part, 0),
        };
        if KEYS.contains(&key.trim()) {
            let (mut stop, from) = (end, end - value);
            if part.contains('=') {
                for more in settings[(end + 1).min(settings.len())..].split(',') {
                    if more.contains('=') || stop == settings.len() {
                        break;
                    }
                    stop += 1 + more.len();
                }
            }
            let before = settings[..start].trim_end_matches(',');
            let behind = settings[stop..].trim_start_matches(',');
            return (before, Some(&settings[from..stop]), behind);
        }
        start = end + 1;
    }
    (settings, None, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: DebugFlags = DebugFlags::CONSISTENCY_CHECKS;
    const Z: DebugFlags = DebugFlags::RED_ZONE;
    const P: DebugFlags = DebugFlags::POISON;
    const U: DebugFlags = DebugFlags::STORE_USER;
    const NONE: DebugFlags = DebugFlags::empty();

    fn flags(text: &str, name: &str) -> DebugFlags {
        SlabDebug::new(text).flags_for(name, NONE)
    }

    #[test]
    fn each_example_of_the_grammar_gives_its_flags() {
        assert_eq!(flags("FZ", "dentry"), F | Z);
        assert_eq!(flags(",dentry", "dentry"), F | Z | P | U);
        assert_eq!(flags(",dentry", "dentry2"), NONE);
        for name in ["kmalloc-8", "dentry"] {
            assert_eq!(flags("P,kmalloc-*,dentry", name), P);
        }
        assert_eq!(flags("Z,dentry;U,kmalloc-*", "kmalloc-8"), U);
        assert_eq!(flags("Z,dentry;U,kmalloc-*", "dentry"), Z);
        assert_eq!(flags("FZ;-,zs_handle,zspage", "zspage"), NONE);
        assert_eq!(flags("FZ;-,zs_handle,zspage", "inode"), F | Z);
        assert_eq!((flags("-", "a"), flags("O", "a")), (NONE, NONE));
        assert_eq!(flags(";;F;;", "a"), F);
        assert_eq!(flags("fzpu", "a"), F | Z | P | U);
        assert_eq!(flags("", "a"), F | Z | P | U);
        assert_eq!((flags("Z,a;F", "a"), flags("Z,a;F", "b")), (Z, F));
        assert_eq!(flags("F;Z", "a"), Z);
        assert_eq!(flags("FZ-P", "a"), P);
    }

    #[test]
    fn unknown_letters_are_named_and_skipped() {
        let mut bad = std::vec::Vec::new();
        SlabDebug::new("QF,a;x").check(|c| bad.push(c));
        assert_eq!(bad, ['Q', 'x']);
        assert_eq!(flags("QF", "a"), F);
    }

    #[test]
    fn creators_may_refuse_flags() {
        let o = SlabDebug::new("FU");
        assert_eq!(
            o.flags_for("a", DebugFlags::NO_USER_FLAGS),
            DebugFlags::NO_USER_FLAGS
        );
        let own = DebugFlags::NO_LEAK_TRACE;
        assert_eq!(o.flags_for("a", own), own | F);
        assert_eq!(SlabDebug::new("U,a").flags_for("a", own), own | U);
        assert!(SlabDebug::new("FO").guards_order() && !o.guards_order());
        assert_eq!(SlabDebug::NONE.flags_for("a", Z), Z);
    }

    #[test]
    fn the_value_ends_before_another_setting() {
        assert_eq!(split("slab_debug=FZ"), ("", Some("FZ"), ""));
        assert_eq!(split("slab_debug=FZ,a,b"), ("", Some("FZ,a,b"), ""));
        assert_eq!(split("rseq=0,slub_debug,x=1"), ("rseq=0", Some(""), "x=1"));
        assert_eq!(split("slab_debug=,a,"), ("", Some(",a,"), ""));
        assert_eq!(split(""), ("", None, ""));
    }
}
