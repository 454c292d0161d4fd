//! DPDK's mempool, the fastest peer for bulks: objects of one size, a fixed number of objects, and
//! a cache for each pinned thread. It is not a malloc, so it takes part only against bulk calls (P2
//! and P4). Most of its code is inlined into its users, so it is compiled here, if DPDK is
//! installed.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::fs;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::Failure;
use crate::linux::{self, Pinned};

/// The name among the peers.
pub const DPDK: &str = "DPDK";

const SOURCE: &str = include_str!("dpdk.c");
/// The name of the package for `pkg-config`.
const PACKAGE: &str = "libdpdk";
/// Options for the fastest code on this machine. Jumps have the same alignment as in the other
/// competitors (`.cargo/config.toml`).
const COMPILER: &[&str] = &[
    "-O3",
    "-march=native",
    "-shared",
    "-fPIC",
    "-w",
    #[cfg(target_arch = "x86_64")]
    "-Wa,-mbranches-within-32B-boundaries",
];

type Enter = unsafe extern "C" fn() -> c_int;
type Leave = unsafe extern "C" fn();
type New = unsafe extern "C" fn(*const c_char, c_uint, c_uint) -> *mut c_void;
type Destroy = unsafe extern "C" fn(*mut c_void);
type Get = unsafe extern "C" fn(*mut c_void, *mut *mut u8, c_uint) -> c_int;
type Put = unsafe extern "C" fn(*mut c_void, *mut *mut u8, c_uint);
type Loops = unsafe extern "C" fn(*mut c_void, *mut *mut u8, c_uint, c_ulong) -> c_int;

/// A running DPDK.
#[derive(Debug)]
pub struct Dpdk {
    /// The version of DPDK.
    pub version: String,
    enter: Enter,
    leave: Leave,
    new: New,
    destroy: Destroy,
    get: Get,
    put: Put,
    rounds: Loops,
}

impl Dpdk {
    /// Compiles, loads and starts DPDK.
    ///
    /// # Errors
    ///
    /// The reason why DPDK does not take part.
    pub fn start() -> Result<Self, String> {
        let said = |arguments: &[&str]| {
            let said = Command::new("pkg-config").args(arguments).output();
            let said = said.map_err(|error| format!("pkg-config: {error}"))?;
            let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            let missing = || "pkg-config knows no libdpdk (Debian: libdpdk-dev)".to_owned();
            said.status.success().then_some(text).ok_or_else(missing)
        };
        let version = said(&["--modversion", PACKAGE])?;
        let flags = said(&["--cflags", "--libs", PACKAGE])?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (source, library) = (folder.path().join("dpdk.c"), folder.path().join("dpdk.so"));
        fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let mut compiler = Command::new("cc");
        let compiler = compiler.arg(&source).args(flags.split_whitespace());
        let built = compiler.args(COMPILER).arg("-o").arg(&library).output();
        let built = built.map_err(|error| format!("cc: {error}"))?;
        if !built.status.success() {
            let why = String::from_utf8_lossy(&built.stderr);
            return Err(format!("cc: {}", why.lines().next().unwrap_or_default()));
        }
        let failed = |error: libloading::Error| error.to_string();
        // SAFETY: the initialisers only register drivers, which stay unused.
        let library =
            unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        macro_rules! function {
            ($name:literal: $type:ty) => {
                // SAFETY: the function has this type in `dpdk.c`.
                *unsafe { library.get::<$type>($name) }.map_err(failed)?
            };
        }
        let start = function!(b"start\0": unsafe extern "C" fn(c_uint) -> c_int);
        let dpdk = Self {
            version,
            enter: function!(b"enter\0": Enter),
            leave: function!(b"leave\0": Leave),
            new: function!(b"pool\0": New),
            destroy: function!(b"destroy\0": Destroy),
            get: function!(b"get\0": Get),
            put: function!(b"put\0": Put),
            rounds: function!(b"rounds\0": Loops),
        };
        // The functions are called until this process ends.
        std::mem::forget(library);
        // DPDK moves this thread to that CPU. The guard moves it back.
        let [_, cpu] = linux::two_cpus();
        let _pinned = Pinned::to(cpu).map_err(|error| error.to_string())?;
        // SAFETY: called once in a process, before any other call of DPDK.
        match unsafe { start(cpu as c_uint) } {
            0 => Ok(dpdk),
            _ => Err("it does not start".to_owned()),
        }
    }

    /// A pool of `objects` objects of `size` bytes.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn pool(&self, objects: usize, size: usize) -> Result<Pool<'_>, Failure> {
        static POOLS: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: the counter only makes names unique.
        let name = CString::new(format!("pool{}", POOLS.fetch_add(1, Relaxed)));
        let name = name.map_err(|error| Failure::Wrong(error.to_string()))?;
        // SAFETY: DPDK copies the name.
        let pool = unsafe { (self.new)(name.as_ptr(), objects as c_uint, size as c_uint) };
        if pool.is_null() {
            return Err(Failure::NoMemory("for a pool of DPDK's"));
        }
        Ok(Pool { dpdk: self, pool })
    }
}

/// Marks a thread with its own cache; dropping it removes the cache.
pub struct Inside<'a>(&'a Dpdk);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // SAFETY: the thread has called `enter`.
        unsafe { (self.0.leave)() };
    }
}

/// A pool.
pub struct Pool<'a> {
    dpdk: &'a Dpdk,
    pool: *mut c_void,
}

// SAFETY: every thread may use a pool.
unsafe impl Sync for Pool<'_> {}

impl Pool<'_> {
    /// Gives this thread its own cache until the value is dropped. Without a cache, calls are
    /// slower.
    #[must_use]
    pub fn enter(&self) -> Inside<'_> {
        // SAFETY: allowed at any time.
        unsafe { (self.dpdk.enter)() };
        Inside(self.dpdk)
    }

    /// Takes all objects or none; returns whether it took them.
    pub fn get(&self, objects: &mut [*mut u8]) -> bool {
        // SAFETY: the array has room for the objects.
        unsafe { (self.dpdk.get)(self.pool, objects.as_mut_ptr(), objects.len() as c_uint) == 0 }
    }

    /// Returns objects to the pool.
    ///
    /// # Safety
    ///
    /// The objects are of this pool, and no thread uses them any longer.
    pub unsafe fn put(&self, objects: &mut [*mut u8]) {
        // SAFETY: the caller's promise.
        unsafe { (self.dpdk.put)(self.pool, objects.as_mut_ptr(), objects.len() as c_uint) };
    }

    /// Takes objects and returns them, `loops` times, with inlined calls. Returns whether every
    /// call got its objects.
    pub fn rounds(&self, objects: &mut [*mut u8], loops: usize) -> bool {
        let (array, n) = (objects.as_mut_ptr(), objects.len() as c_uint);
        // SAFETY: the array has room for the objects.
        unsafe { (self.dpdk.rounds)(self.pool, array, n, loops as c_ulong) == 0 }
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        // SAFETY: no thread uses the pool any longer.
        unsafe { (self.dpdk.destroy)(self.pool) };
    }
}
