//! Programs that a machine may lack, and tests that want the machine for themselves.

use std::env;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Says on standard error that something is skipped. It goes around the test
/// harness, which shows captured output of failed tests only.
pub fn say_skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// Where `name` is on the search path, or is itself when it is a path.
///
/// # Panics
///
/// If it is nowhere and `USLUB_REQUIRE_PROGRAMS` is `1`. Otherwise standard
/// error says that it is skipped.
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

/// The number in an environment variable.
///
/// # Panics
///
/// If the variable is set to something else.
pub fn number(variable: &str, otherwise: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} takes a whole number, not '{text}'")),
        Err(_) => otherwise,
    }
}

static MACHINE: RwLock<()> = RwLock::new(());

/// Held by a test that keeps all CPUs busy or looks at time: it runs alone.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test that may run beside others of its kind.
pub fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}
