//! Errors, and the values in them that the caller gets back.

use std::error::Error;
use std::fmt;

use uslub_core::args;

/// The reason why a cache, a set of buckets or a shrinker was not created.
///
/// ```
/// use uslub::{Cache, CreateError};
/// assert_eq!(Cache::<u64>::new("").err(), Some(CreateError::BadName));
/// assert_eq!(Cache::<()>::new("nothing").err(), Some(CreateError::ZeroSized));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The name is empty or longer than 31 bytes (26 bytes for a prefix of buckets).
    BadName,
    /// The size is 0 or above 65,536 bytes.
    BadSize,
    /// The alignment is not a power of two, or is above 4096 bytes.
    BadAlign,
    /// The limit is below one slab.
    BadLimit,
    /// The range of sheaf capacities is empty, or begins with 0 or above the largest capacity.
    BadCapacity,
    /// The tuning's value with this name is out of bounds.
    BadTuning(&'static str),
    /// The type has no bytes, so its objects need no memory.
    ZeroSized,
    /// A constructor was given for a type that needs a drop. A constructed object stays in its
    /// memory over free and allocation, and is never dropped.
    NeedsDrop,
    /// There are 2047 caches already.
    TooMany,
    /// There are 256 shrinkers already.
    TooManyShrinkers,
    /// There is no memory for the records, or no address space for the allocator.
    NoMemory,
}

impl From<args::CreateError> for CreateError {
    fn from(error: args::CreateError) -> Self {
        match error {
            args::CreateError::BadName => Self::BadName,
            args::CreateError::BadSize => Self::BadSize,
            args::CreateError::BadAlign => Self::BadAlign,
            args::CreateError::BadLimit => Self::BadLimit,
            args::CreateError::BadTuning(name) => Self::BadTuning(name),
            args::CreateError::TooMany => Self::TooMany,
            args::CreateError::NoMemory => Self::NoMemory,
        }
    }
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::BadTuning(name) => return args::CreateError::BadTuning(name).fmt(f),
            Self::BadName => "a cache's name has 1 to 31 bytes, a prefix of buckets 1 to 26",
            Self::BadSize => "an object has 1 to 65536 bytes",
            Self::BadAlign => "an alignment is a power of two up to 4096 bytes",
            Self::BadLimit => "a limit is at least one slab",
            Self::BadCapacity => {
                "a sheaf's capacity is a range from at least 1 to what a sheaf can hold"
            }
            Self::ZeroSized => "a type without bytes needs no cache",
            Self::NeedsDrop => {
                "a constructor is for types without drop: what it makes is kept and never dropped"
            }
            Self::TooMany => "there are 2047 caches already",
            Self::TooManyShrinkers => "there are 256 shrinkers already",
            Self::NoMemory => "no memory for the records",
        })
    }
}

impl Error for CreateError {}

/// There was no memory, or the context did not allow getting it. Holds the value that found no
/// memory.
///
/// ```
/// use uslub::{Cache, Gfp};
/// let cache = Cache::<[u8; 1024]>::builder("few").limit(32 << 10).build()?;
/// let mut held = Vec::new();
/// let value = loop {
///     match cache.alloc([7; 1024]) {
///         Ok(object) => held.push(object),
///         Err(error) => break error.into_inner(),
///     }
/// };
/// assert_eq!(value, [7; 1024]);
/// # Ok::<(), uslub::CreateError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AllocError<T = ()>(pub(crate) T);

impl<T> AllocError<T> {
    /// The value that found no memory.
    ///
    /// ```
    /// use uslub::Cache;
    /// let mails = Cache::builder("mail").limit(64 << 10).build()?;
    /// let mut held = Vec::new();
    /// let unsent = loop {
    ///     match mails.alloc(String::from("hello")) {
    ///         Ok(mail) => held.push(mail),
    ///         Err(error) => break error.into_inner(),
    ///     }
    /// };
    /// assert_eq!(unsent, "hello");
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn into_inner(self) -> T {
        self.0
    }

    /// The error with the value changed by `change`: `map(drop)` drops the value.
    ///
    /// ```
    /// use uslub::{AllocError, Cache};
    /// let cells = Cache::<[u8; 512]>::builder("cell").limit(64 << 10).build()?;
    /// let mut held = Vec::new();
    /// let error: AllocError<u8> = loop {
    ///     match cells.alloc([7; 512]) {
    ///         Ok(cell) => held.push(cell),
    ///         Err(error) => break error.map(|cell| cell[0]),
    ///     }
    /// };
    /// assert_eq!(error.into_inner(), 7);
    /// # Ok::<(), uslub::CreateError>(())
    /// ```
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> AllocError<U> {
        AllocError(change(self.0))
    }
}

impl<T> fmt::Debug for AllocError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AllocError")
    }
}

impl<T> fmt::Display for AllocError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory, or the context forbids to get any")
    }
}

impl<T> Error for AllocError<T> {}

/// Objects that were in use when their cache was destroyed. Their memory is never reused.
///
/// ```
/// use uslub::{Cache, Object};
/// let cache = Cache::new("leaky")?;
/// let object = Object::into_raw(cache.alloc(1u64)?);
/// let leaked = cache.destroy().unwrap_err();
/// assert_eq!(leaked.addresses(), [object.as_ptr() as usize]);
/// println!("{leaked}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaked {
    pub(crate) name: String,
    pub(crate) addresses: Vec<usize>,
}

impl Leaked {
    /// The objects' addresses.
    ///
    /// ```
    /// use uslub::{Cache, Object};
    /// let links = Cache::new("link")?;
    /// let held = [links.alloc(1u8)?, links.alloc(2)?].map(Object::into_raw);
    /// let leaked = links.destroy().unwrap_err();
    /// assert!(held.iter().all(|link| leaked.addresses().contains(&(link.as_ptr() as usize))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn addresses(&self) -> &[usize] {
        &self.addresses
    }
}

impl fmt::Display for Leaked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' was destroyed with {} objects in use, whose memory is kept:",
            self.name,
            self.addresses.len()
        )?;
        for address in self.addresses.iter().take(LISTED) {
            write!(f, " {address:#x}")?;
        }
        if self.addresses.len() > LISTED {
            f.write_str(" …")?;
        }
        Ok(())
    }
}

impl Error for Leaked {}

/// Most leaked objects that a message lists.
pub(crate) const LISTED: usize = 16;
