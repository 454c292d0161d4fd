//! `uslub bench run`: runs the user's program on uslub and on other allocators and compares costs.
//!
//! | competitor | how the program runs |
//! |---|---|
//! | glibc | as it is |
//! | uslub | with the library preloaded, without report or helper |
//! | jemalloc, mimalloc, tcmalloc | with the allocator's library preloaded, if it is installed |
//!
//! Each round runs the program once on every allocator, one after the other. The first round is
//! not counted. A ratio compares two runs of the same round, so a lasting disturbance of the
//! machine affects both runs.

use crate::cli::CompareOptions;
use crate::ending::{Ending, signal_name};
use crate::failure::Failure;
use crate::finished::Finished;
use crate::run;
use crate::{destination, environment, library, units, verdict};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::ProgressBar;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use uslub_bench::Sample;
use uslub_bench::peers::installed;

/// An allocator that the program runs on.
struct Competitor {
    name: &'static str,
    /// The preloaded library.
    library: Option<PathBuf>,
    rounds: Vec<Cost>,
}

/// What one run cost.
#[derive(Clone, Copy)]
struct Cost {
    cpu: f64,
    wall: f64,
    peak: f64,
}

impl Cost {
    fn of(finished: &Finished) -> Self {
        let cpu = finished.usage.user + finished.usage.system;
        Self {
            cpu: cpu.as_secs_f64(),
            wall: finished.wall.as_secs_f64(),
            peak: finished.usage.max_rss_bytes as f64,
        }
    }
}

/// Median, minimum and maximum over the rounds.
#[derive(Serialize)]
struct Figure {
    median: f64,
    least: f64,
    greatest: f64,
}

impl From<Sample> for Figure {
    fn from(sample: Sample) -> Self {
        Self {
            median: sample.median,
            least: sample.least,
            greatest: sample.greatest,
        }
    }
}

/// One competitor's line: figures, and their ratios to glibc's.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    /// Absent for glibc.
    library: Option<String>,
    cpu_seconds: Figure,
    wall_seconds: Figure,
    /// Peak memory of the largest process of the run.
    peak_bytes: Figure,
    cpu_ratio: Figure,
    wall_ratio: Figure,
    peak_ratio: Figure,
}

/// Everything, as `--json` writes it.
#[derive(Serialize)]
struct Comparison {
    command: Vec<String>,
    rounds: usize,
    /// Allocators that are not installed.
    absent: Vec<&'static str>,
    rows: Vec<Line>,
    /// The comparison in one sentence.
    verdict: Option<String>,
}

