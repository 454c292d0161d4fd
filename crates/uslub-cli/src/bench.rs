//! `uslub bench`: what is measured, and where the result goes.

use crate::cli::{BenchCommand, SeedsOptions};
use crate::compare;
use crate::ending::Ending;
use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs;
use std::io::Write;
use std::path::Path;
use uslub_bench::{Bench, Report, Size, page, seeds, table};

/// Width of the table where it goes to no terminal, in columns of text.
const WIDTH: u16 = 132;

/// Runs a bench.
pub fn run(what: &BenchCommand) -> Result<Ending, Failure> {
    match what {
        BenchCommand::Seeds(options) => run_seeds(options),
        BenchCommand::Run(options) => compare::run(options),
    }
}

fn run_seeds(options: &SeedsOptions) -> Result<Ending, Failure> {
    let numbers = numbers(&options.seeds)?;
    // What cannot be written is said before minutes are spent.
    for file in [&options.html, &options.json].into_iter().flatten() {
        if !is_stdout(file) {
            write(file, "")?;
        }
    }
    let bench = Bench {
        size: if options.quick {
            Size::Quick
        } else {
            Size::Full
        },
        progress: progress(),
    };
    let report = seeds::run(&bench, &numbers).map_err(|error| {
        Failure::ours(
            format!("the bench could not go on: {error}"),
            "with another process that takes all memory or CPUs, try again without it",
        )
    })?;
    give(options, &report)?;
    Ok(Ending::Exited(0))
}

/// Writes the report wherever it was asked for.
fn give(options: &SeedsOptions, report: &Report) -> Result<(), Failure> {
    if let Some(file) = &options.html {
        write(file, &page::html(report))?;
    }
    let mut on_stdout = table::text(report, width());
    if let Some(file) = &options.json {
        let json = report.json().map_err(|error| {
            Failure::ours(
                format!("the report is no JSON: {error}"),
                "please report this",
            )
        })?;
        if is_stdout(file) {
            on_stdout = json + "\n";
            eprint!("{}", table::verdict(report));
        } else {
            write(file, &(json + "\n"))?;
        }
    }
    // Whoever closes standard output has read enough.
    let _ = std::io::stdout().write_all(on_stdout.as_bytes());
    Ok(())
}

/// The seeds that were asked for; in any order, each once.
fn numbers(words: &[String]) -> Result<Vec<u8>, Failure> {
    let known = seeds::numbers();
    let mut chosen = Vec::new();
    for word in words {
        match word.parse() {
            _ if word == "all" => chosen.extend(known),
            Ok(number) if known.contains(&number) => chosen.push(number),
            _ => {
                let names = known.map(|number| number.to_string()).join(", ");
                return Err(Failure::usage(
                    format!("no seed '{word}'; there are {names} and all"),
                    "see 'uslub bench seeds --help'",
                ));
            }
        }
    }
    Ok(chosen)
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| {
        Failure::ours(
            format!("{} cannot be written: {error}", file.display()),
            "name a file in a folder that you may write to",
        )
    })
}

/// Columns of the terminal, if standard output is one.
fn width() -> u16 {
    let size = console::Term::stdout().size_checked();
    size.map_or(WIDTH, |(_, columns)| columns)
}

/// Progress on standard error; nothing where that is no terminal.
pub fn progress() -> ProgressBar {
    // Not drawn by a thread of its own, which would disturb what is measured.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{spinner} {prefix} of {len}: {wide_msg} {elapsed}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Vec<u8>, Failure> {
        numbers(&words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn seeds_are_numbers_or_all() {
        assert_eq!(of(&["all"]).unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(of(&["3", "0"]).unwrap(), [3, 0]);
        for wrong in ["5", "-1", "two", ""] {
            let failure = of(&["2", wrong]).unwrap_err();
            assert_eq!(
                failure.message,
                format!("no seed '{wrong}'; there are 0, 1, 2, 3, 4 and all")
            );
        }
    }
}
