//! The command line: commands, options and their help.

use crate::numbers::{whole, whole_from, with_minus};
use crate::sim::SimOptions;
use crate::{inspect, recording};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use uslub_core::tunables::{TUNABLES, Tunables};

/// The kernel's SLUB allocator for any dynamically linked program
#[derive(Debug, Parser)]
#[command(name = "uslub", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads a command line.
    ///
    /// # Errors
    ///
    /// If it is wrong, or requests help.
    pub fn read<W>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error>
    where
        W: Into<OsString> + Clone,
    {
        let matches = with_minus(Self::command()).try_get_matches_from(words)?;
        Self::from_arg_matches(&matches)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program on uslub and say where its memory went
    Run(RunOptions),
    /// Run a program again and again; each time another allocation fails
    Fail(FailOptions),
    /// Measure uslub on this machine
    #[command(disable_help_subcommand = true)]
    Bench {
        /// What to measure.
        #[command(subcommand)]
        what: BenchCommand,
    },
    /// Say which objects use the memory of a running process
    Info(inspect::InfoOptions),
    /// Say what an address of a running process is
    Explain(inspect::ExplainOptions),
    /// List the live objects of a cache
    List(inspect::ListOptions),
    /// Print the caches of a running process in the kernel's format
    Slabinfo(inspect::TargetOptions),
    /// Print the figures of a running process as OpenMetrics text
    Metrics(inspect::MetricsOptions),
    /// Show the caches of a running process, look after look
    Top(inspect::TopOptions),
    /// Say what is wrong with the memory of a running process, and what to do
    Doctor(inspect::DoctorOptions),
    /// Show how full the slabs of a running process are
    Map(inspect::MapOptions),
    /// Write the caches of a running process as a folder like /sys/kernel/slab
    Sysfs(inspect::SysfsOptions),
    /// Say who points to an object
    Holders(inspect::HoldersOptions),
    /// Say which caches of a running process grow, and how fast
    Leaks(inspect::LeaksOptions),
    /// Print a script for gdb with the commands uslub info, explain, list and holders
    GdbScript,
    /// Read the heap in a file
    #[command(disable_help_subcommand = true)]
    Inspect {
        /// What to read.
        #[command(subcommand)]
        what: inspect::InspectCommand,
    },
    /// Record the memory of a process over time
    Record(recording::RecordOptions),
    /// Print a recording: tables, and lines over time
    Replay(recording::ReplayOptions),
    /// Write a recording as one HTML page
    Report(recording::ReportOptions),
    /// Write the man pages and the completions of shells to folders below PREFIX/share
    #[command(hide = true)]
    Pages {
        /// Where the command is installed, for example /usr/local
        prefix: PathBuf,
    },
    /// Play uslub on a machine of up to 512 CPUs and 16 memory nodes, in virtual time
    Sim(Box<SimOptions>),
}

/// What `uslub bench` measures.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The five mailing-list threads that uslub was built from, each old way against the new one
    Seeds(SeedsOptions),
    /// Compare uslub with other allocators: speed, memory and real programs
    Peers(PeersOptions),
    /// Run a program of your own on uslub, glibc and every other installed allocator
    Run(CompareOptions),
    /// Run one measurement of `peers` in its own process
    #[command(hide = true)]
    PeerChild {
        /// The allocator
        face: String,
        /// The work to do
        work: String,
        /// The amount of work
        number: usize,
    },
    /// Run a program for `peers` and measure its cost
    #[command(hide = true)]
    ProgramChild {
        /// The library to preload; may be empty
        library: OsString,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<OsString>,
    },
}

/// Options of `uslub bench peers`.
#[derive(Args, Debug)]
#[command(after_help = PEERS_HELP)]
pub struct PeersOptions {
    /// Parts to run: P1 to P8, K, or all
    #[arg(value_name = "PART", default_value = "all")]
    pub parts: Vec<String>,

    /// Smaller workloads and fewer rounds
    #[arg(long)]
    pub quick: bool,

