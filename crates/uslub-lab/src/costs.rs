//! The cost model: what an access costs, in nanoseconds of virtual time.
//!
//! The defaults are round figures of large servers, not of one machine. `uslub sim --calibrate`
//! measures those of the machine that it runs on.

use crate::error::Failure;

macro_rules! costs {
    ($($(#[doc = $help:literal])+ $name:ident: $default:literal,)*) => {
        /// Costs, in nanoseconds.
        #[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Costs {
            $($(#[doc = $help])+ pub $name: f64,)*
        }

        impl Default for Costs {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Costs {
            /// All costs: name and meaning.
            pub const NAMES: &[(&str, &str)] =
                &[$((stringify!($name), concat!($($help),+).trim_ascii()),)*];

            fn place(&mut self, name: &str) -> Option<&mut f64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }

            /// The value of each cost, with its name.
            pub fn values(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

costs! {
    /// An allocation or a free on the fast path, with its lines in the CPU's cache.
    fast: 2.8,
    /// An exchange of a CPU's own sheaves.
    exchange: 12.0,
    /// An access of a slow path to a line in the CPU's cache, with the instructions around it.
    hit: 1.0,
    /// Each further word of an array, as a CPU copies it.
    word: 0.1,
    /// A read-modify-write instruction on a line in the CPU's cache.
    change: 5.0,
    /// A line from a CPU with the same last-level cache.
    cache: 40.0,
    /// A line from a CPU with another last-level cache of the same node.
    node: 90.0,
    /// A line from a CPU of a neighbouring node.
    remote: 150.0,
    /// A line from another node, for each further step.
    hop: 20.0,
    /// A line from the node's own memory.
    memory: 80.0,
    /// A line from another node's memory.
    remote_memory: 140.0,
    /// The first touch of a page of 4 KiB.
    page_fault: 500.0,
    /// A call of the system.
    system_call: 300.0,
    /// A sleep and a wake-up by the system.
    wake: 3000.0,
    /// One round of a loop that waits.
    pause: 40.0,
    /// No time: how many lines a CPU gets in the time of one, if it need not wait for one to ask
    /// for the next.
    overlap: 8.0,
}

impl Costs {
    /// Applies one `name=nanoseconds`.
    ///
    /// # Errors
    ///
    /// If the name is unknown or the value is no number from 0 to a million.
    pub fn set(&mut self, setting: &str) -> Result<(), Failure> {
        let known = || {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            names.join(", ")
        };
        let Some((name, value)) = setting.split_once('=') else {
            return Err(Failure::Wrong(format!(
                "cost '{setting}' is not of the form NAME=NS"
            )));
        };
        let Some(place) = self.place(name.trim()) else {
            return Err(Failure::Wrong(format!(
                "unknown cost '{name}'; known are {}",
                known()
            )));
        };
        match value.trim().parse::<f64>() {
            Ok(ns) if (0.0..=1e6).contains(&ns) => *place = ns,
            _ => {
                return Err(Failure::Wrong(format!(
                    "cost '{name}' takes 0 to 1000000 nanoseconds, not '{value}'"
                )));
            }
        }
        Ok(())
    }
}

/// Nanoseconds as picoseconds, the unit of virtual time.
#[inline]
pub fn ps(ns: f64) -> u64 {
    (ns * 1e3).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_cost_is_named_with_the_accepted_ones() {
        let mut costs = Costs::default();
        costs.set("remote=200").unwrap();
        assert_eq!(costs.remote, 200.0);
        let unknown = costs.set("far=1").unwrap_err().to_string();
        assert!(
            unknown.contains("'far'") && unknown.contains("remote_memory"),
            "{unknown}"
        );
        for bad in ["remote", "remote=-1", "remote=x", "remote=inf"] {
            assert!(costs.set(bad).is_err(), "{bad}");
        }
    }
}
