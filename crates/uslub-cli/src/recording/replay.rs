//! A recording as text: sparklines and tables.

use super::growth;
use super::look::{Cache, PARTS, Row};
use super::series::{Moment, Series};
use super::time;
use crate::units;
use std::fmt::Write;

/// Caches that are shown without `--all`.
const SHOWN: usize = 12;
/// Characters of a sparkline.
const LINE: usize = 32;
/// The levels of a sparkline, where the terminal knows them and where not.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['_', '.', '-', '~', '=', '+', '*', '#'];

/// The whole recording.
pub fn text(series: &Series, all: bool) -> String {
    let mut out = head(series);
    let first = &series.first;
    let last = &series.last;
    let _ = writeln!(
        out,
        "\n{:<12} {:>11} {:>11} {:>11}  over time",
        "", "at start", "at end", "peak"
    );
    let of_slices = |value: &dyn Fn(&Moment) -> u64| {
        let values: Vec<_> = series.slices.iter().map(|m| (m.at, value(m))).collect();
        spark(&values, series.duration(), levels())
    };
    let mut push = |name: &str, value: &dyn Fn(&Moment) -> u64| {
        let peak = series.slices.iter().map(value).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "{name:<12} {:>11} {:>11} {:>11}  {}",
            units::size(value(first)),
            units::size(value(last)),
            units::size(peak),
            of_slices(value)
        );
    };
    push("resident", &Moment::resident);
    for (part, name) in PARTS.iter().enumerate() {
        push(&format!("  {name}"), &|moment: &Moment| moment.parts[part]);
    }
    let numbers = series.by_peak();
    let shown = shown(numbers.len(), all);
    let width = width(&series.caches, &numbers[..shown]);
    let _ = writeln!(
        out,
        "\n{:<width$} {:>12} {:>12} {:>11} {:>11} {:>8}  bytes over time",
        "cache", "live, start", "live, end", "bytes", "memory", "use"
    );
    for &number in &numbers[..shown] {
        let (before, now) = (first.row(number), last.row(number));
        let _ = writeln!(
            out,
            "{:<width$} {:>12} {:>12} {:>11} {:>11} {:>8}  {}",
            series.caches[number].name,
            units::count(before.live),
            units::count(now.live),
            units::size(now.bytes),
            units::size(now.memory),
            units::share(now.bytes, now.memory).unwrap_or_default(),
            of_slices(&|moment: &Moment| moment.row(number).bytes)
        );
    }
    push_rest(&mut out, numbers.len() - shown);
    let peak = &series.peak;
    let _ = writeln!(
        out,
        "\nThe most was resident at {}: {} (--at shows one look)",
        time::text(peak.at),
        units::size(peak.resident())
    );
    out + &growth(series)
}

/// The first lines.
fn head(series: &Series) -> String {
    let start = &series.start;
    let version = Some(&*start.version).filter(|v| !v.is_empty());
    let version = version.map_or(String::new(), |version| format!(" {version}"));
    let mut out = format!(
        "{} {} on uslub{version} · {} {} in {}, from {}\n",
        start.program,
        start.pid,
        units::count(series.looks),
        units::plural(series.looks, "look", "looks"),
        time::text(series.duration()),
        time::date(start.since)
    );
    let end = match (&series.end, &series.damage) {
        (Some(why), _) => why,
        (None, Some(_)) => "the file is not whole",
        (None, None) => "the recorder was killed, or still works",
    };
    let _ = writeln!(out, "ended: {end}");
    out
}

/// The caches that grew without pause.
pub fn growth(series: &Series) -> String {
    let mut out = String::new();
    for grown in growth::grown(series).iter().take(SHOWN) {
        let (rose, steps) = grown.rose;
        let _ = writeln!(
            out,
            "grew without pause: {}, +{} in {} objects; rose in {rose} of {steps} steps",
            series.caches[grown.cache].name,
            units::size(grown.bytes),
            units::count(grown.objects)
        );
    }
    if out.is_empty() {
        out.push_str("no cache grew without pause\n");
    }
    out
}