    /// Write a page with plots to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write every figure to FILE as JSON; if FILE is -, standard output has only the JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The part of the help after the options.
const PEERS_HELP: &str = "\
Parts: P1 one object, P2 N objects, P3 very many live objects, P4 one CPU allocates and another frees,
P5 churn and rest, P6 real programs, P7 sleeping threads, P8 large objects, K the kernel's own figures beside ours.

Allocators: glibc; jemalloc, mimalloc and tcmalloc where their libraries are installed; and, in a build with
'--features peers', mimalloc v3, snmalloc, rpmalloc and jemalloc linked in. Who is absent is named and left out.

Exit status: 0 when it ran, whatever was met; what was not met is printed last.";

/// Options of `uslub bench run`.
#[derive(Args, Debug)]
#[command(
    override_usage = "uslub bench run [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = COMPARE_HELP
)]
pub struct CompareOptions {
    /// Measured rounds; each round runs the program once on every allocator
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole(1_usize, 10_000))]
    pub rounds: usize,

    /// File for the program's standard input; default: empty input
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Show the output of the program
    #[arg(long)]
    pub show_output: bool,

    /// Count runs with a nonzero exit status too
    #[arg(long)]
    pub ignore_failure: bool,

    /// Write every figure to FILE as JSON; if FILE is -, standard output has only the JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// The program and its arguments; all words from PROGRAM on belong to the program
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub command: Vec<OsString>,
}

/// The part of the help after the options.
const COMPARE_HELP: &str = "\
Allocators: glibc is the program as it is; the others are preloaded. jemalloc, mimalloc and tcmalloc take part
where their libraries are installed.

Exit status: 0 when all runs succeeded; 2 wrong usage, 125 a run failed or could not be measured,
126 the program cannot run on uslub, 127 no such program. If a key such as Ctrl-C ends the program, uslub dies of the same signal.";

/// Options of `uslub bench seeds`.
#[derive(Args, Debug)]
#[command(after_help = SEEDS_HELP)]
pub struct SeedsOptions {
    /// Seeds to run: 0, 1, 2, 3, 4 or all
    #[arg(default_value = "all", value_name = "SEED")]
    pub seeds: Vec<String>,

    /// Finish all seeds in less than a minute
    #[arg(long)]
    pub quick: bool,

    /// Write a page with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write every figure to FILE as JSON; if FILE is -, standard output has only the JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The part of the help after the options.
const SEEDS_HELP: &str = "\
Seeds:
  0  the freelist of a fresh slab is built for what is left over only
  1  what a refill leaves over goes into the CPU's sheaves; empty slabs are kept by demand
  2  bulk calls, and one update a slab for objects that are freed together
  3  a slab's state changes in one atomic step instead of under a lock
  4  allocation that may not block, freed on another CPU

Exit status: 0 when it ran, whatever was met; 2 wrong usage; 125 it could not run.";

/// Options of `uslub run`.
#[derive(Args, Debug)]
#[command(
    override_usage = "uslub run [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = tunables_help()
)]
pub struct RunOptions {
    /// Set a tunable; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Debug caches: letters F Z P U T A O -, then names; see docs/debugging.md
    #[arg(
        long,
        value_name = "LETTERS[,NAME...][;...]",
        allow_hyphen_values = true
    )]
    pub debug: Option<String>,

    /// Guard N objects a second (20) by closed pages, and report wrong accesses; recover: go on
    /// after a report; see docs/debugging.md
    #[arg(
        long,
        value_name = "N|recover|N,recover",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub guard: Option<String>,

    /// End the program at every misuse that software can see; the same as --set hardened=1
    #[arg(long)]
    pub hardened: bool,

    /// Whether child processes of the program run on uslub too
    #[arg(long, value_enum, default_value_t = Follow::Yes, value_name = "yes|no", hide_possible_values = true)]
    pub follow: Follow,

    /// Write a full record of the run to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Record the program's memory over time to FILE, for 'uslub replay' and 'uslub report'
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// What 'uslub record' says about the recording.
    #[command(flatten)]
    pub recording: recording::Plan,

    /// Show every cache and every child, not only those that matter
    #[arg(long)]
    pub all: bool,

    /// Print the table of caches as the kernel does, in the columns of /proc/slabinfo
    #[arg(long)]
    pub slabinfo: bool,

    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub quiet: bool,

    /// The program and its arguments; all words from PROGRAM on belong to the program
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub command: Vec<OsString>,
}

