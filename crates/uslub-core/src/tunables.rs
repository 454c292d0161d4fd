//! Tunables: numbers that a user may set before an allocator starts.
//!
//! Names are the kernel's if the kernel has one (`slab_max_order` and others from its command line,
//! `min_partial` and others from `/sys/kernel/slab/<cache>/`). Values are constant once an
//! allocator is ready.
//!
//! The table at `tunables!` has one entry a tunable. The fields of [`Tuning`] and [`Tunables`],
//! their defaults, [`TUNABLES`], the command's help and the tables of docs/tuning.md come from it.
//! Callers: slow paths of all layers.

use crate::debug::fail::FailSlab;
use crate::percpu::sheaf::MAX_CAPACITY;

/// Makes the two structs, their defaults and [`TUNABLES`] out of the table.
macro_rules! tunables {
    (
        Tuning {
            $(
                $(#[doc = $cache_help:literal])+
                $cache_field:ident: $cache_default:literal in $cache_min:literal..=$cache_max:expr,
                $cache_unit:literal;
            )+
        }
        Tunables {
            $(
                $(#[doc = $all_help:literal])+
                $all_field:ident: $all_default:literal in $all_min:literal..=$all_max:expr,
                $all_unit:literal;
            )+
        }
    ) => {
        /// The tunables of one cache. Only slow paths read them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tuning {
            $(
                $(#[doc = $cache_help])+
                #[doc = concat!("\n\nDefault: ", $cache_default)]
                pub $cache_field: u32,
            )+
        }

        impl Tuning {
            /// The default values.
            pub const DEFAULT: Tuning = Tuning { $($cache_field: $cache_default,)+ };
        }

        /// Values of all tunables, as one allocator uses them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tunables {
            /// The tunables of caches that set none of their own.
            pub tuning: Tuning,
            $(
                $(#[doc = $all_help])+
                #[doc = concat!("\n\nDefault: ", $all_default)]
                pub $all_field: u32,
            )+
        }

        impl Tunables {
            /// The default values.
            pub const DEFAULT: Tunables =
                Tunables { tuning: Tuning::DEFAULT, $($all_field: $all_default,)+ };
        }

        /// All tunables, in the order in which help shows them.
        pub const TUNABLES: &[Tunable] = &[
            $(Tunable {
                name: stringify!($cache_field),
                min: $cache_min,
                max: $cache_max,
                unit: $cache_unit,
                help: concat!($($cache_help),+).trim_ascii(),
                field: Field::Cache(|t| &mut t.$cache_field),
            },)+
            $(Tunable {
                name: stringify!($all_field),
                min: $all_min,
                max: $all_max,
                unit: $all_unit,
                help: concat!($($all_help),+).trim_ascii(),
                field: Field::Allocator(|t| &mut t.$all_field),
            },)+
        ];
    };
}

// An entry: help, then name, default, bounds and unit.
tunables! {
    Tuning {
        /// Smallest slab order: a slab has at least 2^order pages.
        slab_min_order: 0 in 0..=5, "";
        /// Largest slab order, unless one object needs more.
        slab_max_order: 3 in 0..=5, "";
        /// Objects wanted in a slab; 0: from the number of CPUs.
        slab_min_objects: 0 in 0..=1024, "objects";
        /// 1: fresh slabs hand out their objects in random order.
        slab_freelist_random: 0 in 0..=1, "";
        /// 1: links inside free objects are combined with a secret and their address.
        slab_freelist_hardened: 1 in 0..=1, "";
        /// 1: a fresh slab gets links for the objects left over only; 0: for all at once.
        freelist_deferred: 1 in 0..=1, "";
        /// 1: a slab's state changes in one atomic step; 0: under a lock of the slab.
        slab_state_lockfree: 1 in 0..=1, "";
        /// 1: a bulk free pushes the objects of a slab together; 0: one by one.
        detached_freelist: 1 in 0..=1, "";
        /// Objects of other slabs that end a bulk free's scan for the objects of one slab.
        look_ahead: 3 in 0..=8, "objects";
        /// 0: leftovers of a refill go to their slab; 1: to the CPU's sheaves; 2: to the barn.
        sheaf_spill: 0 in 0..=2, "";
        /// Part of a sheaf that a refill fills at least; it splits no slab beyond it.
        refill_min_percent: 100 in 1..=100, "%";
        /// 1: only calls that may map memory refill sheaves; 0: all that may wait for a lock.
        refill_needs_blocking: 0 in 0..=1, "";
        /// 1: empty slabs wait in a reserve that adapts to demand; 0: on the partial list.
        empty_reserve: 0 in 0..=1, "";
        /// Slabs kept on a node's list before empty ones are freed; 0: from the object size.
        min_partial: 0 in 0..=65_535, "slabs";
        /// Objects in a sheaf; 0: from the object size.
        sheaf_capacity: 0 in 0..=MAX_CAPACITY as u32, "objects";
        /// Objects that a sheaf may grow to where a CPU keeps missing; 0: it does not grow.
        sheaf_capacity_max: 0 in 0..=MAX_CAPACITY as u32, "objects";
        /// Full sheaves in a barn, at most; 0: from the object size.
        max_full_sheaves: 0 in 0..=1024, "sheaves";
        /// Empty sheaves in a barn, at most.
        max_empty_sheaves: 10 in 0..=1024, "sheaves";
        /// How often in 1024 refills a refill tries other memory nodes.
        remote_node_defrag_ratio: 1000 in 0..=1024, "";
        /// 1: CPUs of nodes without memory have a barn, and keep any object in sheaves.
        memoryless_barns: 1 in 0..=1, "";
    }
    Tunables {
        /// 1: every double free, write over the end and write after free ends the program.
        hardened: 0 in 0..=1, "";
        /// 1: no cache shares another's slabs.
        slab_nomerge: 0 in 0..=1, "";
        /// CPUs that share barns, at most: those with one last-level cache, or neighbours.
        barn_cpus: 16 in 1..=4096, "CPUs";
        /// Objects in sheaves above which no sheaf grows; near it sheaves get smaller.
        sheaf_budget_mb: 128 in 0..=1 << 20, "MiB";
        /// Access to slots. 0: by a try-lock; 1: by rseq; 2: by rseq and the CPU's number.
        rseq: 1 in 0..=2, "";
        /// Freed pages of large objects that a CPU keeps for the next ones, at most; 0: none.
        pcp_kb: 1024 in 0..=4096, "KiB";
        /// Time that free pages stay resident.
        decay_ms: 1000 in 0..=3_600_000, "ms";
        /// Pages in use beyond which huge pages are requested; 0: never.
        huge_pages_mb: 24 in 0..=1 << 20, "MiB";
        /// 1: a report of slab_debug ends the process; 0: it repairs the memory and goes on.
        slab_debug_fatal: 1 in 0..=1, "";
        /// 1: at its end a process on the malloc library says where live objects of caches with U
        /// were allocated.
        slab_debug_leaks: 0 in 0..=1, "";
        /// 1: new objects are zeroed; caches then have no sheaves.
        init_on_alloc: 0 in 0..=1, "";
        /// 1: freed objects are zeroed; caches then have no sheaves.
        init_on_free: 0 in 0..=1, "";
        /// Probability that an allocation fails for a test; caches then have no sheaves.
        failslab_probability: 0 in 0..=100, "per cent";
        /// Only each call of this number may fail.
        failslab_interval: 1 in 1..=1 << 30, "calls";
        /// Failures, at most; 0: no limit.
        failslab_times: 0 in 0..=1 << 30, "failures";
        /// The allocation that fails, counted from 1; 0: none.
        failslab_nth: 0 in 0..=1 << 30, "";
        /// Start of the random sequence of failures.
        failslab_seed: 1 in 0..=1 << 30, "";
        /// 1: only caches with the letter A of slab_debug fail.
        failslab_cache: 0 in 0..=1, "";
        /// Small objects that get a page of their own between closed pages; 0: none.
        guard: 0 in 0..=10_000, "a second";
        /// 1: a report about a guarded object lets the program go on; 0: it ends it.
        guard_recover: 0 in 0..=1, "";
        /// 1: each allocation that fails on purpose is reported with its stack.
        failslab_trace: 0 in 0..=1, "";
    }
}

impl Tunables {
    /// When allocations fail for a test.
    pub fn failslab(&self) -> FailSlab {
        FailSlab {
            interval: self.failslab_interval,
            probability: self.failslab_probability,
            times: match self.failslab_times {
                0 => u32::MAX,
                n => n,
            },
            nth: self.failslab_nth,
            seed: self.failslab_seed,
        }
    }
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
    /// Unit of the value; empty for a switch and a plain number.
    pub unit: &'static str,
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
