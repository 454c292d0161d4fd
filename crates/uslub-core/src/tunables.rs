//! Tunables: numbers that a user may set before an allocator starts.
//!
//! Names are the kernel's if the kernel has one (`slab_max_order` and others from its command line,
//! `min_partial` and others from `/sys/kernel/slab/<cache>/`). One table, [`TUNABLES`], gives each
//! name, effect and bounds; the allocator and the command both read it. Values are constant once an
//! allocator is ready.

use crate::percpu::sheaf::MAX_CAPACITY;

/// The tunables of one cache. Only slow paths read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Smallest slab order (a slab is 2^order pages).
    pub slab_min_order: u32,
    /// Largest slab order, unless one object needs more.
    pub slab_max_order: u32,
    /// Least number of objects in a slab; 0 derives it from the number of CPUs, as the kernel does.
    pub slab_min_objects: u32,
    /// Whether fresh slabs hand out their objects in random order (0 or 1).
    pub slab_freelist_random: u32,
    /// Whether links inside free objects are hardened (0 or 1).
    pub slab_freelist_hardened: u32,
    /// Whether the freelist of a fresh slab is built only for objects left over (1), or at once for
    /// all objects (0).
    pub freelist_deferred: u32,
    /// Whether a slab's state changes in one atomic step (1) or under a lock of the slab (0).
    pub slab_state_lockfree: u32,
    /// Whether a bulk free pushes the objects of a slab together (1) or one by one (0).
    pub detached_freelist: u32,
    /// Objects of other slabs that end a bulk free's scan for the objects of one slab; 0 and 1 are
    /// equal.
    pub look_ahead: u32,
    /// Whether the rest of a refill goes into the CPU's sheaves (1) or back to its slab (0).
    pub sheaf_spill: u32,
    /// Whether only callers that may ask the system refill sheaves (1), or all callers that may
    /// wait for a lock (0).
    pub refill_needs_blocking: u32,
    /// Whether empty slabs wait in a reserve that adapts to demand (1), or count as partial slabs
    /// (0).
    pub empty_reserve: u32,
    /// Slabs on a node's partial list from which on empty ones are freed; 0 derives it from the
    /// object size.
    pub min_partial: u32,
    /// Objects in a sheaf; 0 derives it from the object size.
    pub sheaf_capacity: u32,
    /// Objects in a grown sheaf, at most; 0 for a fixed capacity.
    pub sheaf_capacity_max: u32,
    /// Full sheaves in a barn, at most; 0 derives it from the object size.
    pub max_full_sheaves: u32,
    /// Empty sheaves in a barn, at most.
    pub max_empty_sheaves: u32,
    /// How often in 1024 refills a refill tries other nodes; 0 for never.
    pub remote_node_defrag_ratio: u32,
    /// Whether CPUs of nodes without memory have a barn, and cache any object in sheaves (0 or 1).
    pub memoryless_barns: u32,
}

impl Tuning {
    /// The default values.
    pub const DEFAULT: Tuning = Tuning {
        slab_min_order: 0,
        slab_max_order: 3,
        slab_min_objects: 0,
        slab_freelist_random: 0,
        slab_freelist_hardened: 1,
        freelist_deferred: 1,
        slab_state_lockfree: 1,
        detached_freelist: 1,
        look_ahead: 3,
        sheaf_spill: 0,
        refill_needs_blocking: 0,
        empty_reserve: 0,
        min_partial: 0,
        sheaf_capacity: 0,
        sheaf_capacity_max: 0,
        max_full_sheaves: 0,
        max_empty_sheaves: 10,
        remote_node_defrag_ratio: 1000,
        memoryless_barns: 1,
    };
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Values of all tunables, as one allocator uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// The tunables of caches that set none of their own.
    pub tuning: Tuning,
    /// Whether no cache may share another's slabs (0 or 1).
    pub slab_nomerge: u32,
    /// MiB of objects in sheaves above which no sheaf grows.
    pub sheaf_budget_mb: u32,
    /// Access to per-CPU slots: by a try-lock (0), by restartable sequences (1), or by sequences
    /// that index slots by the CPU's number, never by the concurrency id (2).
    pub rseq: u32,
    /// Milliseconds that free pages stay resident.
    pub decay_ms: u32,
    /// MiB of pages beyond which huge pages are requested, at first only if memory grows quickly; 0
    /// for never.
    pub huge_pages_mb: u32,
}

impl Tunables {
    /// The default values.
    pub const DEFAULT: Tunables = Tunables {
        tuning: Tuning::DEFAULT,
        slab_nomerge: 0,
        sheaf_budget_mb: 128,
        rseq: 1,
        decay_ms: 1000,
        huge_pages_mb: 24,
    };
}

