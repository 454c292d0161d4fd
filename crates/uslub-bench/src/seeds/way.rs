//! The two ways of a row: what each of them runs. A row whose ways run the same code shows nothing.

use serde::Serialize;

use crate::error::Failure;
use crate::strategy::tuning;

/// One way of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// The way in words.
    pub name: String,
    /// What a round calls, in words.
    pub calls: &'static str,
    /// The settings of its caches, as `key=value`.
    pub settings: Vec<String>,
}

impl Way {
    /// A way.
    pub fn new(name: impl Into<String>, calls: &'static str, settings: &[&str]) -> Self {
        Self {
            name: name.into(),
            calls,
            settings: settings.iter().map(|&one| one.to_owned()).collect(),
        }
    }

    /// Whether both ways run the same code: the same calls, on caches that are tuned alike.
    ///
    /// # Errors
    ///
    /// If a setting is unknown.
    pub fn runs_as(&self, other: &Way) -> Result<bool, Failure> {
        let tuned = |way: &Way| {
            let settings: Vec<_> = way.settings.iter().map(String::as_str).collect();
            tuning(&settings)
        };
        let tuned_alike = tuned(self)? == tuned(other)?;
        Ok(self.calls == other.calls && tuned_alike)
    }
}

/// A count that shows which code a row's ways ran.
#[derive(Clone, Debug, Serialize)]
pub struct Witness {
    /// What is counted.
    pub counter: &'static str,
    /// The count of the old way.
    pub old: f64,
    /// The count of the new way.
    pub new: f64,
}

impl Witness {
    /// Whether the ways differ, by more than a hundredth.
    pub fn tells_apart(&self) -> bool {
        (self.old - self.new).abs() > 0.01 * self.old.max(self.new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_that_differ_in_name_only_run_the_same_code() {
        let way = |calls, settings: &[&str]| Way::new("a way", calls, settings);
        let old = way("bulk calls", &["detached_freelist=0"]);
        assert!(!old.runs_as(&way("bulk calls", &[])).unwrap());
        assert!(
            !old.runs_as(&way("single calls", &["detached_freelist=0"]))
                .unwrap()
        );
        // The default, said aloud.
        let new = way("bulk calls", &["detached_freelist=1"]);
        assert!(
            new.runs_as(&Way::new("another", "bulk calls", &[]))
                .unwrap()
        );
        assert!(way("", &["no_such_thing=1"]).runs_as(&new).is_err());
    }

    #[test]
    fn a_witness_needs_a_difference() {
        let tells = |old, new| {
            Witness {
                counter: "updates",
                old,
                new,
            }
            .tells_apart()
        };
        assert!(tells(1000.0, 31.0) && !tells(0.0, 0.0) && !tells(1000.0, 999.0));
    }
}
