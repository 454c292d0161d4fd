//! `uslub bench`: selects the measurements and writes their report. `main` calls [`run`].

use crate::cli::{BenchCommand, PeersOptions, SeedsOptions};
use crate::compare;
use crate::destination;
use crate::ending::Ending;
use crate::failure::Failure;
use crate::library;
use crate::progress::progress;
use std::io::Write;
use std::path::{Path, PathBuf};
use uslub_bench::output::{self, Figures};
use uslub_bench::peers::child::{self, Work};
use uslub_bench::peers::cost;
use uslub_bench::peers::{self, Peers};
use uslub_bench::{Bench, Report, Size, seeds};

/// Width of the table when standard output is not a terminal, in columns of text.
const WIDTH: u16 = 132;

/// Runs the selected benchmark.
pub fn run(what: &BenchCommand) -> Result<Ending, Failure> {
    match what {
        BenchCommand::Seeds(options) => run_seeds(options),
        BenchCommand::Peers(options) => run_peers(options),
        BenchCommand::Run(options) => compare::run(options),
        BenchCommand::PeerChild { face, work, number } => serve(face, work, *number),
        BenchCommand::ProgramChild { library, program } => {
            print!("{}", cost::serve(library, program).map_err(failed)?);
            Ok(Ending::Exited(0))
        }
    }
}

fn run_seeds(options: &SeedsOptions) -> Result<Ending, Failure> {
    let numbers = numbers(&options.seeds)?;
    let output = Output::checked(&options.html, &options.json)?;
    let report = seeds::run(&bench(options.quick), &numbers).map_err(failed)?;
    output.give(&report)
}

fn run_peers(options: &PeersOptions) -> Result<Ending, Failure> {
    let names = parts(&options.parts)?;
    let output = Output::checked(&options.html, &options.json)?;
    let executable = std::env::current_exe().unwrap_or_default();
    let ours = library::find(std::env::var_os(library::VARIABLE).as_deref(), &executable)?;
    let allocators = Peers::look(&ours, &executable, library::VARIABLE).map_err(failed)?;
    let report = peers::run(&bench(options.quick), &allocators, &names).map_err(failed)?;
    output.give(&report)
}

/// Does the work of a child process that `uslub bench peers` started.
fn serve(face: &str, work: &str, number: usize) -> Result<Ending, Failure> {
    let Some(work) = Work::from_words(work, number) else {
        return Err(Failure::usage(
            format!("no work '{work}'"),
            "this is a part of 'uslub bench peers'",
        ));
    };
    let executable = std::env::current_exe().unwrap_or_default();
    let ours = library::find(std::env::var_os(library::VARIABLE).as_deref(), &executable)?;
    print!("{}", child::serve(face, work, &ours).map_err(failed)?);
    Ok(Ending::Exited(0))
}

fn failed(error: uslub_bench::Failure) -> Failure {
    Failure::ours(
        format!("the bench could not go on: {error}"),
        "with another process that takes all memory or CPUs, try again without it",
    )
}

fn bench(quick: bool) -> Bench {
    Bench {
        size: if quick { Size::Quick } else { Size::Full },
        progress: progress(),
    }
}

/// The destinations of a report.
struct Output<'a> {
    html: &'a Option<PathBuf>,
    json: &'a Option<PathBuf>,
}

impl<'a> Output<'a> {
    /// A report to these files. Fails before the benchmark if a file cannot be written.
    fn checked(html: &'a Option<PathBuf>, json: &'a Option<PathBuf>) -> Result<Self, Failure> {
        for file in [html, json].into_iter().flatten() {
            if !is_stdout(file) {
                destination::check(file)?;
            }
        }
        Ok(Self { html, json })
    }

    /// Writes the report to every requested destination.
    fn give<F: Figures>(&self, report: &Report<F>) -> Result<Ending, Failure> {
        if let Some(file) = self.html {
            destination::save(file, &output::html(report))?;
        }
        let mut on_stdout = output::text(report, width());
        if let Some(file) = self.json {
            let json = report.json().map_err(|error| {
                Failure::ours(
                    format!("the report is no JSON: {error}"),
                    "please report this",
                )
            })?;
            if is_stdout(file) {
                on_stdout = json + "\n";
                eprint!("{}", output::verdict(report));
            } else {
                destination::save(file, &(json + "\n"))?;
            }
        }
        // A closed standard output is no failure: its reader has read enough.
        let _ = std::io::stdout().write_all(on_stdout.as_bytes());
        Ok(Ending::Exited(0))
    }
}

/// The parts that the user requested.
fn parts(words: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known = peers::parts();
    let mut chosen = Vec::new();
    for word in words {
        match known.iter().find(|name| name.eq_ignore_ascii_case(word)) {
            _ if word == "all" => chosen.extend(known),
            Some(name) => chosen.push(name),
            None => {
                return Err(Failure::usage(
                    format!("no part '{word}'; there are {} and all", known.join(", ")),
                    "see 'uslub bench peers --help'",
                ));
            }
        }
    }
    Ok(chosen)
}

/// The seeds that the user requested, in the order of the command line.
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

/// Columns of the terminal, if standard output is a terminal.
fn width() -> u16 {
    let size = console::Term::stdout().size_checked();
    size.map_or(WIDTH, |(_, columns)| columns)
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