/// One look of a recording.
pub fn look(series: &Series, moment: &Moment, caches: &[Cache], all: bool) -> String {
    let mut out = head(series);
    let _ = writeln!(out, "the look at {}\n", time::text(moment.at));
    let whole = moment.resident();
    let mut push = |name: &str, bytes: u64| {
        let share = units::share(bytes, whole).unwrap_or_default();
        let _ = writeln!(out, "{name:<12} {:>11} {share:>8}", units::size(bytes));
    };
    push("resident", whole);
    for (name, bytes) in PARTS.iter().zip(moment.parts) {
        push(&format!("  {name}"), bytes);
    }
    let is_shown = |&n: &usize| all || moment.row(n) != Row::default();
    let mut numbers: Vec<_> = (0..caches.len()).filter(is_shown).collect();
    numbers.sort_by_key(|&n| std::cmp::Reverse(moment.row(n).memory));
    let shown = shown(numbers.len(), all);
    let width = width(caches, &numbers[..shown]);
    let _ = writeln!(
        out,
        "\n{:<width$} {:>12} {:>11} {:>8} {:>11} {:>10}",
        "cache", "live", "bytes", "use", "memory", "cached"
    );
    for &number in &numbers[..shown] {
        let row = moment.row(number);
        let _ = writeln!(
            out,
            "{:<width$} {:>12} {:>11} {:>8} {:>11} {:>10}",
            caches[number].name,
            units::count(row.live),
            units::size(row.bytes),
            units::share(row.bytes, row.memory).unwrap_or_default(),
            units::size(row.memory),
            units::count(row.cached)
        );
    }
    push_rest(&mut out, numbers.len() - shown);
    out
}

fn shown(caches: usize, all: bool) -> usize {
    if all { caches } else { caches.min(SHOWN) }
}

fn width(caches: &[Cache], numbers: &[usize]) -> usize {
    let names = numbers.iter().map(|&n| caches[n].name.chars().count());
    names.max().unwrap_or(0).max(12)
}

fn push_rest(out: &mut String, rest: usize) {
    if rest > 0 {
        let _ = writeln!(out, "…{rest} more (--all)");
    }
}

/// The levels that the terminal's characters allow.
fn levels() -> [char; 8] {
    let of = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let locale = of("LC_ALL")
        .or_else(|| of("LC_CTYPE"))
        .or_else(|| of("LANG"));
    let is_ascii = locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        !locale.contains("utf-8") && !locale.contains("utf8")
    });
    if is_ascii { ASCII } else { BLOCKS }
}

/// A sparkline of values at times: each character shows the highest value in its part of the time,
/// or the one before. The scale begins at 0.
fn spark(values: &[(u64, u64)], duration: u64, levels: [char; 8]) -> String {
    let mut line = [None; LINE];
    for &(at, value) in values {
        let place = u128::from(at) * LINE as u128 / (u128::from(duration) + 1);
        let cell = &mut line[place.min(LINE as u128 - 1) as usize];
        let (highest, _) = cell.unwrap_or((0, 0));
        *cell = Some((value.max(highest), value));
    }
    let highest = values.iter().map(|v| v.1).max().unwrap_or(0).max(1);
    let mut last = 0;
    line.iter()
        .map(|cell| {
            let (value, end) = cell.unwrap_or((last, last));
            last = end;
            let level = (u128::from(value) * 8).div_ceil(u128::from(highest));
            levels[(level as usize).clamp(1, 8) - 1]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_the_shape_and_keeps_short_peaks() {
        let values: Vec<_> = (0..100).map(|t| (t * 1000, t)).collect();
        let line = spark(&values, 99_000, BLOCKS);
        assert_eq!(line.chars().count(), LINE);
        assert!(line.starts_with('▁') && line.ends_with('█'));
        let mut peak = vec![(0, 1); 1];
        peak.extend([(50_000, 1000), (50_001, 1), (99_000, 1)]);
        let line = spark(&peak, 99_000, ASCII);
        assert!(line.contains('#') && line.starts_with('_') && line.ends_with('_'));
        assert_eq!(spark(&[], 0, ASCII), "_".repeat(LINE));
        assert_eq!(spark(&[(0, u64::MAX)], u64::MAX, ASCII), "#".repeat(LINE));
    }
}