/// Runs the program on each allocator in turn and prints what it cost.
///
/// # Errors
///
/// If the program cannot run, or does not succeed.
pub fn run(options: &CompareOptions) -> Result<Ending, Failure> {
    let Some(name) = options.command.first() else {
        return Err(Failure::usage(
            "no program is given",
            "see 'uslub bench run --help'",
        ));
    };
    let executable = std::env::current_exe().unwrap_or_default();
    let ours = library::find(std::env::var_os(library::VARIABLE).as_deref(), &executable)?;
    let program = run::suitable(name, &ours)?;
    let input = options.input.as_deref().unwrap_or(Path::new("/dev/null"));
    opened(input)?;
    let json = options.json.as_ref();
    if let Some(file) = json.filter(|file| file.as_os_str() != "-") {
        destination::check(file)?;
    }
    let folder = run::temporary_folder()?;
    let ours = environment::preloadable(&ours, Some(folder.path()))?;
    let (mut competitors, absent) = competitors(ours);
    let progress = progress(competitors.len() * (options.rounds + 1));
    for round in 0..=options.rounds {
        for competitor in &mut competitors {
            progress.set_message(format!("{}, round {round}", competitor.name));
            progress.tick();
            let mut command = Command::new(&program.file);
            command.args(&program.leading).args(&options.command[1..]);
            command.stdin(opened(input)?);
            if !options.show_output {
                command.stdout(Stdio::null()).stderr(Stdio::null());
            }
            preload(&mut command, competitor.library.as_deref());
            let (_, finished) =
                run::execute(command, &options.command, Some(folder.path()), None, false)?;
            if let Some(ending) = ended_early(&finished, competitor.name, options)? {
                return Ok(ending);
            }
            if round > 0 {
                competitor.rounds.push(Cost::of(&finished));
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let comparison = Comparison {
        command: (options.command.iter())
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        rounds: options.rounds,
        absent,
        rows: lines(&competitors),
        verdict: verdict(&competitors),
    };
    give(options, &comparison)?;
    Ok(Ending::Exited(0))
}

/// The competitors, and the names of allocators that are not installed.
fn competitors(ours: PathBuf) -> (Vec<Competitor>, Vec<&'static str>) {
    let competitor = |name, library| Competitor {
        name,
        library,
        rounds: Vec::new(),
    };
    let mut there = vec![competitor("glibc", None), competitor("uslub", Some(ours))];
    let mut absent = Vec::new();
    for (name, path) in installed() {
        match path {
            Some(path) => there.push(competitor(name, Some(path))),
            None => absent.push(name),
        }
    }
    (there, absent)
}

/// Puts a library in front of the libraries that the environment preloads already.
fn preload(command: &mut Command, library: Option<&Path>) {
    const VARIABLE: &str = "LD_PRELOAD";
    if let Some(library) = library {
        let mut list = OsString::from(library);
        if let Some(others) = std::env::var_os(VARIABLE).filter(|others| !others.is_empty()) {
            list.push(":");
            list.push(others);
        }
        command.env(VARIABLE, list);
    }
}

/// Returns the ending to propagate if a signal of the terminal ended the program.
///
/// # Errors
///
/// If the program did not succeed for another reason.
fn ended_early(
    finished: &Finished,
    on: &str,
    options: &CompareOptions,
) -> Result<Option<Ending>, Failure> {
    let how = match finished.ending {
        Ending::Exited(0) => return Ok(None),
        Ending::Exited(_) if options.ignore_failure => return Ok(None),
        Ending::Killed(libc::SIGINT | libc::SIGTERM | libc::SIGHUP) => {
            return Ok(Some(finished.ending));
        }
        Ending::Exited(code) => format!("exited with {code}"),
        Ending::Killed(signal) => format!("was killed by {}", signal_name(signal)),
    };
    let name = Path::new(&options.command[0]).display();
    Err(Failure::ours(
        format!("{name} {how} on {on}; nothing was compared"),
        "see why with --show-output; if its exit status means no failure, use --ignore-failure",
    ))
}

/// uslub against the best of the others, in one sentence.
fn verdict(competitors: &[Competitor]) -> Option<String> {
    let costs = |of: &Competitor| {
        of.rounds
            .iter()
            .map(|c| (c.cpu, c.peak))
            .collect::<Vec<_>>()
    };
    let (ours, others): (Vec<_>, Vec<_>) = competitors.iter().partition(|c| c.name == "uslub");
    let others: Vec<_> = others.into_iter().map(|c| (c.name, costs(c))).collect();
    let others: Vec<_> = others.iter().map(|(name, all)| (*name, &**all)).collect();
    verdict::sentence(&costs(ours.first()?), &others)
}

fn lines(competitors: &[Competitor]) -> Vec<Line> {
    let Some(base) = competitors.first() else {
        return Vec::new();
    };
    let line = |competitor: &Competitor| {
        let figure = |part: fn(&Cost) -> f64| {
            Figure::from(Sample::of(competitor.rounds.iter().map(part).collect()))
        };
        let ratio = |part: fn(&Cost) -> f64| {
            let pairs = competitor.rounds.iter().zip(&base.rounds);
            // A program too short to measure costs the same on every allocator.
            let ratios = pairs.map(|(a, b)| {
                if part(b) > 0.0 {
                    part(a) / part(b)
                } else {
                    1.0
                }
            });
            Figure::from(Sample::of(ratios.collect()))
        };
        Line {
            name: competitor.name,
            library: competitor.library.as_ref().map(|l| l.display().to_string()),
            cpu_seconds: figure(|c| c.cpu),
            wall_seconds: figure(|c| c.wall),
            peak_bytes: figure(|c| c.peak),
            cpu_ratio: ratio(|c| c.cpu),
            wall_ratio: ratio(|c| c.wall),
            peak_ratio: ratio(|c| c.peak),
        }
    };
    competitors.iter().map(line).collect()
}

fn give(options: &CompareOptions, comparison: &Comparison) -> Result<(), Failure> {
    let mut on_stdout = text(comparison);
    if let Some(file) = &options.json {
        let json = serde_json::to_string_pretty(comparison).map_err(|error| {
            Failure::ours(
                format!("the figures are no JSON: {error}"),
                "please report this",
            )
        })?;
        if file.as_os_str() == "-" {
            on_stdout = json + "\n";
        } else {
            written(file, &(json + "\n"))?;
        }
    }
    // A closed standard output is no failure: its reader has read enough.
    let _ = std::io::stdout().write_all(on_stdout.as_bytes());
    Ok(())
}

/// The table and its explanation.
fn text(comparison: &Comparison) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "",
        "CPU time",
        "× glibc",
        "wall time",
        "× glibc",
        "peak memory",
        "× glibc",
    ]);
    let ratio = |figure: &Figure| {
        format!(
            "{:.2} ({:.2} … {:.2})",
            figure.median, figure.least, figure.greatest
        )
    };
    let time = |figure: &Figure| units::seconds(Duration::from_secs_f64(figure.median));
    for line in &comparison.rows {
        table.add_row([
            line.name.to_owned(),
            time(&line.cpu_seconds),
            ratio(&line.cpu_ratio),
            time(&line.wall_seconds),
            ratio(&line.wall_ratio),
            units::size(line.peak_bytes.median as u64),
            ratio(&line.peak_ratio),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!(
        "{table}\n\nMedians of {} rounds; in brackets the least and the greatest ratio within one round.\n",
        comparison.rounds
    );
    if !comparison.absent.is_empty() {
        text.push_str(&format!(
            "Not installed, so left out: {}.\n",
            comparison.absent.join(", ")
        ));
    }
    if let Some(verdict) = &comparison.verdict {
        text.push_str(&format!("\n{verdict}\n"));
    }
    text
}

fn progress(length: usize) -> ProgressBar {
    let bar = crate::progress::progress();
    bar.set_length(length as u64);
    bar.set_prefix("run");
    bar
}

fn opened(input: &Path) -> Result<File, Failure> {
    destination::source(input).map_err(|error| {
        Failure::usage(
            format!("{} cannot be read: {error}", input.display()),
            "name a file behind --input that the program is to read",
        )
    })
}

fn written(file: &Path, text: &str) -> Result<(), Failure> {
    if file.as_os_str() == "-" {
        return Ok(());
    }
    destination::save(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn competitor(name: &'static str, cpu: &[f64]) -> Competitor {
        let cost = |&cpu: &f64| Cost {
            cpu,
            wall: 2.0 * cpu,
            peak: 1024.0,
        };
        Competitor {
            name,
            library: None,
            rounds: cpu.iter().map(cost).collect(),
        }
    }

    #[test]
    fn ratios_are_of_runs_of_one_round() {
        let both = [
            competitor("glibc", &[1.0, 2.0, 4.0]),
            competitor("uslub", &[0.5, 1.5, 2.0]),
        ];
        let lines = lines(&both);
        assert_eq!(lines[0].cpu_ratio.median, 1.0);
        assert_eq!(lines[1].cpu_seconds.median, 1.5);
        assert_eq!(lines[1].cpu_ratio.median, 0.5);
        assert_eq!(lines[1].cpu_ratio.greatest, 0.75);
        assert_eq!(lines[1].peak_ratio.median, 1.0);
    }

    #[test]
    fn a_program_that_costs_nothing_costs_the_same_everywhere() {
        let both = [competitor("glibc", &[0.0]), competitor("uslub", &[0.0])];
        assert_eq!(lines(&both)[1].cpu_ratio.median, 1.0);
    }
}
