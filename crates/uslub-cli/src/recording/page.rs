//! A recording as one HTML page: it needs no network and no script.

use super::chart::{self, Area, Areas};
use super::growth::{self, Grown};
use super::look::{PARTS, Row};
use super::series::{Moment, Series};
use super::time;
use crate::units;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Caches that have an area of their own in the chart.
const AREAS: usize = 7;
/// Number of the colour of everything that has no area of its own.
const REST: usize = 7;
/// Caches in the table, those that are shown at once and all; the rest is summed.
const ROWS: (usize, usize) = (20, 200);
/// Shares of use below which a cache that has much memory is marked, in per cent.
const LOW_USE: u64 = 50;
/// Memory from which on a low use is marked.
const MUCH: u64 = 1 << 20;

/// What each part of the resident memory is, in the order of [`PARTS`].
const MEANINGS: [&str; 8] = [
    "objects that the program holds",
    "free objects in sheaves, for the next calls",
    "free slots in slabs that have live objects",
    "free pages, back to the system soon",
    "the allocator's own records",
    "programs, libraries, mapped files",
    "the first thread's stack",
    "other mappings, stacks of threads",
];

/// The whole page.
pub fn html(series: &Series) -> String {
    let start = &series.start;
    let title = format!("{} {}: memory over time", start.program, start.pid);
    let grown = growth::grown(series);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                (header(series, &title))
                (growth_section(series, &grown))
                (resident(series))
                (caches(series))
                (peak(series))
                (table(series, &grown))
                footer {
                    p {
                        "Each point of a chart is the look with the most resident memory in its part \
                         of the time. Live slots count as resident first, then cached ones, then \
                         free ones."
                    }
                }
            }
        }
    };
    page.into_string()
}

fn header(series: &Series, title: &str) -> Markup {
    let start = &series.start;
    let looks = units::count(series.looks);
    let length = time::text(series.duration());
    let (first, peak, last) = (&series.first, &series.peak, &series.last);
    let live: u64 = last
        .rows
        .iter()
        .fold(0, |sum, row| sum.saturating_add(row.bytes));
    let figure = |name: &str, value: String, note: String| {
        html! { div { dt { (name) } dd { (value) small { (note) } } } }
    };
    html! {
        header {
            h1 { (title) }
            p.soft {
                "uslub " (start.version) " · " (looks) " "
                (units::plural(series.looks, "look", "looks")) " in " (length) ", from "
                (time::date(start.since))
                @if let Some(why) = &series.end { " · ended: " (why) }
            }
            @if let Some(damage) = &series.damage {
                p.warning { "The recording is not whole: " (damage) ". The looks before it are shown." }
            }
            dl.figures {
                (figure("most resident", units::size(peak.resident()), format!("at {}", time::text(peak.at))))
                (figure("resident at the end", units::size(last.resident()), change(first.resident(), last.resident())))
                (figure("live at the end", units::size(live), change(
                    first.rows.iter().fold(0, |sum, row| sum.saturating_add(row.bytes)), live)))
                (figure("free slots at the end", units::size(last.parts[2]),
                    format!("{} of resident", units::share(last.parts[2], last.resident()).unwrap_or_default())))
            }
        }
    }
}

/// A change with its sign.
fn change(before: u64, now: u64) -> String {
    if now == before {
        "0 B".to_owned()
    } else if now > before {
        format!("+{}", units::size(now - before))
    } else {
        format!("−{}", units::size(before - now))
    }
}

