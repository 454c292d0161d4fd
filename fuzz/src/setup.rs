//! Test platforms and tunings, out of the fuzzer's bytes.

use arbitrary::{Result, Unstructured};
use uslub_core::tunables::{TUNABLES, Tunables, Tuning};

use crate::support::{Fresh, Setup, Slots};

/// A value within the bounds of a tunable: its ends and small ones more often than others.
fn value(u: &mut Unstructured<'_>, min: u32, max: u32) -> Result<u32> {
    Ok(match u.int_in_range(0..=3)? {
        0 => min,
        1 => max,
        2 => u.int_in_range(min..=max.min(min + 12))?,
        _ => u.int_in_range(min..=max)?,
    })
}

/// A tuning of a cache.
///
/// # Errors
///
/// When there are no more bytes.
pub fn tuning(u: &mut Unstructured<'_>) -> Result<Tuning> {
    let mut tuning = Tuning::DEFAULT;
    for tunable in TUNABLES {
        if tunable.get_of(&tuning).is_some() && u.ratio(1, 4)? {
            let number = value(u, tunable.min, tunable.max)?;
            let setting = format!("{}={number}", tunable.name);
            tuning.set(&setting).expect("within bounds");
        }
    }
    Ok(tuning)
}

/// A platform, and tunables of an allocator.
///
/// # Errors
///
/// When there are no more bytes.
pub fn setup(u: &mut Unstructured<'_>) -> Result<Setup> {
    let mut tunables = Tunables::DEFAULT;
    for tunable in TUNABLES {
        if u.ratio(1, 6)? {
            let number = value(u, tunable.min, tunable.max)?;
            let setting = format!("{}={number}", tunable.name);
            tunables.set(&setting).expect("within bounds");
        }
    }
    let cpus = u.int_in_range(1..=6)?;
    let nodes = match u.ratio(1, 3)? {
        true => u.int_in_range(1..=cpus.min(4))?,
        false => 1,
    };
    // One at least has memory.
    let memory = u64::from(u.arbitrary::<u8>()?) | 1 << u.int_in_range(0..=nodes - 1)?;
    Ok(Setup {
        cpus,
        nodes,
        memory,
        tunables,
        fresh: Fresh::Zero,
        slots: *u.choose(&[
            Slots::Locked,
            Slots::Restartable,
            Slots::Restartable,
            Slots::WithoutFence,
        ])?,
        reserve: 128 << 20,
        ..Setup::default()
    })
}

/// Whether allocations fail on purpose.
pub fn fails(setup: &Setup) -> bool {
    let tunables = &setup.tunables;
    tunables.failslab_probability > 0 || tunables.failslab_nth > 0
}
