//! DPDK's mempool, the champion of bulks: objects of one size, counted beforehand, with a cache for
//! each thread that is pinned. It is no malloc, so it takes part where ours hands out many objects
//! by one call. Most of it is inlined into its users: it is compiled here, where DPDK is installed.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::fs;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::Failure;
use crate::linux::{self, Pinned};

/// Its name among the peers.
pub const DPDK: &str = "DPDK";

const SOURCE: &str = include_str!("dpdk.c");
/// What its package is called by `pkg-config`.
const PACKAGE: &str = "libdpdk";
/// The fastest that its users can have on this machine; jumps lie as in what is measured beside it
/// (`.cargo/config.toml`).
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

/// DPDK, running.
#[derive(Debug)]
pub struct Dpdk {
    /// Its version.
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
    /// Compiles, loads and starts it.
    ///
    /// # Errors
    ///
    /// Why it does not take part.
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
        // SAFETY: its initialisers register drivers, which nobody asks for.
        let library =
            unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_LOCAL) }.map_err(failed)?;
        macro_rules! function {
            ($name:literal: $type:ty) => {
                // SAFETY: in `dpdk.c` it has this type.
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
        // Its functions are called as long as this process lives.
        std::mem::forget(library);
        // It moves this thread to that CPU: the guard moves it back.
        let [_, cpu] = linux::two_cpus();
        let _pinned = Pinned::to(cpu).map_err(|error| error.to_string())?;
        // SAFETY: once in a process, before anything else of it.
        match unsafe { start(cpu as c_uint) } {
            0 => Ok(dpdk),
            _ => Err("it does not start".to_owned()),
        }
    }

    /// A pool of so many objects of `size` bytes.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn pool(&self, objects: usize, size: usize) -> Result<Pool<'_>, Failure> {
        static POOLS: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a name for each.
        let name = CString::new(format!("pool{}", POOLS.fetch_add(1, Relaxed)));
        let name = name.map_err(|error| Failure::Wrong(error.to_string()))?;
        // SAFETY: it copies the name.
        let pool = unsafe { (self.new)(name.as_ptr(), objects as c_uint, size as c_uint) };
        if pool.is_null() {
            return Err(Failure::NoMemory("for a pool of DPDK's"));
        }
        Ok(Pool { dpdk: self, pool })
    }
}

/// A thread with a cache of its own.
pub struct Inside<'a>(&'a Dpdk);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // SAFETY: the thread has entered.
        unsafe { (self.0.leave)() };
    }
}

/// A pool.
pub struct Pool<'a> {
    dpdk: &'a Dpdk,
    pool: *mut c_void,
}

// SAFETY: any thread may use a pool.
unsafe impl Sync for Pool<'_> {}

impl Pool<'_> {
    /// Gives this thread a cache of its own, until the value is dropped; without one it is slower.
    #[must_use]
    pub fn enter(&self) -> Inside<'_> {
        // SAFETY: at any time.
        unsafe { (self.dpdk.enter)() };
        Inside(self.dpdk)
    }

    /// Takes objects, all or none; whether it did.
    pub fn get(&self, objects: &mut [*mut u8]) -> bool {
        // SAFETY: the array has room for them.
        unsafe { (self.dpdk.get)(self.pool, objects.as_mut_ptr(), objects.len() as c_uint) == 0 }
    }

    /// Gives objects back.
    ///
    /// # Safety
    ///
    /// They are this pool's, and nobody uses them any more.
    pub unsafe fn put(&self, objects: &mut [*mut u8]) {
        // SAFETY: passed on.
        unsafe { (self.dpdk.put)(self.pool, objects.as_mut_ptr(), objects.len() as c_uint) };
    }

    /// Takes objects and gives them back, so many times, inlined; whether they were there each
    /// time.
    pub fn rounds(&self, objects: &mut [*mut u8], loops: usize) -> bool {
        let (array, n) = (objects.as_mut_ptr(), objects.len() as c_uint);
        // SAFETY: the array has room for them.
        unsafe { (self.dpdk.rounds)(self.pool, array, n, loops as c_ulong) == 0 }
    }
}

impl Drop for Pool<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { (self.dpdk.destroy)(self.pool) };
    }
}
