//! The `uslub` command: runs a program on uslub and says where its memory went.
//!
//! | file | concept |
//! |---|---|
//! | `cli` | the command line: commands, options, help |
//! | `bench` | `uslub bench`: selection of measurements, and output of their report |
//! | `compare`, `verdict` | `uslub bench run`: a program on several allocators |
//! | `sim` | `uslub sim`: the allocator on a simulated machine |
//! | `usage`, `numbers` | messages for a wrong command line |
//! | `pages` | man pages and completions of shells |
//! | `run` | `uslub run` from start to end |
//! | `destination` | files that the user names for a result |
//! | `fail` | `uslub fail`: each allocation of a program fails once |
//! | `library`, `environment` | the preloaded library, and the variables that preload it |
//! | `guard` | the value of `--guard` |
//! | `carried` | the library inside the command, for an installation of one file |
//! | `program`, `script`, `elf`, `privilege`, `sanitizer` | can the library reach the program? |
//! | `unsuitable`, `failure` | why it cannot, and the remedy |
//! | `signals`, `sys`, `ending` | the child: signals, stops, its end |
//! | `broker` | `uslub run` opens its program for a command that may not read it |
//! | `inspect` | a look into a process or a core file from outside: info, explain, list |
//! | `recording` | looks over time: record, replay, report |
//! | `watcher`, `absence` | looks at the child from outside; why it left no report |
//! | `onlooker` | looks at the child's caches from outside |
//! | `traces`, `names` | reports about debugged caches, with the names of their addresses |
//! | `report` | the files that processes on uslub leave behind |
//! | `summary`, `caches`, `children`, `table`, `record` | the output for the user: text and JSON |
//! | `units`, `width` | figures and lines for people |

#![deny(unsafe_code)]

mod absence;
mod bench;
mod broker;
mod caches;
mod carried;
mod children;
mod cli;
mod compare;
mod destination;
mod elf;
mod ending;
mod environment;
mod fail;
mod failure;
mod finished;
mod guard;
mod inspect;
mod library;
mod machine;
mod names;
mod numbers;
mod onlooker;
mod pages;
mod privilege;
mod program;
mod progress;
mod reaper;
mod record;
mod recording;
mod report;
mod run;
mod sanitizer;
mod script;
mod signals;
mod sim;
mod summary;
mod sys;
mod table;
mod traces;
mod units;
mod unsuitable;
mod usage;
mod verdict;
mod watcher;
mod width;
mod wire;

use ending::Ending;
use std::panic::resume_unwind;
use std::thread;

/// Stack of the thread that reads the command line, in bytes. The code that `clap` generates takes
/// more than 128 KiB, and the first thread has what `ulimit -s` allows.
const PARSER_STACK_BYTES: usize = 2 << 20;

/// Reads the command line in a thread of its own, or in this one where no thread can be made.
fn parse() -> Result<cli::Cli, clap::Error> {
    let parser = thread::Builder::new().stack_size(PARSER_STACK_BYTES);
    match parser.spawn(|| cli::Cli::read(std::env::args_os())) {
        Ok(parser) => parser.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => cli::Cli::read(std::env::args_os()),
    }
}

fn main() {
    sys::survive_file_limit();
    let outcome = match parse() {
        Ok(cli) => match &cli.command {
            cli::Command::Run(options) => run::run(options),
            cli::Command::Fail(options) => fail::run(options),
            cli::Command::Bench { what } => bench::run(what),
            cli::Command::Sim(options) => sim::run(options),
            cli::Command::Info(options) => inspect::info(options),
            cli::Command::Explain(options) => inspect::explain(options),
            cli::Command::List(options) => inspect::list(options),
            cli::Command::Slabinfo(options) => inspect::slabinfo(options),
            cli::Command::Metrics(options) => inspect::metrics(options),
            cli::Command::Top(options) => inspect::top(options),
            cli::Command::Doctor(options) => inspect::doctor(options),
            cli::Command::Map(options) => inspect::map(options),
            cli::Command::Sysfs(options) => inspect::sysfs(options),
            cli::Command::Holders(options) => inspect::holders(options),
            cli::Command::Leaks(options) => inspect::leaks(options),
            cli::Command::GdbScript => inspect::gdb_script(),
            cli::Command::Inspect { what } => inspect::inspect(what),
            cli::Command::Record(options) => recording::record(options),
            cli::Command::Replay(options) => recording::replay(options),
            cli::Command::Report(options) => recording::report(options),
            cli::Command::Pages { prefix } => pages::write(prefix),
        },
        Err(error) => match inspect::usage(&error).or_else(|| recording::usage(&error)) {
            Some(failure) => Err(failure),
            None => usage::explain(error),
        },
    };
    match outcome {
        Ok(Ending::Exited(code)) => std::process::exit(code),
        Ok(Ending::Killed(signal)) => sys::die_of(signal),
        Err(failure) => {
            failure.print();
            std::process::exit(failure.code)
        }
    }
}