fn growth_section(series: &Series, grown: &[Grown]) -> Markup {
    html! {
        section {
            h2 { "Which caches grew without pause?" }
            @if grown.is_empty() {
                p { "None: no cache rose from sample to sample by more than 256 KiB." }
            } @else {
                ul.grown {
                    @for grown in grown.iter().take(ROWS.0) {
                        @let cache = &series.caches[grown.cache];
                        li {
                            (line(series, grown.cache))
                            span {
                                b { (cache.name) } " +" (units::size(grown.bytes)) " in "
                                span.number { (units::count(grown.objects)) } " objects"
                                " " small { "rose in " (grown.rose.0) " of " (grown.rose.1) " steps" }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Live bytes of a cache over time.
fn line(series: &Series, number: usize) -> PreEscaped<String> {
    let values = series.slices.iter().map(|m| (m.at, m.row(number).bytes));
    PreEscaped(chart::small(&values.collect::<Vec<_>>()))
}

/// A chart with its legend; the legend is in the order of the areas from the top.
fn figure(series: &Series, areas: &[Area], label: &str) -> Markup {
    let times: Vec<_> = series.slices.iter().map(|m| m.at).collect();
    let chart = Areas {
        times: &times,
        areas,
        mark: Some(series.peak.at),
        value: units::size,
        time: time::text,
    };
    html! {
        figure aria-label=(label) {
            (PreEscaped(chart.svg()))
            ul.legend {
                @for area in areas.iter().rev().filter(|area| !area.is_empty()) {
                    li { i class={ "a" (area.colour) } {} (area.name) }
                }
                li { i.mark {} "most resident" }
            }
        }
    }
}

/// The colour of a part of the resident memory: what is not the allocator's is one colour.
fn colour(part: usize) -> usize {
    if part < 5 { part } else { REST }
}

fn resident(series: &Series) -> Markup {
    let area = |name: &str, parts: std::ops::Range<usize>| {
        let sum = |moment: &Moment| {
            let parts = &moment.parts[parts.clone()];
            parts
                .iter()
                .fold(0, |sum: u64, &part| sum.saturating_add(part))
        };
        Area {
            name: name.to_owned(),
            colour: colour(parts.start),
            values: series.slices.iter().map(sum).collect(),
        }
    };
    let own = PARTS[..5].iter().enumerate();
    let mut areas: Vec<_> = own.map(|(part, name)| area(name, part..part + 1)).collect();
    areas.push(area("not uslub's", 5..8));
    html! {
        section {
            h2 { "Resident memory" }
            p.soft { "What the kernel counts as the process's memory (VmRSS), by what it holds." }
            (figure(series, &areas, "resident memory over time"))
        }
    }
}

fn caches(series: &Series) -> Markup {
    let numbers = series.by_peak();
    let (own, rest) = numbers.split_at(numbers.len().min(AREAS));
    let area = |name: String, colour, numbers: &[usize]| {
        let sum = |moment: &Moment| {
            let memory = numbers.iter().map(|&n| moment.row(n).memory);
            memory.fold(0, u64::saturating_add)
        };
        Area {
            name,
            colour,
            values: series.slices.iter().map(sum).collect(),
        }
    };
    let own = own.iter().enumerate();
    let mut areas: Vec<_> = own
        .map(|(colour, &n)| area(series.caches[n].name.clone(), colour, &[n]))
        .collect();
    areas.push(area(format!("{} other caches", rest.len()), REST, rest));
    html! {
        section {
            h2 { "Memory by cache" }
            p.soft { "The slabs of each cache: live objects, cached objects and free slots." }
            (figure(series, &areas, "memory of caches over time"))
        }
    }
}

fn peak(series: &Series) -> Markup {
    let peak = &series.peak;
    let whole = peak.resident();
    html! {
        section {
            h2 { "The most resident memory: " (units::size(whole)) " at " (time::text(peak.at)) }
            table.parts {
                @for (part, (name, meaning)) in PARTS.iter().zip(MEANINGS).enumerate() {
                    @let bytes = peak.parts[part];
                    tr {
                        th scope="row" { (name) }
                        td.number { (units::size(bytes)) }
                        td.number { (units::share(bytes, whole).unwrap_or_default()) }
                        td.bar {
                            i style={ "width:" (bytes.saturating_mul(100) / whole.max(1)) "%" } class={ "a" (colour(part)) } {}
                        }
                        td.soft { (meaning) }
                    }
                }
            }
        }
    }
}

fn table(series: &Series, grown: &[Grown]) -> Markup {
    let numbers = series.by_peak();
    let (first, rest) = numbers.split_at(numbers.len().min(ROWS.0));
    let (second, rest) = rest.split_at(rest.len().min(ROWS.1 - ROWS.0));
    let of = |&n: &usize| series.last.row(n).memory;
    let memory = rest.iter().map(of).fold(0, u64::saturating_add);
    html! {
        section {
            h2 { "All caches" }
            p.soft { "At the end of the recording; the cache with the largest peak first." }
            (rows(series, first, grown))
            @if !second.is_empty() {
                details {
                    summary { (second.len()) " smaller caches" }
                    (rows(series, second, grown))
                    @if !rest.is_empty() {
                        p { (rest.len()) " more with " (units::size(memory)) }
                    }
                }
            }
        }
    }
}

fn rows(series: &Series, numbers: &[usize], grown: &[Grown]) -> Markup {
    html! {
        table.rows {
            thead {
                tr {
                    th { "cache" }
                    @for name in ["live", "bytes", "use", "memory", "peak", "change"] {
                        th.number { (name) }
                    }
                    th { "live bytes" }
                }
            }
            tbody {
                @for &number in numbers {
                    (row(series, number, grown.iter().any(|g| g.cache == number)))
                }
            }
        }
    }
}

fn row(series: &Series, number: usize, is_grown: bool) -> Markup {
    let cache = &series.caches[number];
    let (first, last): (Row, Row) = (series.first.row(number), series.last.row(number));
    let is_low = last.memory >= MUCH && last.bytes < last.memory / 100 * LOW_USE;
    html! {
        tr {
            th scope="row" {
                (cache.name)
                @if cache.size > 0 { small { (units::size(cache.size)) " a slot" } }
            }
            td.number data-name="live" { (units::count(last.live)) }
            td.number data-name="bytes" { (units::size(last.bytes)) }
            td.number data-name="use" {
                span.warning[is_low] { (units::share(last.bytes, last.memory).unwrap_or_default()) }
            }
            td.number data-name="memory" { (units::size(last.memory)) }
            td.number data-name="peak" { (units::size(series.peaks.get(number).copied().unwrap_or(0))) }
            td.number data-name="change" {
                span.warning[is_grown] { (change(first.bytes, last.bytes)) }
            }
            td.line { (line(series, number)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::file::Start;
    use crate::recording::look::Cache;

    /// A recording with so many caches and looks.
    fn series(caches: usize, slices: u64) -> Series {
        let cache = |n| Cache {
            name: format!("<cache> & {n}"),
            face: "malloc".to_owned(),
            size: 64,
        };
        let moment = |t: u64| Moment {
            at: t * 1000,
            parts: [t << 20; 8],
            rows: (0..caches as u64)
                .map(|n| Row {
                    live: n * t,
                    bytes: n * t * 6400,
                    memory: n * t * 20_000,
                    ..Row::default()
                })
                .collect(),
        };
        let slices: Vec<_> = (0..slices).map(moment).collect();
        let last = slices[slices.len() - 1].clone();
        Series {
            start: Start {
                program: "<script>alert(1)</script>".to_owned(),
                pid: 4711,
                ..Start::default()
            },
            end: Some("the time was over".to_owned()),
            damage: None,
            looks: slices.len() as u64,
            caches: (0..caches).map(cache).collect(),
            peaks: last.rows.iter().map(|row| row.memory).collect(),
            first: slices[0].clone(),
            peak: last.clone(),
            last,
            slices,
        }
    }

    #[test]
    fn the_page_has_all_parts_and_no_foreign_markup() {
        let page = html(&series(20, 50));
        for word in [
            "most resident",
            "Which caches grew without pause?",
            "Memory by cache",
            "All caches",
            "&lt;cache&gt; &amp; 19",
            "<svg",
            "name=\"viewport\"",
        ] {
            assert!(page.contains(word), "{word}");
        }
        assert!(!page.contains("<script"), "names are text");
        for word in ["http://", "https://", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(word), "{word} needs a network");
        }
    }

    #[test]
    fn the_largest_page_is_below_five_megabytes() {
        let page = html(&series(4096, 240));
        assert!(page.len() < 5_000_000, "{}", page.len());
        assert!(page.contains("3896 more"));
    }
}