impl Default for Tunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One entry of the table of tunables.
#[derive(Debug)]
pub struct Tunable {
    /// Name, as written before the `=`.
    pub name: &'static str,
    /// Smallest accepted value.
    pub min: u32,
    /// Largest accepted value.
    pub max: u32,
    /// The effect, in one line.
    pub help: &'static str,
    field: Field,
}

/// The place of a value.
#[derive(Debug)]
enum Field {
    /// Each cache has its own.
    Cache(fn(&mut Tuning) -> &mut u32),
    /// The allocator has one.
    Allocator(fn(&mut Tunables) -> &mut u32),
}

impl Tunable {
    /// The value in `tunables`.
    pub fn get(&self, tunables: &Tunables) -> u32 {
        let mut copy = *tunables;
        *self.place(&mut copy)
    }

    /// The value of one cache; `None` for a tunable of the whole allocator.
    pub fn get_of(&self, tuning: &Tuning) -> Option<u32> {
        let mut copy = *tuning;
        match self.field {
            Field::Cache(field) => Some(*field(&mut copy)),
            Field::Allocator(_) => None,
        }
    }

    fn place<'a>(&self, tunables: &'a mut Tunables) -> &'a mut u32 {
        match self.field {
            Field::Cache(field) => field(&mut tunables.tuning),
            Field::Allocator(field) => field(tunables),
        }
    }
}

/// All tunables, in the order in which help shows them.
pub const TUNABLES: &[Tunable] = &[
    Tunable {
        name: "slab_min_order",
        min: 0,
        max: 5,
        help: "smallest slab order (a slab is 2^order pages)",
        field: Field::Cache(|t| &mut t.slab_min_order),
    },
    Tunable {
        name: "slab_max_order",
        min: 0,
        max: 5,
        help: "largest slab order unless one object needs more",
        field: Field::Cache(|t| &mut t.slab_max_order),
    },
    Tunable {
        name: "slab_min_objects",
        min: 0,
        max: 1024,
        help: "objects wanted in a slab (0: from the number of CPUs)",
        field: Field::Cache(|t| &mut t.slab_min_objects),
    },
    Tunable {
        name: "slab_freelist_random",
        min: 0,
        max: 1,
        help: "hand out objects of a fresh slab in random order",
        field: Field::Cache(|t| &mut t.slab_freelist_random),
    },
    Tunable {
        name: "slab_freelist_hardened",
        min: 0,
        max: 1,
        help: "harden the links inside free objects",
        field: Field::Cache(|t| &mut t.slab_freelist_hardened),
    },
    Tunable {
        name: "freelist_deferred",
        min: 0,
        max: 1,
        help: "build a new slab's freelist for the rest only (0: for all objects at once)",
        field: Field::Cache(|t| &mut t.freelist_deferred),
    },
    Tunable {
        name: "slab_state_lockfree",
        min: 0,
        max: 1,
        help: "change a slab's state in one atomic step (0: under a lock)",
        field: Field::Cache(|t| &mut t.slab_state_lockfree),
    },
    Tunable {
        name: "detached_freelist",
        min: 0,
        max: 1,
        help: "push a slab's objects of a bulk free at once (0: one by one)",
        field: Field::Cache(|t| &mut t.detached_freelist),
    },
    Tunable {
        name: "look_ahead",
        min: 0,
        max: 8,
        help: "objects of other slabs that end the search for those of one slab in a bulk free",
        field: Field::Cache(|t| &mut t.look_ahead),
    },
    Tunable {
        name: "sheaf_spill",
        min: 0,
        max: 1,
        help: "put what a refill leaves over into the CPU's sheaves (0: back to its slab)",
        field: Field::Cache(|t| &mut t.sheaf_spill),
    },
    Tunable {
        name: "refill_needs_blocking",
        min: 0,
        max: 1,
        help: "refill sheaves only if the call may map memory (0: if it may wait for a lock)",
        field: Field::Cache(|t| &mut t.refill_needs_blocking),
    },
    Tunable {
        name: "empty_reserve",
        min: 0,
        max: 1,
        help: "keep empty slabs by demand (0: by min_partial)",
        field: Field::Cache(|t| &mut t.empty_reserve),
    },
    Tunable {
        name: "min_partial",
        min: 0,
        max: 65535,
        help: "slabs kept per node before empty ones are given back (0: from the object size)",
        field: Field::Cache(|t| &mut t.min_partial),
    },
    Tunable {
        name: "sheaf_capacity",
        min: 0,
        max: MAX_CAPACITY as u32,
        help: "objects a sheaf holds (0: from the object size)",
        field: Field::Cache(|t| &mut t.sheaf_capacity),
    },
    Tunable {
        name: "sheaf_capacity_max",
        min: 0,
        max: MAX_CAPACITY as u32,
        help: "objects a sheaf may come to hold where a CPU keeps missing (0: fixed)",
        field: Field::Cache(|t| &mut t.sheaf_capacity_max),
    },
    Tunable {
        name: "max_full_sheaves",
        min: 0,
        max: 1024,
        help: "full sheaves a barn holds (0: from the object size)",
        field: Field::Cache(|t| &mut t.max_full_sheaves),
    },
    Tunable {
        name: "max_empty_sheaves",
        min: 0,
        max: 1024,
        help: "empty sheaves a barn holds",
        field: Field::Cache(|t| &mut t.max_empty_sheaves),
    },
    Tunable {
        name: "remote_node_defrag_ratio",
        min: 0,
        max: 1024,
        help: "how often in 1024 times a refill looks at other memory nodes",
        field: Field::Cache(|t| &mut t.remote_node_defrag_ratio),
    },
    Tunable {
        name: "memoryless_barns",
        min: 0,
        max: 1,
        help: "give CPUs of nodes without memory a barn",
        field: Field::Cache(|t| &mut t.memoryless_barns),
    },
    Tunable {
        name: "slab_nomerge",
        min: 0,
        max: 1,
        help: "give every cache slabs of its own, also those that may share",
        field: Field::Allocator(|t| &mut t.slab_nomerge),
    },
    Tunable {
        name: "sheaf_budget_mb",
        min: 0,
        max: 1 << 20,
        help: "MiB of objects in sheaves above which none grows; near it they are smaller",
        field: Field::Allocator(|t| &mut t.sheaf_budget_mb),
    },
    Tunable {
        name: "rseq",
        min: 0,
        max: 2,
        help: "reach sheaves by restartable sequences (0: by a try-lock; 2: by the CPU's number)",
        field: Field::Allocator(|t| &mut t.rseq),
    },
    Tunable {
        name: "decay_ms",
        min: 0,
        max: 3_600_000,
        help: "milliseconds that free pages stay resident",
        field: Field::Allocator(|t| &mut t.decay_ms),
    },
    Tunable {
        name: "huge_pages_mb",
        min: 0,
        max: 1 << 20,
        help: "MiB of pages beyond which huge pages are asked for (0: never)",
        field: Field::Allocator(|t| &mut t.huge_pages_mb),
    },
];

