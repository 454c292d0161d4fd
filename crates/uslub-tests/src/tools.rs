//! Programs that a machine may lack, and locks for tests that need the machine alone.

use std::env;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Prints to standard error that a test skips something. Bypasses the test harness, which shows the
/// captured output only of failed tests.
pub fn say_skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// Finds `name` on the search path; a path stands for itself.
///
/// # Panics
///
/// If it is missing and `USLUB_REQUIRE_PROGRAMS` is `1`. Otherwise prints to standard error that
/// the test skips it.
pub fn tool(name: &str) -> Option<PathBuf> {
    let found = if name.contains('/') {
        Some(PathBuf::from(name)).filter(|file| file.is_file())
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.is_file())
    };
    if found.is_none() {
        let required = env::var_os("USLUB_REQUIRE_PROGRAMS").is_some_and(|value| value == "1");
        assert!(!required, "{name} is not installed");
        say_skipped(name);
    }
    found
}

/// The number in an environment variable; `otherwise` if the variable is not set.
///
/// # Panics
///
/// If the variable does not hold a number.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} takes a whole number, not '{text}'")),
        Err(_) => otherwise,
    }
}

static MACHINE: RwLock<()> = RwLock::new(());

/// The lock of a test that keeps all CPUs busy or measures time: the test runs alone.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// The lock of a test that may run in parallel with other tests that hold it.
pub fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}
