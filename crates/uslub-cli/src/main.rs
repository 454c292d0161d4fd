//! The `uslub` command: runs a program on uslub and says where its memory went.
//!
//! | file | concept |
//! |---|---|
//! | `cli` | the command line: commands, options, help |
//! | `bench` | `uslub bench`: selection of measurements, and output of their report |
//! | `compare` | `uslub bench run`: a program on several allocators |
//! | `sim` | `uslub sim`: the allocator on a simulated machine |
//! | `usage` | messages for a wrong command line |
//! | `run` | `uslub run` from start to end |
//! | `library`, `environment` | the preloaded library, and the variables that preload it |
//! | `program`, `script`, `elf`, `privilege` | can a preloaded library reach the program? |
//! | `unsuitable`, `failure` | why it cannot, and the remedy |
//! | `signals`, `sys`, `ending` | the child: signals, stops, its end |
//! | `report` | the files that processes on uslub leave behind |
//! | `summary`, `table`, `units`, `record` | the output for the user: text and JSON |

#![deny(unsafe_code)]

mod bench;
mod cli;
mod compare;
mod elf;
mod ending;
mod environment;
mod failure;
mod finished;
mod library;
mod machine;
mod privilege;
mod program;
mod progress;
mod reaper;
mod record;
mod report;
mod run;
mod script;
mod signals;
mod sim;
mod summary;
mod sys;
mod table;
mod units;
mod unsuitable;
mod usage;
mod wire;

use clap::Parser;
use ending::Ending;

fn main() {
    let outcome = match cli::Cli::try_parse() {
        Ok(cli) => match &cli.command {
            cli::Command::Run(options) => run::run(options),
            cli::Command::Bench { what } => bench::run(what),
            cli::Command::Sim(options) => sim::run(options),
        },
        Err(error) => usage::explain(error),
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
