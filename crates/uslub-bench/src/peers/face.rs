//! An allocator as two function pointers, malloc and free: the interface of every competitor.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::Failure;
use crate::floor::{FLOOR, Floor, floor_free, floor_malloc};

/// The name of our allocator.
pub const OURS: &str = "uslub";
/// The name of the system's allocator.
pub const SYSTEM: &str = "glibc";

/// The type of C's `malloc`.
pub type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
/// The type of C's `free`.
pub type Free = unsafe extern "C" fn(*mut c_void);

/// An allocator.
#[derive(Clone, Debug)]
pub struct Face {
    /// Its name.
    pub name: &'static str,
    /// The source of the allocator.
    pub from: String,
    malloc: Malloc,
    free: Free,
    /// The functions that a thread calls before its first call and after its last call.
    thread: Option<(unsafe extern "C" fn(), unsafe extern "C" fn())>,
}

impl Face {
    /// An allocator from its two functions.
    pub fn new(name: &'static str, from: impl Into<String>, malloc: Malloc, free: Free) -> Self {
        Self {
            name,
            from: from.into(),
            malloc,
            free,
            thread: None,
        }
    }

    /// Adds the functions that a thread must call first and last.
    #[cfg(feature = "peers")]
    pub fn with_threads(
        mut self,
        enter: unsafe extern "C" fn(),
        leave: unsafe extern "C" fn(),
    ) -> Self {
        self.thread = Some((enter, leave));
        self
    }

    /// The allocator of this process: the present `malloc`.
    pub fn system() -> Self {
        Self::new(SYSTEM, "the C library", libc::malloc, libc::free)
    }

    /// The floor as an allocator.
    pub fn of_floor(_: &'static Floor) -> Self {
        Self::new(FLOOR, "this program", floor_malloc, floor_free)
    }

    /// An allocator from a shared library, which stays loaded.
    ///
    /// # Errors
    ///
    /// If the library cannot be loaded, or does not define malloc and free itself.
    pub fn load(name: &'static str, path: &Path) -> Result<Self, Failure> {
        let failed = |error: libloading::Error| {
            Failure::System(format!("{} cannot be loaded: {error}", path.display()))
        };
        // SAFETY: an allocator's initialisers touch only their own data.
        let library =
            unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        // SAFETY: C's malloc and free have these types in every library.
        let (malloc, free) = unsafe {
            (
                *library.get::<Malloc>(b"malloc\0").map_err(failed)?,
                *library.get::<Free>(b"free\0").map_err(failed)?,
            )
        };
        // The functions are called until this process ends.
        std::mem::forget(library);
        if malloc as usize == libc::malloc as *const () as usize {
            let what = format!("{} has no malloc of its own", path.display());
            return Err(Failure::System(what));
        }
        Ok(Self::new(name, path.display().to_string(), malloc, free))
    }

    /// Memory of `size` bytes; null without memory.
    #[inline]
    pub fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: malloc accepts any size.
        unsafe { (self.malloc)(size) }.cast()
    }

    /// Frees an object.
    ///
    /// # Safety
    ///
    /// The object is of this allocator and is freed once.
    #[inline]
    pub unsafe fn free(&self, object: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { (self.free)(object.cast()) };
    }

    /// Prepares this thread for calls of the allocator.
    pub fn enter(&self) {
        if let Some((enter, _)) = self.thread {
            // SAFETY: a repeated call is harmless.
            unsafe { enter() };
        }
    }

    /// Prepares this thread for calls of the allocator until the value is dropped.
    #[must_use]
    pub fn enter_for_now(&self) -> Entered {
        self.enter();
        Entered(self.thread.map(|(_, leave)| leave))
    }
}

/// Marks a thread that uses an allocator.
pub struct Entered(Option<unsafe extern "C" fn()>);

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(leave) = self.0 {
            // SAFETY: the thread has called `enter` and makes no further call.
            unsafe { leave() };
        }
    }
}

/// Allocators that may be installed: the name, and the file names of the library, newest first.
const INSTALLED: [(&str, &[&str]); 3] = [
    ("jemalloc", &["libjemalloc.so.2"]),
    (
        "mimalloc",
        &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
    ),
    (
        "tcmalloc",
        &["libtcmalloc_minimal.so.4", "libtcmalloc_minimal.so"],
    ),
];
/// Folders that are searched for libraries.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib",
    "/lib",
];

/// The allocators that can be preloaded, each with its library if installed.
pub fn installed() -> impl Iterator<Item = (&'static str, Option<PathBuf>)> {
    INSTALLED.into_iter().map(|(name, files)| {
        let paths =
            (FOLDERS.iter()).flat_map(|folder| files.iter().map(|f| Path::new(folder).join(f)));
        let mut paths = paths.filter(|path| path.is_file());
        (name, paths.next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_allocator_is_refused() {
        let missing = Face::load("x", Path::new("/no/such.so")).unwrap_err();
        assert!(missing.to_string().contains("/no/such.so cannot be loaded"));
        let libm = Path::new("libm.so.6");
        assert!(Face::load("x", libm).is_err());
    }

    #[test]
    fn memory_comes_and_goes() {
        let face = Face::system();
        let _entered = face.enter_for_now();
        let object = face.alloc(100);
        // SAFETY: the object has 100 bytes and is freed once.
        unsafe {
            object.write_bytes(7, 100);
            face.free(object);
        }
    }
}
