//! The progress bar of the benchmarks.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar on standard error; it is hidden if standard error is not a terminal.
pub fn progress() -> ProgressBar {
    // No drawing thread: it would disturb the measurement.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{spinner} {prefix} of {len}: {wide_msg} {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
