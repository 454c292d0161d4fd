//! The details of one cache: slabs by fullness, sheaves, slow paths.

use super::app::App;
use super::columns::{change, rate};
use super::sample::{COUNTERS, Detail};
use super::view::trend;
use crate::units;
use uslub_inspect::sheaves::Place;

/// CPU slots whose sheaves are shown.
const CPUS_SHOWN: usize = 8;
/// Columns of a bar of the histogram.
const BAR: usize = 30;
/// Columns of a sheaf.
const SHEAF: usize = 10;

/// The lines of the details, for this many columns and lines.
pub fn text(app: &App, columns: usize, lines: usize) -> Vec<String> {
    let Some(key) = app.detail() else {
        return Vec::new();
    };
    let mut out = vec![format!("cache '{}'", key.name)];
    if let Some(line) = app.lines.iter().find(|line| line.entry.key == *key) {
        let entry = &line.entry;
        let unsure = match entry.uncertain {
            0 => String::new(),
            n => format!(" (may be wrong by {} while threads run)", units::count(n)),
        };
        out.push(format!(
            "live    {} in {} of {}{unsure}",
            units::count(entry.live),
            units::size(entry.bytes),
            units::size(entry.memory),
        ));
        let rates = [line.allocs, line.frees].map(|r| r.map_or("-".to_owned(), rate));
        out.push(format!(
            "rates   {} allocs/s, {} frees/s, {} live/s   {}",
            rates[0],
            rates[1],
            line.growth.map_or("-".to_owned(), change),
            trend(&app.trend(key), columns, app.glyphs)
        ));
    } else {
        out.push("it has no slab any more".to_owned());
    }
    let detail = app.sample.detail.as_ref();
    match detail.filter(|detail| detail.key == *key) {
        Some(detail) => push_detail(&mut out, app, detail, (columns, lines)),
        None if app.position.is_some() => {
            out.push("a recording has no sheaves and no slabs".to_owned())
        }
        None if key.index == 0 => {
            out.push("they are runs of pages: no slabs, no sheaves".to_owned())
        }
        None => {}
    }
    out
}

fn push_detail(out: &mut Vec<String>, app: &App, detail: &Detail, room: (usize, usize)) {
    let cache = &detail.fullness.cache;
    out.push(format!(
        "slabs   {} of {}, {} slots of {} bytes each (object {} bytes)",
        units::count(detail.fullness.total()),
        units::size(detail.fullness.slab_bytes()),
        cache.objects,
        cache.size,
        cache.object_size
    ));
    push_counters(out, app);
    push_sheaves(out, app, detail);
    let tenths = detail.fullness.tenths();
    let most = tenths.iter().max().copied().unwrap_or(0);
    // Without room for a line for each part of the slabs, each part is one character.
    if out.len() + tenths.len() + 1 > room.1 {
        let bars = app.glyphs.bars(&tenths, 0, most);
        let (none, others) = bars.split_at(bars.chars().next().map_or(0, char::len_utf8));
        out.push(format!("full    none live {none}   10 to 100 % {others}"));
        return;
    }
    out.push("slabs by live slots".to_owned());
    let width = room.0.saturating_sub(24).min(BAR);
    for (i, &slabs) in tenths.iter().enumerate() {
        let title = match i {
            0 => "none".to_owned(),
            _ => format!("to {:>3} %", 10 * i),
        };
        let bar = app.glyphs.bar(slabs, most, width);
        out.push(format!("{title:>8} {:>11}  {bar}", units::count(slabs)));
    }
}

/// What the slow paths did, a second.
fn push_counters(out: &mut Vec<String>, app: &App) {
    let Some(rates) = app.counter_rates else {
        return;
    };
    let parts = COUNTERS.iter().zip(rates).filter(|(_, r)| *r > 0.0);
    let parts: Vec<_> = parts
        .map(|((_, what), r)| format!("{} {what}", rate(r)))
        .collect();
    for (i, pair) in parts.chunks(2).enumerate() {
        let title = if i == 0 { "slow/s" } else { "" };
        out.push(format!("{title:<7} {}", pair.join(", ")));
    }
}

/// The sheaves of each CPU slot, and those of the barns.
fn push_sheaves(out: &mut Vec<String>, app: &App, detail: &Detail) {
    let cpu = |place: Place| match place {
        Place::Main(cpu) | Place::Spare(cpu) | Place::Rcu(cpu) => Some(cpu),
        Place::Barn(_) => None,
    };
    let mut cpus: Vec<_> = (detail.sheaves.iter())
        .filter_map(|sheaf| cpu(sheaf.place))
        .collect();
    cpus.sort_unstable();
    cpus.dedup();
    for (i, &slot) in cpus.iter().take(CPUS_SHOWN).enumerate() {
        let fill = |wanted: Place| {
            let found = detail.sheaves.iter().find(|sheaf| sheaf.place == wanted);
            found.map_or_else(
                || format!("{:width$}", "none", width = SHEAF + 10),
                |sheaf| {
                    let (len, capacity) = (sheaf.len as u64, sheaf.capacity as u64);
                    let bar = app.glyphs.bar(len, capacity, SHEAF);
                    let bar = app.glyphs.fit(&bar, SHEAF);
                    format!("[{bar}] {:<7}", format!("{len}/{capacity}"))
                },
            )
        };
        let title = if i == 0 { "sheaves" } else { "" };
        out.push(format!(
            "{title:<7} CPU slot {slot}: main {} spare {}",
            fill(Place::Main(slot)),
            fill(Place::Spare(slot))
        ));
    }
    if cpus.len() > CPUS_SHOWN {
        let more = cpus.len() - CPUS_SHOWN;
        out.push(format!("        and {more} more CPU slots"));
    }
    let in_barns = detail.sheaves.iter().filter(|s| cpu(s.place).is_none());
    let (sheaves, objects) = in_barns.fold((0, 0), |(n, objects), sheaf| {
        (n + 1, objects + sheaf.len as u64)
    });
    out.push(format!(
        "barns   {sheaves} full {} with {} objects",
        units::plural(sheaves, "sheaf", "sheaves"),
        units::count(objects)
    ));
}
