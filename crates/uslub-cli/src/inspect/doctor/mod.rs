//! `uslub doctor`: what is wrong with the memory of a process, in sentences.
//!
//! | file | concept |
//! |---|---|
//! | `facts` | several looks at the process, and what the kernel says about it |
//! | `huge` | slabs in huge pages and in small ones |
//! | `rules` | the list of rules; each finds one illness |
//! | `cache_rules`, `process_rules` | the rules |
//! | `finding` | what a rule says |

mod cache_rules;
mod facts;
mod finding;
mod huge;
mod process_rules;
mod rules;
#[cfg(test)]
mod tests;

use crate::ending::Ending;
use crate::failure::Failure;
use crate::numbers::whole;
use crate::units;
use crate::width;
use clap::Args;
use facts::Facts;
use finding::Finding;
use rules::RULES;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// Looks at the process.
const LOOKS: usize = 7;
/// Exit status if something was found.
const FOUND: i32 = 1;
/// Version of the JSON format.
const FORMAT: u32 = 1;

/// Options of `uslub doctor`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub struct DoctorOptions {
    /// The process, by its number
    #[arg(value_name = "PID")]
    pub target: String,

    /// Seconds to watch the process, 0 to 3600; with 0 no rule about growth or rates applies
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = whole(0_u64, 3600))]
    pub seconds: u64,

    /// Write JSON instead of sentences
    #[arg(long)]
    pub json: bool,
}

/// The part of the help after the options.
const HELP: &str = "\
The process is not stopped, and runs no code for it. It is read seven times.

Exit status: 0 nothing was found; 1 something was found; 2 wrong usage, 125 it cannot be read,
126 it is not on uslub, 127 no such process.";

#[derive(Serialize)]
struct Report<'a> {
    format: u32,
    pid: i32,
    program: &'a str,
    seconds: f64,
    looks: usize,
    resident_bytes: u64,
    rules: Vec<&'static str>,
    findings: &'a [Finding],
}

/// What was found in a process.
#[derive(Debug, Default)]
pub struct Examination {
    facts: Facts,
    findings: Vec<Finding>,
}

impl Examination {
    /// Looks at a process for a number of seconds. With 0 it looks once.
    ///
    /// # Errors
    ///
    /// If the process ends meanwhile, or cannot be read.
    pub fn of(word: &str, seconds: u64) -> Result<Self, Failure> {
        let (looks, pause) = match seconds {
            0 => (1, Duration::ZERO),
            seconds => (LOOKS, Duration::from_secs(seconds) / (LOOKS as u32 - 1)),
        };
        let facts = Facts::gather(word, looks, pause)?;
        let findings = findings(&facts);
        Ok(Self { facts, findings })
    }

    /// The findings for people, in lines of at most `columns`.
    pub fn text(&self, columns: usize) -> String {
        text(&self.facts, &self.findings, columns)
    }
}

/// `uslub doctor`.
pub fn run(options: &DoctorOptions) -> Result<Ending, Failure> {
    let found = Examination::of(&options.target, options.seconds)?;
    let text = if options.json {
        json(&found.facts, &found.findings)?
    } else {
        found.text(columns())
    };
    super::print(&text)?;
    let is_well = found.findings.is_empty();
    Ok(Ending::Exited(if is_well { 0 } else { FOUND }))
}

/// What all rules find; of each rule the most bytes first.
fn findings(facts: &Facts) -> Vec<Finding> {
    let sorted = |(.., rule): &rules::Rule| {
        let mut found = rule(facts);
        found.sort_by_key(|finding| std::cmp::Reverse(finding.bytes));
        found
    };
    RULES.iter().flat_map(sorted).collect()
}

/// The findings for people.
fn text(facts: &Facts, findings: &[Finding], columns: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} {}: {} resident, {} live; {} {} in {:.1} s",
        facts.program,
        facts.pid,
        units::size(facts.bridge.resident),
        units::size(facts.bridge.live),
        facts.looks,
        units::plural(facts.looks as u64, "look", "looks"),
        facts.watched.as_secs_f64(),
    );
    for finding in findings {
        let words: Vec<_> = finding.text.split(' ').collect();
        let text = width::wrap(&words, " ", 12, columns);
        let _ = writeln!(out, "\n{:<10}  {text}", finding.rule);
        let words: Vec<_> = finding.action.split(' ').collect();
        let _ = writeln!(out, "{:12}-> {}", "", width::wrap(&words, " ", 15, columns));
    }
    let ill: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
    let well = RULES.iter().filter(|(name, ..)| !ill.contains(name));
    let well: Vec<_> = well.map(|&(name, ..)| name).collect();
    let begin = if findings.is_empty() {
        "Nothing was found. Looked for"
    } else {
        "Nothing was found for"
    };
    let list = width::wrap(&well, ", ", begin.len() + 2, columns);
    let _ = writeln!(out, "\n{begin}: {list}");
    out
}

/// Columns of standard output.
fn columns() -> usize {
    let terminal = console::Term::stdout().size_checked();
    let columns = terminal.map(|(_, columns)| usize::from(columns));
    columns.map_or(100, |columns| columns.clamp(40, 120))
}

fn json(facts: &Facts, findings: &[Finding]) -> Result<String, Failure> {
    super::json::pretty(&Report {
        format: FORMAT,
        pid: facts.pid,
        program: &facts.program,
        seconds: facts.watched.as_secs_f64(),
        looks: facts.looks,
        resident_bytes: facts.bridge.resident,
        rules: RULES.iter().map(|&(name, ..)| name).collect(),
        findings,
    })
}