/// Why a setting was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError<'a> {
    /// It is not of the form `key=value`.
    NoValue(&'a str),
    /// No tunable has this name.
    UnknownKey(&'a str),
    /// The tunable belongs to the whole allocator.
    NotOfACache(&'static str),
    /// The value is not a whole number.
    NotANumber {
        /// Name of the tunable.
        key: &'static str,
        /// The text after the `=`.
        value: &'a str,
    },
    /// The value is outside the bounds of the tunable.
    OutOfRange {
        /// Name of the tunable.
        key: &'static str,
        /// The text after the `=`.
        value: &'a str,
        /// Smallest accepted value.
        min: u32,
        /// Largest accepted value.
        max: u32,
    },
}

impl core::fmt::Display for SetError<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            SetError::NoValue(text) => write!(f, "'{text}' is not of the form KEY=VALUE"),
            SetError::UnknownKey(key) => {
                write!(f, "unknown tunable '{key}'; known are")?;
                for (i, t) in TUNABLES.iter().enumerate() {
                    write!(f, "{} {}", if i == 0 { "" } else { "," }, t.name)?;
                }
                Ok(())
            }
            SetError::NotOfACache(key) => {
                write!(f, "tunable '{key}' is the whole allocator's, not a cache's")
            }
            SetError::NotANumber { key, value } => {
                write!(f, "tunable '{key}' takes a whole number, not '{value}'")
            }
            SetError::OutOfRange {
                key,
                value,
                min,
                max,
            } => write!(f, "tunable '{key}' takes {min} to {max}, not {value}"),
        }
    }
}

impl core::error::Error for SetError<'_> {}

impl Tunables {
    /// Applies one `key=value`.
    ///
    /// # Errors
    ///
    /// If the text has another form, the key is unknown, or the value is out of bounds; then
    /// nothing changes.
    ///
    /// ```
    /// use uslub_core::tunables::Tunables;
    /// let mut t = Tunables::DEFAULT;
    /// t.set("slab_max_order=2").unwrap();
    /// assert_eq!(t.tuning.slab_max_order, 2);
    /// assert!(t.set("slab_max_order=99").unwrap_err().to_string().contains("0 to 5"));
    /// ```
    pub fn set<'a>(&mut self, setting: &'a str) -> Result<(), SetError<'a>> {
        let (tunable, number) = parse(setting)?;
        *tunable.place(self) = number;
        Ok(())
    }
}

