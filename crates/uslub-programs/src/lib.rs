//! Compares real programs: run plainly and run on uslub, they must behave the same.
//!
//! The tests under `tests/programs/` take programs that any developer machine has. They run each
//! program twice on the same input, once plainly and once under `uslub run`. They compare standard
//! output and exit status. The report of the allocator inside the program proves that the program
//! ran on uslub.
//!
//! ```text
//!  tests/programs/*   the task of each program
//!  programs/*         scripts and sources for the programs
//!  program            one program: finds it, runs it both ways, compares
//!  command            the `uslub` command under test, built once
//!  text               input that is the same on every machine
//! ```
//!
//! Variables:
//!
//! | variable | effect |
//! |---|---|
//! | `USLUB_REQUIRE_PROGRAMS=1` | a missing program fails its test, not only skips it with a note |
//! | `USLUB_TEST_MODE=rseq-off` | every program runs with `GLIBC_TUNABLES=glibc.pthread.rseq=0` |
//! | `USLUB_COMMAND=PATH` | the `uslub` to test; by default it is built from this workspace |

pub mod command;
pub mod program;
pub mod text;

pub use command::{cargo, uslub, workspace};
pub use program::{Outcome, Program, Running, Way, find};
