//! A finding, and what all rules share.

use super::facts::{CacheFacts, Facts};
use crate::units;
use serde::Serialize;

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// The cache, if it is about one.
    pub cache: Option<String>,
    /// The bytes that it is about.
    pub bytes: Option<u64>,
    /// What is wrong.
    pub text: String,
    /// One thing to do.
    pub action: String,
}

/// Memory below which a share is not worth a word.
pub const BYTES_MIN: u64 = 1 << 20;

/// Whether a part is at least so many per cent of the whole; false if the whole is 0.
pub fn is_share(part: u64, whole: u64, percent: u64) -> bool {
    whole > 0 && u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

/// A share for a sentence.
pub fn share(part: u64, whole: u64) -> String {
    units::share(part, whole).unwrap_or_else(|| "0 %".to_owned())
}

/// A number a second; 0 if no time passed.
pub fn per_second(number: u64, facts: &Facts) -> f64 {
    let seconds = facts.watched.as_secs_f64();
    if seconds > 0.0 {
        number as f64 / seconds
    } else {
        0.0
    }
}

/// A finding about a cache, without its text.
pub fn of_cache(rule: &'static str, cache: &CacheFacts, bytes: u64) -> Finding {
    Finding {
        rule,
        cache: Some(cache.name.clone()),
        bytes: Some(bytes),
        text: String::new(),
        action: String::new(),
    }
}

/// The finding of a rule about the whole process.
pub fn of_process(rule: &'static str, bytes: u64, text: String, action: String) -> Vec<Finding> {
    vec![Finding {
        rule,
        cache: None,
        bytes: Some(bytes),
        text,
        action,
    }]
}
