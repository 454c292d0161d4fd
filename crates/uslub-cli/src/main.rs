//! The `uslub` command: runs a program on uslub and says where its memory went.
//!
//! | file | concept |
//! |---|---|
//! | `cli` | the command line: commands, options, help |
//! | `bench` | `uslub bench`: what is measured, and where the result goes |
//! | `compare` | `uslub bench run`: a program on several allocators |
//! | `usage` | what is said when the command line is wrong |
//! | `run` | `uslub run` from start to end |
//! | `library`, `environment` | what is preloaded, and the variables that say so |
//! | `program`, `script`, `elf`, `privilege` | is this a program that a preloaded library can reach? |
//! | `unsuitable`, `failure` | why not, and what to do then |
//! | `signals`, `sys`, `ending` | the child: signals, stops, its end |
//! | `report` | the files that processes on uslub leave behind |
//! | `summary`, `table`, `units`, `record` | what the user gets: text and JSON |

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
