//! What several tests need.
#![allow(dead_code)]

use std::env;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use uslub::{Cache, RawCache};

/// Seconds that a stress test takes: `USLUB_STRESS_SECONDS`, or 2.
pub fn stress() -> Duration {
    let seconds = env::var("USLUB_STRESS_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

/// Checks that so many objects of a cache are held by somebody.
pub fn assert_live<T>(cache: &Cache<T>, n: usize) {
    assert_live_raw(cache.as_raw(), n);
}

/// Checks that so many objects of a cache are held by somebody.
pub fn assert_live_raw(cache: &RawCache, n: usize) {
    // Another test's thread may be flushing sheaves of a cache that nobody has used for a while:
    // those in its hands count as held.
    for _ in 0..400 {
        if cache.stats().info.live_objs() == n {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(cache.stats().info.live_objs(), n);
}

/// Set in a child that plays the part of a test.
const CHILD: &str = "USLUB_TEST_CHILD";

/// Runs a test of this binary again in a child of its own, where this gives `None`.
pub fn in_child(test: &str) -> Option<Output> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let output = Command::new(env::current_exe().expect("our name"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .expect("a child");
    Some(output)
}

/// Checks that a child was ended by `abort`, with a message that holds all `parts`.
pub fn assert_fatal(output: &Output, parts: &[&str]) {
    use std::os::unix::process::ExitStatusExt;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
    assert_said(output, parts);
}

/// Checks that a child ended well, after a message that holds all `parts`.
pub fn assert_warned(output: &Output, parts: &[&str]) {
    assert!(output.status.success(), "{output:?}");
    assert_said(output, parts);
}

fn assert_said(output: &Output, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    let found = |line: &&str| line.starts_with("uslub: ") && parts.iter().all(|p| line.contains(p));
    assert!(
        said.lines().any(|line| found(&line)),
        "no {parts:?} in:\n{said}"
    );
}
