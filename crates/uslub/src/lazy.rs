//! Caches in a `static`, created at their first use.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use crate::builder::Builder;
use crate::cache::Cache;
use crate::error::CreateError;

/// A cache for a `static`, which is created at its first use, by whichever thread comes first.
///
/// It derefs to its [`Cache`]. Its objects can live as long as the process, so they may be sent
/// anywhere. A cache in a `static` is never destroyed.
///
/// ```
/// use uslub::{LazyCache, Object};
///
/// struct Session { id: u64 }
///
/// static SESSIONS: LazyCache<Session> = LazyCache::new("session");
///
/// let session: Object<'static, Session> = SESSIONS.alloc(Session { id: 7 })?;
/// let sent = std::thread::spawn(move || session.id);
/// assert_eq!(sent.join().unwrap(), 7);
/// assert_eq!(SESSIONS.stats().info.live_objs(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With other properties:
///
/// ```
/// use uslub::LazyCache;
/// static LINES: LazyCache<[u8; 48]> =
///     LazyCache::with("line", |lines| lines.hwcache_align().limit(1 << 20));
/// assert_eq!(LINES.as_raw().align(), 64);
/// ```
pub struct LazyCache<T: 'static> {
    name: &'static str,
    describe: fn(Builder<'static, T>) -> Builder<'static, T>,
    cache: OnceLock<Cache<T>>,
}

impl<T> LazyCache<T> {
    /// A cache as [`Cache::new`] makes it.
    ///
    /// ```
    /// use uslub::LazyCache;
    /// static WORDS: LazyCache<u64> = LazyCache::new("word");
    /// assert_eq!(*WORDS.alloc(3).expect("memory"), 3);
    /// ```
    pub const fn new(name: &'static str) -> Self {
        Self::with(name, |builder| builder)
    }

    /// A cache with the properties that `describe` adds to the builder.
    ///
    /// ```
    /// use uslub::LazyCache;
    /// static FEW: LazyCache<[u64; 8]> = LazyCache::with("few", |few| few.limit(64 << 10));
    /// assert_eq!(FEW.name(), "few");
    /// ```
    pub const fn with(
        name: &'static str,
        describe: fn(Builder<'static, T>) -> Builder<'static, T>,
    ) -> Self {
        Self {
            name,
            describe,
            cache: OnceLock::new(),
        }
    }

    /// The cache, created now if this is its first use.
    ///
    /// ```
    /// use uslub::{CreateError, LazyCache};
    /// static NOTHING: LazyCache<()> = LazyCache::new("nothing");
    /// assert_eq!(NOTHING.get().err(), Some(CreateError::ZeroSized));
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Cache::new`]. The next call tries again.
    #[inline]
    pub fn get(&self) -> Result<&Cache<T>, CreateError> {
        match self.cache.get() {
            Some(cache) => Ok(cache),
            None => self.create(),
        }
    }

    #[cold]
    fn create(&self) -> Result<&Cache<T>, CreateError> {
        let cache = (self.describe)(Cache::builder(self.name)).build()?;
        // Another thread may have been faster. Then this cache, which has no objects, goes again.
        Ok(self.cache.get_or_init(|| cache))
    }
}

impl<T> Deref for LazyCache<T> {
    type Target = Cache<T>;

    /// The cache.
    ///
    /// # Panics
    ///
    /// If it cannot be created; [`LazyCache::get`] returns the error instead.
    #[inline]
    fn deref(&self) -> &Cache<T> {
        match self.get() {
            Ok(cache) => cache,
            Err(error) => panic!("cache '{}': {error}", self.name),
        }
    }
}

impl<T> fmt::Debug for LazyCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyCache")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
