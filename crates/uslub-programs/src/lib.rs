//! Real programs, run plainly and on uslub, must do the same.
//!
//! The tests under `tests/programs/` take programs that any developer machine
//! has, run each twice over the same input, once plainly and once under
//! `uslub run`, and compare what it wrote to standard output and how it ended.
//! That a program really ran on uslub is read from the report that the
//! allocator inside it wrote.
//!
//! ```text
//!  tests/programs/*   what each program is asked to do
//!  programs/*         the scripts and sources that they are given
//!  program            one program: found, run one way or the other, compared
//!  command            the `uslub` command under test, built once
//!  text               input that is the same on every machine
//! ```
//!
//! Variables:
//!
//! | variable | effect |
//! |---|---|
//! | `USLUB_REQUIRE_PROGRAMS=1` | a program that is not installed fails its test; otherwise the test says so on stderr and passes |
//! | `USLUB_TEST_MODE=rseq-off` | every program runs with `GLIBC_TUNABLES=glibc.pthread.rseq=0` |
//! | `USLUB_COMMAND=PATH` | the `uslub` to test, for example an installed one; otherwise it is built from this workspace |

pub mod command;
pub mod program;
pub mod text;

pub use command::{cargo, uslub, workspace};
pub use program::{Outcome, Program, Running, Way, find};