impl Tuning {
    /// Whether all values are within their bounds.
    ///
    /// # Errors
    ///
    /// The first tunable whose value is out of bounds.
    ///
    /// ```
    /// use uslub_core::tunables::Tuning;
    /// let tuning = Tuning { look_ahead: 99, ..Tuning::DEFAULT };
    /// assert_eq!(tuning.check().unwrap_err().name, "look_ahead");
    /// ```
    pub fn check(&self) -> Result<(), &'static Tunable> {
        let is_bad = |t: &&Tunable| {
            t.get_of(self)
                .is_some_and(|value| !(t.min..=t.max).contains(&value))
        };
        TUNABLES.iter().find(is_bad).map_or(Ok(()), Err)
    }

    /// The value of a name; `None` for a name that is no tunable of a cache.
    ///
    /// ```
    /// use uslub_core::tunables::Tuning;
    /// assert_eq!(Tuning::DEFAULT.get("slab_max_order"), Some(3));
    /// assert_eq!(Tuning::DEFAULT.get("rseq"), None);
    /// ```
    pub fn get(&self, name: &str) -> Option<u32> {
        let tunable = TUNABLES.iter().find(|t| t.name == name)?;
        tunable.get_of(self)
    }

    /// Applies one `key=value` to one cache.
    ///
    /// # Errors
    ///
    /// As for [`Tunables::set`], and if the tunable belongs to the whole allocator.
    ///
    /// ```
    /// use uslub_core::tunables::Tuning;
    /// let mut t = Tuning::DEFAULT;
    /// t.set("sheaf_capacity=32").unwrap();
    /// assert_eq!(t.sheaf_capacity, 32);
    /// assert!(t.set("rseq=0").is_err());
    /// ```
    pub fn set<'a>(&mut self, setting: &'a str) -> Result<(), SetError<'a>> {
        let (tunable, number) = parse(setting)?;
        match tunable.field {
            Field::Cache(field) => *field(self) = number,
            Field::Allocator(_) => return Err(SetError::NotOfACache(tunable.name)),
        }
        Ok(())
    }
}

/// The tunable and the value of a `key=value`.
fn parse(setting: &str) -> Result<(&'static Tunable, u32), SetError<'_>> {
    let Some((key, value)) = setting.split_once('=') else {
        return Err(SetError::NoValue(setting));
    };
    let (key, value) = (key.trim(), value.trim());
    let Some(tunable) = TUNABLES.iter().find(|t| t.name == key) else {
        return Err(SetError::UnknownKey(key));
    };
    let Ok(number) = value.parse::<i128>() else {
        return Err(SetError::NotANumber {
            key: tunable.name,
            value,
        });
    };
    match u32::try_from(number) {
        Ok(n) if (tunable.min..=tunable.max).contains(&n) => Ok((tunable, n)),
        _ => Err(SetError::OutOfRange {
            key: tunable.name,
            value,
            min: tunable.min,
            max: tunable.max,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tunable_accepts_its_bounds_and_refuses_what_lies_beyond() {
        for t in TUNABLES {
            let mut v = Tunables::DEFAULT;
            let mut text = std::format!("{}={}", t.name, t.min);
            v.set(&text).unwrap();
            assert_eq!(t.get(&v), t.min);
            text = std::format!("{}={}", t.name, t.max);
            v.set(&text).unwrap();
            assert_eq!(t.get(&v), t.max);
            text = std::format!("{}={}", t.name, u64::from(t.max) + 1);
            assert!(matches!(v.set(&text), Err(SetError::OutOfRange { .. })));
            text = std::format!("{}=-1", t.name);
            assert!(matches!(v.set(&text), Err(SetError::OutOfRange { .. })));
        }
    }

    #[test]
    fn bad_settings_are_named() {
        let mut v = Tunables::DEFAULT;
        assert_eq!(v.set("rseq"), Err(SetError::NoValue("rseq")));
        assert_eq!(v.set("colour=1"), Err(SetError::UnknownKey("colour")));
        assert_eq!(
            v.set("rseq=on"),
            Err(SetError::NotANumber {
                key: "rseq",
                value: "on"
            })
        );
        assert_eq!(v, Tunables::DEFAULT);
    }

    #[test]
    fn defaults_are_within_bounds() {
        for t in TUNABLES {
            assert!(
                (t.min..=t.max).contains(&t.get(&Tunables::DEFAULT)),
                "{}",
                t.name
            );
        }
    }
}