/// Options of `uslub fail`.
#[derive(Args, Debug)]
#[command(
    override_usage = "uslub fail [OPTIONS] [--] PROGRAM [ARGS]...",
    after_help = FAIL_HELP
)]
pub struct FailOptions {
    /// The first allocation that fails
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_from(1_u32))]
    pub from: u32,

    /// The last allocation that fails; default: the last one of the program
    #[arg(long, value_name = "N", value_parser = whole_from(1_u32))]
    pub to: Option<u32>,

    /// Runs, at most
    #[arg(long, value_name = "N", value_parser = whole_from(1_u32))]
    pub times: Option<u32>,

    /// Runs at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1_u32, 256))]
    pub jobs: u32,

    /// Seconds after which a run counts as hung
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole_from(1_u64))]
    pub timeout: u64,

    /// File for the program's standard input; default: empty input
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,

    /// Show the output of the program
    #[arg(long)]
    pub show_output: bool,

    /// Whether allocations of child processes fail too; each process counts its own [default: no]
    #[arg(long, value_enum, value_name = "yes|no", hide_possible_values = true)]
    pub follow: Option<Follow>,

    /// Set a tunable; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// The program and its arguments; all words from PROGRAM on belong to the program
    #[arg(required = true, trailing_var_arg = true, value_names = ["PROGRAM", "ARGS"])]
    pub command: Vec<OsString>,
}

/// The part of the help after the options.
const FAIL_HELP: &str = "\
In run n the n-th allocation of the program returns null. The runs end when the program makes fewer.
A run that a signal ends, or that hangs, is printed with the stack of the allocation that failed.

Exit status: 0 no run crashed, 1 some did; 2 wrong usage, 125 uslub itself failed,
126 the program cannot run on uslub, 127 no such program.";

/// Whether child processes of the program run on uslub too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Follow {
    /// Child processes run on uslub.
    Yes,
    /// Child processes run on the allocator that they use without uslub.
    No,
}

/// The part of the help after the options: tunables and exit status.
fn tunables_help() -> String {
    let mut text = String::from("Tunables for --set (default; range):\n");
    let width = TUNABLES.iter().map(|t| t.name.len()).max().unwrap_or(0);
    for t in TUNABLES {
        let max = format!("{} {}", t.max, t.unit);
        let (default, max) = (t.get(&Tunables::DEFAULT), max.trim_end());
        let bounds = format!("({default}; {} to {max})", t.min);
        let _ = writeln!(text, "  {:width$}  {}", t.name, t.help);
        let _ = writeln!(text, "  {:width$}    {bounds}", "");
    }
    text.push_str(
        "\nExit status: that of the program; if a signal killed it, uslub dies of the same signal.\n\
         Without a program run: 2 wrong usage, 125 uslub itself failed,\n\
         126 the program cannot run on uslub, 127 no such program.",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_options(words: &[&str]) -> Result<RunOptions, clap::Error> {
        match Cli::read([&["uslub", "run"], words].concat())?.command {
            Command::Run(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        with_minus(Cli::command()).debug_assert();
    }

    #[test]
    fn all_words_behind_the_program_belong_to_it() {
        let o = run_options(&["--quiet", "ls", "--report", "x", "--", "-q"]).unwrap();
        assert_eq!(o.command, ["ls", "--report", "x", "--", "-q"]);
        assert!(o.quiet && o.report.is_none());
        let o = run_options(&["--", "ls", "--", "--quiet"]).unwrap();
        assert_eq!(o.command, ["ls", "--", "--quiet"]);
        assert!(!o.quiet);
        let o = run_options(&["--", "--strange-name", "-q"]).unwrap();
        assert_eq!(o.command, ["--strange-name", "-q"]);
    }

    #[test]
    fn an_option_in_front_of_the_program_is_ours() {
        assert!(run_options(&["--no-such-option", "ls"]).is_err());
        assert!(run_options(&["--follow", "perhaps", "ls"]).is_err());
        let o = run_options(&[
            "--follow",
            "no",
            "--set",
            "rseq=0",
            "--set",
            "decay_ms=5",
            "ls",
        ]);
        let o = o.unwrap();
        assert_eq!(o.follow, Follow::No);
        assert_eq!(o.set, ["rseq=0", "decay_ms=5"]);
    }

    #[test]
    fn help_names_every_tunable_with_its_default() {
        let help = tunables_help();
        for t in TUNABLES {
            assert!(help.contains(t.name) && help.contains(t.help));
        }
        assert!(help.contains("(1000; 0 to 3600000 ms)"));
    }
}
