//! How far a measurement is.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress on standard error; nothing where that is no terminal.
pub fn progress() -> ProgressBar {
    // Not drawn by a thread of its own, which would disturb what is measured.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{spinner} {prefix} of {len}: {wide_msg} {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
